"""Dynamo's mock engine 1.6.1 on a Mooncake trace, in its own interpreter: question in, answer out, JSON.

Its native replay, offline. A step with new tokens costs so much, one with decodes so much, one with both the sum.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from dynamo import _core

QUESTION: dict[str, Any] = json.load(sys.stdin)


def run() -> tuple[float, Any]:
    """CPU seconds, reading included, and its report."""
    engine = {
        "backend": QUESTION["engine"],
        "timing_model": {
            "type": "fixed",
            "prefill_ms": QUESTION["law"]["prefill"] / 1e9,
            "decode_ms": QUESTION["law"]["decode"] / 1e9,
        },
        "enable_prefix_caching": QUESTION["caching"],
        "block_size": QUESTION["block_tokens"],
        "num_gpu_blocks": QUESTION["blocks"],
        "max_num_seqs": QUESTION["running"],
        "max_num_batched_tokens": QUESTION["batched_tokens"],
    }
    if QUESTION["engine"] == "sglang":
        engine["sglang"] = {
            "schedule_policy": "fifo",
            "max_prefill_tokens": QUESTION["batched_tokens"],
            "chunked_prefill_size": QUESTION["batched_tokens"],
        }
    start = time.process_time()
    report = _core.run_mocker_trace_replay(
        [QUESTION["trace"]],
        extra_engine_args=_core._normalize_mocker_config({"engine": engine}),
        trace_block_size=QUESTION["trace_block_tokens"],
        capture_per_request=True,
    )
    return time.process_time() - start, report


def main() -> None:
    runs = [run() for _ in range(3)]
    ended = sorted(runs[0][1].per_request, key=lambda one: one["arrival_time_ms"])
    rows = [[one["ttft_ms"] / 1e3, one["e2e_latency_ms"] / 1e3] for one in ended]
    print(json.dumps({"cpu_s": min(seconds for seconds, _ in runs), "rows": rows}))


main()
