"""What a simulated run says of one engine replica, in the terms of a prediction."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from simcore.des.closed_loop import closed_loop
from simcore.des.config import SchedulerConfig
from simcore.des.result import Distribution
from simcore.stepcost.step import StepCost


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
