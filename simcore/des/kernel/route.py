"""Where a request goes: the router's policies, and the door of a unit."""

from __future__ import annotations

from typing import Final

from simcore.des.kernel import fields as f
from simcore.des.kernel.cache import probe
from simcore.des.kernel.fields import Sim
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
def hit_tokens(sim: Sim, unit: int, slot: int) -> int:
    """Prompt tokens of `slot` resident on `unit` in either tier."""
    request = sim.slot[slot]
    if request[f.S_LEAF] == f.NONE or sim.pool[sim.unit[unit, f.U_POOL], f.P_CACHING] == 0:
        return 0
    border = probe(sim, unit, request[f.S_LEAF])
    if border == f.NONE:
        return 0
    return min(sim.arena[border, f.A_DEPTH] * sim.scalars[f.G_BLOCK_TOKENS], request[f.S_PROMPT] - 1)


@compiled
def least_loaded(sim: Sim, pool: int) -> int:
    """The unit with the fewest unfinished requests, the first of equals."""
    first = sim.pool[pool, f.P_UNIT0]
    best = first
    for unit in range(first, first + sim.pool[pool, f.P_UNITS]):
        if sim.unit[unit, f.U_OUTSTANDING] < sim.unit[best, f.U_OUTSTANDING]:
            best = unit
    return best


@compiled
def cheapest(sim: Sim, slot: int, now: int) -> int:
    """KV-aware: least uncached tokens of this prompt, plus prompt tokens still to prefill, plus prompt tokens held."""
    pool = sim.pool[0]
    for executor in range(pool[f.P_REPLICAS] * pool[f.P_STAGES]):
        settle_growth(sim, executor, now)
    first = pool[f.P_UNIT0]
    best, least, estimate = first, f.NEVER, 0
    for unit in range(first, first + pool[f.P_UNITS]):
        row = sim.unit[unit]
        uncached = sim.slot[slot, f.S_PROMPT] - hit_tokens(sim, unit, slot)
        cost = uncached + row[f.U_PENDING] + row[f.U_TOKENS]
        if cost < least:
            best, least, estimate = unit, cost, uncached
    sim.slot[slot, f.S_ESTIMATE] = estimate
    return best


@compiled
def interleaved(sim: Sim, number: int) -> int:
    """Unit `number` of the first pool, counting replicas before ranks."""
    pool = sim.pool[0]
    replicas, ranks = pool[f.P_REPLICAS], pool[f.P_RANKS]
    number %= replicas * ranks
    return pool[f.P_UNIT0] + number % replicas * ranks + number // replicas


@compiled
def route(sim: Sim, slot: int, now: int) -> int:
    """The unit of the first pool that serves `slot`."""
    scalars, request = sim.scalars, sim.slot[slot]
    policy = scalars[f.G_ROUTING]
    if policy == KV_AWARE:
        return cheapest(sim, slot, now)
    if policy == ROUND_ROBIN:
        scalars[f.G_ROUND_ROBIN] += 1
        return interleaved(sim, scalars[f.G_ROUND_ROBIN] - 1)
    if policy == RANDOM:
        return interleaved(sim, request[f.S_DRAW])
    if policy == PREFIX_HASH:
        leaf = request[f.S_LEAF]
        if leaf == f.NONE:
            return interleaved(sim, request[f.S_INDEX])
        while sim.arena[leaf, f.A_PARENT] != f.NONE:
            jump = sim.arena[leaf, f.A_JUMP]
            leaf = jump if jump != f.NONE else sim.arena[leaf, f.A_PARENT]
        mixed = sim.arena[leaf, f.A_KEY] * HASH_MIX
        return interleaved(sim, (mixed >> 20) & 0xFFFFFFFF)
    return least_loaded(sim, 0)


@compiled
def never_fits(sim: Sim, slot: int) -> bool:
    """Whether the request's prompt and output exceed a whole KV pool on its way."""
    request = sim.slot[slot]
    pool = sim.pool[0]
    after = sim.scalars[f.G_DECODE_POOL]
    shared, covered = 0, 0
    if request[f.S_LEAF] != f.NONE and pool[f.P_CACHING] == 1:
        shared = request[f.S_BLOCKS] * pool[f.P_NODE_BLOCKS]
        covered = min(request[f.S_BLOCKS] * sim.scalars[f.G_BLOCK_TOKENS], request[f.S_PROMPT])
    output = request[f.S_OUTPUT] if after == f.NONE else 0
    need = shared + blocks_for(request[f.S_PROMPT] - covered + output, pool[f.P_BLOCK])
    if need > sim.unit[pool[f.P_UNIT0], f.U_BLOCKS]:
        return True
    if after == f.NONE:
        return False
    there = sim.pool[after]
    need = blocks_for(request[f.S_PROMPT] + request[f.S_OUTPUT], there[f.P_BLOCK])
    return bool(need > sim.unit[there[f.P_UNIT0], f.U_BLOCKS])


@compiled
def wake(sim: Sim, replica: int, now: int) -> None:
    """Have the replica look at its queues at its next step."""
    row = sim.replica[replica]
    row[f.R_WAKE] = 1
    for stage in range(sim.pool[row[f.R_POOL], f.P_STAGES]):
        executor = row[f.R_EXECUTOR0] + stage
        if sim.executor[executor, f.X_END] != f.NEVER:
            cut_run(sim, executor, now)


@compiled
def deliver(sim: Sim, unit: int, slot: int, now: int) -> None:
    """Put the request into the unit's waiting line."""
    row, request = sim.unit[unit], sim.slot[slot]
    request[f.S_SEQUENCE] = sim.scalars[f.G_SEQUENCE]
    sim.scalars[f.G_SEQUENCE] += 1
    request[f.S_UNIT] = unit
    row[f.U_OUTSTANDING] += 1
    row[f.U_TOKENS] += request[f.S_PROMPT]
    row[f.U_PENDING] += request[f.S_ESTIMATE]
    row[f.U_BLOCKED] = 0
    enqueue(sim, unit, slot)
    wake(sim, row[f.U_REPLICA], now)


@compiled
def arrive(sim: Sim, slot: int, now: int) -> None:
    """A client sends the request."""
    request = sim.slot[slot]
    request[f.S_ARRIVAL] = now
    request[f.S_STATE] = f.WAITING
    scalars = sim.scalars
    scalars[f.G_ACTIVE] += 1
    scalars[f.G_ACTIVE_PEAK] = max(scalars[f.G_ACTIVE_PEAK], scalars[f.G_ACTIVE])
    if never_fits(sim, slot):
        complete(sim, slot, now, f.REJECTED)
        return
    unit = route(sim, slot, now)
    request[f.S_PREFILL_UNIT] = unit
    deliver(sim, unit, slot, now)
