"""Every fault that the emulator can have is caught by the check made for it; none passes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from inferasim_harvester.emulator import trial
from inferasim_harvester.emulator.law import Faults, StepLaw
from inferasim_harvester.emulator.server import Emulator
from inferasim_harvester.measure import Precision
from inferasim_harvester.options import Options
from inferasim_harvester.spec import HarvestSpec, parse_spec
from simcore.anchors.checks import Verdict, check_anchor, worst
from simcore.cards.layout import Engine

VERSIONS = {Engine.VLLM: "0.33.0", Engine.SGLANG: "0.5.16", Engine.ATOM: "0.1.4"}
QUICK = Options(
    stall_s=20.0,
    start_timeout_s=60.0,
    gpu_metrics_url="ENGINE/gpu_metrics",
    decode=Precision(target_frac=0.01, minimum=3, maximum=5, steps=24),
    prefill=Precision(target_frac=0.02, minimum=3, maximum=5),
)
CONDITIONS = {"idle-devices", "partition", "device-kind", "clock-rate"}
"""Flagged in every trial: no GPU is behind the emulator, and a trial is too short for clocks of whole seconds."""


def spec_for(engine: Engine, **layout: int) -> HarvestSpec:
    raw = {
        "schema": "inferasim.dev/harvest/v1",
        "engine": {"name": engine.value, "version": VERSIONS[engine]},
        "model": {"name": "emulated/model", "path": "emulated/model"},
        "accelerator": {"product": "MI355X", "partition": "spx_nps1"},
        "layout": layout,
        "signature": {"weightDtype": "bf16"},
        "sweeps": {
            "decodeBatches": [1, 2, 4],
            "decodePromptLengthsTokens": [128],
            "prefillLengthsTokens": [128, 256, 512, 768, 1024],
        },
    }
    return parse_spec(json.dumps(raw))


def trial_of(faults: Faults, out: Path, engine: Engine = Engine.VLLM, options: Options = QUICK) -> trial.Outcome:
    emulator = Emulator(engine=engine, version=VERSIONS[engine], faults=faults, seed=4)
    return trial.harvest(emulator, spec_for(engine), out, options)


@pytest.mark.parametrize("engine", list(Engine))
def test_without_a_fault_nothing_is_caught(engine: Engine, tmp_path: Path) -> None:
    found = trial_of(Faults(), tmp_path, engine)
    # ATOM prints no end-to-end times, so its clock cannot be held against ours there.
    assert set(found.flagged()) == CONDITIONS | ({"clock-agreement"} if engine is Engine.ATOM else set())


Caught = tuple[str, Engine, Faults, dict[str, str]]
MANY = Faults(
    cached_frac=0.015,
    clock_factor=1.2,
    empty_first_chunk=True,
    unmarked_ends=True,
    garbage=True,
    throttled_after_steps=300,
    reported={"enable_prefix_caching": True},
)
CAUGHT: list[Caught] = [
    (
        "many at once",
        Engine.VLLM,
        MANY,
        {
            "prefix-hits": "refuse",
            "clock-agreement": "flag",
            "empty-chunks": "flag",
            "stream-ends": "flag",
            "output": "refuse",
            "throttling": "refuse",
            "prefix-caching": "refuse",
        },
    ),
    (
        "many at once",
        Engine.SGLANG,
        replace(MANY, cached_frac=0.7, clock_factor=0.7, prompt_factor=0.985, reported={"disable_radix_cache": False}),
        {
            "prefix-hits": "refuse",
            "clock-agreement": "flag",
            "empty-chunks": "flag",
            "served-length": "flag",
            "output": "refuse",
            "prefix-caching": "refuse",
        },
    ),
    (
        "many at once",
        Engine.ATOM,
        replace(MANY, reported={}),
        {"prefix-hits": "refuse", "empty-chunks": "flag", "output": "refuse", "throttling": "refuse"},
    ),
    ("hits that counters hide", Engine.VLLM, Faults(cached_frac=0.7, hides_hits=True), {"prefix-hits": "refuse"}),
    ("hits that counters hide", Engine.SGLANG, Faults(cached_frac=0.7, hides_hits=True), {"prefix-hits": "refuse"}),
    (
        "long prompts, an exporter that restarts",
        Engine.VLLM,
        Faults(prompt_factor=1.05, throttle_counters_run_back=True),
        {"served-length": "refuse", "throttling": "flag"},
    ),
    ("early stop", Engine.VLLM, Faults(stop_after_tokens=25), {"output-length": "refuse"}),
    ("some stop early", Engine.VLLM, Faults(stop_after_tokens=25, stop_every=9), {"output-length": "flag"}),
    ("many stop early", Engine.SGLANG, Faults(stop_after_tokens=25, stop_every=3), {"output-length": "refuse"}),
    ("usage counts too few", Engine.VLLM, Faults(usage_factor=0.95), {"output-length": "refuse"}),
    ("usage counts double", Engine.SGLANG, Faults(usage_factor=2.0), {"token-chunks": "refuse"}),
    ("heavy-tailed steps", Engine.VLLM, Faults(heavy_tail=True), {"precision": "flag", "outliers": "flag"}),
    ("wild jitter", Engine.VLLM, Faults(jitter_frac=0.15), {"spread": "flag"}),
    ("cold beyond the warm-up", Engine.VLLM, Faults(cold_requests=17), {"cold-first-wave": "flag"}),
]


@pytest.mark.parametrize(("name", "engine", "faults", "verdicts"), CAUGHT, ids=[f"{row[0]}-{row[1]}" for row in CAUGHT])
def test_the_right_check_catches_it(
    name: str, engine: Engine, faults: Faults, verdicts: dict[str, str], tmp_path: Path
) -> None:
    found = trial_of(faults, tmp_path, engine)
    assert found.exit_code == 0, found.result["message"]
    assert {check: found.verdict(check) for check in verdicts} == verdicts
    assert found.anchor is not None
    # Whoever reads the anchor later comes to the same verdict from the file alone.
    assert worst(check_anchor(found.anchor)) is Verdict(found.result["verdict"])


RAN_OTHERWISE = {
    Engine.VLLM: {
        "tensor_parallel_size": 2,
        "pipeline_parallel_size": 2,
        "enforce_eager": True,
        "speculative_config": {"method": "ngram"},
        "load_format": "dummy",
    },
    Engine.SGLANG: {
        "tp_size": 2,
        "pp_size": 2,
        "disable_cuda_graph": True,
        "speculative_algorithm": "EAGLE",
        "load_format": "dummy",
    },
    Engine.ATOM: {
        "tensor_parallel_size": 2,
        "pipeline_parallel_size": 2,
        "enforce_eager": True,
        "method": "mtp",
        "load_dummy": True,
    },
}


@pytest.mark.parametrize("engine", list(Engine))
def test_every_setting_that_ran_otherwise_is_named(engine: Engine, tmp_path: Path) -> None:
    found = trial_of(Faults(reported=RAN_OTHERWISE[engine]), tmp_path, engine)
    assert found.verdict("effective-configuration") == "refuse"
    detail = next(c["detail"] for c in found.result["checks"] if c["name"] == "effective-configuration")
    off = ("speculation asked 'off', ran 'on'", "randomWeights asked 'off', ran 'on'")
    for name in ("tensorParallel asked 1, ran 2", "pipelineParallel asked 1, ran 2", *off):
        assert name in detail
    # The flag that turns graphs off was not read in this version of SGLang, so nothing was asked for.
    assert ("graphCapture" in detail) is (engine is not Engine.SGLANG)


def test_metrics_that_are_no_numbers_pass_nothing(tmp_path: Path) -> None:
    found = trial_of(Faults(metrics_are_nan=True), tmp_path)
    for name in ("prefix-hits", "clock-agreement", "throttling"):
        assert found.verdict(name) == "flag"


@pytest.mark.parametrize(
    ("engine", "faults", "verdict"),
    [
        (Engine.ATOM, Faults(tokens_per_chunk=2), "refuse"),
        (Engine.VLLM, Faults(tokens_per_chunk=3), "refuse"),
        (Engine.SGLANG, Faults(tokens_per_chunk=2), "refuse"),
        (Engine.ATOM, Faults(doubled_chunks=True), "flag"),
        (Engine.SGLANG, Faults(doubled_chunks=True), "pass"),  # its chunks say how many tokens there are
    ],
)
def test_a_stream_that_gathers_or_repeats_does_not_move_a_step(
    engine: Engine, faults: Faults, verdict: str, tmp_path: Path
) -> None:
    """Whatever the verdict, the figure is the law's: 6 ms, 60 us a sequence, 4 ns a token of context."""
    found = trial_of(faults, tmp_path, engine)
    assert found.verdict("token-chunks") == verdict
    assert found.anchor is not None
    sweep = found.anchor.decode[0]
    for point in sweep.points:
        law_ms = 6.0 + 0.06 * point.batch + 4e-6 * point.batch * sweep.context_tokens
        assert point.step_milliseconds == pytest.approx(law_ms, rel=0.01)


