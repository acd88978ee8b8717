"""The harvest checks on the figures of paper App. E and of the public cases."""

from __future__ import annotations

from typing import Any

import pytest

from simcore.anchors import checks
from simcore.anchors.checks import Verdict
from simcore.anchors.schema import Anchor, anchor_from

PASS, FLAG, REFUSE = Verdict.PASS, Verdict.FLAG, Verdict.REFUSE


def harvested(**changes: Any) -> Anchor:
    """A clean harvest: T(n) = 10 ms + 20 us n at five lengths, six captured batches, three repeats."""
    raw: dict[str, Any] = {
        "schema": "inferasim.dev/anchor/v1",
        "signature": {
            "accelerator": "MI355X",
            "engine": "VLLM",
            "model": "Qwen3-32B",
            "weightsDtype": "bf16",
            "tensorParallel": 2,
            "partition": "spx_nps1",
            "graphCapture": {"mode": "full", "sizes": [1, 2, 4, 8, 16, 32]},
        },
        "decode": [
            {
                "promptTokens": 1024,
                "contextTokens": 1100,
                "points": [
                    {"batch": b, "stepMilliseconds": 8.0 + 0.1 * b, "repeats": 5, "spread": 0.01}
                    for b in (1, 2, 4, 8, 16, 32)
                ],
            }
        ],
        "prefill": {
            "points": [{"promptTokens": n, "milliseconds": 10 + 0.02 * n} for n in (512, 1024, 2048, 4096, 8192)],
            "fit": {
                "fixedMilliseconds": 10,
                "perTokenMicroseconds": 20,
                "perTokenSquaredNanoseconds": 0,
                "residualPercent": 0,
            },
        },
        "provenance": {"source": "harvested", "realWeights": True, "prefixCachingOff": True},
    }
    for key, value in changes.items():
        raw[key] = {**raw[key], **value} if isinstance(value, dict) and key in raw else value
    return anchor_from(raw)


def test_a_clean_harvest_passes_every_check() -> None:
    results = checks.check_anchor(harvested())
    assert {result.name: result.verdict for result in results} == dict.fromkeys(checks.ANCHOR_CHECKS, PASS)
    assert checks.worst(results) is PASS


def test_random_weights_and_warm_caches_are_refused() -> None:
    provenance = {"source": "harvested", "realWeights": False, "prefixCachingOff": False}
    results = {result.name: result.verdict for result in checks.check_anchor(harvested(provenance=provenance))}
    assert results["real-weights"] is REFUSE
    assert results["prefix-caching"] is REFUSE


def test_prefix_hits_of_case_e02() -> None:
    result = checks.prefix_hits(12_000, 16_384)
    assert result.verdict is REFUSE
    assert result.numbers["hitShare"] == pytest.approx(0.7324, abs=1e-4)
    assert checks.prefix_hits(163, 16_384).verdict is PASS
    assert checks.prefix_hits(0, 0).verdict is PASS
    for hits, queried in ((12_000, 0), (-12_000, 16_384), (16_385, 16_384)):
        assert checks.prefix_hits(hits, queried).verdict is REFUSE, "counters that contradict each other show nothing"


@pytest.mark.parametrize(
    ("asked", "served", "verdict"), [(1000, 5128, REFUSE), (8192, 8179, PASS), (1000, 1015, FLAG), (1, 0, REFUSE)]
)
def test_served_length_of_case_e01(asked: int, served: int, verdict: Verdict) -> None:
    result = checks.served_length(asked, served)
    assert result.verdict is verdict
    assert result.numbers["servedTokens"] == served


def test_output_length_of_case_e07() -> None:
    assert checks.output_length(1024, 101).verdict is FLAG
    assert checks.output_length(1024, 1024).verdict is PASS
    assert checks.time_per_output_token_s(2.2, 0.2, 101) == pytest.approx(0.020)
    assert checks.time_per_output_token_s(2.2, 0.2, 1) is None


