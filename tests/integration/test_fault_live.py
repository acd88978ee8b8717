"""Secrets that are rotated and a namespace that is deleted under an operator at work (C02, C04, D02)."""

from __future__ import annotations

import base64
import json
import pathlib
import subprocess
import threading
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
import yaml

from e2e import controlplane
from tests import builders, git_server
from tests.conditions import assert_conditions
from tests.integration import chart, stand_in_planning
from tests.integration.harness import ROOT, Cluster, Object, Operator, until
from tests.integration.recording import Recorder, seconds
from tests.integration.test_mix_operator import planned_mix

MakeOperator = Callable[..., Operator]
OLD, NEW = "0ld-key-of-the-test", "n3w-key-of-the-test"
QUIET_S = 20.0


def _secret(name: str, **values: str) -> Object:
    data = {key.replace("_", "."): base64.b64encode(text.encode()).decode() for key, text in values.items()}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "data": data}


def _assert_untold(cluster: Cluster, op: Operator) -> None:
    """Neither key is anywhere but in the Secret, and the process never ended."""
    assert op.process is not None
    assert op.process.poll() is None
    assert "Traceback" not in op.text
    kept = json.dumps([cluster.list(kind) for kind in ("inferasim", "configmaps", "events", "jobs")])
    for key in (OLD, NEW):
        assert key not in op.text
        assert key not in kept
        assert base64.b64encode(key.encode()).decode() not in kept


def test_a_git_token_rotated_under_a_live_operator(
    cluster: Cluster, operator: MakeOperator, certificate: pathlib.Path, tmp_path: pathlib.Path, record: Recorder
) -> None:
    """The server takes only the new token from now on; the Secret gets it later: the delivery goes on by itself."""
    bare = git_server.repository(tmp_path)

    class Remote(git_server.Backend):
        root, token = str(tmp_path), OLD

    def secret(token: str) -> Object:
        return _secret("git", username=git_server.USER, token=token, ca_crt=git_server.authority(certificate))

    def head() -> str:
        answer = subprocess.run(["git", "rev-parse", "main"], cwd=bare, capture_output=True, text=True, check=True)
        return answer.stdout.strip()

    for port in git_server.served(Remote, certificate):
        git = {"url": f"https://127.0.0.1:{port}/fleet.git", "branch": "main", "path": "c", "secret": {"name": "git"}}
        mix = planned_mix(cluster, delivery={"type": "Git", "git": git})
        op = operator(lease_s=120)
        op.start()
        cluster.apply(secret(OLD), builders.anchor_config_map("anchor-a"), builders.serving_plan(), mix)
        first = cluster.wait("deploymentmix", "chat", "Ready")["status"]["delivered"]["commit"]
        assert head() == first
        Remote.token = NEW
        mix["spec"]["serving"] = {**mix["spec"]["serving"], "maxBatchedTokens": 8192}
        cluster.apply(mix)
        cluster.wait_for("deploymentmix", "chat", '.status.conditions[?(@.type=="Delivered")].reason', "GitFailed")
        cluster.apply(secret(NEW))
        took_s = seconds(lambda: cluster.wait("deploymentmix", "chat", "Ready"))
        live = cluster.get("deploymentmix", "chat")
        assert_conditions(live)
        assert head() == live["status"]["delivered"]["commit"] != first
        _assert_untold(cluster, op)
    record.row(
        "the token of a Git remote is rotated under a live operator, the Secret later",
        outcome="`Delivered=False` `GitFailed` meanwhile; the Secret is read again with each attempt, no restart",
        measured=f"delivered {took_s:.1f} s after the Secret has it",
    )


def test_a_language_models_key_rotated_under_a_live_operator(
    cluster: Cluster, operator: MakeOperator, record: Recorder
) -> None:
    """A key that comes late is found without an edit; a rotated one changes no answer, and the next run uses it."""
    agent = {"url": "http://127.0.0.1:9/v1", "model": "m", "secret": {"name": "llm", "key": "apiKey"}}
    plan = builders.serving_plan(search={"method": "Agent", "agent": agent})
    op = operator("stand_in_planning:compute_by_key", lease_s=120)
    op.start()
    cluster.apply(builders.anchor_config_map("anchor-a"), plan)
    cluster.wait("servingplan", "plan", "Stalled")
    cluster.apply(_secret("llm", apiKey=OLD))
    took_s = seconds(lambda: cluster.wait("servingplan", "plan", "Ready"))

    def mark() -> int:
        (chosen,) = cluster.get("servingplan", "plan")["status"]["selected"]
        return int(chosen["predicted"]["tokensPerSecondPerGpu"])

    assert mark() == stand_in_planning.key_mark(OLD)
    op.until_settled("ServingPlan")
    writes = len(cluster.operator_writes())
    cluster.apply(_secret("llm", apiKey=NEW))
    cluster.apply(builders.anchor_harvest(suspend=True))
    cluster.wait_for("anchorharvest", "harvest", ".status.observedGeneration", "1")  # the operator goes on meanwhile
    assert not [event for event in cluster.operator_writes()[writes:] if "servingplans" in event.uri]
    cluster.kubectl("patch", "servingplan", "plan", "--type=merge", "-p", '{"spec":{"rerun":"with-the-new-key"}}')
    cluster.wait_for("servingplan", "plan", ".status.observedGeneration", "2")
    cluster.wait("servingplan", "plan", "Ready")
    assert mark() == stand_in_planning.key_mark(NEW)
    _assert_untold(cluster, op)
    record.row(
        "the key of a language model comes late, then is rotated under a live operator",
        outcome="`Stalled` until it is there; an answer stays as it is, the next run uses the new key; no restart",
        measured=f"ready {took_s:.1f} s after the Secret is made",
    )


