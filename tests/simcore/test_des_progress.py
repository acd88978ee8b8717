"""Nothing hangs: a case that once did, and the guards that turn a bug into an error. Companion: test_des_twins.py."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from simcore.cards.layout import Engine
from simcore.des.config import Deployment, Pool, Routing, SchedulerConfig
from simcore.des.kernel import fields as f
from simcore.des.kernel import loop
from simcore.des.simulate import _Feed, simulate
from simcore.des.state import State
from simcore.des.workload.batch import Workload
from simcore.errors import InternalError
from tests.reference.des_cases import as_workload, table_of
from tests.reference.des_literal import Request, simulate_literal
from tests.reference.des_simple import colocated, flat_table, requests_at, scheduler

BLOCK = 8


def _loaded(deployment: Deployment, workload: Workload) -> State:
    state = State(deployment, clients=None, most_running=None, block_tokens=workload.block_tokens)
    _Feed(state, workload.batches(np.random.SeedSequence(1)), np.random.default_rng(1)).load()
    return state


def test_a_router_asks_at_the_instant_a_run_ends() -> None:
    """Request 4 arrives as 2 ends a run of steps and 8 decodes on, on the other rank: that run grows no more blocks.

    It once did, past the end of the pool, and looked for blocks to evict for ever.
    """
    rules = SchedulerConfig(
        engine=Engine.VLLM,
        max_running_requests=1,
        max_batched_tokens=1,
        chunk_tokens=1,
        kv_pool_tokens=31,
        block_tokens=1,
    )
    table = table_of(1, per_request_ps=0, context_ps=0, fixed_ps=0, token_ps=1_000_000, square_ps=0)
    deployment = Deployment(Pool(table, rules, replicas_count=2, attention_dp=2), routing=Routing.KV_AWARE)
    rows = [(0, 1), (40, 1), (40, 30), (40, 1), (40, 1), (40, 1), (40, 1), (45, 1), (85, 30)]
    sessions = [0, 1, 1, 1, 1, 2, 3, 4, 5]
    requests = [
        Request(index, 1, output, at_ms * 10**9, session=session, waits_for=(2,) if index == 4 else ())
        for index, ((at_ms, output), session) in enumerate(zip(rows, sessions, strict=True))
    ]
    literal = simulate_literal(deployment, [replace(request) for request in requests], block_tokens=BLOCK)
    result = simulate(deployment, as_workload(requests, None))
    records = result.records
    assert records is not None
    assert records.index.tolist() == [row[0] for row in literal.records]
    assert records.finish_ns.tolist() == [row[5] // 1000 for row in literal.records]
    assert [unit.peak_kv_blocks for unit in result.units] == literal.peaks


def test_free_steps_end() -> None:
    """All prices zero: everything happens at one instant, and still ends."""
    result = simulate(colocated(flat_table(64, decode_ms=0)), requests_at([(0, 500, 300)] * 50))
    assert result.completed_count == 50
    assert result.duration_s == 0.0


def test_standing_still_is_reported() -> None:
    """Too many turns at one instant in which no request ends: the kernel comes back and says so."""
    state = _loaded(colocated(flat_table(64, decode_ms=1)), requests_at([(0, 500, 3)]))
    state.m[f.G_STALLED] = f.MOST_STALLED
    assert loop.advance(state.m) == f.STUCK


def test_blocks_that_do_not_exist_are_reported() -> None:
    """The books promise cached blocks to evict where there are none: an error, not a search for ever."""
    state = _loaded(colocated(flat_table(64, decode_ms=1), scheduler(kv_pool_tokens=512)), requests_at([(0, 500, 3)]))
    unit = state.units[0]
    state.m[unit + f.U_EVICTABLE] = int(state.m[unit + f.U_FREE])
    state.m[unit + f.U_FREE] = 0
    with pytest.raises(InternalError, match="KV blocks"):
        loop.advance(state.m)


def test_stuck_is_an_internal_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "advance", lambda _: f.STUCK)
    with pytest.raises(InternalError, match="never comes"):
        simulate(colocated(flat_table(64, decode_ms=1)), requests_at([(0, 500, 3)]))
