"""One series of a corpus: fit its anchor rows once, then answer for any target row. Never sees a target's measures."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from simcore.cards.layout import Layout
from simcore.errors import InputError
from simcore.stepcost.calibration import Calibration
from simcore.stepcost.features import LayoutFeatures
from simcore.stepcost.width import WidthLaw
from simcore.validate.cells import Cell, Lengths, Shape, cells_of, lengths_by_shape, lengths_for
from simcore.validate.corpus import CorpusRow, Role
from simcore.validate.layout_fit import FittedLayout, fit_layout, prior_prefill
from simcore.validate.project import Projection
from simcore.validate.stages import one_stage
from simcore.validate.waits import Traffic, simulated_waits

FeatureSource = Callable[[CorpusRow, Layout], LayoutFeatures | None]
"""The cards of a row's model and accelerator seen at a layout; None where a card is missing."""
SAME_CAP_RATIO = 1.15
"""Batches that saturate within 15 % of each other at different contexts show a cap on requests, not on tokens."""
SIMULATED_ROUNDS = 2
HBM_USED_FRAC = 0.90
"""Share of HBM that engines fill. Source: paper App. B.5."""


@dataclass(frozen=True)
class Capacity:
    """What limits the running batch."""

    requests: float
    tokens: float
    """KV tokens of one replica."""
    is_measured: bool

    def running_cap(self, context_tokens: float) -> float:
        return max(min(self.requests, self.tokens / context_tokens), 1.0)


@dataclass(frozen=True)
class SeriesModel:
    """The fitted layouts of one series."""

    name: str
    lengths: dict[Shape, Lengths]
    layouts: dict[Layout, FittedLayout]
    """By the layout that was measured; a pipeline's is fitted as one stage."""
    anchors: tuple[CorpusRow, ...]
    feature_source: FeatureSource
    calibration: Calibration
    law: WidthLaw

    def nearest(self, layout: Layout) -> Layout:
        """The measured layout that a target's moves from: same expert and data split first, then the nearest width."""

        def distance(known: Layout) -> tuple[float, ...]:
            split = (known.expert_parallel > 1) != (layout.expert_parallel > 1)
            ranks = abs(math.log2(known.attention_data_parallel / layout.attention_data_parallel))
            copies = abs(math.log2(known.data_parallel / layout.data_parallel))
            stages = abs(math.log2(known.pipeline_parallel / layout.pipeline_parallel))
            width = abs(math.log2(known.tensor_parallel / layout.tensor_parallel))
            return (ranks + copies, stages, width, float(split), -float(len(self.layouts[known].cells)))

        return min(self.layouts, key=distance)

    def projection(self, row: CorpusRow, layout: Layout) -> tuple[Projection, Layout]:
        """The nearest measured layout seen as `layout`, and which one it is. Pipeline stages are left to the caller."""
        known = self.nearest(layout)
        stage = replace(layout, pipeline_parallel=1)
        return (
            Projection(
                self.layouts[known],
                self.feature_source(row, stage),
                self.law,
                known.tensor_parallel,
                layout.tensor_parallel,
                self.calibration,
            ),
            known,
        )

    def lengths_of(self, row: CorpusRow) -> Lengths:
        """Lengths the client of `row` served."""
        return lengths_for((row.prompt_tokens, row.output_tokens), self.lengths, row.length_range_ratio)

    def capacity(self, projection: Projection) -> Capacity:
        """Where the target's batch stops growing: as the anchor's saturated rows show it, else as the cards say."""
        fitted = projection.fitted
        seen = max(cell.running * cell.context_tokens for cell in fitted.cells)
        there = pool_tokens(projection.features)
        saturated = [cell for cell in fitted.cells if cell.is_saturated]
        if not saturated:
            return Capacity(math.inf, max(there, seen), is_measured=False)
        by_shape = _largest_by_shape(saturated)
        if _caps_requests(by_shape, fitted.cells):
            requests = statistics.median(cell.running for cell in by_shape)
            return Capacity(requests, max(there, seen), is_measured=True)
        tokens = max(cell.running * cell.context_tokens for cell in by_shape)
        return Capacity(math.inf, max(_moved_tokens(tokens, projection), 1.0), is_measured=True)


def _caps_requests(saturated: Sequence[Cell], cells: Sequence[Cell]) -> bool:
    """Batches alike at contexts that differ, and no cell that runs more of them: a cap on requests, not on tokens."""
    batches, contexts = [cell.running for cell in saturated], [cell.context_tokens for cell in saturated]
    free = max((cell.running for cell in cells if not cell.is_waiting), default=0.0)
    return (
        max(batches) < SAME_CAP_RATIO * min(batches)
        and max(contexts) > SAME_CAP_RATIO * min(contexts)
        and free < SAME_CAP_RATIO * max(batches)
    )


