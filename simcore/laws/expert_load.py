"""Busiest-rank factors I_n (routed tokens) and I_d (distinct experts) of a uniform top-k router, without sampling.

Both reduce to one urn: draws without replacement from equal groups. The set of touched experts is uniform given its
size, so I_d is exact. I_n is exact for one token and for top-1; for more it uses the urn whose variance equals the
router's, which agrees with sampling to 0.2 % from 64 experts on (1.5 % at 8).
"""

from __future__ import annotations

from functools import cache

import numpy as np
from scipy.interpolate import CubicSpline
from scipy.special import gammaln, ndtr

from simcore.laws.domain import require, require_at_least
from simcore.laws.moe import split_experts
from simcore.laws.registry import PAPER, FloatArray, Quantity, law

_GRID_OCTAVES = 14
"""The grid ends at 2^13 = 8192 tokens."""
_QUADRATURE_POINTS = 4097
_DIGITS = 12
"""Results are rounded to what the sums of positive terms carry."""
_SPREAD = 9.0
"""Standard deviations beyond which a count of the busiest rank is ignored (below 1e-17)."""
_TAIL_POINTS = 2**4
"""Half the most counts at which the tail of the busiest rank is evaluated."""
_NORMAL_LIMIT_TOKENS = 2**8
"""Mean routed tokens per rank from which the normal limit is used; there it differs by 5e-4."""


@law(paper=PAPER, equation="App. B.3, I_n of a uniform router")
def uniform_rows_factor(*, experts_count: int, experts_per_token: int, expert_parallel: int, step_tokens: int) -> float:
    """Expected routed tokens of the busiest EP rank over the mean, for a uniform top-k router.

    Equation: I_n = E[max_r n_r] / (t k / r); n is taken as t k draws without replacement from r urns of G balls, where
        r G = (t k (E - 1) - (E - k)) / (k - 1) gives every n_r the router's variance (G is infinite at k = 1)
    Args:
        experts_count: E [1].
        experts_per_token: k [1].
        expert_parallel: r [1], ranks; must divide E.
        step_tokens: t [1].
    Returns: I_n [1].
    Domain: 1 <= k <= E; t at least 1. Exact at t = 1 and at k = 1; within 0.2 % of sampling from 64 experts on.
    Not modelled: skew of a trained router (see `routing_replay`).
    Source: paper App. B.3 and Table 6, row `Uniform router`.

    >>> uniform_rows_factor(experts_count=4, experts_per_token=1, expert_parallel=2, step_tokens=2)
    1.5
    """
    _check(experts_count, experts_per_token, expert_parallel, step_tokens)
    if expert_parallel == 1 or experts_per_token == experts_count:
        return 1.0
    e, k, r, draws = experts_count, experts_per_token, expert_parallel, step_tokens * experts_per_token
    mean = draws / r
    variance = mean * (1 - 1 / r) * (e - k) / (e - 1)
    if mean > _NORMAL_LIMIT_TOKENS:
        return 1.0 + float(np.sqrt(variance * r / (r - 1)) * _normal_maximum(r) / mean)
    urn = np.inf if k == 1 else (draws * (e - 1) - (e - k)) / (k - 1) / r
    return round(_urn_maximum(r, urn, draws, float(np.sqrt(variance))) / mean, _DIGITS)


@law(paper=PAPER, equation="App. B.3, I_d of a uniform router")
def uniform_experts_factor(
    *, experts_count: int, experts_per_token: int, expert_parallel: int, step_tokens: int
) -> float:
    """Expected distinct experts of the busiest EP rank over the mean, for a uniform top-k router; exact.

    Equation: I_d = sum_m P(D_t = m) E[max_r d_r | m] / ((E / r) (1 - (1 - k/E)^t)), where D_t, the experts touched in
        all, is a Markov chain with hypergeometric steps and d given m is a draw of m from r groups of E/r
    Args:
        experts_count: E [1].
        experts_per_token: k [1].
        expert_parallel: r [1], ranks; must divide E.
        step_tokens: t [1].
    Returns: I_d [1].
    Domain: 1 <= k <= E; t at least 1; E at most 1024.
    Not modelled: skew of a trained router (see `routing_replay`).
    Source: paper App. B.3 (1.75, 1.31, 1.09 at t = 4, 16, 64 for E = 256, k = 8, r = 8).

    >>> uniform_experts_factor(experts_count=4, experts_per_token=2, expert_parallel=2, step_tokens=1)
    1.333333333333
    """
    _check(experts_count, experts_per_token, expert_parallel, step_tokens)
    if expert_parallel == 1:
        return 1.0
    touched = _touched_experts(experts_count, experts_per_token, step_tokens)
    mean = float(np.dot(touched, np.arange(experts_count + 1))) / expert_parallel
    return round(float(np.dot(touched, _group_maximum(experts_count, expert_parallel))) / mean, _DIGITS)


