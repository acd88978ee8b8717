"""Vidur 0.0.26 on given requests, in its own interpreter: question in, answer out, JSON (see `bench_arrivals`).

Its package holds no profiles, so its steps are priced by the question's law, put in the place of its predictor; the
scheduler (chunked prefill in mixed steps), the blocks and the event loop are its own. Metrics and plots are off.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from types import SimpleNamespace
from typing import Any

from vidur import simulator
from vidur.config import (
    CacheConfig,
    ClusterConfig,
    MetricsConfig,
    ReplicaConfig,
    SarathiSchedulerConfig,
    SimulationConfig,
)
from vidur.entities import Replica, Request
from vidur.execution_time_predictor import ExecutionTimePredictorRegistry
from vidur.types import ExecutionTimePredictorType

QUESTION: dict[str, Any] = json.load(sys.stdin)


class Law:
    """Price of a step: linear in context, new tokens and the square of prefill."""

    def __init__(self, **_: object) -> None:
        self._law = QUESTION["law"]

    def get_execution_time(self, batch: Any, _: int) -> SimpleNamespace:
        law, decoding, context, new, square = self._law, 0, 0, 0, 0
        for request, tokens in zip(batch.requests, batch.num_q_tokens, strict=True):
            before = request.num_processed_tokens
            if request.is_prefill_complete:
                decoding, context = decoding + 1, context + before
            else:
                new, square = new + tokens, square + (before + tokens) ** 2 - before**2
        picoseconds = 0
        if decoding:
            picoseconds += law["decode"] + law["request"] * decoding + law["context"] * context
        if new:
            picoseconds += law["prefill"] + law["token"] * new + law["square"] * square
        return SimpleNamespace(
            total_time=picoseconds * 1e-12, model_time=picoseconds * 1e-12, model_time_ms=picoseconds * 1e-9
        )


def run() -> tuple[float, list[Any]]:
    """CPU seconds and the requests as they ended."""
    Replica._id = -1  # counted over the process, and looked up by number
    start = time.process_time()
    requests = [Request(*row) for row in QUESTION["requests"]]
    simulator.RequestGeneratorRegistry = SimpleNamespace(get=lambda *_: SimpleNamespace(generate=lambda: requests))
    off = dict.fromkeys(
        (
            "write_metrics",
            "enable_chrome_trace",
            "store_plots",
            "store_request_metrics",
            "store_batch_metrics",
            "store_utilization_metrics",
        ),
        False,
    )
    config = SimulationConfig(
        cluster_config=ClusterConfig(
            replica_config=ReplicaConfig(num_pipeline_stages=1, tensor_parallel_size=1),
            cache_config=CacheConfig(
                block_size=QUESTION["block_tokens"], num_blocks=QUESTION["blocks"], watermark_blocks_fraction=0.0
            ),
            replica_scheduler_config=SarathiSchedulerConfig(
                batch_size_cap=QUESTION["running"], chunk_size=QUESTION["batched_tokens"]
            ),
        ),
        metrics_config=MetricsConfig(**off),
    )
    simulator.Simulator(config).run()
    return time.process_time() - start, requests


def main() -> None:
    ExecutionTimePredictorRegistry._registry[ExecutionTimePredictorType.RANDOM_FORREST] = Law
    with tempfile.TemporaryDirectory() as folder:  # it writes its configuration into the working directory
        os.chdir(folder)
        runs = [run() for _ in range(3)]
        os.chdir("/")
    ended = runs[0][1]
    rows = [[one.prefill_completed_at - one.arrived_at, one.completed_at - one.arrived_at] for one in ended]
    print()
    print(json.dumps({"cpu_s": min(seconds for seconds, _ in runs), "rows": rows}))


main()
