"""The fast simulator equals the one that steps every step, to the picosecond, on generated deployments and loads."""

from __future__ import annotations

import copy
from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from simcore.des.config import Deployment
from simcore.des.kernel import fields as f
from simcore.des.kernel.clock import gap_bin
from simcore.des.result import Record
from simcore.des.simulate import run_kernel
from tests.reference.des_cases import BLOCK, as_workload, deployments, loads, pressed
from tests.reference.des_literal import Request, Result, simulate_literal

Load = tuple[list[Request], int | None]


def _draws(requests: list[Request]) -> list[Request]:
    """Give the literal simulator the router's random numbers: the feed's documented stream."""
    numbers = np.random.default_rng(np.random.SeedSequence(0).spawn(2)[1]).integers(0, 1 << 62, size=len(requests))
    found = copy.deepcopy(requests)
    for request, draw in zip(found, numbers.tolist(), strict=True):
        request.draw = draw
    return found


def _bins(gaps: Counter[int]) -> dict[int, int]:
    found: Counter[int] = Counter()
    for gap, count in gaps.items():
        found[gap_bin.py_func(gap // 1000)] += count  # type: ignore[attr-defined]
    return dict(found)


def assert_twins(deployment: Deployment, load: Load, sessions_per_batch: int = 10**9) -> Result:
    requests, clients = load
    literal = simulate_literal(deployment, _draws(requests), clients=clients, block_tokens=BLOCK)
    workload = as_workload(requests, clients, sessions_per_batch=sessions_per_batch)
    state, collector = run_kernel(deployment, workload, record=Record.REQUESTS)
    rows = np.concatenate([*collector._rows, np.zeros((0, f.O_FIELDS), np.int64)])
    units = {0: -1} | {address: number for number, address in enumerate(state.units)}
    fast = [
        (
            *(int(row[column]) for column in (f.O_INDEX, f.O_STATUS, f.O_ARRIVAL, f.O_ADMITTED, f.O_FIRST, f.O_FINISH)),
            *(int(row[column]) for column in (f.O_HOST, f.O_PROMPT, f.O_OUTPUT, f.O_HIT, f.O_HOST_HIT)),
            *(int(row[column]) for column in (f.O_HIT_BLOCKS, f.O_HOST_BLOCKS)),
            units[int(row[f.O_UNIT])],
            units[int(row[f.O_PREFILL_UNIT])],
            int(row[f.O_PREEMPTIONS]),
        )
        for row in rows
    ]
    assert fast == literal.records
    gaps = state.m[state.m[f.G_GAPS_AT] :]
    assert {bin_: int(gaps[bin_]) for bin_ in _bins(literal.gaps_ps)} == _bins(literal.gaps_ps)
    assert int(state.m[f.G_GAP_COUNT]) == sum(literal.gaps_ps.values())
    assert state.gap_sum_ps == sum(gap * count for gap, count in literal.gaps_ps.items())
    assert [int(state.m[unit + f.U_PEAK]) for unit in state.units] == literal.peaks
    assert [int(state.m[unit + f.U_PREEMPTIONS]) for unit in state.units] == literal.preemptions
    assert [int(state.m[unit + f.U_RESIDENT]) for unit in state.units] == literal.resident
    held = state.m.view(np.float64)[np.array(state.units) + f.U_HELD]
    np.testing.assert_allclose(held, np.array(literal.held_ps, dtype=np.float64), rtol=1e-12, atol=0)
    return literal


@given(deployments(caching=False, split=False), loads())
def test_twins_without_cache(deployment: Deployment, load: Load) -> None:
    assert_twins(deployment, load)


@given(deployments(split=False), loads())
def test_twins_with_cache(deployment: Deployment, load: Load) -> None:
    assert_twins(deployment, load)


@given(deployments(split=True), loads())
def test_twins_with_two_pools(deployment: Deployment, load: Load) -> None:
    assert_twins(deployment, load)


@given(deployments(), loads(), st.integers(1, 3))
def test_streaming_in_batches_changes_nothing(deployment: Deployment, load: Load, size: int) -> None:
    assert_twins(deployment, load, sessions_per_batch=size)


@given(pressed())
def test_twins_under_pressure(case: tuple[Deployment, Load]) -> None:
    """Preempted while decoding or between two chunks of a prompt, retracted, and admitted again."""
    assert_twins(*case)
