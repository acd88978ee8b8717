"""The shipped examples through the operator with the real planning code: the same bytes as the command line's."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable

import yaml

from tests.conditions import assert_conditions
from tests.integration.harness import ROOT, Cluster, Operator

PLANNING = "inferasim_operator.planning:compute_plan"
EXAMPLES = ROOT / "examples"


def test_example_plan_equals_the_command_line(cluster: Cluster, operator: Callable[..., Operator]) -> None:
    """`kubectl apply` of the measured anchors and the example plan; a mistake of each kind beside it."""
    op = operator(PLANNING)
    op.start()
    for path in sorted((EXAMPLES / "anchors").glob("*.json")):
        cluster.kubectl("create", "configmap", path.stem, f"--from-file=anchor.json={path}")
        cluster.kubectl("label", "configmap", path.stem, "inferasim.dev/anchor=true")
    plan = yaml.safe_load((EXAMPLES / "plan.yaml").read_text(encoding="utf-8"))
    name = plan["metadata"]["name"]
    odd = {**plan, "metadata": {"name": "odd-heads"}, "spec": {**plan["spec"]}}
    odd["spec"]["engines"] = [{"name": "SGLang", "layouts": [{"tensorParallel": 3}]}]
    unknown = {**plan, "metadata": {"name": "unknown-model"}, "spec": {**plan["spec"], "model": {"name": "Lama-8B"}}}
    hard = {**plan, "metadata": {"name": "too-hard"}, "spec": {**plan["spec"]}}
    hard["spec"]["tiers"] = [{"name": "instant", "tokensPerSecondPerUser": 100_000}]
    cluster.apply(plan, odd, unknown, hard)

    live = cluster.wait("servingplan", name, "Ready", timeout_s=240)
    assert_conditions(live)
    kept = cluster.get("configmap", live["status"]["result"]["configMap"])["data"]["result.json"]
    command = [sys.executable, "-m", "inferasim_operator.cli.app", "plan", "-o", "json", "-q"]
    command += ["-f", str(EXAMPLES / "plan.yaml"), "-f", str(EXAMPLES / "anchors")]
    told = subprocess.run(command, capture_output=True, text=True, check=True, timeout=240).stdout
    assert kept == told
    shown = {choice["tier"]: choice for choice in live["status"]["selected"]}
    for choice in json.loads(told)["selected"]:
        assert shown[choice["tier"]]["predicted"] == choice["predicted"]
        # The status shows the whole configuration: nothing that planning says of it is pruned on the way (C05).
        assert shown[choice["tier"]]["configuration"] == choice["configuration"]

    for other, reason, fragment in (
        ("odd-heads", "BadLayout", "3"),
        ("unknown-model", "UnknownModel", "Lama-8B"),
        ("too-hard", "Infeasible", "instant"),
    ):
        live = cluster.wait("servingplan", other, "Stalled", timeout_s=240)
        assert_conditions(live)
        ready = next(c for c in live["status"]["conditions"] if c["type"] == "Ready")
        assert ready["reason"] == reason, ready
        assert fragment in ready["message"]
    nearest = live["status"]["binding"][0]["nearest"]["configuration"]
    assert nearest["engine"] == "SGLang"
