"""What a simulated run says of one engine replica, in the terms of a prediction."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from simcore.des.closed_loop import closed_loop
from simcore.des.config import Deployment, Pool, Routing, SchedulerConfig
from simcore.des.result import Distribution
from simcore.des.simulate import simulate
from simcore.des.workload.batch import Workload
from simcore.errors import InfeasibleError
from simcore.stepcost.step import StepCost

ROUNDS = 10
"""Requests per client of a simulated run (paper 5.11: a run of 10 x C requests)."""
FEWEST_REQUESTS = 32
"""Enough for a mean at one client."""


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
    mean_active_requests: float = 0.0
    """Requests in the deployment, averaged over the run (Little's law)."""
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
        mixed_step_frac=run.mixed_steps_count / run.decode_steps_count if run.decode_steps_count else None,
    )


def simulated_outcome(
    cost: StepCost,
    scheduler: SchedulerConfig,
    *,
    attention_dp: int,
    gpus_per_replica_count: int,
    replicas_count: int,
    routing: Routing,
    workload: Workload,
    seed: int,
) -> Outcome:
    """Any workload on equal replicas, with the distribution of gaps. Raises InputError, InfeasibleError."""
    most = workload.clients if workload.clients is not None else workload.requests_count
    batch = max(1, min(scheduler.max_running_requests, most or scheduler.max_running_requests))
    capped = replace(scheduler, max_running_requests=batch)
    pool = Pool(
        table=cost.table(batch),
        scheduler=capped,
        replicas_count=replicas_count,
        attention_dp=attention_dp,
        gpus_per_replica_count=gpus_per_replica_count,
    )
    run = simulate(Deployment(pool, routing=routing), workload, seed=seed)
    if run.rejected_count:
        raise InfeasibleError(
            "memory", f"{run.rejected_count} requests are longer than the KV pool of {scheduler.kv_pool_tokens} tokens"
        )
    steps = sum(replica.steps_count for replica in run.replicas)
    mean_batch = sum(r.mean_batch * r.steps_count for r in run.replicas) / steps if steps else 0.0
    peak = max(unit.peak_kv_blocks / unit.kv_blocks for unit in run.units)
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
        kv_occupancy_frac=peak,
        mean_active_requests=run.requests_per_s * (run.e2e.mean_s or 0.0),
    )
