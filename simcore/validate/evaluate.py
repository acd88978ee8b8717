"""A whole corpus: fit each series on its anchors, predict its targets, score, rank. Pure: rows in, a report out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from simcore.cards.layout import Engine, Layout
from simcore.cards.library import load_accelerator_card, load_model_card
from simcore.errors import InputError, UnknownNameError
from simcore.prediction.intervals import IntervalCalibration, interval_calibration
from simcore.stepcost.calibration import Calibration, calibration
from simcore.stepcost.features import LayoutFeatures, layout_features
from simcore.stepcost.width import WidthLaw
from simcore.validate.baselines import Baselines, baselines
from simcore.validate.corpus import CorpusRow, Role, by_series
from simcore.validate.metrics import Scored
from simcore.validate.predict_row import RowPrediction, blind, predict_row
from simcore.validate.series import FeatureSource, fit_series
from simcore.validate.waits import known_engine


@dataclass(frozen=True)
class EvaluatedRow:
    """One target row with its prediction, interval and the simple transfers."""

    row: CorpusRow
    prediction: RowPrediction
    scored: Scored
    baselines: Baselines


def evaluate(
    rows: Sequence[CorpusRow],
    *,
    law: WidthLaw = WidthLaw.SPLIT_FLOOR,
    learnt: Calibration | None = None,
    intervals: IntervalCalibration | None = None,
    feature_source: FeatureSource | None = None,
    refused: dict[str, str] | None = None,
) -> tuple[EvaluatedRow, ...]:
    """Every target row of `rows`, in file order. Raises InputError when a series cannot be used or nothing is scored.

    With `refused` an unusable series is put there with its reason, and the others are scored.
    """
    learnt = learnt or calibration()
    intervals = intervals or interval_calibration()
    source = feature_source or card_features
    found: list[EvaluatedRow] = []
    first: InputError | None = None
    for name, members in by_series(rows).items():
        targets = [row for row in members if row.role is Role.TARGET]
        if not targets:
            continue
        try:
            model = fit_series(name, members, source, learnt, law)
        except InputError as error:
            if refused is None:
                raise
            refused[name] = str(error)
            first = first or error
            continue
        answered: dict[CorpusRow, RowPrediction] = {}
        for row in targets:
            question = replace(blind(row), line=0, source="")
            if question not in answered:
                answered[question] = predict_row(model, question)
            prediction = answered[question]
            found.append(EvaluatedRow(row, prediction, _scored(row, prediction, intervals), baselines(model, row)))
    if not found and first is not None:
        raise first
    if not found:
        raise InputError("role", "anchor", "be `target` in at least one row: only target rows are scored")
    return tuple(sorted(found, key=lambda item: item.row.line))


def card_features(row: CorpusRow, layout: Layout) -> LayoutFeatures | None:
    """Features from the built-in cards; None when the model, accelerator or number format has none."""
    return _card_features(row.model, row.accelerator, row.engine, row.weights_dtype, layout)


@lru_cache(maxsize=4096)
def _card_features(
    model: str, accelerator: str, engine: str, weights_dtype: str, layout: Layout
) -> LayoutFeatures | None:
    try:
        card, device = load_model_card(model), load_accelerator_card(accelerator)
        return layout_features(card, device, known_engine(engine) or Engine.VLLM, layout, weights_dtype)
    except UnknownNameError:
        return None


def _scored(row: CorpusRow, prediction: RowPrediction, intervals: IntervalCalibration) -> Scored:
    predicted = {
        "tpot": prediction.tpot_s,
        "ttft": prediction.ttft_s,
        "throughput": prediction.throughput_tokens_per_s,
    }
    has_card = "no-model-card-law-paper" not in prediction.flags
    return Scored(
        series=row.series,
        choice_set=(
            row.series.split(":")[0],
            row.accelerator,
            row.model,
            row.prompt_tokens,
            row.output_tokens,
            row.concurrency,
        ),
        configuration=(row.series, row.layout, row.pools_label),
        gpus_count=gpus_count(row),
        measured={"tpot": row.tpot_s, "ttft": row.ttft_s, "throughput": row.throughput_tokens_per_s},
        predicted=predicted,
        interval={
            quantity: intervals.interval(quantity, value, prediction.distance, has_card=has_card)
            for quantity, value in predicted.items()
        },
    )


def gpus_count(row: CorpusRow) -> int:
    """GPUs of the row's whole deployment; pools of unknown size count one replica each."""
    layouts: Iterable[tuple[int, Layout]] = [(1, row.layout)]
    if row.prefill_pool is not None and row.decode_pool is not None:
        layouts = [(pool.replicas_count or 1, pool.layout) for pool in (row.prefill_pool, row.decode_pool)]
    return sum(
        count * layout.tensor_parallel * layout.pipeline_parallel * layout.data_parallel for count, layout in layouts
    )
