"""ServingPlan on the real API server, by an operator with exactly the generated Role."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable

import pytest

from e2e.errors import KubectlError
from tests import builders
from tests.conditions import assert_conditions
from tests.integration.harness import Cluster, Operator, until

MakeOperator = Callable[..., Operator]


def test_plan_is_answered_once(cluster: Cluster, operator: MakeOperator) -> None:
    """The answer is in the status and in an immutable ConfigMap; spec and labels stay the user's own (D01, D02)."""
    plan = builders.serving_plan()
    plan["metadata"]["labels"] = {"app.kubernetes.io/instance": "myapp"}
    plan["metadata"]["annotations"] = {"argocd.argoproj.io/tracking-id": "myapp:inferasim.dev/ServingPlan:a/plan"}
    cluster.apply(builders.anchor_config_map("anchor-a"), plan)
    op = operator()
    op.start()
    live = cluster.wait("servingplan", "plan", "Ready")
    assert_conditions(live)
    assert live["spec"] == plan["spec"]
    assert "finalizers" not in live["metadata"]
    assert set(live["metadata"]["annotations"]) == {
        "argocd.argoproj.io/tracking-id",
        "kubectl.kubernetes.io/last-applied-configuration",
    }
    assert live["status"]["selected"][0]["source"]["anchor"] == "anchor-a"
    kept = cluster.get("configmap", live["status"]["result"]["configMap"])
    assert kept["immutable"] is True
    assert kept["metadata"]["ownerReferences"][0]["uid"] == live["metadata"]["uid"]
    assert "annotations" not in kept["metadata"]
    assert "app.kubernetes.io/instance" not in kept["metadata"]["labels"]
    result = json.loads(kept["data"]["result.json"])
    assert result["selected"][0]["predicted"] == live["status"]["selected"][0]["predicted"]
    reasons = {event["reason"] for event in cluster.list("events.events.k8s.io")}
    assert {"Created", "PlanFound"} <= reasons
    row = cluster.kubectl("get", "sp", "plan").splitlines()[1].split()
    assert row[:5] == ["plan", "MI355X", "True", "True", "2"]

    # A second look at everything writes nothing, whether the process goes on or begins anew.
    op.until_settled("ServingPlan")
    before, writes = cluster.versions(), len(cluster.operator_writes())
    assert op.stop() == 0
    op.start()
    op.until_passes("ServingPlan", 1)
    cluster.apply(builders.anchor_config_map("anchor-of-nobody") | {"data": {"note": "wakes every plan"}})
    op.until_passes("ServingPlan", 2)
    after = cluster.versions()
    after.pop("ConfigMap/anchor-of-nobody")
    assert after == before
    assert len(cluster.operator_writes()) == writes
    assert not [event for event in cluster.operator_requests() if event.is_forbidden]

    cluster.kubectl("delete", "servingplan", "plan")
    cluster.kubectl("wait", "--for=delete", f"configmap/{kept['metadata']['name']}", "--timeout=60s")


def test_infeasible_plan_says_what_binds(cluster: Cluster, operator: MakeOperator) -> None:
    """Feasible=False, the limit and the nearest configuration; terminal for kstatus (Stalled)."""
    operator().start()
    spec = {"cluster": {"accelerator": "MI355X", "nodes": 13}}
    cluster.apply(builders.anchor_config_map("anchor-a"), builders.serving_plan(**spec))
    live = cluster.wait("servingplan", "plan", "Feasible=False")
    assert_conditions(live)
    cluster.wait("servingplan", "plan", "Stalled")
    binding = live["status"]["binding"][0]
    assert (binding["tier"], binding["limit"]) == ("bulk", "ttft")
    assert binding["nearest"]["configuration"]["replicas"] == 8
    assert "selected" not in live["status"]
    with pytest.raises(KubectlError):
        cluster.wait("servingplan", "plan", "Ready", timeout_s=1)


