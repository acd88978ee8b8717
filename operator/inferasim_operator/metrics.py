"""Prometheus metrics of the operator itself."""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

reconciles = Counter("inferasim_reconciles", "Passes over objects, by how they ended.", ["kind", "result"])
reconcile_seconds = Histogram(
    "inferasim_reconcile_seconds",
    "Duration of a pass.",
    ["kind"],
    buckets=(0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0),
)
objects = Gauge("inferasim_objects", "Objects that have a worker.", ["kind"])
objects_due = Gauge("inferasim_objects_due", "Objects whose pass runs, is due, or is to be tried again.", ["kind"])
computations = Counter("inferasim_computations", "Computations that ended, by how.", ["result"])
computations_waiting = Gauge("inferasim_computations_waiting", "Computations that wait for a process.")
computation_seconds = Histogram(
    "inferasim_computation_seconds", "Duration of a computation.", buckets=(0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000)
)
