"""Small deployments for tests with hand-calculated answers: every price is one flat number."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from simcore.cards.layout import Engine
from simcore.des.config import Deployment, Pool, SchedulerConfig
from simcore.des.workload.batch import Batch, BatchBuilder, Workload
from simcore.stepcost.table import StepTable

MS = 10**9
"""Picoseconds of a millisecond."""


def flat_table(
    max_batch: int, *, decode_ms: float, prefill_ms: float = 0.0, token_us: float = 0.0, **more: object
) -> StepTable:
    """Every decode step costs `decode_ms`, every prefill `prefill_ms` plus `token_us` per token."""
    decode = np.full(max_batch + 1, round(decode_ms * MS), np.int64)
    decode[0] = 0
    zeros = np.zeros(max_batch + 1, np.int64)
    return StepTable(decode, zeros, zeros, 0, round(prefill_ms * MS), round(token_us * 10**6), 0, 0, **more)  # type: ignore[arg-type]


def scheduler(engine: Engine = Engine.VLLM, **changes: object) -> SchedulerConfig:
    """A roomy scheduler, changed as asked."""
    settings: dict[str, object] = {
        "engine": engine,
        "max_running_requests": 64,
        "max_batched_tokens": 8192,
        "chunk_tokens": 8192,
        "kv_pool_tokens": 1 << 24,
        "block_tokens": 16,
    }
    return SchedulerConfig(**(settings | changes))  # type: ignore[arg-type]


def colocated(table: StepTable, rules: SchedulerConfig | None = None, **more: object) -> Deployment:
    """One pool."""
    return Deployment(Pool(table, rules or scheduler(), **more))  # type: ignore[arg-type]


def requests_at(rows: Iterable[tuple[float, int, int]], block_tokens: int = 0) -> Workload:
    """Open loop of (arrival in ms, prompt tokens, output tokens)."""
    rows = list(rows)

    def batches(_: np.random.SeedSequence) -> Iterator[Batch]:
        builder = BatchBuilder()
        for arrival_ms, prompt, output in rows:
            builder.start_session()
            builder.add(prompt, output, timestamp_ps=round(arrival_ms * MS))
        yield builder.build()

    return Workload(batches, None, block_tokens, len(rows))


def paths_in_turn(paths: Iterable[list[int]], block_tokens: int, *, output: int = 1, clients: int = 1) -> Workload:
    """Closed loop over requests whose prompts are whole blocks with these ids."""
    rows = list(paths)

    def batches(_: np.random.SeedSequence) -> Iterator[Batch]:
        builder = BatchBuilder()
        for ids in rows:
            builder.start_session()
            builder.add(len(ids) * block_tokens, output, leaf=builder.path(ids))
        yield builder.build()

    return Workload(batches, clients, block_tokens, len(rows), most_in_flight=clients)