def _moved_tokens(tokens: float, projection: Projection) -> float:
    """KV tokens at the target where the source was measured to hold `tokens`.

    What the engine leaves unused on a GPU it leaves at any width; weights that go to other GPUs make room. A source
    that holds more than its card says keeps smaller KV than the card, and both sides scale.
    """
    source, target = projection.fitted.features, projection.features
    if source is None or target is None:
        return tokens * projection.width_to / projection.width_from
    stored_here, stored_there = (side.stored_context_bytes_per_token() for side in (source, target))
    if not stored_here or not stored_there:
        return tokens
    here, there = pool_tokens(source), pool_tokens(target)
    if 0.0 < here < tokens:
        return tokens * there / here
    return (tokens * stored_here + source.weight_bytes - target.weight_bytes) / stored_there


def fit_series(
    name: str, rows: Sequence[CorpusRow], feature_source: FeatureSource, calibration: Calibration, law: WidthLaw
) -> SeriesModel:
    """Fit every layout among the anchor rows of one series. Raises InputError when there is no anchor row."""
    anchors = tuple(row for row in rows if row.role is Role.ANCHOR and not row.is_disaggregated)
    if not any(row.tpot_s is not None for row in anchors):
        raise InputError("role", name, "mark at least one colocated row with a TPOT as `anchor` in each series")
    _require_one_stack(name, rows)
    lengths = lengths_by_shape(anchors)
    groups: dict[Layout, list[CorpusRow]] = {}
    for row in anchors:
        if row.tpot_s is not None:
            groups.setdefault(row.layout, []).append(row)
    layouts = {}
    for layout, members in groups.items():
        features = feature_source(members[0], layout)
        prefill_s = prior_prefill(features, calibration).seconds if features is not None else None
        cells = cells_of(members, lengths, pool_tokens(features), prefill_s)
        stage = feature_source(members[0], replace(layout, pipeline_parallel=1))
        staged = tuple(one_stage(cell, layout.pipeline_parallel, stage) for cell in cells)
        layouts[layout] = _fit_simulated(staged, stage, calibration, members[0].engine, lengths)
    return SeriesModel(name, lengths, layouts, anchors, feature_source, calibration, law)


def _fit_simulated(
    cells: tuple[Cell, ...],
    features: LayoutFeatures | None,
    calibration: Calibration,
    engine: str,
    lengths: dict[Shape, Lengths],
) -> FittedLayout:
    """Fit, simulate who waits for whom with that fit, fit again: the waits hardly move after the first round."""
    fitted = fit_layout(cells, features, calibration)
    for _ in range(SIMULATED_ROUNDS):
        waits = np.array([_cell_waits(fitted, cell, engine, lengths[cell.shape]) for cell in cells])
        fitted = fit_layout(cells, features, calibration, waits)
    return fitted


def _cell_waits(fitted: FittedLayout, cell: Cell, engine: str, lengths: Lengths) -> float:
    if cell.ttft_s is None or cell.is_waiting:
        return 1.0  # never read
    features = fitted.features
    return simulated_waits(
        engine,
        Traffic(cell.clients, *cell.shape, lengths.range_ratio),
        step_s=lambda batch: fitted.step_at(batch, cell.context_tokens, cell.shape),
        prefill=fitted.prefill,
        shared_frac=0.0 if features is None else 1.0 - features.unread_frac(cell.running),
    )


def pool_tokens(features: LayoutFeatures | None) -> float:
    """KV tokens of one replica by the cards; inf without cards or without KV that grows."""
    if features is None:
        return math.inf
    stored = features.stored_context_bytes_per_token()
    free = HBM_USED_FRAC * features.hbm_bytes - features.weight_bytes
    return max(free, 0.0) / stored if stored > 0 else math.inf


def _largest_by_shape(cells: Sequence[Cell]) -> list[Cell]:
    best: dict[Shape, Cell] = {}
    for cell in cells:
        if cell.shape not in best or cell.running > best[cell.shape].running:
            best[cell.shape] = cell
    return list(best.values())


def _require_one_stack(name: str, rows: Sequence[CorpusRow]) -> None:
    """Anchors only transfer within one engine, accelerator, model and weight format (paper 3.1)."""
    for field in ("engine", "model", "accelerator", "weights_dtype"):
        values = sorted({getattr(row, field) for row in rows})
        if len(values) > 1:
            shown = ", ".join(value or "(empty)" for value in values)
            raise InputError(
                f"series {name}: {field}", shown, "be the same in all rows of a series", "split the series"
            )
