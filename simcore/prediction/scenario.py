"""The input of `predict`: the keys of `check`, and anchors, mode, traffic and load (docs/predict.md)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationError
from pydantic.alias_generators import to_camel

from simcore.anchors.schema import Anchor
from simcore.cards.layout import Engine, Layout, apart, resolve
from simcore.cards.model import ModelCard
from simcore.des.config import Admission, Routing
from simcore.errors import InputError
from simcore.laws.handoff import HandoffBackend
from simcore.laws.speculation import DEPTH_LIMIT, Drafter
from simcore.memory import Reserve, WeightChoices
from simcore.prediction import case
from simcore.prediction.case import Bytes, CheckInput, Count, LayoutInput, Strict, Width, one_line
from simcore.prediction.costs import Speculation
from simcore.prediction.predictor import KvOffload, Mode, Overrides, Setting, StatedMemory
from simcore.prediction.traffic import (
    LoadInput,
    TraceInput,
    WorkloadInput,
    check_traffic,
    shares_prefixes,
    traffic_lengths,
)
from simcore.units import GIB

POOL_KEYS = ("layout", "replicas")
ASSUMED_BALANCE = "redundant experts: their memory is counted, what their balance brings is not priced"
NOT_PRICED: Mapping[str, str] = {
    "enumerate_": "a prediction is of one layout; `check` lists the legal ones",
    "pipeline_layer_split": "stages are priced as the engine's even split",
    "capture_sizes": "captured batch sizes are the anchor's",
    "sparse_indexer": "`check` sizes that buffer",
    "transfer": "pools hand over what their traffic needs: give `prefill` and `decode`",
    "footprint": "`check` answers it",
    "node_labels": "`check` reads them",
    "allocatable_devices": "`check` reads it",
    "largest_pipeline_parallel": "a prediction is of one layout",
}
ASSUMED_HANDOFF = "KV hand-off by MoRI: `handoff` names no backend"


class SpeculationInput(Strict):
    """A drafter and its depth; `acceptedLengthTokens` are L(1..K), mean tokens a verify step commits, if measured."""

    method: Annotated[
        Literal["MTP", "EAGLE3", "DSPARK", "NGRAM"],
        BeforeValidator(lambda word: word.upper() if isinstance(word, str) else word),
    ]
    draft_tokens: Annotated[int, Field(ge=1, le=DEPTH_LIMIT)]
    accepted_length_tokens: (
        Annotated[list[Annotated[float, Field(ge=1, allow_inf_nan=False)]], Field(min_length=1, max_length=DEPTH_LIMIT)]
        | None
    ) = None
    borrow_acceptance: bool = False


class KvOffloadInput(Strict):
    """A KV tier in host memory below HBM (paper B.6), shared evenly by a replica's GPUs."""

    host_gibibytes: Annotated[float, Field(gt=0, le=1 << 20, allow_inf_nan=False)]
    """Of one engine replica."""
    link_gigabytes_per_second: Annotated[float, Field(gt=0, le=1e5, allow_inf_nan=False)] | None = None
    """Of one GPU to its host; the accelerator's when absent."""


class PoolInput(Strict):
    """One side of a split: its layout, its replicas, and the caps that differ from the scenario's."""

    layout: LayoutInput
    replicas: Width = 1
    max_running_requests: Count | None = None
    max_batched_tokens: Count | None = None
    chunk_tokens: Count | None = None
    kv_pool_bytes_per_gpu: Bytes | None = None
    memory_fraction: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] | None = None


class HandoffInput(Strict):
    """What moves the KV cache from prefill to decode."""

    backend: Literal["mori", "nixl", "mooncake"]


