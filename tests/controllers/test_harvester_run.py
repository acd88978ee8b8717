"""The command as a pod runs it: real sockets, a real engine process, exit codes, signals."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from inferasim_harvester.__main__ import main
from simcore.anchors.schema import load_anchor

ENGINE = """#!{python}
# Stands where the engine's command would: an emulated engine that takes the engine's own flags.
import asyncio, sys
from inferasim_harvester.emulator.law import Faults, StepLaw
from inferasim_harvester.emulator.server import Emulator
port = int(next(a.split("=")[1] for a in sys.argv if a.startswith("--port=")))
if "--crash" in sys.argv:
    print("ValueError: no such kernel", flush=True)
    sys.exit(3)
law = StepLaw(decode_fixed_s=2e-3, prefill_fixed_s=4e-3)
emulator = Emulator(law=law, faults=Faults({faults}))
async def serve():
    await emulator.start(port=port)
    print("Model loading took 1.50 GiB memory", flush=True)
    await asyncio.Event().wait()
asyncio.run(serve())
"""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as held:
        return int(held.getsockname()[1])


def spec_file(folder: Path, **engine: Any) -> Path:
    raw = {
        "schema": "inferasim.dev/harvest/v1",
        "engine": {"name": "VLLM", "version": "0.33.0", **engine},
        "model": {"name": "emulated/model", "path": str(folder / "checkpoint")},
        "accelerator": {"product": "CPU"},
        "sweeps": {"decodeBatches": [1, 4], "decodePromptLengthsTokens": [64], "prefillLengthsTokens": [64, 128]},
    }
    (folder / "checkpoint").mkdir(exist_ok=True)
    config = {"vocab_size": 32000, "torch_dtype": "bfloat16"}
    (folder / "checkpoint" / "config.json").write_text(json.dumps(config))
    path = folder / "spec.json"
    path.write_text(json.dumps(raw))
    return path


@pytest.fixture
def engine_on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    script = folder / "vllm"
    script.write_text(ENGINE.format(python=sys.executable, faults=""))
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return script


def run(tmp_path: Path, spec: Path, *more: str) -> tuple[int, dict[str, Any]]:
    out = tmp_path / "out"
    arguments = ["run", f"--spec={spec}", f"--out={out}", f"--port={free_port()}", "--max-repeats=3", *more]
    code = main(arguments)
    result = out / "result.json"
    return code, json.loads(result.read_text()) if result.exists() else {}


@pytest.mark.usefixtures("engine_on_path")
def test_from_the_engines_start_to_the_anchor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine is started with its own flags, measured, read by the kernel's word, and ended."""
    monkeypatch.setenv("NODE_NAME", "node-7")
    code, result = run(tmp_path, spec_file(tmp_path))
    assert code == 0, result
    anchor = load_anchor(tmp_path / "out" / "anchor.json")
    assert anchor.digest() == result["anchorDigest"]
    assert anchor.signature.accelerator == "CPU"
    assert anchor.signature.weights_dtype == "bf16"
    assert anchor.provenance.node == "node-7"
    assert anchor.memory is not None
    assert anchor.memory.weights_bytes == int(1.5 * 2**30)
    checks = {check["name"]: check["verdict"] for check in result["checks"]}
    assert checks["effective-configuration"] == "pass"
    assert checks["prefix-hits"] == checks["served-length"] == checks["output-length"] == "pass"
    # The law: 2 ms + 60 us a padded sequence. The machine may be busy; sleeping longer than asked is all it can do.
    steps = [point.step_milliseconds for point in anchor.decode[0].points]
    assert 2.0 < steps[0] < 8.0
    assert _alive(tmp_path) == []


def test_an_engine_that_ends_at_once_is_a_failed_start(tmp_path: Path, engine_on_path: Path) -> None:
    """Public case D08: early, with the log's end, not after the deadline."""
    started = time.monotonic()
    code, result = run(tmp_path, spec_file(tmp_path, extraArgs=["--crash"]))
    assert time.monotonic() - started < 30
    assert (code, result["reason"]) == (1, "EngineStartFailed")
    assert "code 3" in result["message"]
    assert "no such kernel" in result["logTail"]


def test_a_missing_engine_is_a_failed_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    code, result = run(tmp_path, spec_file(tmp_path))
    assert (code, result["reason"]) == (1, "EngineStartFailed")


@pytest.mark.usefixtures("engine_on_path")
def test_a_stranger_on_our_port_is_not_measured(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        arguments = ["run", f"--spec={spec_file(tmp_path)}", f"--out={tmp_path / 'out'}"]
        held.listen()
        code = main([*arguments, f"--port={held.getsockname()[1]}"])
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert (code, result["reason"]) == (1, "EngineStartFailed")
    assert "already" in result["message"]


def test_bad_specs_exit_with_two(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "spec.json").write_text("{")
    code, _ = run(tmp_path, tmp_path / "spec.json")
    assert code == 2
    assert capsys.readouterr().err.count("\n") == 1
    code, _ = run(tmp_path, spec_file(tmp_path, version="9.9"))
    assert code == 2
    assert "engine.version" in capsys.readouterr().err
    code, _ = run(tmp_path, spec_file(tmp_path), "--engine-url=ftp://x")
    assert code == 2


def test_the_command_can_be_read_before_it_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["command", f"--spec={spec_file(tmp_path)}", "--port=9"]) == 0
    assert capsys.readouterr().out.startswith("vllm serve ")


def test_a_result_that_is_there_is_not_measured_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from inferasim_harvester.spec import load_spec

    spec = spec_file(tmp_path)
    (tmp_path / "out").mkdir()
    record = {"specDigest": load_spec(spec).digest, "outcome": "Succeeded"}
    (tmp_path / "out" / "result.json").write_text(json.dumps(record))
    code, result = run(tmp_path, spec)
    assert (code, result) == (0, record)
    assert "has its result already" in capsys.readouterr().out


@pytest.mark.usefixtures("engine_on_path")
def test_sigterm_keeps_the_points_and_ends_the_engine(tmp_path: Path) -> None:
    spec = spec_file(tmp_path)
    command = [sys.executable, "-m", "inferasim_harvester", "run", f"--spec={spec}", f"--out={tmp_path / 'out'}"]
    process = subprocess.Popen([*command, f"--port={free_port()}"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if "measured prefill/128" in line:
            break
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=40) == 143
    process.stdout.close()
    points = json.loads((tmp_path / "out" / "points.json").read_text())["points"]
    assert "prefill/128" in points
    assert _alive(tmp_path) == []


def _alive(folder: Path) -> list[str]:
    """Processes that still run our stand-in engine."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                line = (entry / "cmdline").read_bytes().decode("utf-8", "replace")
            except OSError:
                continue
            if str(folder / "bin" / "vllm") in line:
                found.append(line)
    return found
