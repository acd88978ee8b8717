"""Predicted against observed, only where the load is the one that was predicted; else the reason, and no number."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from inferasim_operator.live.window import Window

MIN_REQUESTS: Final = 30
"""Below this a mean over a window says nothing: one slow request is 3 % of it (case B13)."""
LENGTH_TOLERANCE_FRAC: Final = 0.1
CONCURRENCY_TOLERANCE_FRAC: Final = 0.25
SHARE_TOLERANCE_FRAC: Final = 0.05
LITTLE_TOLERANCE_FRAC: Final = 0.25


@dataclass(frozen=True)
class Promise:
    """What was predicted for a deployment, and for which load."""

    ttft_s: float
    tpot_s: float
    tokens_per_s_per_gpu: float
    gpus_per_replica_count: int
    concurrency_per_replica: float
    prompt_tokens: float
    output_tokens: float
    shared_prefix_tokens: int = 0
    block_tokens: int = 16
    acceptance_length_tokens: float | None = None
    """None = no speculation."""


QUANTILES: Final = (0.5, 0.9, 0.99)


@dataclass(frozen=True)
class Figure:
    """One figure: what was promised, what is seen, and (seen - promised) / promised."""

    predicted: float
    observed: float
    error_ratio: float


@dataclass(frozen=True)
class Comparison:
    """Figures by name; or why there are none."""

    figures: dict[str, Figure]
    reasons: tuple[str, ...]
    """Why the load is not the predicted one; then there is no figure of any kind."""
    missing: tuple[str, ...] = ()
    """Figures that the targets do not say."""
    seen: dict[str, float] = field(default_factory=dict)
    """Observed figures that nothing was predicted for: `kvUse`, `prefixHit`, `acceptanceLength`."""
    quantiles: dict[tuple[str, float], tuple[float, float]] = field(default_factory=dict)
    """By figure and share, the bucket that holds the quantile: a histogram knows no point."""
    replicas_count: int = 0
    """Replicas that were observed (case D04); 0 = not known."""
    requests_count: float = 0.0


def expected_hit_frac(*, prompt_tokens: float, shared_prefix_tokens: int, block_tokens: int) -> float:
    """Share of a prompt that a shared prefix saves: whole blocks only (case B06: 1024 of 4000 in 16s is 25.6 %)."""
    return shared_prefix_tokens // block_tokens * block_tokens / prompt_tokens


def compare(
    promise: Promise, seen: Window, latency: Window | None = None, *, gpus_count: int | None = None
) -> Comparison:
    """`seen` is all engines of the deployment; `latency` where latency is measured elsewhere (the EPP), else `seen`.

    `gpus_count` is what the observed replicas hold, where that is not replicas times GPUs per replica.
    """
    clock = latency if latency is not None else seen
    requests_count = clock.requests_count() or 0.0
    reasons = incomparable(promise, seen, clock)
    if reasons:
        return Comparison({}, reasons, replicas_count=seen.targets_count, requests_count=requests_count)
    throughput = seen.generated_tokens_per_s()
    gpus_count = gpus_count or promise.gpus_per_replica_count * seen.targets_count
    observed = {
        "ttft": (promise.ttft_s, clock.mean("ttft")),
        "tpot": (promise.tpot_s, clock.mean("tpot")),
        "throughput": (promise.tokens_per_s_per_gpu, None if throughput is None else throughput / gpus_count),
    }
    figures = {
        name: Figure(predicted, value, value / predicted - 1)
        for name, (predicted, value) in observed.items()
        if value is not None and predicted > 0
    }
    others = {
        "kvUse": seen.gauges.get("kvUse"),
        "prefixHit": seen.prefix_hit_frac(),
        "acceptanceLength": seen.acceptance_length_tokens(),
    }
    return Comparison(
        figures,
        (),
        tuple(name for name in observed if name not in figures),
        {name: value for name, value in others.items() if value is not None},
        _quantiles(clock),
        seen.targets_count,
        requests_count,
    )


def exceeded(comparison: Comparison, tolerance_frac: Mapping[str, float]) -> tuple[str, ...]:
    """The figures that are further from their prediction than is tolerated."""
    return tuple(
        name
        for name, limit_frac in tolerance_frac.items()
        if name in comparison.figures and abs(comparison.figures[name].error_ratio) > limit_frac
    )


def _quantiles(clock: Window) -> dict[tuple[str, float], tuple[float, float]]:
    found = {}
    for name in ("ttft", "tpot"):
        for share_frac in QUANTILES:
            ends = clock.histograms[name].quantile_interval(share_frac) if name in clock.histograms else None
            if ends is not None:
                found[name, share_frac] = ends
    return found


def incomparable(promise: Promise, seen: Window, clock: Window) -> tuple[str, ...]:
    """Every way in which the load differs from the predicted one; what cannot be told counts as different."""
    requests_count = clock.requests_count()
    if requests_count is None:
        return ("the targets do not say how many requests they served",)
    if requests_count < MIN_REQUESTS:
        return (f"{requests_count:.0f} requests in the window, at least {MIN_REQUESTS} are needed",)
    if seen.is_restarted or clock.is_restarted:
        return ("an engine was restarted within the window",)
    in_flight = _in_flight(seen)
    per_replica = None if in_flight is None else in_flight / seen.targets_count
    reasons = [
        _off("mean prompt length", clock.prompt_tokens(), promise.prompt_tokens, LENGTH_TOLERANCE_FRAC),
        _off("mean output length", clock.output_tokens(), promise.output_tokens, LENGTH_TOLERANCE_FRAC),
        _off(
            "requests in flight per replica", per_replica, promise.concurrency_per_replica, CONCURRENCY_TOLERANCE_FRAC
        ),
        _unsteady(clock, in_flight),
        _prefix(promise, seen),
        _acceptance(promise, seen),
    ]
    return tuple(reason for reason in reasons if reason)


def _off(name: str, observed: float | None, wanted: float, tolerance_frac: float) -> str:
    if observed is None:
        return f"the targets do not say the {name}"
    if abs(observed - wanted) <= tolerance_frac * wanted:
        return ""
    return f"{name} is {_told(observed)}, predicted for {wanted:.4g}"


def _told(value: float) -> str:
    """Three digits: a reason that is written down must not change with every scrape."""
    return f"{float(f'{value:.3g}'):.12g}"


def _in_flight(seen: Window) -> float | None:
    if "running" not in seen.gauges:
        return None
    return seen.gauges["running"] + seen.gauges.get("waiting", 0.0)


def _unsteady(clock: Window, in_flight: float | None) -> str:
    """Little's law: requests in flight = arrival rate x time in the system, or the window is no steady state."""
    mean_s, requests_count = clock.mean("e2e"), clock.requests_count()
    if in_flight is None or mean_s is None or not requests_count:
        return ""
    expected = requests_count / clock.duration_s * mean_s
    if abs(expected - in_flight) <= LITTLE_TOLERANCE_FRAC * max(expected, in_flight):
        return ""
    return f"not steady: {_told(in_flight)} requests in flight, rate x latency says {_told(expected)}"


def _prefix(promise: Promise, seen: Window) -> str:
    expected = expected_hit_frac(
        prompt_tokens=promise.prompt_tokens,
        shared_prefix_tokens=promise.shared_prefix_tokens,
        block_tokens=promise.block_tokens,
    )
    # Engines without a prefix cache do not count what it would have held.
    observed = seen.prefix_hit_frac() or 0.0
    if abs(observed - expected) <= SHARE_TOLERANCE_FRAC:
        return ""
    return f"{observed:.0%} of prompt tokens were in the prefix cache, predicted for {expected:.0%}"


def _acceptance(promise: Promise, seen: Window) -> str:
    wanted, observed = promise.acceptance_length_tokens, seen.acceptance_length_tokens()
    if wanted is None:
        return "" if observed is None else f"speculation is on (acceptance length {_told(observed)}), predicted without"
    return _off("acceptance length", observed, wanted, LENGTH_TOLERANCE_FRAC)
