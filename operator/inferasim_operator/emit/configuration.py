"""The configuration of one deployment: what the planner selects and what emission turns into manifests.

A value that a flag states is what that flag means: `maxRunningRequests` and `chunkTokens` are of the whole engine on
SGLang, which divides them over its attention-DP ranks, and of one data-parallel rank on vLLM. Emission reads nothing
else of the plan, so a configuration written by hand emits just as well.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import BeforeValidator, Field

from inferasim_operator.api.v1alpha1.anchorharvest import ModelSource
from inferasim_operator.api.v1alpha1.common import (
    ApiModel,
    Argument,
    Count,
    EnvVar,
    ImageReference,
    ModelName,
    Permille,
    Positive,
    Rule,
    Tokens,
    Width,
    Word,
    atomic_list,
    map_list,
    unique_by,
)
from inferasim_operator.api.v1alpha1.configuration import KvOffload, Switch
from inferasim_operator.api.v1alpha1.configuration import Layout as PlannedLayout
from inferasim_operator.api.v1alpha1.configuration import Speculation as PlannedSpeculation
from simcore.cards.layout import Engine, Layout, ResolvedLayout, resolve
from simcore.errors import InputError


class Architecture(StrEnum):
    """What the parallel product rule depends on."""

    DENSE = "Dense"
    MIXTURE_OF_EXPERTS = "MixtureOfExperts"


class Role(StrEnum):
    """What a pool of replicas does."""

    COLOCATED = "colocated"
    PREFILL = "prefill"
    DECODE = "decode"


class AllToAll(StrEnum):
    """Kernels that carry tokens to their experts."""

    ALL_GATHER = "AllGatherReduceScatter"
    MORI = "MoRI"
    MORI_HIGH_THROUGHPUT = "MoRIHighThroughput"
    MORI_LOW_LATENCY = "MoRILowLatency"


class TransferBackend(StrEnum):
    """What carries the KV cache from prefill to decode."""

    MORI = "MoRI"
    NIXL = "NIXL"
    MOONCAKE = "Mooncake"


def _switch(value: object) -> object:
    # YAML writes a switch as true/false more often than as a word; both mean the same here.
    return {True: Switch.ENABLED, False: Switch.DISABLED}.get(value, value) if isinstance(value, bool) else value


SwitchField = Annotated[Switch, BeforeValidator(_switch)]


class ModelReference(ApiModel):
    """The checkpoint that is served."""

    name: ModelName = Field(description="The name that clients ask for.")
    source: ModelSource
    architecture: Architecture
    weight_bytes: Positive | None = Field(default=None, description="Size on disk; the startup budget is made from it.")


class LayoutSpec(PlannedLayout):
    """Parallel widths of one replica; absent = 1."""

    tensor_parallel: Width
    prefill_context_parallel: Width | None = None
    decode_context_parallel: Width | None = None

    def layout(self) -> Layout:
        """The widths as simcore states them."""
        return Layout(**{name: getattr(self, name) or 1 for name in type(self).model_fields})


class PoolSpec(ApiModel):
    """One side of a disaggregated deployment; limits that are absent are those of the configuration."""

    layout: LayoutSpec
    replicas: Positive
    max_running_requests: Positive | None = None
    max_batched_tokens: Tokens | None = None


class Disaggregation(ApiModel):
    """Prefill and decode in pools of their own."""

    backend: TransferBackend
    prefill: PoolSpec
    decode: PoolSpec


class Speculation(PlannedSpeculation):
    """Speculative decoding with the drafter's own checkpoint, where it has one."""

    draft_model: ModelName | None = None


