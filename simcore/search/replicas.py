"""How many replicas are worth pricing; apart from the sweep, for an operator that sizes a search without running it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

REPLICAS_GROWTH_FRAC: Final = 0.05
"""Replica counts above 20 are tried in steps of 5 %: the tier rule takes throughputs within 5 % for equal."""


def replica_counts(concurrency: int, largest_count: int) -> list[int]:
    """Replica counts worth pricing for `concurrency` clients: for each largest share ceil(C/r), the fewest replicas.

    More replicas with the same largest share only add idle GPUs. At most about 2·sqrt(C) counts remain.
    """
    counts: list[int] = []
    replicas = 1
    while replicas <= min(concurrency, largest_count):
        counts.append(replicas)
        share = math.ceil(concurrency / replicas)
        if share == 1:
            break
        replicas = math.ceil(concurrency / (share - 1))
    return counts


def replica_steps(largest_count: int) -> Iterator[int]:
    """Replica counts to try, one by one and then in steps of 5 %."""
    count = 1
    while count <= largest_count:
        yield count
        count = max(count + 1, math.ceil(count * (1.0 + REPLICAS_GROWTH_FRAC)))
