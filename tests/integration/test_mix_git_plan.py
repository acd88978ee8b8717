"""A mix that names a plan and delivers to a repository: real API server, real bare repository."""

from __future__ import annotations

import json
import pathlib
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import pytest

from inferasim_operator.delivery.background import Deliveries
from inferasim_operator.delivery.git import deliver
from inferasim_operator.engine import client as clients
from inferasim_operator.engine.actions import ObjectKey
from inferasim_operator.engine.clock import Clock
from inferasim_operator.engine.kind import Context
from inferasim_operator.engine.labels import MANAGER
from inferasim_operator.engine.reconcile import Reconciler
from inferasim_operator.kinds.deploymentmix import observe
from inferasim_operator.kinds.deploymentmix.handlers import KIND
from tests.integration.harness import Cluster

PATIENCE_S = 30.0


@pytest.fixture
def repository(tmp_path: pathlib.Path) -> pathlib.Path:
    bare = tmp_path / "fleet.git"
    subprocess.run(["git", "init", "--quiet", "--bare", "--initial-branch", "main", str(bare)], check=True)
    return bare


@pytest.fixture
def local(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Deliveries of this test, which may go to a folder."""
    made = Deliveries(lambda request: deliver(request, allow_local=True))
    monkeypatch.setattr(observe, "deliveries", lambda: made)
    yield
    made.close()


def plan_document(*, generation: int, ready: bool) -> dict[str, Any]:
    configuration = {
        "engine": "SGLang",
        "engineVersion": "0.5.16",
        "image": "lmsysorg/sglang:v0.5.16-rocm720-mi35x",
        "accelerator": "MI355X",
        "layout": {"tensorParallel": 1},
        "replicas": 8,
        "concurrency": 64,
    }
    predicted = {"ttftMilliseconds": 100, "tpotMicroseconds": 9000, "tokensPerSecondPerGpu": 700}
    selected = {"tier": "bulk", "configuration": configuration, "predicted": predicted, "source": {"mode": "Anchored"}}
    condition = {
        "type": "Ready",
        "status": "True" if ready else "False",
        "reason": "PlanFound" if ready else "Infeasible",
        "message": "said",
        "lastTransitionTime": "2026-11-30T12:00:00Z",
        "observedGeneration": generation,
    }
    stalled = [] if ready else [{**condition, "type": "Stalled", "status": "True"}]
    return {"conditions": [condition, *stalled], "selected": [selected] if ready else []}


@pytest.mark.usefixtures("local")
def test_a_plan_becomes_one_commit(cluster: Cluster, repository: pathlib.Path) -> None:
    client = clients.Client.connect(manager=MANAGER, kubeconfig=str(cluster.plane.kubeconfig))
    reconciler = Reconciler(KIND, Context(client), Clock())
    key = ObjectKey(cluster.namespace, "chat")

    def condition(name: str) -> dict[str, Any]:
        live = cluster.get("deploymentmix", "chat")
        found: dict[str, Any] = {c["type"]: c for c in live["status"]["conditions"]}[name]
        return found

    def answer(**state: bool) -> None:
        generation = cluster.get("servingplan", "p")["metadata"]["generation"]
        status = {"status": plan_document(generation=generation, **state)}
        cluster.kubectl("patch", "servingplan", "p", "--subresource=status", "--type=merge", "-p", json.dumps(status))

    mix = {
        "apiVersion": "inferasim.dev/v1alpha1",
        "kind": "DeploymentMix",
        "metadata": {"name": "chat"},
        "spec": {
            "planRef": {"name": "p"},
            "format": "SGLang",
            "model": {"source": {"hub": {"id": "Qwen/Qwen3-14B"}}},
            "serving": {
                "kvDtype": "bf16",
                "memoryPermille": 900,
                "maxBatchedTokens": 16384,
                "prefixCaching": "Disabled",
            },
            "delivery": {"type": "Git", "git": {"url": f"file://{repository}", "branch": "main", "path": "fleet/chat"}},
        },
    }
    cluster.apply(mix)
    reconciler.run(key)
    assert condition("Stalled")["reason"] == "PlanNotFound"
    plan = {
        "model": {"name": "Qwen3-14B"},
        "cluster": {"accelerator": "MI355X", "nodes": 1},
        "engines": [{"name": "SGLang"}],
        "workload": {"fixed": {"promptTokens": 1000, "outputTokens": 1000}},
        "load": {"concurrencies": [64]},
    }
    cluster.apply(
        {"apiVersion": "inferasim.dev/v1alpha1", "kind": "ServingPlan", "metadata": {"name": "p"}, "spec": plan}
    )
    reconciler.run(key)
    assert condition("Ready")["reason"] == "PlanNotReady"
    answer(ready=False)
    reconciler.run(key)
    assert condition("Stalled")["reason"] == "PlanHasNoAnswer"
    assert [c for c in cluster.list("configmaps") if c["metadata"]["name"].startswith("chat")] == []

    answer(ready=True)
    deadline = time.monotonic() + PATIENCE_S
    while condition("Ready")["status"] != "True":
        assert time.monotonic() < deadline, cluster.get("deploymentmix", "chat")["status"]
        reconciler.run(key)
    for _ in range(50):
        assert not reconciler.run(key).written_version
    log = subprocess.run(
        ["git", "log", "--format=%H %B", "main"], cwd=repository, capture_output=True, text=True, check=True
    )
    status = cluster.get("deploymentmix", "chat")["status"]
    assert log.stdout.startswith(status["delivered"]["commit"])
    assert log.stdout.count(f"Deploy {cluster.namespace}/chat") == 1
    assert status["manifests"]["digest"] in log.stdout
