"""From the readings of a deployment's pools to its comparison. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from inferasim_operator.live.compare import Comparison, compare
from inferasim_operator.live.request import Pool, Reading, Subject
from inferasim_operator.live.window import Window
from simcore.errors import InputError


def judge(subject: Subject, readings: Mapping[Pool, Reading]) -> Comparison:
    """The figures of one live configuration, or every reason why there are none."""
    problems = [subject.problem] if subject.problem else []
    problems += [readings[pool].problem for pool in subject.pools if readings[pool].problem]
    windows = {pool: readings[pool].window for pool in subject.pools}
    engines = windows[subject.engines]
    if problems or subject.promise is None or engines is None or None in windows.values():
        count = engines.targets_count if engines is not None else 0
        return Comparison({}, tuple(dict.fromkeys(problems)), replicas_count=count)
    latency = windows[subject.router] if subject.router is not None else None
    prefill = windows[subject.prefill] if subject.prefill is not None else None
    gpus_count = sum(
        pool.gpus_per_replica_count * found.targets_count for pool, found in windows.items() if found is not None
    )
    seen = engines if prefill is None else _both_sides(engines, prefill)
    try:
        return compare(subject.promise, seen, latency, gpus_count=gpus_count)
    except InputError as error:
        return Comparison({}, (str(error),), replicas_count=engines.targets_count)


def _both_sides(decode: Window, prefill: Window) -> Window:
    """Decode's tokens, prefill's prefix cache, the requests of both; replicas are decode's, which hold the load.

    Latency is dropped: each side saw a part of a request, and only the router saw all of it.
    """
    counters = {name: value for name, value in decode.counters.items() if not name.startswith("prefix")}
    counters |= {name: value for name, value in prefill.counters.items() if name.startswith("prefix")}
    gauges = dict(decode.gauges)
    for name in ("running", "waiting"):
        if name in prefill.gauges:
            gauges[name] = gauges.get(name, 0.0) + prefill.gauges[name]
    return replace(
        decode,
        histograms={},
        counters=counters,
        gauges=gauges,
        is_restarted=decode.is_restarted or prefill.is_restarted,
    )