class Configuration(ApiModel):
    """One deployable configuration of one engine."""

    engine: Engine
    engine_version: Word
    image: ImageReference = Field(description="The image the anchor was measured with, pinned by tag or digest.")
    model: ModelReference
    accelerator: Word
    gpus_per_node: Annotated[int, Field(ge=1, le=64)]
    layout: LayoutSpec | None = None
    replicas: Positive | None = None
    disaggregation: Disaggregation | None = None
    concurrency: Positive
    prompt_tokens: Tokens
    output_tokens: Tokens
    max_model_length_tokens: Tokens | None = Field(default=None, description="Absent = promptTokens + outputTokens.")
    kv_dtype: Annotated[str, Field(max_length=16, pattern=r"^(bf16|fp8)$")]
    block_size: Annotated[int, Field(ge=1, le=4096)] | None = None
    memory_permille: Permille
    max_running_requests: Positive
    max_batched_tokens: Tokens
    chunk_tokens: Tokens | None = None
    prefix_caching: SwitchField
    max_graph_batch: Positive | None = Field(default=None, description="Largest batch with a captured graph.")
    graph_capture_sizes: Annotated[tuple[Positive, ...], Field(max_length=512)] | None = Field(
        default=None, json_schema_extra=atomic_list()
    )
    speculation: Speculation | None = None
    kv_offload: KvOffload | None = None
    attention_backend: Word | None = None
    moe_backend: Word | None = None
    all_to_all: AllToAll | None = None
    redundant_experts: Count | None = None
    env: Annotated[tuple[EnvVar, ...], Field(max_length=128), unique_by("name")] | None = Field(
        default=None, json_schema_extra=map_list("name")
    )
    extra_args: Annotated[tuple[Argument, ...], Field(max_length=64)] | None = Field(
        default=None, json_schema_extra=atomic_list()
    )
    rules = (
        Rule(
            "has(self.disaggregation) != has(self.layout) && has(self.layout) == has(self.replicas)",
            "must set either `layout` with `replicas`, or `disaggregation`",
            lambda self: (
                (self.disaggregation is None) != (self.layout is None)
                and (self.layout is None) == (self.replicas is None)
            ),
        ),
        Rule(
            "!has(self.maxModelLengthTokens) || self.maxModelLengthTokens >= self.promptTokens + self.outputTokens",
            "must have a `maxModelLengthTokens` of at least `promptTokens` + `outputTokens`",
            lambda self: (
                self.max_model_length_tokens is None
                or self.max_model_length_tokens >= self.prompt_tokens + self.output_tokens
            ),
        ),
        Rule(
            "!has(self.maxGraphBatch) || !has(self.graphCaptureSizes)",
            "must not set both `maxGraphBatch` and `graphCaptureSizes`",
            lambda self: self.max_graph_batch is None or self.graph_capture_sizes is None,
        ),
    )

    @property
    def is_moe(self) -> bool:
        return self.model.architecture is Architecture.MIXTURE_OF_EXPERTS

    def roles(self) -> tuple[Role, ...]:
        """The pools of this configuration, in the order they are emitted."""
        return (Role.PREFILL, Role.DECODE) if self.disaggregation else (Role.COLOCATED,)

    def pool(self, role: Role) -> PoolSpec:
        """Layout, replicas and limits of one pool, all filled in. Raises InputError for a role that is not there."""
        if role not in self.roles():
            raise InputError("role", role.value, f"be one of {', '.join(self.roles())}")
        if self.disaggregation is None:
            assert self.layout is not None and self.replicas is not None  # noqa: S101, PT018 - the first rule above
            side = PoolSpec(layout=self.layout, replicas=self.replicas)
        else:
            side = self.disaggregation.prefill if role is Role.PREFILL else self.disaggregation.decode
        return side.model_copy(
            update={
                "max_running_requests": side.max_running_requests or self.max_running_requests,
                "max_batched_tokens": side.max_batched_tokens or self.max_batched_tokens,
            }
        )

    def canonical_layout(self, role: Role) -> Layout:
        """The layout in the words of the engine: vLLM states attention DP as data parallel. Raises InputError."""
        layout = self.pool(role).layout.layout()
        if self.engine is not Engine.VLLM or layout.attention_data_parallel == 1:
            return layout
        if layout.data_parallel not in (1, layout.attention_data_parallel):
            raise InputError(
                "layout.attentionDataParallel",
                layout.attention_data_parallel,
                f"equal dataParallel ({layout.data_parallel}) on vLLM",
                "vLLM's data-parallel ranks are its attention-DP ranks",
            )
        widths = {**layout.__dict__, "data_parallel": layout.attention_data_parallel, "attention_data_parallel": 1}
        return Layout(**widths)

    def resolved(self, role: Role) -> ResolvedLayout:
        """GPUs and widths that the engine makes of the layout of `role`."""
        return resolve(self.canonical_layout(role), self.engine, is_moe=self.is_moe)

    def nodes_per_replica(self, role: Role) -> int:
        """Nodes of one replica. Raises InputError when its GPUs do not fill whole nodes."""
        gpus = self.resolved(role).gpus_count
        if gpus <= self.gpus_per_node:
            return 1
        if gpus % self.gpus_per_node:
            raise InputError("layout", gpus, f"take whole nodes of {self.gpus_per_node} GPUs when it spans nodes")
        return gpus // self.gpus_per_node

    def effective_max_model_length(self) -> int:
        """Longest context in tokens that the engine is started for."""
        return self.max_model_length_tokens or self.prompt_tokens + self.output_tokens
