"""Bounds are never beaten by the simulator, and leaving candidates out by them never changes an answer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from simcore.cards.layout import Engine, Layout
from simcore.des.closed_loop import closed_loop
from simcore.des.config import SchedulerConfig
from simcore.des.result import Distribution
from simcore.prediction.bounds import UNBOUNDED, Bound, replica_bound
from simcore.prediction.result import Prediction, Source
from simcore.prediction.shapes import EngineOption, Refusal, Shape
from simcore.search import plan
from simcore.search.tiers import Tier, TierChoice
from simcore.stepcost.table import StepTable

CAP = 12


@st.composite
def tables(draw: st.DrawFn) -> StepTable:
    steps = [0, *(draw(st.lists(st.integers(1, 10**9), min_size=CAP, max_size=CAP)))]
    slopes = [0, *(draw(st.lists(st.integers(0, 10**5), min_size=CAP, max_size=CAP)))]
    fixed = draw(st.integers(0, 10**9))
    stages = draw(st.sampled_from([1, 1, 2, 3]))
    return StepTable(
        decode_base_ps=np.array(steps),
        decode_context_ps_per_token=np.array(slopes),
        decode_window_ps_per_token=np.array(slopes[::-1]) * draw(st.sampled_from([0, 1])),
        window_tokens=draw(st.sampled_from([0, 4, 100])),
        prefill_fixed_ps=fixed,
        prefill_ps_per_token=draw(st.integers(0, 10**7)),
        prefill_ps_per_token2=draw(st.integers(0, 10**4)),
        mixed_shared_ps=draw(st.integers(0, min(fixed, steps[1]))),
        host_request_ps=draw(st.integers(0, 10**8)),
        pipeline_stages=stages,
        hop_ps=draw(st.integers(0, 10**7)) if stages > 1 else 0,
        pipeline_host_ps=np.full(CAP + 1, draw(st.integers(0, 10**6))) if stages > 1 else None,
        tokens_per_step_permille=draw(st.sampled_from([1000, 1000, 1700, 2660])),
    )


@settings(max_examples=60)
@given(
    tables(),
    st.sampled_from(list(Engine)),
    st.integers(1, 20),
    st.integers(1, CAP),
    st.integers(1, 3),
    st.integers(1, 40),
    st.integers(1, 30),
)
def test_no_run_beats_its_bound(
    table: StepTable, engine: Engine, clients: int, cap: int, ranks: int, prompt: int, output: int
) -> None:
    scheduler = SchedulerConfig(engine, cap, max_batched_tokens=64, chunk_tokens=16, kv_pool_tokens=256, block_tokens=4)
    run = closed_loop(
        table,
        scheduler,
        concurrency=clients,
        requests=3 * clients,
        prompt_tokens=prompt,
        output_tokens=output,
        attention_dp=ranks,
    )
    bound = replica_bound(
        table, concurrency=clients, running_cap=cap, attention_dp=ranks, prompt_tokens=prompt, output_tokens=output
    )
    assert run.output_tokens_per_s <= bound.throughput_tokens_per_s
    assert run.mean_ttft_s >= bound.ttft_s
    if output > 1:
        assert run.mean_tpot_s >= bound.tpot_s


def test_a_price_that_may_fall_has_no_bound() -> None:
    falling = StepTable(np.array([0, 5]), np.array([0, -1]), np.array([0, 0]), 0, 1, 1, 0, 0)
    found = replica_bound(falling, concurrency=1, running_cap=1, attention_dp=1, prompt_tokens=5, output_tokens=5)
    assert found == UNBOUNDED


@dataclass
class TableScorer:
    """Prices by lookup; bounds are the price made better by a factor, or nothing."""

    prices: dict[tuple[int, int], tuple[float, float, float]]
    slack: float
    widths: tuple[int, ...] = (1, 2, 4)

    def shapes(
        self, option: EngineOption, *, gpus_per_node: int, nodes_count: int
    ) -> tuple[list[Shape], list[Refusal]]:
        return [Shape(option, Layout(tensor_parallel=width), width) for width in self.widths], []

    def _price(self, shape: Shape, concurrency: int) -> tuple[float, float, float]:
        key = (shape.gpus_count, concurrency)
        # Few distinct values, so that ties are common.
        return self.prices.get(key, self.prices.get((1, 1), (1.0, 1.0, 1.0)))

    def predict(self, shape: Shape, concurrency: int) -> Prediction:
        throughput, tpot_s, ttft_s = self._price(shape, concurrency)
        flat = {name: Distribution(1, value, value, None, None, None) for name, value in (("a", ttft_s), ("b", tpot_s))}
        return Prediction(
            label="",
            gpus_count=shape.gpus_count,
            concurrency=concurrency,
            source=Source("simulate", None, None, {}, {}),
            flags=(),
            ttft=flat["a"],
            ttft_from_admission=flat["a"],
            tpot=flat["b"],
            itl=None,
            e2e=flat["a"],
            throughput_tokens_per_s=throughput,
            requests_per_s=1.0,
            requests_count=1,
            interval80={},
            hit_rates={},
            queueing={},
            preemptions_count=0,
            kv_occupancy_frac=None,
            memory={},
            step_breakdown={},
        )


class BoundedScorer(TableScorer):
    """The same with bounds."""

    def bound(self, shape: Shape, concurrency: int) -> Bound:
        throughput, tpot_s, ttft_s = self._price(shape, concurrency)
        return Bound(throughput * self.slack, tpot_s / self.slack, ttft_s / self.slack)


LEVELS = st.sampled_from([0.5, 1.0, 1.5, 2.0, 4.0, 8.0])
PRICES = st.dictionaries(
    st.tuples(st.sampled_from([1, 2, 4]), st.integers(1, 6)), st.tuples(LEVELS, LEVELS, LEVELS), min_size=4, max_size=18
)


def told(answer: plan.Answer) -> tuple[object, ...]:
    """Everything that an answer says, without indexes."""

    def key(index: int | None) -> object:
        return None if index is None else answer.candidates[index].key

    def choice(one: TierChoice) -> tuple[object, ...]:
        return (
            one.tier.name,
            key(one.chosen),
            one.headroom_frac,
            tuple(map(key, one.short_list)),
            key(one.nearest),
            one.binding,
        )

    return (tuple(map(key, answer.front)), tuple(map(choice, answer.choices)))


@settings(max_examples=150)
@given(PRICES, st.sampled_from([1.0, 1.0, 1.2]), st.sampled_from([0.3, 0.9, 2.0]), st.sampled_from([1.0, 3.0, 9.0]))
def test_pruning_never_changes_front_choice_or_short_list(
    prices: dict[tuple[int, int], tuple[float, float, float]], slack: float, rate: float, ttft_s: float
) -> None:
    question = plan.Question(
        engines=(EngineOption(Engine.VLLM), EngineOption(Engine.SGLANG)),
        gpus_per_node=8,
        nodes_count=1,
        gpu_budget_count=8,
        concurrencies=(1, 2, 3, 4, 5, 6),
        tiers=(Tier("both", rate, ttft_s), Tier("speed", rate, None), Tier("none", 0.0, None)),
    )
    brute = plan.answer(question, TableScorer(prices, slack))
    pruned = plan.answer(question, BoundedScorer(prices, slack))
    assert told(pruned) == told(brute)
    assert len(pruned.candidates) + pruned.pruned_count == len(brute.candidates)


def test_exact_bounds_do_prune() -> None:
    """Companion: the property above is not about an empty set. One width is worse than the others in everything."""
    prices = {(width, load): (8.0 * width, 1.0, 1.0) for width in (1, 2) for load in range(1, 7)}
    prices |= {(4, load): (0.5, 8.0, 8.0) for load in range(1, 7)}
    question = plan.Question(
        engines=(EngineOption(Engine.VLLM),),
        gpus_per_node=8,
        nodes_count=1,
        gpu_budget_count=8,
        concurrencies=(1, 2, 3, 4, 5, 6),
    )
    assert plan.answer(question, BoundedScorer(prices, 1.0)).pruned_count > 0
