"""What a prediction says: values with their interval, mode, flags and source; and its document form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simcore.units import MILLI

METRICS = ("ttft", "tpot", "throughput")
"""Metrics that carry an 80 % interval."""


@dataclass(frozen=True)
class Stats:
    """Distribution of one latency over requests (ITL: over gaps), seconds; a tail is None where the sample is small."""

    mean_s: float
    median_s: float
    p90_s: float | None
    p99_s: float | None
    p999_s: float | None

    @classmethod
    def of(cls, values_s: NDArray[np.float64]) -> Stats | None:
        """Of measured values (n,); a tail only where the sample holds a value beyond it; None when empty."""
        count = len(values_s)
        if not count:
            return None
        tails = [
            float(np.percentile(values_s, share * 100)) if count * (1 - share) >= 1 - 1e-9 else None
            for share in (0.9, 0.99, 0.999)
        ]
        return cls(float(values_s.mean()), float(np.median(values_s)), *tails)

    def document(self) -> dict[str, float | None]:
        """Milliseconds under the names `mean`, `median`, `p90`, `p99`, `p999`."""
        return {
            "mean": _ms(self.mean_s),
            "median": _ms(self.median_s),
            "p90": _ms(self.p90_s),
            "p99": _ms(self.p99_s),
            "p999": _ms(self.p999_s),
        }


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
    ttft: Stats
    """From arrival, as users and clients see it."""
    ttft_from_admission: Stats
    """Without the wait for a place in the engine, as engines report it."""
    tpot: Stats | None
    """None when no request has a second token."""
    itl: Stats | None
    e2e: Stats
    throughput_tokens_per_s: float
    requests_per_s: float
    requests_count: int
    interval80: Mapping[str, tuple[float, float]]
    """`ttft` and `tpot` in seconds, `throughput` in tokens per second."""
    hit_rates: Mapping[str, Any]
    queueing: Mapping[str, float]
    preemptions_count: int
    kv_occupancy_frac: float | None
    memory: Mapping[str, Any]
    step_breakdown: Mapping[str, Any]
    key: tuple[object, ...] = field(default=())
    """Total order among candidates, so that no choice depends on the order of input."""

    @property
    def ttft_s(self) -> float:
        return self.ttft.mean_s

    @property
    def tpot_s(self) -> float:
        return self.tpot.mean_s if self.tpot else 0.0

    @property
    def throughput_per_gpu_tokens_per_s(self) -> float:
        return self.throughput_tokens_per_s / self.gpus_count

    @property
    def interactivity_tokens_per_s(self) -> float | None:
        """Tokens per second that one user sees, 1/TPOT."""
        return 1.0 / self.tpot.mean_s if self.tpot and self.tpot.mean_s > 0 else None

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
            "ttftMs": self.ttft.document(),
            "ttftFromAdmissionMs": self.ttft_from_admission.document(),
            "tpotMs": self.tpot.document() if self.tpot else None,
            "itlMs": self.itl.document() if self.itl else None,
            "e2eMs": self.e2e.document(),
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
            "preemptions": self.preemptions_count,
            "kvOccupancyFraction": _round(self.kv_occupancy_frac),
            "memory": dict(self.memory),
            "stepBreakdown": dict(self.step_breakdown),
        }


def _round(value: float | None) -> float | None:
    """Six significant digits: enough for any reader, and stable text."""
    return None if value is None else float(f"{value:.6g}")


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else _round(seconds / MILLI)
