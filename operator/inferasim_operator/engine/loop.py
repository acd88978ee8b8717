"""The loop: one asynchronous worker per object, woken by anything, that runs passes in threads.

Level-triggered: a wake carries no content, many wakes while a pass runs are one more pass, and every object is looked
at again after the kind's resync time. A failed pass is tried again with exponential backoff and jitter. An object whose
status is written again and again (another operator says something else of it) is slowed down.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from inferasim_operator import metrics
from inferasim_operator.engine.actions import ObjectKey
from inferasim_operator.engine.reconcile import Outcome

BACKOFF_FIRST_S = 1.0
BACKOFF_MAX_S = 300.0
JITTER_FRAC = 0.2
WRITES_AT_ONCE = 10.0
WRITES_PER_S = 0.5


def backoff_s(failures_count: int, jitter: float) -> float:
    """Seconds to wait after so many failures in a row; `jitter` in [-1, 1] spreads a crowd."""
    return min(BACKOFF_MAX_S, BACKOFF_FIRST_S * 2.0 ** min(failures_count - 1, 16)) * (1.0 + JITTER_FRAC * jitter)


@dataclass
class _Worker:
    woken: asyncio.Event = field(default_factory=asyncio.Event)
    versions: set[str | None] = field(default_factory=set)
    """The resourceVersions seen since the pass began; None stands for a wake of another origin."""
    task: asyncio.Task[None] | None = None
    writes_left: float = WRITES_AT_ONCE
    written_s: float = 0.0

    def write(self, now_s: float) -> float:
        """Note a status write; how long to wait until the next pass, so that over time there are WRITES_PER_S."""
        grown = self.writes_left + (now_s - self.written_s) * WRITES_PER_S
        self.writes_left, self.written_s = min(WRITES_AT_ONCE, grown) - 1.0, now_s
        return max(0.0, -self.writes_left / WRITES_PER_S)


class Workers:
    """The workers of one kind. All methods but `wake_from_thread` belong to the event loop's thread."""

    def __init__(
        self,
        kind: str,
        run: Callable[[ObjectKey], Outcome],
        *,
        threads: int,
        resync_s: float,
        jitter: Callable[[], float] = lambda: random.uniform(-1.0, 1.0),  # noqa: S311 - spreads load, no secret
    ) -> None:
        self._kind, self._run, self._resync_s, self._jitter = kind, run, resync_s, jitter
        self._threads = ThreadPoolExecutor(max_workers=threads, thread_name_prefix=f"{kind}-pass")
        self._free = asyncio.Semaphore(threads)
        self._workers: dict[ObjectKey, _Worker] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False

    def wake(self, key: ObjectKey, *, version: str | None = None) -> None:
        """Have one more pass over an object, soon. `version` is given when the object itself changed to it."""
        if self._closed:
            return
        self._loop = asyncio.get_running_loop()
        worker = self._workers.get(key)
        if worker is None:
            worker = self._workers[key] = _Worker()
            worker.task = self._loop.create_task(self._work(key, worker), name=f"{self._kind} {key}")
            metrics.objects.labels(self._kind).set(len(self._workers))
            metrics.objects_due.labels(self._kind).inc()
        worker.versions.add(version)
        worker.woken.set()

    def wake_known(self, namespace: str) -> None:
        """Wake all objects of a namespace that have a worker (something they may refer to has changed)."""
        for key in list(self._workers):
            if key.namespace == namespace:
                self.wake(key)

    def wake_from_thread(self, key: ObjectKey) -> None:
        """Wake an object from outside the event loop."""
        if self._loop is not None and not self._closed:
            self._loop.call_soon_threadsafe(self.wake, key)

    async def close(self) -> None:
        """End all workers; a pass that is under way is finished, so that no status is half written."""
        self._closed = True
        tasks = [worker.task for worker in self._workers.values() if worker.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.to_thread(self._threads.shutdown, wait=True, cancel_futures=True)

    async def _work(self, key: ObjectKey, worker: _Worker) -> None:
        loop = asyncio.get_running_loop()
        failures_count = 0
        while True:
            # Wakes are forgotten only once a thread is free: after a restart an object is woken by itself and by all
            # that it owns while it queues, and that is one pass.
            async with self._free:
                worker.woken.clear()
                worker.versions.clear()
                outcome = await loop.run_in_executor(self._threads, self._run, key)
            worker.versions.discard(outcome.written_version)
            if outcome.gone and not worker.versions:
                del self._workers[key]
                metrics.objects.labels(self._kind).set(len(self._workers))
                metrics.objects_due.labels(self._kind).dec()
                return
            if outcome.failed:
                failures_count += 1
                # Not cut short by a wake: an object that fails and is touched all the time must not be a hot loop.
                await asyncio.sleep(min(BACKOFF_FIRST_S, backoff_s(failures_count, self._jitter())))
            else:
                failures_count = 0
            if outcome.written_version:
                await asyncio.sleep(worker.write(loop.time()))
            at_rest_count = 0 if failures_count else 1
            metrics.objects_due.labels(self._kind).dec(at_rest_count)
            await self._wait(worker, outcome, failures_count)
            metrics.objects_due.labels(self._kind).inc(at_rest_count)

    async def _wait(self, worker: _Worker, outcome: Outcome, failures_count: int) -> None:
        """Until the worker is woken by something else than its own status write, or its time is over."""
        wait_s = self._resync_s * (1.0 + JITTER_FRAC * self._jitter())
        if outcome.wake_after_s is not None:
            wait_s = min(wait_s, outcome.wake_after_s)
        if failures_count:
            wait_s = min(wait_s, backoff_s(failures_count, self._jitter()))
        deadline = asyncio.get_running_loop().time() + wait_s
        while True:
            worker.versions.discard(outcome.written_version)
            if worker.versions:
                return
            worker.woken.clear()
            try:
                async with asyncio.timeout_at(deadline):  # not wait_for, which is a second task for each object
                    await worker.woken.wait()
            except TimeoutError:
                return
