"""Workers: coalescing, own echoes, backoff, wake-up times. No sleeping: passes are steered by events."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from inferasim_operator.engine import loop
from inferasim_operator.engine.actions import ObjectKey
from inferasim_operator.engine.loop import BACKOFF_MAX_S, Workers, backoff_s
from inferasim_operator.engine.reconcile import Outcome

KEY = ObjectKey("ns", "a")


def runs_in_loop(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """A coroutine as a plain test."""

    @functools.wraps(test)
    def run() -> None:
        asyncio.run(test())

    return run


class Passes:
    """Counts passes; each can be held until released."""

    def __init__(self, *outcomes: Outcome) -> None:
        self.outcomes = list(outcomes)
        self.count = 0
        self.changed = threading.Condition()
        self.gate = threading.Event()
        self.gate.set()

    def run(self, key: ObjectKey) -> Outcome:
        with self.changed:
            self.count += 1
            self.changed.notify_all()
        self.gate.wait(10)
        return self.outcomes.pop(0) if self.outcomes and key == KEY else Outcome()

    async def until(self, count: int) -> None:
        def wait() -> None:
            with self.changed:
                assert self.changed.wait_for(lambda: self.count >= count, timeout=10), self.count

        await asyncio.to_thread(wait)


def _workers(run: Callable[[ObjectKey], Outcome]) -> Workers:
    return Workers("Test", run, threads=2, resync_s=3600.0, jitter=lambda: 0.0)


@runs_in_loop
async def test_wakes_during_a_pass_are_one_more_pass() -> None:
    """Ten wakes while a pass runs make one; the object is never worked on twice at a time."""
    passes = Passes()
    workers = _workers(passes.run)
    passes.gate.clear()
    workers.wake(KEY)
    await passes.until(1)
    for _ in range(10):
        workers.wake(KEY)
    passes.gate.set()
    await passes.until(2)
    await workers.close()
    assert passes.count == 2


@runs_in_loop
async def test_wakes_while_queueing_are_the_same_pass() -> None:
    """All threads are busy: an object that is woken again before its turn is looked at once."""
    passes = Passes()
    workers = _workers(passes.run)
    passes.gate.clear()
    for name in ("busy", "busy-too", "queues"):
        workers.wake(ObjectKey("ns", name))
    await passes.until(2)
    for _ in range(10):
        workers.wake(ObjectKey("ns", "queues"))
    passes.gate.set()
    await passes.until(3)
    workers.wake(KEY)
    await passes.until(4)
    await workers.close()
    assert passes.count == 4


@runs_in_loop
async def test_own_status_write_wakes_nobody() -> None:
    """The echo of the version that the pass itself wrote is not news, before or after the pass ends; others are."""
    passes = Passes(Outcome(written_version="8"))
    workers = _workers(passes.run)
    passes.gate.clear()
    workers.wake(KEY, version="7")
    await passes.until(1)
    workers.wake(KEY, version="8")
    passes.gate.set()
    workers.wake(ObjectKey("ns", "b"))
    await passes.until(2)
    workers.wake(KEY, version="8")
    workers.wake(ObjectKey("ns", "c"))
    await passes.until(3)
    workers.wake(KEY, version="9")
    await passes.until(4)
    await workers.close()
    assert passes.count == 4


@runs_in_loop
async def test_gone_objects_lose_their_worker_and_come_back() -> None:
    """Unless they were woken meanwhile."""
    passes = Passes(Outcome(gone=True), Outcome(gone=True))
    workers = _workers(passes.run)
    workers.wake(KEY)
    await passes.until(1)
    workers.wake(KEY)
    await passes.until(2)
    await workers.close()


@runs_in_loop
async def test_wake_after_and_neighbours() -> None:
    """A pass may ask for the next one; `wake_known` reaches the objects of one namespace only."""
    passes = Passes(Outcome(wake_after_s=0.01))
    workers = _workers(passes.run)
    workers.wake(KEY)
    await passes.until(2)
    workers.wake_known("other")
    workers.wake_known("ns")
    await passes.until(3)
    workers.wake_from_thread(KEY)
    await passes.until(4)
    await workers.close()
    assert passes.count == 4


def test_a_status_written_again_and_again_is_slowed_down() -> None:
    """Ten at once cost nothing; a fight ends at one write in two seconds; what rests has its ten again."""
    worker = loop._Worker()
    assert [worker.write(100.0) for _ in range(12)] == [0.0] * 10 + [2.0, 4.0]
    now_s, writes = 104.0, 0
    while now_s < 164.0:
        now_s += worker.write(now_s)
        writes += 1
    assert writes == 30
    assert [worker.write(now_s + 1000.0) for _ in range(11)] == [0.0] * 10 + [2.0]


def test_backoff_grows_and_is_bounded() -> None:
    """1, 2, 4 … s up to five minutes, spread by a fifth."""
    assert [backoff_s(n, 0.0) for n in (1, 2, 3, 4)] == [1.0, 2.0, 4.0, 8.0]
    assert backoff_s(50, 0.0) == BACKOFF_MAX_S
    assert backoff_s(1, 1.0) == pytest.approx(1.2)
    assert backoff_s(1, -1.0) == pytest.approx(0.8)
