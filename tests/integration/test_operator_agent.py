"""A search by an agent in the operator on the real API server: what it asks, what it keeps, what a kill costs."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Callable

from inferasim_operator import packing, planning
from tests import builders
from tests.chat_server import greedy, helpful, serving
from tests.conditions import assert_conditions
from tests.integration.harness import Cluster, Object, Operator

MakeOperator = Callable[..., Operator]
FUNCTION = "inferasim_operator.planning:compute_plan"
KEY = "sk-secret-1234567890"
BUDGET = 20
KILLED_AT = 9
LUMP = 8


def _plan(name: str, url: str) -> Object:
    agent = {"url": url, "model": "m", "secret": {"name": "llm", "key": "token"}}
    return builders.serving_plan(
        name,
        search={"method": "Agent", "budget": BUDGET, "agent": agent},
        cluster={"accelerator": "MI355X", "nodes": 1, "gpuBudget": 2},
        load={"concurrencies": [1, 8]},
        tiers=[{"name": "bulk"}],
    )


def _secret() -> Object:
    data = {"token": base64.b64encode(KEY.encode()).decode()}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "llm", "namespace": "default"}, "data": data}


def test_an_agent_plans_with_the_key_of_its_secret(cluster: Cluster, operator: MakeOperator) -> None:
    """The model's proposals are tried, its key is nowhere but in its requests, its ledger replays to the answer."""
    with serving(helpful) as (url, seen):
        plan = _plan("helped", url)
        cluster.apply(builders.anchor_config_map("anchor-a"), _secret(), plan)
        running = operator(FUNCTION)
        running.start()
        live = cluster.wait("servingplan", "helped", "Ready", timeout_s=180.0)
    assert_conditions(live)
    assert {request["authorization"] for request in seen} == {f"Bearer {KEY}"}
    search = live["status"]["search"]
    assert "modelFailures" not in search
    assert len(seen) <= search["modelRequests"] <= BUDGET
    kept = cluster.get("configmap", live["status"]["result"]["configMap"])
    ledger = packing.unpack(kept["binaryData"]["ledger.jsonl.gz"])
    assert '"origin":"agent: plan"' in ledger
    request = {"spec": plan["spec"], "anchors": {"anchor-a": json.loads(builders.anchor().to_json())}}
    again = planning.compute_plan({**request, "ledger": ledger})
    assert again.pop("ledger") == ledger
    assert json.loads(json.dumps(again)) == json.loads(kept["data"]["result.json"])
    said = json.dumps(cluster.list("configmaps,events,servingplans")) + running.text
    assert KEY not in said
    assert not [event for event in cluster.operator_requests() if event.is_forbidden]


def test_an_operator_killed_amid_its_questions_asks_no_more_than_the_budget(
    cluster: Cluster, operator: MakeOperator
) -> None:
    """Killed at the ninth request to a model that asks for ever: two lumps of eight were granted, so the successor has
    four of the twenty left. From nothing it would have made twenty."""
    reached, killed = threading.Event(), threading.Event()
    counted: list[str] = []

    def reply(text: str) -> str:
        counted.append(text)
        if len(counted) == KILLED_AT:
            reached.set()
            killed.wait(60)
        return greedy(text)

    with serving(reply) as (url, seen):
        cluster.apply(builders.anchor_config_map("anchor-a"), _secret(), _plan("killed", url))
        first = operator(FUNCTION)
        first.start()
        assert reached.wait(180), first.text
        first.kill()
        killed.set()
        assert len(seen) == KILLED_AT
        (ledger,) = cluster.list("configmaps", "-l", "inferasim.dev/role=plan-ledger")
        lines = packing.unpack(ledger["binaryData"]["ledger.jsonl.gz"]).splitlines()
        grants = [line for line in map(json.loads, lines) if line["kind"] == "grant"]
        assert [grant["requests"] for grant in grants] == [LUMP, LUMP]

        second = operator(FUNCTION)
        second.start()
        live = cluster.wait("servingplan", "killed", "Ready", timeout_s=180.0)
        assert_conditions(live)
        assert len(seen) == KILLED_AT + BUDGET - 2 * LUMP
        assert live["status"]["search"]["modelRequests"] == BUDGET
        second.until_settled("ServingPlan")
    assert cluster.list("configmaps", "-l", "inferasim.dev/role=plan-ledger") == [], "it goes when the answer is there"