def uniform_load(
    *, experts_count: int, experts_per_token: int, expert_parallel: int, step_tokens: Quantity
) -> tuple[Quantity, Quantity]:
    """(I_n, I_d) of a uniform router at any number of tokens, from a cached grid; the fast form for step prices.

    Straight in log(I - 1) against log tokens between grid points (two per octave up to 384, then one); held beyond
    8192 tokens. Raises DomainError as the two laws.
    """
    require_at_least(1.0, step_tokens=step_tokens)
    tokens, rows, experts = _grid(experts_count, experts_per_token, expert_parallel)
    at = np.log(step_tokens)
    pair = tuple(1.0 + np.exp(np.interp(at, tokens, curve)) for curve in (rows, experts))
    return (float(pair[0]), float(pair[1])) if np.ndim(step_tokens) == 0 else (pair[0], pair[1])


@cache
def _grid(
    experts_count: int, experts_per_token: int, expert_parallel: int
) -> tuple[FloatArray, FloatArray, FloatArray]:
    octaves = 2 ** np.arange(_GRID_OCTAVES)
    tokens = sorted({*range(1, 8), *octaves.tolist(), *(3 * octaves[:8]).tolist()})
    pairs = [
        [
            factor(
                experts_count=experts_count,
                experts_per_token=experts_per_token,
                expert_parallel=expert_parallel,
                step_tokens=t,
            )
            for t in tokens
        ]
        for factor in (uniform_rows_factor, uniform_experts_factor)
    ]
    tiny = np.finfo(np.float64).eps
    surplus = np.log(np.maximum(np.array(pairs) - 1.0, tiny))
    return np.log(np.array(tokens, dtype=np.float64)), surplus[0], surplus[1]


def _check(experts_count: int, experts_per_token: int, expert_parallel: int, step_tokens: int) -> None:
    split_experts(experts_count, expert_parallel)
    require(1 <= experts_per_token <= experts_count, f"`experts_per_token` must be from 1 to {experts_count}")
    require(step_tokens >= 1, f"`step_tokens` must be at least 1, got {step_tokens}")
    require(experts_count <= 2**10, f"`experts_count` must be at most 1024, got {experts_count}")


def _urn_maximum(groups: int, size: float, draws: int, deviation: float) -> float:
    """E[max] of the counts when `draws` balls are taken from `groups` urns of `size` balls (infinite: multinomial).

    P(max <= x) is the coefficient of z^draws in (sum_{j<=x} w_j z^j)^groups over the same sum without the limit, with
    w_j = C(size, j), or 1/j! for infinite urns; every term is positive, so nothing cancels.
    """
    mean = draws / groups
    low = max(0, int(mean - _SPREAD * deviation) - 1)
    high = min(draws, int(mean + _SPREAD * deviation) + 2)
    counts = np.arange(low, (high if np.isinf(size) else min(high, int(size + 0.5))) + 1, dtype=np.float64)
    if np.isinf(size):
        log_weight = counts * np.log(mean) - gammaln(counts + 1)
    else:
        # The factor odds^j is common to all terms of one coefficient; it centres the weights on the mean.
        odds = mean / max(size - mean, mean * np.finfo(np.float64).eps)
        log_weight = counts * np.log(odds) - gammaln(counts + 1) - gammaln(np.maximum(size - counts, 0.0) + 1)
    weight = np.exp(log_weight - log_weight.max())
    index = draws - groups * low
    whole = _power_coefficient(weight, groups, index)
    first = max(int(np.ceil(mean)), low)
    every = np.arange(first, int(counts[-1]))
    if len(every) == 0:
        return float(first)
    # A wide tail is smooth: a spline through every few counts sums it to 1e-4 of the mean.
    some = np.unique(np.linspace(every[0], every[-1], min(len(every), 2 * _TAIL_POINTS)).round().astype(int))
    tail = [1.0 - _power_coefficient(weight[: x - low + 1], groups, index) / whole for x in some.tolist()]
    return first + float(np.sum(tail if len(some) == len(every) else CubicSpline(some, tail)(every)))


