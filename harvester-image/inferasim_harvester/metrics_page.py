"""A Prometheus text page, read leniently: engines rename metrics, so every figure has several names (case E11)."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from simcore.cards.layout import Engine

MAX_PAGE_CHARS: Final = 16 * 1024 * 1024
_SAMPLE: Final = re.compile(r"^([A-Za-z_:][A-Za-z0-9_:]*)(?:\{(.*)\})?\s+(\S+)")
_LABEL: Final = re.compile(r'([A-Za-z_][A-Za-z0-9_]*)="((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True)
class Sample:
    """One line of the page."""

    name: str
    labels: dict[str, str]
    value: float


def parse_page(text: str) -> list[Sample]:
    """The samples of a page; lines that are none are skipped."""
    samples = []
    for line in text[:MAX_PAGE_CHARS].splitlines():
        match = _SAMPLE.match(line)
        if match is None:
            continue
        try:
            value = float(match[3])
        except ValueError:
            continue
        samples.append(Sample(match[1], dict(_LABEL.findall(match[2] or "")), value))
    return samples


def total(samples: Sequence[Sample], names: Sequence[str]) -> float | None:
    """The sum over label sets of the first of `names` that the page has; None when it has none."""
    for name in names:
        values = [sample.value for sample in samples if sample.name == name and math.isfinite(sample.value)]
        if values:
            return sum(values)
    return None


@dataclass(frozen=True)
class Names:
    """Where one engine prints each figure, newest name first."""

    queried_tokens: tuple[str, ...]
    hit_tokens: tuple[str, ...]
    running: tuple[str, ...]
    waiting: tuple[str, ...]
    preemptions: tuple[str, ...]
    e2e_sum: tuple[str, ...]
    e2e_count: tuple[str, ...]


NAMES: Final = {
    Engine.VLLM: Names(
        queried_tokens=("vllm:prefix_cache_queries_total", "vllm:prefix_cache_queries"),
        hit_tokens=("vllm:prefix_cache_hits_total", "vllm:prefix_cache_hits", "vllm:prompt_tokens_cached_total"),
        running=("vllm:num_requests_running",),
        waiting=("vllm:num_requests_waiting",),
        preemptions=("vllm:num_preemptions_total", "vllm:num_preemptions"),
        e2e_sum=("vllm:e2e_request_latency_seconds_sum",),
        e2e_count=("vllm:e2e_request_latency_seconds_count",),
    ),
    Engine.SGLANG: Names(
        queried_tokens=("sglang:prompt_tokens_total",),
        hit_tokens=("sglang:cached_tokens_total",),
        running=("sglang:num_running_reqs",),
        waiting=("sglang:num_queue_reqs",),
        preemptions=("sglang:num_retracted_reqs_total", "sglang:num_retracted_reqs"),
        e2e_sum=("sglang:e2e_request_latency_seconds_sum",),
        e2e_count=("sglang:e2e_request_latency_seconds_count",),
    ),
    Engine.ATOM: Names(
        queried_tokens=(
            "atom:prefix_cache_full_tokens_total",
            "atom:prefix_cache_full_tokens",
            "atom:prompt_tokens_total",
        ),
        hit_tokens=("atom:prefix_cache_cached_tokens_total", "atom:prefix_cache_cached_tokens"),
        running=("atom:requests_running", "atom:num_requests_running"),
        waiting=("atom:requests_waiting", "atom:num_requests_waiting"),
        preemptions=("atom:preemptions_total", "atom:preemptions"),
        e2e_sum=(),
        e2e_count=(),
    ),
}
"""Sources: vllm/v1/metrics/loggers.py 0.33, sglang/srt/observability/metrics_collector.py 0.5.23, ATOM metrics.py."""


RANK_LABELS: Final = {Engine.VLLM: "engine", Engine.SGLANG: "dp_rank"}
"""The label that tells attention-DP ranks apart."""


@dataclass(frozen=True)
class Counters:
    """The counters that checks compare before and after; None where the engine does not print them."""

    queried_tokens: float | None
    hit_tokens: float | None
    preemptions: float | None
    e2e_s: float | None
    requests: float | None


def counters(engine: Engine, samples: Sequence[Sample]) -> Counters:
    """The counters on a page of `engine`."""
    names = NAMES[engine]
    return Counters(
        total(samples, names.queried_tokens),
        total(samples, names.hit_tokens),
        total(samples, names.preemptions),
        total(samples, names.e2e_sum),
        total(samples, names.e2e_count),
    )


def fallen(before: Counters, after: Counters) -> str:
    """The first count that fell, in words; empty when none did. Counters begin at 0 again when a process does."""
    for name in ("requests", "queried_tokens", "hit_tokens"):  # times follow clocks; preemptions may be a gauge
        held, value = getattr(before, name), getattr(after, name)
        if value is not None and held is not None and value < held:
            return f"{name} fell from {held:.0f} to {value:.0f}"
    return ""


def requests_by_rank(engine: Engine, samples: Sequence[Sample]) -> dict[str, float]:
    """Finished requests of every attention-DP rank that the page tells apart; empty where it does not."""
    found: dict[str, float] = {}
    for sample in samples:
        rank = sample.labels.get(RANK_LABELS.get(engine, ""))
        if rank is not None and sample.name in NAMES[engine].e2e_count and math.isfinite(sample.value):
            found[rank] = found.get(rank, 0.0) + sample.value
    return found


def difference(after: float | None, before: float | None) -> float | None:
    """Growth of a counter; None when either end is unknown. A counter that was absent at first started at 0."""
    if after is None:
        return None
    return after - (before or 0.0)
