"""Public cases with one right answer: B08, B09, B11, E03, E04, E06, E08; Eq. 4. Companion laws: test_des_laws.py."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simcore.cards.layout import Engine
from simcore.des.closed_loop import closed_loop
from simcore.des.config import Deployment, Handoff, Pool
from simcore.des.result import Distribution
from simcore.des.simulate import simulate
from simcore.errors import InputError
from tests.reference.des_simple import MS, colocated, flat_table, requests_at, scheduler

NS = 10**6
"""Nanoseconds of a millisecond."""


@pytest.mark.parametrize("engine", list(Engine))
def test_tokens_appear_when_the_pass_ends(engine: Engine) -> None:
    """B09: prefill 100 ms, decode 10 ms, three tokens: at 100, 110, 120 ms."""
    table = flat_table(64, decode_ms=10, prefill_ms=100)
    result = simulate(colocated(table, scheduler(engine)), requests_at([(0, 500, 3)]))
    assert result.ttft.mean_s == 0.1
    assert result.tpot.mean_s == 0.01
    assert result.e2e.mean_s == 0.12
    assert result.itl.count == 2
    assert result.itl.mean_s == 0.01


def test_whole_prompt_must_fit_before_admission() -> None:
    """B08: 63 of 100 blocks are taken; a prompt of 50 blocks waits, preempts nobody, and enters when they are freed."""
    rules = scheduler(kv_pool_tokens=1600, max_batched_tokens=2048, chunk_tokens=256)
    table = flat_table(64, decode_ms=100)
    load = requests_at([(0, 992, 11), (450, 800, 2), (460, 16, 2), (470, 1601, 2)])
    result = simulate(colocated(table, rules), load)
    records = result.records
    assert records is not None
    by_index = {int(index): row for row, index in enumerate(records.index)}
    first, second, third = (by_index[index] for index in (0, 1, 2))
    assert records.finish_ns[first] == 1000 * NS
    assert records.admitted_ns[second] == 1000 * NS
    assert result.preemptions_count == 0
    # the head of the line holds back those behind it, even one that would fit
    assert records.admitted_ns[third] >= records.admitted_ns[second]
    # a prompt larger than the pool is turned away at once and blocks nobody
    assert bool(records.rejected[by_index[3]])
    assert records.finish_ns[by_index[3]] == 470 * NS
    assert result.rejected_count == 1


def test_growth_preempts_the_latest_arrival() -> None:
    """B08: when running requests outgrow the pool, the one that came last gives way, and computes its prompt again."""
    rules = scheduler(kv_pool_tokens=16 * 8, max_running_requests=4)
    result = simulate(colocated(flat_table(4, decode_ms=10), rules), requests_at([(0, 48, 40), (1, 48, 40)]))
    records = result.records
    assert records is not None
    assert dict(zip(records.index.tolist(), records.preemptions.tolist(), strict=True)) == {0: 0, 1: 1}
    assert result.completed_count == 2
    assert records.output_tokens.tolist() == [40, 40]


def _stalled_gap_ms(engine: Engine, **rules: bool) -> float:
    """The gap of a decoding request over another one's prefill; that one comes just before a step begins."""
    table = flat_table(64, decode_ms=10, prefill_ms=100)
    result = simulate(colocated(table, scheduler(engine, **rules)), requests_at([(0, 100, 8), (119.9, 100, 2)]))
    assert result.records is not None
    row = result.records.index.tolist().index(0)
    whole_ms = (result.records.finish_ns[row] - result.records.first_token_ns[row]) / NS
    return float(whole_ms) - 6 * 10.0


@pytest.mark.parametrize(
    ("engine", "rules", "gap_ms"),
    [
        (Engine.SGLANG, {}, 110.0),
        (Engine.ATOM, {}, 110.0),
        (Engine.VLLM, {}, 110.0),
        (Engine.SGLANG, {"mixed_chunk": True}, 110.0),
    ],
)
def test_prefill_stalls_decoding(engine: Engine, rules: dict[str, bool], gap_ms: float) -> None:
    """B11: the first request's gap over the second's prefill is prefill + decode step in each engine ..."""
    assert _stalled_gap_ms(engine, **rules) == gap_ms


def test_mixed_and_prefill_first_differ_in_the_second_request() -> None:
    """... but where steps mix, its token comes in the same pass, and sharing a pass makes that shorter."""
    load = [(0.0, 100, 8), (119.9, 100, 8)]
    shared = flat_table(64, decode_ms=10, prefill_ms=100)
    shared = type(shared)(**{**shared.__dict__, "mixed_shared_ps": 9 * MS})
    ttft = {}
    for engine in (Engine.SGLANG, Engine.VLLM):
        result = simulate(colocated(shared, scheduler(engine)), requests_at(load))
        assert result.records is not None
        first = result.records.index.tolist().index(0)
        ttft[engine] = result.records.finish_ns[first] / NS
    # vLLM: 100 + 2x10 + (10+100-9) + 4x10; SGLang: 100 + 2x10 + 100 + 5x10
    assert ttft == {Engine.SGLANG: 270.0, Engine.VLLM: 261.0}


