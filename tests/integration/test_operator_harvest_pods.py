"""Pods of a harvest on the real API server: what each engine's Job asks for, and a pod that is lost twice.

No kubelet runs here, so the test is one: it starts the harvester as the pod's container would be, with the pod's own
service account, and says of the pod what a kubelet or an eviction says.
"""

from __future__ import annotations

import base64
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from inferasim_harvester.spec import parse_spec
from inferasim_operator.api.v1alpha1.anchorharvest import AnchorHarvest
from inferasim_operator.kinds.anchorharvest import checks, render
from inferasim_operator.kinds.anchorharvest.observe import spec_digest
from tests import builders
from tests.conditions import assert_conditions
from tests.integration.harness import Cluster, Object, Operator, until

MakeOperator = Callable[..., Operator]
ENGINE = """#!{python}
# Stands where the engine's command would; gone with the harvester that started it, as in a pod.
import asyncio, os, sys
from inferasim_harvester.emulator.law import StepLaw
from inferasim_harvester.emulator.server import Emulator
port = int(next(a.split("=")[1] for a in sys.argv if a.startswith("--port=")))
parent = os.getppid()
async def serve():
    step_s = float(os.environ["EMULATED_STEP_S"])
    await Emulator(model="Llama-3.1-8B", law=StepLaw(decode_fixed_s=step_s, prefill_fixed_s=4e-3)).start(port=port)
    while os.getppid() == parent:
        await asyncio.sleep(0.05)
asyncio.run(serve())
"""
HARVESTER = """
import pathlib, sys
from inferasim_harvester import __main__ as command
from inferasim_harvester.configmap import ConfigMap
within = ConfigMap.in_cluster
command.ConfigMap.in_cluster = lambda name: within(name, pathlib.Path(sys.argv[1]))
sys.exit(command.main(sys.argv[2:]))
"""
"""The command, with the service account's folder elsewhere."""
SWEEPS = {
    "decodeBatches": [1, 2, 4],
    "decodePromptLengthsTokens": [64],
    "prefillLengthsTokens": [64, 128],
    "packedPrefillProbe": "Disabled",
}
POINTS = {"prefill/64", "prefill/128", "decode/64/1", "decode/64/2", "decode/64/4", "drift"}
JOBS = [
    ("VLLM", "0.33.0", {"tensorParallel": 8}, 8),
    ("VLLM", "0.33.0", {"tensorParallel": 2, "dataParallel": 4, "expertParallel": 8}, 8),
    ("SGLang", "0.5.16", {"tensorParallel": 4, "attentionDataParallel": 4}, 4),
    ("ATOM", "0.1.4", {"tensorParallel": 8, "expertParallel": 8}, 8),
    ("ATOM", "0.1.4", {}, 1),
]


def test_the_job_of_each_engine_passes_a_strict_dry_run(cluster: Cluster) -> None:
    """Everything that a harvest makes, as the API server sees it: exactly the GPUs of the layout, requests = limits."""
    manifests: list[Object] = []
    for index, (engine, version, layout, _) in enumerate(JOBS):
        given = builders.anchor_harvest(
            f"h{index}",
            cluster.namespace,
            engine={"name": engine, "version": version, "image": "example.test/e:1"},
            layout=layout or None,
            sweeps={"collectives": "Enabled"},
        )
        live = builders.live(given, uid="00000000-0000-0000-0000-000000000001")
        harvest = AnchorHarvest.model_validate(live)
        parse_spec(json.dumps(render.harvester_spec(harvest)))  # and the harvester takes it
        manifests += render.run_objects(
            live,
            harvest,
            spec_digest(harvest),
            gpus_count=checks.gpus_count(harvest.spec),
            card=checks.accelerator_card(harvest.spec),
        )
    text = yaml.safe_dump_all(manifests)
    answer = cluster.kubectl("create", "--dry-run=server", "--validate=strict", "-o", "yaml", "-f", "-", stdin=text)
    asked = [
        item["spec"]["template"]["spec"]["containers"][0]["resources"]
        for item in yaml.safe_load_all(answer)
        if item["kind"] == "Job"
    ]
    assert asked == [{"limits": {"amd.com/gpu": str(n)}, "requests": {"amd.com/gpu": str(n)}} for *_, n in JOBS]


