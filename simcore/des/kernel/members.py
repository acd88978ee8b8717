"""Who is in a lane: joining and leaving the decoders, KV blocks held, the end of a request."""

from __future__ import annotations

from simcore.des.kernel.cache import reclaim, release
from simcore.des.kernel import fields as f
from simcore.des.kernel.fields import Ints, Sim
from simcore.des.kernel.jit import compiled
from simcore.des.kernel.lists import enqueue, push_decoder, push_event, remove_decoder, remove_item


@compiled
def blocks_for(tokens: int, block: int) -> int:
    return -(-tokens // block)


@compiled
def available(sim: Sim, unit: int) -> int:
    """Free KV blocks, counting those of cached blocks that nobody uses."""
    row = sim.unit[unit]
    return row[f.U_FREE] + row[f.U_EVICTABLE] * sim.pool[row[f.U_POOL], f.P_NODE_BLOCKS]


@compiled
def note_peak(sim: Sim, unit: int) -> None:
    row = sim.unit[unit]
    used = row[f.U_BLOCKS] - available(sim, unit)
    row[f.U_PEAK] = max(row[f.U_PEAK], used)


@compiled
def decoder_blocks(sim: Sim, lane: int, block: int, clock: int) -> int:
    """KV blocks the lane's decoders need, beyond shared ones, when the token clock shows `clock`."""
    count = sim.lane[lane, f.L_COUNT]
    if count == 0:
        return 0
    tokens = sim.lane[lane, f.L_PRIVATE] + count * clock
    slack = 0
    residue = sim.residue[lane]
    for column in range(block):
        if residue[column] > 0:
            slack += residue[column] * ((column - clock) % block)
    return (tokens + slack) // block


@compiled
def grow(sim: Sim, unit: int, lane: int, clock: int) -> None:
    """Give the decoders the blocks they need at `clock`; enough are available."""
    row = sim.lane[lane]
    need = decoder_blocks(sim, lane, sim.pool[sim.unit[unit, f.U_POOL], f.P_BLOCK], clock) - row[f.L_ALLOC]
    if need > 0:
        reclaim(sim, unit, need)
        sim.unit[unit, f.U_FREE] -= need
        row[f.L_ALLOC] += need
        note_peak(sim, unit)
    row[f.L_ALLOC_CLOCK] = clock


@compiled
def join_decoders(sim: Sim, unit: int, lane: int, slot: int) -> None:
    """A request that has its first token and holds f.S_PRIVATE blocks starts to decode."""
    row, request = sim.lane[lane], sim.slot[slot]
    pool = sim.pool[sim.unit[unit, f.U_POOL]]
    clock = row[f.L_CLOCK]
    base = request[f.S_PROMPT] + request[f.S_EMITTED] - clock
    private = base - request[f.S_COVERED]
    request[f.S_STATE] = f.DECODING
    request[f.S_BASE] = base
    request[f.S_FINISH] = clock + request[f.S_OUTPUT] - request[f.S_EMITTED]
    request[f.S_JOINED] = clock
    push_decoder(sim, lane, slot)
    row[f.L_BASE] += base
    row[f.L_PRIVATE] += private
    row[f.L_FINISH] += request[f.S_FINISH]
    row[f.L_ALLOC] += request[f.S_PRIVATE]
    sim.residue[lane, (-private) % pool[f.P_BLOCK]] += 1
    sim.fresh[lane, row[f.L_FRESH]] = slot
    row[f.L_FRESH] += 1
    if base + clock < pool[f.P_WINDOW]:
        sim.short[lane, row[f.L_SHORT]] = slot
        row[f.L_SHORT] += 1
        row[f.L_SHORT_BASE] += base


@compiled
def leave_decoders(sim: Sim, unit: int, lane: int, at: int) -> int:
    """Take the decoder at heap position `at` out; it keeps its blocks in f.S_PRIVATE. Returns the slot."""
    row = sim.lane[lane]
    slot = sim.heap[lane, at]
    request = sim.slot[slot]
    pool = sim.pool[sim.unit[unit, f.U_POOL]]
    private = request[f.S_BASE] - request[f.S_COVERED]
    remove_decoder(sim, lane, at)
    row[f.L_BASE] -= request[f.S_BASE]
    row[f.L_PRIVATE] -= private
    row[f.L_FINISH] -= request[f.S_FINISH]
    if request[f.S_JOINED] <= row[f.L_ALLOC_CLOCK]:
        request[f.S_PRIVATE] = blocks_for(private + row[f.L_ALLOC_CLOCK], pool[f.P_BLOCK])
    row[f.L_ALLOC] -= request[f.S_PRIVATE]
    sim.residue[lane, (-private) % pool[f.P_BLOCK]] -= 1
    request[f.S_EMITTED] = min(request[f.S_OUTPUT], request[f.S_OUTPUT] - (request[f.S_FINISH] - row[f.L_CLOCK]))
    left = remove_item(sim.fresh[lane], row[f.L_FRESH], slot)
    if left == row[f.L_FRESH]:
        request[f.S_LAST] = row[f.L_LAST]
    row[f.L_FRESH] = left
    left = remove_item(sim.short[lane], row[f.L_SHORT], slot)
    if left < row[f.L_SHORT]:
        row[f.L_SHORT] = left
        row[f.L_SHORT_BASE] -= request[f.S_BASE]
    return slot


@compiled
def let_go(sim: Sim, unit: int, slot: int) -> None:
    """Give back all KV the request holds on `unit`."""
    row, request = sim.unit[unit], sim.slot[slot]
    row[f.U_FREE] += request[f.S_PRIVATE]
    request[f.S_PRIVATE] = 0
    if request[f.S_NODE] != f.NONE:
        release(sim, unit, request[f.S_NODE])
        request[f.S_NODE] = f.NONE
    row[f.U_BLOCKED] = 0


@compiled
def leave_unit(sim: Sim, unit: int, slot: int) -> None:
    """The request holds no place in the running set of `unit` any more."""
    sim.unit[unit, f.U_RUNNING] -= 1
    sim.lane[sim.slot[slot, f.S_LANE], f.L_ADMITTED] -= 1
    sim.unit[unit, f.U_BLOCKED] = 0


@compiled
def forget(sim: Sim, unit: int, slot: int) -> None:
    """The request is no longer this unit's work; routers see a lighter load."""
    request, row = sim.slot[slot], sim.unit[unit]
    row[f.U_OUTSTANDING] -= 1
    row[f.U_TOKENS] -= request[f.S_PROMPT]
    row[f.U_PENDING] -= request[f.S_ESTIMATE]
    request[f.S_ESTIMATE] = 0


@compiled
def reserve_of(sim: Sim, pool: int, slot: int) -> int:
    """Output tokens SGLang's admission keeps room for while the request prefills."""
    request = sim.slot[slot]
    return min(request[f.S_OUTPUT] - request[f.S_EMITTED], sim.pool[pool, f.P_RESERVE_CLIP])


@compiled
def preempt(sim: Sim, unit: int, slot: int) -> None:
    """Back to the waiting line; everything computed is lost except what the cache still holds later."""
    request = sim.slot[slot]
    let_go(sim, unit, slot)
    leave_unit(sim, unit, slot)
    request[f.S_STATE] = f.WAITING
    request[f.S_COMPUTED] = 0
    request[f.S_PREEMPTIONS] += 1
    sim.unit[unit, f.U_PREEMPTIONS] += 1
    enqueue(sim, unit, slot)


@compiled
def preempt_latest(sim: Sim, unit: int, lane: int) -> None:
    """Preempt the latest arrival of the lane, decoding or prefilling."""
    slots, row = sim.slot, sim.lane[lane]
    victim, at, sequence = f.NONE, f.NONE, f.NONE
    for position in range(row[f.L_COUNT]):
        slot = sim.heap[lane, position]
        if slots[slot, f.S_SEQUENCE] > sequence:
            victim, at, sequence = slot, position, slots[slot, f.S_SEQUENCE]
    for position in range(row[f.L_PREFILLS]):
        slot = sim.prefill[lane, position]
        if slots[slot, f.S_SEQUENCE] > sequence:
            victim, at, sequence = slot, f.NONE, slots[slot, f.S_SEQUENCE]
    if at == f.NONE:
        row[f.L_PREFILLS] = remove_item(sim.prefill[lane], row[f.L_PREFILLS], victim)
        sim.unit[unit, f.U_RESERVED] -= reserve_of(sim, sim.unit[unit, f.U_POOL], victim)
    else:
        leave_decoders(sim, unit, lane, at)
    preempt(sim, unit, victim)


@compiled
def preempt_fewest(sim: Sim, unit: int, lane: int) -> None:
    """SGLang's retraction: the decoder with the fewest output tokens, then the longest prompt, then the latest."""
    slots, row = sim.slot, sim.lane[lane]
    at = 0
    for position in range(1, row[f.L_COUNT]):
        one, best = slots[sim.heap[lane, position]], slots[sim.heap[lane, at]]
        mine = one[f.S_OUTPUT] - one[f.S_FINISH]
        least = best[f.S_OUTPUT] - best[f.S_FINISH]
        if mine < least or (
            mine == least
            and (
                one[f.S_PROMPT] > best[f.S_PROMPT]
                or (one[f.S_PROMPT] == best[f.S_PROMPT] and one[f.S_SEQUENCE] > best[f.S_SEQUENCE])
            )
        ):
            at = position
    preempt(sim, unit, leave_decoders(sim, unit, lane, at))


@compiled
def complete(sim: Sim, slot: int, now: int, status: int) -> None:
    """Write the record, wake what waited for this request, free the slot."""
    request, scalars = sim.slot[slot], sim.scalars
    out = sim.out[scalars[f.G_OUT]]
    scalars[f.G_OUT] += 1
    out[f.O_INDEX] = request[f.S_INDEX]
    out[f.O_STATUS] = status
    out[f.O_ARRIVAL] = request[f.S_ARRIVAL]
    out[f.O_ADMITTED] = request[f.S_ADMITTED]
    out[f.O_FIRST] = request[f.S_FIRST]
    out[f.O_FINISH] = now
    out[f.O_HOST] = request[f.S_HOST]
    out[f.O_PROMPT] = request[f.S_PROMPT]
    out[f.O_OUTPUT] = request[f.S_EMITTED]
    out[f.O_HIT] = request[f.S_HIT]
    out[f.O_HOST_HIT] = request[f.S_HOST_HIT]
    out[f.O_BLOCKS] = request[f.S_BLOCKS]
    out[f.O_HIT_BLOCKS] = request[f.S_HIT_BLOCKS]
    out[f.O_HOST_BLOCKS] = request[f.S_HOST_BLOCKS]
    out[f.O_UNIT] = request[f.S_UNIT]
    out[f.O_PREFILL_UNIT] = request[f.S_PREFILL_UNIT]
    out[f.O_PREEMPTIONS] = request[f.S_PREEMPTIONS]
    if status == f.REJECTED:
        out[f.O_ADMITTED] = now
        out[f.O_FIRST] = now
    seen = now + request[f.S_HOST]
    edge = request[f.S_CHILD]
    while edge != f.NONE:
        child = sim.slot[sim.edge[edge, 0]]
        following = sim.edge[edge, 1]
        child[f.S_READY] = max(child[f.S_READY], seen)
        child[f.S_DEPS] -= 1
        if child[f.S_DEPS] == 0:
            at = child[f.S_READY] + child[f.S_DELAY]
            if scalars[f.G_OPEN] == 1:
                at = max(at, child[f.S_TIMESTAMP])
            push_event(sim, at, f.AT_RELEASE, child[f.S_INDEX], sim.edge[edge, 0])
        sim.free_edge[scalars[f.G_FREE_EDGES]] = edge
        scalars[f.G_FREE_EDGES] += 1
        edge = following
    session = sim.session[request[f.S_SESSION]]
    session[f.SE_LEFT] -= 1
    session[f.SE_END] = max(session[f.SE_END], seen)
    if session[f.SE_LEFT] == 0:
        if session[f.SE_CLIENT] != f.NONE:
            push_event(sim, session[f.SE_END], f.AT_CLIENT, session[f.SE_CLIENT], session[f.SE_CLIENT])
        sim.freed_session[scalars[f.G_FREED_SESSIONS]] = request[f.S_SESSION]
        scalars[f.G_FREED_SESSIONS] += 1
    sim.free_slot[scalars[f.G_FREE_SLOTS]] = slot
    scalars[f.G_FREE_SLOTS] += 1
    scalars[f.G_ACTIVE] -= 1
