"""Laws the simulator keeps whatever it is asked (docs/invariants.md numbers them)."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from simcore.cards.layout import Engine
from simcore.des.config import Deployment, Pool
from simcore.des.kernel import fields as f
from simcore.des.kernel import loop
from simcore.des.result import Record, SimulationResult
from simcore.des.simulate import MIN_NODES, _Feed, simulate
from simcore.des.state import State
from simcore.des.workload.batch import Workload
from simcore.des.workload.synthetic import ClosedLoop, Lengths, PoissonArrivals, independent_requests, timestamped
from tests.reference.des_cases import BLOCK, as_workload, deployments, loads
from tests.reference.des_literal import Request
from tests.reference.des_simple import colocated, flat_table, scheduler

Load = tuple[list[Request], int | None]


def _run_checked(deployment: Deployment, workload: Workload, check: Callable[[State], None]) -> State:
    """Run in small batches and `check` the state at every return to Python."""
    state = State(deployment, clients=workload.clients, most_running=None, block_tokens=workload.block_tokens)
    feed = _Feed(state, workload.batches(np.random.SeedSequence(1)), np.random.default_rng(1))
    feed.load()
    if workload.clients:
        loop.start_clients(state.m, workload.clients)
    while (reason := loop.advance(state.m)) != f.DONE:
        assert reason != f.STUCK
        check(state)
        state.take_records()
        feed.reclaim()
        if reason == f.NEED_SESSIONS:
            feed.load()
        elif reason == f.GROW_NODES:
            state.add_nodes(MIN_NODES)
    check(state)
    return state


def _held_blocks(state: State) -> dict[int, int]:
    """KV blocks that requests hold privately, by unit: from the slots, not from the unit's own counter."""
    m = state.m
    held = dict.fromkeys(state.units, 0)
    for unit in state.units:
        pool = int(m[unit + f.U_POOL])
        for stage in range(int(m[pool + f.P_STAGES])):
            held[unit] += int(m[m[unit + f.U_LANE0] + stage * f.L_FIELDS + f.L_ALLOC])
    return held


def _nodes(state: State) -> list[int]:
    return [
        first + number * f.N_FIELDS
        for first, count in state._node_spans
        for number in range(count)
        if state.m[first + number * f.N_FIELDS + f.N_REFERENCES] != f.NONE
    ]


@given(deployments(), loads(most=6))
def test_requests_and_tokens_are_conserved(deployment: Deployment, load: Load) -> None:
    """Each request ends once, served with all its tokens or rejected with none."""
    requests, clients = load
    result = simulate(deployment, as_workload(requests, clients))
    records = result.records
    assert records is not None
    assert sorted(records.index.tolist()) == list(range(len(requests)))
    for row, index in enumerate(records.index.tolist()):
        want = 0 if records.rejected[row] else requests[index].output
        assert records.output_tokens[row] == want
        assert records.prompt_tokens[row] == requests[index].prompt
    assert result.completed_count + result.rejected_count == len(requests)


@given(deployments(), loads(most=6))
def test_causality(deployment: Deployment, load: Load) -> None:
    """Arrival <= admission <= first token <= last token; nothing starts before what it waits for is answered."""
    requests, clients = load
    records = simulate(deployment, as_workload(requests, clients)).records
    assert records is not None
    assert (records.arrival_ns <= records.admitted_ns).all()
    assert (records.admitted_ns <= records.first_token_ns).all()
    assert (records.first_token_ns <= records.finish_ns).all()
    rows = {int(index): row for row, index in enumerate(records.index)}
    for request in requests:
        for other in request.waits_for:
            answered = records.finish_ns[rows[other]] + records.host_ns[rows[other]]
            assert records.arrival_ns[rows[request.index]] >= answered + request.delay_ps // 1000 - 2
    assert (records.hit_tokens < records.prompt_tokens + records.preemptions).all()


@given(deployments(), loads(most=6))
def test_clock_is_monotone(deployment: Deployment, load: Load) -> None:
    """Records come in order of time, and so do the runs of each executor, without overlap."""
    requests, clients = load
    result = simulate(deployment, as_workload(requests, clients), record=Record.TIMELINE)
    assert result.records is not None
    assert result.timeline is not None
    assert (np.diff(result.records.finish_ns) >= 0).all()
    for executor in np.unique(result.timeline[:, f.V_EXECUTOR]):
        mine = result.timeline[result.timeline[:, f.V_EXECUTOR] == executor]
        assert (mine[1:, f.V_START] >= mine[:-1, f.V_END]).all()
        assert (mine[:, f.V_END] >= mine[:, f.V_START]).all()


