"""Counting the nodes that carry a plan's accelerator. Reads; the labels are those of AMD's node labeller."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from inferasim_operator.api.v1alpha1.servingplan import ServingPlanSpec
from inferasim_operator.emit.nodes import node_labels
from inferasim_operator.engine.kind import Context
from simcore.cards.library import load_accelerator_card
from simcore.errors import InputError

GPU_RESOURCE = "amd.com/gpu"


@dataclass(frozen=True)
class Nodes:
    """The nodes that `cluster.discovery` finds, or why it cannot."""

    nodes_count: int = 0
    gpus_per_node: int = 0
    """Of the node with the fewest: a plan never promises a GPU that some node lacks."""
    may_list: bool = True
    problem: str = ""


def nodes(context: Context, spec: ServingPlanSpec) -> Nodes | None:
    """What there is, whatever runs on it now; None when the plan states its nodes."""
    discovery = spec.cluster.discovery
    if discovery is None:
        return None
    if not context.serves_all_namespaces:
        text = (
            "spec.cluster.discovery: this operator serves single namespaces and may not list nodes; state "
            "`nodes` and `gpusPerNode`, or install it with scope Cluster"
        )
        return Nodes(may_list=False, problem=text)
    try:
        card = load_accelerator_card(spec.cluster.accelerator)
    except InputError as error:
        return Nodes(problem=str(error))
    selector = ",".join(f"{name}={value}" for name, value in sorted((discovery.node_selector or {}).items()))
    found = [
        int(node["status"]["allocatable"][GPU_RESOURCE])
        for node in context.client.list("v1", "Node", labels=selector)
        if _carries(node, {*card.device_ids, *card.vf_device_ids})
    ]
    if not found:
        text = f"spec.cluster.discovery: no node with a healthy {card.name} (by label {node_labels()['deviceIdLabel']})"
        return Nodes(problem=text)
    return Nodes(len(found), min(found))


def resolved(spec: ServingPlanSpec, found: Nodes) -> ServingPlanSpec:
    """The spec with its nodes counted: what the answer and its digest depend on."""
    counts = {"nodes": found.nodes_count, "gpus_per_node": found.gpus_per_node, "discovery": None}
    return spec.model_copy(update={"cluster": spec.cluster.model_copy(update=counts)})


def _carries(node: Mapping[str, Any], device_ids: set[str]) -> bool:
    words = node_labels()
    labels = node["metadata"].get("labels") or {}
    gpus = ((node.get("status") or {}).get("allocatable") or {}).get(GPU_RESOURCE, "0")
    is_split = labels.get(words["partitionLabel"]) in words["splitPartitions"]
    return labels.get(words["deviceIdLabel"]) in device_ids and not is_split and str(gpus).isdigit() and int(gpus) > 0
