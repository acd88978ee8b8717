"""Replay a workload and say the result as a plain document: camelCase keys with units, null where nothing is known."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from typing import Any, Final

import numpy as np

from simcore.des.config import Deployment
from simcore.des.kernel import fields as f
from simcore.des.kernel.fields import Ints
from simcore.des.result import Distribution, Record, SimulationResult
from simcore.des.simulate import simulate
from simcore.des.workload.batch import Workload

Progress = Callable[[int, int | None, float], None]

RECORD_COLUMNS: Final = {
    "index": "index",
    "rejected": "rejected",
    "arrivalNanoseconds": "arrival_ns",
    "admittedNanoseconds": "admitted_ns",
    "firstTokenNanoseconds": "first_token_ns",
    "finishNanoseconds": "finish_ns",
    "hostNanoseconds": "host_ns",
    "promptTokens": "prompt_tokens",
    "outputTokens": "output_tokens",
    "hitTokens": "hit_tokens",
    "hostHitTokens": "host_hit_tokens",
    "unit": "unit",
    "prefillUnit": "prefill_unit",
    "preemptions": "preemptions",
}
_US: Final = 1e6


def replay_document(
    deployment: Deployment,
    workload: Workload,
    *,
    seed: int | np.random.SeedSequence = 0,
    warmup_requests: int = 0,
    record: Record = Record.REQUESTS,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Simulate `workload` on `deployment` and summarise. Raises InputError, and FormatError from a trace."""
    result = simulate(
        deployment, workload, seed=seed, warmup_requests=warmup_requests, record=record, progress=progress
    )
    return result_document(result) | question_part(workload, seed, warmup_requests)


def question_part(workload: Workload, seed: int | np.random.SeedSequence, warmup_requests: int) -> dict[str, Any]:
    """What was asked, beside what came out."""
    return {
        "source": workload.source,
        "clients": workload.clients,
        "blockTokens": workload.block_tokens or None,
        "seed": seed if isinstance(seed, int) else None,
        "warmupRequests": warmup_requests,
    }


def _latency(distribution: Distribution) -> dict[str, Any]:
    names = {"mean_s": "mean", "median_s": "median", "p90_s": "p90", "p99_s": "p99", "p999_s": "p999"}
    values = asdict(distribution)
    ms = {name: None if values[key] is None else values[key] * 1e3 for key, name in names.items()}
    return {"count": distribution.count, **ms}


def result_document(result: SimulationResult) -> dict[str, Any]:
    """The summary of a run; every latency object is in milliseconds."""
    return {
        "completedRequests": result.completed_count,
        "rejectedRequests": result.rejected_count,
        "durationSeconds": result.duration_s,
        "promptTokens": result.prompt_tokens,
        "outputTokens": result.output_tokens,
        "gpus": result.gpus_count,
        "requestsPerSecond": result.requests_per_s,
        "outputTokensPerSecond": result.output_tokens_per_s,
        "outputTokensPerSecondPerGpu": result.output_tokens_per_s_per_gpu,
        "totalTokensPerSecondPerGpu": result.total_tokens_per_s_per_gpu,
        "ttftMilliseconds": _latency(result.ttft),
        "ttftFromAdmissionMilliseconds": _latency(result.ttft_from_admission),
        "tpotMilliseconds": _latency(result.tpot),
        "itlMilliseconds": _latency(result.itl),
        "e2eMilliseconds": _latency(result.e2e),
        "queueMilliseconds": _latency(result.queue),
        "prefillMilliseconds": _latency(result.prefill),
        "decodeMilliseconds": _latency(result.decode),
        "hitRate": result.hit_rate,
        "hbmHitRate": result.hbm_hit_rate,
        "hostHitRate": result.host_hit_rate,
        "blockHitRate": result.block_hit_rate,
        "preemptions": result.preemptions_count,
        "peakActiveRequests": result.peak_active_requests,
        "peakKvOccupancyFraction": result.peak_kv_frac,
        "meanKvOccupancyFraction": result.mean_kv_frac,
        "ranks": [
            {
                "pool": unit.pool,
                "replica": unit.replica,
                "rank": unit.rank,
                "requests": unit.requests_count,
                "hitRate": unit.hit_rate,
                "hostHitRate": unit.host_hit_rate,
                "preemptions": unit.preemptions_count,
                "evictedBlocks": unit.evictions_count,
                "kvBlocks": unit.kv_blocks,
                "peakKvBlocks": unit.peak_kv_blocks,
                "meanKvBlocks": unit.mean_kv_blocks,
            }
            for unit in result.units
        ],
        "replicas": [
            {
                "pool": replica.pool,
                "replica": replica.replica,
                "busyFraction": replica.busy_frac,
                "steps": replica.steps_count,
                "prefillSteps": replica.prefill_steps_count,
                "meanBatch": replica.mean_batch,
            }
            for replica in result.replicas
        ],
    }


def record_rows(result: SimulationResult) -> Iterator[dict[str, int | bool]]:
    """One flat document per request, in order of completion; empty in summary mode."""
    if result.records is None:
        return
    columns = {name: getattr(result.records, field).tolist() for name, field in RECORD_COLUMNS.items()}
    for values in zip(*columns.values(), strict=True):
        yield dict(zip(columns, values, strict=True))


def chrome_trace(result: SimulationResult) -> dict[str, Any]:
    """The timeline as a Chrome/Perfetto trace (JSON object format): a process per replica, a thread per pipeline lane.

    Needs Record.TIMELINE; without it the trace is empty. Times in microseconds, as the format demands.
    """
    events: list[Mapping[str, Any]] = []
    timeline = result.timeline
    if timeline is not None and len(timeline):
        executors = np.unique(timeline[:, f.V_EXECUTOR])
        lane_of = {int(address): number for number, address in enumerate(executors)}
        for lane in lane_of.values():
            name = {"name": f"engine {lane}"}
            events.append({"name": "thread_name", "ph": "M", "pid": 0, "tid": lane, "args": name})
        events.extend(_span_event(row, lane_of[int(row[f.V_EXECUTOR])]) for row in timeline)
        events.extend(
            {
                "name": "KV blocks",
                "ph": "C",
                "pid": 0,
                "tid": lane_of[int(row[f.V_EXECUTOR])],
                "ts": int(row[f.V_START]) / _US,
                "args": {f"engine {lane_of[int(row[f.V_EXECUTOR])]}": int(row[f.V_USED])},
            }
            for row in timeline
        )
    return {"displayTimeUnit": "ms", "traceEvents": events}


def _span_event(row: Ints, lane: int) -> Mapping[str, Any]:
    start, end, steps, batch, new = (int(row[at]) for at in (f.V_START, f.V_END, f.V_STEPS, f.V_BATCH, f.V_NEW))
    name = "prefill" if batch == 0 else "mixed" if new else "decode"
    return {
        "name": name,
        "ph": "X",
        "pid": 0,
        "tid": lane,
        "ts": start / _US,
        "dur": (end - start) / _US,
        "args": {"steps": steps, "decodingRequests": batch, "newPromptTokens": new},
    }
