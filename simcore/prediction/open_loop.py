"""How far an error of the step carries under arrivals: with slower steps more requests share each, and queues grow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from simcore.des.config import Deployment, Pool
from simcore.des.workload.batch import Workload
from simcore.prediction.outcome import simulated_outcome
from simcore.prediction.result import Prediction


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


def _slowed(deployment: Deployment, scale: float) -> Deployment:
    def pool(one: Pool) -> Pool:
        return replace(one, table=one.table.scaled(scale))

    there = deployment.decode_pool
    return replace(deployment, pool=pool(deployment.pool), decode_pool=None if there is None else pool(there))