@given(deployments(), loads(most=6))
def test_kv_blocks_are_conserved(deployment: Deployment, load: Load) -> None:
    """Free, cached and held blocks add up to the pool; in the end nothing is held and the cache has no user."""
    requests, clients = load

    def in_hbm(state: State, node: int, unit: int) -> bool:
        return bool(state.m[node + f.N_UNIT] == unit and state.m[node + f.N_HOST] == 0)

    def check(state: State) -> None:
        for unit in state.units:
            row = state.m[unit : unit + f.U_FIELDS]
            assert 0 <= row[f.U_FREE] <= row[f.U_BLOCKS]
            assert row[f.U_PEAK] <= row[f.U_BLOCKS]
            sizes = [int(state.m[node + f.N_SIZE]) for node in _nodes(state) if in_hbm(state, node, unit)]
            assert 0 <= row[f.U_EVICTABLE] <= sum(sizes)
            assert row[f.U_FREE] + sum(sizes) <= row[f.U_BLOCKS]
            assert row[f.U_HOST_COUNT] <= row[f.U_HOST_CAPACITY]

    state = _run_checked(deployment, as_workload(requests, clients, sessions_per_batch=1), check)
    assert set(_held_blocks(state).values()) == {0}
    for unit in state.units:
        row = state.m[unit : unit + f.U_FIELDS]
        sizes = [int(state.m[node + f.N_SIZE]) for node in _nodes(state) if in_hbm(state, node, unit)]
        assert len(sizes) == row[f.U_RESIDENT]
        assert row[f.U_FREE] + sum(sizes) == row[f.U_BLOCKS]
        assert row[f.U_EVICTABLE] == sum(sizes)
        assert row[f.U_RUNNING] == row[f.U_WAITING] == row[f.U_OUTSTANDING] == row[f.U_TOKENS] == 0


@given(deployments(split=False), loads(most=6))
def test_a_block_never_outlives_its_parent(deployment: Deployment, load: Load) -> None:
    """A block in HBM has its parent in HBM, in at least as much use; one in the host tier has its parent somewhere."""
    requests, clients = load

    def check(state: State) -> None:
        m = state.m
        alive = set(_nodes(state))
        for node in alive:
            parent = int(m[node + f.N_PARENT])
            assert (parent == f.NONE) == (m[node + f.N_DEPTH] == 1)
            if parent == f.NONE:
                continue
            assert parent in alive
            assert m[parent + f.N_DEPTH] == m[node + f.N_DEPTH] - 1
            assert m[parent + f.N_HOST] <= m[node + f.N_HOST]
            assert m[parent + f.N_REFERENCES] >= m[node + f.N_REFERENCES]

    _run_checked(deployment, as_workload(requests, clients, sessions_per_batch=1), check)


@given(st.sampled_from(list(Engine)), st.integers(1, 8), st.integers(8, 40), st.integers(1, 60), st.integers(1, 30))
def test_no_idling_while_work_waits(engine: Engine, clients: int, requests: int, prompt: int, output: int) -> None:
    """A closed loop with work left keeps its one engine busy from the first moment to the last."""
    table = flat_table(8, decode_ms=3, prefill_ms=7, token_us=11)
    load = independent_requests(Lengths.fixed(prompt), Lengths.fixed(output), requests, ClosedLoop(clients))
    rules = scheduler(engine, max_running_requests=8, kv_pool_tokens=256)
    result = simulate(colocated(table, rules), load, record=Record.TIMELINE)
    assert result.timeline is not None
    assert result.timeline[0, f.V_START] == 0
    assert (result.timeline[1:, f.V_START] == result.timeline[:-1, f.V_END]).all()
    assert result.replicas[0].busy_frac == 1.0


@given(deployments(), loads(most=6), st.integers(0, 5))
def test_same_seed_same_bytes(deployment: Deployment, load: Load, seed: int) -> None:
    requests, clients = load
    one, two = (simulate(deployment, as_workload(requests, clients), seed=seed) for _ in range(2))
    assert _digest(one) == _digest(two)


@given(deployments(), loads(most=6))
def test_summary_agrees_with_records(deployment: Deployment, load: Load) -> None:
    """The histogram form has the same means, to the picosecond, and medians to 0.2 % of a sample."""
    requests, clients = load
    exact = simulate(deployment, as_workload(requests, clients))
    summary = simulate(deployment, as_workload(requests, clients), record=Record.SUMMARY)
    for name in ("ttft", "e2e", "tpot", "queue"):
        one, two = getattr(exact, name), getattr(summary, name)
        assert one.count == two.count
        if one.count:
            assert two.mean_s == pytest.approx(one.mean_s, rel=1e-9, abs=1e-12)
    assert exact.duration_s == summary.duration_s
    assert exact.units == summary.units


