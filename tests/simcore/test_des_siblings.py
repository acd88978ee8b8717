"""Neighbours of the public cases B08, E03, E06, E08 with hand calculations, and M/M/c against Erlang's formula."""

from __future__ import annotations

import math

import numpy as np
import pytest

from simcore.cards.layout import Engine
from simcore.des.closed_loop import closed_loop
from simcore.des.config import Deployment, Pool, Routing
from simcore.des.result import Record
from simcore.des.simulate import simulate
from simcore.des.workload.batch import Workload
from simcore.des.workload.synthetic import ClosedLoop, Lengths, PoissonArrivals, independent_requests, timestamped
from simcore.errors import InfeasibleError, InputError
from tests.reference.des_simple import colocated, flat_table, requests_at, scheduler

NS = 10**6
"""Nanoseconds of a millisecond."""


def test_kv_occupancy_is_weighted_by_time() -> None:
    """48 prompt tokens are 3 blocks of 16 over a prefill of 100 ms, the 49th takes a fourth for two steps of 10 ms."""
    rules = scheduler(kv_pool_tokens=160)
    result = simulate(colocated(flat_table(64, decode_ms=10, prefill_ms=100), rules), requests_at([(0, 48, 3)]))
    mean = (3 * 100 + 4 * 20) / 120
    assert result.units[0].mean_kv_blocks == pytest.approx(mean, rel=1e-12)
    assert result.mean_kv_frac == pytest.approx(mean / 10, rel=1e-12)
    assert result.peak_kv_frac == 0.4


def test_kv_occupancy_of_a_long_run_of_steps() -> None:
    """One request of 16 + 161 tokens: block n is held from the step whose context needs it; a jump counts them all."""
    result = simulate(colocated(flat_table(64, decode_ms=10), scheduler()), requests_at([(0, 16, 161)]))
    steps = [math.ceil((16 + emitted) / 16) for emitted in range(1, 161)]
    assert result.units[0].mean_kv_blocks == pytest.approx(sum(steps) / 160, rel=1e-12)


def test_two_places_halve_the_line_of_e06() -> None:
    """E06 with two replicas of one place: each gets a request every 200 ms and takes 500 ms, so waits are 0, 300, 600,
    900 ms on both; the rate that is served is 8 in 2.1 s, not the 10 per second that were sent."""
    rules = scheduler(max_running_requests=1)
    pool = Pool(flat_table(1, decode_ms=1, prefill_ms=500), rules, replicas_count=2)
    load = requests_at([(100 * number, 64, 1) for number in range(8)])
    result = simulate(Deployment(pool, routing=Routing.ROUND_ROBIN), load)
    assert result.records is not None
    waits_ms = sorted((result.records.admitted_ns - result.records.arrival_ns) / NS)
    assert waits_ms == [0, 0, 300, 300, 600, 600, 900, 900]
    assert result.e2e.mean_s == pytest.approx(0.95)
    assert result.requests_per_s == pytest.approx(8 / 2.1)
    assert result.tpot.count == 0
    assert result.tpot.mean_s is None


@pytest.mark.parametrize("engine", list(Engine))
def test_a_request_fits_to_the_block_or_is_rejected(engine: Engine) -> None:
    """B08's border: 96 + 64 tokens are the pool's ten blocks and are served without preemption; one token more is
    turned away at once, on every engine, and the light path refuses to give a number."""
    table, rules = flat_table(64, decode_ms=10, prefill_ms=5), scheduler(engine, kv_pool_tokens=160)
    result = simulate(colocated(table, rules), requests_at([(0, 96, 64), (1, 97, 64), (2, 96, 64)]))
    assert result.records is not None
    rejected = dict(zip(result.records.index.tolist(), result.records.rejected.tolist(), strict=True))
    assert rejected == {0: False, 1: True, 2: False}
    assert result.completed_count == 2
    assert result.peak_kv_frac <= 1.0
    with pytest.raises(InfeasibleError, match="97"):
        closed_loop(table, rules, concurrency=2, requests=2, prompt_tokens=97, output_tokens=64)


