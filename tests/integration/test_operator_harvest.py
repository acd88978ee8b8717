"""AnchorHarvest on the real API server. No kubelet: tests write the pods' status, as a kubelet would."""

from __future__ import annotations

import base64
import json
import pathlib
import ssl
from collections.abc import Callable
from typing import Any

import httpx
import pytest
import yaml

from tests import builders
from tests.conditions import assert_conditions
from tests.integration.harness import Cluster, Object, Operator, until

MakeOperator = Callable[..., Operator]
READY_REASON = '.status.conditions[?(@.type=="Ready")].reason'


def test_harvest_runs_to_an_anchor_that_a_plan_takes(cluster: Cluster, operator: MakeOperator) -> None:
    """The Job is guarded, the harvester's own account may write its words and nothing else, a plan wakes on the end."""
    op = operator()
    op.start()
    harvest = builders.anchor_harvest(pod={"tolerations": [{"key": "gpu", "operator": "Exists"}], "queueName": "gpus"})
    harvest["metadata"]["labels"] = {"app.kubernetes.io/instance": "myapp"}
    cluster.apply(harvest, builders.serving_plan())
    job = _job(cluster, "harvest")
    assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "gpus"
    assert "app.kubernetes.io/instance" not in job["metadata"]["labels"]
    spec = job["spec"]["template"]["spec"]
    resources = spec["containers"][0]["resources"]
    assert resources["limits"] == resources["requests"] == {"amd.com/gpu": "4"}
    assert (job["spec"]["backoffLimit"], spec["activeDeadlineSeconds"]) == (0, 14400)
    assert [toleration["key"] for toleration in spec["tolerations"]] == ["gpu"]
    _add_pod(cluster, job)
    live = _until_reason(cluster, "harvest", "WaitingForNode")
    assert_conditions(live)
    # The plan lacks an anchor, and nobody needs to act: one is on its way.
    plan = cluster.wait_for("servingplan", "plan", READY_REASON, "WaitingForHarvest")
    assert_conditions(plan)

    progress = f"{job['metadata']['name']}-progress"
    account = cluster.plane.kubeconfig_for(spec["serviceAccountName"], namespace=cluster.namespace)
    _say(
        cluster,
        account,
        progress,
        "progress.json",
        {"phase": "Decode", "pointsDone": 12, "pointsTotal": 37, "etaSeconds": 90},
    )
    cluster.wait_for("anchorharvest", "harvest", ".status.progress.points", "12/37")
    assert "12/37" in cluster.kubectl("get", "ah", "harvest")
    with pytest.raises(httpx.HTTPStatusError, match="403"):
        _say(cluster, account, "kube-root-ca.crt", "ca.crt", {})
    before = cluster.versions()
    passes = int(op.metric("inferasim_reconciles_total", kind="AnchorHarvest", result="success"))
    op.until_passes("AnchorHarvest", passes + 1)
    assert cluster.versions() == before

    op.kill()  # the harvester ends while no operator looks
    _say(cluster, account, progress, "anchor.json", json.loads(builders.anchor().to_json()))
    op.start()
    live = cluster.wait("anchorharvest", "harvest", "Ready")
    assert_conditions(live)
    kept = cluster.get("configmap", live["status"]["anchorRef"]["configMap"])
    assert kept["immutable"] is True
    assert kept["metadata"]["labels"]["inferasim.dev/anchor"] == "true"
    plan = cluster.wait("servingplan", "plan", "Ready")
    assert plan["status"]["selected"][0]["source"]["anchor"] == kept["metadata"]["name"]

    # The Job is cleaned up: nothing runs again. An edit runs anew and keeps the old anchor.
    cluster.kubectl("delete", "job", job["metadata"]["name"])
    until(lambda: not cluster.list("jobs"), "the Job is gone")
    assert op.stop() == 0
    op.start()
    op.until_passes("AnchorHarvest", 1)
    assert cluster.list("jobs") == []
    cluster.kubectl("patch", "ah", "harvest", "--type=merge", "-p", '{"spec":{"rerun":"again"}}')
    second = _job(cluster, "harvest")
    assert second["metadata"]["name"] != job["metadata"]["name"]
    assert cluster.get("configmap", kept["metadata"]["name"])["metadata"]["uid"] == kept["metadata"]["uid"]
    assert not [event for event in cluster.operator_requests() if event.is_forbidden]


