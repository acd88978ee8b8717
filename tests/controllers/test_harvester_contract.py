"""Both sides of docs/harvest-protocol.md: what the operator writes into the pod is what the harvester reads."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from inferasim_harvester import progress, store
from inferasim_harvester.__main__ import _parser
from inferasim_harvester.spec import HarvestSpec, parse_spec
from inferasim_operator.api.v1alpha1.anchorharvest import AnchorHarvest, HarvestProgress
from inferasim_operator.kinds.anchorharvest import pod, render

ROOT = Path(__file__).resolve().parents[2]


def harvest(**spec: Any) -> AnchorHarvest:
    return AnchorHarvest.model_validate(
        {
            "apiVersion": "inferasim.dev/v1alpha1",
            "kind": "AnchorHarvest",
            "metadata": {"name": "h", "namespace": "n", "uid": "u"},
            "spec": {
                "engine": {"name": "SGLang", "version": "0.5.16", "image": "example/sglang:1", "extraArgs": ["--x=1"]},
                "model": {"name": "org/m", "source": {"claim": {"claimName": "models", "path": "sub"}}},
                "accelerator": {"product": "MI355X"},
                **spec,
            },
        }
    )


def told(given: AnchorHarvest) -> HarvestSpec:
    return parse_spec(json.dumps(render.harvester_spec(given)))


def test_the_smallest_harvest_is_understood() -> None:
    spec = told(harvest())
    assert spec.model.path == "/models/sub"
    assert spec.model.weights == "Real"
    assert spec.layout.tensor_parallel == 1


def test_the_fullest_harvest_is_understood() -> None:
    speculation = {"method": "MTP", "draftTokens": 3, "forcedAcceptanceLengthPermille": 2500}
    signature = {"weightDtype": "fp8", "kvDtype": "fp8", "graphCapture": "Disabled", "speculation": speculation}
    sweeps = {
        "decodeBatches": [1, 2],
        "decodePromptLengthsTokens": [1024, 8192],
        "prefillLengthsTokens": [512, 1024],
        "packedPrefillProbe": "Disabled",
    }
    layout = {"tensorParallel": 8, "expertParallel": 8, "attentionDataParallel": 8}
    spec = told(harvest(signature=signature, sweeps=sweeps, layout=layout))
    assert spec.signature.speculation is not None
    assert spec.signature.speculation.forced_acceptance_length == 2.5
    assert spec.signature.graph_capture == "Disabled"
    assert spec.sweeps.decode_prompt_lengths_tokens == (1024, 8192)
    assert spec.attention_ranks == 8


def test_the_pods_arguments_are_the_commands() -> None:
    built = pod.pod_spec(
        harvest().spec, account="a", spec_map="s", progress="n/p", gpus_count=1, device_ids=("75a3",), deadline_s=60
    )
    (container,) = built["containers"]
    assert container["command"] == ["python", "-m", "inferasim_harvester", "run"]
    given = _parser().parse_args([*container["command"][3:], *container["args"]])
    assert given.config_map == "n/p"
    assert str(given.spec) == "/etc/inferasim/spec.json"


def test_the_keys_are_the_same() -> None:
    assert (render.PROGRESS_KEY, render.ANCHOR_KEY, render.RESULT_KEY) == (
        progress.PROGRESS_FILE,
        progress.ANCHOR_FILE,
        progress.RESULT_FILE,
    )


@pytest.mark.parametrize("phase", progress.PHASES)
def test_every_phase_is_one_the_status_takes(phase: str) -> None:
    HarvestProgress.model_validate({"phase": phase, "pointsDone": 0, "pointsTotal": 1, "message": "m", "at": "now"})


def test_the_page_names_every_file_and_argument() -> None:
    page = (ROOT / "docs" / "harvest-protocol.md").read_text()
    run = next(iter(_parser()._subparsers._group_actions)).choices["run"]  # type: ignore[union-attr,index]
    options = {option for action in run._actions for option in action.option_strings if option.startswith("--")}
    for word in {progress.PROGRESS_FILE, progress.ANCHOR_FILE, progress.RESULT_FILE, store.FILE, *options} - {"--help"}:
        assert re.search(rf"`{re.escape(word)}`", page), word
