"""`make harvest-check` without its engine: what it accepts, and that each promise it makes can be broken."""

from __future__ import annotations

import json
import pathlib
import shutil
import typing

import pytest

from e2e import cpu_engine, errors, harvest_check, harvest_cpu
from inferasim_harvester.emulator import trial
from inferasim_harvester.emulator.server import Emulator
from inferasim_harvester.measure import Precision
from inferasim_harvester.options import Options
from inferasim_harvester.plan import points_of
from inferasim_harvester.spec import parse_spec

FEW = Options(decode=Precision(maximum=3), prefill=Precision(minimum=3, maximum=3))


class Harvested(typing.NamedTuple):
    """What an emulated engine left behind, as if the run had been stopped after its first points."""

    out: pathlib.Path
    kept: dict[str, typing.Any]
    lines: list[dict[str, typing.Any]]

    def complaints(self) -> str:
        log = "not a report\n" + "\n".join(json.dumps(line) for line in self.lines)
        before = json.dumps({"phase": "Starting", "message": "starting vllm"})
        return " ".join(harvest_check.complaints(self.out, self.kept, before, log))


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Harvested:
    tmp_path = tmp_path_factory.mktemp("harvested")
    text = json.dumps(harvest_cpu.harvest_spec(tmp_path / "small-llama"))
    (tmp_path / "small-llama").mkdir()
    (tmp_path / "small-llama" / "config.json").write_text(json.dumps(harvest_cpu.MODEL))
    spec = parse_spec(text)
    settings = {"enforce_eager": True, "load_format": "dummy"}
    emulator = Emulator(version=cpu_engine.VERSION, model="small-llama", settings=settings, token_budget=2048)
    out = tmp_path / "out"
    out.mkdir()
    (out / "spec.json").write_text(text)
    found = trial.harvest(emulator, spec, out, FEW)
    order = [point.name for point in points_of(spec)]
    before = order[: harvest_check.INTERRUPT_AFTER]
    records = harvest_check.points(out)
    lines = [line for line in found.progress if line["message"].removeprefix("measured ") not in before]
    return Harvested(out, {name: records[name] for name in before}, lines)


@pytest.fixture
def harvested(original: Harvested, tmp_path: pathlib.Path) -> Harvested:
    """A copy that may be spoilt."""
    return original._replace(out=pathlib.Path(shutil.copytree(original.out, tmp_path / "out")))


def test_a_whole_harvest_is_not_complained_of(harvested: Harvested) -> None:
    assert harvested.complaints() == ""


def test_a_point_that_is_measured_twice_or_never(harvested: Harvested) -> None:
    again = {"phase": "Prefill", "message": f"measured {next(iter(harvested.kept))}"}
    assert "not every point once" in harvested._replace(lines=[*harvested.lines, again]).complaints()
    dropped = [line for line in harvested.lines if line["message"] != "measured drift"]
    assert "not every point once" in harvested._replace(lines=dropped).complaints()


def test_a_point_that_another_run_overwrote(harvested: Harvested) -> None:
    other = {name: {**record, "servedTokens": 1} for name, record in harvested.kept.items()}
    assert "were not kept" in harvested._replace(kept=other).complaints()


def _edit(path: pathlib.Path, change: typing.Callable[[dict[str, typing.Any]], object]) -> None:
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


def test_a_point_without_values_unless_it_is_packed(harvested: Harvested) -> None:
    points = harvested.out / "points.json"
    _edit(points, lambda d: d["points"].update({"packed/128/2": {"unmeasured": "never in one step"}}))
    assert harvested.complaints() == ""
    _edit(points, lambda d: d["points"].update({"decode/128/8": {"unmeasured": "too few steps"}}))
    assert "decode/128/8: too few steps" in harvested.complaints()


def test_a_phase_that_is_not_told(harvested: Harvested) -> None:
    quiet = [line for line in harvested.lines if line["phase"] != "WarmingUp"]
    assert "['WarmingUp']" in harvested._replace(lines=quiet).complaints()


def test_a_check_that_was_not_made_or_has_no_number(harvested: Harvested) -> None:
    def of(document: dict[str, typing.Any], name: str) -> dict[str, typing.Any]:
        return next(check for check in document["checks"] if check["name"] == name)

    result = harvested.out / "result.json"
    _edit(result, lambda d: of(d, "drift").update(numbers={}))
    _edit(result, lambda d: d["checks"].remove(of(d, "spread")))
    assert "checks without a number: ['drift', 'spread']" in harvested.complaints()


def test_random_weights_that_pass(harvested: Harvested) -> None:
    _edit(harvested.out / "result.json", lambda d: d.update(verdict="flag"))
    assert "random weights must be refused" in harvested.complaints()


def test_the_command_line_refuses_it_for_a_gpu(harvested: Harvested, tmp_path: pathlib.Path) -> None:
    """Both commands; and a mark that is missing is found out."""
    setting = harvest_cpu.Setting(tmp_path, harvested.out, 1, {}, 3)
    assert harvest_check.refusals(setting) == []

    def unmark(anchor: dict[str, typing.Any]) -> None:
        anchor["signature"]["accelerator"] = harvest_check.TARGET
        anchor["provenance"]["realWeights"] = True

    _edit(harvested.out / "anchor.json", unmark)
    found = harvest_check.refusals(setting)
    assert len(found) == 2
    assert all(harvest_check.TARGET in text for text in found)


def test_too_little_room_is_told_before_anything_is_fetched(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INFERASIM_CACHE", str(tmp_path))
    monkeypatch.setattr(cpu_engine, "NEEDED_BYTES", 10**18)
    with pytest.raises(errors.ToolchainError, match=r"GB are free: make room, or set INFERASIM_CACHE"):
        cpu_engine.ensure()
