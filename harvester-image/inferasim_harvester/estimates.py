"""Numbers out of repeats: the median with its confidence, the prefill fit, the host line."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

STUDENT_975: Final = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
    2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
"""97.5 % quantiles of Student's t for 1 to 30 degrees of freedom (any statistics table)."""
NORMAL_975: Final = 1.960


@dataclass(frozen=True)
class Estimate:
    """A median over repeats. `half_width_frac` is the 95 % Student half width of the repeats over their mean."""

    value_s: float
    repeats: int
    spread: float
    """Interquartile range over median."""
    half_width_frac: float


def estimate(values_s: Sequence[float]) -> Estimate:
    """The estimate from repeats; one repeat has infinite half width."""
    values = np.asarray(values_s, dtype=np.float64)
    low, middle, high = np.percentile(values, [25, 50, 75])
    count = len(values)
    half = math.inf
    if count > 1:
        quantile = STUDENT_975[count - 2] if count - 2 < len(STUDENT_975) else NORMAL_975
        half = quantile * float(np.std(values, ddof=1)) / math.sqrt(count) / float(np.mean(values))
    return Estimate(float(middle), count, float((high - low) / middle), half)


def outlier_count(values_s: Sequence[float], limit: float) -> int:
    """Repeats further than `limit` (a fraction) from their median."""
    values = np.asarray(values_s, dtype=np.float64)
    middle = float(np.median(values))
    return int(np.count_nonzero(np.abs(values / middle - 1.0) > limit))


@dataclass(frozen=True)
class Quadratic:
    """T(n) = F + c1 n + c2 n^2, none negative, least squares of relative residuals."""

    fixed_s: float
    s_per_token: float
    s_per_token2: float
    residual: float
    """Largest absolute relative residual."""

    def at(self, tokens: Floats) -> Floats:
        """Seconds at each length."""
        return self.fixed_s + self.s_per_token * tokens + self.s_per_token2 * tokens**2


def fit_quadratic(tokens: Sequence[int], times_s: Sequence[float]) -> Quadratic:
    """The fit of a prefill sweep. Every support set is tried: with three terms that is exact.

    >>> fit = fit_quadratic([100, 200, 400, 800], [1.1, 1.2, 1.4, 1.8])
    >>> round(fit.fixed_s, 9), round(fit.s_per_token, 9), round(fit.s_per_token2, 9)
    (1.0, 0.001, 0.0)
    """
    n = np.asarray(tokens, dtype=np.float64)
    t = np.asarray(times_s, dtype=np.float64)
    columns = np.stack([np.ones_like(n), n, n**2], axis=1) / t[:, None]
    scale = np.linalg.norm(columns, axis=0)
    error, best = math.inf, np.zeros(3)
    for size in (1, 2, 3):
        for chosen in map(list, itertools.combinations(range(3), size)):
            solved = np.linalg.lstsq(columns[:, chosen] / scale[chosen], np.ones_like(t), rcond=None)[0]
            if np.any(solved < 0):
                continue
            coefficients = np.zeros(3)
            coefficients[chosen] = solved / scale[chosen]
            squares = float(np.sum((columns @ coefficients - 1.0) ** 2))
            if squares < error:
                error, best = squares, coefficients
    fixed, first, second = (float(value) for value in best)
    residual = float(np.max(np.abs(columns @ best - 1.0)))
    return Quadratic(fixed, first, second, residual)


def fit_line(tokens: Sequence[int], times_s: Sequence[float], weights: Sequence[float]) -> tuple[float, float]:
    """(intercept, slope) of a line, neither negative, weighted least squares."""
    n, t, w = (np.asarray(values, dtype=np.float64) for values in (tokens, times_s, weights))
    mean_n, mean_t = float(np.average(n, weights=w)), float(np.average(t, weights=w))
    variance = float(np.average((n - mean_n) ** 2, weights=w))
    slope = float(np.average((n - mean_n) * (t - mean_t), weights=w)) / variance if variance else 0.0
    intercept = mean_t - slope * mean_n
    if slope < 0:
        return max(mean_t, 0.0), 0.0
    if intercept < 0:
        through = float(np.average(n * t, weights=w)) / float(np.average(n**2, weights=w))
        return 0.0, max(through, 0.0)
    return intercept, slope
