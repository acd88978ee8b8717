"""DeploymentMix by an operator process with exactly the generated Role: plan to manifests, apply, restart, deletion."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from tests import builders
from tests.conditions import assert_conditions
from tests.integration.harness import Cluster, Operator

MakeOperator = Callable[..., Operator]
GOLDEN = Path(__file__).parents[1] / "golden/manifests"
# What the stand-in's configuration does not say.
SETTINGS = {
    "engineVersion": "0.5.16",
    "kvDtype": "bf16",
    "memoryPermille": 900,
    "maxBatchedTokens": 16384,
    "prefixCaching": "Disabled",
}


def planned_mix(cluster: Cluster, **spec: Any) -> dict[str, Any]:
    fields = {
        "planRef": {"name": "plan"},
        "format": "SGLang",
        "model": {"source": {"claim": {"claimName": "weights"}}},
        "images": {"engine": "lmsysorg/sglang:v0.5.16-rocm720-mi35x"},
        "serving": SETTINGS,
        **spec,
    }
    return {
        "apiVersion": "inferasim.dev/v1alpha1",
        "kind": "DeploymentMix",
        "metadata": {"name": "chat", "namespace": cluster.namespace},
        "spec": fields,
    }


def test_a_plan_becomes_manifests_and_is_applied(cluster: Cluster, operator: MakeOperator) -> None:
    """The mix waits for its plan, then emits; Apply, a restart and the end of the mix leave nothing behind."""
    op = operator()
    op.start()
    mix = planned_mix(cluster)
    cluster.apply(mix)
    cluster.wait_for("deploymentmix", "chat", '.status.conditions[?(@.type=="Ready")].reason', "PlanNotFound")
    cluster.apply(builders.anchor_config_map("anchor-a"), builders.serving_plan())
    live = cluster.wait("deploymentmix", "chat", "Ready")
    assert_conditions(live)
    assert live["spec"] == mix["spec"]
    assert live["status"]["summary"] == "bulk: SGLang TP1 x8 (8 GPUs)"
    kept = cluster.get("configmap", live["status"]["manifests"]["configMap"])
    kinds = [m["kind"] for m in yaml.load_all(kept["data"]["manifests.yaml"], yaml.CSafeLoader)]
    assert kinds == ["Service", "PodDisruptionBudget", "Deployment"]
    assert cluster.list("deployments") == []

    mix["spec"]["delivery"] = {"type": "Apply"}
    cluster.apply(mix)
    generation = cluster.get("deploymentmix", "chat")["metadata"]["generation"]
    cluster.wait_for("deploymentmix", "chat", ".status.observedGeneration", str(generation))
    cluster.wait("deploymentmix", "chat", "Ready")
    (deployment,) = cluster.list("deployments")
    assert deployment["spec"]["replicas"] == 8

    op.until_settled("DeploymentMix")
    writes = cluster.operator_writes()
    op.kill()
    op.start()
    op.until_passes("DeploymentMix", 1)
    assert cluster.operator_writes()[len(writes) :] == []
    assert not [event for event in cluster.operator_requests() if event.is_forbidden]

    cluster.kubectl("delete", "deploymentmix", "chat")
    for child in ("deployment/chat-bulk", "service/chat-bulk", f"configmap/{kept['metadata']['name']}"):
        cluster.kubectl("wait", "--for=delete", child, "--timeout=60s")


def test_an_infeasible_plan_emits_nothing(cluster: Cluster, operator: MakeOperator) -> None:
    operator().start()
    spec = {"cluster": {"accelerator": "MI355X", "nodes": 13}}
    mix = planned_mix(cluster, delivery={"type": "Apply"})
    cluster.apply(builders.anchor_config_map("anchor-a"), builders.serving_plan(**spec), mix)
    live = cluster.wait("deploymentmix", "chat", "Stalled")
    assert_conditions(live)
    assert {c["type"]: c["reason"] for c in live["status"]["conditions"]}["Emitted"] == "PlanHasNoAnswer"
    assert cluster.list("deployments") == []


def test_the_role_suffices_for_a_router_of_its_own(cluster: Cluster, operator: MakeOperator) -> None:
    """SGLang's router gets a Role: the operator may only give on what it holds itself."""
    op = operator()
    op.start()
    mix = yaml.load((GOLDEN / "sglang-disaggregated/mix.yaml").read_text(), yaml.CSafeLoader)
    mix["spec"] |= {"namespace": cluster.namespace, "delivery": {"type": "Apply"}}
    cluster.apply(copy.deepcopy(mix))
    live = cluster.wait("deploymentmix", "chat", "Ready")
    assert_conditions(live)
    assert {"Role", "RoleBinding", "ServiceAccount"} <= {item["kind"] for item in live["status"]["inventory"]}
    assert json.dumps(live["status"]["inventory"]).count("chat-interactive") == len(live["status"]["inventory"])

    # And for taking all of them back.
    mix["spec"]["configurations"][0]["name"] = "batch"
    cluster.apply(mix)
    for item in live["status"]["inventory"]:
        cluster.kubectl("wait", "--for=delete", f"{item['kind']}/{item['name']}", "--timeout=60s", timeout_s=70.0)
    assert not [event for event in cluster.operator_requests() if event.is_forbidden]
