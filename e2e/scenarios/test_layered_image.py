"""The harvester's Dockerfile on an engine's own image: its entry point starts that image's engine."""

from __future__ import annotations

import json
import pathlib
import shutil
import tempfile
from collections.abc import Iterator

import pytest

from e2e import image_facts, images
from e2e.harvest_cpu import free_port
from simcore.anchors.schema import load_anchor

SPEC = {
    "schema": "inferasim.dev/harvest/v1",
    "engine": {"name": "VLLM", "version": "0.33.0"},
    "model": {"name": "emulated/model", "path": "emulated/model"},
    "accelerator": {"product": "CPU"},
    "signature": {"weightDtype": "bf16"},
    "sweeps": {
        "decodeBatches": [1, 2, 4],
        "decodePromptLengthsTokens": [128],
        "prefillLengthsTokens": [128, 256, 512],
    },
}


@pytest.fixture
def volume() -> Iterator[pathlib.Path]:
    """Where user 1000 may write; pytest's own folders are closed to it."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="inferasim-volume-"))
    folder.chmod(0o777)
    yield folder
    shutil.rmtree(folder)


def test_the_entry_point_harvests_the_engine_below_it(volume: pathlib.Path) -> None:
    """Started by the image's own words; the engine below is found, and finds its own Python and not the harvester's."""
    if images.missing_packages():
        pytest.skip(f"needs Debian's {' '.join(images.missing_packages())}: python -m e2e packages --install")
    facts = image_facts.read(images.ensure([images.LAYERED])[images.LAYERED.reference])
    assert facts.user == "1000:1000"
    assert facts.entrypoint == ("/opt/inferasim/bin/python", "-m", "inferasim_harvester")  # not `vllm serve`
    (volume / "spec.json").write_text(json.dumps(SPEC), encoding="utf-8")
    out = volume / "out"
    words = ["run", f"--spec={volume / 'spec.json'}", f"--out={out}", f"--port={free_port()}", "--max-repeats=3"]
    answer = images.run_inside(images.LAYERED, words, volume=volume)
    assert answer.returncode == 0, answer.stdout[-2000:] + answer.stderr[-2000:]
    result = json.loads((out / "result.json").read_text(encoding="utf-8"))
    assert result["outcome"] == "Succeeded"
    anchor = load_anchor(out / "anchor.json")
    assert [point.batch for point in anchor.decode[0].points] == [1, 2, 4]
    assert (out / "anchor.json").stat().st_uid == 1000
    log = (out / "engine.log").read_text(encoding="utf-8")
    assert "python of the engine: none, /usr/bin/python3" in log
