"""What the next step of a lane holds: the engines' schedulers."""

from __future__ import annotations

from typing import Final

from simcore.des.kernel import fields as f
from simcore.des.kernel.cache import acquire, find, host_blocks, idle_blocks, probe, reclaim
from simcore.des.kernel.fields import Sim
from simcore.des.kernel.jit import compiled
from simcore.des.kernel.lists import dequeue, push_event
from simcore.des.kernel.members import (
    available,
    blocks_for,
    complete,
    decoder_blocks,
    forget,
    grow,
    join_decoders,
    leave_unit,
    let_go,
    note_peak,
    preempt_fewest,
    preempt_latest,
    reserve_of,
)

LONGEST_PREFIX_DEPTH: Final = 128
"""SGLang falls back to arrival order beyond this many waiting requests; so the look over the line stops there."""


@compiled
def make_room(sim: Sim, unit: int, lane: int) -> bool:
    """Let the decoders grow to the present clock, preempting while they do not fit. True if any was preempted."""
    row = sim.lane[lane]
    pool = sim.pool[sim.unit[unit, f.U_POOL]]
    preempted = False
    while row[f.L_COUNT] > 0:
        need = decoder_blocks(sim, lane, pool[f.P_BLOCK], row[f.L_CLOCK]) - row[f.L_ALLOC]
        if need <= available(sim, unit):
            break
        preempted = True
        if pool[f.P_FEWEST] == 1:
            preempt_fewest(sim, unit, lane)
        else:
            preempt_latest(sim, unit, lane)
    grow(sim, unit, lane, row[f.L_CLOCK])
    return preempted


@compiled
def add_chunk(sim: Sim, lane: int, at: int, tokens: int) -> None:
    """Prefill `tokens` more of the lane's prefilling request number `at` in this step."""
    row = sim.lane[lane]
    request = sim.slot[sim.prefill[lane, at]]
    before = request[f.S_COMPUTED]
    sim.chunk[lane, at] = tokens
    row[f.L_NEW] += tokens
    row[f.L_SQUARE] += (2 * before + tokens) * tokens
    row[f.L_BILL] += request[f.S_BILL]
    request[f.S_BILL] = 0


@compiled
def insert_prefill(sim: Sim, lane: int, slot: int) -> int:
    """Put `slot` among the prefilling, ordered by sequence number; its position."""
    row = sim.lane[lane]
    line = sim.prefill[lane]
    at = row[f.L_PREFILLS]
    while at > 0 and sim.slot[line[at - 1], f.S_SEQUENCE] > sim.slot[slot, f.S_SEQUENCE]:
        line[at] = line[at - 1]
        sim.chunk[lane, at] = sim.chunk[lane, at - 1]
        at -= 1
    line[at] = slot
    sim.chunk[lane, at] = 0
    row[f.L_PREFILLS] += 1
    sim.slot[slot, f.S_STATE] = f.PREFILLING
    return at


@compiled
def choose(sim: Sim, unit: int, longest: bool) -> int:
    """The waiting request to try next: the first, or the one with the longest resident prefix."""
    best = sim.unit[unit, f.U_HEAD]
    if not longest:
        return best
    slot = best
    most = -1
    looked = 0
    while slot != f.NONE and looked < LONGEST_PREFIX_DEPTH:
        depth = 0
        if sim.slot[slot, f.S_LEAF] != f.NONE:
            border = probe(sim, unit, sim.slot[slot, f.S_LEAF])
            if border != f.NONE:
                depth = sim.arena[border, f.A_DEPTH]
        if depth > most:
            most, best = depth, slot
        slot = sim.slot[slot, f.S_NEXT]
        looked += 1
    return best


@compiled
def reserved_blocks(sim: Sim, unit: int, pool: int) -> int:
    """KV blocks SGLang keeps for the growth of what already runs."""
    rules = sim.pool[pool]
    left = 0
    for stage in range(rules[f.P_STAGES]):
        row = sim.lane[sim.unit[unit, f.U_LANE0] + stage]
        left += row[f.L_FINISH] - row[f.L_CLOCK] * row[f.L_COUNT]
    tokens = sim.unit[unit, f.U_RESERVED] + left * rules[f.P_RESERVE_PERMILLE] // 1000
    return blocks_for(tokens, rules[f.P_BLOCK])


