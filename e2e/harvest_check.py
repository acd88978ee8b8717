"""`make harvest-check`: a real vLLM on this machine's CPU, harvested; what must hold however busy the machine is.

The harvester is stopped in mid-sweep and started again. Then the anchor must be whole, every point measured once, every
check made with its numbers, the marks of a CPU and of random weights set, and a plan for MI300X must refuse it. How
well the anchor predicts is the matter of `make harvest-cpu`: on a shared machine nobody can promise that.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import typing

from e2e import cpu_engine, errors, harvest_cpu, processes, progress
from e2e.harvest_cpu import HarvestFailedError
from inferasim_harvester import plan
from inferasim_harvester.__main__ import OK, TERMINATED
from inferasim_harvester.spec import parse_spec
from simcore.anchors.schema import load_anchor

INTERRUPT_AFTER: typing.Final = 4
"""Points that the first run keeps before it is stopped."""
PHASES: typing.Final = ("Starting", "WarmingUp", "Prefill", "Decode", "Packed", "Checking", "Done")
NUMBERED: typing.Final = (
    "effective-configuration", "prefix-hits", "served-length", "output-length", "empty-chunks", "stream-ends",
    "token-chunks", "clock-agreement", "clock-rate", "cold-first-wave", "precision", "outliers", "drift", "steadiness",
    "batch-growth", "kv-pool", "stalls", "coalesced-chunks", "host-time", "client-overhead", "monotone-sweep",
    "fit-residual", "spread",
)  # fmt: skip
"""Checks that say nothing without a number. Noise may leave `packed-prefill` without any point to judge."""
TARGET: typing.Final = "MI300X"


def main(arguments: list[str] | None = None) -> int:
    """0 when all of it holds; 1 with what does not."""
    parser = argparse.ArgumentParser(prog="python -m e2e.harvest_check", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, help="keep anchor, result and logs here")
    given = parser.parse_args(arguments)
    started_s = time.monotonic()
    try:
        engine = cpu_engine.ensure()
        installed_s = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="harvest-check-") as work:
            out = given.out if given.out is not None else pathlib.Path(work) / "out"
            setting = harvest_cpu.prepare(engine, pathlib.Path(work), out.absolute())
            kept, before = interrupted(setting)
            after = harvest_cpu.run(setting, "harvest.log").read_text(encoding="utf-8")
            found = [*complaints(setting.out, kept, before, after), *refusals(setting)]
    except (HarvestFailedError, errors.E2EError) as error:
        print(f"harvest-check failed: {error}", file=sys.stderr)
        return 1
    for text in found:
        print(f"harvest-check failed: {text}", file=sys.stderr)
    ended_s = time.monotonic()
    print(f"{len(kept)} points before the stop; {installed_s - started_s:.0f} s to find or install vLLM, "
          f"{ended_s - installed_s:.0f} s to harvest it")  # fmt: skip
    return 1 if found else 0


def interrupted(setting: harvest_cpu.Setting) -> tuple[dict[str, typing.Any], str]:
    """A harvest that is stopped in mid-sweep, as by a node that is drained: the points that it kept, and its log."""
    log = setting.work / "interrupted.log"
    process = processes.spawn(harvest_cpu.command(setting), log=log, environment=setting.environment)
    shown = progress.Progress()
    try:
        while len(points(setting.out)) < INTERRUPT_AFTER and process.poll() is None:
            shown.update(harvest_cpu.message(processes.tail(log, lines=1)))
            time.sleep(0.2)
    finally:
        processes.end(process, grace_s=60.0)
    if process.returncode != TERMINATED:
        raise HarvestFailedError(
            f"a harvest stopped in mid-sweep ended with code {process.returncode}, not {TERMINATED}:\n"
            f"{processes.tail(log)}"
        )
    return points(setting.out), log.read_text(encoding="utf-8")


def points(out: pathlib.Path) -> dict[str, typing.Any]:
    """The points measured so far; every write replaces the file whole."""
    try:
        found = json.loads((out / "points.json").read_text(encoding="utf-8"))["points"]
    except FileNotFoundError:
        return {}
    return {name: record for name, record in found.items() if name != plan.CLOCKS}


def complaints(out: pathlib.Path, kept: dict[str, typing.Any], before: str, after: str) -> list[str]:
    """What is wrong with the result of the second run, apart from how long steps are; empty when nothing is.

    `before` and `after` are the logs of the two runs.
    """
    found = harvest_cpu.complaints(load_anchor(out / "anchor.json"))
    now = points(out)
    said = [line for line in map(harvest_cpu.said, after.splitlines()) if line]
    measured = [line["message"].removeprefix("measured ") for line in said if line["message"].startswith("measured ")]
    wanted = {point.name for point in plan.points_of(parse_spec((out / "spec.json").read_text(encoding="utf-8")))}
    if sorted([*kept, *measured]) != sorted(wanted):
        found.append(f"before the stop {sorted(kept)}, after it {sorted(measured)}: not every point once")
    changed = [name for name, record in kept.items() if now.get(name) != record]
    if changed:
        found.append(f"points of the first run were not kept: {changed}")
    # Prompts that never share a step are the machine's noise, and say so; the others can always be measured.
    missing = [
        f"{name}: {record.get('unmeasured', 'absent')}"
        for name in sorted(wanted)
        if "unmeasured" in (record := now.get(name, {"unmeasured": "absent"})) and not name.startswith("packed/")
    ]
    if missing:
        found.append(f"points without values: {missing}")
    told = {line["phase"] for line in (*said, *map(harvest_cpu.said, before.splitlines())) if line}
    silent = [phase for phase in PHASES if phase not in told]
    if silent:
        found.append(f"phases that were never told: {silent}")
    result = json.loads((out / "result.json").read_text(encoding="utf-8"))
    made = {check["name"]: check["numbers"] for check in result["checks"]}
    bare = [name for name in NUMBERED if not made.get(name)]
    if bare:
        found.append(f"checks without a number: {bare}")
    if (result["outcome"], result["verdict"]) != ("Succeeded", "refuse"):
        found.append(f"outcome {result['outcome']}, verdict {result['verdict']}: random weights must be refused")
    return found


def refusals(setting: harvest_cpu.Setting) -> list[str]:
    """The command line's own word: no plan for a GPU takes the anchor, and both commands say why."""
    anchor = str(setting.out / "anchor.json")
    question = {
        "model": {"configMap": {"name": "small-llama"}},
        "cluster": {"accelerator": TARGET, "nodes": 1},
        "engines": [{"name": "VLLM"}],
        "workload": {"fixed": {"promptTokens": 128, "outputTokens": 64}},
        "load": {"concurrencies": [1, 4]},
        "anchors": {"mode": "Anchored"},
    }
    config = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "small-llama"},
        "data": {"config.json": json.dumps(harvest_cpu.MODEL)},
    }
    files = []
    for name, content in (("plan", question), ("config", config)):
        path = setting.work / f"{name}.json"
        path.write_text(json.dumps(content), encoding="utf-8")
        files += ["-f", str(path)]
    target = ["--accelerator", TARGET, "--engine", "VLLM", "--model", "small-llama"]
    found = []
    for command in (["plan", *files, "-f", anchor], ["anchors", "select", anchor, *target]):
        answer = _inferasim(command)
        told = " ".join((answer.stdout + answer.stderr).split())
        if answer.returncode == OK or "harvested on a CPU" not in told:
            found.append(f"`inferasim {command[0]}` for {TARGET}: exit code {answer.returncode}: {told[-800:]}")
    return found


def _inferasim(arguments: list[str]) -> subprocess.CompletedProcess[str]:
    program = pathlib.Path(sys.executable).with_name("inferasim")
    environment = {**os.environ, "COLUMNS": "400"}  # so that no word is broken
    return subprocess.run(
        [str(program), *arguments], capture_output=True, text=True, env=environment, timeout=300, check=False
    )


if __name__ == "__main__":
    sys.exit(main())
