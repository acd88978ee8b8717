"""A large search as an Indexed Job on the real API server. No kubelet: the tests run the pods' program as a process,
with the arguments and the account of the pod, and write the pods' status."""

from __future__ import annotations

import base64
import json
import pathlib
import subprocess
import sys
from collections.abc import Callable

from inferasim_operator import packing, planning
from tests import builders
from tests.conditions import assert_conditions
from tests.integration.harness import Cluster, Object, Operator, until

MakeOperator = Callable[..., Operator]
FUNCTION = "inferasim_operator.planning:compute_plan"
IMAGE = {"INFERASIM_WORKER_IMAGE": "example.test/operator:1"}
INDEX = "batch.kubernetes.io/job-completion-index"


def test_a_search_in_shards_survives_its_pods_and_its_operator(
    cluster: Cluster, operator: MakeOperator, tmp_path: pathlib.Path
) -> None:
    """A pod killed, the operator killed: each shard is written once, the answer is that of one process, all is tidy."""
    op = operator(FUNCTION, environment=IMAGE)
    op.start()
    plan = builders.serving_plan(
        search={"shards": 2}, load={"concurrencies": [1, 8]}, pod={"queueName": "planning", "priorityClassName": None}
    )
    plan["spec"]["pod"] = {"queueName": "planning"}
    cluster.apply(builders.anchor_config_map("anchor-a"), plan)
    job = _job(cluster)
    assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "planning"
    assert (job["spec"]["completionMode"], job["spec"]["backoffLimitPerIndex"]) == ("Indexed", 3)
    live = cluster.wait_for("servingplan", "plan", ".status.progress.shards", "0/2")
    assert_conditions(live)

    assert _run_pod(cluster, job, 0, tmp_path) == 0
    live = cluster.wait_for("servingplan", "plan", ".status.progress.shards", "1/2")
    assert 0 < live["status"]["progress"]["candidatesScored"] < live["status"]["progress"]["candidatesTotal"]
    killed = _pod(cluster, job, 1)
    _end(cluster, killed["metadata"]["name"], 137)
    op.kill()
    first = _shard_versions(cluster)
    assert _work(cluster, _pod_of_index(cluster, job, 0), 0, tmp_path) == 0, "a pod made again finds its work done"
    assert _shard_versions(cluster) == first
    op.start()
    until(lambda: _pod(cluster, job, 1)["metadata"]["name"] != killed["metadata"]["name"], "the shard's next pod")
    assert _run_pod(cluster, job, 1, tmp_path) == 0
    live = cluster.wait("servingplan", "plan", "Ready")
    assert_conditions(live)

    request = {"spec": dict(plan["spec"]), "anchors": {"anchor-a": json.loads(builders.anchor().to_json())}}
    for control in ("search", "pod"):
        del request["spec"][control]
    kept = cluster.get("configmap", live["status"]["result"]["configMap"])
    assert json.loads(kept["data"]["result.json"]) == json.loads(json.dumps(planning.compute_plan(request)))
    until(lambda: not cluster.list("jobs") and not _shards(cluster), "what the search left is cleaned up")
    writes = len(cluster.operator_writes())
    passes = int(op.metric("inferasim_reconciles_total", kind="ServingPlan", result="success"))
    cluster.kubectl("annotate", "sp", "plan", "note=wake")
    op.until_passes("ServingPlan", passes + 1)
    assert len(cluster.operator_writes()) == writes
    assert not [event for event in cluster.operator_requests() if event.is_forbidden]


def test_suspend_edit_and_failure_of_a_search(cluster: Cluster, operator: MakeOperator, tmp_path: pathlib.Path) -> None:
    """Suspending pauses the Job; an edit drops it and its shards; a Job that fails is told, a rerun makes a new one."""
    operator(FUNCTION, environment=IMAGE).start()
    cluster.apply(builders.anchor_config_map("anchor-a"), builders.serving_plan(search={"shards": 2}))
    first = _job(cluster)
    _patch(cluster, {"suspend": True})
    cluster.wait_for("job", first["metadata"]["name"], ".spec.suspend", "true")
    assert_conditions(cluster.get("servingplan", "plan"))
    _patch(cluster, {"suspend": False})
    cluster.wait_for("job", first["metadata"]["name"], ".spec.suspend", "false")

    _patch(cluster, {"load": {"concurrencies": [2]}})
    until(lambda: [job["metadata"]["name"] for job in cluster.list("jobs")] != [first["metadata"]["name"]], "an edit")
    until(lambda: len(cluster.list("jobs")) == 1 and len(_shards(cluster)) == 3, "one Job, its question, two shards")
    second = _job(cluster)
    assert second["metadata"]["name"] != first["metadata"]["name"]

    late = json.dumps({"spec": {"activeDeadlineSeconds": 1}})
    cluster.kubectl("patch", "job", second["metadata"]["name"], "--type=merge", "-p", late)
    live = cluster.wait("servingplan", "plan", "Stalled")
    assert_conditions(live)
    ready = next(c for c in live["status"]["conditions"] if c["type"] == "Ready")
    assert ready["reason"] == "JobFailed"
    assert "shards without a result: 0, 1" in ready["message"]
    _patch(cluster, {"rerun": "again"})
    until(lambda: [job["metadata"]["name"] for job in cluster.list("jobs")] != [second["metadata"]["name"]], "a rerun")
    until(lambda: len(cluster.list("jobs")) == 1, "the failed Job is gone")


