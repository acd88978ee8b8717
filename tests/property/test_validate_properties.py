"""Invariants of the validation path: identities of the width laws, monotone curves, widening intervals, no crashes."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simcore.cards.layout import Layout
from simcore.errors import FormatError
from simcore.prediction.intervals import Distance, interval_calibration
from simcore.prediction.steady import closed_loop
from simcore.stepcost.calibration import calibration
from simcore.stepcost.width import WidthLaw
from simcore.validate.cells import Cell
from simcore.validate.corpus import parse_corpus
from simcore.validate.evaluate import _card_features
from simcore.validate.layout_fit import FittedLayout, fit_layout, rising
from simcore.validate.metrics import Scored, ranking
from simcore.validate.project import Projection

WIDTHS = (1, 2, 4, 8)


def _fitted(width: int, model: str, steps_ms: list[float]) -> FittedLayout:
    cells = tuple(
        Cell((1024, 1024), 2**index, 1024.0, 1024.0, 0.2, step / 1000, False, float(2**index), False)
        for index, step in enumerate(sorted(steps_ms))
    )
    features = _card_features(model, "MI355X", "SGLang", "fp8", Layout(tensor_parallel=width))
    assert features is not None
    return fit_layout(cells, features, calibration())


@st.composite
def fitted_layouts(draw: st.DrawFn) -> tuple[int, str, FittedLayout]:
    """A width, a model and a layout fitted from a rising sweep."""
    width = draw(st.sampled_from(WIDTHS))
    model = draw(st.sampled_from(["Llama-3.1-70B", "MiniMax-M2.5", "DeepSeek-R1"]))
    steps = draw(st.lists(st.floats(4.0, 80.0), min_size=3, max_size=6))
    return width, model, _fitted(width, model, steps)


@settings(max_examples=25, deadline=None)
@given(fitted_layouts(), st.floats(1.0, 64.0), st.sampled_from(list(WidthLaw)))
def test_same_width_is_the_identity(layout: tuple[int, str, FittedLayout], batch: float, law: WidthLaw) -> None:
    width, _, fitted = layout
    moved = Projection(fitted, fitted.features, law, width, width, calibration())
    assert moved.step_s(batch, 1536, (1024, 1024)) == fitted.step_at(batch, 1536, (1024, 1024))
    assert moved.prefill == fitted.prefill


@settings(max_examples=25, deadline=None)
@given(fitted_layouts(), st.floats(1.0, 64.0), st.sampled_from(WIDTHS))
def test_wider_lies_between_divided_and_same_plus_collectives(
    layout: tuple[int, str, FittedLayout], batch: float, to: int
) -> None:
    width, model, fitted = layout
    if to <= width:
        return
    target = _card_features(model, "MI355X", "SGLang", "fp8", Layout(tensor_parallel=to))
    assert target is not None
    moved = Projection(fitted, target, WidthLaw.SPLIT_FLOOR, width, to, calibration())
    here = fitted.step_at(batch, 1536, (1024, 1024))
    there = moved.step_s(batch, 1536, (1024, 1024))
    assert moved.move is not None
    collective_s = float(moved.move.collective_s(target, np.array([batch]))[0])
    assert here * width / to * 0.99 <= there <= here + collective_s * 1.01


@settings(max_examples=25, deadline=None)
@given(fitted_layouts(), st.sampled_from(WIDTHS))
def test_wider_prefill_lies_between_divided_and_same_plus_collectives(
    layout: tuple[int, str, FittedLayout], to: int
) -> None:
    width, model, fitted = layout
    target = _card_features(model, "MI355X", "SGLang", "fp8", Layout(tensor_parallel=to))
    assert target is not None
    if to <= width:
        return
    moved = Projection(fitted, target, WidthLaw.SPLIT_FLOOR, width, to, calibration())
    here, there = fitted.prefill.s_per_token, moved.prefill.s_per_token
    collective_s = target.communication.link_s_per_token
    assert min(here * width / to, collective_s) * (1 - 1e-9) <= there <= (here + collective_s) * (1 + 1e-9)


@settings(max_examples=25, deadline=None)
@given(fitted_layouts(), st.floats(1.0, 500.0), st.floats(1.0, 500.0))
def test_a_step_never_falls_with_its_batch(layout: tuple[int, str, FittedLayout], one: float, other: float) -> None:
    fitted = layout[2]
    low, high = sorted((one, other))
    shape = (1024, 1024)
    assert fitted.step_at(low, 1536, shape) <= fitted.step_at(high, 1536, shape) * (1 + 1e-9)


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=30), st.data())
def test_rising_is_the_nearest_rising_sequence(values: list[float], data: st.DataObject) -> None:
    weights = data.draw(st.lists(st.floats(0.01, 3), min_size=len(values), max_size=len(values)))
    found = rising(np.array(values), np.array(weights))
    assert np.all(np.diff(found) >= -1e-12)
    assert np.average(found, weights=weights) == pytest.approx(np.average(values, weights=weights), abs=1e-9)
    if values == sorted(values):
        assert found == pytest.approx(np.array(values))
    for shift in (-0.1, 0.1):  # no rising neighbour is nearer
        other = np.maximum.accumulate(found + shift)
        distance = np.sum(np.array(weights) * (found - values) ** 2)
        assert distance <= np.sum(np.array(weights) * (other - values) ** 2) + 1e-9


@given(
    st.integers(1, 512),
    st.integers(1, 512),
    st.integers(2, 4096),
    st.floats(1e-3, 0.5),
    st.floats(0.0, 2.0),
    st.floats(0.0, 300.0),
)
def test_closed_loop_conserves_work(
    clients: int, cap: int, tokens: int, step_s: float, prefill_s: float, waits: float
) -> None:
    loop = closed_loop(
        clients=clients, running_cap=cap, output_tokens=tokens, step_s=step_s, prefill_s=prefill_s, host_s=0.0,
        wait_s=waits * prefill_s,
    )  # fmt: skip
    running = min(clients, cap)
    assert loop.tpot_s >= step_s * (1 - 1e-9)
    assert loop.request_s == pytest.approx(loop.ttft_s + (tokens - 1) * loop.tpot_s)
    assert loop.requests_per_s == pytest.approx(running / (running * prefill_s + (tokens - 1) * step_s))


DISTANCES = st.builds(
    Distance,
    width_doublings=st.floats(0, 4),
    stage_doublings=st.floats(0, 4),
    prompt_doublings=st.floats(0, 6),
    output_doublings=st.floats(0, 6),
    batch_doublings=st.floats(0, 6),
)


@given(DISTANCES, st.sampled_from(["width_doublings", "stage_doublings", "prompt_doublings", "batch_doublings"]))
def test_intervals_widen_with_every_distance(distance: Distance, name: str) -> None:
    further = replace(distance, **{name: getattr(distance, name) + 1.0})
    for quantity in ("tpot", "ttft", "throughput"):
        near, far = (interval_calibration().half_width(quantity, at) for at in (distance, further))
        assert 0 < near < far
        low, high = interval_calibration().interval(quantity, 2.0, distance)
        assert low < 2.0 < high
        assert math.sqrt(low * high) == pytest.approx(2.0)


def _scored(layout: int, measured: float, predicted: float) -> Scored:
    return Scored(
        "s", ("m", 1, 1, 1), 1, {"tpot": None, "ttft": None, "throughput": measured},
        {"tpot": 1.0, "ttft": 1.0, "throughput": predicted},
        dict.fromkeys(("tpot", "ttft", "throughput"), (0.0, 9.0)),
    )  # fmt: skip


@given(st.lists(st.floats(1.0, 1000.0), min_size=2, max_size=8))
def test_ranking_of_the_truth_and_its_mirror(measured: list[float]) -> None:
    exact = ranking([_scored(index, value, value) for index, value in enumerate(measured)])
    mirror = ranking([_scored(index, value, 1.0 / value) for index, value in enumerate(measured)])
    ties = ranking([_scored(index, value, 1.0) for index, value in enumerate(measured)])
    if exact.pairs_count:
        assert (exact.pairs_ordered_percent, mirror.pairs_ordered_percent) == (100.0, 0.0)
        assert ties.pairs_ordered_percent == 50.0
    assert exact.regret_percent == 0.0


@given(
    st.lists(
        st.tuples(
            st.sampled_from([1.0, 1.02, 1.04, 2.0, 3.1]) | st.floats(0.5, 9.0),
            st.sampled_from([1.0, 1.0 + 1e-10, 2.0]) | st.floats(0.5, 9.0),
            st.sampled_from([None, ("a",), ("b",)]),
        ),
        min_size=2,
        max_size=9,
    )
)
def test_ranking_against_all_pairs_one_by_one(members: list[tuple[float, float, tuple[str] | None]]) -> None:
    """The definition of paper 5.7, written pair by pair: decisive above 3 %, a predicted tie counts half."""
    rows = [replace(_scored(0, measured, guess), configuration=what) for measured, guess, what in members]
    pairs, ordered = 0, 0.0
    for (one, guess, what), (other, other_guess, other_what) in itertools.combinations(members, 2):
        if (what is not None and what == other_what) or abs(one - other) <= 0.03 * min(one, other):
            continue
        pairs += 1
        if math.isclose(guess, other_guess, rel_tol=1e-9):
            ordered += 0.5
        else:
            ordered += float((guess > other_guess) == (one > other))
    found = ranking(rows)
    assert found.pairs_count == pairs
    assert found.pairs_ordered_percent == (pytest.approx(100.0 * ordered / pairs) if pairs else None)


def test_repeats_of_one_configuration_are_no_pair() -> None:
    """By hand: a measured twice, 20 % apart, and b below both, predicted between: of the two pairs a-b one is right."""
    rows = [
        replace(_scored(0, measured, predicted), configuration=(name,))
        for name, measured, predicted in (("a", 100.0, 80.0), ("a", 120.0, 80.0), ("b", 110.0, 90.0))
    ]
    found = ranking(rows)
    assert (found.pairs_count, found.pairs_ordered_percent) == (2, 50.0)
    assert found.regret_percent == pytest.approx(100.0 * (1 - 110.0 / 120.0))


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=300))
def test_hostile_text_is_refused_with_one_line(text: str) -> None:
    with pytest.raises(FormatError) as caught:  # no text hypothesis writes holds the eleven columns
        parse_corpus(text)
    assert len(str(caught.value).splitlines()) == 1
