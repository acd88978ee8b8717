"""What holds for every step cost: exact breakdown, one price in three forms, monotone, identity, Eq. 1 literally."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from simcore.anchors.schema import Anchor, anchor_from
from simcore.cards.layout import Engine, Layout
from simcore.cards.library import load_accelerator_card, load_model_card
from simcore.errors import InputError
from simcore.stepcost.analytical import analytical
from simcore.stepcost.anchored import anchored
from simcore.stepcost.step import Step, StepCost
from simcore.stepcost.width import WidthLaw

MODELS = ("Llama-3.1-8B", "DeepSeek-V3", "gpt-oss-120b", "Qwen3.6-35B-A3B")
LAYOUTS = (
    Layout(),
    Layout(tensor_parallel=4),
    Layout(tensor_parallel=8, expert_parallel=8, attention_data_parallel=8),
    Layout(tensor_parallel=2, pipeline_parallel=2),
)


@dataclass(frozen=True)
class Sweep:
    """A decode sweep: ascending batches and non-decreasing steps [ms] at two contexts."""

    batches: tuple[int, ...]
    short: tuple[float, ...]
    grown: tuple[float, ...]

    def anchor(self, model: str = "Llama-3.1-8B", tensor_parallel: int = 2, *, two: bool = True) -> Anchor:
        long = [a + b for a, b in zip(self.short, self.grown, strict=True)]
        sweeps = [(1024, self.short), (8192, long)][: 2 if two else 1]
        return anchor_from(
            {
                "schema": "inferasim.dev/anchor/v1",
                "signature": {
                    "accelerator": "MI355X",
                    "engine": "SGLang",
                    "model": model,
                    "weightsDtype": "bf16",
                    "tensorParallel": tensor_parallel,
                    "graphCapture": {"mode": "full", "sizes": list(self.batches)},
                },
                "decode": [
                    {
                        "promptTokens": length,
                        "contextTokens": length + 100,
                        "points": [
                            {"batch": b, "stepMilliseconds": ms} for b, ms in zip(self.batches, steps, strict=True)
                        ],
                    }
                    for length, steps in sweeps
                ],
                "prefill": {
                    "points": [{"promptTokens": 1024, "milliseconds": 40.0}],
                    "fit": {
                        "fixedMilliseconds": 12.0,
                        "perTokenMicroseconds": 27.0,
                        "perTokenSquaredNanoseconds": 0.3,
                        "residualPercent": 1.0,
                    },
                },
                "provenance": {"source": "harvested", "realWeights": True, "prefixCachingOff": True},
            }
        )


@st.composite
def sweeps(draw: st.DrawFn) -> Sweep:
    batches = sorted(draw(st.sets(st.integers(2, 256), min_size=1, max_size=6)) | {1})
    floor = draw(st.floats(2.0, 40.0))
    steps, grown = [floor], [draw(st.floats(0.0, 1.0))]
    for _ in batches[1:]:
        steps.append(steps[-1] + draw(st.floats(0.0, 10.0)))
        grown.append(grown[-1] + draw(st.floats(0.0, 10.0)))
    return Sweep(tuple(batches), tuple(steps), tuple(grown))


@cache
def modelled(model: str, layout: Layout) -> StepCost:
    return analytical(load_model_card(model), load_accelerator_card("MI355X"), layout=layout, engine=Engine.SGLANG)


@cache
def moved(model: str, layout: Layout) -> StepCost:
    sweep = Sweep((1, 8, 64), (9.0, 10.0, 20.0), (0.1, 1.0, 9.0))
    return anchored(
        sweep.anchor(model),
        layout=layout,
        model=load_model_card(model),
        accelerator=load_accelerator_card("MI355X"),
    )


COSTS = st.builds(
    lambda kind, model, layout: kind(model, layout),
    st.sampled_from((modelled, moved)),
    st.sampled_from(MODELS),
    st.sampled_from(LAYOUTS),
)


@st.composite
def steps(draw: st.DrawFn, window: int = 0) -> Step:
    contexts = draw(st.lists(st.integers(1, 100_000), max_size=64))
    chunks = draw(st.lists(st.tuples(st.integers(0, 50_000), st.integers(1, 8192)), max_size=4))
    return Step.of(contexts=contexts, chunks=chunks, window_tokens=window)


@given(COSTS, steps(window=128))
def test_the_breakdown_sums_to_the_total_exactly(cost: StepCost, step: Step) -> None:
    total, parts = cost.price(step)
    assert total == sum(parts.values())
    assert total >= 0
    if step == Step():
        assert total == 0


@given(COSTS, steps(window=128))
def test_price_price_many_and_table_agree(cost: StepCost, step: Step) -> None:
    total, _ = cost.price(step)
    fields = (step.batch, step.context_tokens, step.window_context_tokens, step.prefill_tokens, step.prefill_square)
    many = cost.price_many(*(np.array([field]) for field in fields))
    assert many[0] == pytest.approx(total, rel=1e-12, abs=1e-15)
    table_s = cost.table(64).price_ps(*fields) / 1e12
    # Half a picosecond for each coefficient and what it multiplies.
    rounding = 0.5e-12 * (4 + step.context_tokens + step.window_context_tokens + step.prefill_tokens)
    assert abs(table_s - total) <= rounding + 0.5e-12 * step.prefill_square + 1e-9 * total


@given(COSTS, steps(window=128), st.integers(1, 50_000))
def test_more_work_never_costs_less(cost: StepCost, step: Step, more: int) -> None:
    before = cost.price(step)[0]
    longer = Step(
        step.batch, step.context_tokens + more, step.window_context_tokens, step.prefill_tokens, step.prefill_square
    )
    assert cost.price(longer)[0] >= before - 1e-15
    prefilled = Step(
        step.batch,
        step.context_tokens,
        step.window_context_tokens,
        step.prefill_tokens + more,
        step.prefill_square + more * more,
    )
    assert cost.price(prefilled)[0] >= before - 1e-15


@given(sweeps(), st.booleans(), st.booleans())
def test_an_anchor_reproduces_itself_at_its_own_layout(sweep: Sweep, two: bool, with_card: bool) -> None:
    model = load_model_card("Llama-3.1-8B") if with_card else None
    accelerator = load_accelerator_card("MI355X") if with_card else None
    for law in (WidthLaw.AUTO, WidthLaw.SPLIT_FLOOR) if with_card else (WidthLaw.AUTO,):
        cost = anchored(
            sweep.anchor(two=two), layout=Layout(tensor_parallel=2), model=model, accelerator=accelerator, law=law
        )
        for batch, step_ms in zip(sweep.batches, sweep.short, strict=True):
            seconds, _ = cost.price(Step(batch=batch, context_tokens=batch * 1124))
            assert seconds * 1e3 == pytest.approx(step_ms, rel=1e-9)


@given(sweeps(), st.sampled_from((1, 2, 4, 8)))
def test_the_paper_law_is_eq_1_at_the_anchors_context(sweep: Sweep, target: int) -> None:
    cost = anchored(sweep.anchor(), layout=Layout(tensor_parallel=target))
    floor = min(sweep.short)
    for batch, step_ms in zip(sweep.batches, sweep.short, strict=True):
        literal = floor + (step_ms - floor) * 2 / target
        seconds, _ = cost.price(Step(batch=batch, context_tokens=batch * 1124))
        assert seconds * 1e3 == pytest.approx(literal, rel=1e-9)


@given(sweeps())
def test_a_wider_layout_is_never_slower_without_collectives(sweep: Sweep) -> None:
    costs = [anchored(sweep.anchor(), layout=Layout(tensor_parallel=width)) for width in (2, 4, 8)]
    for batch in sweep.batches:  # between graphs a short context may fall below the floor that Eq. 1 keeps
        times = [cost.price(Step(batch=batch, context_tokens=batch * 1124))[0] for cost in costs]
        assert times == pytest.approx(sorted(times, reverse=True), rel=1e-12)


@given(sweeps(), st.integers(1, 300))
def test_a_padded_batch_costs_what_its_graph_costs(sweep: Sweep, batch: int) -> None:
    assume(batch <= sweep.batches[-1])
    cost = anchored(sweep.anchor(two=False), layout=Layout(tensor_parallel=2))
    graph = next(size for size in sweep.batches if size >= batch)
    assert cost.price(Step(batch=batch))[0] == pytest.approx(cost.price(Step(batch=graph))[0])


def test_bad_steps_and_tables_are_refused() -> None:
    cost = modelled("Llama-3.1-8B", Layout())
    for step in (Step(batch=-1), Step(batch=1, context_tokens=-1), Step(batch=100_000)):
        with pytest.raises(InputError):
            cost.price(step)
    for size in (0, 100_000):
        with pytest.raises(InputError):
            cost.table(size)
    with pytest.raises(InputError):
        cost.price_many(np.array([-1]), 0)
