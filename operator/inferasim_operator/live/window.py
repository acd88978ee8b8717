"""What happened between two scrapes of a target, and over all targets of a deployment together."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from inferasim_operator.live.scrape import SHARES, Histogram, Scrape
from simcore.errors import InputError

COUNTERS: Final = frozenset(
    {
        "generatedTokens",
        "finishedRequests",
        "promptTokens",
        "prefixQueried",
        "prefixHit",
        "drafts",
        "acceptedTokens",
    }
)


@dataclass(frozen=True)
class Window:
    """Differences of counters and histograms, and the last value of gauges, over `duration_s`."""

    duration_s: float
    targets_count: int
    """Replicas that were scraped; groups, where a replica has several pods (case B13)."""
    histograms: dict[str, Histogram] = field(default_factory=dict)
    counters: dict[str, float] = field(default_factory=dict)
    gauges: dict[str, float] = field(default_factory=dict)
    is_restarted: bool = False
    """A counter began anew within the window."""

    def requests_count(self) -> float | None:
        """Requests that had a first token (or, where no histogram says, ended) in the window; None when unknown."""
        for quantity in ("ttft", "e2e", "promptLength"):
            if quantity in self.histograms:
                return self.histograms[quantity].samples_count
        return self.counters.get("finishedRequests")

    def prompt_tokens(self) -> float | None:
        """Mean prompt length."""
        return self._length("promptLength", "promptTokens")

    def output_tokens(self) -> float | None:
        """Mean output length."""
        return self._length("outputLength", "generatedTokens")

    def _length(self, histogram: str, counter: str) -> float | None:
        if histogram in self.histograms:
            return self.histograms[histogram].mean()
        tokens, requests_count = self.counters.get(counter), self.counters.get("finishedRequests")
        return None if tokens is None or not requests_count else tokens / requests_count

    def mean(self, quantity: str) -> float | None:
        """Mean of a histogram's values in the window."""
        return self.histograms[quantity].mean() if quantity in self.histograms else None

    def generated_tokens_per_s(self) -> float | None:
        """Output tokens per second of all targets together."""
        tokens = self.counters.get("generatedTokens")
        return None if tokens is None else tokens / self.duration_s

    def prefix_hit_frac(self) -> float | None:
        """Share of prompt tokens found in the prefix cache; None when nothing was asked."""
        asked, hit = self.counters.get("prefixQueried"), self.counters.get("prefixHit")
        return None if not asked or hit is None else hit / asked

    def acceptance_length_tokens(self) -> float | None:
        """Tokens per step and request with speculation, the verified one included."""
        drafts, accepted = self.counters.get("drafts"), self.counters.get("acceptedTokens")
        if drafts and accepted is not None:
            return 1 + accepted / drafts
        return self.gauges.get("acceptanceLength") or None


def window(before: Scrape, after: Scrape) -> Window:
    """The window between two scrapes of one target. A counter that went down began anew, and counts from 0."""
    duration_s = after.at_s - before.at_s
    if duration_s <= 0:
        raise InputError("scrapes", duration_s, "be in the order of time")
    is_restarted = False
    histograms = {}
    for quantity, late in after.histograms.items():
        early = before.histograms.get(quantity)
        fresh = early is None or early.bounds != late.bounds or early.samples_count > late.samples_count
        is_restarted = is_restarted or (fresh and early is not None)
        histograms[quantity] = late if fresh or early is None else _difference(early, late)
    counters, gauges = {}, {}
    for quantity, value in after.numbers.items():
        if quantity in COUNTERS:
            start = before.numbers.get(quantity, 0.0)
            is_restarted = is_restarted or start > value
            counters[quantity] = value - start if start <= value else value
        else:
            gauges[quantity] = value
    return Window(duration_s, 1, histograms, counters, gauges, is_restarted)


def over(scrapes: Sequence[Scrape]) -> Window:
    """The window over scrapes of one target in the order of time: increments add up, gauges are means over time."""
    if len(scrapes) < 2:
        raise InputError("scrapes", len(scrapes), "be at least two")
    parts = [window(early, late) for early, late in itertools.pairwise(scrapes)]
    # A histogram whose buckets changed was restarted; only the last form of it can be added up.
    last = {name: histogram.bounds for name, histogram in parts[-1].histograms.items()}
    histograms: dict[str, Histogram] = {}
    counters: dict[str, float] = {}
    for part in parts:
        for name, histogram in part.histograms.items():
            if last.get(name) == histogram.bounds:
                histograms[name] = _sum(histograms[name], histogram) if name in histograms else histogram
        for name, value in part.counters.items():
            counters[name] = counters.get(name, 0.0) + value
    gauges = {}
    for name in parts[-1].gauges:
        values = [scrape.numbers[name] for scrape in scrapes if name in scrape.numbers]
        gauges[name] = sum(values) / len(values)
    duration_s = scrapes[-1].at_s - scrapes[0].at_s
    return Window(duration_s, 1, histograms, counters, gauges, any(part.is_restarted for part in parts))


def combined(windows: Sequence[Window]) -> Window:
    """All targets of one deployment: counts add up, shares are means over the targets (case E11)."""
    if not windows:
        raise InputError("targets", 0, "be at least one")
    names = {name for part in windows for name in part.gauges}
    gauges: dict[str, float] = {}
    for name in sorted(names):
        values = [part.gauges[name] for part in windows if name in part.gauges]
        gauges[name] = sum(values) / len(values) if name in SHARES else sum(values)
    counters: dict[str, float] = {}
    histograms: dict[str, Histogram] = {}
    for part in windows:
        for name, value in part.counters.items():
            counters[name] = counters.get(name, 0.0) + value
        for name, histogram in part.histograms.items():
            histograms[name] = _sum(histograms[name], histogram) if name in histograms else histogram
    duration_s = sum(part.duration_s for part in windows) / len(windows)
    targets_count = sum(part.targets_count for part in windows)
    return Window(duration_s, targets_count, histograms, counters, gauges, any(part.is_restarted for part in windows))


def _difference(early: Histogram, late: Histogram) -> Histogram:
    counts = tuple(b - a for a, b in zip(early.counts, late.counts, strict=True))
    return Histogram(late.bounds, counts, late.total - early.total)


def _sum(one: Histogram, other: Histogram) -> Histogram:
    if one.bounds != other.bounds:
        raise InputError("histograms", "different buckets", "have the same buckets on all targets of a deployment")
    counts = tuple(a + b for a, b in zip(one.counts, other.counts, strict=True))
    return Histogram(one.bounds, counts, one.total + other.total)
