"""Plans over traces, shared prefixes and a host KV tier; what a trace's path may not do; the table of candidates."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from inferasim_operator import packing, plan_question, planning
from inferasim_operator.plan_traffic import inside
from simcore.errors import FormatError, InferasimError, InputError
from tests import builders

SESSIONS, BLOCK_TOKENS, SHARED_BLOCKS = 40, 512, 6


def _trace() -> str:
    """40 requests of 8 blocks each, the first 6 alike; 64 tokens out."""
    rows = []
    for number in range(SESSIONS):
        own = [SHARED_BLOCKS + 2 * number, SHARED_BLOCKS + 2 * number + 1]
        ids = [*range(SHARED_BLOCKS), *own]
        rows.append({"timestamp": number, "input_length": 8 * BLOCK_TOKENS, "output_length": 64, "hash_ids": ids})
    return "".join(json.dumps(row) + "\n" for row in rows)


def _request(engine: str = "SGLang", **changes: Any) -> dict[str, Any]:
    spec = builders.serving_plan(
        engines=[{"name": engine, "layouts": [{"tensorParallel": 1}, {"tensorParallel": 2}]}],
        load={"concurrencies": [1, 8]},
        **changes,
    )["spec"]
    spec["anchors"] = {"mode": "Simulate"}
    return {"spec": spec, "anchors": {}}


def _held(text: str) -> dict[str, str]:
    return {"data": base64.b64encode(text.encode()).decode()}


BY_CONFIG_MAP = {"trace": {"configMap": {"name": "t"}}}
BY_CLAIM = {"trace": {"claim": {"claimName": "traces", "path": "week/trace.jsonl"}}}


def test_a_trace_is_planned_with_its_lengths_and_its_cache() -> None:
    """Mean and longest lengths are the trace's; prompts that share 6 of 8 blocks are quicker than those that do not."""
    request = _request(workload=BY_CONFIG_MAP) | {"trace": _held(_trace())}
    shared = planning.compute_plan(request)
    configuration = shared["selected"][0]["configuration"]
    assert (configuration["promptTokens"], configuration["outputTokens"]) == (8 * BLOCK_TOKENS, 64)
    assert configuration["maxModelLengthTokens"] == 8 * BLOCK_TOKENS + 64
    assert configuration["prefixCaching"] == "Enabled"
    alone = [
        {**json.loads(line), "hash_ids": list(range(1000 * number, 1000 * number + 8))}
        for number, line in enumerate(_trace().splitlines())
    ]
    text = "".join(json.dumps(row) + "\n" for row in alone)
    apart = planning.compute_plan(_request(workload=BY_CONFIG_MAP) | {"trace": _held(text)})
    rate = {name: answer["selected"][-1]["predicted"]["tokensPerSecondPerGpu"] for name, answer in
            (("shared", shared), ("apart", apart))}  # fmt: skip
    assert rate["shared"] > 1.2 * rate["apart"]


def test_a_trace_on_a_volume_gives_the_same_answer_whole_or_in_shards(tmp_path: Path) -> None:
    """Shards read the volume, the merge does not; the table of each shard has its candidates and no others."""
    folder = tmp_path / "traces" / "week"
    folder.mkdir(parents=True)
    (folder / "trace.jsonl").write_text(_trace())
    by_claim = _request(workload=BY_CLAIM)
    whole = planning.compute_plan(by_claim | {"claims": str(tmp_path)}, table=tmp_path / "all.parquet")
    by_map = planning.compute_plan(_request(workload=BY_CONFIG_MAP) | {"trace": _held(_trace())})
    assert whole["selected"] == by_map["selected"]
    parts = [planning.compute_part(by_claim | {"claims": str(tmp_path)}, index, 2) for index in range(2)]
    packed = [packing.pack(json.dumps(document)) for document, _ in parts]
    assert planning.compute_plan(by_claim | {"shards": packed}) == whole
    rows = pq.read_table(tmp_path / "all.parquet").to_pylist()
    assert len(rows) == whole["candidates"]["scored"]
    assert sorted(row["layout"] for _, part in parts for row in part) == sorted(row["layout"] for row in rows)


def test_the_host_tier_is_swept_without_and_with() -> None:
    """Every layout twice; with the tier never slower, and its size is the GPUs' share of the node's."""
    request = _request(
        "VLLM", workload=BY_CONFIG_MAP, cluster={"accelerator": "MI355X", "nodes": 1, "hostKvGibibytes": 512}
    )
    _, answer = planning.answer_prepared(request | {"trace": _held(_trace())})
    found: dict[tuple[str, int, int], dict[str, float]] = {}
    for candidate in answer.candidates:
        key = (candidate.shape.layout.label(), candidate.replicas_count, candidate.concurrency)
        found.setdefault(key, {})[candidate.settings] = candidate.ttft_s
    for (layout, _, _), by_tier in found.items():
        share = 64 * int(layout.removeprefix("TP"))
        assert set(by_tier) == {"", f"kvOffload.hostGibibytes={share}"}
        assert by_tier[f"kvOffload.hostGibibytes={share}"] <= by_tier[""] * (1 + 1e-9)


