"""Arrivals through other request-level simulators, in the same run: `python -m bench.bench_arrivals`.

The same requests, the same prices of a step, the same scheduler settings and KV pool: so not only the time is compared
(CPU seconds of one process, the best of several, imports left out; reading the trace is in ours and Dynamo's) but every
request's latency too. Vidur 0.0.26 takes our linear law; Dynamo's mock engine 1.6.1 knows fixed prices. Exits 1 where
ours is slower, or where a request's TTFT or end-to-end latency differs by more than a microsecond.

`--write FOLDER` keeps what the others answered as the golden tables of `tests/golden/peers`.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from bench.bench_des import best
from bench.peers import ask, interpreter
from simcore.cards.layout import Engine
from simcore.des.config import Deployment, Pool, SchedulerConfig
from simcore.des.result import SimulationResult
from simcore.des.simulate import simulate
from simcore.des.workload.trace import open_trace
from simcore.stepcost.table import StepTable

HERE: Final = Path(__file__).parent
VIDUR, DYNAMO = "vidur==0.0.26", "ai-dynamo-runtime==1.6.1"
SCRIPTS: Final = {VIDUR: HERE / "peer_vidur.py", DYNAMO: HERE / "peer_dynamo.py"}
TRACE_BLOCK_TOKENS: Final = 512
TOLERANCE_S: Final = 1e-6
LINEAR: Final = {
    "decode": 8 * 10**9,
    "request": 50 * 10**6,
    "context": 30,
    "prefill": 2 * 10**9,
    "token": 20 * 10**6,
    "square": 100,
}
"""Picoseconds: a large MoE on eight GPUs, round numbers."""
FIXED: Final = dict.fromkeys(LINEAR, 0) | {"decode": 8 * 10**9, "prefill": 20 * 10**9}


@dataclass(frozen=True)
class Case:
    """One question to us and to another program."""

    name: str
    peer: str
    requests: int
    law: dict[str, int]
    engine: Engine = Engine.VLLM
    running: int = 256
    batched_tokens: int = 8192
    block_tokens: int = 16
    blocks: int = 1_000_000
    rate_per_s: float = 10.0
    prefixes: int = 0
    """Prompts start with one of so many shared blocks; 0: nothing is shared, and nothing cached."""


CASES: Final = (
    Case("1,000 requests", VIDUR, 1000, LINEAR),
    Case("512 requests", VIDUR, 512, LINEAR),
    Case("1,000 requests, chunks of 512 tokens, 16 places", VIDUR, 1000, LINEAR, running=16, batched_tokens=512),
    Case("1,000 requests", DYNAMO, 1000, FIXED),
    Case("1,000 requests, a KV pool of 48,000 tokens", DYNAMO, 1000, FIXED, blocks=3000),
    Case("1,000 requests, 40 prefixes, a cache of 112,000 tokens", DYNAMO, 1000, FIXED, blocks=7000, prefixes=40),
    Case("1,000 requests, SGLang", DYNAMO, 1000, FIXED, engine=Engine.SGLANG, block_tokens=1, blocks=16_000_000),
)

SMALL_CASES: Final = tuple(replace(case, requests=120, rate_per_s=20.0) for case in CASES)
"""For `tests/golden/peers`."""


Row = tuple[int, int, int, int]
"""Arrival in microseconds, prompt tokens, output tokens, number of the prefix that the prompt starts with or -1."""


def drawn(case: Case) -> list[Row]:
    """The case's requests."""
    draws = np.random.default_rng(7)
    rows, now_us = [], 0
    for _ in range(case.requests):
        prompt, output = int(draws.integers(500, 4001)), int(draws.integers(50, 501))
        rows.append((now_us, prompt, output, int(draws.zipf(1.3)) % case.prefixes if case.prefixes else -1))
        now_us += round(draws.exponential(1e6 / case.rate_per_s))
    return rows