@pytest.mark.parametrize(
    ("faults", "word"),
    [
        (Faults(refused_every=40), "answered 429"),
        (Faults(cut_every=40), "usage"),
    ],
)
def test_refused_and_cut_requests_fail_the_harvest(faults: Faults, word: str, tmp_path: Path) -> None:
    """A point that lacks a request is no point: the rest of the wave ran at another batch."""
    found = trial_of(faults, tmp_path, Engine.ATOM)
    assert (found.exit_code, found.result["reason"]) == (1, "RequestFailed")
    assert word in found.result["message"]
    assert found.anchor is None


def test_a_draft_that_no_report_shows_is_refused(tmp_path: Path) -> None:
    """Two tokens a step, though nothing says so."""
    found = trial.harvest(Emulator(tokens_per_step=2), spec_for(Engine.VLLM), tmp_path, QUICK)
    assert found.verdict("token-chunks") == "refuse"


def test_fewer_running_requests_than_asked_leave_the_point_out(tmp_path: Path) -> None:
    """max_num_seqs below a batch of the sweep: such a wave never runs together."""
    found = trial.harvest(Emulator(max_sequences=2), spec_for(Engine.VLLM), tmp_path, QUICK)
    assert found.anchor is not None
    assert [point.batch for point in found.anchor.decode[0].points] == [1, 2]
    assert found.verdict("unmeasured-points") == "flag"