def test_discovery_is_refused_where_nodes_may_not_be_listed(cluster: Cluster, operator: MakeOperator) -> None:
    """An operator of one namespace says so; and shards without an image likewise. Neither asks for what it may not."""
    operator().start()
    cluster.apply(
        builders.anchor_config_map("anchor-a"),
        builders.serving_plan("finds", cluster={"accelerator": "MI355X", "discovery": {}}),
        builders.serving_plan("splits", search={"shards": 2}),
    )
    for name, reason in (("finds", "DiscoveryNotAllowed"), ("splits", "NoWorkerImage")):
        live = cluster.wait("servingplan", name, "Stalled")
        assert_conditions(live)
        assert next(c for c in live["status"]["conditions"] if c["type"] == "Ready")["reason"] == reason
    assert not [event for event in cluster.operator_requests() if event.is_forbidden]


def _patch(cluster: Cluster, spec: Object) -> None:
    cluster.kubectl("patch", "servingplan", "plan", "--type=merge", "-p", json.dumps({"spec": spec}))


def _job(cluster: Cluster) -> Object:
    until(lambda: bool(cluster.list("jobs")), "the Job")
    return cluster.list("jobs")[0]


def _shards(cluster: Cluster) -> list[Object]:
    return cluster.list("configmaps", "-l", "inferasim.dev/role=plan-shard")


def _shard_versions(cluster: Cluster) -> dict[str, str]:
    return {found["metadata"]["name"]: found["metadata"]["resourceVersion"] for found in _shards(cluster)}


def _pod_of_index(cluster: Cluster, job: Object, index: int) -> Object:
    selector = f"batch.kubernetes.io/job-name={job['metadata']['name']}"
    pods = [p for p in cluster.list("pods", "-l", selector) if p["metadata"]["annotations"][INDEX] == str(index)]
    return max(pods, key=lambda pod: (pod["metadata"]["creationTimestamp"], pod["metadata"]["name"]))


def _pod(cluster: Cluster, job: Object, index: int) -> Object:
    """The newest pod that the real Job controller has made for an index."""
    selector = f"batch.kubernetes.io/job-name={job['metadata']['name']}"

    def indexes() -> set[str]:
        return {pod["metadata"]["annotations"][INDEX] for pod in cluster.list("pods", "-l", selector)}

    until(lambda: str(index) in indexes(), f"a pod of shard {index}")
    return _pod_of_index(cluster, job, index)


def _run_pod(cluster: Cluster, job: Object, index: int, folder: pathlib.Path) -> int:
    """What a kubelet does with the pod of one index."""
    pod = _pod(cluster, job, index)
    code = _work(cluster, pod, index, folder)
    _end(cluster, pod["metadata"]["name"], code)
    return code


def _work(cluster: Cluster, pod: Object, index: int, folder: pathlib.Path) -> int:
    container = pod["spec"]["containers"][0]
    volume = next(v for v in pod["spec"]["volumes"] if v["name"] == "inferasim-request")
    for key, value in cluster.get("configmap", volume["configMap"]["name"])["binaryData"].items():
        (folder / key).write_bytes(base64.b64decode(value))
        assert "spec" in json.loads(packing.unpack(value))
    mount = next(m["mountPath"] for m in container["volumeMounts"] if m["name"] == "inferasim-request")
    arguments = [
        a.replace("$(JOB_COMPLETION_INDEX)", str(index)).replace(mount, str(folder)) for a in container["args"]
    ]
    account = cluster.plane.kubeconfig_for(pod["spec"]["serviceAccountName"], namespace=cluster.namespace)
    assert container["command"][0] == "python"
    command = [sys.executable, *container["command"][1:], *arguments, f"--kubeconfig={account}"]
    return subprocess.run(command, check=False, timeout=120).returncode


def _end(cluster: Cluster, pod: str, code: int) -> None:
    ended = {"exitCode": code, "reason": "Completed" if code == 0 else "Error"}
    container = {"name": "search", "image": "x", "imageID": "", "ready": False, "restartCount": 0}
    status = {"phase": "Succeeded" if code == 0 else "Failed"}
    status |= {"containerStatuses": [{**container, "state": {"terminated": ended}}]}
    cluster.kubectl("patch", "pod", pod, "--subresource=status", "--type=merge", "-p", json.dumps({"status": status}))
