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
VIOLATION: Final = "gpu_violation_"
"""Before the cause, in the exporter's names (GPU_VIOLATION_*_RESIDENCY_ACCUMULATED)."""
_NO_CAUSES: Final = ("current", "low_utilization", "gfx_clock_below_host_limit_total")
"""The count of all samples, which always grows; idle clocks; a sum of the others (amdsmi_violation_status_t)."""
UNSUPPORTED: Final = 1.8e19
"""The largest 64-bit number stands for: not supported (amdsmi)."""


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


def violations(samples: Sequence[Sample]) -> dict[str, float] | None:
    """The exporter's throttle counters by cause, summed over GPUs; None without any, or where one is no number.

    Each counts the samples of the power controller in which the cause held the clock down.
    """
    found: dict[str, float] = {}
    for sample in samples:
        _, marker, cause = sample.name.lower().partition(VIOLATION)
        if not marker or not cause.endswith("_accumulated") or cause.startswith(_NO_CAUSES):
            continue
        if not math.isfinite(sample.value):
            return None
        if sample.value < UNSUPPORTED:
            cause = cause.removesuffix("_accumulated").removesuffix("_residency")
            found[cause] = found.get(cause, 0.0) + sample.value
    return found or None


def _text(path: Path) -> str | None:
    with contextlib.suppress(OSError, UnicodeDecodeError):
        return path.read_text(encoding="ascii").strip()
    return None


def _number(path: Path) -> int | None:
    text = _text(path)
    return int(text) if text is not None and text.isdigit() else None
