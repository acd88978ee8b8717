"""From a plan's answer to llm-d's router: the prefill rate that the anchor measured, and none where nothing was."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import yaml

from inferasim_operator.cli.render import render_document
from inferasim_operator.plan_document import selection
from inferasim_operator.planning import answer_prepared, compute_plan
from simcore.anchors.builtin import builtin_anchor
from simcore.errors import InputError
from simcore.prediction.costs import Speculation
from simcore.prediction.predictor import Overrides
from simcore.search.space import DRAFTERS

ANCHOR = "llama-3.1-8b-sglang-mi355x-tp1"


def answer(**changes: Any) -> dict[str, Any]:
    spec = {
        "model": {"name": "Llama-3.1-8B"},
        "cluster": {"accelerator": "MI355X", "nodes": 1, "gpuBudget": 1},
        "engines": [{"name": "SGLang", "layouts": [{"tensorParallel": 1}]}],
        "workload": {"fixed": {"promptTokens": 1024, "outputTokens": 64}},
        "load": {"concurrencies": [8]},
        "tiers": [{"name": "bulk"}],
        **changes,
    }
    anchor = builtin_anchor(ANCHOR).model_dump(by_alias=True, mode="json", exclude_none=True)
    return {**compute_plan({"spec": spec, "anchors": {ANCHOR: anchor}}), "spec": spec}


def picker_plugins(result: dict[str, Any]) -> dict[str, dict[str, Any]]:
    mix = {
        "apiVersion": "inferasim.dev/v1alpha1",
        "kind": "DeploymentMix",
        "metadata": {"name": "chat", "namespace": "serving"},
        "spec": {
            "planRef": {"name": "chat"},
            "format": "LLMD",
            "model": {"source": {"claim": {"claimName": "weights"}}},
            "images": {"engine": "rocm/sgl:v0.5.19", "router": "llm-d-router-endpoint-picker:v0.10.0"},
            "serving": {"engineVersion": "0.5.19"},
        },
    }
    (config,) = (manifest for manifest in render_document(mix, result) if "epp-config.yaml" in manifest.get("data", {}))
    document = yaml.safe_load(config["data"]["epp-config.yaml"])
    return {plugin["type"]: plugin.get("parameters", {}) for plugin in document["plugins"]}


def test_the_router_gets_the_rate_of_one_full_prefill_step() -> None:
    """llm-d's calibration: CHUNK_SIZE / TTFT of one unloaded prompt of that size (guides/recipes/router/calibration).

    The anchor measured packed steps of 8192 tokens; the engine's own step of 16384 would be extrapolated. By its fit:
    16.7452 + 8192 * 0.01161204 + 8192**2 * 0.34722e-6 = 135.1725 ms, so 60604 tokens per second. The
    simulator's coefficients are whole picoseconds, which is 0.06 % of the quadratic one.
    """
    result = answer()
    (selection,) = result["selected"]
    rate = selection["source"]["peakPrefillTokensPerSecond"]
    assert rate == pytest.approx(60604, rel=2e-4)
    assert picker_plugins(result)["prefix-cache-affinity-filter"] == {"peakPrefillThroughput": rate}


def test_what_nobody_measured_is_not_told_to_the_router() -> None:
    result = answer(anchors={"mode": "Simulate"})
    (selection,) = result["selected"]
    assert "peakPrefillTokensPerSecond" not in selection["source"]
    assert "prefix-cache-affinity-filter" not in picker_plugins(result)


def test_with_speculation_the_promise_says_its_acceptance() -> None:
    """Case B07: three drafts with an acceptance length of 2.66 as measured."""
    spec = {
        "model": {"name": "DeepSeek-R1"},
        "cluster": {"accelerator": "MI355X", "nodes": 1},
        "engines": [{"name": "SGLang", "version": "0.5.19", "layouts": [{"tensorParallel": 8}]}],
        "workload": {"fixed": {"promptTokens": 1024, "outputTokens": 32}},
        "load": {"concurrencies": [4]},
        "tiers": [{"name": "bulk"}],
        "anchors": {"mode": "Simulate"},
    }
    prepared, found = answer_prepared({"spec": spec, "anchors": {}})
    plain, choice = found.candidates[0], found.choices[0]
    drafting = replace(plain, overrides=Overrides(speculation=Speculation(DRAFTERS["MTP"], 3, (1.8, 2.3, 2.66))))
    told = selection(drafting, choice, prepared)["predicted"]["acceptanceLengthPermille"]
    assert told == 2660
    assert "acceptanceLengthPermille" not in selection(plain, choice, prepared)["predicted"]


def test_a_kv_format_that_no_emission_writes_is_refused_not_renamed() -> None:
    """E5M2 and E4M3 are two encodings of one width: an engine started with the other serves garbage (case A24)."""
    result = answer()
    result["selected"][0]["configuration"]["kvDtype"] = "fp8_e4m3"
    assert picker_plugins(result)
    result["selected"][0]["configuration"]["kvDtype"] = "fp8_e5m2"
    with pytest.raises(InputError, match="kvDtype"):
        picker_plugins(result)