def test_a_tier_that_no_engine_can_be_told_is_refused() -> None:
    request = _request(workload=BY_CONFIG_MAP, cluster={"accelerator": "MI355X", "nodes": 1, "hostKvGibibytes": 512})
    with pytest.raises(InputError, match="engine whose tier can be set: VLLM"):
        planning.compute_plan(request | {"trace": _held(_trace())})


def test_shared_prefixes_pay() -> None:
    """Prompts of 4096 tokens, 3072 of them from a pool of 4: the same traffic without the pool is slower."""
    drawn = {"promptTokens": {"minimum": 4096, "maximum": 4096}, "outputTokens": {"minimum": 64, "maximum": 64}}
    pool = {"prefixes": {"count": 4, "tokens": 3072, "zipfExponentPermille": 1000}}
    talk = {"conversation": {"turns": 3, "turnTokens": {"minimum": 64, "maximum": 64}, "thinkMilliseconds": 10}}
    ttft = {}
    for name, more in (("plain", {}), ("pool", pool), ("talk", talk)):
        answer = planning.compute_plan(_request(workload={"synthetic": drawn | more}))
        ttft[name] = answer["selected"][-1]["predicted"]["ttftMilliseconds"]
        caching = answer["selected"][-1]["configuration"]["prefixCaching"]
        assert caching == ("Disabled" if name == "plain" else "Enabled")
    assert ttft["pool"] < ttft["plain"]
    assert ttft["talk"] < ttft["plain"]


@pytest.mark.parametrize("path", ["../secret", "/etc/passwd", "a/../../b", ".hidden", "a//b", "a/", "a\nb", ""])
def test_a_path_out_of_the_volume_is_refused_by_the_type(path: str, tmp_path: Path) -> None:
    request = _request(workload={"trace": {"claim": {"claimName": "traces", "path": path}}})
    with pytest.raises(InputError, match="path"):
        planning.compute_plan(request | {"claims": str(tmp_path)})


def test_a_link_out_of_the_volume_is_refused(tmp_path: Path) -> None:
    (tmp_path / "outside").write_text("secret")
    (tmp_path / "volume").mkdir()
    (tmp_path / "volume" / "link").symlink_to(tmp_path / "outside")
    with pytest.raises(InputError, match="stay inside its volume"):
        inside(tmp_path / "volume", "link", "path")
    with pytest.raises(InputError, match="be there"):
        inside(tmp_path / "volume", "none", "path")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({}, "be resolved"),
        ({"trace": {"data": "%%%"}}, "be base64"),
        ({"trace": _held("nonsense\n")}, "Mooncake"),
        ({"trace": _held("\n".join(_trace().splitlines()[:4]) + "\n")}, "be at most 4, the trace's sessions"),
    ],
)
def test_a_trace_that_cannot_be_used_is_one_clear_error(changes: dict[str, Any], says: str) -> None:
    with pytest.raises((InputError, FormatError), match=says) as caught:
        planning.compute_plan(_request(workload=BY_CONFIG_MAP) | changes)
    assert isinstance(caught.value, InferasimError)


def test_a_rate_in_shards_is_the_same_document() -> None:
    """Layouts are dealt out; what they found is looked up in the merge, the capacity of an overloaded one too."""
    spec = builders.serving_plan(load={"requestsPerMinute": 1200})["spec"]
    request = {"spec": spec, "anchors": {"a": json.loads(builders.anchor().to_json())}}
    whole = planning.compute_plan(request)
    assert any(row["rule"] == "overload" for row in whole["refusals"]) or whole["candidates"]["scored"] > 0
    packed = [packing.pack(json.dumps(planning.compute_part(request, index, 3)[0])) for index in range(3)]
    assert planning.compute_plan({**request, "shards": packed}) == whole


def test_a_trace_that_would_fill_the_operators_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A megabyte of gzip holds millions of requests: counted before anything is simulated."""
    monkeypatch.setattr(plan_question, "MOST_TRACE_REQUESTS", SESSIONS - 1)
    with pytest.raises(InputError, match="must hold at most 39 requests for a plan, got '40 requests'"):
        planning.answer_prepared(_request(workload=BY_CONFIG_MAP) | {"trace": _held(_trace())})
