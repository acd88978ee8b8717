"""Closed forms of a run of steps: token counts of bursts, sums of prices, and the histogram of gaps."""

from __future__ import annotations

from typing import Final

from simcore.des.kernel import fields as f
from simcore.des.kernel.fields import Ints
from simcore.des.kernel.jit import compiled

PERMILLE: Final = 1000
GAP_BITS: Final = 9
GAP_BINS: Final = (64 - GAP_BITS) << GAP_BITS
PS_PER_NS: Final = 1000


@compiled
def burst_tokens(steps: int, permille: int) -> int:
    """Tokens a request has committed after `steps` decode steps at `permille`/1000 tokens a step (Eq. 2's L)."""
    return steps * permille // PERMILLE


@compiled
def floor_sum(count: int, modulus: int, slope: int, offset: int) -> int:
    """Sum over i < count of floor((slope*i + offset)/modulus), in O(log) steps of the Euclidean algorithm."""
    total = 0
    while count > 0:
        if slope >= modulus:
            total += (count - 1) * count // 2 * (slope // modulus)
            slope %= modulus
        if offset >= modulus:
            total += count * (offset // modulus)
            offset %= modulus
        top = slope * count + offset
        if top < modulus:
            break
        count = top // modulus
        offset = top % modulus
        modulus, slope = slope, modulus
    return total


@compiled
def run_tokens(counter: int, steps: int, permille: int) -> int:
    """Sum over i < steps of the tokens committed by i steps that start at decode step `counter`."""
    if permille == PERMILLE:
        return steps * (steps - 1) // 2
    first = counter * permille
    whole = floor_sum(steps, PERMILLE, permille, first % PERMILLE) + steps * (first // PERMILLE)
    return whole - steps * burst_tokens(counter, permille)


@compiled
def run_ps(price: int, slope: int, counter: int, steps: int, permille: int) -> int:
    """Picoseconds of `steps` steps, the first costing `price`, each committed token adding `slope`."""
    return steps * price + slope * run_tokens(counter, steps, permille)


@compiled
def steps_within(tokens: int, counter: int, permille: int) -> int:
    """How many steps start before more than `tokens` tokens are committed, counted from decode step `counter`."""
    goal = (tokens + 1 + burst_tokens(counter, permille)) * PERMILLE
    return -(-goal // permille) - counter


@compiled
def steps_until(elapsed_ps: int, price: int, slope: int, counter: int, steps: int, permille: int) -> int:
    """The least m in 1..steps whose run lasts at least `elapsed_ps`."""
    low, high = 1, steps
    while low < high:
        middle = (low + high) // 2
        if run_ps(price, slope, counter, middle, permille) >= elapsed_ps:
            high = middle
        else:
            low = middle + 1
    return low


@compiled
def gap_bin(gap_ns: int) -> int:
    """Histogram bin of a gap: exact below 512 ns, then 512 bins an octave (0.2 % wide)."""
    if gap_ns < 1 << GAP_BITS:
        return gap_ns
    shift = 0
    value = gap_ns
    while value >= 1 << (GAP_BITS + 1):
        value >>= 1
        shift += 1
    return (shift << GAP_BITS) + value


@compiled
def gap_floor_ns(index: int) -> int:
    """Least gap of a bin; the inverse of `gap_bin`."""
    if index < 1 << (GAP_BITS + 1):
        return index
    shift = (index >> GAP_BITS) - 1
    return ((1 << GAP_BITS) + (index & ((1 << GAP_BITS) - 1))) << shift


@compiled
def add_gap_time(m: Ints, total_ps: int) -> None:
    """Add to the sum of all gaps, which is longer than 63 bits hold: a million requests of 10 s are."""
    m[f.G_GAP_SUM] += total_ps
    while m[f.G_GAP_SUM] >= f.GAP_TURN:
        m[f.G_GAP_SUM] -= f.GAP_TURN
        m[f.G_GAP_TURNS] += 1


@compiled
def add_gap(m: Ints, gap_ps: int, count: int) -> None:
    """`count` visible gaps of `gap_ps`."""
    m[m[f.G_GAPS_AT] + gap_bin(gap_ps // PS_PER_NS)] += count
    m[f.G_GAP_COUNT] += count
    add_gap_time(m, gap_ps * count)


@compiled
def add_run_gaps(m: Ints, price: int, slope: int, counter: int, steps: int, permille: int, batch: int) -> None:
    """The gaps of steps 1..steps-1 of a run, `batch` requests each."""
    index = 1
    start = burst_tokens(counter, permille)
    gaps = m[f.G_GAPS_AT]
    while index < steps:
        gap_ps = price + slope * (burst_tokens(counter + index, permille) - start)
        which = gap_bin(gap_ps // PS_PER_NS)
        last = steps
        if slope > 0:
            # the first later step whose gap reaches the next bin
            edge_ps = gap_floor_ns(which + 1) * PS_PER_NS
            last = min(steps, steps_within((edge_ps - price - 1) // slope, counter, permille))
        m[gaps + which] += (last - index) * batch
        index = last
    m[f.G_GAP_COUNT] += (steps - 1) * batch
    add_gap_time(m, (run_ps(price, slope, counter, steps, permille) - price) * batch)
