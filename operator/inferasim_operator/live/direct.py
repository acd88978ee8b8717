"""Scraping the pods themselves: the last window of scrapes of each is kept, in memory only."""

from __future__ import annotations

import functools
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, Protocol

import httpx

from inferasim_operator.errors import ClusterError
from inferasim_operator.live.page import TIMEOUT, PageError, fetch
from inferasim_operator.live.pods import Target, targets
from inferasim_operator.live.request import Pool, Reading
from inferasim_operator.live.scrape import MAX_BYTES, Scrape, parse_scrape
from inferasim_operator.live.window import combined, over
from simcore.errors import FormatError, InputError

SCRAPERS: Final = 8
MAX_SCRAPES: Final = 100
"""Kept per replica, however long the window is."""
MIN_SPAN_FRAC: Final = 0.9
"""How much of the window there must be scrapes of."""

ListPods = Callable[[Pool], Sequence[Mapping[str, Any]]]
Fetch = Callable[[str], str]


class Source(Protocol):
    """Where the figures of a mix come from."""

    def read(self, pools: Sequence[Pool], window_s: float, now_s: float) -> dict[Pool, Reading]:
        """The last window of every pool. Never raises for what a target does."""
        ...

    def close(self) -> None:
        """Let go of connections."""
        ...


class DirectSource:
    """Scrapes each replica of the pools at every read."""

    def __init__(
        self,
        list_pods: ListPods,
        fetch_page: Fetch | None = None,
        *,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._monotonic_s = monotonic_s
        self._client = httpx.Client(timeout=TIMEOUT, trust_env=False)
        self._list_pods = list_pods
        self._fetch = fetch_page or self._over_http
        self._history: dict[tuple[Pool, str], deque[Scrape]] = {}
        self._alive: set[tuple[Pool, str]] = set()
        self._scrapers = ThreadPoolExecutor(SCRAPERS, thread_name_prefix="scrape")
        self._lock = threading.Lock()

    def read(
        self,
        pools: Sequence[Pool],
        window_s: float,
        now_s: float,  # noqa: ARG002 - each scrape has its own time
    ) -> dict[Pool, Reading]:
        """The window of each pool that ends now; a pool whose replicas are younger has a reason instead."""
        with self._lock:
            self._alive.clear()
            readings = {pool: self._read(pool, window_s) for pool in dict.fromkeys(pools)}
            self._history = {key: scrapes for key, scrapes in self._history.items() if key in self._alive}
            return readings

    def close(self) -> None:
        """Let go of connections and threads."""
        self._scrapers.shutdown(wait=False, cancel_futures=True)
        self._client.close()

    def _read(self, pool: Pool, window_s: float) -> Reading:
        try:
            found, problem = targets(pool, self._list_pods(pool))
        except ClusterError as error:
            return Reading(None, f"pods cannot be listed: {error.reason}")
        if problem:
            return Reading(None, problem)
        failures = []
        self._alive |= {(pool, target.uid) for target in found}
        outcomes = self._scrapers.map(functools.partial(self._scrape, pool), found)
        for target, outcome in zip(found, outcomes, strict=True):
            if isinstance(outcome, str):
                failures.append(f"{target.name}: {outcome}")
                continue
            keep(self._history.setdefault((pool, target.uid), deque()), outcome, window_s)
        if failures:
            return Reading(None, f"{len(failures)} of {len(found)} pods cannot be scraped ({failures[0]})")
        return whole_window([self._history[pool, target.uid] for target in found], window_s)

    def _scrape(self, pool: Pool, target: Target) -> Scrape | str:
        try:
            text = self._fetch(target.url)
            return parse_scrape(text, pool.source, self._monotonic_s(), model=pool.model)
        except PageError as error:
            return str(error)
        except FormatError:
            return "not a page in the Prometheus text format"

    def _over_http(self, url: str) -> str:
        return fetch(self._client, url, limit_bytes=MAX_BYTES).decode("utf-8", errors="replace")


def keep(history: deque[Scrape], scrape: Scrape, window_s: float) -> None:
    """Add a scrape: at most about `MAX_SCRAPES` over the window, and one from before it, so that it is whole."""
    if len(history) > 1 and history[-1].at_s - history[-2].at_s < window_s / MAX_SCRAPES:
        history.pop()  # the newest one takes its place
    history.append(scrape)
    while len(history) > 2 and history[1].at_s <= scrape.at_s - window_s:
        history.popleft()


def whole_window(histories: Sequence[Sequence[Scrape]], window_s: float) -> Reading:
    """All replicas of a pool over one window, or why there is none yet: each must have been seen for most of it."""
    span_s = min(scrapes[-1].at_s - scrapes[0].at_s for scrapes in histories)
    if span_s < MIN_SPAN_FRAC * window_s:
        return Reading(None, f"a replica has not been observed for the whole window of {window_s:.0f} s")
    try:
        return Reading(combined([over(scrapes) for scrapes in histories]))
    except InputError as error:
        return Reading(None, str(error))
