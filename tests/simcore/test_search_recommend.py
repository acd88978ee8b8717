"""What a missing anchor is worth: by hand, against sampling, and in an answer."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from inferasim_operator import planning
from simcore.search.recommend import gain_of_choice, gain_of_option
from tests import builders

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
LOG_SD = 0.1


def test_by_hand() -> None:
    """An option as good as the choice, log deviation 0.1: 1.005013 * Phi(0.1) - 1/2 = 1.005013 * 0.539828 - 0.5."""
    gain, change = gain_of_option(100.0, LOG_SD, 100.0)
    assert gain == pytest.approx(0.042534, abs=1e-6)
    assert change == pytest.approx(0.5)
    # The choice, with a runner-up as good: 0.5 - 1.005013 * Phi(-0.1) = 0.5 - 1.005013 * 0.460172.
    assert gain_of_choice(100.0, LOG_SD, 100.0)[0] == pytest.approx(0.037521, abs=1e-6)
    # Two deviations behind: change with probability 1 - Phi(2) = 0.02275.
    assert gain_of_option(100.0 * math.exp(-0.2), LOG_SD, 100.0)[1] == pytest.approx(0.02275, abs=1e-5)


@given(st.floats(50.0, 200.0), st.floats(0.02, 0.5))
def test_closed_forms_are_the_means_of_samples(value: float, log_sd: float) -> None:
    samples = value * np.exp(log_sd * np.random.default_rng(7).standard_normal(40_000))
    noise = 5.0 * samples.std() / 100.0 / math.sqrt(len(samples))
    gain, _ = gain_of_option(value, log_sd, 100.0)
    assert gain == pytest.approx(np.maximum(samples - 100.0, 0.0).mean() / 100.0, abs=noise + 1e-4)
    other, _ = gain_of_choice(value, log_sd, 100.0)
    assert other == pytest.approx(np.maximum(100.0 - samples, 0.0).mean() / value, abs=5 * noise + 1e-4)


@given(st.floats(50.0, 99.0), st.floats(0.02, 0.4), st.floats(1.01, 2.0))
def test_more_doubt_is_worth_more_and_a_worse_option_less(value: float, log_sd: float, factor: float) -> None:
    gain, change = gain_of_option(value, log_sd, 100.0)
    assert gain_of_option(value, log_sd * factor, 100.0)[0] >= gain - 1e-12
    assert gain_of_option(value / factor, log_sd, 100.0)[0] <= gain + 1e-12
    assert 0.0 <= change <= 0.5


def test_an_answer_names_the_layouts_that_nobody_measured() -> None:
    """An anchor at TP1 only: TP1 is never recommended, what is carries its gain, and the largest gain comes first."""
    spec = builders.serving_plan(load={"concurrencies": [1, 8, 64]})["spec"]
    answer = planning.compute_plan({"spec": spec, "anchors": {"a": json.loads(builders.anchor().to_json())}})
    found = answer["recommendedHarvests"]
    assert all(item["layout"] != {"tensorParallel": 1} for item in found)
    gains = [item["expectedGainPermille"] for item in found]
    assert gains == sorted(gains, reverse=True)
    for item in found:
        assert 0 <= item["changePermille"] <= 1000
        assert item["intervalPermille"] > 0


def test_layouts_with_the_same_attention_are_named_once() -> None:
    """A mixture of experts measured at TP1: every EP of a width is a rival, and one harvest stands for them all."""
    anchor = json.loads((EXAMPLES / "anchors" / "qwen3.6-35b-a3b-sglang-mi355x-tp1.json").read_text(encoding="utf-8"))
    spec = yaml.safe_load((EXAMPLES / "plan.yaml").read_text(encoding="utf-8"))["spec"]
    found = planning.compute_plan({"spec": spec, "anchors": {"a": anchor}})["recommendedHarvests"]
    widths = [(item["layout"]["tensorParallel"], item["layout"].get("attentionDataParallel", 1)) for item in found]
    assert len(widths) == len(set(widths)) >= 4
    first = next(item for item in found if item["layout"].get("attentionDataParallel") == 8)
    named = first["layout"].get("expertParallel", 1)
    others = {1, 2, 4, 8} - {named}
    told = first["reason"].partition("it also decides ")[2].partition(";")[0].split(", ")
    assert len(told) == len(others)


def test_an_engine_without_any_anchor_comes_first_and_its_gain_is_not_known() -> None:
    spec = builders.serving_plan(engines=[{"name": "SGLang"}, {"name": "VLLM"}])["spec"]
    answer = planning.compute_plan({"spec": spec, "anchors": {"a": json.loads(builders.anchor().to_json())}})
    first = answer["recommendedHarvests"][0]
    assert (first["engine"], first["layout"]) == ("VLLM", {"tensorParallel": 1})
    assert "expectedGainPermille" not in first
