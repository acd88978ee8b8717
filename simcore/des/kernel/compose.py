"""What the next step of a lane holds: the engines' schedulers."""

# mypy: disable-error-code="no-any-return"
# (an element of an int64 array is Any to mypy)

from __future__ import annotations

from typing import Final

from simcore.des.kernel import fields as f
from simcore.des.kernel.cache import (
    acquire,
    border_of,
    find,
    full_blocks,
    hit_tokens,
    host_nodes,
    idle_blocks,
    reclaim,
)
from simcore.des.kernel.fields import Ints
from simcore.des.kernel.jit import compiled
from simcore.des.kernel.lists import dequeue, push_event
from simcore.des.kernel.members import (
    account,
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

LONGEST_PREFIX_DEPTH: Final = 1024
"""The look over the waiting line stops here. SGLang goes back to arrival order when more than 128 wait; the paper's
replay (App. A.1) looks over the whole backlog."""


@compiled
def make_room(m: Ints, unit: int, lane: int) -> bool:
    """Let the decoders grow to the present clock, preempting while they do not fit. True if any was preempted."""
    pool = m[unit + f.U_POOL]
    preempted = False
    while m[lane + f.L_COUNT] > 0:
        need = decoder_blocks(m, lane, m[pool + f.P_BLOCK], m[lane + f.L_CLOCK]) - m[lane + f.L_ALLOC]
        if need <= available(m, unit):
            break
        preempted = True
        if m[pool + f.P_FEWEST] == 1:
            preempt_fewest(m, unit, lane)
        else:
            preempt_latest(m, unit, lane)
    account(m, unit)
    grow(m, unit, lane, m[lane + f.L_CLOCK])
    return preempted


@compiled
def add_chunk(m: Ints, lane: int, at: int, tokens: int) -> None:
    """Prefill `tokens` more of the lane's prefilling request number `at` in this step."""
    request = m[m[lane + f.L_LINE] + at]
    before = m[request + f.S_COMPUTED]
    m[m[lane + f.L_CHUNK] + at] = tokens
    m[lane + f.L_NEW] += tokens
    m[lane + f.L_SQUARE] += (2 * before + tokens) * tokens
    m[lane + f.L_BILL] += m[request + f.S_BILL]
    m[request + f.S_BILL] = 0


@compiled
def insert_prefill(m: Ints, lane: int, slot: int) -> int:
    """Put `slot` among the prefilling, ordered by sequence number; its position."""
    line = m[lane + f.L_LINE]
    at = m[lane + f.L_PREFILLS]
    while at > 0 and m[m[line + at - 1] + f.S_SEQUENCE] > m[slot + f.S_SEQUENCE]:
        m[line + at] = m[line + at - 1]
        m[m[lane + f.L_CHUNK] + at] = m[m[lane + f.L_CHUNK] + at - 1]
        at -= 1
    m[line + at] = slot
    m[m[lane + f.L_CHUNK] + at] = 0
    m[lane + f.L_PREFILLS] += 1
    m[slot + f.S_STATE] = f.PREFILLING
    return at


@compiled
def choose(m: Ints, unit: int, longest: bool) -> int:
    """The waiting request to try next: the first, or the one with the longest resident prefix."""
    best = m[unit + f.U_HEAD]
    if not longest:
        return best
    slot = best
    most = -1
    looked = 0
    while slot != f.NONE and looked < LONGEST_PREFIX_DEPTH:
        depth = 0
        if m[slot + f.S_LEAF] != f.NONE:
            border = border_of(m, unit, slot)
            if border != f.NONE:
                depth = m[border + f.A_DEPTH]
        if depth > most:
            most, best = depth, slot
        slot = m[slot + f.S_NEXT]
        looked += 1
    return best


@compiled
def reserved_blocks(m: Ints, unit: int, pool: int) -> int:
    """KV blocks SGLang keeps for the growth of what already runs."""
    left = 0
    for stage in range(m[pool + f.P_STAGES]):
        row = m[unit + f.U_LANE0] + stage * f.L_FIELDS
        left += m[row + f.L_FINISH] - m[row + f.L_CLOCK] * m[row + f.L_COUNT]
    tokens = m[unit + f.U_RESERVED] + left * m[pool + f.P_RESERVE_PERMILLE] // 1000
    return blocks_for(tokens, m[pool + f.P_BLOCK])


@compiled
def start_load(m: Ints, unit: int, slot: int, blocks: int, now: int) -> None:
    """Queue the copy of `blocks` host blocks on the unit's host link."""
    begin = max(now, m[unit + f.U_LINK_FREE])
    m[unit + f.U_LINK_FREE] = begin + blocks * m[m[unit + f.U_POOL] + f.P_LOAD_PS]
    m[slot + f.S_STATE] = f.LOADING
    push_event(m, m[unit + f.U_LINK_FREE], f.AT_DATA, m[slot + f.S_INDEX], slot)


@compiled
def admit_handed(m: Ints, unit: int, lane: int, slot: int, now: int) -> bool:
    """Take a request whose KV came from the prefill pool, if its blocks fit: its first token is out now (App. D.4)."""
    need = blocks_for(m[slot + f.S_PROMPT] + 1, m[m[unit + f.U_POOL] + f.P_BLOCK])
    if need > available(m, unit):
        return False
    account(m, unit)
    dequeue(m, unit, slot)
    m[unit + f.U_FREE] -= need
    m[unit + f.U_RUNNING] += 1
    m[lane + f.L_ADMITTED] += 1
    note_peak(m, unit)
    m[slot + f.S_LANE] = lane
    m[slot + f.S_PRIVATE] = need
    m[slot + f.S_COVERED] = 0
    m[slot + f.S_EMITTED] = 1
    m[slot + f.S_FIRST] = now
    m[slot + f.S_LAST] = now
    if m[slot + f.S_OUTPUT] == 1:
        let_go(m, unit, slot)
        leave_unit(m, unit, slot)
        forget(m, unit, slot)
        complete(m, slot, now, f.COMPLETED)
    else:
        join_decoders(m, unit, lane, slot)
    return True


@compiled
def admit_waiting(m: Ints, unit: int, lane: int, now: int, budget: int) -> int:
    """Admit waiting requests while the rules allow; the budget that is left.

    A request needs a place in the running set and all KV blocks of its uncached prompt at once (public case B08).
    """
    number = m[unit + f.U_POOL]
    block = m[number + f.P_BLOCK]
    while m[unit + f.U_WAITING] > 0 and budget > 0:
        if m[unit + f.U_RUNNING] >= m[number + f.P_CAP]:
            m[unit + f.U_BLOCKED] = 1
            break
        if m[lane + f.L_ADMITTED] * m[number + f.P_STAGES] >= m[unit + f.U_RUNNING] + m[unit + f.U_WAITING]:
            break  # the other micro-batches take the rest
        slot = choose(m, unit, m[number + f.P_LONGEST] == 1)
        if m[slot + f.S_STATE] == f.HANDED:
            if not admit_handed(m, unit, lane, slot, now):
                m[unit + f.U_BLOCKED] = 1
                break
            if m[number + f.P_HABIT] == f.MIXED and m[slot + f.S_OUTPUT] > 1:
                budget -= 1
            continue
        leaf = m[slot + f.S_LEAF] if m[number + f.P_CACHING] == 1 else f.NONE
        target = m[slot + f.S_PROMPT] + m[slot + f.S_EMITTED]
        border, depth, host, promoted, idle, covered, shared = f.NONE, 0, 0, 0, 0, 0, 0
        if leaf != f.NONE:
            covered = full_blocks(m, number, slot, m[leaf + f.A_DEPTH])
            border = border_of(m, unit, slot)
            if border != f.NONE:
                depth = m[border + f.A_DEPTH]
                node = find(m, unit, m[border + f.A_KEY])
                host, promoted = host_nodes(m, node)
                idle = idle_blocks(m, node)
            shared = covered - full_blocks(m, number, slot, depth) + promoted
            covered *= block
        hit = hit_tokens(m, number, slot, depth, target)
        uncached = target - hit
        if m[number + f.P_HABIT] == f.PREFILL_WHOLE and m[lane + f.L_NEW] > 0 and uncached > budget:
            break
        private = blocks_for(target - covered, block)
        room = available(m, unit) - idle
        asked = shared + private
        if m[number + f.P_RESERVE] == 1:
            asked = shared + blocks_for(target - covered + reserve_of(m, number, slot), block)
            asked += reserved_blocks(m, unit, number)
        if asked > room:
            m[unit + f.U_BLOCKED] = 1
            break
        account(m, unit)
        dequeue(m, unit, slot)
        m[unit + f.U_RUNNING] += 1
        m[lane + f.L_ADMITTED] += 1
        m[unit + f.U_RESERVED] += reserve_of(m, number, slot)
        if leaf != f.NONE:
            m[slot + f.S_NODE] = acquire(m, unit, slot, border)
        reclaim(m, unit, private)
        m[unit + f.U_FREE] -= private
        note_peak(m, unit)
        m[slot + f.S_PRIVATE] = private
        m[slot + f.S_COVERED] = covered
        m[slot + f.S_LANE] = lane
        m[slot + f.S_TARGET] = target
        m[slot + f.S_COMPUTED] = hit
        if m[slot + f.S_PREEMPTIONS] == 0:
            m[slot + f.S_ADMITTED] = now
            m[slot + f.S_HIT] = hit
            m[slot + f.S_HOST_HIT] = min(host * m[f.G_BLOCK_TOKENS], hit)
            m[slot + f.S_HIT_BLOCKS] = depth
            m[slot + f.S_HOST_BLOCKS] = host
            bill_host(m, slot, number, uncached)
        if host > 0:
            start_load(m, unit, slot, host, now)
            continue
        tokens = min(uncached, m[number + f.P_CHUNK], budget)
        add_chunk(m, lane, insert_prefill(m, lane, slot), tokens)
        budget -= tokens
    return budget


@compiled
def bill_host(m: Ints, slot: int, pool: int, uncached: int) -> None:
    """Host time of the request: latency only, but half of a prefill server's is serial with its step (App. D.4)."""
    host = m[pool + f.P_HOST] + m[pool + f.P_HOST_TOKEN] * uncached
    after = m[f.G_DECODE_POOL]
    if after == f.NONE:
        m[slot + f.S_HOST] = host
    elif pool != after:
        m[slot + f.S_BILL] = host // 2
        there = m[after + f.P_HOST] + m[after + f.P_HOST_TOKEN] * uncached
        m[slot + f.S_HOST] = host - host // 2 + there


@compiled
def compose(m: Ints, unit: int, lane: int, now: int) -> bool:
    """Fill the lane's next step: L_DECODES says whether its decoders run, L_NEW and L_SQUARE what is prefilled.

    True if a request was preempted.
    """
    rules = m[unit + f.U_POOL]
    mixed = m[rules + f.P_HABIT] == f.MIXED
    m[lane + f.L_NEW] = 0
    m[lane + f.L_SQUARE] = 0
    m[lane + f.L_BILL] = 0
    budget = m[rules + f.P_BUDGET]
    preempted = False
    if mixed and m[lane + f.L_COUNT] > 0:
        preempted = make_room(m, unit, lane)
        budget -= m[lane + f.L_COUNT]
    for at in range(m[lane + f.L_PREFILLS]):
        request = m[m[lane + f.L_LINE] + at]
        tokens = min(m[request + f.S_TARGET] - m[request + f.S_COMPUTED], m[rules + f.P_CHUNK], max(budget, 0))
        m[m[lane + f.L_CHUNK] + at] = 0
        if tokens > 0:
            add_chunk(m, lane, at, tokens)
            budget -= tokens
    if not preempted and m[unit + f.U_BLOCKED] == 0:
        admit_waiting(m, unit, lane, now, budget)
    if not mixed and m[lane + f.L_NEW] == 0 and m[lane + f.L_COUNT] > 0:
        preempted = make_room(m, unit, lane)
    m[lane + f.L_DECODES] = 1 if m[lane + f.L_COUNT] > 0 and (mixed or m[lane + f.L_NEW] == 0) else 0
    return preempted
