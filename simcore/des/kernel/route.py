"""Where a request goes: the router's policies, and the door of a unit."""

# mypy: disable-error-code="no-any-return"
# (an element of an int64 array is Any to mypy)

from __future__ import annotations

from typing import Final

from simcore.des.kernel import fields as f
from simcore.des.kernel.cache import hit_tokens, probe
from simcore.des.kernel.fields import Ints
from simcore.des.kernel.jit import compiled
from simcore.des.kernel.lists import enqueue
from simcore.des.kernel.members import blocks_for, complete
from simcore.des.kernel.steps import cut_run, settle_growth

LEAST_LOADED: Final = 0
KV_AWARE: Final = 1
PREFIX_HASH: Final = 2
ROUND_ROBIN: Final = 3
RANDOM: Final = 4

HASH_MIX: Final = 0x2545F4914F6CDD1D


@compiled
def resident_tokens(m: Ints, unit: int, slot: int) -> int:
    """Prompt tokens of `slot` that `unit` need not compute, from either tier."""
    if m[slot + f.S_LEAF] == f.NONE or m[m[unit + f.U_POOL] + f.P_CACHING] == 0:
        return 0
    border = probe(m, unit, m[slot + f.S_LEAF])
    if border == f.NONE:
        return 0
    return hit_tokens(m, m[unit + f.U_POOL], slot, m[border + f.A_DEPTH], m[slot + f.S_PROMPT])


@compiled
def least_loaded(m: Ints, pool: int) -> int:
    """The unit with the fewest unfinished requests, the first of equals."""
    first = m[pool + f.P_UNIT0]
    best = first
    for number in range(1, m[pool + f.P_UNITS]):
        unit = first + number * f.U_FIELDS
        if m[unit + f.U_OUTSTANDING] < m[best + f.U_OUTSTANDING]:
            best = unit
    return best


@compiled
def cheapest(m: Ints, slot: int, now: int) -> int:
    """KV-aware: least uncached tokens of this prompt, plus prompt tokens still to prefill, plus prompt tokens held."""
    pool = m[f.G_FIRST_POOL]
    for number in range(m[pool + f.P_REPLICAS] * m[pool + f.P_STAGES]):
        settle_growth(m, m[f.G_EXECUTOR_AT] + number * f.X_FIELDS, now)
    best, least, estimate = f.NONE, f.NEVER, 0
    for number in range(m[pool + f.P_UNITS]):
        unit = m[pool + f.P_UNIT0] + number * f.U_FIELDS
        uncached = m[slot + f.S_PROMPT] - resident_tokens(m, unit, slot)
        cost = uncached + m[unit + f.U_PENDING] + m[unit + f.U_TOKENS]
        if cost < least:
            best, least, estimate = unit, cost, uncached
    m[slot + f.S_ESTIMATE] = estimate
    return best


@compiled
def interleaved(m: Ints, number: int) -> int:
    """Unit `number` of the first pool, counting replicas before ranks."""
    pool = m[f.G_FIRST_POOL]
    replicas, ranks = m[pool + f.P_REPLICAS], m[pool + f.P_RANKS]
    number %= replicas * ranks
    return m[pool + f.P_UNIT0] + (number % replicas * ranks + number // replicas) * f.U_FIELDS


@compiled
def route(m: Ints, slot: int, now: int) -> int:
    """The unit of the first pool that serves `slot`."""
    policy = m[f.G_ROUTING]
    if policy == KV_AWARE:
        return cheapest(m, slot, now)
    if policy == ROUND_ROBIN:
        m[f.G_ROUND_ROBIN] += 1
        return interleaved(m, m[f.G_ROUND_ROBIN] - 1)
    if policy == RANDOM:
        return interleaved(m, m[slot + f.S_DRAW])
    if policy == PREFIX_HASH:
        leaf = m[slot + f.S_LEAF]
        if leaf == f.NONE:
            return interleaved(m, m[slot + f.S_INDEX])
        while m[leaf + f.A_PARENT] != f.NONE:
            jump = m[leaf + f.A_JUMP]
            leaf = jump if jump != f.NONE else m[leaf + f.A_PARENT]
        mixed = m[leaf + f.A_KEY] * HASH_MIX
        return interleaved(m, (mixed >> 20) & 0xFFFFFFFF)
    return least_loaded(m, m[f.G_FIRST_POOL])


@compiled
def never_fits(m: Ints, slot: int) -> bool:
    """Whether the request's prompt and output exceed a whole KV pool on its way."""
    pool, after = m[f.G_FIRST_POOL], m[f.G_DECODE_POOL]
    output = m[slot + f.S_OUTPUT] if after == f.NONE else 0
    need = blocks_for(m[slot + f.S_PROMPT] + output, m[pool + f.P_BLOCK])
    if need > m[m[pool + f.P_UNIT0] + f.U_BLOCKS]:
        return True
    if after == f.NONE:
        return False
    need = blocks_for(m[slot + f.S_PROMPT] + m[slot + f.S_OUTPUT], m[after + f.P_BLOCK])
    return bool(need > m[m[after + f.P_UNIT0] + f.U_BLOCKS])


@compiled
def wake(m: Ints, replica: int, now: int) -> None:
    """Have the replica look at its queues at its next step."""
    m[replica + f.R_WAKE] = 1
    for stage in range(m[m[replica + f.R_POOL] + f.P_STAGES]):
        executor = m[replica + f.R_EXECUTOR0] + stage * f.X_FIELDS
        if m[executor + f.X_END] != f.NEVER:
            cut_run(m, executor, now)


@compiled
def deliver(m: Ints, unit: int, slot: int, now: int) -> None:
    """Put the request into the unit's waiting line."""
    m[slot + f.S_SEQUENCE] = m[f.G_SEQUENCE]
    m[f.G_SEQUENCE] += 1
    m[slot + f.S_UNIT] = unit
    m[slot + f.S_BORDER] = f.UNKNOWN
    m[unit + f.U_OUTSTANDING] += 1
    m[unit + f.U_TOKENS] += m[slot + f.S_PROMPT]
    m[unit + f.U_PENDING] += m[slot + f.S_ESTIMATE]
    m[unit + f.U_BLOCKED] = 0
    enqueue(m, unit, slot)
    wake(m, m[unit + f.U_REPLICA], now)


@compiled
def arrive(m: Ints, slot: int, now: int) -> None:
    """A client sends the request."""
    m[slot + f.S_ARRIVAL] = now
    m[slot + f.S_STATE] = f.WAITING
    m[f.G_ACTIVE] += 1
    m[f.G_ACTIVE_PEAK] = max(m[f.G_ACTIVE_PEAK], m[f.G_ACTIVE])
    if never_fits(m, slot):
        complete(m, slot, now, f.REJECTED)
        return
    unit = route(m, slot, now)
    m[slot + f.S_PREFILL_UNIT] = unit
    deliver(m, unit, slot, now)