def test_three_things_called_tpot() -> None:
    """E03: TPOT is per request over n-1 gaps; the mean over requests is not the mean over tokens."""
    slow, fast = flat_table(1, decode_ms=100, prefill_ms=1), flat_table(1, decode_ms=10, prefill_ms=1)
    one = closed_loop(
        slow, scheduler(max_running_requests=1), concurrency=1, requests=1, prompt_tokens=8, output_tokens=11
    )
    two = closed_loop(
        fast, scheduler(max_running_requests=1), concurrency=1, requests=1, prompt_tokens=8, output_tokens=1001
    )
    assert one.mean_tpot_s == 0.1
    assert two.mean_tpot_s == 0.01
    assert Distribution.of(np.concatenate([one.tpot_s, two.tpot_s])).mean_s == pytest.approx(0.055, rel=1e-12)
    # (i): TTFT 1,000 ms, E2E 3,000 ms, 101 tokens
    table = flat_table(1, decode_ms=20, prefill_ms=1000)
    only = closed_loop(
        table, scheduler(max_running_requests=1), concurrency=1, requests=1, prompt_tokens=8, output_tokens=101
    )
    assert (only.mean_ttft_s, only.mean_e2e_s, only.mean_tpot_s) == (1.0, 3.0, 0.02)


def test_single_token_requests_have_no_tpot() -> None:
    """E03: they are left out, not counted as zero."""
    table = flat_table(8, decode_ms=10, prefill_ms=10)
    result = simulate(colocated(table, scheduler(max_running_requests=8)), requests_at([(0, 8, 1), (0, 8, 11)]))
    assert result.tpot.count == 1
    assert result.ttft.count == 2


def test_speculative_chunks_are_gaps_not_tokens() -> None:
    """E04: 1 + 50 chunks 20 ms apart, 2.66 tokens a chunk: mean ITL 20 ms, TPOT 1,000/133 = 7.52 ms."""
    table = flat_table(1, decode_ms=20, prefill_ms=20, tokens_per_step_permille=2660)
    run = closed_loop(
        table, scheduler(max_running_requests=1), concurrency=1, requests=1, prompt_tokens=8, output_tokens=134
    )
    assert run.mean_itl_s == 0.02
    assert run.mean_e2e_s - run.mean_ttft_s == pytest.approx(1.0, rel=1e-12)
    assert run.mean_tpot_s == pytest.approx(1.0 / 133, rel=1e-9)


def test_waiting_for_the_cap_is_in_the_latency() -> None:
    """E06: 8 requests, one every 100 ms, 500 ms of service, cap 1."""
    table = flat_table(1, decode_ms=50, prefill_ms=50)
    load = requests_at([(100 * number, 8, 10) for number in range(8)])
    result = simulate(colocated(table, scheduler(max_running_requests=1)), load)
    records = result.records
    assert records is not None
    waits_s = (records.admitted_ns - records.arrival_ns) / 1e9
    np.testing.assert_allclose(waits_s, [0.4 * number for number in range(8)], atol=1e-12)
    assert result.queue.mean_s == pytest.approx(1.4, abs=1e-12)
    assert result.queue.median_s == pytest.approx(1.4, abs=1e-12)
    assert float(np.quantile(waits_s, 0.99)) == pytest.approx(2.772, abs=1e-12)
    assert result.queue.p99_s is None  # eight requests hold no p99 (E08)
    assert result.e2e.mean_s == pytest.approx(1.9, abs=1e-12)
    assert 8 / result.duration_s == pytest.approx(2.0, abs=1e-12)
    assert result.ttft_from_admission.mean_s == pytest.approx(0.05, abs=1e-12)


@pytest.mark.parametrize(
    ("count", "stated"), [(9, ()), (10, ("p90_s",)), (100, ("p90_s", "p99_s")), (1000, ("p90_s", "p99_s", "p999_s"))]
)
def test_tails_need_a_sample_that_holds_them(count: int, stated: tuple[str, ...]) -> None:
    """E08: no p99 from fewer than 100 requests."""
    found = Distribution.of(np.arange(count, dtype=np.float64))
    assert tuple(name for name in ("p90_s", "p99_s", "p999_s") if getattr(found, name) is not None) == stated