def test_cold_first_wave_of_case_e08() -> None:
    cold = [40.1 + 17.5 * i / 9 for i in range(10)]
    warm = [0.60 + 0.78 * i / 89 for i in range(90)]
    result = checks.cold_first_wave([*cold, *warm], 10, warmup_dropped=False)
    assert result.verdict is FLAG
    assert "opening wave of 10" in result.detail
    assert result.numbers["p95Seconds"] > 40
    assert result.numbers["p95WithoutFirstWaveSeconds"] < 1.38
    assert checks.cold_first_wave(warm, 10, warmup_dropped=True).verdict is PASS
    assert checks.cold_first_wave([*warm, 60.0], 10, warmup_dropped=True).verdict is FLAG
    assert checks.cold_first_wave([], 10, warmup_dropped=True).verdict is REFUSE
    assert checks.tail_samples(90).verdict is FLAG


def test_effective_configuration_of_case_e10() -> None:
    asked = {"dpAttention": True, "tensorParallel": 8}
    wrong = checks.effective_configuration(asked, {"dpAttention": False, "tensorParallel": 8})
    assert wrong.verdict is REFUSE
    assert wrong.detail == "dpAttention asked True, ran False"
    assert checks.effective_configuration(asked, {"tensorParallel": 8}).verdict is FLAG
    assert checks.effective_configuration(asked, asked).verdict is PASS


def test_partition_of_case_a26() -> None:
    assert checks.partition(harvested(), "SPX/NPS1", 288 << 30).verdict is PASS
    assert checks.partition(harvested(), "dpx_nps1").verdict is REFUSE
    assert checks.partition(harvested(), None).verdict is FLAG


@pytest.mark.parametrize(
    ("ratio", "verdict"), [(3.59, REFUSE), (7.06, REFUSE), (1.0, PASS), (0.62, REFUSE), (1.39, PASS)]
)
def test_packed_prefill_bounds_of_appendix_e(ratio: float, verdict: Verdict) -> None:
    single_ms = 10 + 0.02 * 4096
    probe = {
        "sequenceTokens": 1024,
        "tokenBudget": 8192,
        "points": [{"sequences": 4, "milliseconds": ratio * single_ms}],
    }
    assert checks.packed_prefill(harvested(packedPrefill=probe)).verdict is verdict


def test_a_probe_above_the_budget_measured_serialisation() -> None:
    probe = {"sequenceTokens": 4096, "tokenBudget": 8192, "points": [{"sequences": 4, "milliseconds": 300}]}
    assert checks.packed_prefill(harvested(packedPrefill=probe)).verdict is REFUSE


@pytest.mark.parametrize(("last", "verdict"), [(9.6, PASS), (9.5, PASS), (9.0, FLAG), (8.0, REFUSE)])
def test_monotone_sweep(last: float, verdict: Verdict) -> None:
    points = [{"batch": b, "stepMilliseconds": ms} for b, ms in ((1, 8.1), (16, 9.6), (32, last))]
    anchor = harvested(decode=[{"promptTokens": 1024, "contextTokens": 1100, "points": points}])
    assert checks.monotone_sweep(anchor).verdict is verdict


@pytest.mark.parametrize(("fixed", "verdict"), [(10.0, PASS), (12.0, FLAG), (20.0, REFUSE)])
def test_fit_residual_is_computed_not_believed(fixed: float, verdict: Verdict) -> None:
    anchor = harvested()
    fit = anchor.prefill.fit.model_copy(update={"fixed_milliseconds": fixed})
    anchor = anchor.model_copy(update={"prefill": anchor.prefill.model_copy(update={"fit": fit})})
    result = checks.fit_residual(anchor)
    assert result.verdict is verdict
    assert result.numbers["residual"] == pytest.approx((fixed - 10) / (10 + 0.02 * 512))


def test_measured_batches_that_are_no_graphs_are_flagged() -> None:
    points = [{"batch": b, "stepMilliseconds": 8 + b} for b in (1, 3, 64)]
    anchor = harvested(decode=[{"promptTokens": 1024, "contextTokens": 1100, "points": points}])
    result = checks.graph_sizes(anchor)
    assert result.verdict is FLAG
    assert "[3]" in result.detail  # 64 is above the largest graph, so it ran unpadded


def test_recorded_checks_of_the_harvest_are_kept_after_the_computed_ones() -> None:
    refused = {"name": "served-length", "verdict": "refuse", "detail": "asked 1000, served 5128"}
    anchor = harvested(provenance={"checks": [refused]})
    results = checks.check_anchor(anchor)
    assert results[-1].name == "served-length"
    assert checks.worst(results) is REFUSE
    assert results[-1].record().model_dump(mode="json", by_alias=True)["verdict"] == "refuse"
