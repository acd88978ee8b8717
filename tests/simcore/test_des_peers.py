"""Other simulators' answers for the same requests, prices and settings: theirs, not ours. Companions: INV-1, INV-2."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bench.bench_arrivals import SMALL_CASES, deployment, latencies, write_trace
from simcore.des.simulate import simulate
from simcore.des.workload.trace import open_trace
from tests.golden.tables import load_table

ROWS = load_table("peers/arrivals.csv")


@pytest.mark.parametrize("number", range(len(SMALL_CASES)))
def test_each_request_is_served_when_others_serve_it(number: int, tmp_path: Path) -> None:
    """Mixed steps, chunks, few places, a pool that preempts, a cache that evicts, SGLang: to the nanosecond."""
    case = SMALL_CASES[number]
    rows = [row for row in ROWS if row["case"] == str(number)]
    assert len(rows) == case.requests
    assert {row["source"] for row in rows} == {case.peer}
    columns = ("arrival_us", "prompt_tokens", "output_tokens", "prefix")
    requests = [(int(a), int(p), int(o), int(x)) for a, p, o, x in ([row[c] for c in columns] for row in rows)]
    write_trace(requests, tmp_path / "trace.jsonl")
    result = simulate(deployment(case), open_trace(tmp_path / "trace.jsonl"))
    theirs_ns = np.array([[int(row["ttft_ns"]), int(row["e2e_ns"])] for row in rows])
    assert np.abs(latencies(result) * 1e9 - theirs_ns).max() <= 1.5  # we round down, they to the nearest
    if case.blocks == 3000:
        assert result.preemptions_count > 0
    if case.prefixes:
        assert result.hit_rate is not None
        assert result.hit_rate > 0.1
