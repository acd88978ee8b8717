"""What the GPUs themselves say: architecture, partition, memory, whether anything else runs, whether they throttle."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from inferasim_harvester.metrics_page import Sample

SYSFS: Final = Path("/sys")
VIOLATION: Final = "violation"
"""Part of the exporter's throttle counters (GPU_VIOLATION_*)."""


@dataclass(frozen=True)
class Device:
    """One GPU as its driver reports it; None where the driver does not say."""

    partition: str | None
    memory_bytes: int | None
    used_bytes: int | None
    busy_pct: int | None


def devices(root: Path = SYSFS) -> list[Device]:
    """The AMD GPUs of sysfs (amdgpu driver); empty without any."""
    found = []
    for card in sorted((root / "class" / "drm").glob("card[0-9]*")):
        device = card / "device"
        if _text(device / "vendor") != "0x1002" or "-" in card.name:
            continue
        compute, memory = _text(device / "current_compute_partition"), _text(device / "current_memory_partition")
        found.append(
            Device(
                f"{compute}_{memory}".lower() if compute and memory else None,
                _number(device / "mem_info_vram_total"),
                _number(device / "mem_info_vram_used"),
                _number(device / "gpu_busy_percent"),
            )
        )
    return found


def architecture(root: Path = SYSFS) -> str | None:
    """The LLVM target of the first GPU node, e.g. gfx950, from the compute driver's topology."""
    nodes = root / "class" / "kfd" / "kfd" / "topology" / "nodes"
    for properties in sorted(nodes.glob("*/properties")):
        for line in (_text(properties) or "").splitlines():
            name, _, value = line.partition(" ")
            if name == "gfx_target_version" and value.strip().isdigit() and int(value) > 0:
                number = int(value)
                return f"gfx{number // 10000}{number // 100 % 100:x}{number % 100:x}"
    return None


def violations(samples: Sequence[Sample]) -> float | None:
    """Sum of the exporter's throttle counters; None without any, or where one is no number."""
    values = [sample.value for sample in samples if VIOLATION in sample.name.lower()]
    return sum(values) if values and all(math.isfinite(value) for value in values) else None


def _text(path: Path) -> str | None:
    with contextlib.suppress(OSError, UnicodeDecodeError):
        return path.read_text(encoding="ascii").strip()
    return None


def _number(path: Path) -> int | None:
    text = _text(path)
    return int(text) if text is not None and text.isdigit() else None
