"""What binds when a plan has no answer, on the real predictor: memory, GPUs, anchors, TTFT, TPOT; one tier of two."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import pytest

from inferasim_operator import planning
from simcore.errors import InputError
from simcore.search.plan import Candidate

LARGE: dict[str, Any] = {
    "model": {"name": "Llama-3.1-405B"},
    "cluster": {"accelerator": "MI300X", "nodes": 1},
    "engines": [{"name": "VLLM"}],
    "workload": {"fixed": {"promptTokens": 1024, "outputTokens": 128}},
    "load": {"concurrencies": [1, 16]},
    "anchors": {"mode": "Simulate"},
    "tiers": [{"name": "tight", "ttftMilliseconds": 600, "tokensPerSecondPerUser": 33}],
}
SMALL = LARGE | {"model": {"name": "Llama-3.1-8B"}, "engines": [{"name": "SGLang"}]}


def plan(spec: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return planning.compute_plan({"spec": {**spec, **changes}, "anchors": {}})


def nearest(binding: dict[str, Any]) -> tuple[dict[str, int], int, int]:
    """Layout, replicas and GPUs of each; what cannot run has no figures."""
    assert "predicted" not in binding["nearest"]
    found = binding["nearest"]["configuration"]
    return found["layout"], found["replicas"], found["gpusPerReplica"]


@cache
def swept() -> tuple[Candidate, ...]:
    """All candidates of the small plan: the brute force beside each choice."""
    return planning.answer_prepared({"spec": SMALL, "anchors": {}})[1].candidates


def test_all_that_is_legal_dies_of_memory() -> None:
    """Public case B04: 755.96, 377.98 and 188.99 GiB a GPU of 172.79; the latency targets are not mentioned."""
    layouts = [{"tensorParallel": width} for width in (1, 2, 4)]
    (binding,) = plan(LARGE, engines=[{"name": "VLLM", "layouts": layouts}])["binding"]
    assert binding["limit"] == "memory"
    assert binding["detail"].startswith("TP4: "), "the nearest to fitting first"
    assert "TTFT" not in binding["detail"]
    assert nearest(binding) == ({"tensorParallel": 4}, 1, 4)


def test_a_layout_that_would_run_with_more_gpus_makes_the_budget_bind() -> None:
    """TP1, 2 and 4 do not fit; TP8 does, with 8 of 4 GPUs: more memory is not what is missing."""
    cluster = {"accelerator": "MI300X", "nodes": 1, "gpuBudget": 4}
    (binding,) = plan(LARGE, cluster=cluster)["binding"]
    assert binding["limit"] == "gpu-budget"
    assert binding["detail"].startswith("TP8")
    assert "needs 8 GPUs of a budget of 4" in binding["detail"]
    assert nearest(binding) == ({"tensorParallel": 8}, 1, 8)


def test_a_layout_that_fits_but_was_not_measured_makes_the_anchor_bind() -> None:
    answer = plan(LARGE, anchors={"mode": "Anchored"})
    assert {binding["limit"] for binding in answer["binding"]} == {"anchor"}
    assert answer["recommendedHarvests"][0]["layout"]["tensorParallel"] == 8


def test_arrivals_that_nothing_takes_name_what_takes_most_of_them() -> None:
    """Of eight GPUs each layout says what it takes; the most of all is named first and as the nearest."""
    (binding,) = plan(SMALL, load={"requestsPerMinute": 600_000})["binding"]
    assert binding["limit"] == "overload"
    taken = [float(text.split()[4]) for text in binding["detail"].split("; ")[:4]]
    assert taken == sorted(taken, reverse=True)
    first = binding["detail"].split(": ")[0]
    layout, replicas, gpus_count = nearest(binding)
    assert f"TP{layout['tensorParallel']}" in first
    assert replicas * gpus_count == 8


@pytest.mark.parametrize(
    "change",
    [
        {"workload": {"fixed": {"promptTokens": 1024, "outputTokens": 1}}},
        {"workload": {"fixed": {"promptTokens": 1024, "outputTokens": 1}}, "load": {"requestsPerMinute": 60}},
        {
            "workload": {
                "synthetic": {
                    "promptTokens": {"minimum": 9, "maximum": 90},
                    "outputTokens": {"minimum": 1, "maximum": 1},
                }
            }
        },
    ],
)
def test_a_single_token_has_no_tpot_and_no_plan(change: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="answer with at least 2 tokens"):
        plan(SMALL, **change)


def test_ttft_binds_at_half_its_limit_and_the_nearest_is_the_quickest() -> None:
    """Brute force: the least TTFT of all candidates, a millisecond to either side of half the limit."""
    quickest = min(swept(), key=lambda c: c.ttft_s)
    least_ms = quickest.ttft_s * 1000
    tier = {"name": "t", "ttftMilliseconds": math.ceil(2 * least_ms) + 1}
    assert plan(SMALL, tiers=[tier])["feasible"]
    tier["ttftMilliseconds"] = math.floor(2 * least_ms) - 1
    (binding,) = plan(SMALL, tiers=[tier])["binding"]
    assert binding["limit"] == "ttft"
    assert binding["nearest"]["predicted"]["ttftMilliseconds"] == round(least_ms)
    assert f"{quickest.ttft_s:.3f} s" in binding["detail"]


def test_tpot_binds_with_the_best_rate_that_was_reached() -> None:
    best = 1 / min(c.tpot_s for c in swept())
    (binding,) = plan(SMALL, tiers=[{"name": "t", "tokensPerSecondPerUser": math.ceil(best) + 1}])["binding"]
    assert binding["limit"] == "interactivity"
    assert f"reaches {best:.1f} tokens/s" in binding["detail"]
    assert plan(SMALL, tiers=[{"name": "t", "tokensPerSecondPerUser": math.floor(best) - 1}])["feasible"]


def test_one_tier_of_two_is_met_and_the_other_says_what_binds() -> None:
    tiers = [{"name": "impossible", "tokensPerSecondPerUser": 900_000}, {"name": "bulk"}]
    answer = plan(SMALL, tiers=tiers)
    assert answer["feasible"]
    assert [choice["tier"] for choice in answer["selected"]] == ["bulk"]
    assert [(item["tier"], item["limit"]) for item in answer["binding"]] == [("impossible", "interactivity")]


@pytest.mark.parametrize("budget", [1, 3, 8])
def test_no_answer_exceeds_the_budget_whatever_searches(budget: int) -> None:
    """Sweep, arrivals at a rate, seeds and a mix; the front, the short lists and the nearest included."""
    cluster = {"accelerator": "MI300X", "nodes": 1, "gpuBudget": budget}
    common = SMALL | {
        "cluster": cluster,
        "tiers": [{"name": "bulk"}, {"name": "never", "tokensPerSecondPerUser": 10**6}],
    }
    for changes in (
        {},
        {"load": {"requestsPerMinute": 600}},
        {"search": {"method": "Seeds", "budget": 8}},
        {"demands": [{"tier": "bulk", "tokensPerSecond": 10**7}]},
    ):
        answer = plan(common, **changes)
        rows = [*answer["front"], *(row for rows in answer["shortList"].values() for row in rows)]
        assert all(row["gpus"] <= budget for row in rows)
        assert sum(choice["gpus"] for choice in answer["selected"]) <= budget
        for item in answer["binding"]:
            if item.get("nearest"):
                nearest = item["nearest"]["configuration"]
                assert nearest["replicas"] * nearest["gpusPerReplica"] <= budget
