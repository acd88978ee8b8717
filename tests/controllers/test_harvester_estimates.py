"""Numbers out of repeats, against independent oracles."""

from __future__ import annotations

import asyncio
import math
from typing import cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import optimize, stats

from inferasim_harvester import assemble, estimates, overhead
from inferasim_harvester.emulator import virtual
from inferasim_harvester.errors import MeasurementFailedError
from inferasim_harvester.measure import Precision, common_window, measure_decode
from inferasim_harvester.session import Session
from inferasim_harvester.streams import Stream

LENGTHS = [256, 512, 1024, 2048, 4096]


def test_student_table_is_students() -> None:
    want = [stats.t.ppf(0.975, df) for df in range(1, len(estimates.STUDENT_975) + 1)]
    np.testing.assert_allclose(estimates.STUDENT_975, want, atol=6e-4)
    assert pytest.approx(stats.norm.ppf(0.975), abs=1e-3) == estimates.NORMAL_975


def test_the_interval_covers_what_it_says() -> None:
    """95 % of the intervals of Gaussian repeats hold the truth, within three standard errors of 600 trials."""
    random = np.random.default_rng(7)
    held = 0
    for _ in range(600):
        values = random.normal(1.0, 0.02, size=6)
        found = estimates.estimate(values)
        held += abs(float(np.mean(values)) - 1.0) <= found.half_width_frac * float(np.mean(values))
    assert held / 600 == pytest.approx(0.95, abs=3 * math.sqrt(0.95 * 0.05 / 600))


def test_one_repeat_is_never_certain() -> None:
    assert estimates.estimate([1.0]).half_width_frac == math.inf


@given(st.floats(0, 0.05), st.floats(0, 1e-4), st.floats(0, 1e-8))
def test_an_exact_law_is_found_exactly(fixed_s: float, first: float, second: float) -> None:
    times = [fixed_s + first * n + second * n * n + 1e-3 for n in LENGTHS]
    fit = estimates.fit_quadratic(LENGTHS, times)
    np.testing.assert_allclose(fit.at(np.array(LENGTHS, dtype=float)), times, rtol=1e-7)
    assert fit.residual < 1e-7


@given(st.lists(st.floats(0.01, 10.0), min_size=5, max_size=5))
def test_the_fit_is_the_best_of_its_kind(times: list[float]) -> None:
    """Never negative, and as good as scipy's non-negative least squares."""
    fit = estimates.fit_quadratic(LENGTHS, times)
    coefficients = [fit.fixed_s, fit.s_per_token, fit.s_per_token2]
    assert min(coefficients) >= 0
    n, t = np.array(LENGTHS, dtype=float), np.array(times)
    scale = np.array([1.0, 1e-3, 1e-6])
    columns = np.stack([np.ones_like(n), n, n * n], axis=1) * scale / t[:, None]
    _, best = optimize.nnls(columns, np.ones_like(t))
    ours = float(np.linalg.norm((np.stack([np.ones_like(n), n, n * n], axis=1) / t[:, None]) @ coefficients - 1.0))
    assert ours <= best * (1 + 1e-6) + 1e-9


@given(st.floats(0, 1e-2), st.floats(0, 1e-5))
def test_a_line_is_found(intercept: float, slope: float) -> None:
    times = [intercept + slope * n for n in LENGTHS]
    found = estimates.fit_line(LENGTHS, times, [1.0] * 5)
    assert found[0] == pytest.approx(intercept, abs=1e-9)
    assert found[1] == pytest.approx(slope, abs=1e-12)


@given(st.lists(st.floats(-1.0, 1.0), min_size=5, max_size=5))
def test_a_line_is_never_negative(times: list[float]) -> None:
    assert min(estimates.fit_line(LENGTHS, times, [1.0] * 5)) >= 0


def stream_at(times: list[float], prompt: int = 100) -> Stream:
    count = len(times)
    return Stream(0.0, np.array(times), np.arange(1.0, count + 1), prompt, count, 0)


def test_the_window_begins_when_the_last_request_has_joined() -> None:
    """Two requests: slow steps of 50 ms while the second prompt is computed, then 10 ms together."""
    early = [1.0, 1.05, 1.10, *(1.10 + 0.01 * k for k in range(1, 21))]
    late = [1.10, *(1.10 + 0.01 * k for k in range(1, 24))]
    window = common_window([stream_at(early), stream_at(late)], steps=16)
    assert window is not None
    assert window.step_s == pytest.approx(0.010)
    assert window.stagger == 2
    # When the window begins the early one has 3 tokens and the late one 1; over 16 steps that is 7.5 more on average.
    assert window.context_tokens == pytest.approx(100 + (3 + 1) / 2 + 7.5)


