"""The sweep and its answer, with a scorer whose prices are known in closed form."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simcore.cards.layout import Engine, Layout
from simcore.des.result import Distribution
from simcore.errors import InputError
from simcore.prediction.result import Prediction, Source
from simcore.prediction.shapes import EngineOption, Refusal, Shape
from simcore.search import plan
from simcore.search.plan import Question
from simcore.search.replicas import replica_counts
from simcore.search.tiers import Tier

STEP_FLOOR_S = 0.004
STEP_PER_CLIENT_S = 0.0002


def flat(value_s: float) -> Distribution:
    return Distribution(10, value_s, value_s, None, None, None)


class LinearScorer:
    """TPOT = floor + slope*clients/width, TTFT = 0.05*clients/width; TP4 never fits."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, int]] = []

    def shapes(
        self, option: EngineOption, *, gpus_per_node: int, nodes_count: int
    ) -> tuple[list[Shape], list[Refusal]]:
        found, refused = [], []
        for width in (1, 2, 4, 8):
            layout = Layout(tensor_parallel=width)
            if width == 4:
                refused.append(Refusal(option, layout, "memory", "TP4: needs 300 GB of 259 GB"))
            elif width <= gpus_per_node:
                found.append(Shape(option, layout, width))
        return found, refused

    def predict(self, shape: Shape, concurrency: int) -> Prediction:
        width = shape.layout.tensor_parallel
        self.calls.append((width, concurrency))
        tpot_s = STEP_FLOOR_S + STEP_PER_CLIENT_S * concurrency / width
        ttft_s = 0.05 * concurrency / width
        source = Source("anchored", "a", "sha256:0", {}, {})
        return Prediction(
            label=shape.layout.label(),
            gpus_count=shape.gpus_count,
            concurrency=concurrency,
            source=source,
            flags=(),
            ttft=flat(ttft_s),
            ttft_from_admission=flat(ttft_s),
            tpot=flat(tpot_s),
            itl=flat(tpot_s),
            e2e=flat(1.0),
            throughput_tokens_per_s=concurrency / tpot_s,
            requests_per_s=1.0,
            requests_count=10,
            interval80={"ttft": (0, 1), "tpot": (0, 1), "throughput": (0, 1)},
            hit_rates={},
            queueing={},
            preemptions_count=0,
            kv_occupancy_frac=None,
            memory={},
            step_breakdown={},
        )


def question(**changes: object) -> Question:
    fields: dict[str, object] = {
        "engines": (EngineOption(Engine.SGLANG),),
        "gpus_per_node": 8,
        "nodes_count": 1,
        "gpu_budget_count": 8,
        "concurrencies": (1, 8, 64),
    }
    return Question(**(fields | changes))  # type: ignore[arg-type]


def test_replica_counts_by_hand() -> None:
    """C = 8, up to 8 replicas: shares 8, 4, 3, 2, 1 need 1, 2, 3, 4, 8 replicas; 5, 6 and 7 also leave a share of 2."""
    assert replica_counts(8, 8) == [1, 2, 3, 4, 8]
    assert replica_counts(8, 3) == [1, 2, 3]
    assert replica_counts(1, 8) == [1]


@given(st.integers(1, 3000), st.integers(1, 3000))
def test_every_share_that_is_reachable_keeps_its_fewest_replicas(concurrency: int, largest: int) -> None:
    """Companion of the hand table: the definition, by brute force."""
    fewest: dict[int, int] = {}
    for count in range(1, min(concurrency, largest) + 1):
        fewest.setdefault(math.ceil(concurrency / count), count)
    assert replica_counts(concurrency, largest) == sorted(fewest.values())


def test_the_budget_is_a_hard_cap_and_memory_refusals_are_kept() -> None:
    found = plan.answer(question(gpu_budget_count=4), LinearScorer())
    assert all(candidate.gpus_count <= 4 for candidate in found.candidates)
    assert {r.rule for r in found.refusals} == {"memory", "gpu-budget"}


