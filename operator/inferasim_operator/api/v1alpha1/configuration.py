"""A serving configuration and its prediction: what a ServingPlan answers with and a DeploymentMix emits."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from inferasim_operator.api.v1alpha1.common import (
    ApiModel,
    Count,
    Digest,
    ImageReference,
    Message,
    ModelName,
    ObjectName,
    Permille,
    Positive,
    ShortText,
    SignedPermille,
    Tokens,
    Width,
    Word,
    atomic_list,
)
from simcore.cards.layout import Engine


class PredictionMode(StrEnum):
    """Where a step price comes from."""

    ANCHORED = "Anchored"
    SIMULATE = "Simulate"


class Switch(StrEnum):
    """On or off, stated."""

    ENABLED = "Enabled"
    DISABLED = "Disabled"


class Layout(ApiModel):
    """Parallel widths of one engine replica; an absent width is 1."""

    tensor_parallel: Width | None = None
    pipeline_parallel: Width | None = None
    data_parallel: Width | None = None
    expert_parallel: Width | None = None
    attention_data_parallel: Width | None = None


class SpeculationMethod(StrEnum):
    """Drafters that the planner prices."""

    MTP = "MTP"
    EAGLE = "EAGLE"
    EAGLE3 = "EAGLE3"
    NGRAM = "NGram"


class Speculation(ApiModel):
    """Speculative decoding; `draftTokens` are proposed per step and request."""

    method: SpeculationMethod
    draft_tokens: Annotated[int, Field(ge=1, le=64)]


class KvOffload(ApiModel):
    """The KV tier in host memory, of one replica."""

    host_gibibytes: Annotated[int, Field(ge=1, le=65536)]


class Configuration(ApiModel):
    """One way to serve a model: engine, layout, how many replicas, at which load."""

    engine: Engine
    engine_version: Word | None = None
    image: ImageReference | None = None
    model: ModelName | None = None
    accelerator: Word | None = None
    layout: Layout
    replicas: Positive
    gpus_per_replica: Positive | None = None
    concurrency: Positive | None = Field(default=None, description="Requests in flight over all replicas.")
    prompt_tokens: Tokens | None = None
    output_tokens: Tokens | None = None
    max_model_length_tokens: Tokens | None = None
    block_size: Positive | None = Field(default=None, description="Tokens of a KV cache block.")
    memory_permille: Permille | None = Field(default=None, description="Share of the GPU's memory given to the engine.")
    max_running_requests: Positive | None = None
    max_batched_tokens: Positive | None = None
    chunk_tokens: Positive | None = None
    prefix_caching: Switch | None = None
    weights_dtype: Word | None = None
    kv_dtype: Word | None = None
    attention_backend: Word | None = None
    moe_backend: Word | None = None
    speculation: Speculation | None = None
    kv_offload: KvOffload | None = None


class CountRange(ApiModel):
    """Two ends of an interval, in the unit of the field that it belongs to."""

    low: Count
    high: Count


class Interval80(ApiModel):
    """The 80 % interval of each predicted figure."""

    ttft_milliseconds: CountRange | None = None
    tpot_microseconds: CountRange | None = None
    tokens_per_second_per_gpu: CountRange | None = None


class Prediction(ApiModel):
    """Predicted figures. TPOT = (E2E − TTFT) / (output tokens − 1), per request; both are means."""

    ttft_milliseconds: Count
    tpot_microseconds: Count
    tokens_per_second_per_gpu: Count = Field(description="Output tokens.")
    tokens_per_second_per_user: Count | None = None
    acceptance_length_permille: Annotated[int, Field(ge=1000, le=65_000)] | None = Field(
        default=None,
        description="With speculation: tokens that a step commits per request, the verified one included; 2660 = 2.66.",
    )
    interval80: Interval80 | None = None


class PredictionSource(ApiModel):
    """What a prediction rests on."""

    mode: PredictionMode
    anchor: ObjectName | None = Field(default=None, description="The ConfigMap of the anchor.")
    anchor_digest: Digest | None = None
    flags: Annotated[tuple[ShortText, ...], Field(max_length=32)] | None = Field(
        default=None, description="What was assumed or extrapolated.", json_schema_extra=atomic_list()
    )


class Selection(ApiModel):
    """The configuration chosen for one tier."""

    tier: Word
    configuration: Configuration
    gpus: Positive | None = None
    predicted: Prediction
    headroom_permille: SignedPermille | None = Field(
        default=None, description="Distance to the tier's nearest limit, as a share of that limit."
    )
    reason: Message | None = Field(default=None, description="Why this one and not the runner-up.")
    source: PredictionSource


class Nearest(ApiModel):
    """The configuration that comes nearest to a limit nobody meets."""

    configuration: Configuration
    predicted: Prediction | None = None


class Binding(ApiModel):
    """The limit that keeps a tier from a better answer, or from any answer."""

    tier: Word
    limit: Word
    detail: Message
    nearest: Nearest | None = None
