"""How many pods a search is worth: from the spec alone, so that every pass over a plan says the same. Pure."""

from __future__ import annotations

from inferasim_operator.api.v1alpha1.servingplan import ServingPlanSpec
from simcore.cards.library import load_accelerator_card
from simcore.errors import InputError
from simcore.search.replicas import replica_counts, replica_steps

CANDIDATES_PER_SHARD = 5_000
"""A shard takes seconds to a minute of one core, and its result fits a ConfigMap (235 bytes a simulation, measured)."""
DRAWN_CANDIDATES_PER_SHARD = 500
"""Of workloads without a closed form, whose simulations take 10 to 100 times as long."""
MOST_SHARDS = 64


def pods_count(spec: ServingPlanSpec) -> int:
    """Pods of the search; 0 = it runs in the operator's own process, which mounts no volumes."""
    count = shards_count(spec)
    return count if count > 1 or spec.needs_volumes else 0


def shards_count(spec: ServingPlanSpec) -> int:
    """Parts that the search is cut into."""
    asked = spec.search.shards if spec.search is not None else None
    if spec.demands is not None or (spec.search is not None and spec.search.is_tried):
        return 1
    if asked is not None:
        return asked
    per_shard = CANDIDATES_PER_SHARD if spec.workload.fixed is not None else DRAWN_CANDIDATES_PER_SHARD
    if spec.load.concurrencies is None:
        per_shard = DRAWN_CANDIDATES_PER_SHARD
    return min(MOST_SHARDS, 1 + candidates_estimate(spec) // per_shard)


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
            most = gpu_budget_count // gpus_count
            tiers_count = 1 if spec.cluster.host_kv_gibibytes is None else 2
            if spec.load.concurrencies is None:
                total += layouts_count * tiers_count * sum(1 for _ in replica_steps(most))
            for concurrency in set(spec.load.concurrencies or ()):
                total += layouts_count * tiers_count * len(replica_counts(concurrency, most))
    return total
