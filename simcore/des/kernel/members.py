"""Who is in a lane: joining and leaving the decoders, KV blocks held, the end of a request."""

# mypy: disable-error-code="no-any-return"
# (an element of an int64 array is Any to mypy)

from __future__ import annotations

import numpy as np

from simcore.des.kernel import fields as f
from simcore.des.kernel.cache import reclaim, release
from simcore.des.kernel.fields import Ints
from simcore.des.kernel.jit import compiled
from simcore.des.kernel.lists import enqueue, push_decoder, push_event, remove_decoder, remove_item


@compiled
def blocks_for(tokens: int, block: int) -> int:
    return -(-tokens // block)


@compiled
def available(m: Ints, unit: int) -> int:
    """Free KV blocks, counting those of cached blocks that nobody uses."""
    return m[unit + f.U_FREE] + m[unit + f.U_EVICTABLE]


@compiled
def account(m: Ints, unit: int) -> None:
    """Add the KV blocks in use since the last change of them to the unit's time-weighted sum."""
    used, elapsed_ps = m[unit + f.U_BLOCKS] - available(m, unit), m[f.G_NOW] - m[unit + f.U_SINCE]
    m.view(np.float64)[unit + f.U_HELD] += float(used) * float(elapsed_ps)
    m[unit + f.U_SINCE] = m[f.G_NOW]


@compiled
def note_peak(m: Ints, unit: int) -> None:
    used = m[unit + f.U_BLOCKS] - available(m, unit)
    m[unit + f.U_PEAK] = max(m[unit + f.U_PEAK], used)


@compiled
def decoder_blocks(m: Ints, lane: int, block: int, clock: int) -> int:
    """KV blocks the lane's decoders need, beyond shared ones, when the token clock shows `clock`."""
    count = m[lane + f.L_COUNT]
    if count == 0:
        return 0
    tokens = m[lane + f.L_PRIVATE] + count * clock
    slack = 0
    residue = m[lane + f.L_RESIDUE]
    for column in range(block):
        if m[residue + column] > 0:
            slack += m[residue + column] * ((column - clock) % block)
    return (tokens + slack) // block


@compiled
def grow(m: Ints, unit: int, lane: int, clock: int) -> None:
    """Give the decoders the blocks they need at `clock`; enough are available."""
    need = decoder_blocks(m, lane, m[m[unit + f.U_POOL] + f.P_BLOCK], clock) - m[lane + f.L_ALLOC]
    if need > 0:
        reclaim(m, unit, need)
        m[unit + f.U_FREE] -= need
        m[lane + f.L_ALLOC] += need
        note_peak(m, unit)
    m[lane + f.L_ALLOC_CLOCK] = clock


@compiled
def join_decoders(m: Ints, unit: int, lane: int, slot: int) -> None:
    """A request that has its first token and holds S_PRIVATE blocks starts to decode."""
    pool = m[unit + f.U_POOL]
    clock = m[lane + f.L_CLOCK]
    base = m[slot + f.S_PROMPT] + m[slot + f.S_EMITTED] - clock
    private = base - m[slot + f.S_COVERED]
    m[slot + f.S_STATE] = f.DECODING
    m[slot + f.S_BASE] = base
    m[slot + f.S_FINISH] = clock + m[slot + f.S_OUTPUT] - m[slot + f.S_EMITTED]
    m[slot + f.S_JOINED] = clock
    push_decoder(m, lane, slot)
    m[lane + f.L_BASE] += base
    m[lane + f.L_PRIVATE] += private
    m[lane + f.L_FINISH] += m[slot + f.S_FINISH]
    m[lane + f.L_ALLOC] += m[slot + f.S_PRIVATE]
    m[m[lane + f.L_RESIDUE] + (-private) % m[pool + f.P_BLOCK]] += 1
    m[m[lane + f.L_FRESH_AT] + m[lane + f.L_FRESH]] = slot
    m[lane + f.L_FRESH] += 1
    if base + clock < m[pool + f.P_WINDOW]:
        m[m[lane + f.L_SHORT_AT] + m[lane + f.L_SHORT]] = slot
        m[lane + f.L_SHORT] += 1
        m[lane + f.L_SHORT_BASE] += base


@compiled
def leave_decoders(m: Ints, unit: int, lane: int, at: int) -> int:
    """Take the decoder at heap position `at` out; it keeps its blocks in S_PRIVATE. Returns the slot."""
    slot = m[m[lane + f.L_HEAP] + at]
    pool = m[unit + f.U_POOL]
    private = m[slot + f.S_BASE] - m[slot + f.S_COVERED]
    remove_decoder(m, lane, at)
    m[lane + f.L_BASE] -= m[slot + f.S_BASE]
    m[lane + f.L_PRIVATE] -= private
    m[lane + f.L_FINISH] -= m[slot + f.S_FINISH]
    if m[slot + f.S_JOINED] <= m[lane + f.L_ALLOC_CLOCK]:
        m[slot + f.S_PRIVATE] = blocks_for(private + m[lane + f.L_ALLOC_CLOCK], m[pool + f.P_BLOCK])
    m[lane + f.L_ALLOC] -= m[slot + f.S_PRIVATE]
    m[m[lane + f.L_RESIDUE] + (-private) % m[pool + f.P_BLOCK]] -= 1
    m[slot + f.S_EMITTED] = min(
        m[slot + f.S_OUTPUT], m[slot + f.S_OUTPUT] - (m[slot + f.S_FINISH] - m[lane + f.L_CLOCK])
    )
    left = remove_item(m, m[lane + f.L_FRESH_AT], m[lane + f.L_FRESH], slot)
    if left == m[lane + f.L_FRESH]:
        m[slot + f.S_LAST] = m[lane + f.L_LAST]
    m[lane + f.L_FRESH] = left
    left = remove_item(m, m[lane + f.L_SHORT_AT], m[lane + f.L_SHORT], slot)
    if left < m[lane + f.L_SHORT]:
        m[lane + f.L_SHORT] = left
        m[lane + f.L_SHORT_BASE] -= m[slot + f.S_BASE]
    return slot


@compiled
def let_go(m: Ints, unit: int, slot: int) -> None:
    """Give back all KV the request holds on `unit`."""
    account(m, unit)
    m[unit + f.U_FREE] += m[slot + f.S_PRIVATE]
    m[slot + f.S_PRIVATE] = 0
    if m[slot + f.S_NODE] != f.NONE:
        release(m, unit, m[slot + f.S_NODE])
        m[slot + f.S_NODE] = f.NONE
    m[unit + f.U_BLOCKED] = 0


@compiled
def leave_unit(m: Ints, unit: int, slot: int) -> None:
    """The request holds no place in the running set of `unit` any more."""
    m[unit + f.U_RUNNING] -= 1
    m[m[slot + f.S_LANE] + f.L_ADMITTED] -= 1
    m[unit + f.U_BLOCKED] = 0


@compiled
def forget(m: Ints, unit: int, slot: int) -> None:
    """The request is no longer this unit's work; routers see a lighter load."""
    m[unit + f.U_OUTSTANDING] -= 1
    m[unit + f.U_TOKENS] -= m[slot + f.S_PROMPT]
    m[unit + f.U_PENDING] -= m[slot + f.S_ESTIMATE]
    m[slot + f.S_ESTIMATE] = 0


@compiled
def reserve_of(m: Ints, pool: int, slot: int) -> int:
    """Output tokens SGLang's admission keeps room for while the request prefills."""
    return min(m[slot + f.S_OUTPUT] - m[slot + f.S_EMITTED], m[pool + f.P_RESERVE_CLIP])


@compiled
def preempt(m: Ints, unit: int, slot: int) -> None:
    """Back to the waiting line; everything computed is lost except what the cache still holds later."""
    let_go(m, unit, slot)
    leave_unit(m, unit, slot)
    m[slot + f.S_STATE] = f.WAITING
    m[slot + f.S_COMPUTED] = 0
    m[slot + f.S_PREEMPTIONS] += 1
    m[unit + f.U_PREEMPTIONS] += 1
    enqueue(m, unit, slot)


@compiled
def preempt_latest(m: Ints, unit: int, lane: int) -> None:
    """Preempt the latest arrival of the lane, decoding or prefilling."""
    victim, at, sequence = f.NONE, f.NONE, f.NONE
    for position in range(m[lane + f.L_COUNT]):
        slot = m[m[lane + f.L_HEAP] + position]
        if m[slot + f.S_SEQUENCE] > sequence:
            victim, at, sequence = slot, position, m[slot + f.S_SEQUENCE]
    for position in range(m[lane + f.L_PREFILLS]):
        slot = m[m[lane + f.L_LINE] + position]
        if m[slot + f.S_SEQUENCE] > sequence:
            victim, at, sequence = slot, f.NONE, m[slot + f.S_SEQUENCE]
    if at == f.NONE:
        m[lane + f.L_PREFILLS] = remove_item(m, m[lane + f.L_LINE], m[lane + f.L_PREFILLS], victim)
        m[unit + f.U_RESERVED] -= reserve_of(m, m[unit + f.U_POOL], victim)
    else:
        leave_decoders(m, unit, lane, at)
    preempt(m, unit, victim)


@compiled
def preempt_fewest(m: Ints, unit: int, lane: int) -> None:
    """SGLang's retraction: the decoder with the fewest output tokens, then the longest prompt, then the latest."""
    at = 0
    for position in range(1, m[lane + f.L_COUNT]):
        one, best = m[m[lane + f.L_HEAP] + position], m[m[lane + f.L_HEAP] + at]
        mine = m[one + f.S_OUTPUT] - m[one + f.S_FINISH]
        least = m[best + f.S_OUTPUT] - m[best + f.S_FINISH]
        if mine < least or (
            mine == least
            and (
                m[one + f.S_PROMPT] > m[best + f.S_PROMPT]
                or (m[one + f.S_PROMPT] == m[best + f.S_PROMPT] and m[one + f.S_SEQUENCE] > m[best + f.S_SEQUENCE])
            )
        ):
            at = position
    preempt(m, unit, leave_decoders(m, unit, lane, at))


@compiled
def complete(m: Ints, slot: int, now: int, status: int) -> None:
    """Write the record, wake what waited for this request, free the slot."""
    out = m[f.G_OUT_AT] + m[f.G_OUT] * f.O_FIELDS
    m[f.G_OUT] += 1
    m[f.G_STALLED] = 0
    m[out + f.O_INDEX] = m[slot + f.S_INDEX]
    m[out + f.O_STATUS] = status
    m[out + f.O_ARRIVAL] = m[slot + f.S_ARRIVAL]
    m[out + f.O_ADMITTED] = m[slot + f.S_ADMITTED]
    m[out + f.O_FIRST] = m[slot + f.S_FIRST]
    m[out + f.O_FINISH] = now
    m[out + f.O_HOST] = m[slot + f.S_HOST]
    m[out + f.O_PROMPT] = m[slot + f.S_PROMPT]
    m[out + f.O_OUTPUT] = m[slot + f.S_EMITTED]
    m[out + f.O_HIT] = m[slot + f.S_HIT]
    m[out + f.O_HOST_HIT] = m[slot + f.S_HOST_HIT]
    m[out + f.O_BLOCKS] = m[slot + f.S_BLOCKS]
    m[out + f.O_HIT_BLOCKS] = m[slot + f.S_HIT_BLOCKS]
    m[out + f.O_HOST_BLOCKS] = m[slot + f.S_HOST_BLOCKS]
    m[out + f.O_UNIT] = m[slot + f.S_UNIT]
    m[out + f.O_PREFILL_UNIT] = m[slot + f.S_PREFILL_UNIT]
    m[out + f.O_PREEMPTIONS] = m[slot + f.S_PREEMPTIONS]
    if status == f.REJECTED:
        m[out + f.O_ADMITTED] = now
        m[out + f.O_FIRST] = now
    seen = now + m[slot + f.S_HOST]
    edge = m[slot + f.S_CHILD]
    while edge != f.NONE:
        child = m[edge + f.D_CHILD]
        following = m[edge + f.D_NEXT]
        m[child + f.S_READY] = max(m[child + f.S_READY], seen)
        m[child + f.S_DEPS] -= 1
        if m[child + f.S_DEPS] == 0:
            at = m[child + f.S_READY] + m[child + f.S_DELAY]
            if m[f.G_OPEN] == 1:
                at = max(at, m[child + f.S_TIMESTAMP])
            push_event(m, at, f.AT_RELEASE, m[child + f.S_INDEX], m[edge + f.D_CHILD])
        m[edge + f.D_NEXT] = m[f.G_FREE_EDGE]
        m[f.G_FREE_EDGE] = edge
        m[f.G_EDGES] -= 1
        edge = following
    session = m[slot + f.S_SESSION]
    m[session + f.SE_LEFT] -= 1
    m[session + f.SE_END] = max(m[session + f.SE_END], seen)
    if m[session + f.SE_LEFT] == 0:
        if m[session + f.SE_CLIENT] != f.NONE:
            push_event(m, m[session + f.SE_END], f.AT_CLIENT, m[session + f.SE_CLIENT], m[session + f.SE_CLIENT])
        m[session + f.SE_NEXT] = m[f.G_FREED_SESSION]
        m[f.G_FREED_SESSION] = session
    m[slot + f.S_NEXT] = m[f.G_FREE_SLOT]
    m[f.G_FREE_SLOT] = slot
    m[f.G_LOADED] -= 1
    m[f.G_ACTIVE] -= 1
