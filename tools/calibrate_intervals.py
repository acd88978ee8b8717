"""Learn the widths of the 80 % intervals from corpora and print the YAML of `simcore/data/calibration/intervals.yaml`.

Each term is the log half-width at which the rows it concerns are covered in 80 % of cases, every series weighing the
same; the report after it leaves each series out in turn and counts how many of its rows the others' widths cover.

    python tools/calibrate_intervals.py corpus.csv [corpus.csv ...]
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from simcore.prediction.intervals import TERMS, Distance, IntervalCalibration
from simcore.validate.corpus import CorpusRow, Role, read_corpus
from simcore.validate.evaluate import evaluate
from simcore.validate.metrics import QUANTITIES
from tools.accuracy_stress import STRESSES

COVERED = 0.80
THINNED = (
    "one load",
    "two loads",
    "at most 8 clients",
    "at most 32 clients",
    "at least 16 clients",
    "at least 64 clients",
)
"""Stresses of tools/accuracy_stress.py that teach what a batch far from the measured ones costs."""
BASE = {"tpot": 0.03, "ttft": 0.10, "throughput": 0.03}
"""Repeats of one cell differ by 2 % (TPOT) and 16 % (TTFT, 90th percentile) in the open tables."""
LEAST = 0.03
"""No distance is free, also where the others' widths already cover its rows. Assumed: the spread between repeats."""
WITHOUT_DATA = {
    "output": {"tpot": 0.03, "ttft": 0.03, "throughput": 0.03},
    "prefixes": {"tpot": 0.16, "ttft": 0.35, "throughput": 0.13},
    "host_tier": {"tpot": 0.59, "ttft": 1.07, "throughput": 0.81},
}
"""No open series changes the output length alone. Assumed: per doubling of it the spread between repeats. Shared
prefixes and host tiers: the errors of `tools/validate_agentic.py` (docs/simulator.md), 1.9 times as a median error
makes an 80 % width: 8 clients in HBM (TPOT x0.92, throughput x1.07; TTFT of the draw farthest off, x0.83), and the
mean of the two LMCache runs (TPOT x0.69 and x0.78, TTFT x0.56 and x0.58, throughput x1.55 and x1.51)."""


@dataclass(frozen=True)
class Point:
    """One target row: absolute log error by quantity and its distance."""

    series: str
    errors: dict[str, float]
    distance: Distance
    has_card: bool = True
    is_stressed: bool = False
    """The corpus does not hold it: anchors were thinned or hidden."""


def points(paths: list[str]) -> list[Point]:
    """All scored rows of the corpora, and those of the stresses that the corpora do not hold."""
    found: list[Point] = []
    for path in paths:
        rows = read_corpus(path)
        found += _points(rows)
        colocated = [row for row in rows if not row.series.startswith("pd:")]
        for name in (*THINNED, "unknown model"):
            found += _points(STRESSES[name](colocated), has_card=name != "unknown model", is_stressed=True)
    return found


def _points(rows: Sequence[CorpusRow], *, has_card: bool = True, is_stressed: bool = False) -> list[Point]:
    found: list[Point] = []
    if not any(row.role is Role.TARGET for row in rows):
        return found
    for item in evaluate(rows, refused={}):
        errors = {name: abs(math.log1p(error)) for name in QUANTITIES if (error := item.scored.error(name)) is not None}
        found.append(Point(item.row.series, errors, item.prediction.distance, has_card, is_stressed))
    return found


def _moves_width(distance: Distance) -> bool:
    other = distance.stage_doublings or distance.batch_doublings or distance.is_queueing or distance.is_disaggregated
    return distance.width_doublings > 0 and not other


CONCERNED: dict[str, Callable[[Distance], bool]] = {
    "prompt": lambda d: d.prompt_doublings > 0.5 and not (d.width_doublings or d.is_disaggregated or d.is_queueing),
    "stage": lambda d: d.stage_doublings > 0 and not d.is_queueing,
    "width": lambda d: _moves_width(d) and not d.is_borrowed,
    "borrowed": lambda d: _moves_width(d) and d.is_borrowed,
    "batch": lambda d: d.batch_doublings > 0 and not d.is_queueing and not d.is_disaggregated,
    "queueing": lambda d: d.is_queueing,
    "disaggregated": lambda d: d.is_disaggregated and not d.has_unknown_pools,
    "unknown_pools": lambda d: d.has_unknown_pools,
    "no_card": lambda d: not d.is_queueing and not d.is_disaggregated,
}


def learn(rows: list[Point]) -> IntervalCalibration:
    """Widths term by term; earlier terms are kept while a later one is fitted."""
    widths = {name: {**dict.fromkeys(TERMS, 0.0), "base": BASE[name]} for name in QUANTITIES}
    for term, values in WITHOUT_DATA.items():
        for name in QUANTITIES:
            widths[name][term] = values[name]
    for term, concerned in CONCERNED.items():
        for name in QUANTITIES:
            mine = [row for row in rows if _teaches(term, row) and concerned(row.distance) and name in row.errors]
            widths[name][term] = max(_solve(widths, name, term, mine), LEAST) if mine else widths["tpot"][term]
    return IntervalCalibration(widths)


def _teaches(term: str, row: Point) -> bool:
    """Thinned anchors teach the batch, hidden cards their own term, rows as they are everything else."""
    if term == "no_card":
        return not row.has_card
    return row.has_card and (term == "batch" or not row.is_stressed)


def _solve(widths: dict[str, dict[str, float]], name: str, term: str, rows: list[Point]) -> float:
    low, high = 0.0, 3.0
    for _ in range(40):
        middle = 0.5 * (low + high)
        trial = IntervalCalibration({**widths, name: {**widths[name], term: middle}})
        if coverage(trial, name, rows) < COVERED:
            low = middle
        else:
            high = middle
    return round(high, 3)


def coverage(intervals: IntervalCalibration, name: str, rows: list[Point]) -> float:
    """Covered share, every series weighing the same."""
    groups: dict[str, list[bool]] = {}
    for row in rows:
        if name in row.errors:
            inside = row.errors[name] <= intervals.half_width(name, row.distance, has_card=row.has_card)
            groups.setdefault(row.series, []).append(inside)
    return float(np.mean([np.mean(values) for values in groups.values()])) if groups else math.nan


def main() -> None:
    """Print the YAML, then the coverage with each series left out."""
    rows = points(sys.argv[1:])
    learnt = learn(rows)
    print("quantities:")
    for name in QUANTITIES:
        values = ", ".join(f"{term}: {learnt.half_widths[name][term]:.3f}" for term in TERMS)
        print(f"  {name}: {{{values}}}")
    held: dict[str, list[bool]] = {name: [] for name in QUANTITIES}
    for series in sorted({row.series for row in rows}):
        others = learn([row for row in rows if row.series != series])
        for row in rows:
            for name in QUANTITIES:
                if row.series == series and name in row.errors and not row.is_stressed:
                    held[name].append(row.errors[name] <= others.half_width(name, row.distance))
    print("# leave-one-series-out coverage: " + ", ".join(f"{n} {100 * np.mean(v):.1f} %" for n, v in held.items()))


if __name__ == "__main__":
    main()
