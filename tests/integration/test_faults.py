"""Faults of the network, of the API server and of the process itself, on the real API server."""

from __future__ import annotations

import json
import random
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from e2e import controlplane
from tests import builders
from tests.conditions import assert_conditions
from tests.integration.harness import Cluster, Operator, until
from tests.integration.proxy import Proxy
from tests.integration.recording import Recorder, seconds

MakeOperator = Callable[..., Operator]
INACTIVITY_S = 6
BOOKMARK_S = 60


@pytest.fixture
def proxy(control_plane: controlplane.ControlPlane) -> Iterator[Proxy]:
    """Between the operator and the API server."""
    parts = urlsplit(control_plane.server)
    assert parts.hostname is not None
    assert parts.port is not None
    with Proxy(parts.hostname, parts.port) as made:
        yield made


def _through(proxy: Proxy, **more: str) -> dict[str, Any]:
    return {"server": f"https://127.0.0.1:{proxy.port}", "environment": more}


def _black_hole(
    cluster: Cluster, op: Operator, proxy: Proxy, record: Recorder, *, hole_s: float, inactivity_s: float
) -> None:
    op.start()
    cluster.apply(builders.anchor_config_map("anchor-a"), builders.serving_plan("before"))
    cluster.wait("servingplan", "before", "Ready")
    proxy.black_hole()
    cluster.apply(builders.serving_plan("during"))
    threading.Event().wait(hole_s)
    assert "status" not in cluster.get("servingplan", "during")
    proxy.restore()
    # Each watch finds out by itself; those that dialled into the hole once more need a second silence.
    took_s = seconds(lambda: cluster.wait("servingplan", "during", "Ready", timeout_s=2 * inactivity_s + 60))
    assert took_s <= 2 * inactivity_s + 40
    assert op.process is not None
    assert op.process.poll() is None, "without a restart"
    assert op.health()[0] == 200
    record.row(
        f"watches black-holed for {hole_s:.0f} s, silence limit {inactivity_s:.0f} s",
        outcome="sockets stay open, nothing arrives; each watch gives up by itself, no restart",
        measured=f"handled {took_s:.1f} s after the hole ends",
    )


def test_black_holed_watches_come_back(
    cluster: Cluster, operator: MakeOperator, proxy: Proxy, record: Recorder
) -> None:
    """Sockets stay open and nothing arrives (C01); a silent watch is given up after seconds here, not 70 of them."""
    options = _through(proxy, INFERASIM_WATCH_INACTIVITY_SECONDS=str(INACTIVITY_S))
    op = operator(lease_s=120, **options)
    _black_hole(cluster, op, proxy, record, hole_s=10, inactivity_s=INACTIVITY_S)


@pytest.mark.slow
def test_black_hole_of_90_s_with_the_defaults(
    cluster: Cluster, operator: MakeOperator, proxy: Proxy, record: Recorder
) -> None:
    """The same with what is shipped."""
    _black_hole(cluster, operator(lease_s=600, **_through(proxy)), proxy, record, hole_s=90, inactivity_s=70)


def test_connections_that_a_network_forgot_cost_no_restart(
    cluster: Cluster, operator: MakeOperator, proxy: Proxy, record: Recorder
) -> None:
    """Every connection there is goes silent for ever, new ones work (a firewall's table): with the lease as shipped."""
    op = operator(lease_s=15, **_through(proxy, INFERASIM_WATCH_INACTIVITY_SECONDS=str(INACTIVITY_S)))
    op.start()
    cluster.apply(builders.anchor_config_map("anchor-a"), builders.serving_plan("before"))
    cluster.wait("servingplan", "before", "Ready")
    proxy.black_hole()
    proxy.restore()
    cluster.apply(builders.serving_plan("during"))
    took_s = seconds(lambda: cluster.wait("servingplan", "during", "Ready", timeout_s=75))
    assert op.process is not None
    assert op.process.poll() is None
    assert op.health() == (200, "ok\n")
    record.row(
        f"all open connections go silent, new ones work; silence limit {INACTIVITY_S} s, lease of 15 s as shipped",
        outcome="the lease is renewed over a new connection in time, no restart; each watch gives up by itself",
        measured=f"handled after {took_s:.1f} s",
    )


