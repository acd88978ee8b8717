"""What a simulated run says of one engine replica, in the terms of a prediction."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from simcore.des.closed_loop import closed_loop
from simcore.des.config import Deployment, SchedulerConfig
from simcore.des.result import Distribution, SimulationResult
from simcore.des.simulate import simulate
from simcore.des.workload.batch import Workload
from simcore.errors import InfeasibleError
from simcore.stepcost.step import StepCost
from simcore.units import NS_PER_S

ROUNDS = 10
"""Requests per client of a simulated run (paper 5.11: a run of 10 x C requests)."""
FEWEST_REQUESTS = 32
"""Enough for a mean at one client."""
FEWEST_FOR_HALVES = 16
"""Fewer requests have no middle."""
GROWTH_FACTORS = (2.0, 1.4)
"""Assumed: the middle third of arrivals waits so many times longer than the first, the last than the middle. Waits that
grow in proportion to time give 3 and 5/3."""
FALLING_BEHIND = "falling-behind"
"""Flag of arrivals at stated times that a deployment serves later and later."""
NOT_REACHED = "concurrency-not-reached"
"""Flag of a closed loop with fewer sessions than clients."""


def run_requests(concurrency: int) -> int:
    """Requests of a closed-loop run of `concurrency` clients."""
    return max(ROUNDS * concurrency, FEWEST_REQUESTS)


@dataclass(frozen=True)
class Outcome:
    """Measured on simulated requests. Throughput counts output tokens of the whole run over its duration."""

    ttft: Distribution
    ttft_from_admission: Distribution
    tpot: Distribution | None
    itl: Distribution | None
    """None on the light path, which keeps no gaps."""
    e2e: Distribution
    throughput_tokens_per_s: float
    requests_per_s: float
    requests_count: int
    mean_running: float
    """Decoding requests, averaged over decode steps."""
    hit_rates: Mapping[str, Any]
    queueing: Mapping[str, float]
    preemptions_count: int
    kv_occupancy_frac: float | None
    """Peak of the rank that filled its pool most."""
    mean_active_requests: float = 0.0
    """Requests in the deployment, averaged over the run (Little's law)."""
    steady_requests_per_s: float = 0.0
    """Over the middle half of the completions: without the run's start and end."""
    peak_active_requests: int | None = None
    """Most requests in the deployment at once."""
    is_falling_behind: bool = False
    """Late requests wait many times longer than those in the middle of the run (`falls_behind`)."""
    mean_kv_occupancy_frac: float | None = None
    """Averaged over the run."""
    mixed_step_frac: float | None = None
    """Share of decode steps that also held a prefill; None where no step decoded."""


def closed_loop_outcome(
    cost: StepCost,
    scheduler: SchedulerConfig,
    *,
    attention_dp: int,
    concurrency: int,
    requests_count: int,
    prompt_tokens: int,
    output_tokens: int,
) -> Outcome:
    """`concurrency` clients on one replica without prefix reuse. Raises InputError, InfeasibleError."""
    # Uneven ranks can hold one request more than the mean share, and admission can bunch them.
    batch = min(concurrency, scheduler.max_running_requests)
    run = closed_loop(
        cost.table(max(batch, 1)),
        scheduler,
        concurrency=concurrency,
        requests=requests_count,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        attention_dp=attention_dp,
    )
    queue_s = float(run.queue_s.mean())
    return Outcome(
        ttft=Distribution.of(run.ttft_s),
        ttft_from_admission=Distribution.of(run.ttft_s - run.queue_s),
        tpot=Distribution.of(run.tpot_s) if len(run.tpot_s) else None,
        itl=None,
        e2e=Distribution.of(run.e2e_s),
        throughput_tokens_per_s=run.output_tokens_per_s,
        requests_per_s=requests_count / run.duration_s,
        requests_count=requests_count,
        mean_running=run.mean_batch if not math.isnan(run.mean_batch) else 0.0,
        hit_rates={},
        queueing={"meanQueueSeconds": queue_s, "meanRunningRequests": run.mean_batch},
        preemptions_count=run.preemptions_count,
        kv_occupancy_frac=run.peak_kv_frac,
        mean_kv_occupancy_frac=run.mean_kv_frac,
        mixed_step_frac=run.mixed_steps_count / run.decode_steps_count if run.decode_steps_count else None,
    )


def most_running(workload: Workload) -> int | None:
    """Most requests that can be under way at once, where the workload bounds them."""
    bounds = [count for count in (workload.most_in_flight, workload.requests_count) if count is not None]
    return min(bounds, default=None)


def simulated_outcome(deployment: Deployment, workload: Workload, *, seed: int, warmup_requests: int = 0) -> Outcome:
    """Any workload on any deployment, with the distribution of gaps. Raises InputError, InfeasibleError."""
    run = simulate(deployment, workload, seed=seed, warmup_requests=warmup_requests)
    if run.rejected_count:
        pools = [pool for pool in (deployment.pool, deployment.decode_pool) if pool is not None]
        held = min(pool.scheduler.kv_pool_tokens for pool in pools)
        raise InfeasibleError("memory", f"{run.rejected_count} requests are longer than the KV pool of {held} tokens")
    steps = sum(replica.steps_count for replica in run.replicas)
    mean_batch = sum(r.mean_batch * r.steps_count for r in run.replicas) / steps if steps else 0.0
    return Outcome(
        ttft=run.ttft,
        ttft_from_admission=run.ttft_from_admission,
        tpot=run.tpot if run.tpot.count else None,
        itl=run.itl if run.itl.count else None,
        e2e=run.e2e,
        throughput_tokens_per_s=run.output_tokens_per_s,
        requests_per_s=run.requests_per_s,
        requests_count=run.completed_count,
        mean_running=mean_batch,
        hit_rates={
            "prefix": run.hit_rate,
            "hbm": run.hbm_hit_rate,
            "host": run.host_hit_rate,
            "replicas": [unit.hit_rate for unit in run.units],
        },
        queueing={
            "meanQueueSeconds": run.queue.mean_s or 0.0,
            "meanPrefillSeconds": run.prefill.mean_s or 0.0,
            "meanDecodeSeconds": run.decode.mean_s or 0.0,
            "meanRunningRequests": mean_batch,
        },
        preemptions_count=run.preemptions_count,
        kv_occupancy_frac=run.peak_kv_frac,
        mean_kv_occupancy_frac=run.mean_kv_frac,
        mean_active_requests=run.requests_per_s * (run.e2e.mean_s or 0.0),
        peak_active_requests=run.peak_active_requests,
        steady_requests_per_s=steady_rate(run),
        is_falling_behind=falls_behind(run),
    )


def load_flags(outcome: Outcome, workload: Workload) -> tuple[str, ...]:
    """Whether the load that was simulated is the load that was asked for."""
    if workload.clients is None:
        return (FALLING_BEHIND,) if outcome.is_falling_behind else ()
    peak = outcome.peak_active_requests
    return (NOT_REACHED,) if peak is not None and peak < workload.clients else ()


def steady_rate(run: SimulationResult) -> float:
    """Completions per second of the middle half of a run that kept its records."""
    records = run.records
    if records is None or len(records) < FEWEST_FOR_HALVES:
        return run.requests_per_s
    ends = np.sort(records.finish_ns)
    first, last = len(ends) // 4, 3 * len(ends) // 4
    span_s = float(ends[last] - ends[first]) / NS_PER_S
    return (last - first) / span_s if span_s > 0 else run.requests_per_s


def falls_behind(run: SimulationResult) -> bool:
    """Whether waits grow from third to third of the arrivals (`GROWTH_FACTORS`) and end above the service time."""
    records = run.records
    if records is None or len(records) < FEWEST_FOR_HALVES:
        return False
    order = np.argsort(records.arrival_ns, kind="stable")
    third = len(order) // 3
    waits = (records.admitted_ns - records.arrival_ns)[order]
    first, middle, last = (float(part.mean()) for part in (waits[:third], waits[third:-third], waits[-third:]))
    served = float((records.finish_ns - records.admitted_ns)[order][-third:].mean())
    grows = middle > GROWTH_FACTORS[0] * first and last > GROWTH_FACTORS[1] * middle
    return grows and last > served
