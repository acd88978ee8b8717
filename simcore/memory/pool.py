"""From bytes to capacity: the KV pool each engine leaves, its tokens, the longest context, the smallest fraction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from simcore.cards.layout import Engine

ATOM_MARGIN_FRAC = 0.02
"""ATOM keeps 2 % of total memory back (public case A19, read in its source of August 2026)."""
DEFAULT_MEMORY_FRAC = 0.9
"""The planner's limit: 90 % of HBM (paper, section on legality)."""
INDEX_LOGIT_BYTES = 4
"""The sparse indexer writes one FP32 logit per query row and context token (public case A20)."""


def share_bytes(total_bytes: int, memory_frac: float) -> int:
    """Whole bytes of a fraction as it is written (0.9 means nine tenths, not its binary neighbour)."""
    return int(Fraction(str(memory_frac)) * total_bytes)


@dataclass(frozen=True)
class Reserve:
    """Memory beside weights and KV, in absolute bytes as measured; never a ratio carried to another GPU (case A19)."""

    non_torch_bytes: int = 0
    graph_bytes: int = 0
    peak_bytes: int = 0
    """Activation peak of the profiling step: depends on the batched-token budget, not on the longest context."""

    @property
    def total_bytes(self) -> int:
        return self.non_torch_bytes + self.graph_bytes + self.peak_bytes


def kv_pool_bytes(
    *,
    engine: Engine,
    total_bytes: int,
    memory_frac: float,
    weight_bytes: int,
    reserve: Reserve,
    free_bytes: int | None = None,
) -> int:
    """Bytes left for KV on one GPU; negative when weights and reserve alone break the budget.

    vLLM: total x fraction - weights - reserve. SGLang: memory free before load x fraction - weights; the reserve
    lives in the rest. ATOM: as vLLM, less 2 % of the total, and never more than is physically free.
    """
    if engine is Engine.SGLANG:
        return share_bytes(total_bytes if free_bytes is None else free_bytes, memory_frac) - weight_bytes
    pool = share_bytes(total_bytes, memory_frac) - weight_bytes - reserve.total_bytes
    if engine is Engine.ATOM:
        pool -= share_bytes(total_bytes, ATOM_MARGIN_FRAC)
        physically_free = (total_bytes if free_bytes is None else free_bytes) - weight_bytes - reserve.total_bytes
        pool = min(pool, physically_free)
    return pool


def minimum_memory_fraction(*, free_before_bytes: int, weight_bytes: int, draft_bytes: int = 0) -> float:
    """Smallest memory fraction that leaves any KV room: 1 - free_after / free_before (public case A18)."""
    free_after = free_before_bytes - weight_bytes - draft_bytes
    return 1 - free_after / free_before_bytes


def pool_tokens(*, pool_bytes: int, bytes_per_token: int, block_tokens: int = 1) -> int:
    """Tokens that a pool holds, in whole blocks; 0 for a pool that is negative or smaller than a block."""
    if bytes_per_token <= 0 or pool_bytes <= 0:
        return 0
    return pool_bytes // (bytes_per_token * block_tokens) * block_tokens


def tightest_stage_tokens(
    *, pool_bytes: Sequence[int], bytes_per_token: Sequence[int], block_tokens: int = 1
) -> tuple[int, int]:
    """(tokens, stage) of the pipeline stage that limits: the least memory per layer, not the least memory (A25)."""
    capacities = [
        pool_tokens(pool_bytes=pool, bytes_per_token=size, block_tokens=block_tokens)
        for pool, size in zip(pool_bytes, bytes_per_token, strict=True)
        if size > 0
    ]
    stages = [index for index, size in enumerate(bytes_per_token) if size > 0]
    if not capacities:
        return 0, 0
    tightest = min(range(len(capacities)), key=capacities.__getitem__)
    return capacities[tightest], stages[tightest]


def index_buffer_bytes(*, query_rows: int, coscheduled_tokens: int) -> int:
    """Transient logits of a sparse indexer without chunking: rows x co-scheduled KV tokens x 4 (public case A20)."""
    return query_rows * coscheduled_tokens * INDEX_LOGIT_BYTES
