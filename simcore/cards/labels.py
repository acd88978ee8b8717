"""What AMD node labels say, and what they do not (public case A26): the model by device id, never by the VRAM label."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from simcore.cards.accelerator import AcceleratorCard
from simcore.cards.library import accelerator_by_device_id, known_accelerators, load_accelerator_card
from simcore.errors import UnknownNameError

PREFIX = "amd.com/gpu."
LEGACY_PREFIX = "beta.amd.com/gpu."
PLANNING_PARTITION = "spx_nps1"
"""The only partition mode that plans and anchors are made for: one device per GPU, all of its memory."""
_DEVICES_PER_GPU = {"spx": 1, "dpx": 2, "tpx": 3, "qpx": 4, "cpx": 8}
"""Compute partitions of one MI300-class GPU (CPX: one per die)."""


@dataclass(frozen=True)
class NodeAccelerators:
    """The accelerators of one node as the planner understands its labels."""

    product: str | None
    """Card name, or None when the labels do not tell."""
    virtual_function: bool
    partition: str | None
    devices_per_gpu: int
    memory_bytes_per_gpu: int | None
    """Of the whole GPU: with NPS1 its compute partitions share it, whatever the VRAM label says."""
    allocatable_devices: int | None
    gpus: int | None
    """Whole GPUs that can be planned on; 0 where nothing is allocatable."""
    notes: tuple[str, ...]

    @property
    def can_plan(self) -> bool:
        """Is this a node that plans may use: a known product, unpartitioned, with capacity?"""
        return self.product is not None and self.partition == PLANNING_PARTITION and bool(self.gpus)

    def matches_anchor(self, *, product: str, partition: str) -> bool:
        """An anchor is usable here only if it was measured on the same product in the same partition mode."""
        return self.product == product and self.partition == partition


def read_node_labels(labels: Mapping[str, str], *, allocatable_devices: int | None = None) -> NodeAccelerators:
    """The accelerators that `labels` describe; tolerant: what is missing or contradictory becomes a note."""
    notes: list[str] = []
    card, virtual = _product(labels, notes)
    partition = _label(labels, "compute-memory-partition")
    if partition is None:
        compute, memory = _label(labels, "compute-partition"), _label(labels, "memory-partition")
        partition = f"{compute}_{memory}".lower() if compute and memory else None
    partition = None if partition is None else partition.lower()
    devices = _DEVICES_PER_GPU.get((partition or "spx").split("_")[0], 1)
    if partition is None:
        notes.append("no partition label: the node is not planned on until it says spx_nps1")
    elif partition != PLANNING_PARTITION:
        parts = _memory_parts(partition)
        memory = "share its memory" if parts == 1 else f"share its memory in {parts} parts"
        notes.append(f"partition {partition}: {devices} devices per GPU {memory}; anchors of spx_nps1 do not apply")
    gpus = None if allocatable_devices is None else allocatable_devices // devices
    if allocatable_devices == 0:
        notes.append("no capacity: nothing is allocatable")
    memory_bytes = None if card is None else card.hbm_bytes
    _compare_vram(labels, card, {1, _memory_parts(partition), devices if _memory_parts(partition) > 1 else 1}, notes)
    return NodeAccelerators(
        product=None if card is None else card.name,
        virtual_function=virtual,
        partition=partition,
        devices_per_gpu=devices,
        memory_bytes_per_gpu=memory_bytes,
        allocatable_devices=allocatable_devices,
        gpus=gpus,
        notes=tuple(notes),
    )


def _label(labels: Mapping[str, str], name: str) -> str | None:
    """The value of a label in its current, legacy or counted spelling (`<key>.<value>=count`)."""
    for prefix in (PREFIX, LEGACY_PREFIX):
        if labels.get(prefix + name):
            return str(labels[prefix + name])
        counted = [key for key in labels if key.startswith(f"{prefix}{name}.")]
        if len(counted) == 1:
            return counted[0].removeprefix(f"{prefix}{name}.")
    return None


def _product(labels: Mapping[str, str], notes: list[str]) -> tuple[AcceleratorCard | None, bool]:
    """The card by device id; a product name is believed only where there is no id."""
    device, name = _label(labels, "device-id"), _label(labels, "product-name")
    named = None if name is None else _product_by_name(name)
    if device is not None:
        found = accelerator_by_device_id(device)
        if found is None:
            notes.append(f"device id {device} is not a known accelerator")
            return None, False
        if named is not None and named.name != found[0].name:
            notes.append(
                f"label product-name={name} contradicts device id {device}, {found[0].name}: the id is believed"
            )
        return found
    if name is None:
        notes.append("neither a device id nor a product name: the accelerator is unknown")
    elif named is None:
        notes.append(f"product name {name} is not a known accelerator")
    return named, False


def _product_by_name(name: str) -> AcceleratorCard | None:
    try:
        return load_accelerator_card(name)
    except UnknownNameError:
        inside = [known for known in known_accelerators(for_planning=True) if known.lower() in name.lower()]
        return load_accelerator_card(inside[0]) if inside else None


def _memory_parts(partition: str | None) -> int:
    """Memory domains of one GPU: n of `NPSn`, the same address space for all partitions where n is 1."""
    match = re.search(r"nps(\d)$", partition or "")
    return max(int(match.group(1)), 1) if match else 1


def _compare_vram(labels: Mapping[str, str], card: AcceleratorCard | None, shares: set[int], notes: list[str]) -> None:
    """The VRAM label is never used; where it is none of the `shares` of the card's memory, say so."""
    text = _label(labels, "vram")
    match = None if text is None else re.fullmatch(r"(\d+)\s*([GM])i?B?", text.strip(), flags=re.IGNORECASE)
    if card is None or match is None:
        return
    label_bytes = int(match.group(1)) << (30 if match.group(2).upper() == "G" else 20)
    if all(10 * abs(label_bytes * share - card.hbm_bytes) > card.hbm_bytes for share in shares):
        notes.append(
            f"label vram={text} contradicts {card.name}, whose GPU has {card.hbm_bytes} B: the label is not used"
        )
