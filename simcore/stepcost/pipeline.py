"""What a pipeline adds to a step: hops, and the host time that stops overlapping (Eq. 4)."""

from __future__ import annotations

from simcore.cards.layout import Engine, Layout
from simcore.cards.model import ModelCard
from simcore.data.constants import constant
from simcore.errors import InputError
from simcore.laws import pipeline as pipeline_laws
from simcore.laws.collectives import Collective, Tier, link
from simcore.stepcost.step import Pipeline
from simcore.stepcost.work import ACTIVATION_BYTES


def pipeline_of(
    layout: Layout, engine: Engine, model: ModelCard | None = None, nodes_count: int = 1
) -> tuple[Pipeline, tuple[str, ...]]:
    """Stage terms of `layout` and flags. The constants are SGLang's; other engines borrow them and are flagged.

    Raises InputError when the stages do not cover the nodes.
    """
    stages = layout.pipeline_parallel
    if not 1 <= nodes_count <= stages:
        must = f"keep each pipeline stage inside a node: {nodes_count} nodes, {stages} stages"
        raise InputError("layout", layout.label(), must, "a stage whose collectives cross nodes is not priced")
    if stages == 1:
        return Pipeline(), ()
    kernel = constant("kernel.occupancy_s").value
    activation = float(model.hidden * ACTIVATION_BYTES) if model else 0.0
    node, network = (
        pipeline_laws.hop_inside_step(
            activation_bytes=activation,
            bytes_per_s=link(
                collective=Collective.SEND_RECV, message_bytes=activation, gpus_count=2, tier=tier
            ).bytes_per_s,
            wire_latency_s=latency,
            kernel_s=kernel,
        )
        for tier, latency in ((Tier.NODE, 0.0), (Tier.NETWORK, constant("collective.nic.wire_latency_s").value))
    )
    hop = pipeline_laws.mean_hop(stages_count=stages, nodes_count=nodes_count, node_hop_s=node, network_hop_s=network)
    flags = () if engine is Engine.SGLANG else ("pipeline-constants-borrowed",)
    return (
        Pipeline(
            stages,
            float(hop) + constant("pipeline.hop_overhead_s").value,
            constant("pipeline.host_base_s").value,
            constant("pipeline.host_s_per_request").value,
        ),
        flags,
    )
