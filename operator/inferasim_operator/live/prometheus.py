"""The same windows from a Prometheus API: the past is already there, so nothing is kept here.

Series are found by `namespace` and by the labels that the emitted PodMonitors carry over; replicas by `pod` (or
`instance`). A series that ended (staleness) has no point at the end of the window, and its replica is not counted.
"""

from __future__ import annotations

import json
import math
import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

import httpx

from inferasim_operator.errors import ClusterError
from inferasim_operator.live.direct import ListPods, whole_window
from inferasim_operator.live.page import TIMEOUT, PageError, fetch
from inferasim_operator.live.pods import targets
from inferasim_operator.live.request import Pool, Prometheus, Reading
from inferasim_operator.live.scrape import Sample, Scrape, metric_names, scrape_of, series_names
from simcore.errors import InputError

LIMIT_BYTES: Final = 64 << 20
POINTS: Final = 20
MIN_STEP_S: Final = 5.0
_CLOCKS: Final = ("running", "ttft")
"""Quantities that say when a page was scraped: the first one that a source has."""

Query = Callable[[str, float, float, float], list[Mapping[str, Any]]]
"""PromQL, start, end and step in seconds to the `result` of a range query."""


@dataclass
class _Past:
    """What Prometheus has of one replica, by evaluation time."""

    samples: dict[float, dict[str, list[Sample]]] = field(default_factory=dict)
    scraped_at_s: dict[float, float] = field(default_factory=dict)


class PrometheusSource:
    """Asks a Prometheus for the window of each pool."""

    def __init__(self, prometheus: Prometheus, list_pods: ListPods | None = None, query: Query | None = None) -> None:
        self._list_pods = list_pods
        self._api = None if query is not None else PrometheusApi(prometheus)
        self._query = query or (self._api.query_range if self._api is not None else None)

    def read(self, pools: Sequence[Pool], window_s: float, now_s: float) -> dict[Pool, Reading]:
        """The window of each pool that ends at `now_s` (Unix time)."""
        return {pool: self._read(pool, window_s, now_s) for pool in dict.fromkeys(pools)}

    def close(self) -> None:
        """Let go of connections."""
        if self._api is not None:
            self._api.close()

    def _read(self, pool: Pool, window_s: float, now_s: float) -> Reading:
        problem = self._problem_of_pods(pool)
        if problem:
            return Reading(None, problem)
        step_s = max(MIN_STEP_S, window_s / POINTS)
        # One step more than the window, because the first sample may be from before the first evaluation.
        start_s = now_s - step_s * (math.ceil(window_s / step_s) + 1)
        assert self._query is not None  # noqa: S101 - one of the two is given
        try:
            values = self._query(selector(pool, series_names(pool.source)), start_s, now_s, step_s)
            clocks = self._query(f"timestamp({selector(pool, _clock_names(pool.source))})", start_s, now_s, step_s)
            histories = scrapes(values, clocks, pool.source, since_s=now_s - 1.0, model=pool.model)
        except PageError as error:
            return Reading(None, f"Prometheus: {error}")
        if not histories:
            return Reading(None, "Prometheus has no recent series of this deployment")
        return whole_window(list(histories.values()), window_s)

    def _problem_of_pods(self, pool: Pool) -> str:
        """Where the pods are in this cluster, they must run what was predicted; elsewhere nobody can look."""
        if self._list_pods is None:
            return ""
        try:
            pods = self._list_pods(pool)
        except ClusterError:
            return ""
        return targets(pool, pods)[1] if pods else ""


def selector(pool: Pool, names: Sequence[str]) -> str:
    """The PromQL selector of these metric names in a pool; values are escaped."""
    parts = [f'__name__=~"{"|".join(names)}"', f"namespace={quoted(pool.namespace)}"]
    parts += [f"{name}={quoted(value)}" for name, value in pool.series_labels]
    return "{" + ",".join(parts) + "}"


