"""One scrape of one target as named quantities; whatever the target does not say is absent, never 0."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from typing import Final

import yaml
from prometheus_client.parser import text_string_to_metric_families

from simcore.errors import FormatError

MAX_BYTES: Final = 8 << 20
SHARES: Final = frozenset({"kvUse", "acceptanceLength"})
"""Gauges that are means over the series of a target; other gauges add up."""


MODEL_LABEL: Final = "model_name"
"""Of vLLM and SGLang; one server may serve several models under one address."""

Sample = tuple[Mapping[str, str], float]
"""Labels and value."""


@dataclass(frozen=True)
class Histogram:
    """Cumulative counts by upper bound, ascending, the last one infinite; and the sum of all values."""

    bounds: tuple[float, ...]
    counts: tuple[float, ...]
    total: float

    @property
    def samples_count(self) -> float:
        return self.counts[-1]

    def mean(self) -> float | None:
        """Exact mean of what was counted; None when nothing was."""
        return self.total / self.samples_count if self.samples_count > 0 else None

    def quantile_interval(self, share_frac: float) -> tuple[float, float] | None:
        """The bucket that holds a quantile, as (low, high): all that a histogram knows. None when empty."""
        if self.samples_count <= 0:
            return None
        wanted = share_frac * self.samples_count
        low = 0.0
        for bound, count in zip(self.bounds, self.counts, strict=True):
            if count >= wanted and count > 0:
                return low, bound
            low = bound
        return low, math.inf


@dataclass(frozen=True)
class Scrape:
    """What one target said at one time."""

    at_s: float
    histograms: Mapping[str, Histogram] = field(default_factory=dict)
    numbers: Mapping[str, float] = field(default_factory=dict)
    """Counters and gauges."""


@functools.cache
def metric_names(source: str) -> Mapping[str, tuple[str, ...]]:
    """Names by quantity for `VLLM`, `SGLang`, `ATOM` or `EPP`."""
    text = resources.files("inferasim_operator.live").joinpath("names.yaml").read_text("utf-8")
    return {quantity: tuple(names) for quantity, names in yaml.safe_load(text)[source].items()}


def parse_scrape(text: str, source: str, at_s: float, *, model: str = "") -> Scrape:
    """A scrape in the Prometheus text format, which is parsed as hostile. Raises FormatError."""
    if len(text) > MAX_BYTES:
        raise FormatError("scrape", None, "text", len(text), f"be at most {MAX_BYTES} characters")
    samples: dict[str, list[Sample]] = {}
    seen: set[tuple[str, frozenset[tuple[str, str]]]] = set()
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                series = sample.name, frozenset(sample.labels.items())
                if series in seen:
                    raise ValueError(f"{sample.name} is there twice")
                seen.add(series)
                samples.setdefault(sample.name, []).append((sample.labels, float(sample.value)))
    except (ValueError, KeyError, IndexError) as error:
        raise FormatError("scrape", None, "text", text[:40], "be in the Prometheus text format") from error
    return scrape_of(samples, source, at_s, model=model)


def scrape_of(samples: Mapping[str, Sequence[Sample]], source: str, at_s: float, *, model: str = "") -> Scrape:
    """The quantities of `source` in samples by metric name; series of one name add up, shares are averaged.

    Series that say they are of another model than `model` do not count; empty = all do.
    """
    if model:
        samples = {name: [one for one in all_ if _is_of(one[0], model)] for name, all_ in samples.items()}
    histograms: dict[str, Histogram] = {}
    numbers: dict[str, float] = {}
    for quantity, names in metric_names(source).items():
        for name in names:
            if samples.get(f"{name}_bucket"):
                found = _histogram(samples[f"{name}_bucket"], samples.get(f"{name}_sum", ()))
                if found is not None:
                    histograms[quantity] = found
                break
            values = [value for _, value in samples.get(name, ()) if math.isfinite(value)]
            if values:
                numbers[quantity] = sum(values) / len(values) if quantity in SHARES else sum(values)
                break
    return Scrape(at_s, histograms, numbers)


def _is_of(labels: Mapping[str, str], model: str) -> bool:
    return labels.get(MODEL_LABEL, model) == model


def series_names(source: str) -> tuple[str, ...]:
    """Every metric name that a page of `source` may carry a quantity under, as Prometheus stores it, sorted."""
    names = {name for quantity in metric_names(source).values() for name in quantity}
    histograms = {f"{name}{end}" for name in names if not name.endswith("_total") for end in ("_bucket", "_sum")}
    return tuple(sorted(names | histograms))


def _histogram(buckets: Iterable[Sample], sums: Iterable[Sample]) -> Histogram | None:
    counts: dict[float, float] = {}
    for labels, value in buckets:
        try:
            bound = float(labels.get("le", ""))
        except ValueError:
            continue
        counts[bound] = counts.get(bound, 0.0) + value
    total = sum(value for _, value in sums)
    bounds = tuple(sorted(counts))
    # Without a last bucket nobody knows how many there were; a value that is no number makes no mean.
    if math.inf not in counts or not all(map(math.isfinite, (total, *counts.values()))):
        return None
    return Histogram(bounds, tuple(counts[bound] for bound in bounds), total)
