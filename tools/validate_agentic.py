"""The simulator against real agentic runs: a step law from the runs at 1 and 4 clients, then replays at every run's.

`python tools/validate_agentic.py RUNS TRACE` where RUNS holds AIPerf's artefacts of vLLM runs at 1, 4, 8, 16 and 32
clients (Kimi-K2.7-Code MXFP4, four MI355X) and TRACE is a file of sessions of the same family. It is not the trace
that the runs used, so lengths and reuse differ in the first place; the table shows both. Each run is replayed with five
draws of sessions and of where clients enter them, as the benchmark did; the factor is simulated over measured.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402

from simcore.cards.layout import Engine  # noqa: E402
from simcore.des.config import Deployment, HostTier, Pool, SchedulerConfig  # noqa: E402
from simcore.des.simulate import simulate  # noqa: E402
from simcore.des.workload.agentic import session_batches, session_rows  # noqa: E402
from simcore.des.workload.batch import Workload  # noqa: E402
from simcore.des.workload.lines import Row  # noqa: E402
from simcore.stepcost.table import StepTable  # noqa: E402
from simcore.units import NS_PER_S, PS_PER_S  # noqa: E402

RUNS: Final = {
    1: "conc1_kvnone",
    4: "conc4_kvnone",
    8: "conc8_kvnone",
    16: "conc16_kvdram-lmcache",
    32: "conc32_kvdram-lmcache",
}
BLOCK_TOKENS: Final = 64
MODEL_LENGTH_TOKENS: Final = 262_144
IDLE_CAP_S: Final = 10.0
"""The benchmark's trace_idle_gap_cap_seconds."""
WINDOW_S: Final = 3600.0
START_FRACS: Final = (0.25, 0.75)
"""Clients enter a session between these shares of its turns, after one request of one token that fills the cache."""
SEEDS: Final = 5
BATCHED_TOKENS: Final = 8192
"""vLLM's default for max_num_batched_tokens; the command does not set it."""
GPUS: Final = 4
KV_BYTES_PER_TOKEN: Final = 70_272
"""Of one rank: 61 layers of a latent of 512 + 64 elements in bf16 (public case B12)."""
HOST_BYTES: Final = 1199e9
"""--l1-size-gb of the LMCache server, taken as shared evenly by the ranks (assumed)."""
HOST_LINK_BYTES_PER_S: Final = 64e9
LEAST_OUTPUT_TOKENS: Final = 20
IN_FLIGHT_PER_CLIENT: Final = 0.9
"""Of the trace with matched answers and gaps, as replayed: what a client has in flight on average."""


@dataclass(frozen=True)
class Measured:
    """One run's own figures."""

    figures: dict[str, float]
    pool_tokens: int
    kv_use_frac: float
    median_gap_s: float
    prefill_s: float
    """Mean per request, on the server."""
    computed_tokens: float
    """Uncached prompt tokens per request."""
    host_s: float
    """Mean of what is neither queue nor prefill in a TTFT."""


def read_run(folder: Path) -> Measured:
    """The artefacts of one run."""
    folder = folder / "aiperf_artifacts"
    report = json.loads((folder / "profile_export_aiperf.json").read_text())
    rows: dict[str, list[str]] = {}
    pool = 0
    with (folder / "server_metrics_export.csv").open() as stream:
        for row in csv.reader(stream):
            if len(row) > 4 and row[2].startswith("vllm:"):
                rows.setdefault(row[2], row[4:])
            if "kv_cache_size_tokens" in row:
                pool = int(row[row.index("kv_cache_size_tokens") + 1])

    def mean(name: str) -> float:
        return float(report[name]["avg"])

    def per_request(name: str) -> float:
        found = rows[f"vllm:{name}"]
        return float(found[2]) / float(found[0])

    total, cached = (float(rows[f"vllm:{name}"][0]) for name in ("prompt_tokens", "prompt_tokens_cached"))
    prefill_s = per_request("request_prefill_time_seconds")
    return Measured(
        figures={
            "prompt tokens": mean("input_sequence_length"),
            "output tokens": mean("output_sequence_length"),
            "hit rate": cached / total,
            "in flight": mean("effective_concurrency"),
            "running": float(rows["vllm:num_requests_running"][0]),
            "TTFT mean s": mean("time_to_first_token") / 1e3,
            "TTFT median s": float(report["time_to_first_token"]["p50"]) / 1e3,
            "TPOT mean ms": mean("inter_token_latency"),
            "TPOT median ms": float(report["inter_token_latency"]["p50"]),
            "requests/s": mean("request_throughput"),
            "output tok/s": mean("output_token_throughput"),
        },
        pool_tokens=pool,
        kv_use_frac=float(rows["vllm:kv_cache_usage_perc"][0]),
        median_gap_s=float(rows["vllm:inter_token_latency_seconds"][9]),
        prefill_s=prefill_s,
        computed_tokens=per_request("request_prefill_kv_computed_tokens"),
        host_s=mean("time_to_first_token") / 1e3 - per_request("request_queue_time_seconds") - prefill_s,
    )