def quoted(text: str) -> str:
    """A PromQL string."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def _clock_names(source: str) -> tuple[str, ...]:
    known = metric_names(source)
    quantity = next(name for name in _CLOCKS if name in known)
    return tuple(f"{name}_sum" for name in known[quantity]) if quantity == "ttft" else known[quantity]


def scrapes(
    values: Sequence[Mapping[str, Any]],
    clocks: Sequence[Mapping[str, Any]],
    source: str,
    *,
    since_s: float,
    model: str = "",
) -> dict[str, list[Scrape]]:
    """Scrapes by replica in the order of time, each once, of the replicas that have a value at `since_s` or later.

    Raises PageError when the answer is not one of a range query.
    """
    past: dict[str, _Past] = {}
    try:
        for series in values:
            labels = dict(series["metric"])
            name = labels.pop("__name__")
            replica = past.setdefault(_replica(labels), _Past())
            for at_s, text in series["values"]:
                replica.samples.setdefault(float(at_s), {}).setdefault(name, []).append((labels, float(text)))
        for series in clocks:
            replica = past.setdefault(_replica(series["metric"]), _Past())
            replica.scraped_at_s |= {float(at_s): float(text) for at_s, text in series["values"]}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise PageError("not an answer of a range query") from error
    found = {}
    for name, replica in sorted(past.items()):
        evaluated_s = sorted(at_s for at_s in replica.scraped_at_s if at_s in replica.samples)
        if not evaluated_s or evaluated_s[-1] < since_s:
            continue
        by_time = {replica.scraped_at_s[at_s]: replica.samples[at_s] for at_s in evaluated_s}
        found[name] = [scrape_of(by_time[scraped_s], source, scraped_s, model=model) for scraped_s in sorted(by_time)]
    return found


def _replica(labels: Mapping[str, str]) -> str:
    return str(labels.get("pod") or labels.get("instance") or "")


class PrometheusApi:
    """Range queries over http, or https with the authority, token or password of a Secret."""

    def __init__(self, prometheus: Prometheus) -> None:
        parts = urlsplit(prometheus.url)
        has_secret = bool(prometheus.token or prometheus.user)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.query:
            raise InputError("observation.prometheusUrl", parts.scheme, "be http(s)://host[:port][/path], nothing else")
        if has_secret and parts.scheme != "https":
            raise InputError("observation.prometheusUrl", "http", "be https where a secret is sent")
        verify = True if not prometheus.authority else _context(prometheus.authority)
        self._client = httpx.Client(timeout=TIMEOUT, trust_env=False, verify=verify)
        self._url = prometheus.url.rstrip("/") + "/api/v1/query_range"
        self._headers = {"Authorization": f"Bearer {prometheus.token}"} if prometheus.token else {}
        is_basic = prometheus.user and not prometheus.token
        self._auth = httpx.BasicAuth(prometheus.user, prometheus.password) if is_basic else None

    def query_range(self, promql: str, start_s: float, end_s: float, step_s: float) -> list[Mapping[str, Any]]:
        """The matrix of a range query. Raises PageError."""
        form = {"query": promql, "start": f"{start_s:.3f}", "end": f"{end_s:.3f}", "step": f"{step_s:.3f}"}
        body = fetch(
            self._client, self._url, limit_bytes=LIMIT_BYTES, form=form, headers=self._headers, auth=self._auth
        )
        try:
            answer = json.loads(body)
            if answer["status"] != "success" or answer["data"]["resultType"] != "matrix":
                raise PageError("the query failed")
            result = answer["data"]["result"]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise PageError("not an answer of a Prometheus API") from error
        if not isinstance(result, list):
            raise PageError("not an answer of a Prometheus API")
        return result

    def close(self) -> None:
        """Let go of connections."""
        self._client.close()


def _context(authority: str) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cadata=authority)
    except (ssl.SSLError, ValueError) as error:
        raise InputError("observation.secret", "ca.crt", "hold PEM certificates") from error