@pytest.mark.parametrize("engine", list(Engine))
def test_more_clients_than_requests_are_as_many_as_requests(engine: Engine) -> None:
    table = flat_table(64, decode_ms=10, token_us=10)
    runs = [
        closed_loop(table, scheduler(engine), concurrency=clients, requests=3, prompt_tokens=100, output_tokens=5)
        for clients in (3, 50)
    ]
    np.testing.assert_array_equal(runs[0].e2e_s, runs[1].e2e_s)


def test_the_first_wave_is_dropped_as_warm_up() -> None:
    """E08: ten clients start at once on an engine that prefills one prompt at a time (50 ms): the first wave waits for
    up to ten prefills, later ones for few; warm-up leaves out the wave and nothing else."""
    rules = scheduler(Engine.SGLANG, max_batched_tokens=100, chunk_tokens=100)
    table = flat_table(16, decode_ms=5, prefill_ms=50)
    cold, warm = (
        closed_loop(
            table,
            rules,
            concurrency=10,
            requests=100,
            prompt_tokens=100,
            output_tokens=400,
            warmup_requests=dropped,
        )
        for dropped in (0, 10)
    )
    assert cold.ttft_s.max() == pytest.approx(0.5)
    assert sorted(cold.ttft_s[:10].round(9)) == [pytest.approx(0.05 * wave) for wave in range(1, 11)]
    assert len(warm.ttft_s) == 90
    np.testing.assert_array_equal(warm.ttft_s, cold.ttft_s[10:])
    assert warm.output_tokens == cold.output_tokens  # throughput counts the whole run


def _erlang_c(servers: int, offered: float) -> float:
    """Chance that an arrival waits in M/M/c with a = lambda/mu."""
    top = offered**servers / math.factorial(servers) * servers / (servers - offered)
    return top / (sum(offered**n / math.factorial(n) for n in range(servers)) + top)


@pytest.mark.parametrize(("servers", "utilisation"), [(4, 0.7)])
def test_places_of_an_engine_are_the_servers_of_mmc(servers: int, utilisation: float) -> None:
    """A step that costs the same at any batch makes each place a server. Outputs are exponential, 1,000 steps of 1 ms:
    Wq = C(c, a)/(c mu - lambda), and half a step until the next one begins."""
    service_s = 1.0
    rules = scheduler(max_running_requests=servers)
    deployment = colocated(flat_table(servers, decode_ms=1), rules)
    rate = utilisation * servers / service_s
    waits = []
    for seed in range(12):
        random = np.random.default_rng(seed)
        outputs = np.maximum(1, np.rint(random.exponential(1000 * service_s, 20_000))).astype(np.int64)
        arrivals_s = np.cumsum(random.exponential(1 / rate, len(outputs)))
        load = timestamped(np.ones_like(outputs), outputs, arrivals_s)
        waits.append(simulate(deployment, load, warmup_requests=2000).queue.mean_s or 0.0)
    expected_s = _erlang_c(servers, utilisation * servers) / (servers / service_s - rate) + 0.0005
    error_s = float(np.std(waits, ddof=1)) / math.sqrt(len(waits))
    assert abs(float(np.mean(waits)) - expected_s) < 4 * error_s
    assert error_s < 0.06 * expected_s  # the test could fail


@pytest.mark.parametrize("utilisation", [0.5, 0.8])
def test_littles_law_holds_for_kv_blocks(utilisation: float) -> None:
    """Blocks in use on average = arrivals per second x blocks a request holds x how long it holds them."""
    load = independent_requests(Lengths.fixed(160), Lengths.fixed(1), 4000, PoissonArrivals(utilisation / 0.02))
    rules = scheduler(max_running_requests=1, kv_pool_tokens=320)
    result = simulate(colocated(flat_table(1, decode_ms=1, prefill_ms=20), rules), load, seed=5)
    assert result.units[0].mean_kv_blocks == pytest.approx(4000 / result.duration_s * 10 * 0.02, rel=1e-9)