def test_reset_connections_are_made_again(
    cluster: Cluster, operator: MakeOperator, proxy: Proxy, record: Recorder
) -> None:
    """A RST on every connection, five times; each plan made meanwhile is handled."""
    op = operator(lease_s=60, **_through(proxy))
    op.start()
    cluster.apply(builders.anchor_config_map("anchor-a"), builders.serving_plan("before"))
    cluster.wait("servingplan", "before", "Ready")
    for number in range(5):
        proxy.reset()
        cluster.apply(builders.serving_plan(f"plan-{number}", load={"concurrencies": [number + 1]}))
    took_s = seconds(lambda: cluster.kubectl("wait", "servingplan", "--all", "--for=condition=Ready", "--timeout=50s"))
    assert op.health()[0] == 200
    record.row(
        "RST on every connection, five times",
        outcome="watches are made again at once",
        measured=f"five plans made meanwhile handled {took_s:.1f} s after the last",
    )


def test_history_that_is_gone_is_listed_anew(
    cluster: Cluster, operator: MakeOperator, proxy: Proxy, record: Recorder
) -> None:
    """The operator is cut off, things change, etcd forgets its history, the API server restarts: a watch gets 410."""
    op = operator(lease_s=120, **_through(proxy))
    op.start()
    cluster.apply(
        builders.anchor_config_map("anchor-a"), builders.serving_plan("before"), builders.serving_plan("gone")
    )
    cluster.wait("servingplan", "before", "Ready")
    cluster.wait("servingplan", "gone", "Ready")
    proxy.cut()
    cluster.apply(builders.serving_plan("during"))
    cluster.kubectl("delete", "servingplan", "gone")
    cluster.plane.compact_etcd()
    cluster.plane.restart_apiserver(crash=True)
    proxy.restore()
    took_s = seconds(lambda: cluster.wait("servingplan", "during", "Ready", timeout_s=80))
    assert op.process is not None
    assert op.process.poll() is None
    writes = [event for event in cluster.operator_writes() if "servingplans/gone/status" in event.uri]
    assert all(event.code == 200 for event in writes), "nothing is written to what is gone"
    record.row(
        "cut off, changes, etcd compacted, API server killed and restarted",
        outcome="the old version gets 410, all is listed anew; nothing is written to what was deleted meanwhile",
        measured=f"handled {took_s:.1f} s after the network is back",
    )


def test_a_watch_that_ends_makes_the_process_unhealthy(
    cluster: Cluster, operator: MakeOperator, proxy: Proxy, record: Recorder
) -> None:
    """The right to watch is taken away: /healthz fails, or the process ends; with the right back a new one works."""
    op = operator(lease_s=60, **_through(proxy))
    op.start()
    cluster.apply(builders.anchor_config_map("anchor-a"), builders.serving_plan("before"))
    cluster.wait("servingplan", "before", "Ready")
    assert op.health() == (200, "ok\n")
    role = cluster.get("role", "inferasim-operator")
    rules = [rule for rule in role["rules"] if "jobs" not in rule["resources"]]
    cluster.kubectl("patch", "role", "inferasim-operator", "--type=merge", "-p", json.dumps({"rules": rules}))
    proxy.reset()

    def is_found() -> bool:
        assert op.process is not None
        return op.process.poll() is not None or op.health()[0] == 500

    took_s = seconds(lambda: until(is_found, "dead watch is found"))
    assert op.process is not None
    if op.process.poll() is None:
        assert "no live watch of jobs" in op.health()[1]
        assert op.stop() == 0  # as the kubelet does when the probe fails
    patch = json.dumps({"rules": role["rules"]})
    cluster.kubectl("patch", "role", "inferasim-operator", "--type=merge", "-p", patch)
    op.start()
    cluster.apply(builders.serving_plan("after"))
    cluster.wait("servingplan", "after", "Ready")
    record.row(
        "the right to watch Jobs is taken away",
        outcome="`/healthz` answers 500 `no live watch of jobs`; the kubelet restarts the pod",
        measured=f"told after {took_s:.0f} s (the client's own retries)",
    )


