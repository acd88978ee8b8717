"""Wrong, late and lost answers of the API server, and what the operator makes of them (C01, C03, D03)."""

from __future__ import annotations

import json
import os
import random
import signal
import threading
from collections.abc import Callable, Iterator

import pytest

from e2e import controlplane
from tests import builders
from tests.conditions import assert_conditions
from tests.integration.fault_server import Fault, FaultServer, Request
from tests.integration.harness import Cluster, Operator, until
from tests.integration.recording import Recorder, seconds

MakeOperator = Callable[..., Operator]
STORM_S = 12.0


@pytest.fixture
def faults(control_plane: controlplane.ControlPlane) -> Iterator[FaultServer]:
    """Between the operator and the API server."""
    with FaultServer(control_plane) as made:
        yield made


def _begin(cluster: Cluster, op: Operator) -> None:
    """The operator works, and everything is watched."""
    op.start()
    cluster.apply(builders.anchor_config_map("anchor-a"), builders.serving_plan("before"))
    cluster.wait("servingplan", "before", "Ready")


def _assert_done_once(cluster: Cluster, op: Operator) -> None:
    """The process never ended; one Job, one answer per plan, nothing refused."""
    assert op.process is not None
    assert op.process.poll() is None, "without a restart"
    assert op.health() == (200, "ok\n")
    created = [event for event in cluster.operator_writes() if event.verb == "create" and event.code == 201]
    assert [event.resource for event in created].count("jobs.batch") == 1
    plans = len(cluster.list("servingplans"))
    assert [event.resource for event in created].count("configmaps") <= plans + 2  # and the harvest's two
    assert len(cluster.list("configmaps", "-l", "inferasim.dev/role=plan-result")) == plans
    assert_conditions(cluster.get("servingplan", "plan"))
    assert "Traceback" not in op.text


@pytest.mark.parametrize("status", [429, 503])
def test_a_storm_is_waited_out(
    cluster: Cluster, operator: MakeOperator, faults: FaultServer, record: Recorder, status: int
) -> None:
    """For twelve seconds every request gets the same answer; what was made meanwhile is handled after it."""
    op = operator(lease_s=120, server=faults.url)
    _begin(cluster, op)
    faults.rule = lambda _: Fault(status, retry_after_s=1)
    cluster.apply(builders.serving_plan(), builders.anchor_harvest())
    threading.Event().wait(STORM_S)
    assert faults.faults_count > 0
    asked = faults.faults_count
    faults.rule = lambda _: None
    took_s = seconds(lambda: cluster.wait("servingplan", "plan", "Ready"))
    until(lambda: len(cluster.list("jobs")) == 1, "the Job")
    op.until_settled("ServingPlan")
    _assert_done_once(cluster, op)
    record.row(
        f"every request answered {status} for {STORM_S:.0f} s",
        outcome="watches and passes back off and go on by themselves, no restart; one Job, one answer",
        measured=f"handled {took_s:.1f} s after the storm; {asked / STORM_S:.0f} requests/s during it",
    )


@pytest.mark.slow
def test_every_third_request_fails(
    cluster: Cluster, operator: MakeOperator, faults: FaultServer, record: Recorder
) -> None:
    """500, 503, 429 or no answer at all, at random, from the first request to the end of a harvest and a plan."""
    random_ = random.Random(2612)

    def rule(_: Request) -> Fault | None:
        return Fault(random_.choice((0, 429, 500, 503))) if random_.random() < 1 / 3 else None

    faults.rule = rule
    op = operator(lease_s=120, server=faults.url)
    cluster.apply(builders.anchor_config_map("anchor-a"), builders.serving_plan(), builders.anchor_harvest())
    until(lambda: _starts(op), "an operator that survives its start")
    took_s = seconds(lambda: cluster.wait("servingplan", "plan", "Ready", timeout_s=240))
    until(lambda: len(cluster.list("jobs")) == 1, "the Job", timeout_s=240)
    faults.rule = lambda _: None
    op.until_settled("ServingPlan")
    _assert_done_once(cluster, op)
    record.row(
        "every third request fails: 429, 500, 503 or a closed connection",
        outcome="the flow ends as without; one Job, one answer",
        measured=f"plan ready {took_s:.1f} s after the start, {faults.faults_count} failures",
    )


