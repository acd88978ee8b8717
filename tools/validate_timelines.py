"""The simulator against a real scheduler: fit a step law on half of a run's requests, predict the other half.

A run is a folder with `requests.jsonl` (input_toks, output_toks, queued_ts, first_token_ts, last_token_ts in seconds)
and `meta.json` (vLLM's settings). Only the requests of the first half by arrival enter the fit; all arrivals are input.
Usage: `python tools/validate_timelines.py RUN...`. Prints one JSON document.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from simcore.cards.layout import Engine
from simcore.des.config import Deployment, Pool, SchedulerConfig
from simcore.des.simulate import simulate
from simcore.des.workload.synthetic import timestamped
from simcore.stepcost.table import StepTable

Floats = NDArray[np.float64]

# Start of the fit, in picoseconds: base, per request, per context token, prefill fixed, per prompt token, shared part.
START = (10e9, 50e6, 20e3, 1e9, 100e6, 5e9)
AMPLE_POOL_TOKENS = 1 << 26


@dataclass(frozen=True)
class Run:
    """One measured run, requests in order of arrival."""

    name: str
    scheduler: SchedulerConfig
    ranks_count: int
    """Data-parallel ranks of one engine; a mixture of experts runs them in lockstep."""
    prompts: NDArray[np.int64]
    outputs: NDArray[np.int64]
    arrivals_s: Floats
    ttft_s: Floats
    e2e_s: Floats

    @property
    def tpot_s(self) -> Floats:
        return (self.e2e_s - self.ttft_s) / np.maximum(self.outputs - 1, 1)


def load_run(folder: Path) -> Run:
    """The run in `folder`."""
    rows = [json.loads(line) for line in (folder / "requests.jsonl").read_text().splitlines()]
    rows.sort(key=lambda row: row["queued_ts"])
    meta = json.loads((folder / "meta.json").read_text())
    settings = meta["engine_kwargs"]
    pool = (meta.get("kv_cache") or {}).get("num_kv_tokens") or AMPLE_POOL_TOKENS
    queued = np.array([row["queued_ts"] for row in rows])
    return Run(
        name=folder.name,
        scheduler=SchedulerConfig(
            engine=Engine.VLLM,
            max_running_requests=settings["max_num_seqs"],
            max_batched_tokens=settings["max_num_batched_tokens"],
            chunk_tokens=settings["max_num_batched_tokens"],
            kv_pool_tokens=pool,
            block_tokens=16,
        ),
        ranks_count=settings["data_parallel_size"],
        prompts=np.array([row["input_toks"] for row in rows], dtype=np.int64),
        outputs=np.array([row["output_toks"] for row in rows], dtype=np.int64),
        arrivals_s=queued - queued[0],
        ttft_s=np.array([row["first_token_ts"] for row in rows]) - queued,
        e2e_s=np.array([row["last_token_ts"] for row in rows]) - queued,
    )


def step_table(law: Floats, max_batch: int) -> StepTable:
    """The step law with these six numbers (see START)."""
    base, request, context, fixed, token, shared = np.exp(law)
    batch = np.arange(max_batch + 1)
    decode = np.rint(base + request * batch).astype(np.int64)
    decode[0] = 0
    slopes = np.full(max_batch + 1, round(context), np.int64)
    zeros = np.zeros(max_batch + 1, np.int64)
    return StepTable(decode, slopes, zeros, 0, round(fixed), round(token), 0, round(shared))


def replay(run: Run, law: Floats) -> tuple[Floats, Floats]:
    """Simulated (TTFT, E2E) in seconds, in order of arrival."""
    prices = step_table(law, run.scheduler.max_running_requests)
    deployment = Deployment(Pool(prices, run.scheduler, attention_dp=run.ranks_count))
    records = simulate(deployment, timestamped(run.prompts, run.outputs, run.arrivals_s)).records
    if records is None:
        raise AssertionError("a run that keeps requests has records")
    order = np.argsort(records.index)
    ttft = (records.first_token_ns - records.arrival_ns)[order] / 1e9
    return ttft, (records.finish_ns - records.arrival_ns)[order] / 1e9


def fit(run: Run) -> Floats:
    """The law whose simulated first half is nearest to the measured first half, in log ratios."""
    half = slice(0, len(run.prompts) // 2)

    def loss(law: Floats) -> float:
        ttft, e2e = replay(run, law)
        tpot = (e2e - ttft) / np.maximum(run.outputs - 1, 1)
        apart = [
            np.log((ours[half] + 1e-3) / (theirs[half] + 1e-3))
            for ours, theirs in ((ttft, run.ttft_s), (e2e, run.e2e_s), (tpot, run.tpot_s))
        ]
        means = [
            np.log(ours[half].mean() / theirs[half].mean()) for ours, theirs in ((ttft, run.ttft_s), (e2e, run.e2e_s))
        ]
        return float(np.mean(np.square(np.concatenate(apart))) + np.sum(np.square(means)))

    best = np.log(START)
    for _ in range(3):  # restart: the simplex shrinks onto ridges
        found = minimize(loss, best, method="Nelder-Mead", options={"maxfev": 700, "xatol": 1e-3, "fatol": 1e-6})
        best = found.x
    return np.asarray(best, dtype=np.float64)


def report(run: Run) -> dict[str, Any]:
    """Signed relative errors of the means over the second half, and the fitted law."""
    law = fit(run)
    ttft, e2e = replay(run, law)
    tpot = (e2e - ttft) / np.maximum(run.outputs - 1, 1)

    def errors(part: slice) -> dict[str, float]:
        pairs = {"ttft": (ttft, run.ttft_s), "tpot": (tpot, run.tpot_s), "latency": (e2e, run.e2e_s)}
        return {name: float(ours[part].mean() / theirs[part].mean() - 1) for name, (ours, theirs) in pairs.items()}

    half = len(run.prompts) // 2
    base, request, context, fixed, token, shared = np.exp(law).tolist()
    return {
        "run": run.name,
        "requests": len(run.prompts),
        "meanErrorFitted": errors(slice(0, half)),
        "meanErrorPredicted": errors(slice(half, None)),
        "law": {
            "decodeBaseMilliseconds": base / 1e9,
            "decodeMicrosecondsPerRequest": request / 1e6,
            "decodeNanosecondsPerContextToken": context / 1e3,
            "prefillFixedMilliseconds": fixed / 1e9,
            "prefillMicrosecondsPerToken": token / 1e6,
            "mixedSharedMilliseconds": shared / 1e9,
        },
    }


def main() -> None:
    folders = [Path(name) for name in sys.argv[1:]]
    if not folders:
        raise SystemExit("usage: validate_timelines.py RUN...")
    print(json.dumps([report(load_run(folder)) for folder in folders], indent=2))


if __name__ == "__main__":
    main()
