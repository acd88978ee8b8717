"""Axes: data to pixels, and where the ticks stand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

_STEPS = (1.0, 2.0, 5.0)


@dataclass(frozen=True)
class Scale:
    """Maps `low`–`high` to the pixels `start`–`end`, evenly or by logarithm."""

    low: float
    high: float
    start: float
    end: float
    is_log: bool = False

    def __call__(self, value: float) -> float:
        """The pixel of a value, kept inside the axis, to a tenth."""
        low, high, at = self.low, self.high, min(max(value, self.low), self.high)
        share = math.log(at / low) / math.log(high / low) if self.is_log else (at - low) / (high - low)
        return round(self.start + share * (self.end - self.start), 1)

    def holds(self, value: float) -> bool:
        """Whether the value lies on the axis."""
        return self.low <= value <= self.high

    def ticks(self) -> list[float]:
        """Round values on the axis, between about three and nine of them."""
        return _log_ticks(self.low, self.high) if self.is_log else _even_ticks(self.low, self.high)


def even(values: Sequence[float], start: float, end: float) -> Scale:
    """From zero to a little above the largest value."""
    return Scale(0.0, max([*values, 0.0]) * 1.08 or 1.0, start, end)


def log(values: Sequence[float], start: float, end: float) -> Scale:
    """From a little below the smallest to a little above the largest positive value."""
    positive = [value for value in values if value > 0] or [1.0]
    return Scale(min(positive) / 1.25, max(positive) * 1.25, start, end, is_log=True)


def _even_ticks(low: float, high: float) -> list[float]:
    rough = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (*_STEPS, 10.0) if factor * power >= rough)
    return [round(step * n, 10) for n in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = _STEPS if math.log10(high / low) < 3 else (1.0,)
    return [factor * 10.0**n for n in decades for factor in steps if low <= factor * 10.0**n <= high]
