"""Intervals that hold what a second run says: with slower or faster steps, or with clients that drift apart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from simcore.des.config import Deployment, Pool
from simcore.des.workload.batch import Workload
from simcore.prediction.outcome import simulated_outcome
from simcore.prediction.result import Prediction
from simcore.units import MILLI

SEND_SPREAD_S: Final = MILLI
"""Assumed: up to so long after an answer a client sends its next request. A tenth of it moves mean TTFT by 3 % at most
in eleven loads looked at: what counts is that clients do not act at one instant."""
IN_STEP_FRAC: Final = 0.1
"""Assumed: a TTFT that changes by more than this share when clients drift apart is worth a flag."""
IN_STEP: Final = "clients-in-step"
"""Flag of such a prediction."""


def interval_under_arrivals(
    found: Prediction, deployment: Deployment, workload: Workload, *, seed: int, warmup_requests: int
) -> Mapping[str, tuple[float, float]]:
    """The 80 % interval of `found`, wider where requests come whether the engine is ready or not.

    Its widths were calibrated on closed loops, whose clients wait. Here the run is simulated again with every step
    faster and slower by the interval of the throughput; an end moves out to what that run says. A closed loop keeps
    its own.
    """
    if workload.clients is not None:
        return found.interval80
    ends = dict(found.interval80)
    factor = ends["throughput"][1] / found.throughput_tokens_per_s
    for scale, end, outer in ((1.0 / factor, 0, min), (factor, 1, max)):
        run = simulated_outcome(_slowed(deployment, scale), workload, seed=seed, warmup_requests=warmup_requests)
        for name, latency in (("ttft", run.ttft), ("tpot", run.tpot)):
            if latency is not None and latency.mean_s is not None:
                kept = list(ends[name])
                kept[end] = outer(kept[end], latency.mean_s)
                ends[name] = (kept[0], kept[1])
    return ends


def with_drift(found: Prediction, drifted: Prediction) -> Prediction:
    """`found` for clients that stay in step, its interval holding the means of clients that do not.

    Equal requests of a closed loop end together, so the next ones start together. In the simulation for ever; real
    clients drift apart, and are then prefilled alone.
    """
    ends = dict(found.interval80)
    values = {"ttft": drifted.ttft_s, "tpot": drifted.tpot_s, "throughput": drifted.throughput_tokens_per_s}
    for name, value in values.items():
        ends[name] = (min(ends[name][0], value), max(ends[name][1], value))
    apart = abs(drifted.ttft_s / found.ttft_s - 1.0) > IN_STEP_FRAC
    return replace(found, interval80=ends, flags=tuple(sorted({*found.flags, *((IN_STEP,) if apart else ())})))


def _slowed(deployment: Deployment, scale: float) -> Deployment:
    def pool(one: Pool) -> Pool:
        return replace(one, table=one.table.scaled(scale))

    there = deployment.decode_pool
    return replace(deployment, pool=pool(deployment.pool), decode_pool=None if there is None else pool(there))
