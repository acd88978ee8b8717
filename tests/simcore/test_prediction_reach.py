"""A prediction past the batches that were measured says so, and is less sure of itself the farther it goes."""

from __future__ import annotations

import math

from simcore import load_scenario, predict
from simcore.anchors.builtin import builtin_anchor
from simcore.prediction.result import Prediction

NAME = "qwen3.6-35b-a3b-sglang-mi355x-tp1"
"""Measured at batches 1, 16 and 64 (Table 20)."""


def _at(concurrency: int) -> Prediction:
    document = {
        "model": "Qwen3.6-35B-A3B",
        "engine": {"name": "SGLang"},
        "accelerator": "MI355X",
        "layout": {"tensorParallel": 1},
        "anchors": [NAME],
        "workload": {"fixed": {"promptTokens": 1024, "outputTokens": 64}},
        "load": {"concurrency": concurrency, "requests": 2 * concurrency},
    }
    return predict(load_scenario(document, {NAME: builtin_anchor(NAME)}))


def _half_width(prediction: Prediction) -> float:
    low, high = prediction.interval80["tpot"]
    return math.log(high / low) / 2


def test_batches_past_the_sweep_and_past_its_reach_are_flagged() -> None:
    """The sweep ends at 64; the paper's reach (section 5.1) is four times that."""
    words = {"batch-beyond-sweep", "concurrency-beyond-reach"}
    assert words.intersection(_at(64).flags) == set()
    assert words.intersection(_at(65).flags) == {"batch-beyond-sweep"}
    assert words.intersection(_at(256).flags) == {"batch-beyond-sweep"}
    assert words.intersection(_at(257).flags) == words


def test_the_interval_grows_with_the_distance_from_the_sweep() -> None:
    widths = [_half_width(_at(concurrency)) for concurrency in (64, 256, 512, 1024)]
    assert widths == sorted(widths)
    assert widths[1] > 2 * widths[0]
    assert widths[3] > 1.5 * widths[1]


def test_fp8_kv_is_flagged_whoever_chose_it() -> None:
    """Public case A24: nothing has checked what an FP8 cache produces where there is no harvest at all."""
    document = {
        "model": "Llama-3.1-8B", "engine": {"name": "vLLM"}, "accelerator": "MI300X", "mode": "simulate",
        "layout": {"tensorParallel": 1}, "workload": {"fixed": {"promptTokens": 512, "outputTokens": 16}},
        "load": {"concurrency": 2, "requests": 4},
    }  # fmt: skip
    word = "fp8-kv-output-unchecked"
    assert word not in predict(load_scenario(document, {})).flags
    for name in ("fp8", "fp8_e4m3", "fp8_e5m2", "fp8_per_token_head"):
        assert word in predict(load_scenario(document | {"kvDtype": name}, {})).flags
    # An anchor that does not say how its KV was stored has shown nothing either.
    name = "llama-3.1-8b-sglang-mi355x-tp1"
    anchored = document | {"engine": {"name": "SGLang"}, "accelerator": "MI355X", "mode": "anchored", "anchors": [name]}
    found = predict(load_scenario(anchored | {"kvDtype": "fp8"}, {name: builtin_anchor(name)}))
    assert {word, "unverified-signature"} <= set(found.flags)