class ScenarioInput(CheckInput):
    """One scenario (docs/predict.md)."""

    anchors: Annotated[list[str], Field(max_length=256)] | None = None
    mode: Literal["anchored", "simulate", "auto"] = "auto"
    workload: WorkloadInput
    load: LoadInput = LoadInput()
    replicas: Annotated[int, Field(ge=1, le=4096)] | None = None
    routing: Literal["least-loaded", "kv-aware", "prefix-hash", "round-robin", "random"] = "least-loaded"
    admission: Literal["fifo", "longest-prefix"] = "fifo"
    prefix_caching: bool | None = None
    chunk_tokens: Count | None = None
    partition: str | None = None
    speculation: SpeculationInput | None = None
    kv_offload: KvOffloadInput | None = None
    prefill: PoolInput | None = None  # type: ignore[assignment]  # `check` knows only its layout
    decode: PoolInput | None = None  # type: ignore[assignment]
    handoff: HandoffInput | None = None
    seed: Annotated[int, Field(ge=0, le=1 << 62)] = 0


@dataclass(frozen=True)
class DecodePool:
    """The decode side of a split; the scenario's own layout is then the prefill side's."""

    layout: Layout
    replicas_count: int
    overrides: Overrides
    backend: HandoffBackend


@dataclass(frozen=True)
class Scenario:
    """One configuration under one load, ready to be predicted."""

    setting: Setting
    engine: Engine
    version: str | None
    image: str | None
    layout: Layout
    gpus_per_node: int
    nodes_count: int
    workload: WorkloadInput
    load: LoadInput
    replicas_count: int
    routing: Routing
    seed: int
    decode: DecodePool | None = None
    assumed: tuple[str, ...] = ()

    @property
    def card(self) -> ModelCard:
        return self.setting.card

    def subject(self) -> dict[str, Any]:
        """What a prediction is about, in the words of its document: without them its figures are nobody's."""
        return {
            "model": self.card.name,
            "engine": self.engine.value,
            "engineVersion": self.version,
            "accelerator": self.setting.accelerator.name,
            "promptTokens": self.setting.prompt_tokens,
            "outputTokens": self.setting.output_tokens,
        }


def anchor_paths(document: Mapping[str, Any]) -> list[str]:
    """The anchors that a scenario names, before anything else of it is read. Raises InputError."""
    named = document.get("anchors") or []
    if not isinstance(named, list) or not all(isinstance(item, str) for item in named):
        raise InputError("anchors", named, "be a list of paths or names")
    return list(named)


def load_scenario(
    document: Mapping[str, Any], anchors: Mapping[str, Anchor], *, folder: Path | None = None
) -> Scenario:
    """The scenario in `document`; `anchors` are the ones it names, by name.

    `folder` is where a relative path of a trace starts (here when None); a trace is read once for its lengths. Raises
    InputError and its kin.
    """
    given = _read(document, folder)
    accelerator = case.accelerator_card(given)
    if accelerator is None:
        raise InputError("accelerator", None, "be given", "a prediction needs a known accelerator")
    card = case.model_card(given)
    if card.unknown:
        raise InputError("model.config", sorted(card.unknown), "state all of a model's shape", "these are missing")
    engine_words = case.engine_input(given)
    engine = Engine.parse(engine_words.name)
    check_traffic(given.workload, given.load)
    _check_pools(given)
    _check_caching(given)
    _refuse_what_is_not_priced(given)
    overrides = _overrides(given, engine_words)
    lengths = traffic_lengths(given.workload)
    first = given.layout if given.prefill is None else given.prefill.layout
    if first is None:
        raise InputError("layout", None, "be given")
    setting = Setting(
        card=card,
        accelerator=accelerator,
        anchors=anchors,
        mode=Mode(given.mode),
        prompt_tokens=lengths.prompt_tokens,
        output_tokens=lengths.output_tokens,
        overrides=overrides if given.prefill is None else _pool_overrides(overrides, given.prefill),
        longest_tokens=lengths.longest_tokens,
        weights_dtype=case.stated_weights_dtype(given, card),
    )
    decode = None
    if given.decode is not None:
        side, copies = apart(case.to_layout(given.decode.layout, engine), engine, is_moe=card.is_moe)
        decode = DecodePool(
            side,
            given.decode.replicas * copies,
            _pool_overrides(replace(overrides, kv_offload=None), given.decode),
            HandoffBackend(given.handoff.backend) if given.handoff else HandoffBackend.MORI,
        )
    layout, copies = apart(case.to_layout(first, engine), engine, is_moe=card.is_moe)
    scenario = Scenario(
        setting=setting,
        engine=engine,
        version=engine_words.version,
        image=None,
        layout=layout,
        gpus_per_node=given.node_gpus,
        nodes_count=given.nodes or 1,
        workload=given.workload,
        load=given.load,
        replicas_count=copies * ((given.replicas or 1) if given.prefill is None else given.prefill.replicas),
        routing=Routing(given.routing),
        seed=given.seed,
        decode=decode,
        assumed=_assumed(given, copies),
    )
    _check_budget(given, scenario)
    return scenario