def _power_coefficient(weight: FloatArray, power: int, index: int) -> float:
    """Coefficient of z^index in weight(z)^power."""
    if index > power * (len(weight) - 1):
        return 0.0
    half = _power(weight, power // 2, index)
    other = half if power % 2 == 0 else np.convolve(half, weight)[: index + 1]
    at = np.arange(max(0, index - len(other) + 1), min(len(half) - 1, index) + 1)
    return float(np.dot(half[at], other[index - at]))


def _power(weight: FloatArray, power: int, limit: int) -> FloatArray:
    if power == 0:
        return np.ones(1)
    if power == 1:
        return weight[: limit + 1]
    half = _power(weight, power // 2, limit)
    square = np.convolve(half, half)[: limit + 1]
    return square if power % 2 == 0 else np.convolve(square, weight)[: limit + 1]


@cache
def _group_maximum(experts_count: int, groups: int) -> FloatArray:
    """(E + 1,) E[max over groups] when m of E experts in equal groups are touched, for every m at once."""
    size = experts_count // groups
    counts = np.arange(size + 1, dtype=np.float64)
    # Divided by 2^size, so that products of all groups stay within float64.
    weight = np.exp(gammaln(size + 1) - gammaln(counts + 1) - gammaln(size - counts + 1) - size * np.log(2))
    whole = _power(weight, groups, experts_count)
    expected = np.zeros(experts_count + 1)
    for x in range(size):
        below = _power(weight[: x + 1], groups, experts_count)
        expected += 1.0 - np.pad(below, (0, experts_count + 1 - len(below))) / whole
    return expected


def _touched_experts(experts_count: int, experts_per_token: int, step_tokens: int) -> FloatArray:
    """(E + 1,) distribution of the number of distinct experts that `step_tokens` tokens touch."""
    e, k = experts_count, experts_per_token
    touched = np.arange(e + 1, dtype=np.float64)
    step = np.stack([_hypergeometric(e, e - touched, k, new) for new in range(k + 1)])
    state = np.zeros(e + 1)
    state[0] = 1.0
    for _ in range(step_tokens):
        moved = np.zeros(e + 1)
        for new in range(k + 1):
            moved[new:] += (state * step[new])[: e + 1 - new]
        state = moved
        if state[-1] > 1.0 - np.finfo(np.float64).eps:
            break
    return np.asarray(state / state.sum(), dtype=np.float64)


def _hypergeometric(balls: int, marked: FloatArray, draws: int, hits: int) -> FloatArray:
    """P(hits) for `draws` without replacement from `balls` of which `marked` count."""
    possible = (marked >= hits) & (balls - marked >= draws - hits)
    safe = np.where(possible, marked, hits if balls - hits >= draws - hits else balls)
    log_p = (
        _log_choose(safe, hits) + _log_choose(balls - safe, draws - hits) - _log_choose(np.array(float(balls)), draws)
    )
    return np.asarray(np.where(possible, np.exp(log_p), 0.0), dtype=np.float64)


def _log_choose(n: FloatArray, k: int) -> FloatArray:
    return np.asarray(gammaln(n + 1) - gammaln(k + 1.0) - gammaln(n - k + 1), dtype=np.float64)


@cache
def _normal_maximum(count: int) -> float:
    """Expected maximum of `count` independent standard normals."""
    x = np.linspace(0.0, _SPREAD, _QUADRATURE_POINTS)
    above, below = 1.0 - ndtr(x) ** count, ndtr(-x) ** count
    return float(np.trapezoid(above - below, x))
