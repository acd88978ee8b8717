"""Learn the decode width law's parameters on TP ladders, and how much they owe to single series.

    python tools/calibrate_laws.py corpus.csv [corpus.csv ...]

Minimises the mean over series of the mean absolute log TPOT error (capped, so that mislabelled series do not steer),
every series weighing the same. Then refits with each series left out and predicts that series with the rest's values:
the honest figure for unseen series. Prints both; the rounded values live in `simcore/data/calibration/laws.yaml`.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from simcore.stepcost.calibration import Calibration, calibration
from simcore.stepcost.width import WidthLaw
from simcore.validate.corpus import CorpusRow, Role, by_series, read_corpus
from simcore.validate.evaluate import card_features
from simcore.validate.predict_row import predict_row
from simcore.validate.series import SeriesModel, fit_series

PARAMETERS = ("weight_bandwidth_frac", "least_constant_frac", "reduce_latency_s", "reduce_bytes_per_s")
ERROR_CAP = 0.4
EVALUATIONS = 90


@dataclass(frozen=True)
class Ladder:
    """One TP ladder: its fitted anchors (which these parameters do not touch) and its target rows."""

    corpus: str
    model: SeriesModel
    targets: tuple[CorpusRow, ...]

    def errors(self, learnt: Calibration) -> NDArray[np.float64]:
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
            found.append(Ladder(path.rsplit("/", 1)[-1], model, tuple(cells.values())))
    return found


def learn(series: list[Ladder]) -> Calibration:
    """The parameters that minimise the loss over `series`, started at the shipped ones."""
    shipped = calibration()
    start = np.log([getattr(shipped, name) for name in PARAMETERS])

    def loss(logs: NDArray[np.float64]) -> float:
        trial = _with(logs)
        return float(np.mean([np.mean(np.minimum(np.abs(ladder.errors(trial)), ERROR_CAP)) for ladder in series]))

    simplex = np.vstack([start, start + 0.2 * np.eye(len(start))])
    found = minimize(loss, start, method="Nelder-Mead", options={"maxfev": EVALUATIONS, "initial_simplex": simplex})
    return _with(found.x)


def _with(logs: NDArray[np.float64]) -> Calibration:
    values = {name: float(value) for name, value in zip(PARAMETERS, np.exp(logs), strict=True)}
    values["least_constant_frac"] = min(values["least_constant_frac"], 0.9)
    return replace(calibration(), **values)


def main() -> None:
    """Print the parameters from all series, then the errors of each series under the others' parameters."""
    series = ladders(sys.argv[1:])
    whole = learn(series)
    print({name: float(f"{getattr(whole, name):.3g}") for name in PARAMETERS})
    held: dict[str, list[NDArray[np.float64]]] = {}
    for ladder in series:
        without = learn([other for other in series if other is not ladder])
        errors = np.abs(np.expm1(ladder.errors(without)))
        held.setdefault(ladder.corpus, []).append(errors)
        shown = {name: float(f"{getattr(without, name):.3g}") for name in PARAMETERS}
        print(f"{ladder.model.name}: left out {100 * np.median(errors):.1f} % {shown}", flush=True)
    for corpus, left_out in held.items():
        print(f"{corpus}: median over left-out rows {100 * np.median(np.concatenate(left_out)):.1f} %")


if __name__ == "__main__":
    main()