def _digest(result: SimulationResult) -> str:
    text = hashlib.sha256()
    assert result.records is not None
    for column in result.records.__dict__.values():
        text.update(np.ascontiguousarray(column).tobytes())
    text.update(result.gap_counts.tobytes())
    return text.hexdigest()


_RUN_ONCE = """
from tests.property.test_des_laws import _digest, _example, _predictions
print(_digest(_example()), _predictions())
"""


def _predictions() -> str:
    """Digest of the documents of predictions that draw, route, cache and hand over."""
    import json

    from simcore import load_scenario, predict
    from simcore.anchors.builtin import builtin_anchor

    name = "llama-3.1-8b-sglang-mi355x-tp1"
    common = {"model": "Llama-3.1-8B", "engine": "SGLang", "accelerator": "MI355X", "anchors": [name]}
    drawn = {"promptTokens": {"minimum": 500, "maximum": 900}, "outputTokens": 20}
    talk = drawn | {"conversation": {"turns": 3, "turnTokens": 100, "thinkSeconds": 1.0}}
    rate = {"load": {"requestRate": 4.0, "requests": 90}, "routing": "random"}
    scenarios = (
        {"layout": {}, "replicas": 3, "workload": {"synthetic": talk}} | rate,
        {"prefill": {}, "decode": {}, "workload": {"synthetic": drawn}} | rate,
    )
    documents = [predict(load_scenario(common | one, {name: builtin_anchor(name)})).document() for one in scenarios]
    return hashlib.sha256(json.dumps(documents).encode()).hexdigest()


def _example() -> SimulationResult:
    from simcore.des.config import Routing
    from simcore.des.workload.synthetic import Conversation, conversations

    shape = Conversation(4, Lengths(100, 400), Lengths(10, 90), Lengths(5, 40), think_s=0.5, shared_tokens=64)
    rules = scheduler(prefix_caching=True, kv_pool_tokens=4096)
    pool = Pool(flat_table(64, decode_ms=5, prefill_ms=9, token_us=50), rules, replicas_count=3)
    load = conversations(shape, 60, PoissonArrivals(4.0), block_tokens=16)
    return simulate(Deployment(pool, routing=Routing.RANDOM), load, seed=7)


