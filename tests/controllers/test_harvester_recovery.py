"""From the emulator the harvester recovers the step law that the emulator follows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from inferasim_harvester.emulator import trial
from inferasim_harvester.emulator.law import Faults, StepLaw
from inferasim_harvester.emulator.server import Emulator
from inferasim_harvester.measure import Precision
from inferasim_harvester.options import Options
from inferasim_harvester.spec import HarvestSpec, parse_spec
from simcore.cards.layout import Engine

LAW = StepLaw(
    graph_sizes=(1, 2, 4, 8, 16, 32),
    decode_fixed_s=6e-3,
    decode_s_per_sequence=60e-6,
    decode_s_per_context_token=4e-9,
    prefill_fixed_s=8e-3,
    prefill_s_per_token=20e-6,
    prefill_s_per_token2=4e-9,
    host_s_per_request=3e-3,
    host_s_per_token=0.5e-6,
)
JITTER_FRAC = 0.005
"""Standard deviation of a step, and now and then one that takes half as long again."""
QUICK = Options(
    decode=Precision(target_frac=0.01, minimum=3, maximum=5, steps=24),
    prefill=Precision(target_frac=0.02, minimum=3, maximum=5),
)
"""For tests that are not about precision."""
CAREFUL = Options(prefill=Precision(target_frac=0.003, minimum=8, maximum=20))
VERSIONS = {Engine.VLLM: "0.33.0", Engine.SGLANG: "0.5.16", Engine.ATOM: "0.1.4"}


def spec_for(engine: Engine, batches: list[int], prompts: list[int]) -> HarvestSpec:
    raw = {
        "schema": "inferasim.dev/harvest/v1",
        "engine": {"name": engine.value, "version": VERSIONS[engine]},
        "model": {"name": "emulated/model", "path": "emulated/model"},
        "accelerator": {"product": "MI355X", "partition": "spx_nps1"},
        "signature": {"weightDtype": "bf16"},
        "sweeps": {
            "decodeBatches": batches,
            "decodePromptLengthsTokens": prompts,
            "prefillLengthsTokens": [256, 512, 1024, 2048, 4096],
        },
    }
    return parse_spec(json.dumps(raw))


def law_decode_ms(batch: int, context: float) -> float:
    """The emulator's decode law, written out a second time."""
    padded = next(size for size in (1, 2, 4, 8, 16, 32) if size >= batch)
    return 6.0 + 0.060 * padded + 4e-6 * batch * context


@pytest.mark.parametrize("engine", list(Engine))
def test_the_law_is_recovered(engine: Engine, tmp_path: Path) -> None:
    """Decode within 1 % at every batch, the staircase's padded ones included; F, c1 and c2 within 3 %."""
    emulator = Emulator(
        engine=engine, version=VERSIONS[engine], law=LAW, faults=Faults(jitter_frac=JITTER_FRAC), seed=5
    )
    found = trial.harvest(emulator, spec_for(engine, [1, 2, 3, 8, 12, 32], [512]), tmp_path, CAREFUL)
    assert found.exit_code == 0
    assert found.anchor is not None
    sweep = found.anchor.decode[0]
    assert sweep.prompt_tokens == pytest.approx(512, rel=0.01)
    assert [point.batch for point in sweep.points] == [1, 2, 3, 8, 12, 32]
    for point in sweep.points:
        assert point.step_milliseconds == pytest.approx(law_decode_ms(point.batch, sweep.context_tokens), rel=0.01)
    fit = found.anchor.prefill.fit
    assert fit.fixed_milliseconds == pytest.approx(8.0, rel=0.03)
    assert fit.per_token_microseconds == pytest.approx(20.0, rel=0.03)
    assert fit.per_token_squared_nanoseconds == pytest.approx(4.0, rel=0.03)
    host = found.anchor.host_time
    assert host is not None
    assert host.per_request_milliseconds == pytest.approx(3.0, rel=0.15)
    packed = found.anchor.packed_prefill
    assert packed is not None
    for point in packed.points:  # k prompts in one step: F once, the rest k times
        n = packed.sequence_tokens
        want = 8.0 + point.sequences * (20e-3 * n + 4e-6 * n * n)
        assert point.milliseconds == pytest.approx(want, rel=0.02)


def test_nothing_but_what_a_trial_cannot_see_is_flagged(tmp_path: Path) -> None:
    """A clean engine passes every check that its conditions allow: no GPU is behind it, and it ran before us."""
    emulator = Emulator(faults=Faults(jitter_frac=JITTER_FRAC), seed=2)
    found = trial.harvest(emulator, spec_for(Engine.VLLM, [1, 4, 8], [512]), tmp_path, QUICK)
    unseen = {"idle-devices", "partition", "device-kind", "throttling", "clock-rate"}
    assert found.flagged() == dict.fromkeys(unseen, "flag")


def test_two_prompt_lengths_give_the_context_slope(tmp_path: Path) -> None:
    emulator = Emulator(law=LAW, faults=Faults(jitter_frac=JITTER_FRAC), seed=2, kv_pool_tokens=4_000_000)
    found = trial.harvest(emulator, spec_for(Engine.VLLM, [32], [256, 2048]), tmp_path, QUICK)
    assert found.anchor is not None
    short, long = found.anchor.decode
    rise_ms = long.points[0].step_milliseconds - short.points[0].step_milliseconds
    slope = rise_ms / (long.context_tokens - short.context_tokens) / 32
    assert slope == pytest.approx(4e-6, rel=0.10)


def test_speculation_steps_are_chunks_not_tokens(tmp_path: Path) -> None:
    """Public case E04: several tokens a chunk; the step is the gap between chunks, acceptance comes from usage."""
    raw = spec_for(Engine.VLLM, [1, 4], [512]).model_dump(mode="json", by_alias=True, exclude_none=True)
    raw["signature"]["speculation"] = {"method": "MTP", "draftTokens": 3, "forcedAcceptanceLength": 3}
    emulator = Emulator(law=LAW, tokens_per_step=3)
    found = trial.harvest(emulator, parse_spec(json.dumps(raw)), tmp_path, QUICK)
    assert found.anchor is not None
    sign = found.anchor.signature
    assert sign.speculation is not None
    assert sign.speculation.acceptance_length == pytest.approx(3.0, rel=0.01)
    sweep = found.anchor.decode[0]
    assert sweep.points[0].step_milliseconds == pytest.approx(law_decode_ms(1, sweep.context_tokens), rel=0.01)
    assert found.verdict("acceptance") == "pass"


def test_a_batch_beyond_the_pool_is_left_out_with_its_reason(tmp_path: Path) -> None:
    emulator = Emulator(law=LAW, kv_pool_tokens=10_000)
    found = trial.harvest(emulator, spec_for(Engine.VLLM, [1, 4, 32], [512]), tmp_path, QUICK)
    assert found.anchor is not None
    assert [point.batch for point in found.anchor.decode[0].points] == [1, 4]
    check = next(c for c in found.result["checks"] if c["name"] == "unmeasured-points")
    assert check["verdict"] == "flag"
    assert "decode/512/32" in check["detail"]
    assert "KV pool of 10000" in check["detail"]


def test_same_seed_same_anchor(tmp_path: Path) -> None:
    """Virtual time makes a whole harvest repeatable to the byte."""
    anchors = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        emulator = Emulator(law=LAW, faults=Faults(jitter_frac=JITTER_FRAC), seed=9)
        found = trial.harvest(emulator, spec_for(Engine.VLLM, [1, 4], [512]), tmp_path / name, QUICK)
        assert found.anchor is not None
        anchors.append(found.anchor.to_json())
    assert anchors[0] == anchors[1]
