"""ServingPlans that cannot be met, or must not be asked, on the real API server: each fails closed and says why.

Siblings of public cases A10, B01 to B04, B14, C03, D08; the same questions by hand go through `inferasim plan`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from e2e.errors import KubectlError
from tests import builders
from tests.conditions import assert_conditions
from tests.integration.harness import Cluster, Object, Operator

MakeOperator = Callable[..., Operator]
FUNCTION = "inferasim_operator.planning:compute_plan"
LOAD = {"concurrencies": [1, 8]}
ONE_GPU = {"accelerator": "MI355X", "nodes": 1, "gpuBudget": 1}
BULK = [{"name": "bulk"}]
SIMULATED = {"mode": "Simulate"}
HUGE: dict[str, Any] = {
    "model": {"name": "Llama-3.1-405B"},
    "cluster": {"accelerator": "MI300X", "nodes": 1, "gpusPerNode": 4},
    "anchors": SIMULATED,
}

UNMET: dict[str, tuple[dict[str, Any], str, dict[str, int] | None]] = {
    # Name: what is asked, the limit that binds, the layout that comes nearest (None: any).
    "budget": ({"cluster": ONE_GPU, "engines": [{"name": "SGLang", "layouts": [{"tensorParallel": 4}]}]},
               "gpu-budget", {"tensorParallel": 4}),
    "memory": (HUGE, "memory", {"tensorParallel": 4}),
    "tight": ({"tiers": [{"name": "t", "tokensPerSecondPerUser": 100_000, "ttftMilliseconds": 9_000}]},
              "interactivity", None),
    "first-token": ({"tiers": [{"name": "t", "ttftMilliseconds": 1}]}, "ttft", None),
    "at-odds": ({"tiers": [{"name": "t", "tokensPerSecondPerUser": 1}], "slo": {"tpotMicroseconds": 1},
                 "objective": "totalThroughput"}, "slo", None),
    "flooded": ({"load": {"requestsPerMinute": 10_000_000}}, "overload", None),
    "other-engine": ({"engines": [{"name": "VLLM"}]}, "anchor", {"tensorParallel": 1}),
    "other-version": ({"engines": [{"name": "SGLang", "version": "0.4.0"}]}, "anchor", {"tensorParallel": 1}),
    "other-image": ({"engines": [{"name": "SGLang", "image": "example.test/other:1"}]}, "anchor", None),
}  # fmt: skip

INVALID: dict[str, tuple[dict[str, Any], str, str]] = {
    # Name: what is asked, the condition's reason, its words.
    "single-token": ({"workload": {"fixed": {"promptTokens": 64, "outputTokens": 1}}}, "InvalidInput",
                     "answer with at least 2 tokens"),
    "too-long": ({"workload": {"fixed": {"promptTokens": 200_000, "outputTokens": 10}}}, "InvalidInput",
                 "within the model's 131072 positions"),
    "too-wide": ({"engines": [{"name": "SGLang", "layouts": [{"tensorParallel": 3}]}]}, "BadLayout",
                 "32 attention heads mod TP 3"),
    "half-experts": ({"model": {"name": "Qwen3-235B-A22B"}, "anchors": SIMULATED,
                      "engines": [{"name": "VLLM", "layouts": [{"tensorParallel": 8, "expertParallel": 4}]}]},
                     "BadLayout", "expert parallelism is off (EP 1) or spans the whole group (EP 8), not 4"),
    "over-cluster": ({"cluster": {"accelerator": "MI355X", "nodes": 1, "gpuBudget": 9}}, "InvalidInput",
                     "must be 1 to 8"),
    "nobody": ({"model": {"name": "Lama-3.1-8B"}}, "UnknownModel", "did you mean"),
    "unserved-tier": ({"demands": [{"tier": "gold", "tokensPerSecond": 5}]}, "InvalidInput", "be one of"),
    "lost-trace": ({"workload": {"trace": {"configMap": {"name": "week"}}}}, "TraceNotFound",
                   "ConfigMap week does not exist"),
}  # fmt: skip

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    # What the API server itself refuses, and what it names.
    "no demand": ({"demands": [{"tier": "bulk", "tokensPerSecond": 0}]}, "tokensPerSecond"),
    "fifty tiers": ({"tiers": [{"name": f"t{number}"} for number in range(50)]}, "spec.tiers"),
    "a tier twice": ({"tiers": [{"name": "a"}, {"name": "a"}]}, "spec.tiers"),
    "two loads": ({"load": {"concurrencies": [1], "requestsPerMinute": 1}}, "exactly one of"),
    "no load": ({"load": {}}, "exactly one of"),
    "no GPU": ({"cluster": ONE_GPU | {"gpuBudget": 0}}, "gpuBudget"),
    "no clients": ({"load": {"concurrencies": [0]}}, "concurrencies"),
    "an escape": ({"workload": {"trace": {"claim": {"claimName": "c", "path": "../x"}}}}, "path"),
    "trials of demands": ({"search": {"method": "Seeds"}, "demands": [{"tier": "bulk", "tokensPerSecond": 1}]},
                          "no `demands`"),
}  # fmt: skip


def _plan(name: str, changes: dict[str, Any]) -> Object:
    return builders.serving_plan(name, **{"load": LOAD, "tiers": BULK, **changes})


def _ready(live: Object) -> Object:
    found: Object = next(c for c in live["status"]["conditions"] if c["type"] == "Ready")
    return found


def test_what_cannot_be_met_names_its_limit_and_the_nearest(cluster: Cluster, operator: MakeOperator) -> None:
    """All at once; none is Ready, none has a selection, and each says what would have to change."""
    plans = {
        **{name: ask for name, (ask, _, _) in UNMET.items()},
        **{name: ask for name, (ask, _, _) in INVALID.items()},
    }
    cluster.apply(builders.anchor_config_map("anchor-a"), *(_plan(name, ask) for name, ask in plans.items()))
    operator(FUNCTION).start()
    for name, (_, limit, layout) in UNMET.items():
        live = cluster.wait("servingplan", name, "Stalled", timeout_s=180.0)
        assert_conditions(live)
        assert _ready(live)["reason"] == "Infeasible", name
        assert "selected" not in live["status"], name
        (binding,) = live["status"]["binding"]
        assert binding["limit"] == limit, (name, binding)
        nearest = binding["nearest"]["configuration"]
        assert layout in (None, nearest["layout"]), (name, nearest)
        if "predicted" in binding["nearest"]:
            assert nearest["replicas"] * nearest["gpusPerReplica"] <= 8, name
    for name, (_, reason, says) in INVALID.items():
        live = cluster.wait("servingplan", name, "Stalled")
        assert_conditions(live)
        assert _ready(live)["reason"] == reason, (name, _ready(live))
        assert says in _ready(live)["message"], name
        assert "selected" not in live["status"], name


def test_what_must_not_be_asked_is_refused_at_the_door(cluster: Cluster) -> None:
    for changes, says in REFUSED.values():
        with pytest.raises(KubectlError, match=says):
            cluster.apply(_plan("refused", changes))
    assert cluster.list("servingplans") == []


def test_demands_of_several_models_stay_within_one_budget(cluster: Cluster, operator: MakeOperator) -> None:
    """A model without an anchor gets nothing and says why; the other gets all there is, and no more than the budget."""
    demands = [{"tier": "bulk", "tokensPerSecond": 10**9}, {"tier": "bulk", "tokensPerSecond": 5, "model": "Qwen3-14B"}]
    cluster.apply(builders.anchor_config_map("anchor-a"), _plan("shared", {"demands": demands}))
    operator(FUNCTION).start()
    live = cluster.wait("servingplan", "shared", "Ready")
    assert_conditions(live)
    mix = live["status"]["mix"]
    assert mix["gpus"] <= mix["gpuBudget"] == 8
    served = {item["model"]: item for item in mix["allocations"]}
    assert served["Qwen3-14B"]["unserved"].startswith("anchor: ")
    assert served["Llama-3.1-8B"]["unserved"].startswith("gpu-budget: ")
    feasible = next(c for c in live["status"]["conditions"] if c["type"] == "Feasible")
    assert feasible["reason"] == "PartlyFeasible"


def test_long_names_and_a_trace_that_changes(cluster: Cluster, operator: MakeOperator) -> None:
    """Two names alike in their first 60 of 100 characters, and a trace that is replaced while it is planned: each plan
    ends with the answer to its own last question."""
    stem = "a-plan-whose-name-says-everything-about-what-it-is-there-for-"
    names = [stem + 39 * letter for letter in "xy"]
    row = {"timestamp": 0, "input_length": 1024, "output_length": 16, "hash_ids": [1, 2]}
    trace = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "week", "namespace": "default"}}
    whole = {"data": {"trace.jsonl": (json.dumps(row) + "\n") * 2000}}
    lengths = {"fixed": {"promptTokens": 64, "outputTokens": 16}}
    cluster.apply(
        builders.anchor_config_map("anchor-a"),
        {**trace, **whole},
        _plan(names[0], {"workload": lengths}),
        _plan(names[1], {"workload": {"fixed": {"promptTokens": 128, "outputTokens": 16}}, "search": {"shards": 2}}),
        _plan("traced", {"workload": {"trace": {"configMap": {"name": "week"}}}}),
    )
    running = operator(FUNCTION, environment={"INFERASIM_WORKER_IMAGE": "example.test/operator:1"})
    running.start()
    first = cluster.wait("servingplan", names[0], "Ready")
    job = cluster.wait_for("servingplan", names[1], ".status.progress.shards", "0/2")
    assert len({first["status"]["inputDigest"], job["status"]["inputDigest"]}) == 2
    (made,) = cluster.list("jobs")
    assert len(made["metadata"]["name"]) <= 63
    assert len(first["status"]["result"]["configMap"]) <= 63

    cluster.wait("servingplan", "traced", "Ready")
    longer = {"data": {"trace.jsonl": (json.dumps({**row, "output_length": 32}) + "\n") * 2000}}
    cluster.apply({**trace, **longer})
    path = ".status.selected[0].configuration.outputTokens"
    live = cluster.wait_for("servingplan", "traced", path, "32")
    assert_conditions(cluster.wait("servingplan", "traced", "Ready"))
    kept = cluster.get("configmap", live["status"]["result"]["configMap"])
    assert kept["data"]["inputDigest"] == live["status"]["inputDigest"]
    cluster.kubectl("delete", "configmap", "week")
    assert _ready(cluster.wait("servingplan", "traced", "Stalled"))["reason"] == "TraceNotFound"
