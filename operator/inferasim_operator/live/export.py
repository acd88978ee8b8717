"""Comparisons as Prometheus series: gone with their mix, absent where nothing can be said."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from inferasim_operator.live.compare import Comparison, exceeded

LABELS: Final = ("namespace", "mix", "deployment", "model", "engine", "accelerator", "layout")
"""Two variants that differ in the layout alone are two series (case B13)."""
FIGURES: Final = {
    "ttft": ("ttft_seconds", "mean time to first token"),
    "tpot": ("tpot_seconds", "mean time per output token after the first, per request"),
    "throughput": ("output_tokens_per_second_per_gpu", "output tokens per second of one GPU"),
}
OTHERS: Final = {
    "kvUse": (
        "kv_cache_usage_ratio",
        "Used share of the KV cache, mean over window and replicas.",
    ),
    "prefixHit": ("prefix_cache_hit_ratio", "Share of prompt tokens found in the prefix cache."),
    "acceptanceLength": ("acceptance_length_tokens", "Tokens per step and request with speculation."),
}
_PER_QUANTILE: Final = (*LABELS, "quantile")
_COMPARABLE: Final = "Only where the load is the predicted one."


@dataclass(frozen=True, order=True)
class Key:
    """One live configuration; the values of `LABELS`."""

    namespace: str
    mix: str
    deployment: str
    model: str
    engine: str
    accelerator: str
    layout: str

    def values(self) -> list[str]:
        return [getattr(self, name) for name in LABELS]


class LiveCollector(Collector):
    """Holds the latest comparison of each live configuration. Safe to use from threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._comparisons: dict[Key, Comparison] = {}
        self._tolerances: dict[tuple[str, str], dict[str, float]] = {}

    def set_mix(
        self,
        namespace: str,
        mix: str,
        comparisons: Mapping[Key, Comparison],
        tolerance_frac: Mapping[str, float] | None = None,
    ) -> None:
        """All that is known of one mix now; what it had before and has no more vanishes. Empty = the mix is gone."""
        with self._lock:
            kept = {k: v for k, v in self._comparisons.items() if (k.namespace, k.mix) != (namespace, mix)}
            self._comparisons = {**kept, **comparisons}
            self._tolerances.pop((namespace, mix), None)
            if comparisons and tolerance_frac:
                self._tolerances[namespace, mix] = dict(tolerance_frac)

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """The series: predicted, observed and error by figure, and whether each configuration is comparable."""
        with self._lock:
            items = sorted(self._comparisons.items(), key=lambda item: item[0])
            tolerances = dict(self._tolerances)
        yield from _states(items, tolerances)
        for figure, (name, text) in FIGURES.items():
            predicted = _gauge(f"inferasim_predicted_{name}", f"Predicted {text}. {_COMPARABLE}")
            observed = _gauge(f"inferasim_observed_{name}", f"Observed {text}. {_COMPARABLE}")
            error = _gauge(
                f"inferasim_prediction_{figure}_error_ratio",
                f"(observed - predicted) / predicted of the {text}. {_COMPARABLE}",
            )
            for key, comparison in items:
                found = comparison.figures.get(figure)
                if found is not None:
                    predicted.add_metric(key.values(), found.predicted)
                    observed.add_metric(key.values(), found.observed)
                    error.add_metric(key.values(), found.error_ratio)
            yield from (predicted, observed, error)
        for other, (name, text) in OTHERS.items():
            family = _gauge(f"inferasim_observed_{name}", f"{text} {_COMPARABLE}")
            for key, comparison in items:
                if other in comparison.seen:
                    family.add_metric(key.values(), comparison.seen[other])
            yield family
        for figure in ("ttft", "tpot"):
            yield from _intervals(figure, items)


def _gauge(name: str, text: str, labels: Sequence[str] = LABELS) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, labels=labels)


def _states(
    items: Sequence[tuple[Key, Comparison]], tolerances: Mapping[tuple[str, str], Mapping[str, float]]
) -> Iterable[GaugeMetricFamily]:
    comparable = _gauge("inferasim_live_comparable", "1 where the load is the predicted one, else 0.")
    replicas = _gauge("inferasim_live_replicas", "Replicas that were observed; a group of pods is one.")
    within = _gauge(
        "inferasim_prediction_within_tolerance",
        f"1 where every figure is within the mix's tolerance, else 0; absent without one. {_COMPARABLE}",
    )
    for key, comparison in items:
        comparable.add_metric(key.values(), 0.0 if comparison.reasons else 1.0)
        if comparison.replicas_count:
            replicas.add_metric(key.values(), comparison.replicas_count)
        limits = tolerances.get((key.namespace, key.mix), {})
        if limits.keys() & comparison.figures.keys():
            within.add_metric(key.values(), 0.0 if exceeded(comparison, limits) else 1.0)
    yield from (comparable, replicas, within)


def _intervals(figure: str, items: Sequence[tuple[Key, Comparison]]) -> Iterable[GaugeMetricFamily]:
    text = f"end of the histogram bucket that holds a quantile of {figure.upper()}. {_COMPARABLE}"
    low = _gauge(f"inferasim_observed_{figure}_quantile_low_seconds", f"Lower {text}", _PER_QUANTILE)
    high = _gauge(
        f"inferasim_observed_{figure}_quantile_high_seconds", f"Upper {text} Absent in the last bucket.", _PER_QUANTILE
    )
    for key, comparison in items:
        for (of, share_frac), (low_s, high_s) in sorted(comparison.quantiles.items()):
            if of == figure:
                low.add_metric([*key.values(), f"{share_frac:g}"], low_s)
                if math.isfinite(high_s):
                    high.add_metric([*key.values(), f"{share_frac:g}"], high_s)
    yield from (low, high)
