"""The optional phases: collectives before the start, decode without prefill, the recording of expert routing."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from e2e import cpu_engine
from inferasim_harvester import collectives, launch, routing
from inferasim_harvester.__main__ import main
from inferasim_harvester.collectives import Point
from inferasim_harvester.errors import MeasurementFailedError
from inferasim_harvester.spec import parse_spec
from simcore.anchors.checks import Verdict
from simcore.anchors.schema import load_anchor
from simcore.errors import InputError
from simcore.laws.routing_files import read_recording, read_table

ENGINE = """#!{python}
# Stands where the engine's command would, and writes down how it was started.
import asyncio, json, os, pathlib, sys
from inferasim_harvester.emulator.law import StepLaw
from inferasim_harvester.emulator.recorder import Recorder
from inferasim_harvester.emulator.server import Emulator
from simcore.cards.layout import Engine
with open({starts!r}, "a") as log:
    log.write(json.dumps(sys.argv) + "\\n")
port = int(next(a.split("=")[1] for a in sys.argv if a.startswith("--port=")))
folder = os.environ.get("SGLANG_EXPERT_DISTRIBUTION_RECORDER_DIR")
emulator = Emulator(
    engine=Engine.{engine}, version={version!r}, model="m", law=StepLaw(decode_fixed_s=2e-3, prefill_fixed_s=4e-3),
    recorder=Recorder(pathlib.Path(folder)) if folder else None,
)
async def serve():
    await emulator.start(port=port)
    await asyncio.Event().wait()
