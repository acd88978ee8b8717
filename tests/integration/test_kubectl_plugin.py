"""The pages' cluster commands, and `kubectl inferasim …`, on the real API server as a reader would type them."""

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
from tests import builders, docs_blocks
from tests.integration.harness import ROOT, Cluster, Operator
from tests.page_rules import assert_page

PLANNING = "inferasim_operator.planning:compute_plan"
Shell = Callable[[str], "subprocess.CompletedProcess[str]"]


@pytest.fixture
def shell(cluster: Cluster, tmp_path: Path) -> Shell:
    """Runs a script in a checkout's place, with kubectl and ours on the PATH, and the test's namespace as context."""
    config = yaml.safe_load(cluster.plane.kubeconfig.read_text(encoding="utf-8"))
    for context in config["contexts"]:
        context["context"]["namespace"] = cluster.namespace
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(config))
    for name in ("examples", "charts"):
        (tmp_path / name).symlink_to(ROOT / name)
    kubectl = binaries.ensure(("kubectl",))["kubectl"]
    programs = os.pathsep.join((str(kubectl.parent), str(Path(sys.executable).parent), os.environ["PATH"]))

    def run(script: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            env=os.environ | {"KUBECONFIG": str(path), "PATH": programs},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=400,
            check=False,
        )

    return run


def test_the_pages_commands_and_the_plugin(
    cluster: Cluster, operator: Callable[..., Operator], shell: Shell, tmp_path: Path
) -> None:
    """Five minutes to a first answer, then what status, explain, report and logs say of it."""
    before = shell("kubectl inferasim status")
    assert (before.returncode, before.stdout) == (0, "")
    assert "nothing found" in before.stderr
    operator(PLANNING).start()
    for block in docs_blocks.commands("cluster"):
        found = shell(block.text)
        assert found.returncode == 0, f"{block.name}: {found.stdout}{found.stderr}"

    page = (tmp_path / "chat.html").read_text(encoding="utf-8")
    assert assert_page(page).text("h1") == ["Qwen3.6-35B-A3B: serving plan chat"]
    explained = json.loads(shell("kubectl inferasim explain chat -o json").stdout)
    chosen = {tier["tier"]: tier["chosen"] for tier in explained["tiers"]}
    for choice in cluster.get("servingplan", "chat")["status"]["selected"]:
        assert chosen[choice["tier"]]["tokensPerSecondPerGpu"] == choice["predicted"]["tokensPerSecondPerGpu"]

    cluster.apply(builders.serving_plan("wrong", model={"name": "Lama-8B"}))
    cluster.wait("servingplan", "wrong", "Stalled")
    told = shell("kubectl inferasim status -o json")
    assert told.returncode == 1, "one is stalled"
    states = {(item["kind"], item["name"]): item for item in json.loads(told.stdout)["objects"]}
    assert states["ServingPlan", "chat"]["ready"] == states["DeploymentMix", "chat"]["ready"] == "True"
    assert states["ServingPlan", "wrong"]["reason"] == "UnknownModel"
    assert ("AnchorHarvest", "llama-tp2") in states

    logs = shell("kubectl inferasim harvest logs llama-tp2")  # no kubelet here: the pod never starts
    assert logs.returncode == 1
    assert "has not started" in logs.stderr or "has no pod" in logs.stderr
    missing = shell("kubectl inferasim explain nobody")
    assert missing.returncode == 2
    assert f"no ServingPlan `nobody` in namespace `{cluster.namespace}`" in missing.stderr
    assert shell("kubectl inferasim status --context no-such").returncode == 2