def _starts(op: Operator) -> bool:
    """Start it unless it runs: a process that cannot read the CRDs at its start ends, and its pod is made again."""
    if op.process is None or op.process.poll() is not None:
        op.start()
    return "leading as" in op.text


def test_answers_that_are_lost(cluster: Cluster, operator: MakeOperator, faults: FaultServer, record: Recorder) -> None:
    """Each first write of an object is done, and the connection closed instead of the answer: nothing is made twice."""
    seen: set[tuple[str, str]] = set()

    def rule(request: Request) -> Fault | None:
        what = (request.method, request.path.split("?")[0])
        if request.method in ("GET", "DELETE") or "dryRun" in request.path or "leases" in request.path or what in seen:
            return None
        seen.add(what)
        return Fault(is_done=True)

    op = operator(lease_s=120, server=faults.url)
    _begin(cluster, op)
    faults.rule = rule
    cluster.apply(builders.serving_plan(), builders.anchor_harvest())
    took_s = seconds(lambda: cluster.wait("servingplan", "plan", "Ready"))
    until(lambda: len(cluster.list("jobs")) == 1, "the Job")
    cluster.wait_for("anchorharvest", "harvest", ".status.observedGeneration", "1")
    op.until_settled("ServingPlan")
    _assert_done_once(cluster, op)
    record.row(
        "the first write of each object is done and its answer lost",
        outcome="the next pass finds what is there; one Job, one answer",
        measured=f"plan ready after {took_s:.1f} s, {faults.faults_count} answers lost",
    )


def test_a_storm_of_conflicts(cluster: Cluster, operator: MakeOperator, faults: FaultServer, record: Recorder) -> None:
    """The first five status writes of each object are refused with 409: tried again with backoff, then written."""
    refused: dict[str, int] = {}

    def rule(request: Request) -> Fault | None:
        path = request.path.split("?")[0]
        if not path.endswith("/status") or refused.setdefault(path, 0) >= 5:
            return None
        refused[path] += 1
        return Fault(409)

    op = operator(lease_s=120, server=faults.url)
    _begin(cluster, op)
    refused.clear()
    faults.rule = rule
    cluster.apply(builders.serving_plan(), builders.anchor_harvest())
    took_s = seconds(lambda: cluster.wait("servingplan", "plan", "Ready"))
    until(lambda: len(cluster.list("jobs")) == 1, "the Job")
    op.until_settled("ServingPlan")
    _assert_done_once(cluster, op)
    record.row(
        "status writes refused with 409, five times each",
        outcome="tried again with backoff, at most once a second; one Job, one answer",
        measured=f"plan ready after {took_s:.1f} s",
    )


def test_etcd_that_stands_still(cluster: Cluster, operator: MakeOperator, record: Recorder) -> None:
    """Stopped for fifteen seconds: requests hang or time out in the API server, and are made again."""
    op = operator(lease_s=120)
    _begin(cluster, op)
    etcd = cluster.plane.pids()["etcd"]
    assert etcd is not None
    wanted = threading.Thread(target=lambda: cluster.apply(builders.serving_plan(), builders.anchor_harvest()))
    os.kill(etcd, signal.SIGSTOP)
    try:
        wanted.start()
        threading.Event().wait(15)
    finally:
        os.kill(etcd, signal.SIGCONT)
    wanted.join()
    if not cluster.list("servingplans", "--field-selector=metadata.name=plan"):
        cluster.apply(builders.serving_plan(), builders.anchor_harvest())  # the person tries again, too
    took_s = seconds(lambda: cluster.wait("servingplan", "plan", "Ready"))
    until(lambda: len(cluster.list("jobs")) == 1, "the Job")
    op.until_settled("ServingPlan")
    _assert_done_once(cluster, op)
    record.row(
        "etcd stopped (SIGSTOP) for 15 s",
        outcome="requests hang, are given up or answered late; no restart with a lease longer than the halt",
        measured=f"handled {took_s:.1f} s after it goes on",
    )


