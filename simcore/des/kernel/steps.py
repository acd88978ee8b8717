"""From a composed step to a run of equal steps, and from its end to tokens."""

# mypy: disable-error-code="no-any-return"
# (an element of an int64 array is Any to mypy)

from __future__ import annotations

from typing import Final

import numpy as np

from simcore.des.kernel import fields as f
from simcore.des.kernel.clock import PERMILLE, add_gap, add_run_gaps, burst_tokens, run_ps, steps_until, steps_within
from simcore.des.kernel.compose import compose
from simcore.des.kernel.fields import Ints
from simcore.des.kernel.jit import compiled
from simcore.des.kernel.lists import push_event
from simcore.des.kernel.members import (
    account,
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

MOST_STEPS: Final = 1 << 20
"""Of one jump: products of prices and steps stay within 63 bits."""


@compiled
def lane_price(m: Ints, pool: int, lane: int) -> int:
    """Picoseconds of the lane's composed step; the formula of `StepTable.price_ps`."""
    decode = 0
    if m[lane + f.L_DECODES] == 1:
        batch, clock = m[lane + f.L_COUNT], m[lane + f.L_CLOCK]
        decode = m[m[pool + f.P_BASE_AT] + batch]
        decode += m[m[pool + f.P_CONTEXT_AT] + batch] * (m[lane + f.L_BASE] + batch * clock)
        if m[pool + f.P_WINDOW] > 0:
            inside = m[lane + f.L_SHORT_BASE] + m[lane + f.L_SHORT] * clock
            inside += (batch - m[lane + f.L_SHORT]) * m[pool + f.P_WINDOW]
            decode += m[m[pool + f.P_WINDOW_AT] + batch] * inside
    if m[lane + f.L_NEW] == 0:
        return decode
    prefill = m[pool + f.P_PREFILL_FIXED] + m[pool + f.P_PREFILL_TOKEN] * m[lane + f.L_NEW]
    prefill += m[pool + f.P_PREFILL_SQUARE] * m[lane + f.L_SQUARE]
    total = prefill
    if m[lane + f.L_DECODES] == 1:
        total = max(decode + prefill - m[pool + f.P_SHARED], decode, prefill)
    return total + m[lane + f.L_BILL]


@compiled
def lane_slope(m: Ints, pool: int, lane: int) -> int:
    """Picoseconds the decode step grows by when every decoder commits one more token."""
    if m[lane + f.L_DECODES] == 0:
        return 0
    batch = m[lane + f.L_COUNT]
    return m[m[pool + f.P_CONTEXT_AT] + batch] * batch + m[m[pool + f.P_WINDOW_AT] + batch] * m[lane + f.L_SHORT]


@compiled
def growth_within(m: Ints, unit: int, lane: int, tokens: int) -> int:
    """The most tokens in 0..`tokens` the decoders can each commit before KV blocks run out."""
    block = m[m[unit + f.U_POOL] + f.P_BLOCK]
    room = available(m, unit) + m[lane + f.L_ALLOC]
    if decoder_blocks(m, lane, block, m[lane + f.L_CLOCK] + tokens) <= room:
        return tokens
    low, high = 0, tokens - 1
    while low < high:
        middle = (low + high + 1) // 2
        if decoder_blocks(m, lane, block, m[lane + f.L_CLOCK] + middle) <= room:
            low = middle
        else:
            high = middle - 1
    return low


@compiled
def free_tokens(m: Ints, pool: int, unit: int, lane: int, price: int, slope: int) -> int:
    """Tokens the lane's decoders can commit before anything but context length changes the step's price line."""
    if m[lane + f.L_DECODES] == 0:
        return f.NEVER
    clock = m[lane + f.L_CLOCK]
    tokens = m[m[m[lane + f.L_HEAP] + 0] + f.S_FINISH] - clock - 1
    for at in range(m[lane + f.L_SHORT]):
        tokens = min(tokens, m[pool + f.P_WINDOW] - m[m[m[lane + f.L_SHORT_AT] + at] + f.S_BASE] - clock)
    mine = lane_price(m, pool, lane)
    steeper = lane_slope(m, pool, lane) - slope
    if steeper > 0:  # another rank is the slowest now; stop where this one overtakes it
        tokens = min(tokens, (price - mine) // steeper)
    if tokens <= 0:
        return 0
    return growth_within(m, unit, lane, tokens)


@compiled
def start_steps(m: Ints, executor: int, now: int) -> bool:
    """Compose the next step on every rank and start it, with as many equal steps after it as are certain."""
    replica = m[executor + f.X_REPLICA]
    number = m[replica + f.R_POOL]
    ranks, stages = m[number + f.P_RANKS], m[number + f.P_STAGES]
    price, slope, decodes, prefills, quiet, busy_lanes, batch = 0, 0, 0, 0, stages == 1, 0, 0
    for rank in range(ranks):
        unit = m[replica + f.R_UNIT0] + rank * f.U_FIELDS
        lane = m[unit + f.U_LANE0] + m[executor + f.X_LANE]
        preempted = compose(m, unit, lane, now)
        if preempted and m[lane + f.L_DECODES] == 0 and m[lane + f.L_NEW] == 0:
            compose(m, unit, lane, now)  # all were preempted, and an engine does not sleep on its queue
        if m[lane + f.L_DECODES] == 0 and m[lane + f.L_NEW] == 0:
            continue
        batch = max(
            batch, m[lane + f.L_DECODES] * m[lane + f.L_COUNT] + m[lane + f.L_PREFILLS] * (m[lane + f.L_NEW] > 0)
        )
        mine, line = lane_price(m, number, lane), lane_slope(m, number, lane)
        if decodes + prefills == 0 or mine > price or (mine == price and line > slope):
            price, slope = mine, line
        decodes |= m[lane + f.L_DECODES]
        prefills |= int(m[lane + f.L_NEW] > 0)
    if decodes + prefills == 0:
        return False
    steps = 1
    for rank in range(ranks):
        unit = m[replica + f.R_UNIT0] + rank * f.U_FIELDS
        if m[unit + f.U_WAITING] > 0 and m[unit + f.U_BLOCKED] == 0:
            quiet = False
        if m[m[unit + f.U_LANE0] + m[executor + f.X_LANE] + f.L_PREFILLS] > 0:
            quiet = False
    if quiet and prefills == 0:
        tokens = f.NEVER
        for rank in range(ranks):
            unit = m[replica + f.R_UNIT0] + rank * f.U_FIELDS
            tokens = min(tokens, free_tokens(m, number, unit, m[unit + f.U_LANE0], price, slope))
        burst = m[number + f.P_BURST]
        steps = min(steps_within(tokens, m[executor + f.X_COUNTER], burst), MOST_STEPS)
        last_price = price + slope * burst_tokens(steps, burst)
        steps = max(1, min(steps, f.GAP_TURN // (max(last_price, 1) * max(batch, 1))))  # sums of gaps stay in 63 bits
        if steps > 1:
            for rank in range(ranks):
                account(m, m[replica + f.R_UNIT0] + rank * f.U_FIELDS)
    m[executor + f.X_START] = now
    m[executor + f.X_STEPS] = steps
    m[executor + f.X_PRICE] = price
    m[executor + f.X_SLOPE] = slope
    m[executor + f.X_DECODES] = decodes
    m[executor + f.X_PREFILL_STEPS] += prefills
    if stages == 1:
        m[executor + f.X_END] = now + run_ps(price, slope, m[executor + f.X_COUNTER], steps, m[number + f.P_BURST])
    else:
        for other in range(stages):
            for rank in range(ranks):
                lane = m[m[replica + f.R_UNIT0] + rank * f.U_FIELDS + f.U_LANE0] + other * f.L_FIELDS
                if m[lane + f.L_COUNT] + m[lane + f.L_PREFILLS] > 0:
                    busy_lanes += 1
                    break
        m[executor + f.X_END] = through_stages(m, m[executor + f.X_REPLICA], price, batch, busy_lanes, now)
    note_span(m, executor, m[replica + f.R_UNIT0], ranks)
    return True


@compiled
def through_stages(m: Ints, replica: int, price: int, batch: int, busy_lanes: int, now: int) -> int:
    """When a micro-batch that enters the pipeline now has passed all stages and its token is back (Eq. 4)."""
    number = m[replica + f.R_POOL]
    stages = m[number + f.P_STAGES]
    host = m[m[number + f.P_HOST_AT] + min(batch, m[number + f.P_BATCHES] - 1)] if busy_lanes > 1 else 0
    at = now
    for stage in range(stages):
        work = price // stages
        if stage == 0:
            work = price - (stages - 1) * work
        begin = max(at, m[replica + f.R_STAGE0 + stage])
        m[replica + f.R_STAGE0 + stage] = begin + work + host
        at = begin + work + host + m[number + f.P_HOP]
    return at


@compiled
def note_span(m: Ints, executor: int, unit0: int, ranks: int) -> None:
    """Keep what the timeline shows of the run that starts, if it is on."""
    if m[f.G_SPAN_ROWS] == 0:
        return
    batch, new, used = 0, 0, 0
    for rank in range(ranks):
        unit = unit0 + rank * f.U_FIELDS
        lane = m[unit + f.U_LANE0] + m[executor + f.X_LANE]
        batch += m[lane + f.L_DECODES] * m[lane + f.L_COUNT]
        new += m[lane + f.L_NEW]
        used += m[unit + f.U_BLOCKS] - available(m, unit)
    m[executor + f.X_SPAN_BATCH] = batch
    m[executor + f.X_SPAN_NEW] = new
    m[executor + f.X_SPAN_USED] = used


@compiled
def write_span(m: Ints, executor: int) -> None:
    """One row of the timeline for the run that ends."""
    if m[f.G_SPAN_ROWS] == 0:
        return
    span = m[f.G_SPAN_AT] + m[f.G_SPANS] * f.V_FIELDS
    m[f.G_SPANS] += 1
    m[span + f.V_EXECUTOR] = executor
    m[span + f.V_START] = m[executor + f.X_START]
    m[span + f.V_END] = m[executor + f.X_END]
    m[span + f.V_STEPS] = m[executor + f.X_STEPS]
    m[span + f.V_BATCH] = m[executor + f.X_SPAN_BATCH]
    m[span + f.V_NEW] = m[executor + f.X_SPAN_NEW]
    m[span + f.V_USED] = m[executor + f.X_SPAN_USED]


@compiled
def cut_run(m: Ints, executor: int, now: int) -> None:
    """Something arrived: end the run with the step that is under way."""
    if m[executor + f.X_STEPS] == 1 or m[executor + f.X_END] <= now:
        return
    burst = m[m[m[executor + f.X_REPLICA] + f.R_POOL] + f.P_BURST]
    price, slope, counter = m[executor + f.X_PRICE], m[executor + f.X_SLOPE], m[executor + f.X_COUNTER]
    steps = steps_until(now - m[executor + f.X_START], price, slope, counter, m[executor + f.X_STEPS], burst)
    m[executor + f.X_STEPS] = steps
    m[executor + f.X_END] = m[executor + f.X_START] + run_ps(price, slope, counter, steps, burst)


@compiled
def settle_growth(m: Ints, executor: int, now: int) -> None:
    """Take the KV blocks of all steps that started before `now`, so that a router sees the cache as it is."""
    if m[executor + f.X_END] == f.NEVER:
        return  # its last run ended, and took its blocks, at this instant or before
    if m[executor + f.X_STEPS] == 1 or m[executor + f.X_DECODES] == 0 or m[executor + f.X_START] >= now:
        return
    replica = m[executor + f.X_REPLICA]
    rules = m[replica + f.R_POOL]
    counter, burst = m[executor + f.X_COUNTER], m[rules + f.P_BURST]
    begun = steps_until(
        now - m[executor + f.X_START],
        m[executor + f.X_PRICE],
        m[executor + f.X_SLOPE],
        counter,
        m[executor + f.X_STEPS],
        burst,
    )
    tokens = burst_tokens(counter + begun - 1, burst) - burst_tokens(counter, burst)
    for rank in range(m[rules + f.P_RANKS]):
        unit = m[replica + f.R_UNIT0] + rank * f.U_FIELDS
        lane = m[unit + f.U_LANE0] + m[executor + f.X_LANE]
        if m[lane + f.L_DECODES] == 1:
            grow(m, unit, lane, m[lane + f.L_CLOCK] + tokens)


@compiled
def account_run(m: Ints, executor: int, unit: int, lane: int) -> None:
    """As `account`, over a run of several steps: its decoders take their blocks at each step's start.

    Blocks repeat with the block size: B(c + b) = B(c) + decoders. So steps of one remainder make an arithmetic series.
    """
    block, burst = m[m[unit + f.U_POOL] + f.P_BLOCK], m[m[unit + f.U_POOL] + f.P_BURST]
    steps, counter, clock = m[executor + f.X_STEPS], m[executor + f.X_COUNTER], m[lane + f.L_CLOCK]
    price, slope, count = float(m[executor + f.X_PRICE]), float(m[executor + f.X_SLOPE]), float(m[lane + f.L_COUNT])
    residue, held = m[lane + f.L_RESIDUE], float(decoder_blocks(m, lane, block, clock))
    other = m[unit + f.U_BLOCKS] - available(m, unit) - m[lane + f.L_ALLOC]
    total = float(other) * float(m[executor + f.X_END] - m[executor + f.X_START])
    if burst == PERMILLE:
        for first in range(min(block, steps)):
            terms = float((steps - 1 - first) // block + 1)
            start, rise = price + slope * first, slope * block
            ones, squares = terms * (terms - 1) / 2, terms * (terms - 1) * (2 * terms - 1) / 6
            total += terms * held * start + (held * rise + count * start) * ones + count * rise * squares
            held += float(m[residue + (clock + first) % block])
    else:
        tokens = 0
        for step in range(steps):
            total += held * (price + slope * tokens)
            after = burst_tokens(counter + step + 1, burst) - burst_tokens(counter, burst)
            while tokens < after:
                held += float(m[residue + (clock + tokens) % block])
                tokens += 1
    m.view(np.float64)[unit + f.U_HELD] += total
    m[unit + f.U_SINCE] = m[executor + f.X_END]


@compiled
def end_decodes(m: Ints, executor: int, unit: int, lane: int) -> None:
    """Commit the tokens of the run that ended on this lane's decoders; finish those that are done."""
    burst = m[m[unit + f.U_POOL] + f.P_BURST]
    now, steps, counter = m[executor + f.X_END], m[executor + f.X_STEPS], m[executor + f.X_COUNTER]
    count = m[lane + f.L_COUNT]
    start = burst_tokens(counter, burst)
    if steps > 1:
        account_run(m, executor, unit, lane)
    grow(m, unit, lane, m[lane + f.L_CLOCK] + burst_tokens(counter + steps - 1, burst) - start)
    first = now if steps == 1 else m[executor + f.X_START] + m[executor + f.X_PRICE]
    if count > m[lane + f.L_FRESH]:
        add_gap(m, first - m[lane + f.L_LAST], count - m[lane + f.L_FRESH])
    for at in range(m[lane + f.L_FRESH]):
        add_gap(m, first - m[m[m[lane + f.L_FRESH_AT] + at] + f.S_LAST], 1)
    if steps > 1:
        add_run_gaps(m, m[executor + f.X_PRICE], m[executor + f.X_SLOPE], counter, steps, burst, count)
    m[lane + f.L_FRESH] = 0
    m[lane + f.L_LAST] = now
    m[lane + f.L_CLOCK] += burst_tokens(counter + steps, burst) - start
    m[executor + f.X_BATCH_STEPS] += count * steps
    if m[lane + f.L_SHORT] > 0:
        drop_long(m, lane, m[m[unit + f.U_POOL] + f.P_WINDOW])
    while m[lane + f.L_COUNT] > 0 and m[m[m[lane + f.L_HEAP] + 0] + f.S_FINISH] <= m[lane + f.L_CLOCK]:
        slot = leave_decoders(m, unit, lane, 0)
        finish(m, unit, slot, now)


@compiled
def drop_long(m: Ints, lane: int, window: int) -> None:
    """Contexts that reached the window leave the list of short ones."""
    kept = 0
    for at in range(m[lane + f.L_SHORT]):
        slot = m[m[lane + f.L_SHORT_AT] + at]
        if m[slot + f.S_BASE] + m[lane + f.L_CLOCK] < window:
            m[m[lane + f.L_SHORT_AT] + kept] = slot
            kept += 1
        else:
            m[lane + f.L_SHORT_BASE] -= m[slot + f.S_BASE]
    m[lane + f.L_SHORT] = kept


@compiled
def finish(m: Ints, unit: int, slot: int, now: int) -> None:
    """The request has all its tokens."""
    let_go(m, unit, slot)
    leave_unit(m, unit, slot)
    forget(m, unit, slot)
    complete(m, slot, now, f.COMPLETED)


@compiled
def hand_off(m: Ints, unit: int, slot: int, now: int) -> None:
    """Prefill is done: queue the KV transfer on the replica's link; the blocks stay until it is through."""
    leave_unit(m, unit, slot)
    replica = m[unit + f.U_REPLICA]
    begin = max(now, m[replica + f.R_LINK_FREE])
    tokens_ps = m[slot + f.S_PROMPT] * m[f.G_HANDOFF_PS_PER_KTOKEN] // 1000
    m[replica + f.R_LINK_FREE] = begin + m[f.G_HANDOFF_FLOOR] + tokens_ps
    m[slot + f.S_STATE] = f.TRANSFERRING
    push_event(m, m[replica + f.R_LINK_FREE], f.AT_DATA, m[slot + f.S_INDEX], slot)


@compiled
def end_prefills(m: Ints, unit: int, lane: int, now: int) -> None:
    """Count the chunks of the step that ended; a finished prompt emits a token in the same pass (public case B09)."""
    number = m[unit + f.U_POOL]
    kept = 0
    for at in range(m[lane + f.L_PREFILLS]):
        slot = m[m[lane + f.L_LINE] + at]
        m[slot + f.S_COMPUTED] += m[m[lane + f.L_CHUNK] + at]
        m[m[lane + f.L_CHUNK] + at] = 0
        if m[slot + f.S_COMPUTED] < m[slot + f.S_TARGET]:
            m[m[lane + f.L_LINE] + kept] = slot
            kept += 1
            continue
        m[unit + f.U_RESERVED] -= reserve_of(m, number, slot)
        m[unit + f.U_PENDING] -= m[slot + f.S_ESTIMATE]
        m[slot + f.S_ESTIMATE] = 0
        if number != m[f.G_DECODE_POOL] and m[f.G_DECODE_POOL] != f.NONE:
            hand_off(m, unit, slot, now)
            continue
        m[slot + f.S_EMITTED] += 1
        if m[slot + f.S_EMITTED] == 1:
            m[slot + f.S_FIRST] = now
        else:
            add_gap(m, now - m[slot + f.S_LAST], 1)
        m[slot + f.S_LAST] = now
        if m[slot + f.S_EMITTED] >= m[slot + f.S_OUTPUT]:
            finish(m, unit, slot, now)
        else:
            join_decoders(m, unit, lane, slot)
    m[lane + f.L_PREFILLS] = kept


@compiled
def end_steps(m: Ints, executor: int) -> None:
    """The executor's run is over: tokens become visible, requests finish."""
    replica = m[executor + f.X_REPLICA]
    now = m[executor + f.X_END]
    for rank in range(m[m[replica + f.R_POOL] + f.P_RANKS]):
        unit = m[replica + f.R_UNIT0] + rank * f.U_FIELDS
        lane = m[unit + f.U_LANE0] + m[executor + f.X_LANE]
        if m[lane + f.L_DECODES] == 1:
            end_decodes(m, executor, unit, lane)
        if m[lane + f.L_NEW] > 0:
            end_prefills(m, unit, lane, now)
    m[executor + f.X_BUSY] += now - m[executor + f.X_START]
    m[executor + f.X_STEPS_TOTAL] += m[executor + f.X_STEPS]
    if m[executor + f.X_DECODES] == 1:
        m[executor + f.X_COUNTER] += m[executor + f.X_STEPS]
    write_span(m, executor)
    m[executor + f.X_END] = f.NEVER
    m[executor + f.X_READY] = now
