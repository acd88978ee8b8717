"""A planning function for tests of the operator itself: quick, deterministic, obedient to markers in the spec.

`nodes: 13` is infeasible, `nodes: 14` is refused as bad input, `nodes: 15` dies, `nodes: 16` takes seconds.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

from simcore.errors import InputError


def compute_plan(request: Mapping[str, Any], progress: Callable[[Mapping[str, Any]], None]) -> dict[str, Any]:
    """An answer whose figures depend on the question alone."""
    spec = request["spec"]
    nodes = spec["cluster"]["nodes"]
    mark = int(hashlib.sha256(json.dumps(request, sort_keys=True).encode()).hexdigest()[:4], 16)
    progress({"scored": 1, "total": 2, "best": "TP1 x8"})
    if nodes == 14:
        raise InputError("engines[0].layouts[0].tensorParallel", 3, "divide the 32 attention heads")
    if nodes == 15:
        os._exit(9)
    if nodes == 16:
        time.sleep(20)
    configuration = {
        "engine": spec["engines"][0]["name"],
        "layout": {"tensorParallel": 1},
        "replicas": 8,
        "gpusPerReplica": 1,
        "concurrency": 64,
    }
    predicted = {"ttftMilliseconds": 100, "tpotMicroseconds": 9000, "tokensPerSecondPerGpu": mark}
    chosen = {
        "tier": "bulk",
        "configuration": configuration,
        "gpus": 8,
        "predicted": predicted,
        "source": {"mode": "Anchored", "anchor": next(iter(request["anchors"]), None)},
    }
    limit = {
        "tier": "bulk",
        "limit": "ttft",
        "detail": "TTFT 900 ms exceeds 10 ms",
        "nearest": {"configuration": configuration, "predicted": predicted},
    }
    return {
        "feasible": nodes != 13,
        "selected": [] if nodes == 13 else [chosen],
        "binding": [limit] if nodes == 13 else [],
        "front": [],
        "candidates": {"scored": 2, "total": 2},
        "recommendedHarvests": [],
        "provenance": {"inferasimVersion": "0.1.0"},
    }


def compute_by_key(request: Mapping[str, Any], progress: Callable[[Mapping[str, Any]], None]) -> dict[str, Any]:
    """An answer whose throughput tells which key of a language model the computing process was given."""
    answer = compute_plan(request, progress)
    answer["selected"][0]["predicted"]["tokensPerSecondPerGpu"] = key_mark(request["agentKey"])
    return answer


def key_mark(key: str) -> int:
    """A number for a key, which does not give the key away."""
    return int(hashlib.sha256(key.encode()).hexdigest()[:4], 16)
