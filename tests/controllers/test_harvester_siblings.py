"""Siblings of the injected faults: found by attacking the harvester, each caught by its check.

Beside each stands why the figure would have been wrong. The trial's order, in engine steps: prefill to 272, decode to
656, packed to 782, the first point again to 910.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from inferasim_harvester.emulator import trial
from inferasim_harvester.emulator.law import Faults
from inferasim_harvester.emulator.server import Emulator
from inferasim_harvester.spec import HarvestSpec
from inferasim_harvester.store import Points
from simcore.cards.layout import Engine
from tests.controllers.test_harvester_faults import CONDITIONS, QUICK, VERSIONS, spec_for, trial_of

Caught = tuple[str, Engine, Faults, dict[str, str]]
FOR_EVER = 10**9
CAUGHT: list[Caught] = [
    # 1e-4 a step makes the last point 9 % slower than the first: the whole sweep leans.
    ("something leaks", Engine.VLLM, Faults(slower_frac_per_step=1e-4), {"drift": "flag"}),
    ("something leaks fast", Engine.ATOM, Faults(slower_frac_per_step=4e-4), {"drift": "refuse"}),
    ("heat from mid-sweep on", Engine.SGLANG, Faults(slow_steps=(500, FOR_EVER)), {"drift": "refuse"}),
    # There for one point and its neighbours, gone before the first point is measured again.
    ("a neighbour that goes", Engine.VLLM, Faults(slow_steps=(402, 655), slow_factor=1.1), {"steadiness": "refuse"}),
    ("a moment's neighbour", Engine.ATOM, Faults(slow_steps=(495, 528)), {"steadiness": "flag"}),
    ("a neighbour during prefill", Engine.SGLANG, Faults(slow_steps=(40, 110)), {"fit-residual": "refuse"}),
    ("no graph for one batch", Engine.VLLM, Faults(uncaptured=(2,)), {"monotone-sweep": "refuse"}),
    ("no graph for the largest", Engine.SGLANG, Faults(uncaptured=(4,)), {"batch-growth": "flag"}),
    # One step in twenty gives two tokens: counted by tokens the step would be 5 % too short.
    ("few drafts that no report shows", Engine.VLLM, Faults(drafts_accepted_frac=0.05), {"token-chunks": "refuse"}),
    ("drafts that no report shows", Engine.SGLANG, Faults(drafts_accepted_frac=0.3), {"token-chunks": "refuse"}),
    ("drafts behind uncounted chunks", Engine.ATOM, Faults(drafts_accepted_frac=0.05), {"token-chunks": "refuse"}),
    # Somebody else's request in the wave: batch 4 ran at 5 now and then.
    ("a second client", Engine.VLLM, Faults(stranger_every=7), {"clock-agreement": "refuse"}),
    ("a second client", Engine.SGLANG, Faults(stranger_every=7), {"clock-agreement": "refuse"}),
    ("a second client", Engine.ATOM, Faults(stranger_every=7), {"clock-agreement": "refuse"}),
    ("a clock that jumps", Engine.VLLM, Faults(clock_step_s=5.0, clock_step_after=100), {"clock-agreement": "flag"}),
    ("a clock set back", Engine.SGLANG, Faults(clock_step_s=-5.0, clock_step_after=100), {"clock-agreement": "flag"}),
    ("a proxy that gathers chunks", Engine.VLLM, Faults(buffered_chunks=4), {"coalesced-chunks": "flag"}),
    ("a proxy that flushes at times", Engine.ATOM, Faults(flush_s=0.02), {"coalesced-chunks": "flag"}),
    (
        "a pool smaller than reported",
        Engine.VLLM,
        Faults(reported={"kv_cache_size_tokens": 3_000_000}),
        {"kv-pool": "flag"},
    ),
]


@pytest.mark.parametrize(("name", "engine", "faults", "verdicts"), CAUGHT, ids=[f"{row[0]}-{row[1]}" for row in CAUGHT])
def test_the_right_check_catches_it(
    name: str, engine: Engine, faults: Faults, verdicts: dict[str, str], tmp_path: Path
) -> None:
    found = trial_of(faults, tmp_path, engine)
    assert found.exit_code == 0, found.result["message"]
    assert {check: found.verdict(check) for check in verdicts} == verdicts


ENDED: list[tuple[str, Engine, Faults, str, str]] = [
    ("a restart between two points", Engine.VLLM, Faults(restart_after_requests=80), "EngineDied", "requests fell"),
    ("a restart between two points", Engine.ATOM, Faults(restart_after_requests=80), "EngineDied", "tokens fell"),
    ("a page for people", Engine.SGLANG, Faults(html_after_requests=80), "RequestFailed", "We will be back soon"),
    ("a page before any token", Engine.VLLM, Faults(html_after_requests=0), "EngineNotReady", "is no JSON"),
    ("a redirect to HTTPS", Engine.VLLM, Faults(redirects=True), "EngineNotReady", "/v1/models answered 307"),
    ("a proxy that holds all", Engine.VLLM, Faults(buffered_chunks=1000), "MeasurementFailed", "a proxy buffers"),
    ("usage of nothing", Engine.SGLANG, Faults(usage_factor=0.0), "EngineNotReady", "gave 0 tokens"),
    ("negative usage", Engine.ATOM, Faults(usage_factor=-1.0), "EngineNotReady", "no usage"),
]


@pytest.mark.parametrize(
    ("name", "engine", "faults", "reason", "text"), ENDED, ids=[f"{row[0]}-{row[1]}" for row in ENDED]
)
def test_nothing_is_written_and_the_reason_is_told(
    name: str, engine: Engine, faults: Faults, reason: str, text: str, tmp_path: Path
) -> None:
    found = trial_of(faults, tmp_path, engine)
    assert (found.exit_code, found.result["reason"], found.anchor) == (1, reason, None)
    assert text in found.result["message"]


@pytest.mark.parametrize("engine", list(Engine))
def test_comments_between_events_move_nothing(engine: Engine, tmp_path: Path) -> None:
    """Keep-alives of a proxy, whatever words they hold."""
    found = trial_of(Faults(keep_alives=True), tmp_path, engine)
    assert set(found.flagged()) == CONDITIONS | ({"clock-agreement"} if engine is Engine.ATOM else set())


def test_the_smaller_pool_is_the_anchors(tmp_path: Path) -> None:
    found = trial_of(Faults(reported={"kv_cache_size_tokens": 3_000_000}), tmp_path)
    assert found.anchor is not None
    assert found.anchor.memory is not None
    assert found.anchor.memory.kv_pool_tokens == 2_000_000  # the emulator's own


def test_realistic_jitter_raises_none_of_the_new_checks(tmp_path: Path) -> None:
    """1 % a step and a hiccup now and then: what a healthy node does."""
    for seed in range(3):
        emulator = Emulator(version=VERSIONS[Engine.VLLM], faults=Faults(jitter_frac=0.01), seed=seed)
        (tmp_path / str(seed)).mkdir()
        found = trial.harvest(emulator, spec_for(Engine.VLLM), tmp_path / str(seed), QUICK)
        for name in ("steadiness", "batch-growth", "token-chunks", "kv-pool", "clock-agreement", "drift"):
            assert found.verdict(name) == "pass", (seed, name)


def test_a_defect_of_ours_is_told_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is raised, the result says so: the operator shows nothing else."""

    def broken(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("of our own making")

    monkeypatch.setattr("inferasim_harvester.harvest.all_checks", broken)
    found = trial_of(Faults(), tmp_path)
    assert (found.exit_code, found.result["reason"]) == (1, "Internal")
    assert found.result["message"] == "ZeroDivisionError: of our own making"


class Balanced:
    """Two engines behind one address, connection by connection: every wave is halved, and nothing in it says so."""

    def __init__(self, engine: Engine) -> None:
        self.engines = [Emulator(engine=engine, version=VERSIONS[engine], seed=seed) for seed in (1, 2)]
        self.turns = itertools.cycle(self.engines)
        self.server: asyncio.Server | None = None

    async def start(self) -> int:
        for engine in self.engines:
            await engine.start()
        self.server = await asyncio.start_server(self._pass, "127.0.0.1", 0)
        return int(self.server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        assert self.server is not None
        self.server.close()
        for engine in self.engines:
            await engine.stop()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", next(self.turns).port)

        async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
            with contextlib.suppress(ConnectionError):
                while data := await source.read(65536):
                    target.write(data)
            target.close()

        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(copy(reader, back), copy(there, writer))


@pytest.mark.parametrize("engine", list(Engine))
def test_two_engines_behind_one_address_make_no_anchor(engine: Engine, tmp_path: Path) -> None:
    """A batch of four would be two batches of two. Counters jump between the engines, or hold half of the traffic."""
    found = trial.harvest(cast(Emulator, Balanced(engine)), spec_for(engine), tmp_path, QUICK)
    if found.exit_code == 1:
        assert (found.result["reason"], found.anchor) == ("EngineDied", None)
    else:
        assert found.verdict("clock-agreement") == "refuse"


def _record_of(spec: HarvestSpec, folder: Path) -> dict[str, Any]:
    return dict(Points.restore(folder, spec.digest, None).records)


def test_the_smallest_step_is_measured_after_every_point(tmp_path: Path) -> None:
    """And is the law's: 6 ms and 60 us at batch 1, with some context."""
    spec = spec_for(Engine.VLLM)
    trial.harvest(Emulator(version=VERSIONS[Engine.VLLM]), spec, tmp_path, QUICK)
    records = {name: record for name, record in _record_of(spec, tmp_path).items() if name != "clocks"}
    assert len(records) == 12
    for record in records.values():
        assert record["smallestStepS"] == pytest.approx(6.06e-3, rel=1e-3)


def test_what_an_older_pod_kept_is_judged_as_unchecked(tmp_path: Path) -> None:
    """Points of a harvester that did not look between them."""
    spec = spec_for(Engine.VLLM)
    trial.harvest(Emulator(version=VERSIONS[Engine.VLLM]), spec, tmp_path, QUICK)
    kept = json.loads((tmp_path / "points.json").read_text())
    for record in kept["points"].values():
        record.pop("smallestStepS", None)
        record.pop("draftedFrac", None)
    again = tmp_path / "again"
    again.mkdir()
    (again / "points.json").write_text(json.dumps(kept))
    found = trial.harvest(Emulator(version=VERSIONS[Engine.VLLM]), spec, again, replace(QUICK))
    assert (found.exit_code, found.verdict("steadiness")) == (0, "flag")
