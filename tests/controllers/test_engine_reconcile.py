"""A pass and its finish step, with a kind made for the test."""

from __future__ import annotations

import dataclasses
import datetime
import json
from collections.abc import Callable, Mapping
from typing import Any

from inferasim_operator.api.v1alpha1.conditions import ConditionedStatus
from inferasim_operator.api.v1alpha1.servingplan import SearchProgress, ServingPlan, ServingPlanStatus
from inferasim_operator.convert import parse_conditions
from inferasim_operator.engine.actions import Action, CreateObject, ObjectKey, Plan
from inferasim_operator.engine.clock import Clock
from inferasim_operator.engine.conditions import Conditions
from inferasim_operator.engine.kind import Context, Kind
from inferasim_operator.engine.reconcile import Reconciler
from inferasim_operator.errors import InvalidError, NotOursError, UnavailableError, cluster_error
from tests import builders
from tests.conditions import assert_conditions
from tests.fake_cluster import FakeCluster

KEY = ObjectKey("default", "plan")
API = ("inferasim.dev/v1alpha1", "ServingPlan", "default", "plan")


@dataclasses.dataclass(frozen=True)
class Seen:
    """What the test's kind observes."""

    raw: Mapping[str, Any]


@dataclasses.dataclass
class Hours:
    """A clock that moves on by an hour at each look."""

    hour: int = 0

    def now(self) -> datetime.datetime:
        self.hour += 1
        return datetime.datetime(2026, 11, 30, tzinfo=datetime.UTC) + datetime.timedelta(hours=self.hour)


def _reconciler(cluster: FakeCluster, decide: Callable[[Seen, datetime.datetime], Plan]) -> Reconciler:
    def observe(context: Context, key: ObjectKey) -> Seen | None:
        raw = context.client.find(*API)
        return None if raw is None else Seen(raw)

    clock = Clock(now=Hours().now, monotonic_s=lambda: 0.0)
    return Reconciler(Kind(ServingPlan.resource, observe, decide), Context(cluster), clock)


def _ready(*actions: Action) -> Callable[[Seen, datetime.datetime], Plan]:
    def decide(seen: Seen, now: datetime.datetime) -> Plan:
        generation = seen.raw["metadata"]["generation"]
        conditions = Conditions(parse_conditions(seen.raw), generation=generation, now=now)
        conditions.ready("Done", "all is well")
        return Plan(ConditionedStatus(conditions=conditions.done(), observed_generation=generation), actions)

    return decide


def _cluster() -> FakeCluster:
    return FakeCluster(builders.live(builders.serving_plan()))


def test_second_pass_writes_nothing() -> None:
    """One status write and its events; then nothing, although the clock goes on."""
    cluster = _cluster()
    reconciler = _reconciler(cluster, _ready())
    outcome = reconciler.run(KEY)
    assert outcome.written_version == cluster.get(*API)["metadata"]["resourceVersion"]
    assert [event["reason"] for event in cluster.events] == ["Done"]
    assert reconciler.run(KEY).written_version == ""
    assert (cluster.writes, len(cluster.events)) == (1, 1)
    assert_conditions(cluster.get(*API))


def test_progress_alone_is_written_once_in_five_seconds() -> None:
    """Woken each second and further each time; what changes beside progress is never held back, and nothing is lost."""
    cluster, time_s, reason = _cluster(), [0.0], ["Searching"]

    def decide(seen: Seen, now: datetime.datetime) -> Plan:
        generation = seen.raw["metadata"]["generation"]
        conditions = Conditions(parse_conditions(seen.raw), generation=generation, now=now)
        conditions.working(reason[0], "under way")
        progress = SearchProgress(candidates_scored=int(time_s[0]))
        status = ServingPlanStatus(conditions=conditions.done(), observed_generation=generation, progress=progress)
        return Plan(status)

    def observe(context: Context, key: ObjectKey) -> Seen | None:
        raw = context.client.find(*API)
        return None if raw is None else Seen(raw)

    clock = Clock(now=Hours().now, monotonic_s=lambda: time_s[0])
    reconciler = Reconciler(Kind(ServingPlan.resource, observe, decide), Context(cluster), clock)
    written, waits = [], {}
    for second in range(13):
        time_s[0] = second
        reason[0] = "Searching" if second < 12 else "Queued"
        before = cluster.writes
        waits[second] = reconciler.run(KEY).wake_after_s
        if cluster.writes > before:
            written.append(cluster.get(*API)["status"]["progress"]["candidatesScored"])
    assert written == [0, 5, 10, 12]
    assert (waits[0], waits[1], waits[4], waits[5]) == (None, 4.0, 1.0, None)


