"""Pipeline stages: hops, host time that pipelines stop overlapping, placement over nodes (Eq. 4, App. B.4 and C)."""

from __future__ import annotations

import numpy as np

from simcore.laws.domain import require_at_least, require_not_negative, require_positive
from simcore.laws.registry import OURS, PAPER, Quantity, law


@law(paper=PAPER, equation="App. B.4, scheduler host time")
def scheduler_host_time(*, batch_requests: Quantity, base_s: Quantity, s_per_request: Quantity) -> Quantity:
    """Scheduler time of one step that one stage overlaps with the GPU and a pipeline does not.

    Equation: H(b) = h0 + h1 b
    Args:
        batch_requests: b [request], in the micro-batch.
        base_s: h0 [s].
        s_per_request: h1 [s/request].
    Returns: H(b) [s].
    Domain: all not negative.
    Not modelled: engines that keep overlapping under pipelines.
    Source: paper App. B.4 (0.33 ms + 6.3 us per request on SGLang).

    >>> round(scheduler_host_time(batch_requests=64, base_s=0.33e-3, s_per_request=6.3e-6), 7)
    0.0007332
    """
    require_not_negative(batch_requests=batch_requests, base_s=base_s, s_per_request=s_per_request)
    return base_s + s_per_request * batch_requests


@law(paper=PAPER, equation="Eq. 4")
def pipeline_step(
    *, forward_s: Quantity, stages_count: Quantity, hop_s: Quantity, hop_overhead_s: Quantity, host_s: Quantity
) -> Quantity:
    """Time per token of a full pipeline: every request advances once per cycle.

    Equation: s_PP(C) = s(C/p) + p (t_p2p + o) + p H(C/p)
    Args:
        forward_s: s(C/p) [s], full-depth forward at the micro-batch size.
        stages_count: p [1].
        hop_s: t_p2p [s], transfer of one activation, mean over the hops.
        hop_overhead_s: o [s], engine cost of one hop.
        host_s: H(C/p) [s]; 0 while a single micro-batch is in flight.
    Returns: s_PP(C) [s].
    Domain: p at least 2 (one stage has no hop and needs no law); s above 0; the rest not negative.
    Not modelled: stages of unequal depth; a pipeline with fewer requests than stages (see `micro_batches`).
    Source: paper App. B.4, Eq. 4.

    >>> round(pipeline_step(forward_s=0.010, stages_count=2, hop_s=0.0, hop_overhead_s=0.001, host_s=0.0005), 9)
    0.013
    """
    require_at_least(2.0, stages_count=stages_count)
    require_positive(forward_s=forward_s)
    require_not_negative(hop_s=hop_s, hop_overhead_s=hop_overhead_s, host_s=host_s)
    return forward_s + stages_count * (hop_s + hop_overhead_s) + stages_count * host_s


@law(paper=PAPER, equation="App. B.4, micro-batches in flight")
def micro_batches(*, clients_requests: Quantity, stages_count: Quantity) -> Quantity:
    """Micro-batches that a pipeline keeps in flight; with one, no host time adds up.

    Equation: m = min(C, p)
    Args:
        clients_requests: C [1], requests in flight.
        stages_count: p [1].
    Returns: m [1]; each holds C/m requests.
    Domain: both at least 1.
    Not modelled: uneven micro-batches.
    Source: paper App. B.4 (`the clients split into p micro-batches`; with fewer clients than stages there are C).

    >>> micro_batches(clients_requests=1, stages_count=4)
    1.0
    """
    require_at_least(1.0, clients_requests=clients_requests, stages_count=stages_count)
    count = np.minimum(clients_requests, stages_count)
    return float(count) if np.ndim(count) == 0 else count


@law(paper=PAPER, equation="App. C.2, mean hop")
def mean_hop(
    *, stages_count: Quantity, nodes_count: Quantity, node_hop_s: Quantity, network_hop_s: Quantity
) -> Quantity:
    """Mean transfer time of a hop when contiguous stages are spread over nodes.

    Equation: t_p2p = (n t_net + (p - n) t_node) / p for n > 1, t_node for n = 1:
        n - 1 forward boundaries and the return of the token cross the network
    Args:
        stages_count: p [1].
        nodes_count: n [1].
        node_hop_s: t_node [s].
        network_hop_s: t_net [s].
    Returns: t_p2p [s].
    Domain: 1 <= n <= p.
    Not modelled: several boundaries that share one network card.
    Source: paper App. B.2 and C.2.

    >>> mean_hop(stages_count=4, nodes_count=2, node_hop_s=0.0, network_hop_s=8e-6)
    4e-06
    """
    require_at_least(1.0, nodes_count=nodes_count)
    require_at_least(nodes_count, stages_count=stages_count)
    require_not_negative(node_hop_s=node_hop_s, network_hop_s=network_hop_s)
    crossing = np.where(np.asarray(nodes_count) > 1, nodes_count, 0)
    hop = (crossing * network_hop_s + (stages_count - crossing) * node_hop_s) / stages_count
    return float(hop) if np.ndim(hop) == 0 else hop


@law(paper=PAPER, equation="App. C.2, hop inside a step")
def hop_inside_step(
    *, activation_bytes: Quantity, bytes_per_s: Quantity, wire_latency_s: Quantity, kernel_s: Quantity
) -> Quantity:
    """One activation transfer inside a step: wire latency, one kernel and the bytes.

    Equation: t = l + k + m / B
    Args:
        activation_bytes: m [bytes], tokens of the step times hidden size times element size.
        bytes_per_s: B [bytes/s].
        wire_latency_s: l [s], 0 inside a node.
        kernel_s: k [s], occupancy of one kernel.
    Returns: t [s].
    Domain: B above 0; the rest not negative.
    Not modelled: the eager launch of a standalone benchmark (its alpha of 44 us).
    Source: paper App. C.2.

    >>> round(hop_inside_step(activation_bytes=45e3, bytes_per_s=45e9, wire_latency_s=3e-6, kernel_s=5e-6), 9)
    9e-06
    """
    require_positive(bytes_per_s=bytes_per_s)
    require_not_negative(activation_bytes=activation_bytes, wire_latency_s=wire_latency_s, kernel_s=kernel_s)
    return wire_latency_s + kernel_s + activation_bytes / bytes_per_s


@law(paper=OURS, equation="serial pipeline")
def serial_pipeline_step(*, forward_s: Quantity, stages_count: Quantity, hop_s: Quantity) -> Quantity:
    """The simple pipeline model that the paper rejects: kept as a baseline that ours must beat.

    Equation: s_PP = s(C) + (p - 1) t_p2p
    Args:
        forward_s: s(C) [s], full-depth forward at the whole batch.
        stages_count: p [1].
        hop_s: t_p2p [s].
    Returns: s_PP [s].
    Domain: p at least 1; s above 0.
    Not modelled: everything that Eq. 4 adds.
    Source: paper App. B.4 and Table 7, column `serial`.

    >>> serial_pipeline_step(forward_s=0.5, stages_count=5, hop_s=0.125)
    1.0
    """
    require_at_least(1.0, stages_count=stages_count)
    require_positive(forward_s=forward_s)
    require_not_negative(hop_s=hop_s)
    return forward_s + (stages_count - 1) * hop_s