@compiled
def start_load(sim: Sim, unit: int, slot: int, blocks: int, now: int) -> None:
    """Queue the copy of `blocks` host blocks on the unit's host link."""
    row = sim.unit[unit]
    begin = max(now, row[f.U_LINK_FREE])
    row[f.U_LINK_FREE] = begin + blocks * sim.pool[row[f.U_POOL], f.P_LOAD_PS]
    sim.slot[slot, f.S_STATE] = f.LOADING
    push_event(sim, row[f.U_LINK_FREE], f.AT_DATA, sim.slot[slot, f.S_INDEX], slot)


@compiled
def admit_handed(sim: Sim, unit: int, lane: int, slot: int, now: int) -> bool:
    """Take a request whose KV came from the prefill pool, if its blocks fit: its first token is out now (App. D.4)."""
    request = sim.slot[slot]
    need = blocks_for(request[f.S_PROMPT] + 1, sim.pool[sim.unit[unit, f.U_POOL], f.P_BLOCK])
    if need > available(sim, unit):
        return False
    dequeue(sim, unit, slot)
    sim.unit[unit, f.U_FREE] -= need
    sim.unit[unit, f.U_RUNNING] += 1
    sim.lane[lane, f.L_ADMITTED] += 1
    note_peak(sim, unit)
    request[f.S_LANE] = lane
    request[f.S_PRIVATE] = need
    request[f.S_COVERED] = 0
    request[f.S_EMITTED] = 1
    request[f.S_FIRST] = now
    request[f.S_LAST] = now
    if request[f.S_OUTPUT] == 1:
        let_go(sim, unit, slot)
        leave_unit(sim, unit, slot)
        forget(sim, unit, slot)
        complete(sim, slot, now, f.COMPLETED)
    else:
        join_decoders(sim, unit, lane, slot)
    return True


@compiled
def admit_waiting(sim: Sim, unit: int, lane: int, now: int, budget: int) -> int:
    """Admit waiting requests while the rules allow; the budget that is left.

    A request needs a place in the running set and all KV blocks of its uncached prompt at once (public case B08).
    """
    row, mine = sim.unit[unit], sim.lane[lane]
    number = row[f.U_POOL]
    rules = sim.pool[number]
    block = rules[f.P_BLOCK]
    while row[f.U_WAITING] > 0 and budget > 0:
        if row[f.U_RUNNING] >= rules[f.P_CAP]:
            row[f.U_BLOCKED] = 1
            break
        if mine[f.L_ADMITTED] * rules[f.P_STAGES] >= row[f.U_RUNNING] + row[f.U_WAITING]:
            break  # the other micro-batches take the rest
        slot = choose(sim, unit, rules[f.P_LONGEST] == 1)
        request = sim.slot[slot]
        if request[f.S_STATE] == f.HANDED:
            if not admit_handed(sim, unit, lane, slot, now):
                row[f.U_BLOCKED] = 1
                break
            if rules[f.P_HABIT] == f.MIXED and request[f.S_OUTPUT] > 1:
                budget -= 1
            continue
        leaf = request[f.S_LEAF] if rules[f.P_CACHING] == 1 else f.NONE
        target = request[f.S_PROMPT] + request[f.S_EMITTED]
        border, depth, host, idle, covered = f.NONE, 0, 0, 0, 0
        if leaf != f.NONE:
            covered = min(request[f.S_BLOCKS] * sim.scalars[f.G_BLOCK_TOKENS], request[f.S_PROMPT])
            border = probe(sim, unit, leaf)
            if border != f.NONE:
                depth = sim.arena[border, f.A_DEPTH]
                node = find(sim, unit, sim.arena[border, f.A_KEY])
                host = host_blocks(sim, node)
                idle = idle_blocks(sim, node)
        hit = min(depth * sim.scalars[f.G_BLOCK_TOKENS], request[f.S_PROMPT], target - 1)
        uncached = target - hit
        if rules[f.P_HABIT] == f.PREFILL_WHOLE and mine[f.L_NEW] > 0 and uncached > budget:
            break
        shared = 0
        if leaf != f.NONE:
            shared = (request[f.S_BLOCKS] - depth + host) * rules[f.P_NODE_BLOCKS]
        private = blocks_for(target - covered, block)
        room = available(sim, unit) - idle * rules[f.P_NODE_BLOCKS]
        asked = shared + private
        if rules[f.P_RESERVE] == 1:
            asked = shared + blocks_for(target - covered + reserve_of(sim, number, slot), block)
            asked += reserved_blocks(sim, unit, number)
        if asked > room:
            row[f.U_BLOCKED] = 1
            break
        dequeue(sim, unit, slot)
        row[f.U_RUNNING] += 1
        mine[f.L_ADMITTED] += 1
        row[f.U_RESERVED] += reserve_of(sim, number, slot)
        if leaf != f.NONE:
            request[f.S_NODE] = acquire(sim, unit, leaf, border)
        reclaim(sim, unit, private)
        row[f.U_FREE] -= private
        note_peak(sim, unit)
        request[f.S_PRIVATE] = private
        request[f.S_COVERED] = covered
        request[f.S_LANE] = lane
        request[f.S_TARGET] = target
        request[f.S_COMPUTED] = hit
        if request[f.S_PREEMPTIONS] == 0:
            request[f.S_ADMITTED] = now
            request[f.S_HIT] = hit
            request[f.S_HOST_HIT] = min(host * sim.scalars[f.G_BLOCK_TOKENS], hit)
            request[f.S_HIT_BLOCKS] = depth
            request[f.S_HOST_BLOCKS] = host
            bill_host(sim, slot, number, uncached)
        if host > 0:
            start_load(sim, unit, slot, host, now)
            continue
        tokens = min(uncached, rules[f.P_CHUNK], budget)
        add_chunk(sim, lane, insert_prefill(sim, lane, slot), tokens)
        budget -= tokens
    return budget


