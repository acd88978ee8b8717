"""The health checks for Argo CD and Flux, run by the interpreters that those two use (case D06)."""

from __future__ import annotations

import itertools
import json
import subprocess
from typing import Any

import pytest
import yaml

from e2e import binaries
from tests.integration.chart import CHART

GITOPS = CHART / "gitops"
KINDS = ("AnchorHarvest", "DeploymentMix", "ServingPlan")
Object = dict[str, Any]


def condition(type_: str, status: str, reason: str, *, generation: int = 2) -> Object:
    message = f"{reason} it is"
    return {"type": type_, "status": status, "reason": reason, "message": message, "observedGeneration": generation}


def an_object(*conditions: Object, observed: int | None = 2, **metadata: Any) -> Object:
    """Generation 2; without conditions and `observed`, as it was created."""
    status: Object = {}
    if conditions:
        status["conditions"] = list(conditions)
    if observed is not None:
        status["observedGeneration"] = observed
    created = {
        "apiVersion": "inferasim.dev/v1alpha1",
        "kind": "ServingPlan",
        "metadata": {"name": "a", "generation": 2},
    }
    created["metadata"] |= metadata
    return created | ({"status": status} if status else {})


def judge(objects: list[Object]) -> list[Object]:
    """What both say of each object."""
    request = {
        "lua": (GITOPS / "argocd" / "health.lua").read_text(),
        "expressions": yaml.safe_load((GITOPS / "flux" / "expressions.yaml").read_text()),
        "objects": objects,
    }
    program = binaries.ensure(["health"])["health"]
    answer = subprocess.run([str(program)], input=json.dumps(request), capture_output=True, text=True, check=True)
    found: list[Object] = json.loads(answer.stdout)
    return found


READY = condition("Ready", "True", "PlanFound")
SEARCHING = (condition("Ready", "False", "Searching"), condition("Reconciling", "True", "Searching"))
INFEASIBLE = (condition("Ready", "False", "Infeasible"), condition("Stalled", "True", "Infeasible"))
CASES: dict[str, tuple[Object, str, str]] = {
    "created": (an_object(observed=None), "Progressing", "error"),
    "ready": (an_object(READY), "Healthy", "Current"),
    "searching": (an_object(*SEARCHING), "Progressing", "InProgress"),
    "infeasible": (an_object(*INFEASIBLE), "Degraded", "Failed"),
    "edited": (
        an_object(condition("Ready", "True", "PlanFound", generation=1), observed=1),
        "Progressing",
        "InProgress",
    ),
    "edited after a failure": (
        an_object(
            condition("Ready", "False", "Infeasible", generation=1),
            condition("Stalled", "True", "Infeasible", generation=1),
            observed=1,
        ),
        "Progressing",
        "InProgress",
    ),
    "suspended": (an_object(condition("Ready", "False", "Suspended")), "Suspended", "Current"),
    "retrying": (
        an_object(condition("Ready", "False", "GitFailed"), condition("Reconciling", "True", "GitFailed")),
        "Progressing",
        "InProgress",
    ),
    "prediction off": (
        an_object(READY, condition("PredictionWithinTolerance", "False", "TtftOff")),
        "Healthy",
        "Current",
    ),
    "unknown": (an_object(condition("Ready", "Unknown", "Waiting")), "Progressing", "InProgress"),
    "no conditions": (an_object(observed=2), "Progressing", "InProgress"),
}


def test_both_judge_as_written() -> None:
    found = judge([case[0] for case in CASES.values()])
    for name, (case, answer) in zip(CASES, zip(CASES.values(), found, strict=True), strict=True):
        assert answer["argocd"].get("status") == case[1], (name, answer)
        # Flux waits on as long as an expression cannot be evaluated, as on an object without a status.
        assert ("error" if answer.get("fluxError") else answer["flux"]) == case[2], (name, answer)


def test_a_failure_is_told() -> None:
    (stalled, off, deleted) = judge(
        [CASES["infeasible"][0], CASES["prediction off"][0], an_object(READY, deletionTimestamp="2026-01-01T00:00:00Z")]
    )
    assert stalled["argocd"]["message"] == "Infeasible: Infeasible it is"
    assert "TtftOff it is" in off["argocd"]["message"]
    assert deleted["argocd"]["status"] == "Progressing"


def test_the_two_agree_on_every_combination() -> None:
    """Healthy is current, degraded is failed, suspended is as asked for; everything else goes on."""
    objects = []
    for ready, reason, other, observed in itertools.product(
        ("True", "False", "Unknown", None), ("Found", "Suspended"), ("Reconciling", "Stalled", None), (1, 2)
    ):
        if ready == "True" and (other or reason == "Suspended"):
            continue  # what the condition checker refuses
        given = [condition("Ready", ready, reason, generation=observed)] if ready else []
        given += [condition(other, "True", reason, generation=observed)] if other else []
        objects.append(an_object(*given, observed=observed))
    same = {"Healthy": "Current", "Degraded": "Failed", "Suspended": "Current", "Progressing": "InProgress"}
    for given, answer in zip(objects, judge(objects), strict=True):
        assert answer["flux"] == same[answer["argocd"]["status"]], (given, answer)


@pytest.mark.parametrize("kind", KINDS)
def test_both_configurations_name_every_kind(kind: str) -> None:
    settings = yaml.safe_load((GITOPS / "argocd" / "argocd-cm.yaml").read_text())["data"]
    script = (GITOPS / "argocd" / "health.lua").read_text()
    assert settings[f"resource.customizations.health.inferasim.dev_{kind}"] == script
    checks = yaml.safe_load((GITOPS / "flux" / "health-checks.yaml").read_text())["spec"]["healthCheckExprs"]
    assert {"apiVersion": "inferasim.dev/v1alpha1", "kind": kind} in [
        {key: check[key] for key in ("apiVersion", "kind")} for check in checks
    ]
