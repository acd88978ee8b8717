"""Plans for arrivals at a rate and for drawn lengths, on the real predictor with a small anchor."""

from __future__ import annotations

import json
from typing import Any

import pytest

from inferasim_operator import planning
from simcore.search import arrivals
from simcore.search.arrivals import answer_rate
from simcore.search.replicas import replica_steps
from tests import builders

TIERS = [{"name": "interactive", "tokensPerSecondPerUser": 70, "ttftMilliseconds": 2500}, {"name": "bulk"}]
PROMPT, OUTPUT = 1024, 256


def _request(**changes: Any) -> dict[str, Any]:
    layouts = [{"tensorParallel": 1}, {"tensorParallel": 2}]
    spec = builders.serving_plan(engines=[{"name": "SGLang", "layouts": layouts}], tiers=TIERS, **changes)["spec"]
    return {"spec": spec, "anchors": {"a": json.loads(builders.anchor().to_json())}}


def _rate(per_minute: int, **changes: Any) -> dict[str, Any]:
    return _request(load={"requestsPerMinute": per_minute}, **changes)


def test_what_comes_in_goes_out() -> None:
    """300 requests a minute of 256 tokens are 1280 tokens/s, over the GPUs; Little's law gives those in flight."""
    prepared, answer = planning.answer_prepared(_rate(300))
    assert answer.candidates
    for candidate in answer.candidates:
        assert candidate.throughput_tokens_per_s == pytest.approx(5.0 * OUTPUT)
        e2e_s = candidate.prediction.e2e.mean_s or 0.0
        assert candidate.concurrency - 1 < 5.0 * e2e_s <= candidate.concurrency
        assert candidate.gpus_count <= prepared.question.gpu_budget_count
    document = planning.compute_plan(_rate(300))
    assert document["effective"]["requestsPerMinute"] == 300
    assert {choice["tier"] for choice in document["selected"]} == {"interactive", "bulk"}


def test_overload_is_refused_with_the_numbers() -> None:
    """A rate beyond all GPUs has no mean latency: no candidate, and the binding limit says what they can take."""
    document = planning.compute_plan(_rate(600_000))
    assert document["selected"] == []
    assert document["candidates"]["scored"] == 0
    binding = document["binding"][0]
    assert binding["limit"] == "overload"
    assert "requests/s of the 1e+04 asked" in binding["detail"]


def test_more_arrivals_never_need_fewer_gpus() -> None:
    """Companion of the above: the smallest number of GPUs that keeps up grows with the rate."""
    least = []
    for per_minute in (60, 600, 1800, 3600):
        _, answer = planning.answer_prepared(_rate(per_minute))
        least.append(min(candidate.gpus_count for candidate in answer.candidates))
    assert least == sorted(least)
    assert least[0] < least[-1]


def test_a_quiet_replica_is_as_quick_as_one_alone() -> None:
    """M/G/1 in light traffic: without a queue a request takes its prefill and its steps, as the only client's does."""
    prepared = planning.prepare(_rate(1))
    scorer = prepared.rate_scorer
    shape = scorer.shapes(prepared.question.engines[0], gpus_per_node=8, nodes_count=1)[0][0]
    alone = prepared.predictor.predict(shape, 1)
    quiet = scorer.predict_rate(shape, 0.001)
    assert quiet is not None
    assert quiet.ttft_s == pytest.approx(alone.ttft_s, rel=0.01)
    assert quiet.tpot_s == pytest.approx(alone.tpot_s, rel=0.01)
    capacity = scorer.capacity_requests_per_s(shape)
    assert scorer.predict_rate(shape, capacity) is None
    busy = scorer.predict_rate(shape, 0.95 * capacity)
    assert busy is not None
    assert "near-saturation" in busy.flags
    assert busy.ttft_s > quiet.ttft_s


def test_drawn_lengths_of_one_value_are_fixed_lengths() -> None:
    """A range of one value is the fixed workload, simulated instead of in closed form: the same answer."""
    same = {
        "promptTokens": {"minimum": PROMPT, "maximum": PROMPT},
        "outputTokens": {"minimum": OUTPUT, "maximum": OUTPUT},
    }
    fixed = planning.compute_plan(_request(load={"concurrencies": [8, 32]}))
    drawn = planning.compute_plan(_request(load={"concurrencies": [8, 32]}, workload={"synthetic": same}))
    assert [(c["configuration"], c["predicted"]) for c in drawn["selected"]] == [
        (c["configuration"], c["predicted"]) for c in fixed["selected"]
    ]


def test_drawn_lengths_state_their_mean_and_fit_their_longest() -> None:
    """512..1536 and 128..384: a mean request of 1024 + 256, an engine that holds 1920; the same draws each time."""
    drawn = {"promptTokens": {"minimum": 512, "maximum": 1536}, "outputTokens": {"minimum": 128, "maximum": 384}}
    request = _request(load={"concurrencies": [16]}, workload={"synthetic": drawn})
    document = planning.compute_plan(request)
    configuration = document["selected"][0]["configuration"]
    assert (configuration["promptTokens"], configuration["outputTokens"]) == (1024, 256)
    assert configuration["maxModelLengthTokens"] == 1920
    assert planning.compute_plan(request) == document


def test_replica_steps_by_hand() -> None:
    """One by one to 20, then 5 % further, rounded up: 21, 23, 25, 27, 29, 31, 33, 35, 37, 39, then 41."""
    steps = list(replica_steps(41))
    assert steps[:20] == list(range(1, 21))
    assert steps[20:] == [21, 23, 25, 27, 29, 31, 33, 35, 37, 39, 41]


def test_rate_answers_use_one_scorer_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """The capacity of a layout is simulated once, whatever the number of replicas."""
    prepared = planning.prepare(_rate(300))
    calls: list[int] = []
    original = arrivals.capacity_requests_per_s

    def counted(deployment: Any, *given: Any, **named: Any) -> float:
        calls.append(deployment.pool.gpus_per_replica_count)
        return original(deployment, *given, **named)

    monkeypatch.setattr(arrivals, "capacity_requests_per_s", counted)
    answer_rate(prepared.question, prepared.rate_scorer, mean_output_tokens=OUTPUT)
    assert sorted(calls) == [1, 2]
