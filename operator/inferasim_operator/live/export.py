"""Comparisons as Prometheus series: gone with their mix, absent where nothing can be said."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from inferasim_operator.live.compare import Comparison

LABELS: Final = ("namespace", "mix", "deployment", "model", "engine", "accelerator", "layout")
"""Two variants that differ in the layout alone are two series (case B13)."""
_UNITS: Final = {
    "ttft": ("ttft_seconds", "Mean time to first token"),
    "tpot": ("tpot_seconds", "Mean time per output token after the first, per request"),
    "throughput": ("output_tokens_per_second_per_gpu", "Output tokens per second of one GPU"),
}


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

    def set_mix(self, namespace: str, mix: str, comparisons: dict[Key, Comparison]) -> None:
        """All that is known of one mix now; what it had before and has no more vanishes. Empty = the mix is gone."""
        with self._lock:
            kept = {k: v for k, v in self._comparisons.items() if (k.namespace, k.mix) != (namespace, mix)}
            self._comparisons = kept | comparisons

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """The series: predicted, observed and error by figure, and whether each configuration is comparable."""
        with self._lock:
            items = sorted(self._comparisons.items())
        comparable = GaugeMetricFamily(
            "inferasim_live_comparable", "1 where the load is the predicted one, else 0.", labels=LABELS
        )
        for key, comparison in items:
            comparable.add_metric(key.values(), 0.0 if comparison.reasons else 1.0)
        yield comparable
        for figure, (name, text) in _UNITS.items():
            predicted = GaugeMetricFamily(f"inferasim_predicted_{name}", f"{text}, predicted.", labels=LABELS)
            observed = GaugeMetricFamily(f"inferasim_observed_{name}", f"{text}, observed.", labels=LABELS)
            error = GaugeMetricFamily(
                f"inferasim_prediction_{figure}_error_ratio", "(observed - predicted) / predicted.", labels=LABELS
            )
            for key, comparison in items:
                found = comparison.figures.get(figure)
                if found is not None:
                    predicted.add_metric(key.values(), found.predicted)
                    observed.add_metric(key.values(), found.observed)
                    error.add_metric(key.values(), found.error_ratio)
            yield from (predicted, observed, error)