def test_failure_is_found_at_the_pod_and_kept(cluster: Cluster, operator: MakeOperator) -> None:
    """A container's end is in the condition with its last lines; an edit deletes a Job that still runs."""
    op = operator()
    op.start()
    cluster.apply(builders.anchor_harvest())
    job = _job(cluster, "harvest")
    pod = _add_pod(cluster, job)
    ended = {"exitCode": 1, "reason": "Error", "message": "loading weights\nHSA_STATUS_ERROR_OUT_OF_RESOURCES\n"}
    _set_pod(cluster, pod, {"phase": "Running", "containerStatuses": [_container({"terminated": ended})]})
    live = cluster.wait("anchorharvest", "harvest", "Stalled")
    assert_conditions(live)
    ready = next(c for c in live["status"]["conditions"] if c["type"] == "Ready")
    assert ready["reason"] == "ContainerFailed"
    assert ready["message"].endswith("exit code 1 (Error): loading weights | HSA_STATUS_ERROR_OUT_OF_RESOURCES")
    until(lambda: not cluster.list("jobs"), "the node is freed")
    passes = int(op.metric("inferasim_reconciles_total", kind="AnchorHarvest", result="success"))
    cluster.kubectl("annotate", "ah", "harvest", "note=wake")
    op.until_passes("AnchorHarvest", passes + 1)
    assert cluster.list("jobs") == []
    assert cluster.get("ah", "harvest")["status"]["run"]["outcome"] == "Failed"

    cluster.kubectl("patch", "ah", "harvest", "--type=merge", "-p", '{"spec":{"layout":{"tensorParallel":2}}}')
    second = _job(cluster, "harvest")
    cluster.kubectl("patch", "ah", "harvest", "--type=merge", "-p", '{"spec":{"layout":{"tensorParallel":1}}}')
    until(lambda: [j["metadata"]["name"] for j in cluster.list("jobs")] != [second["metadata"]["name"]], "a new Job")
    until(lambda: len(cluster.list("jobs")) == 1, "one Job")
    third = _job(cluster, "harvest")
    assert third["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"] == {"amd.com/gpu": "1"}


def test_suspend_and_mistakes(cluster: Cluster, operator: MakeOperator) -> None:
    """Suspending suspends the Job and resuming resumes it; mistakes make no Job; long names stay apart (D08)."""
    operator().start()
    cluster.apply(builders.anchor_harvest())
    job = _job(cluster, "harvest")["metadata"]["name"]
    cluster.kubectl("patch", "ah", "harvest", "--type=merge", "-p", '{"spec":{"suspend":true}}')
    cluster.wait_for("job", job, ".spec.suspend", "true")
    live = _until_reason(cluster, "harvest", "Suspended")
    assert_conditions(live)
    cluster.kubectl("patch", "ah", "harvest", "--type=merge", "-p", '{"spec":{"suspend":false}}')
    cluster.wait_for("job", job, ".spec.suspend", "false")

    cluster.apply(
        builders.anchor_harvest("too-wide", layout={"tensorParallel": 16}),
        builders.anchor_harvest("tolerant", pod={"tolerations": [{"key": "amd-gpu-unhealthy", "operator": "Exists"}]}),
        builders.anchor_harvest("unknown", accelerator={"product": "MI999X"}),
    )
    for name, reason in (
        ("too-wide", "TooManyGpus"),
        ("tolerant", "ForbiddenToleration"),
        ("unknown", "UnknownAccelerator"),
    ):
        assert_conditions(_until_reason(cluster, name, reason))

    stem = "a" * 100
    cluster.apply(builders.anchor_harvest(f"{stem}-x"), builders.anchor_harvest(f"{stem}-y"))
    until(lambda: len(cluster.list("jobs")) == 3, "three Jobs")
    names = {made["metadata"]["name"] for made in cluster.list("jobs")}
    assert len(names) == 3
    assert all(len(name) <= 63 for name in names)