asyncio.run(serve())
"""
FAKE_TORCH = "import json\ndef load(path, **_):\n    return json.load(open(path))\n"
"""The dump of the emulator is JSON; the script that reads dumps is the real one."""


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in front of the PATH; `python3` in it is this interpreter."""
    folder = tmp_path / "bin"
    folder.mkdir()
    _script(folder / "python3", f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return folder


def _script(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as held:
        return int(held.getsockname()[1])


def _document(engine: str, version: str, **sweeps: Any) -> dict[str, Any]:
    lengths = {"decodeBatches": [1, 2], "decodePromptLengthsTokens": [64], "prefillLengthsTokens": [64, 128]}
    return {
        "schema": "inferasim.dev/harvest/v1",
        "engine": {"name": engine, "version": version},
        "model": {"name": "m", "path": "m"},
        "accelerator": {"product": "CPU"},
        "signature": {"weightDtype": "bf16"},
        "sweeps": {**lengths, "packedPrefillProbe": "Disabled", **sweeps},
    }


def _run(tmp_path: Path, document: dict[str, Any]) -> tuple[Path, dict[str, Any]]:
    spec, out = tmp_path / "spec.json", tmp_path / "out"
    spec.write_text(json.dumps(document))
    code = main(["run", f"--spec={spec}", f"--out={out}", f"--port={_free_port()}", "--max-repeats=3"])
    result = json.loads((out / "result.json").read_text())
    assert code == 0, result
    return out, result


def test_decode_without_prefill_has_an_engine_of_its_own(tmp_path: Path, commands: Path) -> None:
    """The second prompt length is measured there, everything else on the engine that computes its prompts."""
    starts = tmp_path / "starts"
    text = ENGINE.format(python=sys.executable, starts=str(starts), engine="VLLM", version="0.33.0")
    _script(commands / "vllm", text)
    document = _document("VLLM", "0.33.0", decodePromptLengthsTokens=[64, 256], decodeOnly="Enabled")
    out, result = _run(tmp_path, document)
    first, second = (json.loads(line) for line in starts.read_text().splitlines())
    assert not any("kv-transfer" in word for word in first)
    (connector,) = [word for word in second if "kv-transfer" in word]
    assert json.loads(connector.partition("=")[2])["kv_connector"] == "DecodeBenchConnector"
    anchor = load_anchor(out / "anchor.json")
    assert [(sweep.prompt_tokens, len(sweep.points)) for sweep in anchor.decode] == [(64, 2), (256, 2)]
    assert any("KV cache filled without prefill" in note for note in anchor.provenance.notes)
    assert (json.loads((out / "progress.json").read_text())["pointsDone"], result["outcome"]) == (7, "Succeeded")


def test_expert_routing_is_recorded_on_the_texts_of_the_spec(
    tmp_path: Path, commands: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Endpoints of SGLang, its dump, the engine's Python, our importer, the table of a replay."""
    fakes = tmp_path / "fakes"
    (fakes / "sglang").mkdir(parents=True)
    starts = tmp_path / "starts"
    text = ENGINE.format(python=sys.executable, starts=str(starts), engine="SGLANG", version="0.5.16")
    (fakes / "sglang" / "launch_server.py").write_text(text)
    (fakes / "torch.py").write_text(FAKE_TORCH)
    monkeypatch.setenv("PYTHONPATH", str(fakes))
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("\n".join(f"Question {number}: what is the capital of this land?" for number in range(20)))
    wanted = {"promptsPath": str(prompts), "outputTokens": 6}
    out, result = _run(tmp_path, _document("SGLang", "0.5.16", expertRouting=wanted))
    assert {check["name"]: check["verdict"] for check in result["checks"]}["expert-routing"] == "pass"
    assert "--expert-distribution-recorder-mode=per_token" in starts.read_text().splitlines()[1]
    recording = read_recording((out / routing.RECORDING_FILE).read_bytes(), "recording")
    assert (recording.experts_count, recording.layers_count) == (16, 2)
    # 20 requests of 6 tokens: the prefill gives the first one, five decode steps the rest.
    assert int(recording.is_decode.sum()) == 20 * 5
    table = read_table((out / routing.TABLE_FILE).read_text(), "table")
    assert {row.expert_parallel for row in table} == {2, 4, 8, 16}
    assert all(row.rows_factor >= 1.0 for row in table)
    # A plan reads the table from the anchor.
    held = load_anchor(out / "anchor.json").expert_load
    assert held is not None
    assert [(r.expert_parallel, r.phase, r.step_tokens, r.rows_factor, r.experts_factor, r.samples) for r in held] == [
        (r.expert_parallel, r.phase.value, r.step_tokens, r.rows_factor, r.experts_factor, r.samples_count)
        for r in table
    ]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"decodeOnly": "Enabled", "decodePromptLengthsTokens": [64]}, "the second of decodePromptLengthsTokens"),
        ({"expertRouting": {"promptsPath": "/prompts.txt"}}, "it is SGLang's"),
    ],
)
def test_what_vllm_cannot_do_is_refused_at_the_door(change: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        parse_spec(json.dumps(_document("VLLM", "0.33.0", **change)))


def test_decode_only_is_vllms() -> None:
    with pytest.raises(InputError, match="it is vLLM's"):
        parse_spec(json.dumps(_document("ATOM", "0.1.4", decodeOnly="Enabled", decodePromptLengthsTokens=[64, 256])))
    with pytest.raises(InputError, match="be vLLM's"):
        launch.decode_only_arguments(parse_spec(json.dumps(_document("ATOM", "0.1.4"))))


def _points(factor: float) -> list[dict[str, Any]]:
    """RCCL all-to-all on 8 GPUs up to 32 MiB by Table 19: 37.8 us and 408.8 GB/s."""
    sizes = [1 << power for power in range(13, 26)]
    return [
        {"collective": "all_to_all", "gpus": 8, "bytes": size, "seconds": factor * (37.8e-6 + size / 408.8e9)}
        for size in sizes
    ]


def test_links_as_published_pass_and_slow_ones_are_flagged() -> None:
    for factor, verdict in ((1.0, Verdict.PASS), (1.1, Verdict.PASS), (1.5, Verdict.FLAG), (0.5, Verdict.FLAG)):
        found = collectives.check({"points": _points(factor)}, "MI355X")
        assert found.verdict is verdict, found.detail
    assert "no reference" in collectives.check({"points": _points(1.5)}, "MI300X").detail
    assert collectives.check({"points": [], "failures": {"all_to_all": "no ring"}}, "MI355X").verdict is Verdict.FLAG


def test_a_fit_finds_latency_and_bandwidth() -> None:
    points = [Point("all_to_all", 8, row["bytes"], row["seconds"]) for row in _points(1.0)]
    small, large = collectives.fits(points)
    assert small["alphaMicroseconds"] == pytest.approx(37.8, rel=1e-6)
    assert large["bytesPerSecond"] == pytest.approx(408.8e9, rel=1e-6)


def test_a_benchmark_that_fails_says_why(tmp_path: Path, commands: Path) -> None:
    _script(commands / "python3", "#!/bin/sh\necho 'RuntimeError: no GPU is visible' >&2\nexit 1\n")
    with pytest.raises(MeasurementFailedError, match="no GPU is visible"):
        asyncio.run(collectives.measure(2, tmp_path, 1))


def test_collectives_come_first_and_are_kept(tmp_path: Path, commands: Path) -> None:
    """In the result, in a file of their own, and among the points, so that a second pod does not repeat them."""
    record = {"schema": "inferasim.dev/collectives/v1", "points": _points(1.0), "failures": {}}
    (tmp_path / "points.json").write_text(json.dumps(record))
    bench = f'for word in "$@"; do case "$word" in --out=*) cp {tmp_path}/points.json "${{word#--out=}}";; esac; done\n'
    _script(commands / "python3", f"#!/bin/sh\n{bench}")
    text = ENGINE.format(python=sys.executable, starts=str(tmp_path / "starts"), engine="VLLM", version="0.33.0")
    _script(commands / "vllm", text)
    out, result = _run(tmp_path, _document("VLLM", "0.33.0", collectives="Enabled"))
    assert {check["name"]: check["verdict"] for check in result["checks"]}["collectives"] == "pass"
    kept = json.loads((out / collectives.FILE).read_text())
    assert len(kept["points"]) == 13
    assert json.loads((out / "points.json").read_text())["points"]["collectives"] == kept


@pytest.mark.slow
def test_the_benchmark_runs_on_gloo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The phase itself, with a Python that has torch: `make harvest-check` makes one and runs this."""
    python = cpu_engine.folder() / "bin"
    if not (python / "python3").exists():
        pytest.skip("no Python with torch; `make harvest-check` installs one")
    monkeypatch.setenv("PATH", f"{python}{os.pathsep}{os.environ['PATH']}")
    record = asyncio.run(collectives.measure(2, tmp_path, _free_port(), largest_bytes=64 * 1024))
    assert (record["backend"], record["device"], record["failures"]) == ("gloo", "CPU", {})
    points = collectives.points_of(record)
    sizes = [8 << 10, 16 << 10, 32 << 10, 64 << 10]
    wanted = {(name, size) for name in ("all_reduce", "all_gather", "all_to_all") for size in sizes}
    assert {(point.collective, point.message_bytes) for point in points} == wanted
    assert all(point.seconds > 0 and point.gpus == 2 for point in points)
    assert {fit["collective"] for fit in record["fits"]} == {"all_reduce", "all_gather", "all_to_all"}
    found = collectives.check(record, "CPU")
    assert (found.verdict, found.numbers["points"]) == (Verdict.PASS, 12.0)
