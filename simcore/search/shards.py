"""A sweep in parts: each shard prices its share of the work, and the parts together give the answer of the whole.

The merge runs the sweep itself with predictions looked up instead of simulated, so its answer is the unsharded one by
construction; the few predictions that no shard made (a shard may leave out what only others show to be needed) are
made there.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from simcore.cards.layout import Layout
from simcore.des.result import Distribution
from simcore.errors import FormatError, InputError
from simcore.prediction.bounds import Bound
from simcore.prediction.result import Prediction, Source
from simcore.prediction.shapes import EngineOption, Refusal, Shape
from simcore.search.arrivals import RateScorer, answer_rate, price_rate
from simcore.search.plan import (
    Answer,
    Bounding,
    Candidate,
    Chooser,
    Item,
    Progress,
    Question,
    Scorer,
    answer,
    score,
    shard_of,
    work_of,
)
from simcore.search.tiers import default_rule

SCHEMA = "inferasim.dev/plan-shard/v2"
Load = int | float
"""Clients of one replica, or requests per second to it."""
Key = tuple[str, str, int, Layout, Load]
"""A shape's key, and the load of one replica."""
ShapeKey = tuple[str, str, int, Layout]
_LATENCIES = ("ttft", "ttft_from_admission", "tpot", "itl", "e2e")


@dataclass(frozen=True)
class Part:
    """What one shard found."""

    priced: Mapping[Key, Prediction]
    scored_count: int
    """Candidates of this shard, those left out because of their bounds included; of arrivals its layouts."""
    total_count: int
    """Candidates, or layouts, of all shards."""
    capacities: Mapping[ShapeKey, float] = field(default_factory=dict)
    """Requests per second that one replica serves at most; of arrivals only."""


def items_of(items: Sequence[Item], index: int, count: int) -> list[Item]:
    """The items of shard `index` of `count`, in their order. Raises InputError.

    Candidates that share a simulation stay together; simulations are dealt out from the longest to the shortest, in
    turns, so that every shard meets every layout and the shards take about equally long.
    """
    _check(index, count)
    groups = sorted({_group(item) for item in items}, key=lambda group: (-group[-1], group))
    owner = {group: shard_of(number, count) for number, group in enumerate(groups)}
    return [item for item in items if owner[_group(item)] == index]


@dataclass(frozen=True)
class Found:
    """What a shard found, for its table and for the merge."""

    part: Part
    candidates: tuple[Candidate, ...]


def price_part(question: Question, scorer: Scorer, index: int, count: int, progress: Progress | None = None) -> Found:
    """Score shard `index` of `count`. Raises InputError."""
    memo = _memo(scorer, {})
    work = work_of(question, memo)
    mine = items_of(work.items, index, count)
    bounds = memo if isinstance(memo, Bounding) else None
    candidates, _ = score(mine, memo, progress, bounds=bounds, rule=question.rule or default_rule())
    return Found(Part(memo.priced, len(mine), len(work.items)), tuple(candidates))


def price_rate_part(
    question: Question,
    scorer: RateScorer,
    index: int,
    count: int,
    *,
    mean_output_tokens: float,
    progress: Progress | None = None,
) -> Found:
    """The same for arrivals at a rate: shards take layouts in turns. Raises InputError."""
    _check(index, count)
    memo = RateMemo(scorer)
    candidates, scored_count, total_count = price_rate(
        question, memo, index, count, mean_output_tokens=mean_output_tokens, progress=progress
    )
    return Found(Part(memo.priced, scored_count, total_count, memo.capacities), tuple(candidates))


def merge(
    question: Question,
    scorer: Scorer,
    parts: Sequence[Part],
    progress: Progress | None = None,
    *,
    chooser: Chooser | None = None,
) -> Answer:
    """The answer to `question` from all its parts, in any order."""
    priced: dict[Key, Prediction] = {}
    for part in parts:
        priced |= part.priced
    return answer(question, _memo(scorer, priced), progress, chooser=chooser)


def merge_rate(
    question: Question,
    scorer: RateScorer,
    parts: Sequence[Part],
    progress: Progress | None = None,
    *,
    mean_output_tokens: float,
    chooser: Chooser | None = None,
) -> Answer:
    """The same for arrivals at a rate."""
    memo = RateMemo(scorer)
    for part in parts:
        memo.priced |= part.priced
        memo.capacities |= part.capacities
    return answer_rate(question, memo, mean_output_tokens=mean_output_tokens, progress=progress, chooser=chooser)


def _check(index: int, count: int) -> None:
    if not 0 <= index < count:
        raise InputError("shard", index, f"be from 0 to {count - 1}")


def _group(item: Item) -> Key:
    shape, concurrency, replicas_count = item
    return key_of(shape, math.ceil(concurrency / replicas_count))


def key_of(shape: Shape, load: Load) -> Key:
    """What a prediction is kept under."""
    return (*shape.key, load)


class _Memo:
    """A scorer that keeps, and looks up first, what was priced."""

    def __init__(self, scorer: Scorer, priced: dict[Key, Prediction]) -> None:
        self._scorer, self.priced = scorer, priced

    def shapes(
        self, option: EngineOption, *, gpus_per_node: int, nodes_count: int
    ) -> tuple[list[Shape], list[Refusal]]:
        return self._scorer.shapes(option, gpus_per_node=gpus_per_node, nodes_count=nodes_count)

    def predict(self, shape: Shape, concurrency: int) -> Prediction:
        key = key_of(shape, concurrency)
        if key not in self.priced:
            self.priced[key] = self._scorer.predict(shape, concurrency)
        return self.priced[key]


