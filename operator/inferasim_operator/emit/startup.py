"""How long a server may take to start: from the bytes of its weights, not a fixed time (case D09)."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any, Final

import yaml

PERIOD_S: Final = 30


@functools.cache
def _records() -> Mapping[str, Mapping[str, Any]]:
    text = resources.files("inferasim_operator.emit").joinpath("data/startup.yaml").read_text("utf-8")
    records: Mapping[str, Mapping[str, Any]] = yaml.safe_load(text)
    return records


@dataclass(frozen=True)
class StartupBudget:
    """Periods of the startup probe, and what was assumed to find them."""

    failure_threshold: int
    assumed: tuple[str, ...]


def startup_budget(weight_bytes: int | None, load_bytes_per_s: int | None) -> StartupBudget:
    """The budget for weights of `weight_bytes` at a measured load rate; None = unknown, and then said so."""
    records = _records()
    if weight_bytes is None:
        seconds = float(records["unknownSizeSeconds"]["value"])
        return StartupBudget(math.ceil(seconds / PERIOD_S), ("startup budget: size of the weights unknown",))
    rate = load_bytes_per_s or int(records["loadBytesPerSecond"]["value"])
    factor = int(records["loadFactor"]["value"])
    seconds = int(records["fixedSeconds"]["value"]) + factor * weight_bytes / rate
    assumed = () if load_bytes_per_s else (f"startup budget: weights load at {rate} bytes per second",)
    return StartupBudget(math.ceil(seconds / PERIOD_S), assumed)
