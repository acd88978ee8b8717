"""A wall clock that jumps: nothing is written for it, no time of a condition moves, no lease changes hands."""

from __future__ import annotations

import dataclasses
import datetime
from typing import Any

import pytest

from inferasim_operator.engine.actions import ObjectKey
from inferasim_operator.engine.clock import Clock
from inferasim_operator.engine.kind import Context, Kind
from inferasim_operator.engine.lease import Lease
from inferasim_operator.engine.reconcile import Reconciler
from inferasim_operator.kinds.registry import KINDS
from tests import builders
from tests.fake_cluster import FakeCluster

START = datetime.datetime(2026, 11, 30, 12, tzinfo=datetime.UTC)
JUMPS = [datetime.timedelta(days=days) for days in (-1, 1, -3650, 3650)]
PASSES = 4
SPECS = {
    "AnchorHarvest": builders.anchor_harvest(),
    "ServingPlan": builders.serving_plan(),
    "DeploymentMix": {
        "apiVersion": "inferasim.dev/v1alpha1",
        "kind": "DeploymentMix",
        "metadata": {"name": "mix", "namespace": "default"},
        "spec": {
            "planRef": {"name": "plan"},
            "format": "SGLang",
            "model": {"source": {"claim": {"claimName": "weights"}}},
        },
    },
}


@dataclasses.dataclass
class Wall:
    """What the wall clock of the process says; its monotonic clock goes on as it should."""

    now: datetime.datetime = START
    monotonic_s: float = 0.0

    def clock(self) -> Clock:
        return Clock(now=lambda: self.now, monotonic_s=lambda: self.monotonic_s)


@pytest.mark.parametrize("kind", [kind for kind, _ in KINDS], ids=lambda kind: kind.resource.kind)
@pytest.mark.parametrize("jump", JUMPS, ids=str)
def test_a_jump_writes_nothing(kind: Kind[Any], jump: datetime.timedelta) -> None:
    """An object that has settled stays as it is, a harvest whose Job runs among them."""
    manifest = SPECS[kind.resource.kind]
    cluster, wall = FakeCluster(builders.live(manifest)), Wall()
    reconciler = Reconciler(kind, Context(cluster), wall.clock())
    key = ObjectKey("default", manifest["metadata"]["name"])
    for _ in range(PASSES):
        reconciler.run(key)
    before = cluster.objects
    writes, events = cluster.writes, len(cluster.events)
    assert writes > 0
    wall.now += jump
    for _ in range(PASSES):
        assert not reconciler.run(key).failed
    assert (cluster.writes, len(cluster.events)) == (writes, events)
    assert cluster.objects == before


@pytest.mark.parametrize("jump", JUMPS, ids=str)
def test_a_jump_takes_no_lease(jump: datetime.timedelta) -> None:
    """Whoever holds it goes on, and who waits goes on waiting: both count by their own monotonic clocks."""
    cluster, holder, waiter = FakeCluster(), Wall(), Wall()
    one = Lease(cluster, holder.clock(), "ns", "lease", "one", duration_s=15)
    two = Lease(cluster, waiter.clock(), "ns", "lease", "two", duration_s=15)
    assert one.try_acquire()
    assert not two.try_acquire()
    holder.now += jump
    waiter.now -= jump
    for _ in range(10):
        for clock in (holder, waiter):
            clock.monotonic_s += 3
            clock.now += datetime.timedelta(seconds=3)
        assert one.try_acquire()
        assert not two.try_acquire()