def test_a_pod_that_is_lost_twice_measures_no_point_twice(
    cluster: Cluster, operator: MakeOperator, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Evicted in mid-sweep: the Job makes another pod, which takes the points from the ConfigMap and goes on."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "vllm").write_text(ENGINE.format(python=sys.executable))
    (folder / "vllm").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    operator().start()
    cluster.apply(
        builders.anchor_harvest(
            engine={"name": "VLLM", "version": "0.33.0", "image": "example.test/vllm:0.33.0"},
            model={"name": "Llama-3.1-8B", "source": {"hub": {"id": "meta-llama/Llama-3.1-8B"}}},
            signature={"weightDtype": "bf16"},
            layout=None,
            sweeps=SWEEPS,
        )
    )
    until(lambda: bool(cluster.list("jobs")), "the Job")
    (job,) = cluster.list("jobs")
    name = job["metadata"]["name"]
    progress = f"{name}-progress"

    kept: dict[str, Any] = {}
    pods: list[str] = []
    for goal in (1, 3):
        pods.append(_pod(cluster, name, but=pods))
        process = _container(cluster, job, tmp_path / pods[-1], step_s=0.03)  # a decode point takes six seconds
        until(lambda goal=goal: len(_points(cluster, progress)) >= goal, f"{goal} points")  # type: ignore[misc]
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=30)
        now = _points(cluster, progress)
        assert {point: now[point] for point in kept} == kept
        kept = now
        assert len(kept) < len(POINTS)
        _end(
            cluster,
            pods[-1],
            "Failed",
            conditions=[{"type": "DisruptionTarget", "status": "True", "reason": "Evicted"}],
        )

    pods.append(_pod(cluster, name, but=pods))
    process = _container(cluster, job, tmp_path / pods[-1], step_s=0.002)
    assert process.wait(timeout=120) == 0, (tmp_path / pods[-1] / "log").read_text()
    _end(cluster, pods[-1], "Succeeded")
    # Three engines of two speeds: the checks refuse such an anchor, and rightly. Here it counts that it was finished.
    live = cluster.wait("anchorharvest", "harvest", "Measured")
    assert_conditions(live)
    done = _points(cluster, progress)
    assert set(done) >= POINTS
    assert {point: done[point] for point in kept} == kept, "no point was measured again"
    assert live["status"]["progress"]["points"] == f"{len(POINTS)}/{len(POINTS)}"
    assert [found["metadata"]["name"] for found in cluster.list("jobs")] == [name], "one Job, three pods"


def _pod(cluster: Cluster, job: str, *, but: list[str]) -> str:
    """The Job's present pod, made by the real Job controller."""

    def present() -> list[str]:
        found = cluster.list("pods", "-l", f"batch.kubernetes.io/job-name={job}")
        return [pod["metadata"]["name"] for pod in found if pod["metadata"]["name"] not in but]

    until(lambda: bool(present()), "the Job controller makes a pod")
    return present()[0]


def _container(cluster: Cluster, job: Object, out: pathlib.Path, *, step_s: float) -> subprocess.Popen[bytes]:
    """What a kubelet would start: the container's own arguments, with its files and its account in a folder."""
    out.mkdir()
    spec = job["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    spec_map = next(volume["configMap"]["name"] for volume in spec["volumes"] if volume["name"] == "inferasim-spec")
    (out / render.SPEC_KEY).write_text(cluster.get("configmap", spec_map)["data"][render.SPEC_KEY])
    config = yaml.safe_load(
        cluster.plane.kubeconfig_for(spec["serviceAccountName"], namespace=cluster.namespace).read_text()
    )
    account = out / "account"
    account.mkdir()
    (account / "token").write_text(config["users"][0]["user"]["token"])
    authority = config["clusters"][0]["cluster"]["certificate-authority-data"]
    (account / "ca.crt").write_bytes(base64.b64decode(authority))
    config_map = next(word for word in container["args"] if word.startswith("--config-map="))
    arguments = ["run", f"--spec={out / render.SPEC_KEY}", f"--out={out / 'work'}", config_map, "--max-repeats=3"]
    with socket.create_server(("127.0.0.1", 0)) as held:
        arguments.append(f"--port={held.getsockname()[1]}")
    server = urlsplit(cluster.plane.server)
    environment = {
        **os.environ,
        "KUBERNETES_SERVICE_HOST": str(server.hostname),
        "KUBERNETES_SERVICE_PORT": str(server.port),
        "EMULATED_STEP_S": str(step_s),
    }
    with (out / "log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-c", HARVESTER, str(account), *arguments], stdout=log, stderr=log, env=environment
        )


def _points(cluster: Cluster, progress: str) -> dict[str, Any]:
    """The points that the ConfigMap holds."""
    text = (cluster.get("configmap", progress).get("data") or {}).get("points.json", '{"points": {}}')
    points: dict[str, Any] = json.loads(text)["points"]
    return points


def _end(cluster: Cluster, pod: str, phase: str, conditions: list[Object] | None = None) -> None:
    """What is said of a pod that has ended."""
    status = {"status": {"phase": phase, "conditions": conditions or []}}
    cluster.kubectl("patch", "pod", pod, "--subresource=status", "--type=merge", "-p", json.dumps(status))
