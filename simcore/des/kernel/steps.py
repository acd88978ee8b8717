"""From a composed step to a run of equal steps, and from its end to tokens."""

from __future__ import annotations

from simcore.des.kernel import fields as f
from simcore.des.kernel.clock import add_gap, add_run_gaps, burst_tokens, run_ps, steps_until, steps_within
from simcore.des.kernel.compose import compose
from simcore.des.kernel.fields import Sim
from simcore.des.kernel.jit import compiled
from simcore.des.kernel.lists import push_event
from simcore.des.kernel.members import (
    available,
    complete,
    decoder_blocks,
    forget,
    grow,
    join_decoders,
    leave_decoders,
    leave_unit,
    let_go,
    reserve_of,
)


@compiled
def lane_price(sim: Sim, pool: int, lane: int) -> int:
    """Picoseconds of the lane's composed step; the formula of `StepTable.price_ps`."""
    rules, row = sim.pool[pool], sim.lane[lane]
    decode = 0
    if row[f.L_DECODES] == 1:
        batch, clock = row[f.L_COUNT], row[f.L_CLOCK]
        decode = sim.table[pool, f.T_BASE, batch]
        decode += sim.table[pool, f.T_CONTEXT, batch] * (row[f.L_BASE] + batch * clock)
        if rules[f.P_WINDOW] > 0:
            inside = row[f.L_SHORT_BASE] + row[f.L_SHORT] * clock
            inside += (batch - row[f.L_SHORT]) * rules[f.P_WINDOW]
            decode += sim.table[pool, f.T_WINDOW, batch] * inside
    if row[f.L_NEW] == 0:
        return decode
    prefill = rules[f.P_PREFILL_FIXED] + rules[f.P_PREFILL_TOKEN] * row[f.L_NEW]
    prefill += rules[f.P_PREFILL_SQUARE] * row[f.L_SQUARE]
    total = prefill
    if row[f.L_DECODES] == 1:
        total = max(decode + prefill - rules[f.P_SHARED], decode, prefill)
    return total + row[f.L_BILL]


@compiled
def lane_slope(sim: Sim, pool: int, lane: int) -> int:
    """Picoseconds the decode step grows by when every decoder commits one more token."""
    row = sim.lane[lane]
    if row[f.L_DECODES] == 0:
        return 0
    batch = row[f.L_COUNT]
    return sim.table[pool, f.T_CONTEXT, batch] * batch + sim.table[pool, f.T_WINDOW, batch] * row[f.L_SHORT]


@compiled
def growth_within(sim: Sim, unit: int, lane: int, tokens: int) -> int:
    """The most tokens in 0..`tokens` the decoders can each commit before KV blocks run out."""
    row = sim.lane[lane]
    block = sim.pool[sim.unit[unit, f.U_POOL], f.P_BLOCK]
    room = available(sim, unit) + row[f.L_ALLOC]
    if decoder_blocks(sim, lane, block, row[f.L_CLOCK] + tokens) <= room:
        return tokens
    low, high = 0, tokens - 1
    while low < high:
        middle = (low + high + 1) // 2
        if decoder_blocks(sim, lane, block, row[f.L_CLOCK] + middle) <= room:
            low = middle
        else:
            high = middle - 1
    return low


