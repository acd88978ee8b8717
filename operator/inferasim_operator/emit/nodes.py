"""Which nodes a pod may run on: those that hold the accelerator the plan is for, unsplit."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from importlib import resources
from typing import Any

import yaml

from simcore.cards.library import load_accelerator_card
from simcore.errors import InputError


@functools.cache
def node_labels() -> Mapping[str, Any]:
    """How the labeller's labels tell an AMD GPU node: `deviceIdLabel`, `partitionLabel`, `splitPartitions`."""
    text = resources.files("inferasim_operator.emit").joinpath("data/nodes.yaml").read_text("utf-8")
    labels: Mapping[str, Any] = yaml.safe_load(text)
    return labels


def node_affinity(accelerator: str) -> dict[str, Any]:
    """Affinity to nodes with `accelerator` by device id, bare metal or virtual function. Raises UnknownNameError."""
    labels, ids = node_labels(), _device_ids(accelerator)
    expressions = [
        {"key": labels["deviceIdLabel"], "operator": "In", "values": ids},
        {"key": labels["partitionLabel"], "operator": "NotIn", "values": sorted(labels["splitPartitions"])},
    ]
    terms = {"nodeSelectorTerms": [{"matchExpressions": expressions}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}


def refuse_other_nodes(accelerator: str, selector: Mapping[str, str]) -> None:
    """A selector that no node of `node_affinity` can have would leave the pods pending for ever. Raises InputError."""
    labels = node_labels()
    partition, device = selector.get(labels["partitionLabel"]), selector.get(labels["deviceIdLabel"])
    if partition in labels["splitPartitions"]:
        raise InputError("pod.nodeSelector", partition, "not ask for split GPUs: the prediction is of whole ones")
    if device is not None and device not in _device_ids(accelerator):
        raise InputError("pod.nodeSelector", device, f"be a device id of {accelerator}")


def _device_ids(accelerator: str) -> list[str]:
    card = load_accelerator_card(accelerator)
    if card.validation_only or not card.device_ids:
        raise InputError("accelerator", accelerator, "be an AMD accelerator that can be planned for")
    return sorted({*card.device_ids, *card.vf_device_ids})