def test_gone_and_deleting_objects_are_left_alone() -> None:
    """No write to what is being deleted."""
    cluster = _cluster()
    going = builders.live(builders.serving_plan())
    going["metadata"]["deletionTimestamp"] = "2026-11-30T00:00:00Z"
    cluster.put(going)
    assert _reconciler(cluster, _ready()).run(KEY).gone
    assert _reconciler(FakeCluster(), _ready()).run(KEY).gone
    assert cluster.writes == 0


def test_bug_ends_on_the_status() -> None:
    """An exception in a plan is an internal error: said, retried, and said only once."""
    cluster = _cluster()

    def buggy(seen: Seen, now: datetime.datetime) -> Plan:
        raise ZeroDivisionError("secret detail")

    reconciler = _reconciler(cluster, buggy)
    for _ in range(3):
        assert reconciler.run(KEY).failed
    live = cluster.get(*API)
    assert_conditions(live)
    ready = live["status"]["conditions"][0]
    assert (ready["reason"], ready["message"]) == (
        "InternalError",
        "internal error: ZeroDivisionError; will be tried again",
    )
    assert cluster.writes == 1


def test_failed_action_overrides_ready_and_settles() -> None:
    """Whatever the plan says, a failed action is not Ready; terminal ones stall and are not retried; no rewrite."""
    taken = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x", "namespace": "default"}}
    cluster = _cluster()
    cluster.put(taken)
    reconciler = _reconciler(cluster, _ready(CreateObject(taken)))
    outcomes = [reconciler.run(KEY) for _ in range(3)]
    assert not any(outcome.failed for outcome in outcomes)
    live = cluster.get(*API)
    assert_conditions(live)
    assert [c["type"] for c in live["status"]["conditions"]] == ["Ready", "Stalled"]
    assert live["status"]["conditions"][0]["reason"] == NotOursError.reason
    assert cluster.writes == 1

    cluster = _cluster()
    cluster.broken["create"] = UnavailableError("HTTP 503", status=503)
    reconciler = _reconciler(cluster, _ready(CreateObject(taken)))
    assert reconciler.run(KEY).failed
    assert [c["type"] for c in cluster.get(*API)["status"]["conditions"]] == ["Ready", "Reconciling"]


def test_unreachable_server_is_retried_without_a_status() -> None:
    """Nothing can be written then; the pass fails and the loop backs off."""
    cluster = _cluster()
    for method in ("find", "get", "apply_status"):
        cluster.broken[method] = UnavailableError("no route")
    assert _reconciler(cluster, _ready()).run(KEY).failed


def test_an_older_crd_is_told_and_tried_again() -> None:
    """Its server refuses the field in a server-side apply (D03): the condition names it and both remedies."""
    cluster = _cluster()
    write = cluster.apply_status
    text = "failed to create typed patch object (ns/a; inferasim.dev/v1alpha1, Kind=ServingPlan): .status.result: "
    body = json.dumps({"kind": "Status", "message": f"{text}field not declared in schema"})

    def refuse(manifest: Mapping[str, Any]) -> dict[str, Any]:
        if any(c["reason"] == "Done" for c in manifest["status"]["conditions"]):
            raise cluster_error(500, body)
        return write(manifest)

    cluster.apply_status = refuse  # type: ignore[method-assign]
    assert _reconciler(cluster, _ready()).run(KEY).failed
    ready = next(c for c in cluster.get(*API)["status"]["conditions"] if c["type"] == "Ready")
    assert ready["reason"] == "CrdOutdated"
    assert ready["message"].startswith("the cluster's CRD lacks status.result; update it: `helm upgrade --install`")
    other = cluster_error(500, body.replace("inferasim.dev/v1alpha1", "monitoring.coreos.com/v1"))
    assert isinstance(other, InvalidError)


def test_recreated_namesake_is_not_written_to() -> None:
    """The status goes to the uid that was observed."""
    cluster = _cluster()
    decide = _ready()

    def swap(seen: Seen, now: datetime.datetime) -> Plan:
        cluster.put(builders.live(builders.serving_plan(), uid="uid-2"))
        return decide(seen, now)

    outcome = _reconciler(cluster, swap).run(KEY)
    assert outcome.failed
    status = cluster.get(*API).get("status", {})
    assert all(c["reason"] != "Done" for c in status.get("conditions", ()))
