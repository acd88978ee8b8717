"""Speed of the simulator, beside the literal one in the same run: `python bench/bench_des.py [--million]`.

Times are CPU seconds of this process, the best of several runs, after the kernel is loaded; a shared machine disturbs
them least so.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402

from simcore.cards.layout import Engine  # noqa: E402
from simcore.des.closed_loop import closed_loop  # noqa: E402
from simcore.des.config import Deployment, Pool, Routing, SchedulerConfig  # noqa: E402
from simcore.des.result import Record  # noqa: E402
from simcore.des.simulate import simulate  # noqa: E402
from simcore.des.workload.synthetic import Lengths, PoissonArrivals, independent_requests  # noqa: E402
from simcore.des.workload.trace import open_trace  # noqa: E402
from simcore.stepcost.table import StepTable  # noqa: E402
from tests.reference.des_literal import Request, simulate_literal  # noqa: E402


def table(max_batch: int) -> StepTable:
    """A step law of a large MoE on eight GPUs, round numbers."""
    batch = np.arange(max_batch + 1, dtype=np.int64)
    base = np.where(batch > 0, 8 * 10**9 + 50 * 10**6 * batch, 0)
    context = np.where(batch > 0, 30, 0)
    return StepTable(base, context, np.zeros_like(batch), 0, 2 * 10**9, 20 * 10**6, 100, 0)


def scheduler(running: int, **changes: object) -> SchedulerConfig:
    settings: dict[str, object] = {
        "engine": Engine.VLLM,
        "max_running_requests": running,
        "max_batched_tokens": 8192,
        "chunk_tokens": 8192,
        "kv_pool_tokens": 1 << 28,
    }
    return SchedulerConfig(**(settings | changes))  # type: ignore[arg-type]


def best(work: Callable[[], object], repeats: int = 5) -> float:
    """Least CPU seconds of `repeats` calls."""
    found = float("inf")
    for _ in range(repeats):
        start = time.process_time()
        work()
        found = min(found, time.process_time() - start)
    return found


def show(name: str, seconds: float, limit_s: float | None, note: str = "") -> None:
    limit = "" if limit_s is None else f"limit {limit_s * 1e3:7.0f} ms  {'ok' if seconds <= limit_s else 'TOO SLOW'}"
    print(f"{name:58s} {seconds * 1e3:10.2f} ms  {limit} {note}")


def fixed(concurrency: int, requests: int) -> Callable[[], object]:
    prices, rules = table(concurrency), scheduler(concurrency)
    return lambda: closed_loop(
        prices, rules, concurrency=concurrency, requests=requests, prompt_tokens=8192, output_tokens=1024
    )


def literal_fixed(concurrency: int, requests: int) -> Callable[[], object]:
    deployment = Deployment(Pool(table(concurrency), scheduler(concurrency)))

    def work() -> object:
        rows = [Request(number, 8192, 1024, session=number) for number in range(requests)]
        return simulate_literal(deployment, rows, clients=concurrency)

    return work


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--million", action="store_true", help="also 100,000 and 1,000,000 open-loop requests")
    parser.add_argument("--traces", type=Path, default=ROOT.parent / "shared" / "data" / "traces")
    given = parser.parse_args()
    start = time.process_time()
    fixed(2, 4)()
    show("load the compiled kernel (compiles it if it is new)", time.process_time() - start, None)
    fast = best(fixed(64, 640), 9)
    show("closed loop C=64, 640 requests, 8k/1k", fast, 0.005)
    show("closed loop C=1024, 10,240 requests, 8k/1k", best(fixed(1024, 10_240)), 0.060)
    for engine in Engine:
        rules = scheduler(64, engine=engine)
        work = best(
            lambda rules=rules: closed_loop(  # type: ignore[misc]
                table(64), rules, concurrency=64, requests=640, prompt_tokens=8192, output_tokens=1024
            )
        )
        show(f"  the same, C=64, scheduler of {engine}", work, 0.005)
    small = best(fixed(16, 64))
    literal = best(literal_fixed(16, 64), 1)
    note = f"fast: {small * 1e3:.2f} ms, ratio {literal / small:,.0f} (at least 50)"
    show("literal simulator, C=16, 64 requests, 8k/1k", literal, None, note)
    load = independent_requests(Lengths(500, 4000), Lengths(50, 500), 1000, PoissonArrivals(10.0))
    deployment = Deployment(Pool(table(256), scheduler(256)))
    show("1,000 open-loop requests, Poisson 10/s", best(lambda: simulate(deployment, load)), 0.020)
    if given.million:  # before the traces, so that the peak is its own
        million()
    traces(given.traces)


def traces(folder: Path) -> None:
    rules = scheduler(256, prefix_caching=True, kv_pool_tokens=3_000_000)
    path = folder / "mooncake" / "conversation_trace.jsonl"
    if path.is_file():
        pool = Pool(table(256), rules, replicas_count=8)
        deployment = Deployment(pool, routing=Routing.KV_AWARE)
        show(
            "Mooncake conversation, 12,031 requests, 8 replicas",
            best(lambda: simulate(deployment, open_trace(path)), 3),
            2,
        )
    path = folder / "agentic_weka_cc" / "agentic_cc_traces_compact.jsonl.gz"
    if path.is_file():
        pool = Pool(table(256), scheduler(256, prefix_caching=True, kv_pool_tokens=20_000_000), replicas_count=8)
        deployment = Deployment(pool, routing=Routing.KV_AWARE)
        work = best(lambda: simulate(deployment, open_trace(path, clients=64), record=Record.SUMMARY), 1)
        show("710 agentic sessions, 49,334 requests, 64 clients", work, None, f"peak {peak_mb()} MiB")


def peak_mb() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


def million() -> None:
    deployment = Deployment(Pool(table(256), scheduler(256), replicas_count=8))
    for count in (100_000, 1_000_000):
        load = independent_requests(Lengths(500, 4000), Lengths(50, 500), count, PoissonArrivals(60.0))
        before = peak_mb()
        work = best(lambda load=load: simulate(deployment, load, record=Record.SUMMARY), 1)  # type: ignore[misc]
        show(f"{count:,} open-loop requests, 8 replicas, summary", work, None, f"peak {before} -> {peak_mb()} MiB")


if __name__ == "__main__":
    main()
