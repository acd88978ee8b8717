"""Both sides of docs/harvest-protocol.md: what the operator writes into the pod is what the harvester reads."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from inferasim_harvester import collectives, launch, progress, routing, store
from inferasim_harvester.__main__ import _exporter_here, _parser, main
from inferasim_harvester.spec import HarvestSpec, parse_spec
from inferasim_harvester.wire import Address
from inferasim_operator.api.v1alpha1.anchorharvest import AnchorHarvest, HarvestProgress
from inferasim_operator.emit.arguments import parse_args
from inferasim_operator.emit.flagmap import flag_map
from inferasim_operator.kinds.anchorharvest import pod, render
from simcore.cards.layout import Engine

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
        "collectives": "Enabled",
        "expertRouting": {"promptsPath": "/data/prompts.txt", "outputTokens": 32},
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


def test_the_metrics_exporter_is_found_on_the_node_or_where_the_spec_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kubernetes puts the node's address into HOST_IP, and into an argument that names it; IPv6 gets its brackets."""
    url = "http://$(HOST_IP):32500/metrics"
    given = harvest(accelerator={"product": "MI355X", "metricsUrl": url})
    built = pod.pod_spec(
        given.spec, account="a", spec_map="s", progress="n/p", gpus_count=1, device_ids=("75a3",), deadline_s=60
    )
    (container,) = built["containers"]
    assert container["args"][-1] == f"--gpu-metrics-url={url}"
    host = next(item for item in container["env"] if item["name"] == "HOST_IP")
    assert host["valueFrom"] == {"fieldRef": {"fieldPath": "status.hostIP"}}
    assert "metricsUrl" not in render.harvester_spec(given)["accelerator"]  # where it is asked changes no measurement
    assert _exporter_here() is None
    monkeypatch.setenv("HOST_IP", "10.0.0.7")
    assert _exporter_here() == "http://10.0.0.7:5000/metrics"
    monkeypatch.setenv("HOST_IP", "fd00::7")
    assert _exporter_here() == "http://[fd00::7]:5000/metrics"
    assert Address.parse(str(_exporter_here()), "gpu-metrics-url") == Address("fd00::7", 5000)


def test_a_bad_exporter_address_is_refused_at_the_door(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = tmp_path / "spec.json"
    spec.write_text(json.dumps(render.harvester_spec(harvest())))
    assert main(["run", f"--spec={spec}", f"--out={tmp_path}", "--gpu-metrics-url=http://x/metrics"]) == 2
    assert "gpu-metrics-url" in capsys.readouterr().err


FLAG_VERSIONS = [
    *((Engine.VLLM, version) for version in ("0.20.2", "0.23.0", "0.27.1", "0.33.0")),
    *((Engine.SGLANG, version) for version in ("0.5.9", "0.5.13.post1", "0.5.16", "0.5.23")),
    (Engine.ATOM, "0.1.4"),
]


@pytest.mark.parametrize(("engine", "version"), FLAG_VERSIONS)
def test_what_is_measured_is_what_is_emitted(engine: Engine, version: str) -> None:
    """The emitter's own reader finds in the harvester's command line the levers that the spec asks for.

    The harvester is alone in the engine's image and has its own small table; this holds it to the emitter's.
    """
    layout = {"tensorParallel": 8, "expertParallel": 8}
    signature = {"weightDtype": "bf16", "kvDtype": "fp8", "moeBackend": "x"}
    wanted = {"layout.tensorParallel": 8, "layout.expertParallel": 8, "kvDtype": "fp8", "moeBackend": "x"}
    if engine is not Engine.VLLM:
        layout["attentionDataParallel"] = wanted["layout.attentionDataParallel"] = 8
    if engine is not Engine.ATOM:
        signature["attentionBackend"] = wanted["attentionBackend"] = "y"
    document = {
        "schema": render.SCHEMA,
        "engine": {"name": engine.value, "version": version},
        "model": {"name": "m", "path": "/models/m"},
        "accelerator": {"product": "MI355X"},
        "layout": layout,
        "signature": signature,
    }
    argv = launch.command(parse_spec(json.dumps(document)), port=8000)
    flags = flag_map(engine, version)
    prefix = len(flags.command)
    # `python` is the harvester's own in the image, so an engine that is a module is started by `python3`.
    assert [word.replace("python3", "python") for word in argv[:prefix]] == [
        word.replace("python3", "python") for word in flags.command
    ]
    assert f"{flags.port_flag}=8000" in argv
    assert parse_args(engine, version, argv[prefix:]) == {**wanted, "prefixCaching": False}


def test_the_keys_are_the_same() -> None:
    assert render.BESIDE_KEYS == (collectives.FILE, routing.TABLE_FILE)
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
