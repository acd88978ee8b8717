"""Choosing by an objective and within an SLO."""

from __future__ import annotations

import json
from typing import Any

import pytest

from inferasim_operator import planning
from inferasim_operator.api.v1alpha1.servingplan import ObjectiveName
from simcore.search.objectives import objectives
from tests import builders

ANCHOR = json.loads(builders.anchor().to_json())
TIERS = [{"name": "interactive", "tokensPerSecondPerUser": 70, "ttftMilliseconds": 2500}, {"name": "bulk"}]


def _answer(**changes: Any) -> Any:
    layouts = [{"tensorParallel": 1}, {"tensorParallel": 2}]
    spec = builders.serving_plan(
        engines=[{"name": "SGLang", "layouts": layouts}], load={"concurrencies": [1, 16]}, tiers=TIERS, **changes
    )["spec"]
    return planning.answer_prepared({"spec": spec, "anchors": {"a": ANCHOR}})


def test_the_api_names_are_the_objectives() -> None:
    assert {name.value for name in ObjectiveName} == set(objectives())


@pytest.mark.parametrize("name", sorted(objectives()))
def test_no_candidate_of_the_tier_has_a_better_figure(name: str) -> None:
    """For each of the 24, by brute force over all candidates that meet the tier."""
    prepared, answer = _answer(objective=name)
    goal = prepared.goal
    for choice in answer.choices:
        chosen = answer.candidates[choice.chosen]
        best = objectives()[name].score(goal.figure(chosen))
        for candidate in answer.candidates:
            meets = choice.tier.name == "bulk" or (candidate.tpot_s <= 1 / 70 and candidate.ttft_s <= 1.25)
            value = goal.figure(candidate)
            assert not meets or value is None or objectives()[name].score(value) <= best
        assert choice.short_list[0] == choice.chosen


def test_an_slo_binds_every_tier_and_relaxing_it_keeps_what_was_found() -> None:
    """Nothing chosen misses it; an impossible one names the nearest and the miss; a looser one never finds less."""
    found = []
    for milliseconds in (1, 60, 10_000):
        _, answer = _answer(slo={"ttftMilliseconds": milliseconds})
        chosen = [answer.candidates[c.chosen] for c in answer.choices if c.chosen is not None]
        assert all(candidate.ttft_s * 1000 <= milliseconds for candidate in chosen)
        found.append(len(chosen))
    assert found == sorted(found)
    assert (found[0], found[-1]) == (0, 2)
    _, answer = _answer(slo={"ttftMilliseconds": 1})
    choice = answer.choices[0]
    assert choice.binding is not None
    assert choice.binding.limit == "slo"
    assert "misses the budget of 0.001 s" in choice.binding.detail
    nearest = answer.candidates[choice.nearest or 0]
    assert nearest.ttft_s == min(candidate.ttft_s for candidate in answer.candidates)


def test_an_slo_that_never_binds_changes_nothing() -> None:
    """The paper's rule over all candidates."""
    _, plain = _answer()
    _, bound = _answer(slo={"ttftMilliseconds": 86_400_000})
    pick = [[answer.candidates[c.chosen].key for c in answer.choices] for answer in (plain, bound)]
    assert pick[0] == pick[1]
