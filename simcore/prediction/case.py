"""One case as the user writes it (docs/check.md), strictly read and turned into simcore's own types."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from simcore.cards.accelerator import AcceleratorCard
from simcore.cards.hf import model_card_from_config
from simcore.cards.layout import Engine, Layout
from simcore.cards.library import known_model, load_accelerator_card, load_model_card, with_weights_format
from simcore.cards.matrices import parameters_count
from simcore.cards.model import ModelCard, main_weights_dtype
from simcore.cards.short import expand_short, is_short
from simcore.errors import InputError, UnknownKeyError, UnknownNameError
from simcore.legality import LegalityCase
from simcore.memory import KvFormat, MemoryRequest, Reserve, WeightChoices, kv_format

_LARGEST_BYTES = 1 << 50
NAMED_TOLERANCE_FRAC = 0.01
"""Padded vocabularies stay below it, another model of the same depth and width does not."""
_AMBIGUOUS_BELOW = 0.4
"""An unquoted 0.10, 0.20 or 0.30 loses its last digit; 0.4 and above are not written with one."""
Count = Annotated[int, Field(ge=1, le=10**9)]
Bytes = Annotated[int, Field(ge=0, le=_LARGEST_BYTES)]
Width = Annotated[int, Field(ge=1, le=4096)]


def _version_text(value: object) -> object:
    """YAML reads an unquoted version as a number or a date: both are taken where they can mean one version only."""
    if isinstance(value, float):
        if len(str(value).partition(".")[2]) == 1 and value < _AMBIGUOUS_BELOW:
            raise ValueError(f"be quoted: {value} may mean {value}0")
        return str(value)
    if hasattr(value, "isoformat"):  # a date, without importing a clock's module
        return str(value.isoformat())
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


class Strict(BaseModel):
    """Camel-case keys, nothing unknown, no silent conversion."""

    model_config = ConfigDict(alias_generator=to_camel, extra="forbid", frozen=True, strict=True)


class ModelInput(Strict):
    """A built-in card by name, or a config (Hugging Face or short spelling); `weightsFormat` overrides its storage."""

    name: Annotated[str, Field(min_length=1, max_length=253)] | None = None
    config: dict[str, Any] | None = None
    weights_format: str | None = None


class EngineInput(Strict):
    """Which engine serves, and how its kernels are chosen."""

    name: str
    version: Annotated[str | None, BeforeValidator(_version_text)] = None
    attention_backend: str | None = None
    moe_backend: str | None = None
    fused_shared_experts: bool = False


class AcceleratorInput(Strict):
    """An accelerator by name, with the memory it really reports where that is known."""

    name: str | None = None
    hbm_bytes: Bytes | None = None
    gpus_per_node: Width | None = None


class LayoutInput(Strict):
    """Parallel widths; `true` for expert or attention data parallelism means the engine's whole group."""

    tensor_parallel: Width = 1
    pipeline_parallel: Width = 1
    data_parallel: Width = 1
    expert_parallel: Width | bool = 1
    attention_data_parallel: Width | bool = 1
    prefill_context_parallel: Width = 1
    decode_context_parallel: Width = 1
    context_parallel: Width | None = None


class ClusterInput(Strict):
    """How many GPUs there are."""

    nodes: Width | None = None
    gpus_per_node: Width | None = None
    gpu_budget: Count | None = None


class ReserveInput(Strict):
    """Measured memory beside weights and KV, in bytes."""

    non_torch_bytes: Bytes = 0
    graph_bytes: Bytes = 0
    peak_bytes: Bytes = 0


class IndexerInput(Strict):
    """Load of a sparse indexer that does not chunk its logits."""

    query_rows: Count
    coscheduled_tokens: Count


class TransferInput(Strict):
    """One prompt handed from prefill to decode."""

    prompt_tokens: Count
    link_bytes_per_second: Annotated[int, Field(ge=1, le=_LARGEST_BYTES)] | None = None


