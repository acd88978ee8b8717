"""Ranking of layout ladders (paper 5.7), anchored and without any anchor.

The layouts of one series at one load are what an operator chooses between. The measured one is among them: it stands at
its measure, the others at their predictions. Without an anchor all of them are simulated from cards, the measured one
too, as `anchors.mode: Simulate` would rank them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from simcore.cards.layout import Engine
from simcore.cards.library import load_accelerator_card, load_model_card
from simcore.errors import InfeasibleError, InputError
from simcore.prediction.predictor import Mode, Predictor, Setting
from simcore.prediction.shapes import EngineOption, Shape
from simcore.validate.corpus import CorpusRow, Role
from simcore.validate.evaluate import EvaluatedRow, gpus_count
from simcore.validate.metrics import QUANTITIES, Scored, ranking

MEASURED: Final = ("measured",)
"""Rows of the anchor are no pair among themselves."""
MOST_CLIENTS: Final = 4096
"""Rows of more clients are not simulated: a table that is read is not to take hours."""


def ladders(rows: Sequence[CorpusRow], evaluated: Sequence[EvaluatedRow]) -> dict[str, Any]:
    """`{"anchored": {...}, "analytical": {...}}`: the report's `ranking`, and how many rows could be predicted."""
    targets = [item for item in evaluated if not item.row.is_disaggregated]
    anchors = [row for row in rows if row.role is Role.ANCHOR and not row.is_disaggregated]
    anchored = [
        *(replace(item.scored, choice_set=_load(item.row), configuration=(item.row.layout,)) for item in targets),
        *(_standing(row) for row in anchors),
    ]
    everything = [*(item.row for item in targets), *anchors]
    return {"anchored": _document(anchored), "analytical": _document(_simulated(everything))}


def _load(row: CorpusRow) -> tuple[object, ...]:
    return row.series, row.prompt_tokens, row.output_tokens, row.concurrency


def _standing(row: CorpusRow) -> Scored:
    measured = {"tpot": row.tpot_s, "ttft": row.ttft_s, "throughput": row.throughput_tokens_per_s}
    predicted = {name: value or 0.0 for name, value in measured.items()}
    return _scored(row, predicted, MEASURED)


def _scored(row: CorpusRow, predicted: dict[str, float], configuration: tuple[object, ...]) -> Scored:
    return Scored(
        series=row.series,
        choice_set=_load(row),
        gpus_count=gpus_count(row),
        measured={"tpot": row.tpot_s, "ttft": row.ttft_s, "throughput": row.throughput_tokens_per_s},
        predicted=predicted,
        interval=dict.fromkeys(QUANTITIES, (0.0, 0.0)),
        configuration=configuration,
    )


def _simulated(rows: Sequence[CorpusRow]) -> list[Scored]:
    predictors: dict[tuple[object, ...], Predictor] = {}
    answers: dict[tuple[object, ...], dict[str, float]] = {}
    found = []
    for row in rows:
        if row.concurrency > MOST_CLIENTS:
            continue
        key = (row.model, row.accelerator, row.prompt_tokens, row.output_tokens)
        try:
            engine = Engine.parse(row.engine)
            if key not in predictors:
                card, accelerator = load_model_card(row.model), load_accelerator_card(row.accelerator)
                setting = Setting(card, accelerator, {}, Mode.SIMULATE, row.prompt_tokens, row.output_tokens)
                predictors[key] = Predictor(setting)
            predictor, question = predictors[key], (*key, engine, row.layout, row.concurrency)
            gpus_per_node = predictor.setting.accelerator.gpus_per_node
            shape = predictor.shape(EngineOption(engine), row.layout, gpus_per_node=gpus_per_node)
            if not isinstance(shape, Shape):
                continue
            if question not in answers:
                one = predictor.predict(shape, row.concurrency)
                answers[question] = {
                    "tpot": one.tpot_s, "ttft": one.ttft_s, "throughput": one.throughput_tokens_per_s,
                }  # fmt: skip
        except (InputError, InfeasibleError):
            continue  # no card, or one that this layout breaks: it is not ranked, and not counted
        found.append(_scored(row, answers[question], (row.layout,)))
    return found


def _document(scored: Sequence[Scored]) -> dict[str, Any]:
    order = ranking(scored)
    ordered, regret = order.pairs_ordered_percent, order.regret_percent
    return {
        "pairsOrderedPercent": None if ordered is None else round(ordered, 2),
        "regretPercent": None if regret is None else round(regret, 2),
        "pairs": order.pairs_count,
        "rows": len(scored),
    }