def test_a_pod_that_a_quota_refuses_is_told(cluster: Cluster, operator: MakeOperator) -> None:
    """The Job is there, its pod never comes: `kubectl get ah` says which quota, and goes on when there is room."""
    operator().start()
    hard = {"hard": {"requests.amd.com/gpu": "2"}}
    cluster.apply({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "two-gpus"}, "spec": hard})
    counted = "requests.amd.com/gpu"
    until(lambda: counted in cluster.get("resourcequota", "two-gpus").get("status", {}).get("used", {}), "the quota")
    cluster.apply(builders.anchor_harvest())
    assert_conditions(_until_reason(cluster, "harvest", "PodRefused"))
    shown = cluster.kubectl("get", "ah", "harvest", "-o", "wide")
    assert "exceeded quota: two-gpus, requested: requests.amd.com/gpu=4" in shown
    cluster.kubectl("delete", "resourcequota", "two-gpus")
    _add_pod(cluster, _job(cluster, "harvest"))
    _until_reason(cluster, "harvest", "WaitingForNode")


def test_what_is_deleted_under_a_running_job_comes_back(cluster: Cluster, operator: MakeOperator) -> None:
    """Its ConfigMaps, its account and its right, and the Job itself; nothing but a rerun makes a finished one anew."""
    operator().start()
    cluster.apply(builders.anchor_harvest())
    job = _job(cluster, "harvest")
    name = job["metadata"]["name"]
    kinds = (("configmap", f"{name}-progress"), ("configmap", f"{name}-spec"), ("role", name), ("rolebinding", name),
             ("serviceaccount", name), ("job", name))  # fmt: skip
    for kind, made in kinds:
        uid = cluster.get(kind, made)["metadata"]["uid"]
        cluster.kubectl("delete", kind, made)
        until(lambda kind=kind, made=made, uid=uid: _uid(cluster, kind, made) not in ("", uid), f"{kind} {made}")  # type: ignore[misc]


def _uid(cluster: Cluster, kind: str, name: str) -> str:
    """Empty while there is none."""
    found = [item for item in cluster.list(kind) if item["metadata"]["name"] == name]
    return str(found[0]["metadata"]["uid"]) if found else ""


def _job(cluster: Cluster, harvest: str) -> Object:
    until(lambda: bool(cluster.list("jobs", "-l", f"inferasim.dev/owner-name={harvest}")), "the Job")
    return cluster.list("jobs", "-l", f"inferasim.dev/owner-name={harvest}")[0]


def _until_reason(cluster: Cluster, name: str, reason: str) -> Object:
    return cluster.wait_for("anchorharvest", name, READY_REASON, reason)


def _add_pod(cluster: Cluster, job: Object) -> str:
    """The Job's pod: made by the real Job controller unless the Job is held back, as by Kueue."""
    selector = f"batch.kubernetes.io/job-name={job['metadata']['name']}"
    until(lambda: bool(cluster.list("pods", "-l", selector)), "the Job controller makes the pod")
    return str(cluster.list("pods", "-l", selector)[0]["metadata"]["name"])


def _container(state: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": "harvester",
        "image": "example.test/sglang:0.5.9",
        "imageID": "",
        "ready": False,
        "restartCount": 0,
        "state": state,
    }


def _set_pod(cluster: Cluster, pod: str, status: dict[str, Any]) -> None:
    cluster.kubectl("patch", "pod", pod, "--subresource=status", "--type=merge", "-p", json.dumps({"status": status}))


def _say(cluster: Cluster, account: pathlib.Path, config_map: str, key: str, words: object) -> None:
    """What the harvester in the pod does, with the pod's own rights: one merge patch, no read."""
    config = yaml.safe_load(account.read_text(encoding="utf-8"))
    authority = base64.b64decode(config["clusters"][0]["cluster"]["certificate-authority-data"]).decode()
    answer = httpx.patch(
        f"{cluster.plane.server}/api/v1/namespaces/{cluster.namespace}/configmaps/{config_map}",
        content=json.dumps({"data": {key: json.dumps(words)}}),
        headers={
            "Authorization": f"Bearer {config['users'][0]['user']['token']}",
            "Content-Type": "application/merge-patch+json",
        },
        verify=ssl.create_default_context(cadata=authority),
        trust_env=False,
    )
    answer.raise_for_status()
