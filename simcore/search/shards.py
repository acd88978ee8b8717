"""A sweep in parts: each shard prices its share of the work, and the parts together give the answer of the whole.

The merge runs the sweep itself with predictions looked up instead of simulated, so its answer is the unsharded one by
construction; the few predictions that no shard made (a shard may leave out what only others show to be needed) are
made there.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from simcore.cards.layout import Layout
from simcore.des.result import Distribution
from simcore.errors import FormatError, InputError
from simcore.prediction.bounds import Bound
from simcore.prediction.result import Prediction, Source
from simcore.prediction.shapes import EngineOption, Refusal, Shape
from simcore.search.plan import Answer, Bounding, Chooser, Item, Progress, Question, Scorer, answer, score, work_of
from simcore.search.tiers import default_rule

SCHEMA = "inferasim.dev/plan-shard/v1"
Key = tuple[str, str, Layout, int]
"""Engine, version, layout, clients of one replica."""
_LATENCIES = ("ttft", "ttft_from_admission", "tpot", "itl", "e2e")


@dataclass(frozen=True)
class Part:
    """What one shard found."""

    priced: Mapping[Key, Prediction]
    scored_count: int
    """Candidates of this shard, those left out because of their bounds included."""
    total_count: int
    """Candidates of all shards."""


def items_of(items: Sequence[Item], index: int, count: int) -> list[Item]:
    """The items of shard `index` of `count`, in their order. Raises InputError.

    Candidates that share a simulation stay together; simulations are dealt out from the longest to the shortest, in
    turns, so that every shard meets every layout and the shards take about equally long.
    """
    if not 0 <= index < count:
        raise InputError("shard", index, f"be from 0 to {count - 1}")
    groups = sorted({_group(item) for item in items}, key=lambda group: (-group[-1], group))
    owner = {group: number % count for number, group in enumerate(groups)}
    return [item for item in items if owner[_group(item)] == index]


def price_part(question: Question, scorer: Scorer, index: int, count: int, progress: Progress | None = None) -> Part:
    """Score shard `index` of `count`. Raises InputError."""
    memo = _memo(scorer, {})
    work = work_of(question, memo)
    mine = items_of(work.items, index, count)
    bounds = memo if isinstance(memo, Bounding) else None
    score(mine, memo, progress, bounds=bounds, rule=question.rule or default_rule())
    return Part(memo.priced, len(mine), len(work.items))


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


def _group(item: Item) -> tuple[str, str, Layout, int]:
    shape, concurrency, replicas_count = item
    return key_of(shape, math.ceil(concurrency / replicas_count))


def key_of(shape: Shape, share: int) -> Key:
    """What a prediction is kept under."""
    return shape.option.engine.value, shape.option.version or "", shape.layout, share


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
        engine, version, layout, share = key
        fields = {name: value for name, value in vars(prediction).items() if name not in (*_LATENCIES, "source", "key")}
        fields |= {name: _latency(getattr(prediction, name)) for name in _LATENCIES}
        fields["memory"] = place(dict(prediction.memory))
        rows.append(
            {
                "of": place([engine, version, asdict(layout)]),
                "share": share,
                "source": place(asdict(prediction.source)),
                "isKeyed": bool(prediction.key),
                **fields,
            }
        )
    return {
        "schema": SCHEMA,
        "scored": part.scored_count,
        "total": part.total_count,
        "table": table,
        "predictions": rows,
    }


def part_from(document: Any, where: str) -> Part:
    """The part that `part_document` wrote. Raises FormatError."""
    try:
        if document["schema"] != SCHEMA:
            raise FormatError(where, None, "schema", document["schema"], f"be {SCHEMA}")
        table = document["table"]
        priced = dict(_read(row, table) for row in document["predictions"])
        return Part(priced, int(document["scored"]), int(document["total"]))
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise FormatError(where, None, "shard", type(error).__name__, "be a shard's result") from error


def _read(row: Mapping[str, Any], table: Sequence[Any]) -> tuple[Key, Prediction]:
    fields = dict(row)
    engine, version, widths = table[fields.pop("of")]
    key: Key = (str(engine), str(version), Layout(**widths), int(fields.pop("share")))
    source = dict(table[fields.pop("source")])
    source["refusals"] = {name: tuple(why) for name, why in source["refusals"].items()}
    source["constants"], source["assumed"] = tuple(source["constants"]), tuple(source["assumed"])
    for name in _LATENCIES:
        fields[name] = None if fields[name] is None else Distribution(*fields[name])
    fields["flags"] = tuple(fields["flags"])
    fields["memory"] = dict(table[fields["memory"]])
    fields["interval80"] = {name: (low, high) for name, (low, high) in fields["interval80"].items()}
    fields["key"] = key if fields.pop("isKeyed") else ()
    return key, Prediction(source=Source(**source), **fields)


def _latency(latency: Distribution | None) -> list[float | int | None] | None:
    return None if latency is None else list(vars(latency).values())