def test_no_window_when_the_first_ends_before_the_last_begins() -> None:
    assert common_window([stream_at([1.0, 1.1]), stream_at([2.0, 2.1])], steps=4) is None


def test_bunched_chunks_still_give_the_step() -> None:
    """A front end that sends three steps' chunks at once: single gaps are 0 or 30 ms, the step is 10 ms."""
    times = [1.0 + 0.03 * (k // 3) for k in range(48)]
    window = common_window([stream_at(times)], steps=40)
    assert window is not None
    assert window.coalesced_frac > 0.5
    assert window.step_s == pytest.approx(0.010, rel=0.15)


def test_stalls_do_not_move_the_median_and_are_seen() -> None:
    times = list(np.cumsum([0.01] * 20 + [0.5] + [0.01] * 20))
    window = common_window([stream_at(times)], steps=40)
    assert window is not None
    assert window.step_s == pytest.approx(0.010)
    assert window.stalled_frac > 1.0


def test_the_client_costs_nothing_in_virtual_time() -> None:
    """The probe itself ends, and its sockets are closed."""
    assert virtual.run(overhead.client_s_per_event()) == 0.0


def test_noise_larger_than_the_host_time_costs_the_host_time_and_not_the_harvest() -> None:
    """Host time of 8 and 1 ms at two lengths says nothing; at the third it would leave a step of less than no time."""
    records = {
        "prefill/64": {"servedTokens": 64, "ttftS": [3e-3] * 3, "stepS": []},
        "prefill/512": {"servedTokens": 512, "ttftS": [10e-3] * 3, "stepS": [2e-3] * 3},
        "prefill/1024": {"servedTokens": 1024, "ttftS": [12e-3] * 3, "stepS": [11e-3] * 3},
    }
    found = assemble.prefill_figures(records)
    assert (found.host, found.separated) == (None, 0)
    assert found.times_s == (3e-3, 10e-3, 12e-3)


def _stream(times: list[float], tokens: list[int]) -> Stream:
    return Stream(0.0, np.array(times), np.array(tokens, dtype=float), 128, tokens[-1], 0)


def test_a_busy_front_end_is_not_taken_for_drafts() -> None:
    """Steps of 10 ms. A front end that oversleeps now and then sends two tokens late, and the next one soon after; a
    draft gives two tokens in one step. Single gaps look alike, spans do not."""
    late = np.random.default_rng(3).random(64) < 0.2
    times, tokens = [], []
    for step in range(1, 65):
        if not late[step - 1]:
            oversleeps = step > 1 and late[step - 2]
            times.append(0.010 * step + (0.006 if oversleeps else 0.0))
            tokens.append(step)
    window = common_window([_stream(times, tokens)], 48)
    assert window is not None
    assert window.tokens_per_chunk > 1.1
    assert not window.is_drafted
    assert window.step_s == pytest.approx(0.010, rel=0.03)
    drafted = np.cumsum(1 + (np.random.default_rng(3).random(64) < 0.2)).tolist()
    window = common_window([_stream([0.010 * step for step in range(1, 65)], drafted)], 48)
    assert window is not None
    assert window.is_drafted


class _Front:
    """A session whose front end sends the waves of `held` all at once, and the others step by step of 10 ms."""

    def __init__(self, held: range) -> None:
        self.held, self.sent = held, 0

    async def wave(self, _label: str, count: int, length: int, max_tokens: int) -> list[Stream]:
        step_s = 0.0 if self.sent in self.held else 0.010
        self.sent += 1
        times = 0.5 + step_s * np.arange(max_tokens)
        tokens = np.arange(1.0, max_tokens + 1)
        return [Stream(0.0, times, tokens, length, max_tokens, 0) for _ in range(count)]


def test_a_front_end_that_was_away_for_a_wave_costs_a_repeat_and_no_point() -> None:
    """A busy machine holds a short wave back now and then; a proxy that holds every wave back is told as one."""
    for held in (range(1), range(2), range(2, 4)):
        front = _Front(held)
        found = asyncio.run(measure_decode(cast(Session, front), 1, 128, Precision(), 2048, "x"))
        assert found.steps_s == pytest.approx([0.010] * len(found.steps_s))
        assert len(found.steps_s) >= 3
    for held in (range(1000), range(1, 1000)):
        with pytest.raises(MeasurementFailedError, match="a proxy buffers its stream"):
            asyncio.run(measure_decode(cast(Session, _Front(held)), 1, 128, Precision(), 2048, "x"))
