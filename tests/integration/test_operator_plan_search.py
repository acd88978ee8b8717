"""Search methods, demands and traces of ServingPlans on the real API server, by an operator with the generated Role."""

from __future__ import annotations

import json
from collections.abc import Callable

from inferasim_operator import packing, planning
from tests import builders
from tests.conditions import assert_conditions
from tests.integration.harness import Cluster, Object, Operator

MakeOperator = Callable[..., Operator]
FUNCTION = "inferasim_operator.planning:compute_plan"
SMALL = {"cluster": {"accelerator": "MI355X", "nodes": 1, "gpuBudget": 2}, "load": {"concurrencies": [1, 8]}}


def _ready(live: Object) -> Object:
    found: Object = next(c for c in live["status"]["conditions"] if c["type"] == "Ready")
    return found


def test_plans_search_in_the_way_they_say(cluster: Cluster, operator: MakeOperator) -> None:
    """A ledger replays to its answer, demands share GPUs, an agent without key and a missing trace say so."""
    keyed = {"url": "http://127.0.0.1:9/v1", "model": "m", "secret": {"name": "llm", "key": "token"}}
    seeds = builders.serving_plan("seeds", search={"method": "Seeds", "budget": 6}, **SMALL)
    cluster.apply(
        builders.anchor_config_map("anchor-a"),
        seeds,
        builders.serving_plan("shared", demands=[{"tier": "bulk", "tokensPerSecond": 1000}], **SMALL),
        builders.serving_plan("unnamed", search={"method": "Agent"}, **SMALL),
        builders.serving_plan("keyless", search={"method": "Agent", "agent": keyed}, **SMALL),
        builders.serving_plan("trace", workload={"trace": {"configMap": {"name": "week"}}}, **SMALL),
    )
    operator(FUNCTION).start()
    live = cluster.wait("servingplan", "seeds", "Ready")
    assert_conditions(live)
    assert live["status"]["search"]["method"] == "Seeds"
    assert 0 < live["status"]["search"]["trials"] <= 6 * len(seeds["spec"]["tiers"])
    kept = cluster.get("configmap", live["status"]["result"]["configMap"])
    ledger = packing.unpack(kept["binaryData"]["ledger.jsonl.gz"])
    request = {"spec": seeds["spec"], "anchors": {"anchor-a": json.loads(builders.anchor().to_json())}}
    again = planning.compute_plan({**request, "ledger": ledger})
    assert again.pop("ledger") == ledger
    assert json.loads(json.dumps(again)) == json.loads(kept["data"]["result.json"])

    mix = cluster.wait("servingplan", "shared", "Ready")["status"]["mix"]
    assert mix["servedTokensPerSecond"] == 1000
    assert mix["gpus"] <= mix["gpuBudget"] == 2

    for name, says in (("unnamed", "names no chat model"), ("keyless", "Secret llm does not exist")):
        live = cluster.wait("servingplan", name, "Stalled")
        assert_conditions(live)
        assert _ready(live)["reason"] == "AgentNotConfigured"
        assert says in _ready(live)["message"]

    live = cluster.wait("servingplan", "trace", "Stalled")
    assert _ready(live)["reason"] == "TraceNotFound"
    row = {"timestamp": 0, "input_length": 1024, "output_length": 16, "hash_ids": [1, 2]}
    text = "".join(json.dumps(row) + "\n" for _ in range(16))
    week = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "week", "namespace": "default"}}
    cluster.apply({**week, "data": {"trace.jsonl": text}})
    live = cluster.wait("servingplan", "trace", "Ready")
    assert live["status"]["selected"][0]["configuration"]["prefixCaching"] == "Enabled"
    assert not [event for event in cluster.operator_requests() if event.is_forbidden]
