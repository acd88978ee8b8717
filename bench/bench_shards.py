"""A search in one process and in two shards on two cores, each as a pod runs it, without the start of the process.

Wall seconds from a common start to the last shard's answer. Where other work takes the cores (load average above 0.7)
wall says nothing: the shards then run one after the other, and are judged by CPU seconds, what one process takes over
what the longer of the two takes. `--wall` judges by wall all the same: for a run that other work gives way to. Exits 1
below 1.8.
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
# More candidates than the operator computes in its own process, so that it would cut this search in two.
REQUEST: dict[str, Any] = {
    "spec": {
        "model": {"name": "Qwen3.6-35B-A3B"},
        "cluster": {"accelerator": "MI355X", "nodes": 8},
        "engines": [{"name": "SGLang"}, {"name": "VLLM"}],
        "workload": {"fixed": {"promptTokens": 8192, "outputTokens": 1024}},
        "load": {
            "concurrencies": [16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1280, 1536, 1792, 2048],
        },
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


def run(shards: list[tuple[int, int]], request: dict[str, Any]) -> tuple[float, list[float], int]:
    """Wall seconds of these shards (index, count) together, CPU seconds of each, and what they scored in all."""
    children = [
        subprocess.Popen(
            [sys.executable, "-m", "bench.bench_shards", str(index), str(count), json.dumps(request)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for index, count in shards
    ]
    for child in children:
        _line(child)
    started = time.perf_counter()
    for child in children:
        assert child.stdin is not None  # noqa: S101 - for the type checker: asked for above
        child.stdin.write("go\n")
        child.stdin.flush()
    answers = [json.loads(_line(child)) for child in children]
    wall_s = time.perf_counter() - started
    for child in children:
        child.communicate()
    return wall_s, [answer[1] for answer in answers], sum(answer[0] for answer in answers)


def _line(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None  # noqa: S101 - for the type checker: asked for above
    return child.stdout.readline()


def main(*, by_wall: bool = False) -> int:
    """Run both questions; judge."""
    worst = 0
    for name, changes in (("closed loops", {}), ("arrivals at a rate", RATE)):
        request = {**REQUEST, "spec": {**REQUEST["spec"], **changes}}
        is_busy = os.getloadavg()[0] > BUSY_LOAD and not by_wall
        one_s, (one_cpu_s,), scored = run([(0, 1)], request)
        if is_busy:
            parts = [run([(index, 2)], request) for index in range(2)]
            again = sum(part[2] for part in parts)
            longer_s = max(part[1][0] for part in parts)
            ratio, told = one_cpu_s / longer_s, f"{one_cpu_s:.1f} by one, {longer_s:.1f} CPU s by the longer of two"
        else:
            two_s, _, again = run([(0, 2), (1, 2)], request)
            ratio, told = one_s / two_s, f"{one_s:.1f} by one, {two_s:.1f} wall s by two"
        if scored != again:
            raise SystemExit(f"one scored {scored}, two {again}")
        print(f"two shards, {name}: {scored} scored, {told}; ratio {ratio:.2f} (at least {FLOOR:g})", flush=True)
        worst = max(worst, int(ratio < FLOOR))
    return worst


if __name__ == "__main__":
    if len(sys.argv) == 4:
        shard(int(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3]))
    else:
        sys.exit(main(by_wall="--wall" in sys.argv[1:]))
