"""The whole chain: harvest an engine, then predict closed loops that the harvest never ran, and run them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from inferasim_harvester.emulator import trial, virtual
from inferasim_harvester.emulator.law import Faults, StepLaw
from inferasim_harvester.emulator.server import Emulator
from inferasim_harvester.harvest import open_session
from inferasim_harvester.measure import Precision
from inferasim_harvester.options import Options
from inferasim_harvester.probe import Probe, closed_loop
from inferasim_harvester.spec import HarvestSpec, parse_spec
from inferasim_harvester.wire import Address, Client
from simcore.anchors.schema import Anchor
from simcore.cards.layout import Engine, Layout
from simcore.des.config import SchedulerConfig
from simcore.prediction.outcome import closed_loop_outcome
from simcore.stepcost.anchored import anchored

LAW = StepLaw(graph_sizes=(1, 2, 4, 8, 16), decode_s_per_sequence=150e-6)
PROMPT_TOKENS, OUTPUT_TOKENS, EACH = 512, 64, 5
QUICK = Options(prefill=Precision(target_frac=0.01, minimum=3, maximum=6))
VERSIONS = {Engine.VLLM: "0.33.0", Engine.SGLANG: "0.5.16"}


def chain_spec(engine: Engine) -> HarvestSpec:
    raw = {
        "schema": "inferasim.dev/harvest/v1",
        "engine": {"name": engine.value, "version": VERSIONS[engine]},
        "model": {"name": "emulated/model", "path": "emulated/model"},
        "accelerator": {"product": "MI355X"},
        "signature": {"weightDtype": "bf16"},
        "sweeps": {
            "decodeBatches": [1, 2, 4, 8, 16],
            "decodePromptLengthsTokens": [512],
            "prefillLengthsTokens": [256, 512, 1024, 2048],
        },
    }
    return parse_spec(json.dumps(raw))


def run_live(engine: Engine, spec: HarvestSpec, concurrency: int) -> Probe:
    async def whole() -> Probe:
        emulator = Emulator(engine=engine, version=VERSIONS[engine], law=LAW, faults=Faults(jitter_frac=0.005), seed=77)
        port = await emulator.start()
        try:
            session = await open_session(spec, Client(Address("127.0.0.1", port)))
            return await closed_loop(session, concurrency, EACH, PROMPT_TOKENS, OUTPUT_TOKENS)
        finally:
            await emulator.stop()

    return virtual.run(whole())


def predicted(anchor: Anchor, engine: Engine, concurrency: int) -> tuple[float, float]:
    """(TPOT, tokens per second) of the simulator on the harvested steps."""
    cost = anchored(anchor, layout=Layout())
    scheduler = SchedulerConfig(engine, 256, 8192, 8192, 2_000_000)
    outcome = closed_loop_outcome(
        cost,
        scheduler,
        attention_dp=1,
        concurrency=concurrency,
        requests_count=concurrency * (EACH + 1),
        prompt_tokens=PROMPT_TOKENS,
        output_tokens=OUTPUT_TOKENS,
    )
    assert outcome.tpot is not None
    return outcome.tpot.mean_s, outcome.throughput_tokens_per_s


@pytest.mark.parametrize("engine", list(VERSIONS))
def test_closed_loops_outside_the_sweep_are_predicted(engine: Engine, tmp_path: Path) -> None:
    """Two concurrencies that no sweep holds, within 10 % on TPOT and throughput; the issue asks for 15 %."""
    spec = chain_spec(engine)
    emulator = Emulator(engine=engine, version=VERSIONS[engine], law=LAW, faults=Faults(jitter_frac=0.005), seed=3)
    found = trial.harvest(emulator, spec, tmp_path, QUICK)
    assert found.anchor is not None
    for concurrency in (3, 12):
        live = run_live(engine, spec, concurrency)
        tpot_s, tokens_per_s = predicted(found.anchor, engine, concurrency)
        assert tpot_s == pytest.approx(live.tpot_s, rel=0.10)
        assert tokens_per_s == pytest.approx(live.output_tokens_per_s, rel=0.10)


def test_the_probe_counts_what_it_says() -> None:
    """One client alone, no jitter: TPOT is the decode step at the mean context, by hand."""
    spec = chain_spec(Engine.VLLM)

    async def whole() -> Probe:
        emulator = Emulator(law=LAW)
        port = await emulator.start()
        try:
            session = await open_session(spec, Client(Address("127.0.0.1", port)))
            return await closed_loop(session, 1, 3, 512, 65)
        finally:
            await emulator.stop()

    found = virtual.run(whole())
    mean_context = 512 + (1 + 64) / 2
    assert found.tpot_s == pytest.approx(6e-3 + 150e-6 + 4e-9 * mean_context, rel=1e-3)
    prefill_s = 8e-3 + 20e-6 * 512 + 0.6e-9 * 512**2
    assert found.ttft_s == pytest.approx(prefill_s + 3e-3 + 0.5e-6 * 512, rel=1e-3)
    assert found.requests == 3
