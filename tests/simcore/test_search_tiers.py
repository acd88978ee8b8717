"""The tier choice of section 4.1 against hand calculations, and what must hold of any choice."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simcore.errors import InputError
from simcore.search import pareto, tiers


@dataclass(frozen=True)
class Point:
    ttft_s: float
    tpot_s: float
    throughput_per_gpu_tokens_per_s: float
    gpus_count: int = 1
    name: str = ""

    @property
    def key(self) -> tuple[object, ...]:
        return (self.name, self.ttft_s, self.tpot_s)


INTERACTIVE = tiers.Tier("interactive", 70, 2.5)

points = st.lists(
    st.builds(
        Point,
        ttft_s=st.floats(0.01, 20),
        tpot_s=st.floats(0.002, 0.2),
        throughput_per_gpu_tokens_per_s=st.floats(1, 5000),
        gpus_count=st.integers(1, 32),
        name=st.text("ab", max_size=4),
    ),
    max_size=20,
)


def test_default_tiers_are_those_of_table_15() -> None:
    """Source: paper section 4.1 and Table 15."""
    found = [(t.name, t.min_interactivity_tokens_per_s, t.max_ttft_s) for t in tiers.default_tiers()]
    assert found == [("realtime", 150, 1.0), ("interactive", 70, 2.5), ("responsive", 25, 10.0), ("bulk", 0, None)]


@pytest.mark.parametrize(
    ("ttft_s", "tpot_s", "flagged"),
    [
        ((0.2, 2.4), (0.010, 0.014), False),  # 1/0.014 = 71.4 tokens/s
        ((0.2, 2.4), (0.010, 0.015), True),  # 1/0.015 = 66.7 tokens/s
        ((0.2, 2.6), (0.010, 0.014), True),
    ],
)
def test_a_limit_inside_the_interval_is_said(
    ttft_s: tuple[float, float], tpot_s: tuple[float, float], flagged: bool
) -> None:
    """70 tokens/s and 2.5 s against the bad ends, by hand; a tier without limits cannot be missed."""
    interval = {"ttft": ttft_s, "tpot": tpot_s}
    assert tiers.promise_flags(interval, INTERACTIVE) == (("limit-inside-interval",) if flagged else ())
    assert tiers.promise_flags(interval, tiers.Tier("bulk", 0, None)) == ()


def test_a_candidate_qualifies_at_half_the_ttft_limit() -> None:
    """1.25 s is half of 2.5 s: 1.24 s qualifies, 1.26 s does not although it is within the limit."""
    assert tiers.choose([Point(1.24, 0.010, 100)], INTERACTIVE).chosen == 0
    missed = tiers.choose([Point(1.26, 0.010, 100)], INTERACTIVE)
    assert missed.chosen is None
    assert missed.nearest == 0
    assert missed.binding is not None
    assert missed.binding.limit == "ttft"


def test_the_most_headroom_within_five_percent_wins() -> None:
    """B has 4 % less throughput and more headroom than A; C has more headroom still but 6 % less throughput."""
    a = Point(1.2, 1 / 80, 1000, name="a")
    b = Point(0.6, 1 / 100, 960, name="b")
    c = Point(0.2, 1 / 140, 940, name="c")
    choice = tiers.choose([a, b, c], INTERACTIVE)
    assert choice.chosen == 1
    assert choice.short_list == (0, 1, 2)
    # interactivity margin 100/70 - 1 = 0.4286; TTFT margin 1 - 0.6/1.25 = 0.52
    assert choice.headroom_frac == pytest.approx(100 / 70 - 1)


def test_interactivity_names_itself_when_it_binds() -> None:
    choice = tiers.choose([Point(0.1, 1 / 60, 100)], INTERACTIVE)
    assert choice.binding is not None
    assert (choice.binding.limit, choice.binding.reached_value) == ("interactivity", pytest.approx(60))


@given(points, st.randoms(use_true_random=False))
def test_choice_does_not_depend_on_order(candidates: list[Point], random: object) -> None:
    shuffled = list(candidates)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    for tier in tiers.default_tiers():
        one, two = tiers.choose(candidates, tier), tiers.choose(shuffled, tier)
        assert (one.chosen is None) == (two.chosen is None)
        if one.chosen is not None and two.chosen is not None:
            assert candidates[one.chosen] == shuffled[two.chosen]


@given(points)
def test_a_chosen_candidate_meets_the_tier_and_the_band(candidates: list[Point]) -> None:
    rule = tiers.default_rule()
    for tier in tiers.default_tiers():
        choice = tiers.choose(candidates, tier)
        if choice.chosen is None:
            assert not any(all(m >= 0 for m in tiers.margins(c, tier, rule).values()) for c in candidates)
            continue
        chosen = candidates[choice.chosen]
        assert all(margin >= 0 for margin in tiers.margins(chosen, tier, rule).values())
        best = candidates[choice.short_list[0]].throughput_per_gpu_tokens_per_s
        assert chosen.throughput_per_gpu_tokens_per_s >= best * 0.95
        assert len(choice.short_list) <= 5


@given(points, st.floats(1.0, 10.0))
def test_relaxing_a_tier_never_shrinks_the_feasible_set(candidates: list[Point], factor: float) -> None:
    relaxed = tiers.Tier("relaxed", 70 / factor, 2.5 * factor)
    if tiers.choose(candidates, INTERACTIVE).chosen is not None:
        assert tiers.choose(candidates, relaxed).chosen is not None


@pytest.mark.parametrize(("interactivity", "ttft_s"), [(-1, 1.0), (float("nan"), 1.0), (1, 0.0), (1, float("nan"))])
def test_impossible_tiers_are_refused(interactivity: float, ttft_s: float) -> None:
    with pytest.raises(InputError):
        tiers.Tier("bad", interactivity, ttft_s)


@given(st.lists(st.tuples(*[st.integers(0, 5)] * 3), max_size=30))
def test_front_equals_the_definition(rows: list[tuple[int, int, int]]) -> None:
    """Companion invariant: brute force over all pairs."""
    values = np.array(rows, dtype=float).reshape(-1, 3)
    found = set(pareto.pareto_front(values, maximise=(True, True, False)).tolist())
    costs = values * np.array([-1, -1, 1])

    def dominated(i: int) -> bool:
        return any((costs[j] <= costs[i]).all() and (costs[j] < costs[i]).any() for j in range(len(costs)))

    assert found == {i for i in range(len(costs)) if not dominated(i)}


def test_a_row_without_a_value_is_never_on_the_front() -> None:
    values = np.array([[1.0, np.nan], [0.5, 0.5]])
    assert pareto.pareto_front(values, maximise=(True, True)).tolist() == [1]
