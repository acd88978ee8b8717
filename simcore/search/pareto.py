"""The Pareto front of candidates: throughput per GPU and interactivity up, TTFT and GPUs down."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def pareto_front(values: NDArray[np.float64], *, maximise: tuple[bool, ...]) -> NDArray[np.int64]:
    """Indexes of the non-dominated rows, ascending. `values` is (n, d); rows with a NaN are never on the front.

    A row is dominated when another is at least as good in every column and better in one; equal rows are all kept.
    """
    if values.ndim != 2 or values.shape[1] != len(maximise):
        raise ValueError(f"values must be (n, {len(maximise)}), got {values.shape}")
    signs = np.where(np.asarray(maximise), -1.0, 1.0)
    costs = values * signs
    usable = np.flatnonzero(~np.isnan(costs).any(axis=1))
    # Lexicographic order: a row can be dominated only by one sorted before it (or an equal one).
    order = usable[np.lexsort(costs[usable].T[::-1])]
    front = np.empty((0, costs.shape[1]))
    kept: list[int] = []
    for index in order:
        row = costs[index]
        if kept:
            no_worse = (front <= row).all(axis=1)
            if (no_worse & (front < row).any(axis=1)).any():
                continue
        kept.append(int(index))
        front = np.vstack([front, row])
    return np.array(sorted(kept), dtype=np.int64)