class FootprintInput(Strict):
    """Equal sequences whose KV footprint is asked."""

    sequences: Count
    tokens: Count


class CheckInput(Strict):
    """One case (docs/check.md)."""

    model: ModelInput | str
    engine: EngineInput | str
    accelerator: AcceleratorInput | str | None = None
    layout: LayoutInput | None = None
    prefill: LayoutInput | None = None
    decode: LayoutInput | None = None
    enumerate_: Annotated[bool, Field(alias="enumerate")] = False
    cluster: ClusterInput | None = None
    gpus: Count | None = None
    gpu_budget: Count | None = None
    gpus_per_node: Width | None = None
    nodes: Width | None = None
    largest_pipeline_parallel: Width | None = None
    pipeline_layer_split: Annotated[list[Width], Field(min_length=1, max_length=4096)] | None = None
    kv_dtype: str | None = None
    kv_scale_bytes_per_vector: Annotated[int, Field(ge=0, le=4096)] = 0
    block_size: Count = 1
    kv_pool_bytes_per_gpu: Bytes | None = None
    memory_fraction: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] | None = None
    max_model_length: Count | None = None
    max_batched_tokens: Count | None = None
    max_running_requests: Count | None = None
    redundant_experts: Annotated[int, Field(ge=0, le=65536)] = 0
    draft_layers: Annotated[int, Field(ge=0, le=4096)] = 0
    draft_weight_bytes: Bytes | None = None
    weight_bytes_per_gpu: Bytes | None = None
    free_bytes_before_load: Bytes | None = None
    reserve: ReserveInput | None = None
    state_blocks: Count | None = None
    capture_sizes: Annotated[list[Count], Field(max_length=4096)] | None = None
    sparse_indexer: IndexerInput | None = None
    transfer: TransferInput | None = None
    footprint: FootprintInput | None = None
    node_labels: Annotated[dict[str, str], Field(max_length=1000)] | None = None
    allocatable_devices: Annotated[int, Field(ge=0, le=10**6)] | None = None

    @property
    def total_gpus(self) -> int | None:
        """GPUs that may be used, or None when nothing was said."""
        cluster = self.cluster or ClusterInput()
        given = self.gpu_budget or cluster.gpu_budget or self.gpus
        nodes = self.nodes or cluster.nodes
        whole = None if nodes is None else nodes * self.node_gpus
        return min(given, whole) if given is not None and whole is not None else given or whole

    @property
    def node_gpus(self) -> int:
        """GPUs of one node."""
        cluster = self.cluster or ClusterInput()
        accelerator = self.accelerator if isinstance(self.accelerator, AcceleratorInput) else AcceleratorInput()
        known = accelerator_card(self)
        given = self.gpus_per_node or cluster.gpus_per_node or accelerator.gpus_per_node
        return given or (known.gpus_per_node if known is not None else 8)


def read_case(document: dict[str, Any]) -> CheckInput:
    """The case in `document`. Raises InputError with the first problem, in one line."""
    prepared = {key: _bare_layout(value) if key in ("prefill", "decode") else value for key, value in document.items()}
    try:
        return CheckInput.model_validate(prepared)
    except ValidationError as error:
        raise one_line(error) from error


def _bare_layout(value: Any) -> Any:
    """`prefill: {layout: {...}}` means the same as `prefill: {...}`."""
    return value["layout"] if isinstance(value, dict) and set(value) == {"layout"} else value


def _models(base: type[BaseModel]) -> Iterator[type[BaseModel]]:
    """All input types, scenarios' included."""
    for model in base.__subclasses__():
        yield model
        yield from _models(model)