def test_each_mistake_has_one_clear_message(cluster: Cluster, operator: MakeOperator) -> None:
    """An unknown field and an inline trace are refused at the door, the rest in Ready; the operator goes on."""
    operator().start()
    with pytest.raises(KubectlError, match=r'unknown field "spec.laod"'):
        cluster.apply(builders.serving_plan(laod={"concurrencies": [1]}))
    trace = [{"promptTokens": 1000, "outputTokens": 100, "at": n} for n in range(6000)]
    with pytest.raises(KubectlError, match=r'unknown field "spec\.workload\.trace\['):
        cluster.apply(builders.serving_plan(workload={"fixed": {"promptTokens": 1, "outputTokens": 1}, "trace": trace}))
    with pytest.raises(KubectlError, match=r"must have at most 64 items"):
        cluster.apply(builders.serving_plan(load={"concurrencies": list(range(1, 1500))}))
    cluster.apply(builders.anchor_config_map("anchor-other", accelerator="MI300X"))
    cluster.apply(builders.serving_plan("other-accelerator"))
    ready = _condition(cluster.wait("servingplan", "other-accelerator", "AnchorsResolved=False"), "Ready")
    assert ready["reason"] == "NoAnchorForAccelerator"
    assert "no anchor for MI355X: the namespace has anchors for MI300X only" in ready["message"]
    # The anchor arrives: no edit of the plan is needed.
    cluster.apply(builders.anchor_config_map("anchor-right"))
    cluster.wait("servingplan", "other-accelerator", "Ready")

    cluster.apply(builders.serving_plan("bad-layout", cluster={"accelerator": "MI355X", "nodes": 14}))
    ready = _condition(cluster.wait("servingplan", "bad-layout", "Stalled"), "Ready")
    assert ready["reason"] == "BadLayout"
    assert ready["message"] == ("`engines[0].layouts[0].tensorParallel` must divide the 32 attention heads, got 3")
    cluster.apply(builders.serving_plan("dies", cluster={"accelerator": "MI355X", "nodes": 15}))
    ready = _condition(cluster.wait("servingplan", "dies", "Stalled"), "Ready")
    assert ready["reason"] == "ComputationFailed"

    config = {"model": {"configMap": {"name": "my-model"}}}
    cluster.apply(builders.serving_plan("own-model", **config))
    live = cluster.wait("servingplan", "own-model", "Stalled")
    assert _condition(live, "Ready")["message"] == "ConfigMap my-model does not exist"
    cluster.kubectl("create", "configmap", "my-model", "--from-literal=config.json={}")
    live = cluster.wait("servingplan", "own-model", "Ready")
    assert_conditions(live)


@pytest.mark.parametrize("point", ["at-once", "first-status", "answer-kept"])
def test_killed_at_any_point_ends_the_same(cluster: Cluster, operator: MakeOperator, point: str) -> None:
    """SIGKILL and a new process: the same end, one ConfigMap."""
    op = operator()
    op.start()
    cluster.apply(builders.anchor_config_map("anchor-a"), builders.serving_plan())
    if point == "first-status":
        cluster.wait_for("servingplan", "plan", ".status.observedGeneration", "1")
    if point == "answer-kept":
        until(lambda: bool(_results(cluster)), "the answer's ConfigMap")
    op.kill()
    op.start()
    live = cluster.wait("servingplan", "plan", "Ready")
    assert_conditions(live)
    op.until_settled("ServingPlan")
    assert [kept["metadata"]["name"] for kept in _results(cluster)] == [live["status"]["result"]["configMap"]]


def test_quick_edits_end_with_the_last(cluster: Cluster, operator: MakeOperator) -> None:
    """A search of 20 s is given up for the edit; the last of two edits in a row decides (C07); a rerun runs again."""
    op = operator()
    op.start()
    slow = builders.serving_plan(cluster={"accelerator": "MI355X", "nodes": 16})
    cluster.apply(builders.anchor_config_map("anchor-a"), slow)
    live = cluster.wait("servingplan", "plan", "Reconciling")
    assert _condition(live, "Ready")["reason"] == "Searching"
    for nodes in (2, 3):
        change = json.dumps({"spec": {"cluster": {"nodes": nodes}}})
        cluster.kubectl("patch", "servingplan", "plan", "--type=merge", "-p", change)
    live = cluster.wait_for("servingplan", "plan", ".status.observedGeneration", "3", timeout_s=15)
    live = cluster.wait("servingplan", "plan", "Ready", timeout_s=15)
    assert live["status"]["observedGeneration"] == live["metadata"]["generation"] == 3
    op.until_settled("ServingPlan")
    first = cluster.get("servingplan", "plan")["status"]["result"]
    cluster.kubectl("patch", "servingplan", "plan", "--type=merge", "-p", '{"spec":{"rerun":"again"}}')
    cluster.wait_for("servingplan", "plan", ".status.observedGeneration", "4")
    live = cluster.wait("servingplan", "plan", "Ready")
    assert live["status"]["result"] != first
    assert len(_results(cluster)) == 2, "an answer is never overwritten"


