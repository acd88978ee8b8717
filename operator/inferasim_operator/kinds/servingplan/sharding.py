"""How many pods a search is worth: from the spec alone, so that every pass over a plan says the same. Pure."""

from __future__ import annotations

from inferasim_operator.api.v1alpha1.servingplan import ServingPlanSpec
from simcore.cards.library import load_accelerator_card
from simcore.errors import InputError
from simcore.search.replicas import replica_counts

CANDIDATES_PER_SHARD = 5_000
"""A shard takes seconds to a minute of one core, and its result fits a ConfigMap (235 bytes a simulation, measured)."""
MOST_SHARDS = 64


def shards_count(spec: ServingPlanSpec) -> int:
    """Pods of the search; 1 = it runs in the operator's own process."""
    asked = spec.search.shards if spec.search is not None else None
    if (
        spec.load.concurrencies is None
        or spec.demands is not None
        or (spec.search is not None and spec.search.is_tried)
    ):
        return 1
    if asked is not None:
        return asked
    estimate = candidates_estimate(spec)
    return min(MOST_SHARDS, 1 + estimate // CANDIDATES_PER_SHARD)


def candidates_estimate(spec: ServingPlanSpec) -> int:
    """At most so many candidates, with power-of-two widths of one node: tensor, expert and attention data parallel.

    Counts what legality and memory will refuse, so a search is rather too wide than too narrow.
    """
    try:
        card_gpus_count = load_accelerator_card(spec.cluster.accelerator).gpus_per_node
    except InputError:
        return 0
    node_gpus_count = spec.cluster.gpus_per_node or card_gpus_count
    gpu_budget_count = spec.cluster.gpu_budget or node_gpus_count * (spec.cluster.nodes or 1)
    total = 0
    for engine in spec.engines:
        if engine.layouts is not None:
            widths = [((layout.tensor_parallel or 1) * (layout.data_parallel or 1), 1) for layout in engine.layouts]
        else:
            widths = [(1 << power, (power + 1) ** 2) for power in range(node_gpus_count.bit_length())]
        for gpus_count, layouts_count in widths:
            for concurrency in set(spec.load.concurrencies or ()):
                total += layouts_count * len(replica_counts(concurrency, gpu_budget_count // gpus_count))
    return total