@compiled
def free_tokens(sim: Sim, pool: int, unit: int, lane: int, price: int, slope: int) -> int:
    """Tokens the lane's decoders can commit before anything but context length changes the step's price line."""
    row = sim.lane[lane]
    slots = sim.slot
    if row[f.L_DECODES] == 0:
        return f.NEVER
    clock = row[f.L_CLOCK]
    tokens = slots[sim.heap[lane, 0], f.S_FINISH] - clock - 1
    for at in range(row[f.L_SHORT]):
        tokens = min(tokens, sim.pool[pool, f.P_WINDOW] - slots[sim.short[lane, at], f.S_BASE] - clock)
    mine = lane_price(sim, pool, lane)
    steeper = lane_slope(sim, pool, lane) - slope
    if steeper > 0:  # another rank is the slowest now; stop where this one overtakes it
        tokens = min(tokens, (price - mine) // steeper)
    if tokens <= 0:
        return 0
    return growth_within(sim, unit, lane, tokens)


@compiled
def start_steps(sim: Sim, executor: int, now: int) -> bool:
    """Compose the next step on every rank and start it, with as many equal steps after it as are certain."""
    run = sim.executor[executor]
    replica = sim.replica[run[f.X_REPLICA]]
    number = replica[f.R_POOL]
    rules = sim.pool[number]
    ranks, stages = rules[f.P_RANKS], rules[f.P_STAGES]
    price, slope, decodes, prefills, quiet, busy_lanes, batch = 0, 0, 0, 0, stages == 1, 0, 0
    for rank in range(ranks):
        unit = replica[f.R_UNIT0] + rank
        lane = sim.unit[unit, f.U_LANE0] + run[f.X_LANE]
        preempted = compose(sim, unit, lane, now)
        row = sim.lane[lane]
        if preempted and row[f.L_DECODES] == 0 and row[f.L_NEW] == 0:
            compose(sim, unit, lane, now)  # all were preempted, and an engine does not sleep on its queue
        if row[f.L_DECODES] == 0 and row[f.L_NEW] == 0:
            continue
        batch = max(batch, row[f.L_DECODES] * row[f.L_COUNT] + row[f.L_PREFILLS] * (row[f.L_NEW] > 0))
        mine, line = lane_price(sim, number, lane), lane_slope(sim, number, lane)
        if decodes + prefills == 0 or mine > price or (mine == price and line > slope):
            price, slope = mine, line
        decodes |= row[f.L_DECODES]
        prefills |= int(row[f.L_NEW] > 0)
    if decodes + prefills == 0:
        return False
    steps = 1
    for rank in range(ranks):
        unit = replica[f.R_UNIT0] + rank
        if sim.unit[unit, f.U_WAITING] > 0 and sim.unit[unit, f.U_BLOCKED] == 0:
            quiet = False
        if sim.lane[sim.unit[unit, f.U_LANE0] + run[f.X_LANE], f.L_PREFILLS] > 0:
            quiet = False
    if quiet and prefills == 0:
        tokens = f.NEVER
        for rank in range(ranks):
            unit = replica[f.R_UNIT0] + rank
            tokens = min(tokens, free_tokens(sim, number, unit, sim.unit[unit, f.U_LANE0], price, slope))
        steps = max(1, steps_within(tokens, run[f.X_COUNTER], rules[f.P_BURST]))
    run[f.X_START] = now
    run[f.X_STEPS] = steps
    run[f.X_PRICE] = price
    run[f.X_SLOPE] = slope
    run[f.X_DECODES] = decodes
    run[f.X_PREFILL_STEPS] += prefills
    if stages == 1:
        run[f.X_END] = now + run_ps(price, slope, run[f.X_COUNTER], steps, rules[f.P_BURST])
    else:
        for other in range(stages):
            for rank in range(ranks):
                lane = sim.unit[replica[f.R_UNIT0] + rank, f.U_LANE0] + other
                if sim.lane[lane, f.L_COUNT] + sim.lane[lane, f.L_PREFILLS] > 0:
                    busy_lanes += 1
                    break
        run[f.X_END] = through_stages(sim, run[f.X_REPLICA], price, batch, busy_lanes, now)
    note_span(sim, executor, replica[f.R_UNIT0], ranks)
    return True


@compiled
def through_stages(sim: Sim, replica: int, price: int, batch: int, busy_lanes: int, now: int) -> int:
    """When a micro-batch that enters the pipeline now has passed all stages and its token is back (Eq. 4)."""
    row = sim.replica[replica]
    number = row[f.R_POOL]
    rules = sim.pool[number]
    stages = rules[f.P_STAGES]
    host = sim.table[number, f.T_HOST, min(batch, sim.table.shape[2] - 1)] if busy_lanes > 1 else 0
    at = now
    for stage in range(stages):
        work = price // stages
        if stage == 0:
            work = price - (stages - 1) * work
        begin = max(at, row[f.R_STAGE0 + stage])
        row[f.R_STAGE0 + stage] = begin + work + host
        at = begin + work + host + rules[f.P_HOP]
    return at


@compiled
def note_span(sim: Sim, executor: int, unit0: int, ranks: int) -> None:
    """One row of the timeline, if it is on."""
    scalars = sim.scalars
    if scalars[f.G_SPANS_ON] == 0:
        return
    run = sim.executor[executor]
    span = sim.span[scalars[f.G_SPANS]]
    scalars[f.G_SPANS] += 1
    span[:] = 0
    span[f.V_EXECUTOR] = executor
    span[f.V_START] = run[f.X_START]
    for rank in range(ranks):
        row = sim.lane[sim.unit[unit0 + rank, f.U_LANE0] + run[f.X_LANE]]
        span[f.V_BATCH] += row[f.L_DECODES] * row[f.L_COUNT]
        span[f.V_NEW] += row[f.L_NEW]
        span[f.V_USED] += sim.unit[unit0 + rank, f.U_BLOCKS] - available(sim, unit0 + rank)


@compiled
def cut_run(sim: Sim, executor: int, now: int) -> None:
    """Something arrived: end the run with the step that is under way."""
    run = sim.executor[executor]
    if run[f.X_STEPS] == 1 or run[f.X_END] <= now:
        return
    burst = sim.pool[sim.replica[run[f.X_REPLICA], f.R_POOL], f.P_BURST]
    price, slope, counter = run[f.X_PRICE], run[f.X_SLOPE], run[f.X_COUNTER]
    steps = steps_until(now - run[f.X_START], price, slope, counter, run[f.X_STEPS], burst)
    run[f.X_STEPS] = steps
    run[f.X_END] = run[f.X_START] + run_ps(price, slope, counter, steps, burst)


@compiled
def settle_growth(sim: Sim, executor: int, now: int) -> None:
    """Take the KV blocks of all steps that started before `now`, so that a router sees the cache as it is."""
    run = sim.executor[executor]
    if run[f.X_STEPS] == 1 or run[f.X_DECODES] == 0 or run[f.X_START] >= now:
        return
    replica = sim.replica[run[f.X_REPLICA]]
    rules = sim.pool[replica[f.R_POOL]]
    counter, burst = run[f.X_COUNTER], rules[f.P_BURST]
    begun = steps_until(now - run[f.X_START], run[f.X_PRICE], run[f.X_SLOPE], counter, run[f.X_STEPS], burst)
    tokens = burst_tokens(counter + begun - 1, burst) - burst_tokens(counter, burst)
    for rank in range(rules[f.P_RANKS]):
        unit = replica[f.R_UNIT0] + rank
        lane = sim.unit[unit, f.U_LANE0] + run[f.X_LANE]
        if sim.lane[lane, f.L_DECODES] == 1:
            grow(sim, unit, lane, sim.lane[lane, f.L_CLOCK] + tokens)


@compiled
def end_decodes(sim: Sim, executor: int, unit: int, lane: int) -> None:
    """Commit the tokens of the run that ended on this lane's decoders; finish those that are done."""
    run, row = sim.executor[executor], sim.lane[lane]
    burst = sim.pool[sim.unit[unit, f.U_POOL], f.P_BURST]
    now, steps, counter = run[f.X_END], run[f.X_STEPS], run[f.X_COUNTER]
    count = row[f.L_COUNT]
    start = burst_tokens(counter, burst)
    grow(sim, unit, lane, row[f.L_CLOCK] + burst_tokens(counter + steps - 1, burst) - start)
    first = now if steps == 1 else run[f.X_START] + run[f.X_PRICE]
    if count > row[f.L_FRESH]:
        add_gap(sim, first - row[f.L_LAST], count - row[f.L_FRESH])
    for at in range(row[f.L_FRESH]):
        add_gap(sim, first - sim.slot[sim.fresh[lane, at], f.S_LAST], 1)
    if steps > 1:
        add_run_gaps(sim, run[f.X_PRICE], run[f.X_SLOPE], counter, steps, burst, count)
    row[f.L_FRESH] = 0
    row[f.L_LAST] = now
    row[f.L_CLOCK] += burst_tokens(counter + steps, burst) - start
    run[f.X_BATCH_STEPS] += count * steps
    if row[f.L_SHORT] > 0:
        drop_long(sim, lane, sim.pool[sim.unit[unit, f.U_POOL], f.P_WINDOW])
    while row[f.L_COUNT] > 0 and sim.slot[sim.heap[lane, 0], f.S_FINISH] <= row[f.L_CLOCK]:
        slot = leave_decoders(sim, unit, lane, 0)
        finish(sim, unit, slot, now)


@compiled
def drop_long(sim: Sim, lane: int, window: int) -> None:
    """Contexts that reached the window leave the list of short ones."""
    row = sim.lane[lane]
    kept = 0
    for at in range(row[f.L_SHORT]):
        slot = sim.short[lane, at]
        if sim.slot[slot, f.S_BASE] + row[f.L_CLOCK] < window:
            sim.short[lane, kept] = slot
            kept += 1
        else:
            row[f.L_SHORT_BASE] -= sim.slot[slot, f.S_BASE]
    row[f.L_SHORT] = kept


@compiled
def finish(sim: Sim, unit: int, slot: int, now: int) -> None:
    """The request has all its tokens."""
    let_go(sim, unit, slot)
    leave_unit(sim, unit, slot)
    forget(sim, unit, slot)
    complete(sim, slot, now, f.COMPLETED)


@compiled
def hand_off(sim: Sim, unit: int, slot: int, now: int) -> None:
    """Prefill is done: queue the KV transfer on the replica's link; the blocks stay until it is through."""
    leave_unit(sim, unit, slot)
    request = sim.slot[slot]
    replica = sim.replica[sim.unit[unit, f.U_REPLICA]]
    begin = max(now, replica[f.R_LINK_FREE])
    tokens_ps = request[f.S_PROMPT] * sim.scalars[f.G_HANDOFF_PS_PER_KTOKEN] // 1000
    replica[f.R_LINK_FREE] = begin + sim.scalars[f.G_HANDOFF_FLOOR] + tokens_ps
    request[f.S_STATE] = f.TRANSFERRING
    push_event(sim, replica[f.R_LINK_FREE], f.AT_DATA, request[f.S_INDEX], slot)


@compiled
def end_prefills(sim: Sim, unit: int, lane: int, now: int) -> None:
    """Count the chunks of the step that ended; a finished prompt emits a token in the same pass (public case B09)."""
    row, slots = sim.lane[lane], sim.slot
    number = sim.unit[unit, f.U_POOL]
    kept = 0
    for at in range(row[f.L_PREFILLS]):
        slot = sim.prefill[lane, at]
        request = slots[slot]
        request[f.S_COMPUTED] += sim.chunk[lane, at]
        sim.chunk[lane, at] = 0
        if request[f.S_COMPUTED] < request[f.S_TARGET]:
            sim.prefill[lane, kept] = slot
            kept += 1
            continue
        sim.unit[unit, f.U_RESERVED] -= reserve_of(sim, number, slot)
        sim.unit[unit, f.U_PENDING] -= request[f.S_ESTIMATE]
        request[f.S_ESTIMATE] = 0
        if number != sim.scalars[f.G_DECODE_POOL] and sim.scalars[f.G_DECODE_POOL] != f.NONE:
            hand_off(sim, unit, slot, now)
            continue
        request[f.S_EMITTED] += 1
        if request[f.S_EMITTED] == 1:
            request[f.S_FIRST] = now
        else:
            add_gap(sim, now - request[f.S_LAST], 1)
        request[f.S_LAST] = now
        if request[f.S_EMITTED] >= request[f.S_OUTPUT]:
            finish(sim, unit, slot, now)
        else:
            join_decoders(sim, unit, lane, slot)
    row[f.L_PREFILLS] = kept


@compiled
def end_steps(sim: Sim, executor: int) -> None:
    """The executor's run is over: tokens become visible, requests finish."""
    run = sim.executor[executor]
    replica = sim.replica[run[f.X_REPLICA]]
    now = run[f.X_END]
    for rank in range(sim.pool[replica[f.R_POOL], f.P_RANKS]):
        unit = replica[f.R_UNIT0] + rank
        lane = sim.unit[unit, f.U_LANE0] + run[f.X_LANE]
        if sim.lane[lane, f.L_DECODES] == 1:
            end_decodes(sim, executor, unit, lane)
        if sim.lane[lane, f.L_NEW] > 0:
            end_prefills(sim, unit, lane, now)
    run[f.X_BUSY] += now - run[f.X_START]
    run[f.X_STEPS_TOTAL] += run[f.X_STEPS]
    if run[f.X_DECODES] == 1:
        run[f.X_COUNTER] += run[f.X_STEPS]
    run[f.X_END] = f.NEVER
    run[f.X_READY] = now
