"""What a prediction says: values with their interval, mode, flags and source; and its document form."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from simcore.des.result import Distribution
from simcore.errors import InternalError
from simcore.units import MILLI

METRICS = ("ttft", "tpot", "throughput")
"""Metrics that carry an 80 % interval."""
TAILS = (0.9, 0.99, 0.999)


@dataclass(frozen=True)
class Source:
    """Where the step times come from."""

    mode: str
    """`anchored` or `simulate`."""
    anchor_name: str | None
    anchor_digest: str | None
    laws: Mapping[str, str]
    """Which law moved which part, e.g. decodeWidth: split-floor, with the reason."""
    refusals: Mapping[str, tuple[str, ...]]
    """Anchors that were at hand and not used, with the reasons."""
    constants: tuple[str, ...] = ()
    """Names of the constants the prediction relied on."""
    assumed: tuple[str, ...] = ()
    """What had to be assumed."""


@dataclass(frozen=True)
class Prediction:
    """One configuration under one load. Throughput is output tokens per second of the whole deployment."""

    label: str
    gpus_count: int
    concurrency: int | None
    source: Source
    flags: tuple[str, ...]
    ttft: Distribution
    """From arrival, as users and clients see it."""
    ttft_from_admission: Distribution
    """Without the wait for a place in the engine, as engines report it."""
    tpot: Distribution | None
    """None when no request has a second token."""
    itl: Distribution | None
    e2e: Distribution
    throughput_tokens_per_s: float
    requests_per_s: float
    requests_count: int
    interval80: Mapping[str, tuple[float, float]]
    """`ttft` and `tpot` in seconds, `throughput` in tokens per second; an infinite end is not known."""
    hit_rates: Mapping[str, Any]
    queueing: Mapping[str, float]
    preemptions_count: int
    kv_occupancy_frac: float | None
    """Peak of the rank that filled its KV pool most."""
    memory: Mapping[str, Any]
    step_breakdown: Mapping[str, Any]
    mean_kv_occupancy_frac: float | None = None
    """KV blocks in use by requests, averaged over the run and all ranks; None = unknown."""
    mixed_step_frac: float | None = None
    """Share of decode steps that also held a prefill; None = unknown."""
    mean_running: float | None = None
    """Decoding requests per step of all ranks, averaged over decode steps; None = unknown."""
    key: tuple[object, ...] = field(default=())
    """Total order among candidates, so that no choice depends on the order of input."""

    @property
    def ttft_s(self) -> float:
        return _stated(self.ttft)

    @property
    def tpot_s(self) -> float:
        return _stated(self.tpot) if self.tpot else 0.0

    @property
    def throughput_per_gpu_tokens_per_s(self) -> float:
        return self.throughput_tokens_per_s / self.gpus_count

    @property
    def interactivity_tokens_per_s(self) -> float | None:
        """Tokens per second that one user sees, 1/TPOT."""
        return 1.0 / self.tpot_s if self.tpot_s > 0 else None

    def document(self) -> dict[str, Any]:
        """The JSON form of design §5: camelCase, units in names, unknown = null."""
        low_high = self.interval80
        return {
            "layout": self.label,
            "gpus": self.gpus_count,
            "concurrency": self.concurrency,
            "mode": self.source.mode,
            "source": {
                "anchor": self.source.anchor_name,
                "anchorDigest": self.source.anchor_digest,
                "laws": dict(self.source.laws),
                "refusedAnchors": {name: list(why) for name, why in sorted(self.source.refusals.items())},
                "constants": sorted(self.source.constants),
                "assumed": sorted(self.source.assumed),
            },
            "flags": sorted(self.flags),
            "ttftMs": latency_document(self.ttft),
            "ttftFromAdmissionMs": latency_document(self.ttft_from_admission),
            "tpotMs": latency_document(self.tpot) if self.tpot else None,
            "itlMs": latency_document(self.itl) if self.itl else None,
            "e2eMs": latency_document(self.e2e),
            "throughputTokensPerSecond": _round(self.throughput_tokens_per_s),
            "throughputTokensPerSecondPerGpu": _round(self.throughput_per_gpu_tokens_per_s),
            "interactivityTokensPerSecond": _round(self.interactivity_tokens_per_s),
            "requestsPerSecond": _round(self.requests_per_s),
            "requests": self.requests_count,
            "interval80": {
                "ttftMs": [_ms(v) for v in low_high["ttft"]],
                "tpotMs": [_ms(v) for v in low_high["tpot"]] if self.tpot else None,
                "throughputTokensPerSecond": [_round(v) for v in low_high["throughput"]],
            },
            "hitRates": dict(self.hit_rates),
            "queueing": dict(self.queueing),
            "mixedStepFraction": _round(self.mixed_step_frac),
            "preemptions": self.preemptions_count,
            "kvOccupancyFraction": _round(self.kv_occupancy_frac),
            "meanKvOccupancyFraction": _round(self.mean_kv_occupancy_frac),
            "memory": dict(self.memory),
            "stepBreakdown": dict(self.step_breakdown),
        }


def latency_document(latency: Distribution) -> dict[str, float | None]:
    """Milliseconds under `mean`, `median`, `p90`, `p99`, `p999`; null where the sample is too small to say."""
    return {
        "mean": _ms(latency.mean_s),
        "median": _ms(latency.median_s),
        "p90": _ms(latency.p90_s),
        "p99": _ms(latency.p99_s),
        "p999": _ms(latency.p999_s),
    }


def _stated(latency: Distribution) -> float:
    if latency.mean_s is None:
        raise InternalError("a run without requests")
    return latency.mean_s


def _round(value: float | None) -> float | None:
    """Six significant digits: enough for any reader, and stable text."""
    return None if value is None or math.isinf(value) else float(f"{value:.6g}")


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else _round(seconds / MILLI)
