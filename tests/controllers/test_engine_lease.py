"""The leader lease, with clocks that a test moves."""

from __future__ import annotations

import datetime
import threading

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


def test_holder_that_cannot_renew_gives_up() -> None:
    """Before another could have taken it; and a stop ends both waiting and holding."""
    cluster, time, one, two = _pair()
    assert one.try_acquire()
    stop = threading.Event()
    cluster.broken["find"] = UnavailableError("no route")
    time.s += 11
    one.duration_s = 0  # no real waiting between two tries
    one.hold(stop)  # returns: lost
    cluster.broken.clear()
    stop.set()
    assert not two.acquire(stop)
    two.hold(stop)
