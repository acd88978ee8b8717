"""The observation of every mix in threads of its own: a slow target holds up no reconcile, and no other mix.

A mix says what it wants with every pass; the loop reads, judges and exports at the mix's interval. What the status is
told changes at most every 30 seconds, and a mix is woken only when that differs.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

from inferasim_operator.live.compare import Comparison
from inferasim_operator.live.direct import Source
from inferasim_operator.live.export import LiveCollector
from inferasim_operator.live.judge import judge
from inferasim_operator.live.request import Pool, Reading, Report, Request
from simcore.errors import InferasimError

logger = logging.getLogger(__name__)

WORKERS: Final = 4
MIN_INTERVAL_S: Final = 5.0
MAX_INTERVAL_S: Final = 30.0
INTERVALS_PER_WINDOW: Final = 10
TELL_EVERY_S: Final = 30.0

MakeSource = Callable[[], Source]


def interval_s(window_s: float) -> float:
    """How often a mix is looked at: ten times a window, within bounds."""
    return min(MAX_INTERVAL_S, max(MIN_INTERVAL_S, window_s / INTERVALS_PER_WINDOW))


@dataclass
class _Watched:
    request: Request
    source: Source
    due_s: float
    is_running: bool = False
    latest: Report | None = None
    told: Report | None = None
    told_at_s: float = 0.0


class LiveLoop:
    """Observes the wanted mixes. Safe to use from threads; `step` does all the work, the thread only calls it."""

    def __init__(
        self,
        collector: LiveCollector,
        *,
        words: Callable[[Report], object],
        monotonic_s: Callable[[], float] = time.monotonic,
        wall_s: Callable[[], float] = time.time,
        workers: int = WORKERS,
    ) -> None:
        """`words` is what the status says of a report: only a change of that wakes a mix."""
        self.on_change: Callable[[Any], None] = _nobody
        self._collector, self._words = collector, words
        self._monotonic_s, self._wall_s = monotonic_s, wall_s
        self._lock = threading.Lock()
        self._watched: dict[Hashable, _Watched] = {}
        self._wanted = threading.Event()
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="live") if workers else None
        self._thread: threading.Thread | None = None

    def want(self, owner: Hashable, request: Request, make_source: MakeSource) -> Report | None:
        """Observe this from now on; what the status may say of it now, None when nothing is known yet."""
        with self._lock:
            watched = self._watched.get(owner)
            if watched is None or watched.request.prometheus != request.prometheus:
                if watched is not None:
                    watched.source.close()
                watched = _Watched(request, make_source(), self._monotonic_s())
                self._watched[owner] = watched
            elif watched.request != request:
                # Another promise: what was judged by the old one is no longer true. Scrapes are kept.
                watched.request, watched.due_s = request, self._monotonic_s()
                watched.latest = watched.told = None
                self._collector.set_mix(request.namespace, request.mix, {})
            told = watched.told
        self._start()
        self._wanted.set()
        return told

    def known(self, owner: Hashable) -> Report | None:
        """What the status may say of an owner now, without wanting anything new."""
        with self._lock:
            watched = self._watched.get(owner)
            return watched.told if watched is not None else None

    def forget(self, owner: Hashable) -> None:
        """The owner wants nothing any more: its series vanish."""
        with self._lock:
            watched = self._watched.pop(owner, None)
            if watched is not None:
                # Within the lock, so that a read that is under way cannot bring them back.
                self._collector.set_mix(watched.request.namespace, watched.request.mix, {})
        if watched is not None:
            watched.source.close()

    def step(self) -> float:
        """Start what is due; returns the seconds until something is."""
        now_s = self._monotonic_s()
        with self._lock:
            due = [
                (owner, watched)
                for owner, watched in self._watched.items()
                if watched.due_s <= now_s and not watched.is_running
            ]
            for _, watched in due:
                watched.is_running = True
                watched.due_s = now_s + interval_s(watched.request.window_s)
            waiting = [watched.due_s for watched in self._watched.values()]
        for owner, watched in due:
            if self._pool is None:
                self._observe(owner, watched)
            else:
                self._pool.submit(self._observe, owner, watched)
        return max(0.5, min(waiting, default=MAX_INTERVAL_S + now_s) - now_s)

    def _start(self) -> None:
        if self._pool is None or self._thread is not None:
            return
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="live", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while True:
            self._wanted.wait(self.step())
            self._wanted.clear()

    def _observe(self, owner: Hashable, watched: _Watched) -> None:
        request = watched.request
        try:
            report = Report(self._comparisons(request, watched.source))
        except Exception:
            with self._lock:
                if self._watched.get(owner) is not watched:
                    return  # its source was closed under the read
            # A thread that dies silently would leave yesterday's figures on the page.
            logger.exception("live figures of %s/%s: internal error", request.namespace, request.mix)
            problem = Comparison({}, ("internal error, see the operator's log",))
            report = Report({subject.key: problem for subject in request.subjects})
        if self._keep(owner, watched, request, report):
            self.on_change(owner)

    def _comparisons(self, request: Request, source: Source) -> dict[Any, Comparison]:
        pools: list[Pool] = [pool for subject in request.subjects for pool in subject.pools]
        now_s = self._monotonic_s() if request.prometheus is None else self._wall_s()
        try:
            readings = source.read(pools, request.window_s, now_s)
        except InferasimError as error:
            readings = {pool: Reading(None, str(error)) for pool in pools}
        return {subject.key: judge(subject, readings) for subject in request.subjects}

    def _keep(self, owner: Hashable, watched: _Watched, request: Request, report: Report) -> bool:
        """Export a report; whether the status has something new to say."""
        now_s = self._monotonic_s()
        with self._lock:
            watched.is_running = False
            if self._watched.get(owner) is not watched or watched.request != request:
                return False
            watched.latest = report
            self._collector.set_mix(request.namespace, request.mix, report.comparisons, dict(request.tolerance_frac))
            is_early = now_s < watched.told_at_s + TELL_EVERY_S
            if watched.told is not None and (is_early or self._words(watched.told) == self._words(report)):
                return False
            watched.told, watched.told_at_s = report, now_s
            return True


def _nobody(_: Any) -> None:
    """Nobody is woken before the handlers are registered."""
