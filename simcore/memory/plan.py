"""One layout's memory on one GPU: weights, KV pool, capacity, and every way in which it does not fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from simcore.cards.layout import Engine, Layout, resolve, stage_layers
from simcore.cards.model import ModelCard
from simcore.memory.activations import ASSUMED, activation_bytes
from simcore.memory.kv import KvFormat, KvProfile, kv_profile
from simcore.memory.pool import (
    DEFAULT_MEMORY_FRAC,
    Reserve,
    index_buffer_bytes,
    kv_pool_bytes,
    minimum_memory_fraction,
    share_bytes,
    tightest_stage_tokens,
)
from simcore.memory.weights import DRAFT, WeightChoices, weight_bytes_by_stage
from simcore.units import GIB

DEFAULT_BATCHED_TOKENS = 16384
"""What vLLM, SGLang and ATOM run with on GPUs of 160 GiB and more (their defaults of 2026; set explicitly in plans)."""
DEFAULT_LOGIT_ROWS = 512
"""Requests whose logits are alive at once where no cap is given (assumed, as the activation estimate it is part of)."""
_LARGEST_WORKING_FRAC = 0.97
"""Above it engines fail to capture graphs (public case A19: 0.98 fails, 0.97 works)."""


_KV_SHAPE = {"layers", "head_dim", "kv_heads", "kv_lora_rank"}
"""Shape fields without which KV bytes are unknown."""


@dataclass(frozen=True)
class MemoryViolation:
    """One reason why the layout does not fit."""

    rule: str
    tensor: str
    value: int
    detail: str


@dataclass(frozen=True)
class MemoryRequest:
    """Everything the memory of one engine replica depends on; None = not given."""

    card: ModelCard
    engine: Engine
    layout: Layout
    kv: KvFormat
    hbm_bytes: int | None = None
    memory_frac: float | None = None
    block_tokens: int = 1
    split: tuple[int, ...] | None = None
    choices: WeightChoices = field(default_factory=WeightChoices)
    draft_weight_bytes: int | None = None
    """Measured draft weights per GPU; None = from the card where draft layers are loaded."""
    weight_bytes: int | None = None
    """Measured weights per GPU without the draft; None = from the card."""
    free_before_bytes: int | None = None
    """Memory free before the weights are loaded; None = all of HBM."""
    pool_bytes: int | None = None
    """The pool of one GPU as the engine reports it; None = computed."""
    reserve: Reserve | None = None
    batched_tokens: int | None = None
    running_requests: int | None = None
    state_blocks: int | None = None
    """Recurrent-state slots that the engine has (hybrid models)."""
    model_length_tokens: int | None = None
    index_rows: int | None = None
    index_tokens: int | None = None
    """Query rows per step and co-scheduled KV tokens of a sparse indexer without chunking."""


@dataclass(frozen=True)
class MemoryPlan:
    """Figures of the tightest stage; None = unknown."""

    weight_bytes_per_gpu: int | None
    weight_parts: Mapping[str, int]
    kv: KvProfile
    """Of the stage that limits."""
    kv_known: bool
    """False where a partial card leaves KV bytes unknown."""
    budget_bytes: int | None
    activation_bytes: int | None
    pool_bytes_per_gpu: int | None
    pool_tokens_per_rank: int | None
    pool_tokens_per_engine: int | None
    longest_context_tokens: int | None
    concurrency_at_model_length: float | None
    minimum_fraction: float | None
    index_buffer_bytes: int | None
    violations: tuple[MemoryViolation, ...]
    assumed: tuple[str, ...]

    @property
    def fits(self) -> bool:
        return not self.violations


def plan_memory(request: MemoryRequest) -> MemoryPlan:
    """Weights, pool and capacity of `request`, with every violation (rule `memory-fit` and its relatives).

    Does not raise for a layout that does not fit: negative room is a violation with its byte numbers, never a
    negative capacity. Raises InputError for a pipeline split that does not add up.
    """
    card, layout = request.card, request.layout
    widths = resolve(layout, request.engine, is_moe=card.is_moe)
    split = stage_layers(layers_count=card.layers_count, stages_count=layout.pipeline_parallel, split=request.split)
    profiles = _stage_profiles(request, split, widths.attention_tp)
    notes: list[str] = []
    weights, parts = _weights(request, len(split))
    activation = None
    if not card.unknown:
        rows = request.running_requests or DEFAULT_LOGIT_ROWS
        tokens = request.batched_tokens or DEFAULT_BATCHED_TOKENS
        activation = activation_bytes(card=card, widths=widths, batched_tokens=tokens, logit_rows=rows)
    pools = _pools(request, weights, activation, len(split), notes)
    memory_frac = request.memory_frac or DEFAULT_MEMORY_FRAC
    total = request.hbm_bytes if request.free_before_bytes is None else request.free_before_bytes
    found = [
        *_fit_violations(request, weights, pools, memory_frac, activation),
        *_state_violations(request),
        *_index_violations(request, memory_frac, activation),
    ]
    tokens_per_rank, fraction = None, None
    # Without a pool the stage with most KV per token limits, at equal memory.
    stage = max(range(len(profiles)), key=lambda number: profiles[number].bytes_per_token)
    kv_known = not _KV_SHAPE & set(card.unknown) and any(profile.bytes_per_token for profile in profiles)
    if pools is not None and kv_known:
        tokens_per_rank, stage = tightest_stage_tokens(
            pool_bytes=pools,
            bytes_per_token=[profile.planning_bytes_per_token for profile in profiles],
            block_tokens=request.block_tokens,
        )
        tokens_per_rank *= layout.decode_context_parallel
        if not profiles[stage].exact and request.pool_bytes is None:
            notes.append("KV pool: this model's pool is not per-token arithmetic; give the size the engine reports")
    worst = max(range(len(weights)), key=weights.__getitem__) if weights else stage
    if weights and total:
        fraction = minimum_memory_fraction(free_before_bytes=total, weight_bytes=weights[worst])
    length = request.model_length_tokens or card.max_position_tokens or None
    per_engine = None if tokens_per_rank is None else tokens_per_rank * widths.attention_dp
    if tokens_per_rank == 0 and not found:
        size = pools[stage] if pools is not None else 0
        detail = f"does not fit: a KV pool of {size} B holds no block of {request.block_tokens} tokens"
        found.append(MemoryViolation("memory-fit", "kv-pool", size, detail))
    found += _length_violations(request, tokens_per_rank, profiles[stage])
    return MemoryPlan(
        weight_bytes_per_gpu=weights[worst] if weights else None,
        weight_parts=parts[worst] if parts else {},
        kv=profiles[stage],
        kv_known=kv_known,
        budget_bytes=None if total is None else share_bytes(total, memory_frac),
        activation_bytes=activation,
        pool_bytes_per_gpu=None if pools is None else pools[stage],
        pool_tokens_per_rank=tokens_per_rank,
        pool_tokens_per_engine=per_engine,
        longest_context_tokens=None
        if tokens_per_rank is None
        else min(tokens_per_rank, card.max_position_tokens or tokens_per_rank),
        concurrency_at_model_length=None if per_engine is None or length is None else per_engine / length,
        minimum_fraction=fraction,
        index_buffer_bytes=_index_bytes(request),
        violations=tuple(found),
        assumed=tuple(notes),
    )


def _stage_profiles(request: MemoryRequest, split: Sequence[int], attention_tp: int) -> list[KvProfile]:
    profiles, start = [], 0
    for number, layers in enumerate(split):
        profiles.append(
            kv_profile(
                card=request.card,
                attention_tp=attention_tp,
                form=request.kv,
                layers=range(start, start + layers) if len(split) > 1 else None,
                draft_layers_count=request.choices.draft_layers_count if number == len(split) - 1 else 0,
            )
        )
        start += layers
    return profiles


def _weights(request: MemoryRequest, stages: int) -> tuple[list[int] | None, list[Mapping[str, int]] | None]:
    """Bytes per GPU of each stage, draft included, and their parts."""
    if request.weight_bytes is not None:
        draft = request.draft_weight_bytes or 0
        parts: dict[str, int] = {"measured": request.weight_bytes} | ({DRAFT: draft} if draft else {})
        return [request.weight_bytes + draft] * stages, [parts] * stages
    if request.card.unknown:
        return None, None
    by_stage = [
        dict(stage)
        for stage in weight_bytes_by_stage(
            card=request.card,
            layout=request.layout,
            engine=request.engine,
            split=request.split,
            choices=request.choices,
        )
    ]
    if request.draft_weight_bytes is not None:
        by_stage[-1][DRAFT] = request.draft_weight_bytes
    return [sum(stage.values()) for stage in by_stage], list(by_stage)


def _pools(
    request: MemoryRequest, weights: list[int] | None, activation: int | None, stages: int, notes: list[str]
) -> list[int] | None:
    if request.pool_bytes is not None:
        return [request.pool_bytes] * stages
    # SGLang's pool is cut from what is free before the load, whatever the device's total is.
    total = request.hbm_bytes
    if total is None and request.engine is Engine.SGLANG:
        total = request.free_before_bytes
    if weights is None or total is None:
        return None
    reserve = request.reserve
    if reserve is None:
        if request.engine is not Engine.SGLANG:  # whose pool leaves activations to the rest of the memory
            notes.append(ASSUMED)
        reserve = Reserve(peak_bytes=activation or 0)
    states = 0
    if request.running_requests:
        states = request.running_requests * max(
            profile.state_bytes_per_request
            for profile in _stage_profiles(
                request,
                stage_layers(layers_count=request.card.layers_count, stages_count=stages, split=request.split),
                resolve(request.layout, request.engine, is_moe=request.card.is_moe).attention_tp,
            )
        )
    return [
        kv_pool_bytes(
            engine=request.engine,
            total_bytes=total,
            memory_frac=request.memory_frac or DEFAULT_MEMORY_FRAC,
            weight_bytes=stage,
            reserve=reserve,
            free_bytes=request.free_before_bytes,
        )
        - states
        for stage in weights
    ]


def _fit_violations(
    request: MemoryRequest,
    weights: list[int] | None,
    pools: list[int] | None,
    memory_frac: float,
    activation: int | None,
) -> list[MemoryViolation]:
    if weights is None:
        return []
    total = request.hbm_bytes if request.free_before_bytes is None else request.free_before_bytes
    worst = max(weights)
    if total is None:
        return []
    budget = share_bytes(total, memory_frac)
    if worst >= budget:
        need = minimum_memory_fraction(free_before_bytes=total, weight_bytes=worst)
        advice = (
            f"raise the memory fraction above {need:.4f}"
            if need < _LARGEST_WORKING_FRAC
            else "use more GPUs, a wider layout or a smaller format"
        )
        return [
            MemoryViolation(
                "memory-fit", "weights", worst,
                f"does not fit: weights {worst} B ({worst / GIB:.2f} GiB) per GPU against {budget} B "
                f"({budget / GIB:.2f} GiB), {100 * memory_frac:g} % of {total / GIB:.2f} GiB; {advice}",
            )
        ]  # fmt: skip
    if request.pool_bytes is not None and worst + request.pool_bytes > total:
        pool = request.pool_bytes
        detail = f"does not fit: weights {worst} B and the given pool {pool} B exceed {total} B ({total / GIB:.2f} GiB)"
        return [MemoryViolation("memory-fit", "kv-pool", pool, detail)]
    if pools is not None and min(pools) <= 0:
        pool = min(pools)
        return [
            MemoryViolation(
                "memory-fit", "kv-pool", pool,
                f"does not fit: weights {worst / GIB:.2f} GiB leave {pool} B for KV of {budget / GIB:.2f} GiB "
                f"after an activation and reserve need of {(activation or 0) / GIB:.2f} GiB",
            )
        ]  # fmt: skip
    return []


def _state_violations(request: MemoryRequest) -> list[MemoryViolation]:
    slots, wanted = request.state_blocks, request.running_requests
    if slots is None or wanted is None or wanted <= slots:
        return []
    detail = f"{wanted} running requests need {wanted} state blocks, the engine has {slots}; cap them at {slots}"
    return [MemoryViolation("state-blocks", "linear-attention state", wanted, detail)]


def _index_bytes(request: MemoryRequest) -> int | None:
    if request.index_tokens is None:
        return None
    rows = request.index_rows or request.batched_tokens or DEFAULT_BATCHED_TOKENS
    return index_buffer_bytes(query_rows=rows, coscheduled_tokens=request.index_tokens)


def _index_violations(request: MemoryRequest, memory_frac: float, activation: int | None) -> list[MemoryViolation]:
    """The buffer lives outside weights and KV: in what the memory fraction and the reserve leave free."""
    size = _index_bytes(request)
    if size is None or request.hbm_bytes is None:
        return []
    reserve = (activation or 0) if request.reserve is None else request.reserve.total_bytes
    room = max(0, request.hbm_bytes - share_bytes(request.hbm_bytes, memory_frac) - reserve)
    if size <= room:
        return []
    rows = request.index_rows or request.batched_tokens or DEFAULT_BATCHED_TOKENS
    most = room // index_buffer_bytes(query_rows=rows, coscheduled_tokens=1)
    detail = (
        f"indexer logits {size} B ({size / GIB:.2f} GiB) for {rows} query rows x {request.index_tokens} co-scheduled "
        f"tokens exceed the {room / GIB:.2f} GiB outside the pool; cap co-scheduled context at {most} tokens"
    )
    return [MemoryViolation("sparse-index-buffer", "indexer logits", size, detail)]


def _length_violations(request: MemoryRequest, tokens: int | None, profile: KvProfile) -> list[MemoryViolation]:
    length = request.model_length_tokens
    if tokens is None or length is None or tokens >= length:
        return []
    need = -(-length // request.layout.decode_context_parallel) * profile.bytes_per_token
    detail = (
        f"maximum model length {length} needs {need} B ({need / GIB:.3f} GiB) of KV per GPU, "
        f"the pool holds {tokens} tokens; feasible up to {tokens}"
    )
    return [MemoryViolation("max-model-length", "kv-pool", length, detail)]