def test_a_prompt_of_several_steps_is_no_prefill_point(tmp_path: Path) -> None:
    """Chunked prefill: T(n) is one step's time, so what the budget cuts is left out."""
    found = trial.harvest(Emulator(token_budget=512), spec_for(Engine.VLLM), tmp_path, QUICK)
    assert found.anchor is not None
    assert [point.prompt_tokens for point in found.anchor.prefill.points] == [128, 256, 512]
    assert found.anchor.prefill.fit.per_token_microseconds == pytest.approx(20.0, rel=0.01)
    assert found.verdict("unmeasured-points") == "flag"
    assert found.verdict("sweep-size") == "flag"


def test_missing_graph_sizes_are_flagged(tmp_path: Path) -> None:
    found = trial.harvest(Emulator(law=StepLaw(graph_sizes=())), spec_for(Engine.VLLM), tmp_path, QUICK)
    assert found.verdict("graph-sizes") == "flag"


def test_another_model_is_refused(tmp_path: Path) -> None:
    """An engine that ran before us may serve anything."""
    found = trial.harvest(Emulator(model="other/model"), spec_for(Engine.VLLM), tmp_path, QUICK)
    assert found.verdict("served-model") == "refuse"


@pytest.mark.parametrize(("factor", "verdict"), [(1.0, "pass"), (1.1, "flag"), (0.9, "flag")])
def test_a_clock_at_another_rate_shows_without_engine_times(factor: float, verdict: str, tmp_path: Path) -> None:
    """ATOM prints no latencies; the dates of its answers count seconds all the same, given enough of them."""
    slow = StepLaw(decode_fixed_s=0.2, prefill_fixed_s=0.2)
    emulator = Emulator(engine=Engine.ATOM, version="0.1.4", law=slow, faults=Faults(clock_factor=factor))
    found = trial.harvest(emulator, spec_for(Engine.ATOM), tmp_path, QUICK)
    assert found.verdict("clock-rate") == verdict