def fit_law(runs: Path, one: Measured, four: Measured) -> StepTable:
    """Six numbers from the runs at 1 and 4 clients.

    Decode: TPOT over context by least squares at one client; what four clients add per request from the median gap at
    their mean KV use. Prefill: fixed and per uncached token from the two runs' means, split into a linear and a
    quadratic part by the one whole prompt that the first run's warm-up computed alone. Host time from one client.
    """
    served = one_client_requests(runs)
    value = {name: _column(served, name) for name in ("input_sequence_length", "output_sequence_length")}
    prompts, outputs = value.values()
    kept = outputs >= LEAST_OUTPUT_TOKENS
    gaps_s = _column(served, "inter_token_latency")[kept] / 1e3
    slope, base = np.polyfit((prompts + outputs / 2)[kept], gaps_s, 1)
    per_request = max(0.0, (four.median_gap_s - slope * four.kv_use_frac * four.pool_tokens - base) / 3)
    token_s = (one.prefill_s - four.prefill_s) / (one.computed_tokens - four.computed_tokens)
    fixed_s = max(0.0, one.prefill_s - token_s * one.computed_tokens)
    whole = next(row for row in served if row["metadata"]["benchmark_phase"] == "warmup")["metrics"]
    whole_s = whole["time_to_first_token"]["value"] / 1e3 - one.host_s - fixed_s
    length = whole["input_sequence_length"]["value"]
    reuse = 2 * (float(prompts.mean()) - one.computed_tokens) + one.computed_tokens  # (2h + u) of a mean request
    square_s = max(0.0, (whole_s - token_s * length) / (length * (length - reuse)))
    linear_s = token_s - square_s * reuse
    batch = np.arange(max(RUNS) + 1)
    print(
        f"decode {base * 1e3:.2f} ms + {per_request * 1e3:.2f} ms per further request + {slope * 1e9:.3f} ns per token "
        f"of context; prefill {fixed_s * 1e3:.0f} ms + {linear_s * 1e6:.1f} us per token + "
        f"{square_s * 1e12:.1f} ps per squared token; host {one.host_s * 1e3:.0f} ms per request"
    )
    ps = PS_PER_S
    return StepTable(
        np.where(batch > 0, np.rint((base + per_request * (batch - 1)) * ps), 0).astype(np.int64),
        np.where(batch > 0, round(slope * ps), 0).astype(np.int64),
        np.zeros(len(batch), np.int64),
        0,
        0,  # the fixed part is paid per request, not per chunk: it goes with the host's time
        round(linear_s * ps),
        round(square_s * ps),
        0,
        host_request_ps=round((one.host_s + fixed_s) * ps),
    )


