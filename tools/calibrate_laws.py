"""Learn the decode width law's parameters on TP ladders, and how much they owe to single series and models.

    python -m tools.calibrate_laws corpus.csv [corpus.csv ...]

Scores every point of a grid of parameters on every ladder once: the mean absolute log TPOT error, capped so that
mislabelled series do not steer. The best point is the one with the least mean over series, each weighing the same.
Then each series is left out in turn, and each model (all series of one architecture): the best point of the rest
predicts what was left out. Prints all three beside the shipped values, which live in
`simcore/data/calibration/laws.yaml`.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from simcore.stepcost.calibration import Calibration, calibration
from simcore.stepcost.width import WidthLaw
from simcore.validate.corpus import CorpusRow, Role, by_series, read_corpus
from simcore.validate.evaluate import card_features
from simcore.validate.predict_row import predict_row
from simcore.validate.series import SeriesModel, fit_series

GRID: dict[str, tuple[float, ...]] = {
    "weight_bandwidth_frac": (0.5, 0.57, 0.65, 0.74, 0.85),
    "least_constant_frac": (0.10, 0.16, 0.25),
    "reduce_latency_s": (7e-6, 10e-6, 14e-6, 20e-6),
    "reduce_bytes_per_s": (30e9, 42e9, 60e9),
}
"""About 1.15 to 1.4 times from point to point; the shipped values are among them."""
ERROR_CAP = 0.4

Point = tuple[float, ...]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Ladder:
    """One TP ladder: its fitted anchors (which these parameters do not touch) and its target rows."""

    corpus: str
    architecture: Hashable
    """Alike for all checkpoints and formats of one model."""
    model: SeriesModel
    targets: tuple[CorpusRow, ...]

    def errors(self, learnt: Calibration) -> Floats:
        """(rows,) log TPOT errors under `learnt`."""
        model = replace(self.model, calibration=learnt)
        return np.array([np.log(predict_row(model, row).tpot_s / (row.tpot_s or np.nan)) for row in self.targets])


def ladders(paths: list[str]) -> list[Ladder]:
    """The `tp:` series of the corpora; of repeated cells the first row stands for all."""
    found = []
    for path in paths:
        for name, rows in by_series(read_corpus(path)).items():
            if not name.startswith("tp:"):
                continue
            cells = {
                (row.layout, row.prompt_tokens, row.output_tokens, row.concurrency): row
                for row in reversed(rows)
                if row.role is Role.TARGET and row.tpot_s
            }
            model = fit_series(name, rows, card_features, calibration(), WidthLaw.SPLIT_FLOOR)
            features = card_features(rows[0], rows[0].layout)
            architecture = (features.layers_count, features.hidden) if features is not None else rows[0].model
            found.append(Ladder(path.rsplit("/", 1)[-1], architecture, model, tuple(cells.values())))
    return found


def scored(series: list[Ladder]) -> dict[Point, list[Floats]]:
    """Per grid point the (rows,) errors of each ladder."""
    shipped = calibration()
    return {
        point: [ladder.errors(replace(shipped, **dict(zip(GRID, point, strict=True)))) for ladder in series]
        for point in itertools.product(*GRID.values())
    }


def best(scores: dict[Point, list[Floats]], members: list[int]) -> Point:
    """The grid point with the least mean over the `members` of the mean capped absolute error."""

    def loss(point: Point) -> float:
        errors = (scores[point][index] for index in members)
        return float(np.mean([np.mean(np.minimum(np.abs(values), ERROR_CAP)) for values in errors]))

    return min(scores, key=loss)


def left_out(
    series: list[Ladder], scores: dict[Point, list[Floats]], key: Callable[[Ladder], Hashable]
) -> list[tuple[Hashable, Point, list[int]]]:
    """For each group of ladders with one `key`: the best point of all others, and the group's ladders."""
    found = []
    for group in dict.fromkeys(key(ladder) for ladder in series):
        members = [index for index, ladder in enumerate(series) if key(ladder) == group]
        others = [index for index in range(len(series)) if index not in members]
        found.append((group, best(scores, others), members))
    return found


def median_percent(errors: list[Floats]) -> float:
    """Median absolute error over all rows [%]."""
    return 100.0 * float(np.median(np.abs(np.expm1(np.concatenate(errors)))))


def main() -> None:
    """Print the best point of all series, and what is left out under the others' best point."""
    series = ladders(sys.argv[1:])
    scores = scored(series)
    shipped = tuple(getattr(calibration(), name) for name in GRID)
    for title, point in (("shipped", shipped), ("best", best(scores, list(range(len(series)))))):
        print(title, dict(zip(GRID, point, strict=True)))
        for corpus in dict.fromkeys(ladder.corpus for ladder in series):
            mine = [errors for errors, ladder in zip(scores[point], series, strict=True) if ladder.corpus == corpus]
            print(f"  {corpus}: {median_percent(mine):.1f} %", flush=True)
    for title, key in (
        ("series", lambda ladder: (ladder.corpus, ladder.model.name)),
        ("model", lambda ladder: ladder.architecture),
    ):
        held: dict[str, list[Floats]] = {}
        for group, point, members in left_out(series, scores, key):
            for index in members:
                held.setdefault(series[index].corpus, []).append(scores[point][index])
            print(f"without {title} {group}: {median_percent([scores[point][i] for i in members]):.1f} % under {point}")
        for corpus, errors in held.items():
            print(f"each {title} left out, {corpus}: {median_percent(errors):.1f} %")


if __name__ == "__main__":
    main()