def test_garbage_that_nobody_can_judge_is_not_passed(tmp_path: Path) -> None:
    """Random weights say nothing, whether the kernels are right or not."""
    raw = spec_for(Engine.VLLM).model_dump(mode="json", by_alias=True, exclude_none=True)
    raw["model"]["weights"] = "Dummy"
    found = trial.harvest(Emulator(faults=Faults(garbage=True)), parse_spec(json.dumps(raw)), tmp_path, QUICK)
    assert found.verdict("output") == "flag"


def test_throttling_shows_without_an_exporter_too(tmp_path: Path) -> None:
    """The first point measured again at the end; nothing of the node is needed."""
    quiet = Options(**{**QUICK.__dict__, "gpu_metrics_url": None})
    found = trial_of(Faults(throttled_after_steps=420), tmp_path, options=quiet)
    assert found.verdict("drift") == "refuse"
    assert found.verdict("throttling") == "flag"


def test_the_warm_up_takes_the_cold_start(tmp_path: Path) -> None:
    """Public case E08: as many slow requests as the warm-up has leave no trace."""
    warm_up = 4 + 5 + 1 + 4  # the output check, one a length, one wave of the largest batch
    found = trial_of(Faults(cold_requests=warm_up), tmp_path)
    assert set(found.flagged()) == CONDITIONS


def test_empty_first_chunks_do_not_move_a_figure(tmp_path: Path) -> None:
    """Public case E07: the first token counts, not the first chunk."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    plain, empty = (trial_of(f, tmp_path / n) for f, n in ((Faults(), "a"), (Faults(empty_first_chunk=True), "b")))
    assert plain.anchor is not None
    assert empty.anchor is not None
    assert empty.anchor.prefill == plain.anchor.prefill
    assert empty.anchor.decode == plain.anchor.decode


@pytest.mark.parametrize("engine", list(Engine))
def test_a_dead_worker_behind_a_green_health_fails_the_harvest(engine: Engine, tmp_path: Path) -> None:
    """Public case A20."""
    found = trial_of(Faults(dead_after_steps=400), tmp_path, engine)
    assert found.exit_code == 1
    assert found.result["reason"] == "EngineDied"
    assert "/health says 200" in found.result["message"]
    assert found.anchor is None
    assert found.progress[-1]["phase"] == "Failed"


def test_an_engine_that_never_gives_a_token_is_not_ready(tmp_path: Path) -> None:
    found = trial_of(Faults(dead_after_steps=0), tmp_path)
    assert found.result["reason"] == "EngineNotReady"


def test_answers_too_short_for_a_window_fail_with_the_reason(tmp_path: Path) -> None:
    found = trial_of(Faults(stop_after_tokens=10), tmp_path)
    assert found.result["reason"] == "MeasurementFailed"
    assert "requests end after 10 of" in found.result["message"]


def test_dropped_attention_dp_is_refused(tmp_path: Path) -> None:
    """Public case E10: labelled DP attention, ran plain TP."""
    emulator = Emulator(engine=Engine.SGLANG, version="0.5.16", settings={"tp_size": 8, "dp_size": 1})
    spec = spec_for(Engine.SGLANG, tensorParallel=8, attentionDataParallel=8)
    found = trial.harvest(emulator, spec, tmp_path, QUICK)
    assert found.verdict("effective-configuration") == "refuse"
    detail = next(c["detail"] for c in found.result["checks"] if c["name"] == "effective-configuration")
    assert "attentionDataParallel asked 8, ran 1" in detail


def test_dummy_weights_are_kept_and_refused(tmp_path: Path) -> None:
    raw = spec_for(Engine.VLLM).model_dump(mode="json", by_alias=True, exclude_none=True)
    raw["model"]["weights"] = "Dummy"
    found = trial.harvest(Emulator(law=StepLaw()), parse_spec(json.dumps(raw)), tmp_path, QUICK)
    assert found.anchor is not None
    assert not found.anchor.provenance.real_weights
    assert found.result["verdict"] == "refuse"


def test_another_version_is_refused(tmp_path: Path) -> None:
    emulator = Emulator(version="0.32.0")
    found = trial.harvest(emulator, spec_for(Engine.VLLM), tmp_path, QUICK)
    assert found.verdict("engine-version") == "refuse"
    assert found.anchor is not None
    assert found.anchor.signature.engine_version == "0.32.0"  # the label is what ran