def _assumed(given: ScenarioInput, copies_count: int) -> tuple[str, ...]:
    notes = [ASSUMED_HANDOFF] if given.decode is not None and given.handoff is None else []
    notes += [ASSUMED_BALANCE] if given.redundant_experts else []
    notes += [f"{copies_count} data-parallel ranks are copies, priced as replicas"] if copies_count > 1 else []
    return tuple(notes)


def _refuse_what_is_not_priced(given: ScenarioInput) -> None:
    """Keys of `check` that would change nothing here: an answer that leaves one out would be another question's."""
    for name, why in NOT_PRICED.items():
        if getattr(given, name):
            raise InputError(to_camel(name).rstrip("_"), "given", "be absent", why)
    pools = [(f"{name}.layout", pool.layout) for name in ("prefill", "decode") if (pool := getattr(given, name))]
    for field, layout in [("layout", given.layout), *pools]:
        for name in ("prefill_context_parallel", "decode_context_parallel", "context_parallel"):
            if layout is not None and (getattr(layout, name) or 1) > 1:
                must = "be 1: context parallelism is not priced"
                hint = "it changes the attention kernels, and no anchor states one; `check` says what it holds"
                raise InputError(f"{field}.{to_camel(name)}", getattr(layout, name), must, hint)


def _check_budget(given: ScenarioInput, scenario: Scenario) -> None:
    """The replicas fit in the GPUs that the scenario says there are."""
    pools = [(scenario.layout, scenario.replicas_count)]
    pools += [(scenario.decode.layout, scenario.decode.replicas_count)] if scenario.decode else []
    is_moe = scenario.card.is_moe
    wanted = sum(count * resolve(layout, scenario.engine, is_moe=is_moe).gpus_count for layout, count in pools)
    there = given.total_gpus
    if there is not None and wanted > there:
        raise InputError("gpus", there, f"be at least the {wanted} GPUs that the deployment takes")


def _read(document: Mapping[str, Any], folder: Path | None) -> ScenarioInput:
    prepared = {key: _pool(value) if key in {"prefill", "decode"} else value for key, value in document.items()}
    try:
        given = ScenarioInput.model_validate(prepared)
    except ValidationError as error:
        raise one_line(error) from error
    trace = given.workload.trace_input
    if trace is None or folder is None:
        return given
    found = TraceInput(path=str(folder / trace.path), format=trace.format)
    return given.model_copy(update={"workload": given.workload.model_copy(update={"trace": found})})


def _pool(value: Any) -> Any:
    """A pool may be stated as its layout alone, as `check` takes it."""
    is_layout = isinstance(value, dict) and not set(value) & set(POOL_KEYS)
    return {"layout": value} if is_layout else value


def _check_pools(given: ScenarioInput) -> None:
    if (given.prefill is None) != (given.decode is None):
        raise InputError("decode" if given.decode is None else "prefill", None, "be given, as the other pool is")
    if given.prefill is None:
        if given.handoff is not None:
            raise InputError("handoff", given.handoff.backend, "come with `prefill` and `decode` pools")
        return
    for name in ("layout", "replicas"):
        if getattr(given, name) is not None:
            raise InputError(name, "given", "not stand beside `prefill` and `decode`", "each pool states its own")