def one_client_requests(runs: Path) -> list[dict[str, Any]]:
    """The records of the 1-client run, the only one that has them."""
    text = (runs / RUNS[1] / "aiperf_artifacts" / "profile_export.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def _column(served: list[dict[str, Any]], name: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.array([row["metrics"].get(name, {}).get("value", math.nan) for row in served])


@dataclass(frozen=True)
class Scale:
    """What the trace's outputs and gaps are multiplied with, so that the load is the run's and not only its kind."""

    outputs: float = 1.0
    gaps: float = 1.0
    clients: float = 1.0
    """More clients stand for sub-agents that run beside a session; the engine's places stay."""


def expanded(row: Row, scale: Scale) -> list[dict[str, Any]]:
    """A session's items with every prompt's block ids in full, idle gaps capped as the benchmark does."""
    paths: list[np.ndarray[Any, np.dtype[np.int64]]] = []

    def whole(request: dict[str, Any], clock_s: float) -> dict[str, Any]:
        head = [paths[request["ref"]][: request["n"]]] if request["ref"] >= 0 else []
        tail = [np.arange(start, start + count) for start, count in request["tail"]]
        paths.append(np.concatenate([*head, *tail]) if head or tail else np.zeros(0, np.int64))
        gap_s = scale.gaps * min(float(request.get("think_time") or 0.0), IDLE_CAP_S)
        output = max(1, round(scale.outputs * request["out"]))
        ids = paths[-1].tolist()
        return {"t": clock_s, "in": request["in"], "out": output, "think_time": gap_s, "hash_ids": ids}

    items: list[dict[str, Any]] = []
    clock_s = answered_s = 0.0
    for item in row.value["requests"]:
        if "requests" in item:
            clock_s += scale.gaps * min(IDLE_CAP_S, max(0.0, item["t"] - answered_s))
            items.append({"t": clock_s, "requests": [whole(request, clock_s) for request in item["requests"]]})
        else:
            items.append(whole(item, clock_s))
            answered_s = item["t"] + float(item.get("api_time") or 0.0)
    return items


def drawn_sessions(trace: Path, clients: int, seed: int, scale: Scale) -> list[Row]:
    """Sessions that fit the model's length, in a drawn order, entered at a drawn turn by a request of one token."""
    random = np.random.default_rng(seed)
    rows = [row for row in session_rows(trace) if _longest(row) <= MODEL_LENGTH_TOKENS]
    found = []
    for number in random.permutation(len(rows))[: 3 * clients + 8]:
        items = expanded(rows[number], scale)
        mains = [at for at, item in enumerate(items) if "requests" not in item]
        if not mains:
            continue
        start = mains[min(len(mains) - 1, int(random.uniform(*START_FRACS) * len(mains)))]
        items = items[start:]
        items[0] = items[0] | {"out": 1}
        found.append(Row({"id": int(number), "block_size": BLOCK_TOKENS, "requests": items}, str(trace), 1))
    return found


def _longest(row: Row) -> int:
    requests = [one for item in row.value["requests"] for one in item.get("requests", [item])]
    return max((one["in"] + one["out"] for one in requests), default=MODEL_LENGTH_TOKENS + 1)


def matched(runs: Path, run: Measured, clients: int, trace: Path) -> Scale:
    """Outputs and requests in flight to the run's means, gaps to the 1-client run's: the load, not the engine."""
    served = one_client_requests(runs)
    last_end: dict[str, int] = {}
    gaps_s = []
    for row in sorted(served, key=lambda row: row["metadata"]["request_start_ns"]):
        session = row["metadata"]["x_correlation_id"]
        if session in last_end:
            gaps_s.append((row["metadata"]["request_start_ns"] - last_end[session]) / NS_PER_S)
        last_end[session] = row["metadata"]["request_end_ns"]
    sessions = [row for seed in range(SEEDS) for row in drawn_sessions(trace, clients, seed, Scale())]
    requests = [one for row in sessions for item in row.value["requests"] for one in item.get("requests", [item])]
    outputs, waits_s = (float(np.mean([request[name] for request in requests])) for name in ("out", "think_time"))
    gap_s = float(np.mean(np.clip(gaps_s, 0.0, IDLE_CAP_S)))
    in_flight = run.figures["in flight"] / (clients * IN_FLIGHT_PER_CLIENT)
    return Scale(run.figures["output tokens"] / outputs, gap_s / waits_s, in_flight)


def replayed(table: StepTable, run: Measured, clients: int, trace: Path, seed: int, scale: Scale) -> dict[str, float]:
    """The run's figures from a simulation of it: requests that arrive and end within an hour after the warm-up."""
    sent = max(1, round(clients * scale.clients))
    sessions = drawn_sessions(trace, sent, seed, scale)
    tier = None
    if "lmcache" in RUNS[clients]:
        block_bytes = KV_BYTES_PER_TOKEN * BLOCK_TOKENS
        tier = HostTier(int(HOST_BYTES / GPUS / block_bytes), HOST_LINK_BYTES_PER_S, block_bytes)
    rules = SchedulerConfig(
        Engine.VLLM, clients, BATCHED_TOKENS, BATCHED_TOKENS, run.pool_tokens, block_tokens=1, prefix_caching=True
    )
    pool = Pool(table, rules, gpus_per_replica_count=GPUS, host_tier=tier)
    load = Workload(lambda _: session_batches(sessions, BLOCK_TOKENS), sent, BLOCK_TOKENS)
    r = simulate(Deployment(pool), load, seed=seed).records
    assert r is not None  # noqa: S101 - records are kept
    order = np.argsort(r.arrival_ns, kind="stable")
    warm_end = int(r.finish_ns[order[:sent]].max())
    window_end = warm_end + int(WINDOW_S * NS_PER_S)
    kept = (r.arrival_ns >= warm_end) & (r.finish_ns <= window_end) & ~r.rejected
    overlap = np.minimum(r.finish_ns, window_end) - np.maximum(r.admitted_ns, warm_end)
    flight = np.minimum(r.finish_ns, window_end) - np.maximum(r.arrival_ns, warm_end)
    ttft_s = (r.first_token_ns - r.arrival_ns + r.host_ns)[kept] / NS_PER_S
    several = kept & (r.output_tokens > 1)
    tpot_ms = (r.finish_ns - r.first_token_ns)[several] / (r.output_tokens[several] - 1) / 1e6
    return {
        "prompt tokens": float(r.prompt_tokens[kept].mean()),
        "output tokens": float(r.output_tokens[kept].mean()),
        "hit rate": float(r.hit_tokens[kept].sum() / r.prompt_tokens[kept].sum()),
        "in flight": float(np.maximum(flight, 0)[~r.rejected].sum() / (window_end - warm_end)),
        "running": float(np.maximum(overlap, 0)[~r.rejected].sum() / (window_end - warm_end)),
        "TTFT mean s": float(ttft_s.mean()),
        "TTFT median s": float(np.median(ttft_s)),
        "TPOT mean ms": float(tpot_ms.mean()),
        "TPOT median ms": float(np.median(tpot_ms)),
        "requests/s": float(kept.sum() / WINDOW_S),
        "output tok/s": float(r.output_tokens[kept].sum() / WINDOW_S),
    }


def table_rows(law: StepTable, measured: dict[int, Measured], trace: Path, scales: dict[int, Scale]) -> Iterator[str]:
    """Markdown: per figure and run, measured, the mean over the draws, and the factor (its range over the draws)."""
    simulated = {
        clients: [replayed(law, run, clients, trace, seed, scales[clients]) for seed in range(SEEDS)]
        for clients, run in measured.items()
    }
    yield "| figure | " + " | ".join(f"{clients} client{'s' * (clients > 1)}" for clients in measured) + " |"
    yield "| --- |" + " --- |" * len(measured)
    for name in next(iter(measured.values())).figures:
        cells = []
        for clients, run in measured.items():
            draws = [draw[name] for draw in simulated[clients]]
            factors = sorted(draw / run.figures[name] for draw in draws)
            mean = sum(draws) / len(draws)
            cells.append(
                f"{run.figures[name]:.3g} / {mean:.3g}, x{mean / run.figures[name]:.2f} "
                f"({factors[0]:.2f}-{factors[-1]:.2f})"
            )
        yield f"| {name} | " + " | ".join(cells) + " |"


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    data = ROOT.parent / "shared" / "data"
    parser.add_argument("runs", type=Path, nargs="?", default=data / "agentic_runs_mi355x")
    trace = data / "traces" / "agentic_weka_cc" / "agentic_cc_traces_compact.jsonl.gz"
    parser.add_argument("trace", type=Path, nargs="?", default=trace)
    given = parser.parse_args()
    if not given.runs.is_dir() or not given.trace.exists():
        parser.error(f"{given.runs} and {given.trace} must exist: name the runs and the trace")
    measured = {clients: read_run(given.runs / name) for clients, name in RUNS.items()}
    law = fit_law(given.runs, measured[1], measured[4])
    for title, scales in (
        ("The trace as it is:", dict.fromkeys(RUNS, Scale())),
        (
            "Answers and requests in flight scaled to each run's mean, gaps to those of the 1-client run:",
            {clients: matched(given.runs, run, clients, given.trace) for clients, run in measured.items()},
        ),
    ):
        print(f"\n{title}\n")
        for line in table_rows(law, measured, given.trace, scales):
            print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