def one_line(error: ValidationError) -> InputError:
    """The problem that names the deepest field: the useful one among the branches of a union."""
    problems = error.errors(include_url=False, include_context=False)
    first = max(problems, key=lambda problem: (len(problem["loc"]), problem["type"] == "extra_forbidden"))
    kinds = (
        "ModelInput", "EngineInput", "AcceleratorInput", "LayoutInput", "LengthRange", "TraceInput", "function-before",
        "str", "int", "bool", "constrained-",
    )  # fmt: skip
    path = ".".join(str(part) for part in first["loc"] if not str(part).startswith(kinds)) or "document"
    if first["type"] == "extra_forbidden":
        known = {to_camel(name) for model in _models(Strict) for name in model.model_fields}
        return UnknownKeyError(path, path.rsplit(".", maxsplit=1)[-1], known | {"enumerate"})
    if first["type"] == "missing":
        return InputError(path, None, "be given")
    text = first["msg"][:1].lower() + first["msg"][1:]
    for start in ("value error, ", "input should ", "value should "):
        text = text.removeprefix(start)
    return InputError(path, first.get("input"), text)


def accelerator_card(case: CheckInput) -> AcceleratorCard | None:
    """The named accelerator, or None where none was named. Raises UnknownNameError."""
    given = case.accelerator
    if given is None:
        return None
    if isinstance(given, str):
        return load_accelerator_card(given)
    if given.name is None:
        return None
    try:
        card = load_accelerator_card(given.name)
    except UnknownNameError:
        if given.hbm_bytes is None:
            raise
        return None
    return card if given.hbm_bytes is None else replace(card, hbm_bytes=given.hbm_bytes, assumed=())


def hbm_bytes(case: CheckInput) -> int | None:
    """Memory of one GPU, or None where it is not known."""
    card = accelerator_card(case)
    if card is not None:
        return card.hbm_bytes
    return case.accelerator.hbm_bytes if isinstance(case.accelerator, AcceleratorInput) else None


def model_card(case: CheckInput) -> ModelCard:
    """The model's card. Raises InputError, UnknownNameError."""
    # Not validated again: a text in place of a record is a name, and which names there are the library says.
    given = case.model if isinstance(case.model, ModelInput) else ModelInput.model_construct(name=case.model)
    if given.config is not None:
        config = expand_short(given.config) if is_short(given.config) else given.config
        card = model_card_from_config(config, given.name, partial=True)
        _refuse_another_models_name(card)
    elif given.name is not None:
        card = load_model_card(given.name)
    else:
        raise InputError("model", {}, "name a built-in card or give a config")
    if case.redundant_experts and not card.is_moe and not card.unknown:
        raise InputError("redundantExperts", case.redundant_experts, "be absent", f"{card.name} has no routed experts")
    if given.weights_format is None:
        return card
    return with_weights_format(card, given.weights_format, "model.weightsFormat")


def _refuse_another_models_name(card: ModelCard) -> None:
    """A config under a built-in card's name is that model: anchors and acceptance curves are found by it."""
    known = known_model(card.name)
    if known is None or card.unknown:
        return
    built_in = load_model_card(known)
    ours, theirs = ((one.layers_count, one.hidden, parameters_count(one)) for one in (card, built_in))
    if ours[:2] != theirs[:2] or abs(ours[2] - theirs[2]) > NAMED_TOLERANCE_FRAC * theirs[2]:
        must = f"be a name of the config's own: {known} has {theirs[0]} layers of width {theirs[1]}"
        raise InputError("model.name", card.name, must, f"the config has {ours[0]} of width {ours[1]}")


def stated_weights_dtype(case: CheckInput, card: ModelCard) -> str | None:
    """The weight format that the case itself states, by a config or by name: an anchor must have run that one."""
    given = case.model
    is_stated = not isinstance(given, str) and (given.config is not None or given.weights_format is not None)
    return main_weights_dtype(card) if is_stated else None


def engine_input(case: CheckInput) -> EngineInput:
    """The engine in its long form."""
    return case.engine if isinstance(case.engine, EngineInput) else EngineInput.model_construct(name=case.engine)


