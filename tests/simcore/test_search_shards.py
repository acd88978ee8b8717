"""A sweep in shards: whatever their number, the merged answer is the unsharded one."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferasim_operator import packing, planning
from simcore.cards.layout import Engine, Layout
from simcore.des.result import Distribution
from simcore.errors import FormatError, InputError
from simcore.prediction.bounds import Bound
from simcore.prediction.result import Prediction, Source
from simcore.prediction.shapes import EngineOption, Refusal, Shape
from simcore.search import plan, shards
from simcore.search.plan import Question, shard_of
from tests import builders


def _flat(value_s: float) -> Distribution:
    return Distribution(10, value_s, value_s, None, None, None)


class LinearScorer:
    """TPOT = 4 ms + 0.2 ms · clients / width; each call is kept, to count simulations."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, int]] = []

    def shapes(
        self, option: EngineOption, *, gpus_per_node: int, nodes_count: int
    ) -> tuple[list[Shape], list[Refusal]]:
        found = [Shape(option, Layout(tensor_parallel=width), width) for width in (1, 2, 4, 8)]
        return found, [Refusal(option, Layout(tensor_parallel=16), "legality", "TP16: 4 heads")]

    def predict(self, shape: Shape, concurrency: int) -> Prediction:
        width = shape.layout.tensor_parallel
        self.calls.append((width, concurrency))
        tpot_s = 0.004 + 0.0002 * concurrency / width
        return Prediction(
            label=shape.layout.label(),
            gpus_count=width,
            concurrency=concurrency,
            source=Source("anchored", "a", "sha256:0", {"law": "why"}, {"b": ("other model",)}, ("alpha",), ("beta",)),
            flags=("queueing",) if concurrency > 100 else (),
            ttft=_flat(0.05 * concurrency / width),
            ttft_from_admission=_flat(0.05 / width),
            tpot=_flat(tpot_s),
            itl=None,
            e2e=_flat(1.0),
            throughput_tokens_per_s=concurrency / tpot_s,
            requests_per_s=1.0,
            requests_count=10,
            interval80={"ttft": (0.0, 1.0), "tpot": (0.0, 1.0), "throughput": (0.0, 1.0)},
            hit_rates={"replicas": [0.0, None]},
            queueing={"meanQueueSeconds": 0.0},
            preemptions_count=0,
            kv_occupancy_frac=0.5,
            memory={"weightBytesPerGpu": 10**11},
            step_breakdown={"decode": {"batch": 1}},
            key=(shape.option.engine.value, shape.option.version or "", shape.layout, concurrency),
        )


class BoundedScorer(LinearScorer):
    """Knows its own figures as bounds, so that a sweep leaves out what it can."""

    def bound(self, shape: Shape, concurrency: int) -> Bound:
        found = LinearScorer().predict(shape, concurrency)
        return Bound(found.throughput_tokens_per_s * (1 + 1e-9), found.tpot_s, found.ttft_s)


def _question(concurrencies: tuple[int, ...], budget: int) -> Question:
    options = (EngineOption(Engine.SGLANG), EngineOption(Engine.VLLM, "0.33"))
    return Question(options, 8, 2, budget, concurrencies)


@given(
    st.sampled_from([LinearScorer, BoundedScorer]),
    st.lists(st.integers(1, 400), min_size=1, max_size=4, unique=True),
    st.integers(1, 16),
    st.integers(1, 9),
    st.randoms(use_true_random=False),
)
@settings(max_examples=60, deadline=None)
def test_the_answer_does_not_depend_on_the_number_of_shards(
    scorer: type[LinearScorer], concurrencies: list[int], budget: int, count: int, random: object
) -> None:
    """Written, read back, shuffled and merged: all of it equal, candidates, front, choices, refusals and counts."""
    question = _question(tuple(concurrencies), budget)
    whole = plan.answer(question, scorer())
    parts = [shards.price_part(question, scorer(), index, count).part for index in range(count)]
    assert sum(part.scored_count for part in parts) == parts[0].total_count
    read = [shards.part_from(json.loads(json.dumps(shards.part_document(part))), "x") for part in parts]
    assert read == parts
    random.shuffle(read)  # type: ignore[attr-defined]
    assert shards.merge(question, scorer(), read) == whole


@given(st.lists(st.integers(1, 400), min_size=1, max_size=4, unique=True), st.integers(1, 9))
@settings(max_examples=30, deadline=None)
def test_each_candidate_is_in_one_shard_and_the_merge_prices_nothing(concurrencies: list[int], count: int) -> None:
    """A partition of the work; without bounds every prediction of the merge is a shard's."""
    question = _question(tuple(concurrencies), 16)
    items = plan.work_of(question, LinearScorer()).items
    dealt = [shards.items_of(items, index, count) for index in range(count)]
    assert sorted(map(repr, items)) == sorted(repr(item) for part in dealt for item in part)
    assert all(part == [item for item in items if item in part] for part in dealt), "each in the order of the whole"
    parts = [shards.price_part(question, LinearScorer(), index, count).part for index in range(count)]
    merging = LinearScorer()
    shards.merge(question, merging, parts)
    assert merging.calls == []


def test_shards_are_about_equally_long() -> None:
    """One engine, 4 widths, 256 clients on 16 GPUs, two shards: requests to simulate differ by at most 2 %."""
    question = _question((256, 64, 8), 16)
    work = plan.work_of(question, LinearScorer()).items

    def requests(index: int) -> int:
        loads = {(shape, math.ceil(clients / count)) for shape, clients, count in shards.items_of(work, index, 2)}
        return sum(10 * share for _, share in loads)

    assert abs(requests(0) - requests(1)) <= 0.02 * (requests(0) + requests(1))


def test_turns_go_there_and_back() -> None:
    """By hand: of six pieces that get shorter, 6 + 3 + 2 = 11 and 5 + 4 + 1 = 10 for two; in plain turns 12 and 9."""
    assert [shard_of(number, 2) for number in range(6)] == [0, 1, 1, 0, 0, 1]
    assert [shard_of(number, 3) for number in range(7)] == [0, 1, 2, 2, 1, 0, 0]


def test_a_plan_in_shards_is_the_same_document() -> None:
    """The real predictor, packed as the pods write it."""
    spec = builders.serving_plan(load={"concurrencies": [1, 24]})["spec"]
    request = {"spec": spec, "anchors": {"a": json.loads(builders.anchor().to_json())}}
    whole = planning.compute_plan(request)
    packed = [packing.pack(json.dumps(planning.compute_part(request, index, 3)[0])) for index in range(3)]
    assert planning.compute_plan({**request, "shards": packed}) == whole


@pytest.mark.parametrize("text", ["", "null", "[]", '{"schema": 1}', '{"schema": "inferasim.dev/plan-shard/v1"}', "{"])
def test_a_broken_shard_is_refused(text: str) -> None:
    """What a shard wrote is input like any other; the error says which one."""
    request = {"spec": builders.serving_plan()["spec"], "anchors": {}, "shards": [packing.pack(text)]}
    with pytest.raises(FormatError, match="shard 0"):
        planning.compute_plan(request)
    with pytest.raises(FormatError, match="shard 0"):
        planning.compute_plan({**request, "shards": ["not base64"]})


def test_a_shard_out_of_range_is_refused() -> None:
    with pytest.raises(InputError, match="from 0 to 1"):
        shards.items_of([], 2, 2)
