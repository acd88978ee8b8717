"""Legal API objects for tests: complete by default, changed by keyword. Each passes both pydantic and the server."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from simcore.anchors import schema

API_VERSION = "inferasim.dev/v1alpha1"
Object = dict[str, Any]


def _object(kind: str, name: str, namespace: str, spec: Mapping[str, Any], changes: Mapping[str, Any]) -> Object:
    return {
        "apiVersion": API_VERSION,
        "kind": kind,
        "metadata": {"name": name, "namespace": namespace},
        "spec": {key: value for key, value in {**copy.deepcopy(dict(spec)), **changes}.items() if value is not None},
    }


def serving_plan(name: str = "plan", namespace: str = "default", **changes: Any) -> Object:
    """A ServingPlan; keywords replace fields of the spec, None removes one."""
    spec = {
        "model": {"name": "Llama-3.1-8B"},
        "cluster": {"accelerator": "MI355X", "nodes": 1, "gpusPerNode": 8},
        "engines": [{"name": "SGLang"}],
        "workload": {"fixed": {"promptTokens": 1024, "outputTokens": 256}},
        "load": {"concurrencies": [1, 8, 64]},
        "tiers": [{"name": "interactive", "tokensPerSecondPerUser": 70, "ttftMilliseconds": 2500}, {"name": "bulk"}],
    }
    return _object("ServingPlan", name, namespace, spec, changes)


def anchor_harvest(name: str = "harvest", namespace: str = "default", **changes: Any) -> Object:
    """An AnchorHarvest of SGLang on one MI355X; keywords replace fields of the spec, None removes one."""
    spec = {
        "engine": {"name": "SGLang", "version": "0.5.9", "image": "example.test/sglang:0.5.9"},
        "model": {"name": "Llama-3.1-8B", "source": {"claim": {"claimName": "models", "path": "llama-3.1-8b"}}},
        "accelerator": {"product": "MI355X"},
        "layout": {"tensorParallel": 4},
    }
    return _object("AnchorHarvest", name, namespace, spec, changes)


def live(manifest: Mapping[str, Any], *, uid: str = "uid-1", generation: int = 1, **status: Any) -> Object:
    """The manifest as the API server would return it."""
    found = copy.deepcopy(dict(manifest))
    found["metadata"] |= {"uid": uid, "generation": generation, "resourceVersion": "7"}
    if status:
        found["status"] = status
    return found


def anchor(accelerator: str = "MI355X", **changes: Any) -> schema.Anchor:
    """A small, legal anchor with a plausible shape; its figures stand for nothing."""
    document: Object = {
        "schema": schema.SCHEMA_ID,
        "signature": {
            "accelerator": accelerator,
            "engine": "SGLang",
            "engineVersion": "0.5.9",
            "image": "example.test/sglang:0.5.9",
            "model": "Llama-3.1-8B",
            "weightsDtype": "bf16",
            "kvDtype": "bf16",
            "tensorParallel": 1,
        },
        "decode": [
            {
                "promptTokens": 1024,
                "contextTokens": 1152,
                "points": [
                    {"batch": batch, "stepMilliseconds": 4.0 + 0.02 * batch} for batch in (1, 2, 4, 8, 16, 32, 64)
                ],
            }
        ],
        "prefill": {
            "points": [{"promptTokens": n, "milliseconds": 8.0 + 0.02 * n} for n in (512, 1024, 2048, 4096, 8192)],
            "fit": {
                "fixedMilliseconds": 8.0,
                "perTokenMicroseconds": 20.0,
                "perTokenSquaredNanoseconds": 0.0,
                "residualPercent": 0.0,
            },
        },
        "provenance": {"source": "harvested", "realWeights": True, "prefixCachingOff": True},
    }
    return schema.anchor_from(document | changes)


def anchor_config_map(name: str, namespace: str = "default", *, accelerator: str = "MI355X") -> Object:
    """A ConfigMap that holds an anchor, as a person or a harvest makes it."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": namespace, "labels": {"inferasim.dev/anchor": "true"}},
        "data": {"anchor.json": anchor(accelerator).to_json()},
    }


def plan_result(**changes: Any) -> Object:
    """An answer in the form of `planning.compute_plan`."""
    configuration = {
        "engine": "SGLang",
        "engineVersion": "0.5.9",
        "layout": {"tensorParallel": 1},
        "replicas": 8,
        "gpusPerReplica": 1,
        "concurrency": 64,
    }
    result: Object = {
        "feasible": True,
        "selected": [
            {
                "tier": "bulk",
                "configuration": configuration,
                "gpus": 8,
                "predicted": {"ttftMilliseconds": 120, "tpotMicroseconds": 9100, "tokensPerSecondPerGpu": 870},
                "source": {"mode": "Anchored", "anchor": "anchor-a"},
            }
        ],
        "binding": [],
        "front": [],
        "candidates": {"scored": 12, "total": 12},
        "recommendedHarvests": [],
        "provenance": {"inferasimVersion": "0.1.0"},
    }
    return result | changes
