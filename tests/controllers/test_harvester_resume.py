"""Points survive the pod: a second one measures only what is missing, and other specs never mix."""

from __future__ import annotations

import asyncio
import io
import json
from pathlib import Path

import pytest

from inferasim_harvester.__main__ import measure
from inferasim_harvester.emulator import trial, virtual
from inferasim_harvester.emulator.law import Faults
from inferasim_harvester.emulator.server import Emulator
from inferasim_harvester.measure import Precision
from inferasim_harvester.options import Options
from inferasim_harvester.plan import points_of
from inferasim_harvester.progress import Progress
from inferasim_harvester.spec import HarvestSpec, parse_spec
from inferasim_harvester.store import Points, write_whole

QUICK = Options(
    decode=Precision(target_frac=0.01, minimum=3, maximum=3, steps=16),
    prefill=Precision(target_frac=0.02, minimum=3, maximum=3),
)


def small_spec(**sweeps: list[int]) -> HarvestSpec:
    raw = {
        "schema": "inferasim.dev/harvest/v1",
        "engine": {"name": "VLLM", "version": "0.33.0"},
        "model": {"name": "emulated/model", "path": "emulated/model"},
        "accelerator": {"product": "MI355X"},
        "signature": {"weightDtype": "bf16"},
        "sweeps": {
            "decodeBatches": [1, 2, 4],
            "decodePromptLengthsTokens": [64],
            "prefillLengthsTokens": [64, 128, 256],
            **sweeps,
        },
    }
    return parse_spec(json.dumps(raw))


async def killed_after(points_count: int, spec: HarvestSpec, out: Path, said: io.StringIO) -> None:
    """One pod: a fresh engine, cancelled as soon as `points_count` more points are kept."""
    emulator = Emulator(seed=1)
    port = await emulator.start()
    points = Points.restore(out, spec.digest, None)
    goal = len(points.records) + points_count
    progress = Progress(out, asyncio.get_running_loop().time, now=lambda: trial.NOW, out=said)
    options = Options(**{**QUICK.__dict__, "engine_url": f"http://127.0.0.1:{port}"})
    task = asyncio.create_task(measure(spec, points, progress, options))
    while len(points.records) < goal and not task.done():
        await asyncio.sleep(0.001)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await emulator.stop()


def test_two_kills_and_no_point_twice(tmp_path: Path) -> None:
    spec = small_spec()
    said = io.StringIO()
    virtual.run(killed_after(2, spec, tmp_path, said))
    first = Points.restore(tmp_path, spec.digest, None).records
    assert len(first) == 2
    virtual.run(killed_after(3, spec, tmp_path, said))
    second = Points.restore(tmp_path, spec.digest, None).records
    assert len(second) == 5
    assert {name: second[name] for name in first} == first
    found = trial.harvest(Emulator(seed=1), spec, tmp_path, QUICK)
    assert found.exit_code == 0
    last = Points.restore(tmp_path, spec.digest, None).records
    assert {name: last[name] for name in second} == second
    lines = [json.loads(line) for line in said.getvalue().splitlines()] + list(found.progress)
    measured = [line["message"] for line in lines if line["message"].startswith("measured ")]
    assert sorted(measured) == sorted(f"measured {point.name}" for point in points_of(spec))
    done = [line["pointsDone"] for line in lines]
    assert done[-1] == len(points_of(spec))


def test_a_finished_harvest_is_not_touched_again(tmp_path: Path) -> None:
    spec = small_spec()
    first = trial.harvest(Emulator(), spec, tmp_path, QUICK)
    emulator = Emulator()
    again = trial.harvest(emulator, spec, tmp_path, QUICK)
    assert first.anchor is not None
    assert again.anchor == first.anchor
    # Only the warm-up ran, none of it counted: readiness, four for their output, one a length, one wave.
    assert emulator.accepted == 1 + 4 + 4 + 4


def test_another_spec_starts_anew(tmp_path: Path) -> None:
    trial.harvest(Emulator(), small_spec(), tmp_path, QUICK)
    other = small_spec(decodeBatches=[1, 2])
    assert Points.restore(tmp_path, other.digest, None).records == {}


def test_the_mirror_stands_in_for_a_lost_folder(tmp_path: Path) -> None:
    spec = small_spec()
    points = Points(tmp_path, spec.digest)
    points.add("decode/64/1", {"stepsS": [0.01]})
    elsewhere = tmp_path / "new"
    elsewhere.mkdir()
    assert Points.restore(elsewhere, spec.digest, points.text()).records == points.records
    assert Points.restore(elsewhere, "sha256:other", points.text()).records == {}


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"schema": 1}', "[" * 100_000, '{"points": []}'])
def test_damaged_points_are_measured_again(text: str, tmp_path: Path) -> None:
    (tmp_path / "points.json").write_text(text)
    assert Points.restore(tmp_path, "sha256:x", None).records == {}


def test_a_point_that_failed_is_not_tried_for_ever(tmp_path: Path) -> None:
    """Its reason is kept as its record."""
    spec = small_spec(decodeBatches=[1, 64])
    found = trial.harvest(Emulator(kv_pool_tokens=2000), spec, tmp_path, QUICK)
    assert found.exit_code == 0
    record = Points.restore(tmp_path, spec.digest, None).records["decode/64/64"]
    assert "KV pool" in record["unmeasured"]


def test_an_interrupted_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_whole(path, "old")
    (tmp_path / "file.tmp").write_text("half")
    assert path.read_text() == "old"
    write_whole(path, "new")
    assert path.read_text() == "new"


def test_progress_counts_up_and_estimates_the_rest(tmp_path: Path) -> None:
    found = trial.harvest(Emulator(faults=Faults(jitter_frac=0.01)), small_spec(), tmp_path, QUICK)
    done = [line["pointsDone"] for line in found.progress]
    assert done == sorted(done)
    phases = list(dict.fromkeys(line["phase"] for line in found.progress))
    assert phases == ["Preparing", "WarmingUp", "Prefill", "Decode", "Packed", "Checking", "Done"]
    etas = [line["etaSeconds"] for line in found.progress if "etaSeconds" in line]
    assert etas[-1] == 0
    assert all(eta >= 0 for eta in etas)