@pytest.mark.parametrize("kills", [10, pytest.param(100, marks=pytest.mark.slow)])
def test_killed_at_random_during_a_full_flow(
    cluster: Cluster, operator: MakeOperator, record: Recorder, kills: int
) -> None:
    """From a harvest to a plan under SIGKILLs: one Job, one anchor, one answer, nothing lost, nothing run twice."""
    op, random_ = operator(lease_s=2), random.Random(2611)
    cluster.apply(builders.serving_plan(), builders.anchor_harvest())
    for number in range(kills):
        op.start()
        threading.Event().wait(random_.uniform(0.5, 5.0))
        op.kill()
        if number == kills // 2:
            op.start()
            until(lambda: len(cluster.list("jobs")) == 1, "the Job")
            name = f"{cluster.list('jobs')[0]['metadata']['name']}-progress"
            words = json.dumps({"data": {"anchor.json": builders.anchor().to_json()}})
            cluster.kubectl("patch", "configmap", name, "--type=merge", "-p", words)  # it is made before the Job
            op.kill()
    op.start()
    took_s = seconds(lambda: cluster.wait("servingplan", "plan", "Ready"))
    live = cluster.wait("anchorharvest", "harvest", "Ready")
    assert_conditions(live)
    created = [event for event in cluster.operator_writes() if event.verb == "create" and event.code == 201]
    assert [event.resource for event in created].count("jobs.batch") == 1
    assert len(cluster.list("configmaps", "-l", "inferasim.dev/role=plan-result")) == 1
    assert len(cluster.list("configmaps", "-l", "inferasim.dev/anchor=true")) == 1
    assert not [event for event in cluster.operator_requests() if event.is_forbidden]
    record.row(
        f"operator SIGKILLed at {kills} random moments of harvest → anchor → plan",
        outcome="one Job, one anchor, one answer; nothing lost, nothing run twice",
        measured=f"ready {took_s:.1f} s after the last start",
    )


def test_a_leader_that_slept_writes_nothing(cluster: Cluster, operator: MakeOperator, record: Recorder) -> None:
    """Stopped for longer than its lease (a clock jump looks the same), it finds another leading, and ends."""
    first, second = operator(), operator()
    first.start()
    until(lambda: "leading as" in first.text, "the first leads")
    second.start()
    until(lambda: "another instance leads" in second.text, "the second waits")
    assert first.process is not None
    first.process.send_signal(signal.SIGSTOP)
    took_s = seconds(lambda: until(lambda: "leading as" in second.text, "the second leads"))
    assert took_s < 30
    cluster.apply(builders.anchor_config_map("anchor-a"), builders.serving_plan())
    cluster.wait("servingplan", "plan", "Ready")
    before = cluster.versions()
    first.process.send_signal(signal.SIGCONT)
    assert first.process.wait(timeout=40) == 1
    assert cluster.versions() == before
    record.row(
        "the leader sleeps longer than its lease of 2 s",
        outcome="the other takes over; the sleeper wakes, writes nothing, exits 1",
        measured=f"taken over after {took_s:.1f} s",
    )