def to_layout(given: LayoutInput, engine: Engine) -> Layout:
    """The layout with `true` replaced by the engine's whole group. Raises InputError."""
    tp, dp = given.tensor_parallel, given.data_parallel
    adp, ep = given.attention_data_parallel, given.expert_parallel
    if adp is True:
        adp = tp if engine is Engine.ATOM else dp
        if adp == 1 and engine is Engine.SGLANG:
            adp = tp
    if ep is True:
        ep = tp * dp if engine is Engine.VLLM else tp
    context = given.context_parallel
    if context is not None and given.prefill_context_parallel not in (1, context):
        raise InputError("layout.contextParallel", context, "not contradict prefillContextParallel")
    return Layout(
        tensor_parallel=tp,
        pipeline_parallel=given.pipeline_parallel,
        data_parallel=dp,
        expert_parallel=int(ep) or 1,
        attention_data_parallel=int(adp) or 1,
        prefill_context_parallel=context or given.prefill_context_parallel,
        decode_context_parallel=given.decode_context_parallel,
    )


def legality_case(case: CheckInput, card: ModelCard, layout: Layout) -> LegalityCase:
    """The case for the legality table."""
    engine = engine_input(case)
    return LegalityCase(
        card=card,
        engine=Engine.parse(engine.name),
        layout=layout,
        version=engine.version,
        attention_backend=engine.attention_backend,
        moe_backend=engine.moe_backend,
        accelerator=accelerator_card(case),
        gpus_per_node=case.node_gpus,
        gpu_budget=case.total_gpus,
        kv_dtype=case.kv_dtype,
        redundant_experts_count=case.redundant_experts,
        fused_shared_experts=engine.fused_shared_experts,
        split=None if case.pipeline_layer_split is None else tuple(case.pipeline_layer_split),
        model_length_tokens=case.max_model_length,
        batched_tokens=case.max_batched_tokens,
        running_requests=case.max_running_requests,
        capture_batches=None if case.capture_sizes is None else tuple(sorted(case.capture_sizes)),
    )


def kv_input(case: CheckInput, card: ModelCard) -> KvFormat:
    """How KV is stored. Raises UnknownNameError."""
    engine = Engine.parse(engine_input(case).name)
    scale_bytes = case.kv_scale_bytes_per_vector
    return kv_format(case.kv_dtype, card=card, engine=engine, scale_bytes_per_vector=scale_bytes)


def memory_request(case: CheckInput, card: ModelCard, layout: Layout) -> MemoryRequest:
    """The case for the memory model."""
    engine = engine_input(case)
    reserve = case.reserve
    indexed = card.unknown or any(group.attention.index_heads for group in card.groups)
    if case.sparse_indexer is not None and not indexed:
        raise InputError("sparseIndexer", card.name, "be absent", "the model has no sparse-attention indexer")
    request = partial(
        MemoryRequest,
        card=card,
        engine=Engine.parse(engine.name),
        layout=layout,
        kv=kv_input(case, card),
        choices=WeightChoices(case.redundant_experts, engine.fused_shared_experts, case.draft_layers),
        split=None if case.pipeline_layer_split is None else tuple(case.pipeline_layer_split),
    )
    return request(
        hbm_bytes=hbm_bytes(case),
        memory_frac=case.memory_fraction,
        block_tokens=case.block_size,
        draft_weight_bytes=case.draft_weight_bytes,
        weight_bytes=case.weight_bytes_per_gpu,
        free_before_bytes=case.free_bytes_before_load,
        pool_bytes=case.kv_pool_bytes_per_gpu,
        reserve=None if reserve is None else Reserve(reserve.non_torch_bytes, reserve.graph_bytes, reserve.peak_bytes),
        batched_tokens=case.max_batched_tokens,
        running_requests=case.max_running_requests,
        state_blocks=case.state_blocks,
        model_length_tokens=case.max_model_length,
        index_rows=None if case.sparse_indexer is None else case.sparse_indexer.query_rows,
        index_tokens=None if case.sparse_indexer is None else case.sparse_indexer.coscheduled_tokens,
    )