def _check_caching(given: ScenarioInput) -> None:
    if given.kv_offload is None and given.prefix_caching is not True:
        return
    field = "prefixCaching" if given.kv_offload is None else "kvOffload"
    if not shares_prefixes(given.workload):
        raise InputError(
            field, "given", "come with requests that share prefixes",
            "`workload.trace`, `synthetic.prefixes` or `synthetic.conversation`; others never hit a cache",
        )  # fmt: skip
    if given.prefix_caching is False:
        raise InputError("kvOffload", "given", "not come with `prefixCaching: false`", "the tier lies below that cache")


def _overrides(given: ScenarioInput, engine: case.EngineInput) -> Overrides:
    drafter, tier = given.speculation, given.kv_offload
    speculation = None
    if drafter is not None:
        accepted = tuple(drafter.accepted_length_tokens or ())
        method = Drafter(drafter.method.lower())
        speculation = Speculation(method, drafter.draft_tokens, accepted, drafter.borrow_acceptance)
    offload = None
    if tier is not None:
        link = tier.link_gigabytes_per_second
        offload = KvOffload(round(tier.host_gibibytes * GIB), None if link is None else link * 1e9)
    return Overrides(
        kv_dtype=None if given.kv_dtype == "auto" else given.kv_dtype,  # the checkpoint's, or as the anchor ran
        memory_frac=given.memory_fraction,
        block_tokens=given.block_size if given.block_size > 1 else None,
        max_running_requests=_running_cap(given),
        max_batched_tokens=given.max_batched_tokens,
        chunk_tokens=given.chunk_tokens,
        max_model_length_tokens=given.max_model_length,
        kv_pool_bytes_per_gpu=given.kv_pool_bytes_per_gpu,
        attention_backend=engine.attention_backend,
        moe_backend=engine.moe_backend,
        partition=given.partition,
        memory=_stated_memory(given, engine),
        speculation=speculation,
        kv_offload=offload,
        prefix_caching=given.prefix_caching is not False,
        admission=Admission(given.admission),
    )


def _running_cap(given: ScenarioInput) -> int | None:
    """Each running request of a hybrid model takes a state slot (public case A19)."""
    cap, slots = given.max_running_requests, given.state_blocks
    if cap is not None and slots is not None and cap > slots:
        raise InputError("maxRunningRequests", cap, f"be at most the {slots} state blocks")
    return cap or slots


def _stated_memory(given: ScenarioInput, engine: case.EngineInput) -> StatedMemory:
    reserve = given.reserve
    return StatedMemory(
        choices=WeightChoices(given.redundant_experts, engine.fused_shared_experts, given.draft_layers),
        weight_bytes=given.weight_bytes_per_gpu,
        draft_weight_bytes=given.draft_weight_bytes,
        free_before_bytes=given.free_bytes_before_load,
        reserve=None if reserve is None else Reserve(reserve.non_torch_bytes, reserve.graph_bytes, reserve.peak_bytes),
        kv_scale_bytes_per_vector=given.kv_scale_bytes_per_vector,
    )


def _pool_overrides(common: Overrides, pool: PoolInput) -> Overrides:
    return replace(
        common,
        memory_frac=pool.memory_fraction or common.memory_frac,
        max_running_requests=pool.max_running_requests or common.max_running_requests,
        max_batched_tokens=pool.max_batched_tokens or common.max_batched_tokens,
        chunk_tokens=pool.chunk_tokens or common.chunk_tokens,
        kv_pool_bytes_per_gpu=pool.kv_pool_bytes_per_gpu or common.kv_pool_bytes_per_gpu,
    )


def longest_tokens(workload: WorkloadInput) -> tuple[int, int]:
    """Prompt and output tokens of a `Setting` for `workload`, checked. Raises InputError."""
    if sum(getattr(workload, name) is not None for name in ("fixed", "synthetic", "trace")) != 1:
        raise InputError("workload", None, "hold exactly one of `fixed`, `synthetic` and `trace`")
    lengths = traffic_lengths(workload)
    return lengths.prompt_tokens, lengths.output_tokens