def test_bytes_do_not_depend_on_the_hash_seed() -> None:
    found = set()
    for hash_seed in ("4242",):  # this process has another one
        run = subprocess.run(
            [sys.executable, "-c", _RUN_ONCE],
            env=os.environ | {"PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=False,
        )
        assert run.returncode == 0, run.stderr
        found.add(run.stdout.strip())
    assert found == {f"{_digest(_example())} {_predictions()}"}


# queueing theory ------------------------------------------------------------------------------------------------------
TOKENS = 20_000
"""Mean service in tokens of 1 microsecond each: 20 ms, fine enough that whole tokens do not matter."""
CONFIDENCE_SIGMAS = 4.0
"""Two-sided 99.99 % for a normal mean; with 12 replications of t, still above 99.7 %."""


def _replications(one: Callable[[int], float], count: int = 12) -> tuple[float, float]:
    """Mean and its standard error over independent replications."""
    values = np.array([one(seed) for seed in range(count)])
    return float(values.mean()), float(values.std(ddof=1) / np.sqrt(count))


def _queue_wait_s(prompts: NDArray[np.int64], utilisation: float, seed: int) -> float:
    """Mean wait of a single-server queue: service is a prompt's prefill, one output token."""
    generator = np.random.default_rng(seed + 1000)
    arrivals_s = np.cumsum(generator.exponential(TOKENS * 1e-6 / utilisation, len(prompts)))
    rules = scheduler(max_running_requests=1, max_batched_tokens=1 << 24, chunk_tokens=1 << 24)
    deployment = colocated(flat_table(1, decode_ms=1, token_us=1), rules)
    result = simulate(deployment, timestamped(prompts, np.ones_like(prompts), arrivals_s), warmup_requests=2000)
    assert result.queue.mean_s is not None
    return result.queue.mean_s


def test_mm1_waits_as_theory_says() -> None:
    """M/M/1: Wq = rho/(mu - lambda)."""
    rho, service_s = 0.7, TOKENS * 1e-6

    def one(seed: int) -> float:
        drawn = np.random.default_rng(seed).exponential(TOKENS, 20_000)
        return _queue_wait_s(np.maximum(1, np.rint(drawn)).astype(np.int64), rho, seed)

    mean, error = _replications(one)
    assert abs(mean - service_s * rho / (1 - rho)) < CONFIDENCE_SIGMAS * error


def test_md1_waits_as_theory_says() -> None:
    """M/D/1: Wq = rho/(2 mu (1 - rho))."""
    rho, service_s = 0.8, TOKENS * 1e-6
    mean, error = _replications(lambda seed: _queue_wait_s(np.full(20_000, TOKENS, np.int64), rho, seed))
    assert abs(mean - service_s * rho / (2 * (1 - rho))) < CONFIDENCE_SIGMAS * error


def test_processor_sharing_as_theory_says() -> None:
    """M/G/1-PS: a step whose time is proportional to its batch shares the engine; E[T] = E[S]/(1 - rho)."""
    rho, tokens, step_s = 0.6, 400, 1e-4

    def one(seed: int) -> float:
        generator = np.random.default_rng(seed + 77)
        outputs = 2 + np.rint(generator.exponential(tokens, 8_000)).astype(np.int64)
        arrivals_s = np.cumsum(generator.exponential(tokens * step_s / rho, len(outputs)))
        table = flat_table(512, decode_ms=0)
        batch = np.arange(513, dtype=np.int64) * round(step_s * 1e12)
        table = type(table)(**{**table.__dict__, "decode_base_ps": batch})
        rules = scheduler(max_running_requests=512)
        load = timestamped(np.ones_like(outputs), outputs, arrivals_s)
        result = simulate(colocated(table, rules), load, warmup_requests=500)
        assert result.decode.mean_s is not None
        # the first token is free; each of the others is one step's share
        return result.decode.mean_s / (float((outputs - 1).mean()) * step_s)

    mean, error = _replications(one, 10)
    assert abs(mean - 1 / (1 - rho)) < CONFIDENCE_SIGMAS * error + 0.01


@given(st.sampled_from(list(Engine)), st.integers(1, 40), st.floats(5.0, 60.0))
def test_littles_law(engine: Engine, seed: int, rate: float) -> None:
    """Mean requests in the system = arrival rate x mean time in it: exact over a run that starts and ends empty."""
    load = independent_requests(Lengths(10, 90), Lengths(2, 30), 200, PoissonArrivals(rate))
    table = flat_table(64, decode_ms=4, prefill_ms=6, token_us=30)
    records = simulate(colocated(table, scheduler(engine)), load, seed=seed).records
    assert records is not None
    edges = np.concatenate([records.arrival_ns, records.finish_ns])
    steps = np.concatenate([np.ones(len(records)), -np.ones(len(records))])
    order = np.argsort(edges, kind="stable")
    inside = np.cumsum(steps[order])[:-1]
    area = float((inside * np.diff(edges[order])).sum())
    assert area == pytest.approx(float((records.finish_ns - records.arrival_ns).sum()), rel=1e-12)


@given(st.integers(1, 32), st.integers(1, 200), st.integers(2, 60))
def test_closed_loop_littles_law(clients: int, prompt: int, output: int) -> None:
    """C = throughput x end-to-end time over whole rounds, host time included: a closed loop holds C requests."""
    from simcore.des.closed_loop import closed_loop

    table = flat_table(32, decode_ms=4, prefill_ms=6, token_us=30, host_request_ps=2 * 10**9)
    run = closed_loop(
        table,
        scheduler(max_running_requests=32),
        concurrency=clients,
        requests=clients * 6,
        prompt_tokens=prompt,
        output_tokens=output,
    )
    held = float(run.e2e_s.sum()) / run.duration_s
    assert held <= clients * (1 + 1e-9)
    assert held > clients * 0.6  # the last round runs out


@given(st.integers(1, 6), st.integers(1, 5))
def test_order_of_batches_is_irrelevant(size: int, clients: int) -> None:
    """How the reader cuts a trace into batches changes nothing."""
    del clients
    requests = [
        Request(number, 10 + number, 5, number * 10**9, blocks=(number % 3,), session=number) for number in range(12)
    ]
    deployment = colocated(
        flat_table(8, decode_ms=4, token_us=100), scheduler(prefix_caching=True, max_running_requests=8)
    )
    whole = simulate(deployment, as_workload(requests, None))
    cut = simulate(deployment, as_workload(requests, None, sessions_per_batch=size))
    assert _digest(whole) == _digest(cut)
    assert BLOCK == 8
