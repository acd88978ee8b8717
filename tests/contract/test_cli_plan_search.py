"""`inferasim plan` by trials and with demands: methods, ledger, replay, what is refused, the mix on one budget."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml
from typer.testing import CliRunner

from inferasim_operator.cli.app import app
from inferasim_operator.plan_question import parse_spec

ROOT = Path(__file__).resolve().parents[2]
ANCHORS = str(ROOT / "examples" / "anchors")
PLAN: dict[str, Any] = {
    "model": {"name": "Llama-3.1-8B"},
    "cluster": {"accelerator": "MI355X", "nodes": 1, "gpuBudget": 4},
    "engines": [{"name": "SGLang"}],
    "workload": {"fixed": {"promptTokens": 1024, "outputTokens": 256}},
    "load": {"concurrencies": [1, 16, 64]},
    "tiers": [{"name": "interactive", "tokensPerSecondPerUser": 70, "ttftMilliseconds": 2500}],
}
AGENT = {"url": "http://127.0.0.1:9/v1", "model": "m"}


def invoke(folder: Path, document: dict[str, Any], *arguments: str) -> tuple[int, str, str]:
    path = folder / "plan.yaml"
    path.write_text(json.dumps(document))  # a repeated value is no alias here
    result = CliRunner().invoke(app, ["plan", "-f", str(path), "-f", ANCHORS, "-o", "json", *arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


def test_seeds_write_a_ledger_that_replays_to_the_same_bytes(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.jsonl"
    first = invoke(tmp_path, PLAN, "--method", "seeds", "--budget", "12", "--ledger", str(ledger))
    assert first[0] == 0
    answer = json.loads(first[1])
    assert answer["search"]["trials"] == sum('"kind":"trial"' in line for line in ledger.read_text().splitlines()) <= 12
    assert "ledger" not in answer
    assert (answer["search"]["method"], answer["search"]["budget"]) == ("Seeds", 12)
    again = tmp_path / "again.jsonl"
    spec = PLAN | {"search": {"method": "Seeds", "budget": 12}}
    assert invoke(tmp_path, spec, "--replay", str(ledger), "--ledger", str(again)) == first
    assert again.read_text() == ledger.read_text()


@pytest.mark.parametrize(
    ("spec", "arguments", "says"),
    [
        ({}, ("--method", "Agent"), "name a chat model with method Agent"),
        ({}, ("--method", "Grid"), "Agent, Seeds, Sweep"),
        ({}, ("--budget", "5"), "must set `budget` with methods Seeds and Agent only"),
        ({}, ("--ledger", "x"), "a search method that makes trials"),
        ({"search": {"method": "Sweep", "agent": AGENT}}, (), "must set `agent` with method Agent only"),
        ({"search": {"method": "Seeds", "shards": 2}}, (), "must not set `shards`"),
        ({"load": {"requestsPerMinute": 60}}, ("--method", "Seeds"), "must set `workload.fixed` and"),
        ({"search": {"method": "Agent", "agent": {**AGENT, "url": "file:///etc/x"}}}, (), "url"),
        ({"search": {"method": "Agent", "agent": {**AGENT, "url": "http://user:pw@x/v1"}}}, (), "url"),
        ({"demands": [{"tier": "bulk", "tokensPerSecond": 1}]}, (), "be one of interactive"),
        ({"demands": [{"tier": "interactive", "tokensPerSecond": 1, "model": "Qwen3-14B"}]}, (), "plan's own model"),
        ({"demands": [{"tier": "interactive", "tokensPerSecond": 1}] * 2}, (), "each model and tier once"),
    ],
)
def test_what_is_refused_is_one_line_and_exit_2(
    tmp_path: Path, spec: dict[str, Any], arguments: tuple[str, ...], says: str
) -> None:
    code, out, err = invoke(tmp_path, PLAN | spec, *arguments)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert says in err


def test_without_the_extra_an_agent_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dspy", None)  # as where it is not installed
    code, _, err = invoke(tmp_path, PLAN | {"search": {"method": "Agent", "agent": AGENT}})
    assert code == 2
    assert "install the extra: inferasim[agent]" in err


def test_a_mix_serves_the_demands_within_the_budget(tmp_path: Path) -> None:
    """By hand: each demand takes whole replicas, one less would not do, and their sum stays within 4 GPUs."""
    demands = [
        {"tier": "interactive", "tokensPerSecond": 5000},
        {"tier": "interactive", "tokensPerSecond": 2000, "model": "Qwen3-14B-FP8"},
    ]
    code, out, _ = invoke(tmp_path, PLAN | {"demands": demands})
    answer = json.loads(out)
    mix = answer["mix"]
    assert code == 0
    assert mix["gpus"] == sum(item["gpus"] for item in mix["allocations"]) <= mix["gpuBudget"] == 4
    assert [(item["model"], item["servedTokensPerSecond"]) for item in mix["allocations"]] == [
        ("Llama-3.1-8B", 5000),
        ("Qwen3-14B-FP8", 2000),
    ]
    for item in mix["allocations"]:
        configuration, rate = item["configuration"], item["predicted"]["tokensPerSecondPerGpu"]
        assert configuration["model"] == item["model"]
        assert item["gpus"] == configuration["replicas"] * configuration["gpusPerReplica"]
        fewer = (configuration["replicas"] - 1) * configuration["gpusPerReplica"] * rate
        assert fewer < item["demandTokensPerSecond"] <= item["gpus"] * (rate + 1)
    assert [choice["configuration"] for choice in answer["selected"]] == [mix["allocations"][0]["configuration"]]


def test_a_mix_beyond_the_budget_serves_a_part_and_says_so(tmp_path: Path) -> None:
    demands = [{"tier": "interactive", "tokensPerSecond": 1_000_000}]
    code, out, _ = invoke(tmp_path, PLAN | {"demands": demands})
    answer = json.loads(out)
    assert code == 0
    assert answer["mix"]["gpus"] == 4
    assert 0 < answer["mix"]["servedTokensPerSecond"] <= answer["mix"]["boundTokensPerSecond"] < 1_000_000
    assert [(item["tier"], item["limit"]) for item in answer["binding"]] == [("interactive", "gpu-budget")]
    assert "4 of 4 GPUs are in use" in answer["mix"]["allocations"][0]["unserved"]


def test_a_demand_that_no_configuration_meets_says_which_limit_and_leaves_the_others_served(tmp_path: Path) -> None:
    """70 tok/s per user of a model of 405 billion parameters on 4 GPUs: it does not fit, and nothing else suffers."""
    demands = [
        {"tier": "interactive", "tokensPerSecond": 1000},
        {"tier": "interactive", "tokensPerSecond": 1000, "model": "Llama-3.1-405B"},
    ]
    code, out, _ = invoke(tmp_path, PLAN | {"demands": demands, "anchors": {"mode": "Auto"}})
    large, small = json.loads(out)["mix"]["allocations"]
    assert code == 0
    assert (large["model"], large["servedTokensPerSecond"], large["gpus"]) == ("Llama-3.1-405B", 0, 0)
    assert "configuration" not in large
    assert large["unserved"].split(":")[0] in ("memory", "gpu-budget", "interactivity", "ttft")
    assert small["servedTokensPerSecond"] == 1000


def test_a_trace_on_a_volume_and_the_table_of_candidates(tmp_path: Path) -> None:
    folder = tmp_path / "claims" / "traces"
    folder.mkdir(parents=True)
    row = {"timestamp": 0, "input_length": 1024, "output_length": 64, "hash_ids": [1, 2]}
    (folder / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for _ in range(64)))
    spec = PLAN | {"workload": {"trace": {"claim": {"claimName": "traces", "path": "t.jsonl"}}}}
    code, _, err = invoke(tmp_path, spec)
    assert code == 2
    assert "name the folder of claims with --claims" in err
    table = tmp_path / "all.parquet"
    code, out, _ = invoke(tmp_path, spec, "--claims", str(tmp_path / "claims"), "--table", str(table))
    answer = json.loads(out)
    assert code == 0
    rows = pq.read_table(table).to_pylist()
    assert len(rows) == answer["candidates"]["scored"]
    best = max(rows, key=lambda row: row["throughput_per_gpu_tokens_per_s"])
    assert best["replica_throughput_low80"] <= best["throughput_tokens_per_s"] / best["replicas_count"]
    again = tmp_path / "again.parquet"
    invoke(tmp_path, spec, "--claims", str(tmp_path / "claims"), "--table", str(again))
    assert again.read_bytes() == table.read_bytes()


def test_a_trace_in_a_config_map_comes_with_the_files(tmp_path: Path) -> None:
    row = {"timestamp": 0, "input_length": 1024, "output_length": 64, "hash_ids": [1, 2]}
    text = "".join(json.dumps(row) + "\n" for _ in range(64))
    found = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "week"}, "data": {"trace.jsonl": text}}
    (tmp_path / "trace.yaml").write_text(yaml.safe_dump(found))
    spec = PLAN | {"workload": {"trace": {"configMap": {"name": "week"}}}}
    assert "be among the files given" in invoke(tmp_path, spec)[2]
    code, out, _ = invoke(tmp_path, spec, "-f", str(tmp_path / "trace.yaml"))
    assert code == 0
    assert json.loads(out)["selected"][0]["configuration"]["promptTokens"] == 1024


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("plan*.yaml")), ids=lambda path: path.stem)
def test_every_example_plan_is_one(path: Path) -> None:
    (document,) = yaml.safe_load_all(path.read_text())
    assert parse_spec(document["spec"]).to_dict() == document["spec"]


def test_the_example_mix_is_served(tmp_path: Path) -> None:
    """What the example promises: all of it, on fewer than the node's GPUs."""
    document = yaml.safe_load((ROOT / "examples" / "plan-mix.yaml").read_text())
    code, out, _ = invoke(tmp_path, document)
    mix = json.loads(out)["mix"]
    assert code == 0
    assert mix["servedTokensPerSecond"] == mix["demandTokensPerSecond"] == 17_000
    assert mix["gpus"] < mix["gpuBudget"] == 8