@pytest.mark.slow
def test_two_hundred_plans_do_not_keep_a_harvest_waiting(cluster: Cluster, operator: MakeOperator) -> None:
    """All 200 end; an AnchorHarvest created among them has its first status within 5 s, by the server's clock."""
    op = operator()
    op.start()
    cluster.apply(builders.anchor_config_map("anchor-a"))
    plans = [builders.serving_plan(f"plan-{n}", load={"concurrencies": [n]}) for n in range(1, 201)]
    cluster.apply(*plans[:150])
    cluster.apply(*plans[150:175], builders.anchor_harvest(), *plans[175:])
    harvest = cluster.wait_for("anchorharvest", "harvest", ".status.observedGeneration", "1")
    waited_s = (_first_status(harvest) - _time(harvest["metadata"]["creationTimestamp"])).total_seconds()
    assert waited_s <= 5.0
    shown = cluster.list("servingplans")
    unfinished = sum(1 for plan in shown if "result" not in plan.get("status", {}))
    assert unfinished > 0, "the harvest was created too late to mean anything"
    cluster.kubectl("wait", "servingplan", "--all", "--for=condition=Ready", "--timeout=240s", timeout_s=250)
    assert len(_results(cluster)) == 200
    assert not [event for event in cluster.operator_requests() if event.is_forbidden]
    assert "Traceback" not in op.text


@pytest.mark.parametrize("crash", [False, True])
def test_outage_of_the_server_is_survived(cluster: Cluster, operator: MakeOperator, crash: bool) -> None:
    """The API server goes and comes back: the watches go on by themselves, the lease is kept or taken again (C01)."""
    op = operator(lease_s=60)
    op.start()
    cluster.apply(builders.anchor_config_map("anchor-a"), builders.serving_plan("before"))
    cluster.wait("servingplan", "before", "Ready")
    cluster.plane.restart_apiserver(crash=crash)
    cluster.apply(builders.serving_plan("after"))
    cluster.wait("servingplan", "after", "Ready", timeout_s=80)
    assert op.process is not None
    assert op.process.poll() is None


def test_one_operator_leads(cluster: Cluster, operator: MakeOperator) -> None:
    """Of two processes one works; the other takes over when the first is killed, and is healthy while it waits."""
    first, second = operator(), operator()
    first.start()
    until(lambda: "leading as" in first.text, "the first leads")
    second.start()
    until(lambda: "another instance leads" in second.text, "the second waits")
    cluster.apply(builders.anchor_config_map("anchor-a"), builders.serving_plan("one"))
    cluster.wait("servingplan", "one", "Ready")
    assert "leading as" not in second.text
    first.kill()
    until(lambda: "leading as" in second.text, "the second leads")
    cluster.apply(builders.serving_plan("two"))
    cluster.wait("servingplan", "two", "Ready")


def _condition(live: dict, type_: str) -> dict:
    return next(c for c in live["status"]["conditions"] if c["type"] == type_)


def _results(cluster: Cluster) -> list[dict]:
    return cluster.list("configmaps", "-l", "inferasim.dev/role=plan-result")


def _first_status(live: dict) -> datetime.datetime:
    """When the status was first written: no later than the earliest time in it."""
    return min(_time(c["lastTransitionTime"]) for c in live["status"]["conditions"])


def _time(text: str) -> datetime.datetime:
    return datetime.datetime.fromisoformat(text.replace("Z", "+00:00"))
