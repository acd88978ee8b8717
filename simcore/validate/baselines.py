"""What a planner without laws would say: the anchor's TPOT as it is, divided by the width, or Eq. 1 on raw rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from simcore.validate.cells import Cell
from simcore.validate.corpus import CorpusRow
from simcore.validate.layout_fit import FittedLayout, shape_weight
from simcore.validate.series import SeriesModel

BASELINES = ("sameStep", "divided", "equation1Raw")


@dataclass(frozen=True)
class Baselines:
    """TPOT [s] by the three simple transfers."""

    same_s: float
    divided_s: float
    equation1_s: float

    def by_name(self) -> dict[str, float]:
        return dict(zip(BASELINES, (self.same_s, self.divided_s, self.equation1_s), strict=True))


def baselines(model: SeriesModel, row: CorpusRow) -> Baselines:
    """The simple transfers for `row`, from the raw anchor rows of the most alike shape at the row's clients."""
    layout = row.decode_pool.layout if row.decode_pool is not None else row.layout
    known = model.nearest(layout)
    curve = _raw_curve(model.layouts[known], (row.prompt_tokens, row.output_tokens))
    same = _at(curve, float(row.concurrency))
    ratio = (known.tensor_parallel * known.pipeline_parallel) / (layout.tensor_parallel * layout.pipeline_parallel)
    floor = min(cell.tpot_s for cell in curve if cell.clients == min(other.clients for other in curve))
    return Baselines(same, same * ratio, floor + max(same - floor, 0.0) * ratio)


def _raw_curve(fitted: FittedLayout, shape: tuple[int, int]) -> list[Cell]:
    best = max(fitted.cells, key=lambda cell: (shape_weight(cell.shape, shape), cell.shape)).shape
    return [cell for cell in fitted.cells if cell.shape == best]


def _at(curve: Sequence[Cell], clients: float) -> float:
    """Log-log between the measured clients, held at the ends."""
    cells = sorted(curve, key=lambda cell: cell.clients)
    logs = np.log([cell.clients for cell in cells])
    return float(math.exp(np.interp(math.log(clients), logs, np.log([cell.tpot_s for cell in cells]))))
