"""`kubectl inferasim …` on the real API server: kubectl finds the plugin, which reads the context as kubectl does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from e2e import binaries
from tests import builders
from tests.integration.harness import ROOT, Cluster, Operator
from tests.page_rules import assert_page

PLANNING = "inferasim_operator.planning:compute_plan"
ANCHOR = ROOT / "examples" / "anchors" / "llama-3.1-8b-sglang-mi355x-tp1.json"


@pytest.fixture
def plugin(cluster: Cluster, tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs `kubectl inferasim …` with a context whose namespace is the test's."""
    config = yaml.safe_load(cluster.plane.kubeconfig.read_text(encoding="utf-8"))
    for context in config["contexts"]:
        context["context"]["namespace"] = cluster.namespace
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(config))
    kubectl = binaries.ensure(("kubectl",))["kubectl"]
    found = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(kubectl), "inferasim", *arguments],
            env=os.environ | {"KUBECONFIG": str(path), "PATH": found},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            cwd=tmp_path,
        )

    return run


def test_status_explain_report_and_logs(
    cluster: Cluster,
    operator: Callable[..., Operator],
    plugin: Callable[..., subprocess.CompletedProcess[str]],
    tmp_path: Path,
) -> None:
    before = plugin("status")
    assert (before.returncode, before.stdout) == (0, "")
    assert "nothing found" in before.stderr

    op = operator(PLANNING)
    op.start()
    cluster.kubectl("create", "configmap", ANCHOR.stem, f"--from-file=anchor.json={ANCHOR}")
    cluster.kubectl("label", "configmap", ANCHOR.stem, "inferasim.dev/anchor=true")
    small = {"accelerator": "MI355X", "nodes": 1, "gpuBudget": 2}
    wrong = builders.serving_plan("wrong", model={"name": "Lama-8B"})
    cluster.apply(builders.serving_plan("chat", cluster=small), wrong, builders.anchor_harvest("tp4"))
    cluster.wait("servingplan", "chat", "Ready", timeout_s=240)
    cluster.wait("servingplan", "wrong", "Stalled")
    cluster.wait_for("anchorharvest", "tp4", ".status.run.outcome", "Running")

    told = plugin("status", "-o", "json")
    assert told.returncode == 1, told.stderr
    found = {item["name"]: item for item in json.loads(told.stdout)["objects"]}
    assert set(found) == {"chat", "wrong", "tp4"}
    assert found["chat"]["ready"] == "True"
    assert found["wrong"]["reason"] == "UnknownModel"
    assert plugin("status", "sp/chat", "--context", "no-such").returncode == 2
    assert plugin("status", "sp/chat").returncode == 0

    explained = plugin("explain", "chat", "-o", "json")
    assert explained.returncode == 0, explained.stderr
    chosen = {tier["tier"]: tier["chosen"] for tier in json.loads(explained.stdout)["tiers"]}
    shown = {choice["tier"]: choice for choice in cluster.get("servingplan", "chat")["status"]["selected"]}
    for tier, choice in shown.items():
        assert chosen[tier]["tokensPerSecondPerGpu"] == choice["predicted"]["tokensPerSecondPerGpu"]

    reported = plugin("report", "chat")
    assert reported.returncode == 0, reported.stderr
    page = (tmp_path / "chat.html").read_text(encoding="utf-8")
    assert assert_page(page).text("h1") == ["Llama-3.1-8B: serving plan chat"]

    logs = plugin("harvest", "logs", "tp4")  # no kubelet here: the pod never starts
    assert logs.returncode == 1
    assert "has not started" in logs.stderr or "has no pod" in logs.stderr
    missing = plugin("explain", "nobody")
    assert missing.returncode == 2
    assert f"no ServingPlan `nobody` in namespace `{cluster.namespace}`" in missing.stderr
