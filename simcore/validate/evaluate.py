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

CELL_FITTED = "cell-fitted"


@dataclass(frozen=True)
class Note:
    """Rows of a series that are not scored, or count in another way than a reader would think, and why."""

    series: str
    rows_count: int
    text: str


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
    notes: list[Note] | None = None,
) -> tuple[EvaluatedRow, ...]:
    """Every target row of `rows`, in file order. Raises InputError when a series cannot be used or nothing is scored.

    With `refused` an unusable series is put there with its reason, and the others are scored. `notes` receives what
    is left out, counted twice or known from an anchor.
    """
    notes = [] if notes is None else notes
    learnt = learnt or calibration()
    intervals = intervals or interval_calibration()
    source = feature_source or card_features
    found: list[EvaluatedRow] = []
    first: InputError | None = None
    for name, members in by_series(rows).items():
        targets, known = _targets(name, members, notes), _fitted_cells(members)
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
            try:
                if question not in answered:
                    answered[question] = predict_row(model, question)
            except InputError as error:
                if refused is None:
                    raise
                notes.append(Note(name, 1, f"line {row.line} is not scored: {error}"))
                first = first or error
                continue
            prediction = answered[question]
            if _cell(row) in known:
                prediction = replace(prediction, flags=tuple(sorted({*prediction.flags, CELL_FITTED})))
            found.append(EvaluatedRow(row, prediction, _scored(row, prediction, intervals), baselines(model, row)))
    if not found and first is not None:
        raise first
    if not found:
        raise InputError("role", "anchor", "be `target` in at least one row: only target rows are scored")
    return tuple(sorted(found, key=lambda item: item.row.line))


def _targets(name: str, members: Sequence[CorpusRow], notes: list[Note]) -> list[CorpusRow]:
    """The targets of a series; what a reader of the score must know goes to `notes`."""
    targets = [row for row in members if row.role is Role.TARGET]
    anchors = [row for row in members if row.role is Role.ANCHOR]
    if not targets:
        notes.append(Note(name, len(anchors), "not scored: the series has no target row"))
        return []
    unfitted = sum(row.tpot_s is None or row.is_disaggregated for row in anchors)
    if 0 < unfitted < len(anchors):
        notes.append(Note(name, unfitted, "anchor rows without a TPOT, or of two pools, are not fitted"))
    repeats = len(members) - len({replace(row, line=0) for row in members})
    if repeats:
        notes.append(Note(name, repeats, "rows repeat another row exactly: each of them counts"))
    known = _fitted_cells(members)
    answered = sum(_cell(row) in known for row in targets)
    if answered:
        notes.append(Note(name, answered, "target rows are at a cell that is also an anchor row: they score the fit"))
    return targets


def _fitted_cells(members: Iterable[CorpusRow]) -> set[tuple[object, ...]]:
    return {_cell(row) for row in members if row.role is Role.ANCHOR}


def _cell(row: CorpusRow) -> tuple[object, ...]:
    return row.layout, row.pools_label, row.prompt_tokens, row.output_tokens, row.length_range_ratio, row.concurrency


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
