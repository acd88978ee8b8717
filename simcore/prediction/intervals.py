"""80 % intervals, wider with the distance from what was measured; data in `simcore/data/calibration/intervals.yaml`.

The spread of each distance was learnt on the open corpora with every series predicted by laws calibrated without it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from simcore.data.loader import read_data
from simcore.errors import FormatError

INTERVALS_FILE = "calibration/intervals.yaml"
TERMS = (
    "base", "width", "borrowed", "stage", "prompt", "output", "batch", "disaggregated", "unknown_pools", "queueing",
    "no_card", "prefixes", "host_tier",
)  # fmt: skip
"""Log half-widths: the first always, the others per doubling or once where the distance has them."""

COVERED_PER_MEDIAN = 1.9
"""80 % half-width over median absolute error of a normal distribution: 1.2816 / 0.6745."""


@dataclass(frozen=True)
class Distance:
    """How far a prediction is from what was measured; the interval grows with it."""

    width_doublings: float = 0.0
    stage_doublings: float = 0.0
    prompt_doublings: float = 0.0
    output_doublings: float = 0.0
    batch_doublings: float = 0.0
    """Beyond the largest measured batch."""
    is_disaggregated: bool = False
    is_queueing: bool = False
    has_unknown_pools: bool = False
    """The table does not say how many replicas a pool has."""
    shares_prefixes: bool = False
    """Prefix hits are simulated; the corpora share nothing."""
    has_host_tier: bool = False
    """A KV tier in host memory, at the steps of an engine without one."""
    is_borrowed: bool = False
    """The width moved on an accelerator kept for validation: its tables mix engine builds of many months."""
    residual_frac: Mapping[str, float] = field(default_factory=dict, hash=False)
    """Median error by quantity with which a fitted anchor gives back its own rows; empty for a harvest."""


@dataclass(frozen=True)
class IntervalCalibration:
    """Log half-width of the 80 % interval by quantity and distance."""

    half_widths: Mapping[str, Mapping[str, float]]

    def half_width(self, quantity: str, distance: Distance, *, has_card: bool = True) -> float:
        """Log half-width: independent parts add in squares, each growing with its doublings."""
        parts = self.half_widths[quantity]
        amounts = {
            "base": 1.0,
            "width": distance.width_doublings,
            "borrowed": distance.width_doublings if distance.is_borrowed else 0.0,
            "stage": distance.stage_doublings,
            "prompt": distance.prompt_doublings,
            "output": distance.output_doublings,
            "batch": distance.batch_doublings,
            "disaggregated": float(distance.is_disaggregated),
            "unknown_pools": float(distance.has_unknown_pools),
            "queueing": float(distance.is_queueing),
            "no_card": float(not has_card),
            "prefixes": float(distance.shares_prefixes),
            "host_tier": float(distance.has_host_tier),
        }
        squares = [(parts[term] * math.sqrt(amount)) ** 2 for term, amount in amounts.items()]
        squares.append((COVERED_PER_MEDIAN * distance.residual_frac.get(quantity, 0.0)) ** 2)
        return math.sqrt(sum(squares))

    def interval(
        self, quantity: str, value: float, distance: Distance, *, has_card: bool = True
    ) -> tuple[float, float]:
        """(low, high) around `value`."""
        factor = math.exp(self.half_width(quantity, distance, has_card=has_card))
        return value / factor, value * factor


@cache
def interval_calibration() -> IntervalCalibration:
    """The shipped intervals. Raises FormatError when a term is missing or has no source."""
    return intervals_from(read_data(INTERVALS_FILE))


def intervals_from(raw: Any, where: str = INTERVALS_FILE) -> IntervalCalibration:
    """Intervals in plain data: {source, quantities: {tpot: {base: …}}}. Raises FormatError."""
    if not isinstance(raw, Mapping) or not raw.get("source"):
        raise FormatError(where, None, "source", None, "be given")
    found: dict[str, dict[str, float]] = {}
    for quantity in ("tpot", "ttft", "throughput"):
        terms = raw.get("quantities", {}).get(quantity, {})
        if set(terms) != set(TERMS):
            raise FormatError(where, None, quantity, sorted(terms), f"hold exactly {', '.join(TERMS)}")
        for term, value in terms.items():
            if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
                raise FormatError(where, None, f"{quantity}.{term}", value, "be a number of at least 0")
        found[quantity] = {term: float(value) for term, value in terms.items()}
    return IntervalCalibration(found)
