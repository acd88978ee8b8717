"""Which points a harvest measures, in which order, and what each is likely to cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from inferasim_harvester.spec import HarvestSpec

PACKED_COUNTS: Final = (2, 4, 8)
DRIFT: Final = "drift"
COLLECTIVES: Final = "collectives"
"""Kept with the points: the record of the collective benchmark."""
CLOCKS: Final = "clocks"
"""Kept with the points: how long the harvest took on the engine's clock and on ours."""


@dataclass(frozen=True)
class Point:
    """One measurement. `name` is its key in points.json, e.g. `decode/1024/8`."""

    name: str
    phase: str
    length: int
    count: int = 1
    is_filled: bool = False
    """Measured on the engine whose KV cache is filled without prefill."""

    @property
    def weight(self) -> float:
        """Rough share of the time: prompt tokens and sequence steps."""
        return self.length * self.count + (2_000.0 + 50.0 * self.count if self.phase == "Decode" else 2_000.0)


def points_of(spec: HarvestSpec) -> tuple[Point, ...]:
    """Prefill from long to short (the longest prompt times the others), decode from small to large, packed, drift."""
    sweeps = spec.sweeps
    points = [Point(f"prefill/{n}", "Prefill", n) for n in reversed(sweeps.prefill_lengths_tokens)]
    for index, length in enumerate(sweeps.decode_prompt_lengths_tokens):
        filled = index > 0 and sweeps.decode_only == "Enabled"
        points += [Point(f"decode/{length}/{b}", "Decode", length, b, filled) for b in sweeps.decode_batches]
    billed = sweeps.decode_prompt_lengths_tokens[0]
    if sweeps.packed_prefill_probe == "Enabled":
        longest = sweeps.prefill_lengths_tokens[-1]
        # A packed step is judged against one sequence of the same tokens, so it stays inside the prefill sweep.
        counts = [k for k in PACKED_COUNTS if k * billed <= longest]
        points += [Point(f"packed/{billed}/{k}", "Packed", billed, k) for k in counts]
    points.append(Point(DRIFT, "Checking", billed, sweeps.decode_batches[0]))
    return tuple(points)


def longest_inside(lengths: Sequence[int], token_budget: int | None) -> int:
    """The longest prompt that is computed in one step; the shortest when none is."""
    inside = [n for n in lengths if token_budget is None or n <= token_budget]
    return max(inside) if inside else min(lengths)