@compiled
def bill_host(sim: Sim, slot: int, pool: int, uncached: int) -> None:
    """Host time of the request: latency only, but half of a prefill server's is serial with its step (App. D.4)."""
    request = sim.slot[slot]
    host = sim.pool[pool, f.P_HOST] + sim.pool[pool, f.P_HOST_TOKEN] * uncached
    after = sim.scalars[f.G_DECODE_POOL]
    if after == f.NONE:
        request[f.S_HOST] = host
    elif pool != after:
        request[f.S_BILL] = host // 2
        there = sim.pool[after, f.P_HOST] + sim.pool[after, f.P_HOST_TOKEN] * uncached
        request[f.S_HOST] = host - host // 2 + there


@compiled
def compose(sim: Sim, unit: int, lane: int, now: int) -> bool:
    """Fill the lane's next step: L_DECODES says whether its decoders run, L_NEW and L_SQUARE what is prefilled.

    True if a request was preempted.
    """
    row = sim.lane[lane]
    rules = sim.pool[sim.unit[unit, f.U_POOL]]
    mixed = rules[f.P_HABIT] == f.MIXED
    row[f.L_NEW] = 0
    row[f.L_SQUARE] = 0
    row[f.L_BILL] = 0
    budget = rules[f.P_BUDGET]
    preempted = False
    if mixed and row[f.L_COUNT] > 0:
        preempted = make_room(sim, unit, lane)
        budget -= row[f.L_COUNT]
    for at in range(row[f.L_PREFILLS]):
        request = sim.slot[sim.prefill[lane, at]]
        tokens = min(request[f.S_TARGET] - request[f.S_COMPUTED], rules[f.P_CHUNK], max(budget, 0))
        sim.chunk[lane, at] = 0
        if tokens > 0:
            add_chunk(sim, lane, at, tokens)
            budget -= tokens
    if not preempted and sim.unit[unit, f.U_BLOCKED] == 0:
        admit_waiting(sim, unit, lane, now, budget)
    if not mixed and row[f.L_NEW] == 0 and row[f.L_COUNT] > 0:
        preempted = make_room(sim, unit, lane)
    row[f.L_DECODES] = 1 if row[f.L_COUNT] > 0 and (mixed or row[f.L_NEW] == 0) else 0
    return preempted
