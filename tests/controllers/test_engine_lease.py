"""The leader lease, with clocks that a test moves."""

from __future__ import annotations

import datetime
import threading

import pytest

from inferasim_operator.engine.clock import Clock
from inferasim_operator.engine.lease import Lease
from inferasim_operator.errors import UnavailableError
from tests.fake_cluster import FakeCluster

START = datetime.datetime(2026, 11, 30, tzinfo=datetime.UTC)


class Time:
    """Both clocks of one process."""

    def __init__(self) -> None:
        self.s = 0.0

    def clock(self) -> Clock:
        return Clock(now=lambda: START + datetime.timedelta(seconds=self.s), monotonic_s=lambda: self.s)


def _pair() -> tuple[FakeCluster, Time, Lease, Lease]:
    cluster, time = FakeCluster(), Time()
    one, two = (Lease(cluster, time.clock(), "ns", "lease", name, duration_s=15) for name in ("one", "two"))
    return cluster, time, one, two


def test_one_holds_and_the_other_waits() -> None:
    """While the first renews, the second never gets it; a release hands it over at once."""
    cluster, time, one, two = _pair()
    assert one.try_acquire()
    for _ in range(20):
        time.s += 3
        assert not two.try_acquire()
        assert one.try_acquire()
    one.release()
    assert two.try_acquire()
    spec = cluster.get("coordination.k8s.io/v1", "Lease", "ns", "lease")["spec"]
    assert (spec["holderIdentity"], spec["leaseTransitions"]) == ("two", 1)


def test_a_dead_holder_is_replaced_after_its_lease() -> None:
    """Counted by the waiting process's own clock from when it first looked, since clocks of nodes differ."""
    _, time, one, two = _pair()
    assert one.try_acquire()
    assert not two.try_acquire()
    time.s += 14
    assert not two.try_acquire()
    time.s += 2
    assert two.try_acquire()
    assert not one.try_acquire()
    one.release()
    assert two.try_acquire()


def test_a_holder_has_two_thirds_of_its_lease_to_renew() -> None:
    """Counted from when it began to ask: it stops well before another may take over, whatever its thread does."""
    cluster, time, one, _ = _pair()
    time.s = 100.0
    assert one.try_acquire()
    assert one.left_s() == 10.0
    time.s += 7
    cluster.broken["find"] = UnavailableError("no route")
    with pytest.raises(UnavailableError):
        one.try_acquire()
    assert one.left_s() == 3.0
    cluster.broken.clear()
    assert one.try_acquire()
    assert one.left_s() == 10.0


def test_holding_ends_when_another_has_the_lease_or_when_told() -> None:
    """An outage alone does not end it: how long that may last is `left_s`."""
    cluster, time, one, two = _pair()
    assert one.try_acquire()
    assert not two.try_acquire()
    time.s += 16
    assert two.try_acquire()
    one.duration_s = 0  # no real waiting between two tries
    stop = threading.Event()
    one.hold(stop)  # returns: taken
    cluster.broken["find"] = UnavailableError("no route")
    stop.set()
    assert not one.acquire(stop)
    two.hold(stop)
