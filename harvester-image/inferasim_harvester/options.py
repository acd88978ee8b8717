"""How a harvest runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from inferasim_harvester import device
from inferasim_harvester.measure import Precision


@dataclass(frozen=True)
class Options:
    """How the harvest runs; none of it changes what is measured, except the precision."""

    engine_url: str | None = None
    gpu_metrics_url: str | None = None
    node: str | None = None
    start_timeout_s: float = 3600.0
    stall_s: float = 120.0
    port: int = 8000
    decode: Precision = field(default_factory=Precision)
    prefill: Precision = field(default_factory=lambda: Precision(target_frac=0.003, minimum=10, maximum=40))
    client_command: str = "python -m inferasim_harvester run"
    sysfs: Path = device.SYSFS