@given(st.integers(1, 32), st.lists(st.integers(1, 300), min_size=1, max_size=4))
def test_over_budget_answers_are_impossible(budget: int, concurrencies: list[int]) -> None:
    found = plan.answer(
        question(nodes_count=4, gpu_budget_count=budget, concurrencies=tuple(concurrencies)), LinearScorer()
    )
    assert all(candidate.gpus_count <= budget for candidate in found.candidates)
    assert all(c.replicas_count <= c.concurrency for c in found.candidates)


def test_uneven_replicas_are_counted_at_their_own_share() -> None:
    """C = 8 over 3 replicas: 3 + 3 + 2 clients. Users see the busiest replica; throughput is the sum."""
    found = plan.answer(question(concurrencies=(8,)), LinearScorer())
    candidate = next(c for c in found.candidates if c.replicas_count == 3 and c.shape.gpus_count == 1)
    step3, step2 = STEP_FLOOR_S + 3 * STEP_PER_CLIENT_S, STEP_FLOOR_S + 2 * STEP_PER_CLIENT_S
    assert candidate.tpot_s == pytest.approx(step3)
    assert candidate.throughput_tokens_per_s == pytest.approx(2 * 3 / step3 + 2 / step2)


def test_each_replica_load_is_priced_once() -> None:
    scorer = LinearScorer()
    found = plan.answer(question(), scorer)
    assert len(scorer.calls) == len(set(scorer.calls)) == found.simulations_count


def test_the_answer_does_not_depend_on_the_order_of_input() -> None:
    one = plan.answer(question(engines=(EngineOption(Engine.SGLANG), EngineOption(Engine.VLLM))), LinearScorer())
    two = plan.answer(
        question(engines=(EngineOption(Engine.VLLM), EngineOption(Engine.SGLANG)), concurrencies=(64, 1, 8, 8)),
        LinearScorer(),
    )
    assert one.candidates == two.candidates
    assert one.front == two.front
    assert one.choices == two.choices


def test_no_front_member_is_dominated() -> None:
    found = plan.answer(question(), LinearScorer())
    front = [found.candidates[i] for i in found.front]
    assert front
    for member in front:
        assert not any(
            other.throughput_per_gpu_tokens_per_s >= member.throughput_per_gpu_tokens_per_s
            and other.tpot_s < member.tpot_s
            and other.ttft_s <= member.ttft_s
            and other.gpus_count <= member.gpus_count
            for other in found.candidates
        )


def test_an_impossible_tier_names_the_limit_and_the_nearest() -> None:
    found = plan.answer(question(tiers=(Tier("impossible", 10_000, None),)), LinearScorer())
    choice = found.choices[0]
    assert not found.is_feasible
    assert choice.binding is not None
    assert choice.binding.limit == "interactivity"
    assert choice.nearest is not None
    assert found.candidates[choice.nearest].concurrency == 1


class NothingFits(LinearScorer):
    def shapes(
        self, option: EngineOption, *, gpus_per_node: int, nodes_count: int
    ) -> tuple[list[Shape], list[Refusal]]:
        return [], [Refusal(option, Layout(), "memory", "TP1: 755.96 GiB of 172.79 GiB")]


def test_when_nothing_fits_memory_is_the_reason_not_the_tier() -> None:
    """Public case B04."""
    found = plan.answer(question(), NothingFits())
    for choice in found.choices:
        assert choice.binding is not None
        assert choice.binding.limit == "memory"
        assert "755.96 GiB" in choice.binding.detail


@pytest.mark.parametrize(
    "changes",
    [
        {"gpu_budget_count": 9},
        {"gpu_budget_count": 0},
        {"concurrencies": ()},
        {"concurrencies": (0,)},
        {"engines": ()},
        {"tiers": (Tier("a", 1, None), Tier("a", 2, None))},
    ],
)
def test_bad_questions_are_refused(changes: dict[str, object]) -> None:
    with pytest.raises(InputError):
        question(**changes)
