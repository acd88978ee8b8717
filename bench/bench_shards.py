"""A search in one process and in two shards on two cores, each as a pod runs it, without the start of the process.

Wall seconds from a common start to the last shard's answer. Where other work takes the cores (load average above 0.7)
wall says nothing, and the shards are judged by their CPU seconds: what one takes over what the longer of two takes.
Exits 1 below 1.8.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from typing import Any

FLOOR = 1.8
BUSY_LOAD = 0.7
REQUEST: dict[str, Any] = {
    "spec": {
        "model": {"name": "Qwen3.6-35B-A3B"},
        "cluster": {"accelerator": "MI355X", "nodes": 8},
        "engines": [{"name": "SGLang"}, {"name": "VLLM"}],
        "workload": {"fixed": {"promptTokens": 8192, "outputTokens": 1024}},
        "load": {"concurrencies": [16, 48, 128, 384, 1024, 1536, 2048]},
        "anchors": {"mode": "Simulate"},
    },
    "anchors": {},
}
RATE = {"load": {"requestsPerMinute": 1200}}


def shard(index: int, count: int, request: dict[str, Any]) -> None:
    """What a pod computes; starts when told to on standard input."""
    from inferasim_operator import planning  # here: the parent only waits

    small = {**request, "spec": {**request["spec"], "load": {"concurrencies": [2]}}}
    planning.compute_part(small, 0, 1)  # loads the compiled simulator
    print("ready", flush=True)
    sys.stdin.readline()
    started = time.process_time()
    document, _ = planning.compute_part(request, index, count)
    print(json.dumps([document["scored"], time.process_time() - started]), flush=True)


def run(count: int, request: dict[str, Any]) -> tuple[float, list[float], int]:
    """Wall seconds, CPU seconds of each shard, and candidates (of a rate: layouts)."""
    children = [
        subprocess.Popen(
            [sys.executable, "-m", "bench.bench_shards", str(index), str(count), json.dumps(request)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for index in range(count)
    ]
    for child in children:
        assert child.stdout is not None  # noqa: S101 - for the type checker: asked for above
        child.stdout.readline()
    started = time.perf_counter()
    answers = []
    for child in children:
        assert child.stdin is not None  # noqa: S101 - as above
        child.stdin.write("go\n")
        child.stdin.flush()
    for child in children:
        assert child.stdout is not None  # noqa: S101 - for the type checker: asked for above
        answers.append(json.loads(child.stdout.readline()))
    wall_s = time.perf_counter() - started
    for child in children:
        child.communicate()
    return wall_s, [answer[1] for answer in answers], sum(answer[0] for answer in answers)


def main() -> int:
    """Run both questions; judge."""
    worst = 0
    for name, changes in (("closed loops", {}), ("arrivals at a rate", RATE)):
        request = {**REQUEST, "spec": {**REQUEST["spec"], **changes}}
        is_busy = os.getloadavg()[0] > BUSY_LOAD
        one_s, (one_cpu_s,), scored = run(1, request)
        two_s, cpus_s, again = run(2, request)
        if scored != again:
            raise SystemExit(f"one scored {scored}, two {again}")
        ratios = {"wall": one_s / two_s, "CPU": one_cpu_s / max(cpus_s)}
        judged = "CPU" if is_busy else "wall"
        print(
            f"{name}: {scored} in {one_s:.1f} s by one, {two_s:.1f} s by two shards; wall {ratios['wall']:.2f}, "
            f"CPU {ratios['CPU']:.2f}, judged by {judged} (at least {FLOOR:g})",
            flush=True,
        )
        worst = max(worst, int(ratios[judged] < FLOOR))
    return worst


if __name__ == "__main__":
    if len(sys.argv) == 4:
        shard(int(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3]))
    else:
        sys.exit(main())
