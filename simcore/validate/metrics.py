"""Errors, coverage and ranking of predictions against measures (paper 5.1 and 5.7)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

DECISIVE_GAP_FRAC = 0.03
"""Measured gap above which a pair can be ordered at all. Source: paper 5.7."""
TIE_FRAC = 1e-9
"""Predictions this close are one: layouts that the same law prices alike."""
QUANTITIES = ("tpot", "ttft", "throughput")


@dataclass(frozen=True)
class Scored:
    """One target row: measured, predicted and interval by quantity; None = the table does not say."""

    series: str
    choice_set: tuple[object, ...]
    """Alternatives an operator would compare: equal GPU, model, lengths and clients."""
    gpus_count: int
    measured: dict[str, float | None]
    predicted: dict[str, float]
    interval: dict[str, tuple[float, float]]
    configuration: tuple[object, ...] | None = None
    """What was measured: rows of one are repeats, whose gap is noise. None = told apart by nothing."""

    def error(self, quantity: str) -> float | None:
        """Signed relative error; None without a measure."""
        measured = self.measured[quantity]
        return None if measured is None or self.is_undefined(quantity) else self.predicted[quantity] / measured - 1.0

    def is_undefined(self, quantity: str) -> bool:
        """One output token has no TPOT."""
        return self.predicted[quantity] <= 0.0

    def covered(self, quantity: str) -> bool | None:
        """Whether the interval holds the measure; None without one."""
        measured = self.measured[quantity]
        low, high = self.interval[quantity]
        return None if measured is None or self.is_undefined(quantity) else low <= measured <= high


def abs_error_percent(rows: Iterable[Scored], quantity: str, at: float) -> float | None:
    """Quantile `at` of the absolute relative errors [%]; None when nothing is measured."""
    errors = [abs(error) for row in rows if (error := row.error(quantity)) is not None]
    return 100.0 * float(np.quantile(errors, at)) if errors else None


def coverage_percent(rows: Iterable[Scored], quantity: str) -> float | None:
    """Share of measures inside their 80 % intervals [%]."""
    inside = [covered for row in rows if (covered := row.covered(quantity)) is not None]
    return 100.0 * sum(inside) / len(inside) if inside else None


@dataclass(frozen=True)
class Ranking:
    """How well predictions order alternatives by throughput per GPU, or by TPOT where a table has no throughput."""

    pairs_ordered_percent: float | None
    regret_percent: float | None
    """Median over choice sets: how much worse the predicted pick measures than the measured best."""
    pairs_count: int


def ranking(rows: Sequence[Scored]) -> Ranking:
    """Ordered share of decisive pairs (a predicted tie counts half) and median regret over choice sets.

    Repeats of one configuration make no pair: between them there is nothing to choose.
    """
    sets: dict[tuple[object, ...], list[tuple[float, float, object]]] = {}
    for row in rows:
        worth = _worth(row)
        if worth is not None:
            sets.setdefault(row.choice_set, []).append((*worth, row.configuration))
    ordered, pairs = 0.0, 0
    regrets = []
    for members in sets.values():
        counted, in_order = _pairs(members)
        pairs += counted
        ordered += in_order
        if len(members) > 1:
            best = max(member[0] for member in members)
            picked = max(members, key=lambda member: member[1])[0]
            regrets.append(100.0 * (1.0 - picked / best))
    return Ranking(100.0 * ordered / pairs if pairs else None, float(np.median(regrets)) if regrets else None, pairs)


def _pairs(members: Sequence[tuple[float, float, object]]) -> tuple[int, float]:
    """(decisive pairs, those in the measured order) of one choice set; row by row against all later ones."""
    measured, guessed = (np.array([member[index] for member in members]) for index in (0, 1))
    numbers: dict[object, int] = {}
    # Rows that nothing tells apart are each their own.
    kinds = np.array(
        [
            -1 - index if what is None else numbers.setdefault(what, len(numbers))
            for index, (_, _, what) in enumerate(members)
        ]
    )
    counted, in_order = 0, 0.0
    for index in range(len(members) - 1):
        one, others = measured[index], measured[index + 1 :]
        guess, guesses = guessed[index], guessed[index + 1 :]
        decisive = np.abs(one - others) > DECISIVE_GAP_FRAC * np.minimum(one, others)
        decisive &= kinds[index + 1 :] != kinds[index]
        tied = np.abs(guess - guesses) <= TIE_FRAC * np.maximum(np.abs(guess), np.abs(guesses))
        right = (guess > guesses) == (one > others)
        counted += int(decisive.sum())
        in_order += 0.5 * float((decisive & tied).sum()) + float((decisive & ~tied & right).sum())
    return counted, in_order


def _worth(row: Scored) -> tuple[float, float] | None:
    """(measured, predicted) figure to maximise."""
    measured = row.measured["throughput"]
    if measured is not None:
        return measured / row.gpus_count, row.predicted["throughput"] / row.gpus_count
    tpot = row.measured["tpot"]
    return None if tpot is None or row.is_undefined("tpot") else (1.0 / tpot, 1.0 / row.predicted["tpot"])