def test_a_rotated_token_is_read_anew(
    cluster: Cluster, operator: MakeOperator, faults: FaultServer, record: Recorder
) -> None:
    """The token of the file is replaced, and the old one refused: requests and watches go on with the new one."""
    op = operator(lease_s=120, server=faults.url)
    _begin(cluster, op)
    old = _token(op)
    fresh = cluster.plane.kubeconfig_for("inferasim-operator", namespace=cluster.namespace, valid_s=7200)
    text = fresh.read_text(encoding="utf-8").replace(cluster.plane.server, faults.url)
    op.kubeconfig.write_text(text, encoding="utf-8")
    assert _token(op) != old
    faults.rule = lambda request: Fault(401) if request.token == old else None
    cluster.apply(builders.serving_plan(), builders.anchor_harvest())
    took_s = seconds(lambda: cluster.wait("servingplan", "plan", "Ready"))
    until(lambda: len(cluster.list("jobs")) == 1, "the Job")
    op.until_settled("ServingPlan")
    _assert_done_once(cluster, op)
    record.row(
        "the operator's token is rotated, the old one refused at once",
        outcome="the file is read again on the first 401, by requests and watches",
        measured=f"handled within {took_s:.1f} s",
    )


def _token(op: Operator) -> str:
    return op.kubeconfig.read_text(encoding="utf-8").partition("token: ")[2].split()[0]


def test_an_older_crd_is_told_and_no_hot_loop(
    cluster: Cluster, operator: MakeOperator, control_plane: controlplane.ControlPlane, record: Recorder
) -> None:
    """A CRD that lacks a status field refuses the write (D03): the condition names it, and a new CRD ends it."""
    crd = json.loads(control_plane.kubectl("get", "crd", "servingplans.inferasim.dev", "-o", "json"))
    path = "/spec/versions/0/schema/openAPIV3Schema/properties/status/properties/result"
    remove = json.dumps([{"op": "remove", "path": path}])
    patch = ("patch", "crd", "servingplans.inferasim.dev")
    control_plane.kubectl(*patch, "--type=json", "-p", remove)
    try:
        op = operator(lease_s=120)
        op.start()
        cluster.apply(builders.anchor_config_map("anchor-a"), builders.serving_plan())

        def is_told() -> bool:
            conditions = cluster.get("servingplan", "plan").get("status", {}).get("conditions", ())
            return any("the cluster's CRD lacks status.result" in c["message"] for c in conditions)

        until(is_told, "the condition names the field")
        writes = [event for event in cluster.operator_writes() if "servingplans/plan/status" in event.uri]
        assert len(writes) <= 10
    finally:
        control_plane.kubectl(*patch, "--type=merge", "-p", json.dumps({"spec": crd["spec"]}))
    took_s = seconds(lambda: cluster.wait("servingplan", "plan", "Ready"))
    record.row(
        "CRD downgraded: it does not know a status field",
        outcome="Ready=False `CrdOutdated` names the field and the remedy; tried again with backoff",
        measured=f"ready {took_s:.1f} s after the CRD is updated",
    )


def test_objects_that_go_while_they_are_worked_on(cluster: Cluster, operator: MakeOperator, record: Recorder) -> None:
    """No finalizer of ours holds them; no worker, computation or complaint is left."""
    op = operator(lease_s=120)
    _begin(cluster, op)
    plans = [builders.serving_plan(f"plan-{n}", load={"concurrencies": [n]}) for n in range(1, 11)]
    cluster.apply(*plans, builders.anchor_harvest())
    cluster.kubectl("delete", "inferasim", "--all", "--wait=false")

    def is_forgotten() -> bool:
        return op.metric("inferasim_objects") == 0 and not cluster.list("inferasim")

    took_s = seconds(lambda: until(is_forgotten, "no object and no worker is left"))
    assert op.process is not None
    assert op.process.poll() is None
    assert op.health() == (200, "ok\n")
    assert "Traceback" not in op.text
    record.row(
        "all objects deleted while they are computed",
        outcome="nothing holds them; workers, computations and series go with them",
        measured=f"forgotten after {took_s:.1f} s",
    )
