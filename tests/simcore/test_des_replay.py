"""Replay as a document and as a command; the deployment document; the timeline's trace file; the stall tail."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from inferasim_operator.cli.replay import replay
from simcore.cards.layout import Engine
from simcore.des.document import load_deployment
from simcore.des.kernel.clock import gap_bin, gap_floor_ns
from simcore.des.replay import chrome_trace, record_rows, replay_document
from simcore.des.result import Record, _bins
from simcore.des.simulate import simulate
from simcore.des.workload.synthetic import (
    ClosedLoop,
    Conversation,
    Lengths,
    PoissonArrivals,
    SharedPrefixes,
    conversations,
    independent_requests,
)
from simcore.errors import InputError
from tests.reference.des_cases import table_of
from tests.reference.des_simple import colocated, flat_table, requests_at, scheduler

DOCUMENT: dict[str, Any] = {
    "pool": {
        "step": {"decodeMicroseconds": {"1": 10_000, "3": 14_000}, "prefillNanosecondsPerToken": 1000},
        "scheduler": {"engine": "vLLM", "maxRunningRequests": 8, "kvPoolTokens": 65_536, "blockTokens": 16},
        "gpusPerReplica": 4,
    },
    "routing": "kv-aware",
}


def test_deployment_document() -> None:
    deployment = load_deployment(DOCUMENT)
    base = deployment.pool.table.decode_base_ps
    assert base.tolist() == [0, 10 * 10**9, 12 * 10**9, 14 * 10**9, *(10**9 * (14 + 2 * n) for n in range(1, 6))]
    assert deployment.pool.scheduler.engine is Engine.VLLM
    assert deployment.pool.scheduler.prefix_caching


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("pool", "step", "decodeMicroseconds"), {}, "decodeMicroseconds"),
        (("pool", "scheduler", "engine"), "TGI", "vLLM"),
        (("pool", "scheduler", "kvPoolTokens"), 0, "kvPoolTokens"),
        (("pool", "step", "hopMicroseconds"), float("nan"), "hopMicroseconds"),
        (("pool", "colour"), "red", "colour"),
        (("routing",), "nearest", "routing"),
    ],
)
def test_bad_deployment_documents(path: tuple[str, ...], value: Any, words: str) -> None:
    document = json.loads(json.dumps(DOCUMENT))
    inner = document
    for name in path[:-1]:
        inner = inner[name]
    inner[path[-1]] = value
    with pytest.raises(InputError, match=f"(?i){words}"):
        load_deployment(document)


def test_replay_document_is_plain_and_complete() -> None:
    load = requests_at([(0, 100, 5), (3, 200, 1), (4, 100_000, 2)])
    document = replay_document(load_deployment(DOCUMENT), load)
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    assert document["completedRequests"] == 2
    assert document["rejectedRequests"] == 1
    assert document["gpus"] == 4
    assert document["tpotMilliseconds"]["count"] == 1
    assert document["tpotMilliseconds"]["p99"] is None
    assert document["hitRate"] is None  # prompts without blocks: unknown, not zero


def _run(*arguments: str) -> Any:
    app = typer.Typer()
    app.command()(replay)
    return CliRunner().invoke(app, list(arguments))


def test_replay_command(tmp_path: Path) -> None:
    trace, plan = tmp_path / "trace.jsonl", tmp_path / "deployment.json"
    rows = [
        {"timestamp": 10 * n, "input_length": 1024, "output_length": 4, "hash_ids": [n % 3, 10 + n]} for n in range(12)
    ]
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
    plan.write_text(json.dumps(DOCUMENT))
    records, timeline = tmp_path / "records.jsonl", tmp_path / "timeline.json"
    arguments = [str(trace), "-f", str(plan), "-o", "json", "--records", str(records), "--timeline", str(timeline)]
    found = _run(*arguments)
    assert found.exit_code == 0, found.output
    document = json.loads(found.stdout)
    assert document["completedRequests"] == 12
    assert document["blockTokens"] == 512
    assert document["blockHitRate"] == 9 / 24
    lines = [json.loads(line) for line in records.read_text().splitlines()]
    assert [line["promptTokens"] for line in lines] == [1024] * 12
    trace_file = json.loads(timeline.read_text())
    assert {event["ph"] for event in trace_file["traceEvents"]} == {"M", "X", "C"}
    assert _run(*arguments).stdout == found.stdout
    table = _run(str(trace), "-f", str(plan), "--clients", "2", "--replicas", "2", "--summary")
    assert table.exit_code == 0
    assert "12 requests served" in table.output


def test_replay_command_refuses_bad_input(tmp_path: Path) -> None:
    trace, plan = tmp_path / "trace.jsonl", tmp_path / "deployment.json"
    plan.write_text(json.dumps(DOCUMENT))
    trace.write_text('{"timestamp": 0, "input_length": 512, "output_length": 1, "hash_ids": [1]}\n{"timestamp": -1')
    found = _run(str(trace), "-f", str(plan), "--format", "mooncake")
    assert found.exit_code == 2
    assert "line 2" in found.output
    assert "Traceback" not in found.output


def test_timeline_covers_the_run() -> None:
    load = independent_requests(Lengths(50, 300), Lengths(5, 30), 40, PoissonArrivals(30.0))
    result = simulate(colocated(flat_table(64, decode_ms=4, token_us=30), scheduler()), load, record=Record.TIMELINE)
    events = [event for event in chrome_trace(result)["traceEvents"] if event["ph"] == "X"]
    assert sum(event["args"]["steps"] for event in events) == result.replicas[0].steps_count
    assert all(one["ts"] + one["dur"] <= two["ts"] + 1e-6 for one, two in pairwise(events))
    assert sum(1 for _ in record_rows(result)) == 40


def test_gap_histogram_bins() -> None:
    """Each bin holds the gaps from its floor to the next one's, 0.2 % wide at most; numpy and the kernel agree."""
    floor, bin_of = gap_floor_ns.py_func, gap_bin.py_func  # type: ignore[attr-defined]
    values = np.unique(np.concatenate([np.arange(3000), np.logspace(3, 16, 4000).astype(np.int64)]))
    bins = [bin_of(int(value)) for value in values]
    np.testing.assert_array_equal(_bins(values), bins)
    for value, index in zip(values.tolist(), bins, strict=True):
        assert floor(index) <= value < floor(index + 1)
        assert floor(index + 1) - floor(index) <= max(1, value / 512)


