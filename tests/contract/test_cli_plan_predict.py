"""`inferasim plan` and `inferasim predict` as their users run them: output, exit codes, one clear line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from inferasim_operator.cli.app import app

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
PLAN = str(EXAMPLES / "plan.yaml")
ANCHORS = str(EXAMPLES / "anchors")

SMALL_PLAN: dict[str, Any] = {
    "model": {"name": "Llama-3.1-8B"},
    "cluster": {"accelerator": "MI355X", "nodes": 1, "gpuBudget": 2},
    "engines": [{"name": "SGLang"}],
    "workload": {"fixed": {"promptTokens": 1024, "outputTokens": 256}},
    "load": {"concurrencies": [1, 16]},
}
SCENARIO: dict[str, Any] = {
    "model": "Llama-3.1-8B",
    "engine": {"name": "SGLang", "version": "0.5.19"},
    "accelerator": "MI355X",
    "layout": {"tensorParallel": 1},
    "anchors": ["llama-3.1-8b-sglang-mi355x-tp1"],
    "mode": "anchored",
    "workload": {"fixed": {"promptTokens": 1024, "outputTokens": 1024}},
    "load": {"concurrency": 16},
}


def invoke(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, list(arguments))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


def written(folder: Path, document: object, name: str = "input.yaml") -> str:
    path = folder / name
    path.write_text(yaml.safe_dump(document))
    return str(path)


def changed(document: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {key: value for key, value in (document | changes).items() if value is not None}


def test_plan_prints_the_same_bytes_each_time(tmp_path: Path) -> None:
    plan = written(tmp_path, SMALL_PLAN)
    one = invoke("plan", "-f", plan, "-f", ANCHORS, "-o", "json")
    two = invoke("plan", "-f", ANCHORS, "-f", plan, "-o", "json")
    assert one == two
    assert one[0] == 0


def test_every_chosen_configuration_carries_source_interval_and_reason(tmp_path: Path) -> None:
    code, out, _ = invoke("plan", "-f", written(tmp_path, SMALL_PLAN), "-f", ANCHORS, "-o", "json")
    answer = json.loads(out)
    assert code == 0
    assert answer["selected"]
    for choice in answer["selected"]:
        assert choice["gpus"] <= 2
        assert choice["source"]["mode"] == "Anchored"
        assert choice["source"]["anchor"] == "llama-3.1-8b-sglang-mi355x-tp1"
        assert choice["reason"]
        for name, value in choice["predicted"].items():
            if name in choice["predicted"]["interval80"]:
                ends = choice["predicted"]["interval80"][name]
                assert ends["low"] <= value <= ends["high"]


def test_a_manifest_and_its_bare_spec_give_the_same_answer(tmp_path: Path) -> None:
    manifest = {
        "apiVersion": "inferasim.dev/v1alpha1",
        "kind": "ServingPlan",
        "metadata": {"name": "x"},
        "spec": SMALL_PLAN,
    }
    bare = invoke("plan", "-f", written(tmp_path, SMALL_PLAN, "a.yaml"), "-f", ANCHORS, "-o", "json")
    assert invoke("plan", "-f", written(tmp_path, manifest, "b.yaml"), "-f", ANCHORS, "-o", "json") == bare


def test_an_infeasible_plan_exits_1_with_the_limit_and_the_nearest(tmp_path: Path) -> None:
    tiers = [{"name": "impossible", "tokensPerSecondPerUser": 5000}]
    code, out, _ = invoke(
        "plan", "-f", written(tmp_path, changed(SMALL_PLAN, tiers=tiers)), "-f", ANCHORS, "-o", "json"
    )
    answer = json.loads(out)
    assert code == 1
    assert answer["selected"] == []
    assert answer["binding"][0]["limit"] == "interactivity"
    assert answer["binding"][0]["nearest"]["configuration"]["concurrency"] == 1


def test_without_an_anchor_nothing_is_promised(tmp_path: Path) -> None:
    """Public case B14: only anchors of other models are at hand."""
    plan = changed(SMALL_PLAN, model={"name": "gpt-oss-120b"})
    code, out, _ = invoke("plan", "-f", written(tmp_path, plan), "-f", ANCHORS, "-o", "json")
    answer = json.loads(out)
    assert code == 1
    assert {item["limit"] for item in answer["binding"]} == {"anchor"}
    assert answer["recommendedHarvests"][0]["engine"] == "SGLang"


def test_simulate_mode_says_that_it_only_ranks(tmp_path: Path) -> None:
    plan = changed(SMALL_PLAN, anchors={"mode": "Simulate"})
    code, out, _ = invoke("plan", "-f", written(tmp_path, plan), "-o", "json")
    assert code == 0
    for choice in json.loads(out)["selected"]:
        assert choice["source"]["mode"] == "Simulate"
        assert "ranking-only" in choice["source"]["flags"]


@pytest.mark.parametrize(
    ("changes", "fragment"),
    [
        ({"modle": {"name": "x"}}, "modle"),
        ({"model": {"name": "Llama-9"}}, "Llama-3.1-8B"),
        ({"cluster": {"accelerator": "MI999", "nodes": 1}}, "MI300X"),
        ({"cluster": {"accelerator": "h100_sxm", "nodes": 1}}, "AMD"),
        ({"engines": [{"name": "SGLang", "layouts": [{"tensorParallel": 3}]}]}, "32 "),
        ({"load": {"concurrencies": []}}, "concurrencies"),
        ({"cluster": {"accelerator": "MI355X", "nodes": 1, "gpuBudget": 99}}, "gpuBudget"),
        ({"workload": {"fixed": {"promptTokens": 131072, "outputTokens": 1024}}}, "131072"),
        ({"engines": [{"name": "TensorRT"}]}, "engines"),
    ],
)
def test_bad_plans_are_one_clear_line_and_exit_2(tmp_path: Path, changes: dict[str, Any], fragment: str) -> None:
    code, out, error = invoke("plan", "-f", written(tmp_path, changed(SMALL_PLAN, **changes)), "-f", ANCHORS)
    assert code == 2, error
    assert out == ""
    assert len(error.strip().splitlines()) == 1
    assert fragment in error


def test_a_prediction_is_never_a_bare_number(tmp_path: Path) -> None:
    code, out, _ = invoke("predict", "-f", written(tmp_path, SCENARIO), "-o", "json")
    found = json.loads(out)
    assert code == 0
    assert found["mode"] == "anchored"
    assert found["source"]["anchorDigest"].startswith("sha256:")
    for name, latency in (("ttftMs", found["ttftMs"]), ("tpotMs", found["tpotMs"])):
        low, high = found["interval80"][name]
        assert low <= latency["mean"] <= high
    parts = found["stepBreakdown"]["decode"]
    assert sum(parts["parts"].values()) == pytest.approx(parts["seconds"])


def test_the_anchor_rows_come_back(tmp_path: Path) -> None:
    """Table 20, Llama-3.1-8B, TP1 PP1, 1k/1k, 16 clients: TTFT 185 ms, TPOT 5.03 ms, 3071 tok/s.

    The anchor was made from this row under a simple wave model, so this checks the whole chain, not the law.
    """
    _, out, _ = invoke("predict", "-f", written(tmp_path, SCENARIO), "-o", "json")
    found = json.loads(out)
    assert found["tpotMs"]["mean"] == pytest.approx(5.03, rel=0.05)
    assert found["throughputTokensPerSecond"] == pytest.approx(3071, rel=0.05)


def test_without_a_usable_anchor_auto_falls_back_and_says_so(tmp_path: Path) -> None:
    auto = changed(SCENARIO, anchors=None, mode="auto")
    code, out, _ = invoke("predict", "-f", written(tmp_path, auto), "-o", "json")
    found = json.loads(out)
    assert code == 0
    assert found["mode"] == "simulate"
    assert "ranking-only" in found["flags"]
    low, high = found["interval80"]["tpotMs"]
    anchored = json.loads(invoke("predict", "-f", written(tmp_path, SCENARIO), "-o", "json")[1])["interval80"]["tpotMs"]
    assert high / low > anchored[1] / anchored[0]


def test_anchored_mode_without_an_anchor_exits_1_with_the_reason(tmp_path: Path) -> None:
    other = changed(SCENARIO, accelerator="MI300X")
    code, _, error = invoke("predict", "-f", written(tmp_path, other))
    assert code == 1
    assert "MI355X" in error
    assert len(error.strip().splitlines()) == 1


def test_one_client_open_loop_and_ranges(tmp_path: Path) -> None:
    """A rate far below capacity leaves every request alone: its TPOT is the batch-1 step of the anchor, 4.46 ms."""
    lengths = {"minimum": 900, "maximum": 1100}
    scenario = changed(
        SCENARIO,
        workload={"synthetic": {"promptTokens": lengths, "outputTokens": 128}},
        load={"requestRate": 0.1, "requests": 50},
    )
    _, out, _ = invoke("predict", "-f", written(tmp_path, scenario), "-o", "json")
    found = json.loads(out)
    assert found["tpotMs"]["median"] == pytest.approx(4.46, rel=0.03)
    assert found["ttftMs"]["p99"] is None, "50 requests hold no p99"
    assert found["itlMs"]["p99"] is not None


@pytest.mark.parametrize(
    ("changes", "fragment"),
    [
        ({"layout": {"tensorParallel": 3}}, "32 "),
        ({"layout": None}, "layout"),
        ({"load": {}}, "load"),
        ({"load": {"concurrency": 1, "requestRate": 1.0, "requests": 5}}, "exactly one"),
        ({"load": {"requestRate": 1.0}}, "requests"),
        ({"load": {"concurrency": 0}}, "concurrency"),
        ({"workload": {}}, "exactly one"),
        ({"anchors": ["nonsense"]}, "llama-3.1-8b-sglang-mi355x-tp1"),
        ({"anchors": ["missing.json"]}, "missing.json"),
        ({"frobnicate": 1}, "frobnicate"),
        ({"accelerator": None}, "accelerator"),
    ],
)
def test_bad_scenarios_are_one_clear_line_and_exit_2(tmp_path: Path, changes: dict[str, Any], fragment: str) -> None:
    code, out, error = invoke("predict", "-f", written(tmp_path, changed(SCENARIO, **changes)))
    assert code == 2, error
    assert out == ""
    assert len(error.strip().splitlines()) == 1
    assert fragment in error


@pytest.mark.parametrize(
    "text", ["", "a: b: c", "- 1", "a: &x [1]\nb: *x", "a: 1\na: 2", "\x00", "[" * 3000, "{}{}", "%YAML 9.9\n---\na: 1"]
)
@pytest.mark.parametrize("command", ["plan", "predict", "check", "render"])
def test_broken_documents_never_crash(tmp_path: Path, command: str, text: str) -> None:
    path = tmp_path / "broken.yaml"
    path.write_text(text)
    code, out, error = invoke(command, "-f", str(path))
    assert code == 2
    assert out == ""
    assert len(error.strip().splitlines()) == 1