# sums that 63 bits of picoseconds do not hold -------------------------------------------------------------------------
def test_hours_of_waiting_are_summed_exactly() -> None:
    """4,000 requests wait for one place that takes 900 s each: n-th wait is 900 n s, the mean 900 x 3,999/2 s."""
    deployment = colocated(flat_table(1, decode_ms=1, prefill_ms=900e3), scheduler(max_running_requests=1))
    load = requests_at([(0, 8, 1)] * 4000)
    for keep in (Record.REQUESTS, Record.SUMMARY):
        assert simulate(deployment, load, record=keep).queue.mean_s == pytest.approx(900 * 3999 / 2, rel=1e-12)


def test_long_gaps_are_summed_exactly() -> None:
    """640 requests of 1,000 gaps of 100 s are 6.4e19 ps of gaps."""
    table = flat_table(64, decode_ms=100e3)
    run = closed_loop(table, scheduler(), concurrency=64, requests=640, prompt_tokens=8, output_tokens=1001)
    assert run.mean_itl_s == pytest.approx(100.0, rel=1e-12)
    assert run.mean_tpot_s == pytest.approx(100.0, rel=1e-12)


def test_a_run_beyond_the_clock_is_refused() -> None:
    table = flat_table(1, decode_ms=1000)
    rules = scheduler(max_running_requests=1, kv_pool_tokens=1 << 24)
    with pytest.raises(InputError, match="45 simulated days"):
        closed_loop(table, rules, concurrency=1, requests=1, prompt_tokens=8, output_tokens=4_000_000)
    with pytest.raises(InputError, match="45 simulated days"):
        simulate(colocated(table, rules), requests_at([(0, 8, 4_000_000)]))


def test_prices_in_the_wrong_unit_are_refused() -> None:
    """A full step of more than eleven days is a slip of units, and its sums would leave the clock."""
    with pytest.raises(InputError, match="full step"):
        simulate(colocated(flat_table(64, decode_ms=1, token_us=1e9)), requests_at([(0, 8, 1)]))


def test_a_workload_without_requests_is_refused() -> None:
    empty = Workload(lambda _: iter([]), None)
    with pytest.raises(InputError, match="at least one request"):
        simulate(colocated(flat_table(64, decode_ms=1)), empty)


def test_clients_that_answer_at_their_own_time_drift_apart() -> None:
    """Two clients, prefill 20 ms and decode 8 ms a step. In step both prompts share each prefill: TTFT 20 ms for ever.

    Sent up to a millisecond late, one comes first and leads by a token from then on. When it ends, the other
    has a step of 8 ms left; then its next prompt runs alone: 8 + 20 ms less the moment it was late. The other comes
    while it does, and is prefilled beside its first decode: 20 + 28 ms less its moment.
    """
    table = flat_table(2, decode_ms=8, prefill_ms=20)
    rules = scheduler(max_running_requests=2, max_batched_tokens=8192, chunk_tokens=8192)

    def ttft_ms(spread_s: float) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        load = independent_requests(Lengths.fixed(500), Lengths.fixed(20), 40, ClosedLoop(2, spread_s))
        records = simulate(colocated(table, rules), load).records
        assert records is not None
        return (records.first_token_ns - records.arrival_ns)[np.argsort(records.index)] / 1e6

    np.testing.assert_allclose(ttft_ms(0.0), 20.0)
    apart = ttft_ms(1e-3)
    np.testing.assert_allclose(apart[:2], 20.0)
    pairs = np.sort(apart[4:].reshape(-1, 2), axis=1)
    assert ((pairs[:, 0] >= 27.0) & (pairs[:, 0] <= 28.0)).all()
    assert ((pairs[:, 1] >= 47.0) & (pairs[:, 1] <= 48.0)).all()
