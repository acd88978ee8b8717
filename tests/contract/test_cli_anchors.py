"""`inferasim anchors` on the folder that a harvest leaves behind, and on one in which every file has its reason."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from inferasim_harvester.emulator import trial
from inferasim_harvester.emulator.server import Emulator
from inferasim_operator.cli.app import app
from simcore.cards.layout import Engine
from tests import builders
from tests.controllers.test_harvester_faults import QUICK, spec_for

TARGET = ["--accelerator", "MI355X", "--engine", "SGLang", "--model", "Llama-3.1-8B"]


def invoke(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner(env={"COLUMNS": "300"}).invoke(app, ["anchors", *arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


def test_the_folder_of_a_harvest_is_read_as_its_anchor(tmp_path: Path) -> None:
    """Points, progress and result lie beside it; none of them is an anchor, and select says so."""
    found = trial.harvest(Emulator(), spec_for(Engine.VLLM), tmp_path, QUICK)
    assert found.anchor is not None
    for verb in ("show", "check"):
        code, out, _ = invoke(verb, str(tmp_path), "-o", "json")
        assert code == 0
        assert [row["file"] for row in json.loads(out)["anchors"]] == [str(tmp_path / "anchor.json")]
    target = ["--accelerator", "MI355X", "--engine", "VLLM", "--model", "emulated/model"]
    code, out, _ = invoke("select", str(tmp_path), *target, "-o", "json")
    answer = json.loads(out)
    assert (code, answer["file"]) == (0, str(tmp_path / "anchor.json"))
    others = {Path(path).name: why for path, why in answer["otherFiles"].items()}
    assert set(others) == {"points.json", "progress.json", "result.json"}
    assert "its `schema` is inferasim.dev/harvest-points/v1" in others["points.json"]
    assert "its `schema` is absent" in others["progress.json"]


def test_every_file_has_its_reason(tmp_path: Path) -> None:
    """Chosen, refused with each reason, or no anchor: nothing that was given goes without a word."""
    kinds = {
        "good": builders.anchor(),
        "cpu": builders.anchor("CPU"),
        "other-gpu": builders.anchor("MI300X"),
        "random": builders.anchor(provenance={"source": "harvested", "realWeights": False, "prefixCachingOff": True}),
        "fitted": builders.anchor(provenance={"source": "fitted", "realWeights": True, "prefixCachingOff": True}),
    }
    for name, anchor in kinds.items():
        (tmp_path / f"{name}.json").write_text(anchor.to_json())
    (tmp_path / "collectives.json").write_text('{"schema": "inferasim.dev/collectives/v1", "points": []}')
    code, out, _ = invoke("select", str(tmp_path), *TARGET, "-o", "json")
    answer = json.loads(out)
    assert code == 0
    assert len(answer["refusals"]) + len(answer["otherFiles"]) + 1 == len(list(tmp_path.glob("*.json")))
    reasons = "\n".join("; ".join(why) for why in answer["refusals"].values())
    for words in (
        "accelerator: anchor has CPU, target asks MI355X; harvested on a CPU: never used to plan GPUs",
        "accelerator: anchor has MI300X, target asks MI355X",
        "check real-weights failed: weights were random",
        "has the surer source",
    ):
        assert words in reasons, words
    _, table, _ = invoke("select", str(tmp_path), *TARGET)
    assert table.count("\nnot ") == 5
    assert "collectives.json: no anchor" in table


def test_a_file_that_is_named_is_read_as_an_anchor(tmp_path: Path) -> None:
    """Only a folder's other files are passed over."""
    (tmp_path / "points.json").write_text('{"schema": "inferasim.dev/harvest-points/v1"}')
    code, _, error = invoke("show", str(tmp_path / "points.json"))
    assert code == 2
    assert "schema" in error
    code, _, error = invoke("show", str(tmp_path))
    assert code == 2
    assert "at least one anchor" in error
    (tmp_path / "broken.json").write_text("{")
    code, _, error = invoke("show", str(tmp_path))
    assert code == 2
    assert "broken.json" in error