def _tail(engine: Engine, **rules: Any) -> tuple[float, float]:
    """(p99.9, median) ITL in ms at 64 clients, 8k/1k-like: step times like the paper's §3.4 run."""
    table = table_of(
        64, base_ps=15 * 10**9, per_request_ps=10**8, context_ps=0, token_ps=80 * 10**6, square_ps=0, fixed_ps=10**9
    )
    load = independent_requests(Lengths(1000, 9000), Lengths(50, 400), 640, ClosedLoop(64))
    result = simulate(colocated(table, scheduler(engine, **rules)), load, seed=3, warmup_requests=64)
    assert result.itl.p999_s is not None
    assert result.itl.median_s is not None
    return result.itl.p999_s * 1e3, result.itl.median_s * 1e3


def test_the_stall_tail() -> None:
    """§3.4: with 64 clients each admitted prompt stalls all running decodes; p99.9 ITL is many times the median.

    How long the tail is depends on the scheduler and its chunk.
    """
    prefill_first, median = _tail(Engine.SGLANG)
    assert prefill_first > 15 * median
    mixed, _ = _tail(Engine.VLLM, max_batched_tokens=2048)
    assert mixed < prefill_first / 2  # a step holds 2,048 prompt tokens at most


def test_shared_prefixes_are_found_and_skew_helps() -> None:
    rates = {}
    for exponent in (0.0, 1.2):
        load = independent_requests(
            Lengths.fixed(1024),
            Lengths.fixed(4),
            600,
            ClosedLoop(4),
            prefixes=SharedPrefixes(count=200, tokens=768, zipf_exponent=exponent),
            block_tokens=64,
        )
        rules = scheduler(prefix_caching=True, kv_pool_tokens=40_000)
        rates[exponent] = simulate(colocated(flat_table(64, decode_ms=1, token_us=1), rules), load, seed=1).hit_rate
    assert rates[0.0] is not None
    assert rates[1.2] is not None
    assert rates[0.0] < rates[1.2] < 0.75


def test_conversations_reuse_their_context() -> None:
    """With room for everything, a turn finds all whole blocks of the turn before."""
    shape = Conversation(5, Lengths.fixed(640), Lengths.fixed(64), Lengths.fixed(64), think_s=0.2)
    rules = scheduler(prefix_caching=True)
    result = simulate(colocated(flat_table(64, decode_ms=1), rules), conversations(shape, 20, ClosedLoop(4)))
    assert result.records is not None
    prompts = [640 + 128 * turn for turn in range(5)]
    assert result.hit_rate == sum(prompts[:-1]) / sum(prompts)


@pytest.mark.parametrize(
    "make",
    [
        lambda: independent_requests(Lengths(5, 4), Lengths.fixed(1), 3, ClosedLoop(1)),
        lambda: independent_requests(Lengths.fixed(1), Lengths.fixed(1), 0, ClosedLoop(1)),
        lambda: independent_requests(Lengths.fixed(1), Lengths.fixed(1), 3, ClosedLoop(0)),
        lambda: independent_requests(Lengths.fixed(1), Lengths.fixed(1), 3, PoissonArrivals(float("nan"))),
        lambda: independent_requests(Lengths.fixed(1), Lengths.fixed(1), 10**9, PoissonArrivals(1.0)),
    ],
)
def test_bad_synthetic_loads(make: Any) -> None:
    with pytest.raises(InputError):
        make()


def test_the_documented_deployment_loads() -> None:
    import re

    import yaml

    page = (Path(__file__).parents[2] / "docs" / "formats" / "traces.md").read_text(encoding="utf-8")
    found = re.search(r"```yaml\n(.*?)```", page, re.DOTALL)
    assert found is not None
    deployment = load_deployment(yaml.safe_load(found.group(1)))
    assert deployment.pool.replicas_count == 8
    assert deployment.pool.host_tier is not None
