"""`inferasim anchors`: exit codes, stable JSON, one clear line for bad input; the example anchors."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from inferasim_operator.cli.anchors import app
from simcore.anchors.schema import load_anchor

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples" / "anchors"
LLAMA = EXAMPLES / "llama-3.1-8b-sglang-mi355x-tp1.json"
TARGET = ["--accelerator", "MI355X", "--engine", "SGLang", "--model", "Llama-3.1-8B"]
runner = CliRunner()


def test_check_passes_the_examples_and_prints_numbers() -> None:
    result = runner.invoke(app, ["check", str(EXAMPLES), "-o", "json"])
    assert result.exit_code == 0
    document = json.loads(result.stdout)
    assert len(document["anchors"]) == 3
    assert all(item["verdict"] == "flag" for item in document["anchors"])


def test_a_refusing_check_exits_with_one(tmp_path: Path) -> None:
    raw = json.loads(LLAMA.read_text())
    raw["provenance"]["realWeights"] = False
    bad = tmp_path / "bad.json"
    bad.write_text(json.dumps(raw))
    result = runner.invoke(app, ["check", str(bad)])
    assert result.exit_code == 1
    assert "refuse" in result.stdout


def test_select_explains_the_choice_and_the_others() -> None:
    result = runner.invoke(app, ["select", str(EXAMPLES), *TARGET, "--tp", "2", "-o", "json"])
    assert result.exit_code == 0
    document = json.loads(result.stdout)
    assert document["file"] == str(LLAMA)
    assert "anchor-narrower" in document["flags"]
    assert len(document["refusals"]) == 2
    missing = runner.invoke(app, ["select", str(EXAMPLES), *TARGET, "--kv-dtype", "fp8", "--weights-dtype", "fp8"])
    assert missing.exit_code == 1
    assert "weightsDtype: anchor has bf16, target asks fp8" in missing.stdout.replace("\n", " ")


def test_show_prints_every_form() -> None:
    for form in ("table", "json", "yaml"):
        result = runner.invoke(app, ["show", str(LLAMA), "-o", form])
        assert result.exit_code == 0
        assert "Llama-3.1-8B" in result.stdout


@pytest.mark.parametrize("text", ["", "{}", '{"schema": "inferasim.dev/anchor/v1"}'])
def test_a_malformed_anchor_gets_one_line_and_exit_code_two(tmp_path: Path, text: str) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text(text)
    result = runner.invoke(app, ["show", str(bad)])
    assert result.exit_code == 2
    assert result.stderr.startswith("inferasim: bad.json")
    assert result.stderr.count("\n") == 1
    assert runner.invoke(app, ["show", str(tmp_path)]).exit_code == 2


def test_the_example_anchors_come_from_the_table() -> None:
    tool = ROOT / "tools" / "anchors_from_table20.py"
    found = subprocess.run([sys.executable, str(tool), "--check"], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr


def test_single_wave_steps_by_hand() -> None:
    # Table 20, Llama-3.1-8B 1k, 64 clients: TTFT 514, TPOT 7.73 ms. 8 prompts of 1024 fill 8192 tokens, so 8 prefill
    # steps; W = 514 * 16/9 = 913.8 ms; decode = 7.73 - (913.8 - 514)/1023 = 7.339; prefill step 114.2.
    # 16 clients: 2 steps, W = 185 * 4/3 = 246.7; decode = 5.03 - 61.7/1023 = 4.970; prefill step 123.3.
    anchor = load_anchor(LLAMA)
    assert [point.step_milliseconds for point in anchor.decode[0].points] == [4.46, 4.97, 7.339]
    assert anchor.packed_prefill is not None
    assert anchor.packed_prefill.points[0].milliseconds == pytest.approx((114.22 + 123.33) / 2, abs=0.01)
    assert anchor.provenance.source == "paper"


def test_select_knows_the_words_of_its_options() -> None:
    for option, value in (("--kv-dtype", "fp9"), ("--weights-dtype", "w3"), ("--graph-capture", "most")):
        result = runner.invoke(app, ["select", str(EXAMPLES), *TARGET, option, value])
        assert result.exit_code == 2
        assert option in result.stderr
        assert len(result.stderr.splitlines()) == 1