class _BoundedMemo(_Memo):
    """The same for a scorer that knows bounds."""

    def __init__(self, scorer: Scorer, bounding: Bounding, priced: dict[Key, Prediction]) -> None:
        super().__init__(scorer, priced)
        self._bounding = bounding

    def bound(self, shape: Shape, concurrency: int) -> Bound:
        return self._bounding.bound(shape, concurrency)


class RateMemo:
    """The same for arrivals."""

    def __init__(self, scorer: RateScorer) -> None:
        self._scorer = scorer
        self.priced: dict[Key, Prediction] = {}
        self.capacities: dict[ShapeKey, float] = {}

    def shapes(
        self, option: EngineOption, *, gpus_per_node: int, nodes_count: int
    ) -> tuple[list[Shape], list[Refusal]]:
        """As the scorer's."""
        return self._scorer.shapes(option, gpus_per_node=gpus_per_node, nodes_count=nodes_count)

    def capacity_requests_per_s(self, shape: Shape) -> float:
        """Known, or the scorer's."""
        if shape.key not in self.capacities:
            self.capacities[shape.key] = self._scorer.capacity_requests_per_s(shape)
        return self.capacities[shape.key]

    def predict_rate(self, shape: Shape, request_rate_per_s: float) -> Prediction | None:
        """Known, or the scorer's."""
        if request_rate_per_s >= self.capacity_requests_per_s(shape):
            return None
        key = key_of(shape, request_rate_per_s)
        if key not in self.priced:
            found = self._scorer.predict_rate(shape, request_rate_per_s)
            if found is None:
                return None
            self.priced[key] = found
        return self.priced[key]


def _memo(scorer: Scorer, priced: dict[Key, Prediction]) -> _Memo:
    return _BoundedMemo(scorer, scorer, priced) if isinstance(scorer, Bounding) else _Memo(scorer, priced)


# --- the written form -------------------------------------------------------------------------------------------------


def part_document(part: Part) -> dict[str, Any]:
    """JSON of a part that `part_from` reads back exactly; what predictions share is written once."""
    table: list[Any] = []
    places: dict[str, int] = {}

    def place(value: Any) -> int:
        text = json.dumps(value, sort_keys=True)
        if text not in places:
            places[text] = len(table)
            table.append(value)
        return places[text]

    rows = []
    for key, prediction in sorted(part.priced.items(), key=lambda item: item[0]):
        *of, layout, load = key
        fields = {name: value for name, value in vars(prediction).items() if name not in (*_LATENCIES, "source", "key")}
        fields |= {name: _latency(getattr(prediction, name)) for name in _LATENCIES}
        fields["memory"] = place(dict(prediction.memory))
        rows.append(
            {
                "of": place([*of, asdict(layout)]),
                "load": load,
                "source": place(asdict(prediction.source)),
                "keyed": prediction.key[-1] if prediction.key else None,
                **fields,
            }
        )
    return {
        "schema": SCHEMA,
        "scored": part.scored_count,
        "total": part.total_count,
        "table": table,
        "predictions": rows,
        "capacities": [[*key[:3], asdict(key[3]), rate] for key, rate in sorted(part.capacities.items())],
    }


def part_from(document: Any, where: str) -> Part:
    """The part that `part_document` wrote. Raises FormatError."""
    try:
        if document["schema"] != SCHEMA:
            raise FormatError(where, None, "schema", document["schema"], f"be {SCHEMA}")
        table = document["table"]
        priced = dict(_read(row, table) for row in document["predictions"])
        capacities = {
            (str(engine), str(version), int(host), Layout(**widths)): float(rate)
            for engine, version, host, widths, rate in document["capacities"]
        }
        return Part(priced, int(document["scored"]), int(document["total"]), capacities)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise FormatError(where, None, "shard", type(error).__name__, "be a shard's result") from error


def _read(row: Mapping[str, Any], table: Sequence[Any]) -> tuple[Key, Prediction]:
    fields = dict(row)
    engine, version, host, widths = table[fields.pop("of")]
    load = fields.pop("load")
    key: Key = (str(engine), str(version), int(host), Layout(**widths), load if type(load) is int else float(load))
    source = dict(table[fields.pop("source")])
    source["refusals"] = {name: tuple(why) for name, why in source["refusals"].items()}
    source["constants"], source["assumed"] = tuple(source["constants"]), tuple(source["assumed"])
    for name in _LATENCIES:
        fields[name] = None if fields[name] is None else Distribution(*fields[name])
    fields["flags"] = tuple(fields["flags"])
    fields["memory"] = dict(table[fields["memory"]])
    fields["interval80"] = {name: (low, high) for name, (low, high) in fields["interval80"].items()}
    keyed = fields.pop("keyed")
    fields["key"] = () if keyed is None else (key[0], key[1], key[3], int(keyed))
    return key, Prediction(source=Source(**source), **fields)


def _latency(latency: Distribution | None) -> list[float | int | None] | None:
    return None if latency is None else list(vars(latency).values())