def test_an_outage_longer_than_the_lease_costs_one_restart(
    cluster: Cluster, operator: MakeOperator, proxy: Proxy, record: Recorder
) -> None:
    """As shipped: the process ends, and the next one waits for the server, alive and not ready, instead of ending again
    and again while the kubelet makes each start later than the last."""
    op = operator(lease_s=15, **_through(proxy))
    op.start()
    cluster.apply(builders.anchor_config_map("anchor-a"), builders.serving_plan("before"))
    cluster.wait("servingplan", "before", "Ready")
    proxy.cut()
    assert op.process is not None
    ended_s = seconds(lambda: op.process.wait(timeout=60))
    assert op.process.returncode == 1
    cluster.apply(builders.serving_plan("during"))
    op.start()
    begins = len(op.text)
    # Three refusals are more than ten seconds, in which a process that gave up would be gone.
    until(lambda: op.text[begins:].count("the API server does not answer, trying again") >= 3, "it tries again")
    assert op.process.poll() is None
    assert op.health() == (200, "ok\n")
    assert op.health("/readyz") == (500, "the API server has not answered yet\n")
    proxy.restore()
    took_s = seconds(lambda: cluster.wait("servingplan", "during", "Ready"))
    assert op.process.poll() is None
    assert op.health("/readyz") == (200, "ok\n")
    record.row(
        "API server out of reach for longer than the lease of 15 s, as shipped",
        outcome="the operator ends once; its next process waits, alive and not ready, and goes on by itself",
        measured=f"ended after {ended_s:.0f} s; handled {took_s:.0f} s after the outage (the old lease runs out first)",
    )


def test_a_spec_of_300_kib_is_handled_once(cluster: Cluster, operator: MakeOperator, record: Recorder) -> None:
    """What the schema lets through (volumes are Kubernetes' own) fits no annotation, and needs none (C03)."""
    op = operator()
    op.start()
    text = "x" * (300 * 1024)
    plan = builders.serving_plan(pod={"volumes": [{"name": "large", "downwardAPI": {"items": [], "note": text}}]})
    plan["metadata"]["namespace"] = cluster.namespace
    cluster.apply(builders.anchor_config_map("anchor-a"))
    cluster.kubectl("create", "-f", "-", stdin=json.dumps(plan))
    took_s = seconds(lambda: cluster.wait("servingplan", "plan", "Ready"))
    assert "annotations" not in cluster.get("servingplan", "plan")["metadata"]
    op.until_settled("ServingPlan")
    writes, passes = len(cluster.operator_writes()), op.metric("inferasim_reconciles_total", kind="ServingPlan")
    cluster.apply(builders.anchor_harvest(deadlineSeconds=600))
    until(lambda: op.metric("inferasim_reconciles_total", kind="AnchorHarvest") >= 2, "other work goes on")
    later = [event for event in cluster.operator_writes()[writes:] if "servingplans" in event.uri]
    assert later == []
    assert op.metric("inferasim_reconciles_total", kind="ServingPlan") - passes <= 2
    record.row(
        "300 KiB in a field that Kubernetes owns (volumes)",
        outcome="handled once: nothing is kept in annotations",
        measured=f"ready after {took_s:.1f} s",
    )


def test_a_namespace_goes_with_all_that_is_in_it(cluster: Cluster, operator: MakeOperator, record: Recorder) -> None:
    """The operator is gone, objects of its kinds and a Job are live: the namespace goes without it (C04)."""
    op = operator()
    op.start()
    cluster.apply(builders.anchor_config_map("anchor-a"), builders.serving_plan(), builders.anchor_harvest())
    cluster.wait("servingplan", "plan", "Ready")
    until(lambda: bool(cluster.list("jobs")), "the Job")
    assert op.stop() == 0
    cluster.kubectl("delete", "namespace", cluster.namespace, "--wait=false")
    took_s = seconds(lambda: until(lambda: _is_gone(cluster), "the namespace is gone"))
    record.row(
        "namespace deleted with live objects, no operator",
        outcome="gone: there are no finalizers of ours",
        measured=f"after {took_s:.0f} s (the namespace controller's rounds)",
    )
    cluster.kubectl("create", "namespace", cluster.namespace)  # the fixture takes it away


def _is_gone(cluster: Cluster) -> bool:
    with cluster.plane.http() as client:
        return client.get(f"/api/v1/namespaces/{cluster.namespace}").status_code == httpx.codes.NOT_FOUND