@pytest.mark.parametrize(("clients", "tpot_ms"), [(1, 8 + 4 * 1), (2, 8 + 4 * 1 + 4 * 0.4), (64, 8 + 4 * 1 + 4 * 0.4)])
def test_pipeline_step_is_equation_4(clients: int, tpot_ms: float) -> None:
    """Eq. 4: s(C/p) + p hops + p H; at one client no host term."""
    table = flat_table(
        64,
        decode_ms=8,
        prefill_ms=0,
        pipeline_stages=4,
        hop_ps=MS,
        pipeline_host_ps=np.full(65, 4 * MS // 10, np.int64),
    )
    run = closed_loop(table, scheduler(), concurrency=clients, requests=clients, prompt_tokens=16, output_tokens=200)
    assert run.median_tpot_s * 1e3 == pytest.approx(tpot_ms, rel=0.01)


def test_handed_over_request() -> None:
    """D.4: half the prefill server's host time is serial with the step, the hand-off is floor + exposed bytes over the
    link, and the first token is stamped when the decode pool admits."""
    prefill = flat_table(4, decode_ms=10, prefill_ms=100, host_request_ps=80 * MS)
    decode = flat_table(4, decode_ms=10, prefill_ms=100, host_request_ps=80 * MS)
    rules = scheduler(max_running_requests=4)
    link = Handoff(floor_s=0.001, bytes_per_s=50e9, bytes_per_token=70_272.0, exposed_layer_frac=1.0)
    deployment = Deployment(Pool(prefill, rules), Pool(decode, rules), link)
    result = simulate(deployment, requests_at([(0, 8192, 3), (0, 8192, 3)]))
    records = result.records
    assert records is not None
    move_ms = 1 + 70_272 * 8192 / 50e9 * 1e3  # public case B12: 11.51 ms of bytes
    assert move_ms == pytest.approx(12.513, abs=1e-3)
    # both prompts need two steps of 8,192 tokens; each step also serves 40 ms of its request's host time
    np.testing.assert_allclose(records.first_token_ns[:2] / NS, [140 + move_ms, 280 + move_ms], rtol=1e-6)
    assert records.finish_ns[0] - records.first_token_ns[0] == 20 * NS
    assert (records.host_ns == 120 * NS).all()  # the other half there, all of the decode server's here


def test_hand_offs_queue_on_the_link() -> None:
    """Two prompts of one step leave one after the other."""
    rules = scheduler(max_running_requests=4)
    link = Handoff(floor_s=0.05, bytes_per_s=1e12, bytes_per_token=0.0)
    table = flat_table(4, decode_ms=10, prefill_ms=100)
    result = simulate(Deployment(Pool(table, rules), Pool(table, rules), link), requests_at([(0, 64, 2), (0, 64, 2)]))
    assert result.records is not None
    first = np.sort(result.records.first_token_ns) / NS
    assert first[0] == 150.0
    assert 200.0 <= first[1] <= 210.0


def test_attention_dp_waits_for_the_slowest_rank() -> None:
    """Two ranks in lockstep: a rank that only decodes pays the other rank's prefill."""
    table = flat_table(4, decode_ms=10, prefill_ms=100)
    deployment = colocated(table, scheduler(Engine.SGLANG, max_running_requests=4), attention_dp=2)
    result = simulate(deployment, requests_at([(0, 64, 6), (105, 64, 2)]))
    assert result.records is not None
    units = dict(zip(result.records.index.tolist(), result.records.unit.tolist(), strict=True))
    assert units == {0: 0, 1: 1}
    row = result.records.index.tolist().index(0)
    assert result.records.finish_ns[row] == (100 + 10 + 100 + 3 * 10) * NS


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"max_running_requests": 0}, "max_running_requests"),
        ({"kv_pool_tokens": 8, "block_tokens": 16}, "kv_pool_tokens"),
        ({"max_batched_tokens": 32}, "max_batched_tokens"),
        ({"max_running_requests": 128}, "max_running_requests"),
        ({"decode_reservation_permille": 1001}, "decode_reservation_permille"),
    ],
)
def test_bad_schedulers_are_refused(changes: dict[str, int], field: str) -> None:
    with pytest.raises(InputError, match=field):
        simulate(colocated(flat_table(64, decode_ms=1), scheduler(Engine.VLLM, **changes)), requests_at([(0, 8, 1)]))


@given(st.lists(st.floats(0, 1e6, allow_nan=False), min_size=1, max_size=1500))
def test_quantiles_are_numpys_to_the_last_bit(values: list[float]) -> None:
    found = Distribution.of(np.array(values))
    p90, p99, p999 = np.quantile(np.array(values), (0.9, 0.99, 0.999)).tolist()
    assert found.median_s == float(np.median(values))
    assert found.p90_s == (p90 if len(values) >= 10 else None)
    assert found.p99_s == (p99 if len(values) >= 100 else None)
    assert found.p999_s == (p999 if len(values) >= 1000 else None)