def test_explain_reads_traces_of_claims_and_asks_no_language_model(tmp_path: Path) -> None:
    """The plan's own choice; without the folder it names the option for it; an agent's search is not made again."""
    (tmp_path / "claims" / "traces").mkdir(parents=True)
    row = {"timestamp": 0, "input_length": 1024, "output_length": 64, "hash_ids": [1, 2]}
    (tmp_path / "claims" / "traces" / "hour.jsonl").write_text((json.dumps(row) + "\n") * 32)
    trace = {"trace": {"claim": {"claimName": "traces", "path": "hour.jsonl"}}}
    claims = ("--claims", str(tmp_path / "claims"))
    code, out, _ = invoke(tmp_path, PLAN | {"workload": trace, "load": {"concurrencies": [1, 16]}}, *claims)
    assert code == 0
    (chosen,) = json.loads(out)["selected"]

    def explain(*more: str) -> tuple[int, str, str]:
        result = CliRunner().invoke(app, ["explain", str(tmp_path / "plan.yaml"), ANCHORS, "-o", "json", *more])
        return result.exit_code, result.stdout, result.stderr

    code, out, _ = explain(*claims)
    assert code == 0
    (tier,) = json.loads(out)["tiers"]
    for figure in ("tokensPerSecondPerGpu", "tpotMicroseconds", "ttftMilliseconds"):
        assert tier["chosen"][figure] == chosen["predicted"][figure]
    code, _, err = explain()
    assert code == 2
    assert "name the folder of claims with --claims" in err
    (tmp_path / "plan.yaml").write_text(json.dumps(PLAN | {"search": {"method": "Agent", "agent": AGENT}}))
    code, _, err = explain()
    assert code == 2
    assert "`search.method` must be explained from its result" in err