def write_trace(rows: list[Row], path: Path) -> None:
    """The requests in Mooncake's format."""
    with path.open("w", encoding="utf-8") as file:
        for number, (arrival_us, prompt, output, prefix) in enumerate(rows, start=1):
            ids = [number * 1000 + at for at in range(-(-prompt // TRACE_BLOCK_TOKENS))]
            if prefix >= 0:
                ids[0] = prefix
            record = {"timestamp": arrival_us / 1e3, "input_length": prompt, "output_length": output, "hash_ids": ids}
            file.write(json.dumps(record) + "\n")


def deployment(case: Case) -> Deployment:
    batch = np.arange(case.running + 1, dtype=np.int64)
    base = np.where(batch > 0, case.law["decode"] + case.law["request"] * batch, 0)
    context = np.where(batch > 0, case.law["context"], 0)
    prefill = (case.law["prefill"], case.law["token"], case.law["square"])
    return Deployment(
        Pool(
            StepTable(base, context, np.zeros_like(batch), 0, *prefill, 0),
            SchedulerConfig(
                case.engine,
                max_running_requests=case.running,
                max_batched_tokens=case.batched_tokens,
                chunk_tokens=case.batched_tokens,
                kv_pool_tokens=case.blocks * case.block_tokens,
                block_tokens=case.block_tokens,
                prefix_caching=case.prefixes > 0,
            ),
        )
    )


def latencies(result: SimulationResult) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """(requests, 2) TTFT and end-to-end latency in seconds, in order of arrival."""
    records = result.records
    assert records is not None  # noqa: S101 - a bench
    order = np.argsort(records.index)
    found = np.stack([records.first_token_ns - records.arrival_ns, records.finish_ns - records.arrival_ns], axis=1)
    return found[order] / 1e9


def question(case: Case, trace: Path, rows: list[Row]) -> dict[str, Any]:
    fields = ("law", "running", "batched_tokens", "block_tokens", "blocks")
    return {field: getattr(case, field) for field in fields} | {
        "requests": [(arrival_us / 1e6, prompt, output) for arrival_us, prompt, output, _ in rows],
        "trace": str(trace),
        "trace_block_tokens": TRACE_BLOCK_TOKENS,
        "engine": case.engine.name.lower(),
        "caching": case.prefixes > 0,
    }


def main() -> int:
    """Ask all; judge."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", type=Path, metavar="FOLDER")
    folder: Path | None = parser.parse_args().write
    pythons = {peer: interpreter(peer) for peer in SCRIPTS}
    with tempfile.TemporaryDirectory() as scratch:
        trace = Path(scratch) / "trace.jsonl"
        if folder is not None:
            write_golden(folder, pythons, trace)
            return 0
        return max(compare(case, pythons[case.peer], trace) for case in CASES)


def compare(case: Case, python: Path | str, trace: Path) -> int:
    """1 if the other program is faster, or answers something else."""
    rows, served = drawn(case), deployment(case)
    write_trace(rows, trace)
    result = simulate(served, open_trace(trace))  # loads the compiled kernel
    mine = best(lambda: simulate(served, open_trace(trace)))
    print(f"{case.name}: ours {mine * 1e3:.1f} ms, {result.preemptions_count} preemptions", flush=True)
    theirs = python if isinstance(python, str) else ask(python, [str(SCRIPTS[case.peer])], question(case, trace, rows))
    if isinstance(theirs, str):
        print(f"  {case.peer}: skipped: {theirs}")
        return 0
    apart = np.abs(latencies(result) - np.array(theirs["rows"])).max(axis=0)
    print(
        f"  {case.peer}: {theirs['cpu_s'] * 1e3:.0f} ms, ratio {theirs['cpu_s'] / mine:,.1f}; of any request "
        f"TTFT differs by at most {apart[0] * 1e9:.2f} ns, end-to-end latency by {apart[1] * 1e9:.2f} ns",
        flush=True,
    )
    return int(theirs["cpu_s"] < mine or apart.max() > TOLERANCE_S)


def write_golden(folder: Path, pythons: dict[str, Path | str], trace: Path) -> None:
    """The others' answers to small forms of the cases."""
    with (folder / "arrivals.csv").open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(
            ["case", "arrival_us", "prompt_tokens", "output_tokens", "prefix", "ttft_ns", "e2e_ns", "source"]
        )
        for number, case in enumerate(SMALL_CASES):
            rows, python = drawn(case), pythons[case.peer]
            write_trace(rows, trace)
            theirs = (
                python
                if isinstance(python, str)
                else ask(python, [str(SCRIPTS[case.peer])], question(case, trace, rows))
            )
            if isinstance(theirs, str):
                raise SystemExit(f"{case.peer}: {theirs}")
            for row, (ttft_s, e2e_s) in zip(rows, theirs["rows"], strict=True):
                table.writerow([number, *row, round(ttft_s * 1e9), round(e2e_s * 1e9), case.peer])


if __name__ == "__main__":
    sys.exit(main())