@pytest.fixture
def plane() -> Iterator[controlplane.ControlPlane]:
    """A control plane of the test's own, for an operator of all its namespaces."""
    with controlplane.ControlPlane(audit=True) as own:
        own.kubectl("apply", "--server-side", "-f", str(ROOT / "crds"))
        own.kubectl("wait", "--for=condition=Established", "--timeout=60s", "crd", "--all")
        yield own


def test_a_namespace_deleted_under_a_live_operator(plane: controlplane.ControlPlane, record: Recorder) -> None:
    """Two finalizers of others hold it: nothing is made in it again, and the operator is quiet, healthy and at work."""
    for name in ("operators", "doomed", "other"):
        plane.kubectl("create", "namespace", name)
    objects = chart.render({"crds": {"install": False}}, namespace="operators")
    plane.kubectl("apply", "--server-side", "-f", "-", input=yaml.safe_dump_all(objects))
    op, doomed, other = chart.ChartOperator(plane, objects), Cluster(plane, "doomed"), Cluster(plane, "other")
    op.start()
    try:
        held: dict[str, Any] = {"finalizers": ["example.com/held"]}
        plans = [builders.serving_plan(f"plan-{n}", load={"concurrencies": [n]}) for n in range(1, 21)]
        plans[0]["metadata"] |= held
        mix = chart.mix(planRef={"name": "plan-1"}, delivery={"type": "Apply"})
        stranger = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "stranger", **held}}
        doomed.apply(builders.anchor_config_map("anchor-a"), *plans, builders.anchor_harvest(), mix, stranger)
        doomed.kubectl("wait", "servingplan,deploymentmix", "--all", "--for=condition=Ready", "--timeout=90s")
        until(lambda: bool(doomed.list("jobs")), "the Job")

        def writes() -> list[Any]:
            found = [event for event in plane.audit_events() if event.user == op.user and event.is_write]
            return [event for event in found if event.namespace == "doomed" and "dryRun" not in event.uri]

        before, begins = len(writes()), len(op.text)
        plane.kubectl("delete", "namespace", "doomed", "--wait=false")

        def is_held() -> bool:
            left = doomed.list("inferasim,configmaps,jobs,deployments")
            return {item["metadata"]["name"] for item in left} == {"plan-1", "stranger"}

        emptied_s = seconds(lambda: until(is_held, "only what is held is left"))
        emptying = writes()[before:]
        threading.Event().wait(QUIET_S)
        quiet = writes()[before + len(emptying) :]
        assert [event.uri for event in emptying + quiet if event.verb == "create" and event.code == 201] == []
        assert len(emptying) / max(emptied_s, 1.0) < 10.0, "no storm while it empties"
        assert len(quiet) / QUIET_S < 1.0, [event.uri for event in quiet]
        assert op.text[begins:].count("\n") < 200
        assert "Traceback" not in op.text
        assert op.health() == (200, "ok\n")
        other.apply(builders.anchor_config_map("anchor-a"), builders.serving_plan())
        other.wait("servingplan", "plan", "Ready")
        for kind, name in (("servingplan", "plan-1"), ("configmap", "stranger")):
            doomed.kubectl("patch", kind, name, "--type=merge", "-p", '{"metadata":{"finalizers":null}}')
        until(lambda: _is_gone(plane, "doomed"), "the namespace is gone")
        until(lambda: op.metric("inferasim_objects") == 1, "its workers are gone")
    finally:
        op.end()
    record.row(
        "namespace deleted under a live operator, held by finalizers of others",
        outcome="nothing is made in it again; no storm of errors, others are served meanwhile",
        measured=f"{len(emptying)} writes for 22 objects in the {emptied_s:.0f} s in which it empties, "
        f"{len(quiet)} in {QUIET_S:.0f} s while it is held",
    )


def _is_gone(plane: controlplane.ControlPlane, namespace: str) -> bool:
    with plane.http() as client:
        return client.get(f"/api/v1/namespaces/{namespace}").status_code == httpx.codes.NOT_FOUND
