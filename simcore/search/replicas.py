"""How many replicas are worth pricing; apart from the sweep, for an operator that sizes a search without running it."""

from __future__ import annotations

import math


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
