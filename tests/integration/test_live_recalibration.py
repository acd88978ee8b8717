"""Drift on the real API server: a derived anchor with its evidence, the plan that is told to take it, no restart."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from inferasim_operator.kinds.deploymentmix.live_anchor import DERIVED, DERIVED_FROM, base_label
from simcore.anchors.builtin import builtin_anchor
from simcore.anchors.schema import parse_anchor
from simcore.units import MICRO
from tests.integration import live_pages
from tests.integration.harness import Cluster, Operator, until
from tests.integration.test_live import start_pod

PLANNING = "inferasim_operator.planning:compute_plan"
ANCHOR = "llama-3.1-8b-sglang-mi355x-tp1"
WINDOW_S = 40
PLAN = {
    "apiVersion": "inferasim.dev/v1alpha1",
    "kind": "ServingPlan",
    "metadata": {"name": "chat"},
    "spec": {
        "model": {"name": "Llama-3.1-8B"},
        "cluster": {"accelerator": "MI355X", "nodes": 1, "gpuBudget": 1},
        "engines": [{"name": "SGLang", "layouts": [{"tensorParallel": 1}]}],
        "workload": {
            "fixed": {
                "promptTokens": int(live_pages.PROMPT_TOKENS),
                "outputTokens": int(live_pages.OUTPUT_TOKENS),
            }
        },
        "load": {"concurrencies": [int(live_pages.IN_FLIGHT)]},
        "tiers": [{"name": "bulk"}],
    },
}
MIX = {
    "apiVersion": "inferasim.dev/v1alpha1",
    "kind": "DeploymentMix",
    "metadata": {"name": "chat"},
    "spec": {
        "planRef": {"name": "chat"},
        "format": "SGLang",
        "model": {"source": {"claim": {"claimName": "weights"}}},
        "delivery": {"type": "Apply"},
        "observation": {"windowSeconds": WINDOW_S},
        "tolerance": {"tpotPermille": 200, "recalibration": "Enabled"},
    },
}


@pytest.mark.slow
def test_drift_ends_in_an_anchor_that_a_plan_must_be_told_to_take(
    cluster: Cluster, operator: Callable[..., Operator]
) -> None:
    base = builtin_anchor(ANCHOR)
    cluster.apply(
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": ANCHOR, "labels": {"inferasim.dev/anchor": "true"}},
            "data": {"anchor.json": base.to_json()},
        },
        PLAN,
        MIX,
    )
    op = operator(PLANNING)
    op.start()
    before = cluster.wait("servingplan", "chat", "Ready", timeout_s=180)["status"]
    cluster.wait("deploymentmix", "chat", "Ready")
    deployed = cluster.get("deployment", "chat-bulk")
    with live_pages.Pages({"/metrics": live_pages.sglang}) as pages:
        start_pod(cluster, deployed["spec"]["template"], "chat-bulk-0", pages.port)

        def derived() -> list[dict[str, Any]]:
            return cluster.list("configmap", "-l", f"inferasim.dev/anchor={DERIVED}")

        until(lambda: bool(derived()), "a derived anchor", timeout_s=300)
        (kept,) = derived()
        anchor = parse_anchor(kept["data"]["anchor.json"], "derived")
        predicted_s = before["selected"][0]["predicted"]["tpotMicroseconds"] * MICRO
        factor = live_pages.TPOT_S / predicted_s
        assert factor > 1.2, "the page is out of tolerance"
        for scaled, measured in zip(anchor.decode[0].points, base.decode[0].points, strict=True):
            assert scaled.step_milliseconds / measured.step_milliseconds == pytest.approx(factor, rel=2e-3)
        assert anchor.prefill == base.prefill
        assert anchor.provenance.source == DERIVED
        assert base.digest() in " ".join(anchor.provenance.notes)
        assert kept["metadata"]["labels"][DERIVED_FROM] == base_label(base)
        path = "{.status.derivedAnchors[0]}"
        until(
            lambda: cluster.kubectl("get", "dmx", "chat", "-o", f"jsonpath={path}") == kept["metadata"]["name"],
            "the status names it",
        )

        # Nobody asked for it: the plan's answer and what runs are what they were.
        assert cluster.get("servingplan", "chat")["status"]["result"] == before["result"]
        assert cluster.get("deployment", "chat-bulk")["metadata"]["generation"] == 1

        # Let in, and asked for: the plan searches again by itself, and its prediction is what is observed.
        cluster.kubectl("label", "configmap", kept["metadata"]["name"], "inferasim.dev/anchor=true", "--overwrite")
        asked = {"spec": {"anchors": {"matchLabels": {"inferasim.dev/role": "derived-anchor"}}}}
        cluster.kubectl("patch", "servingplan", "chat", "--type=merge", "-p", json.dumps(asked))
        cluster.wait_for("servingplan", "chat", ".status.selected[0].source.anchor", kept["metadata"]["name"])
        live = cluster.get("servingplan", "chat")["status"]["selected"][0]
        assert live["predicted"]["tpotMicroseconds"] * MICRO == pytest.approx(live_pages.TPOT_S, rel=0.1)
        path = '.status.conditions[?(@.type=="PredictionWithinTolerance")].status'
        cluster.wait_for("deploymentmix", "chat", path, "True", timeout_s=180)
        after = cluster.get("deployment", "chat-bulk")
        assert after["metadata"]["generation"] == 1, "the deployment was never changed"
        assert yaml.safe_dump(after["spec"]) == yaml.safe_dump(deployed["spec"])
        assert len(derived()) == 0, "and no second anchor was made of the first"
