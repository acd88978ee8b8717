"""DeploymentMix passes against the real API server: apply, pruning, other managers (cases D01, D02, D04, D05)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from inferasim_operator.engine import client as clients
from inferasim_operator.engine.actions import ObjectKey
from inferasim_operator.engine.clock import Clock
from inferasim_operator.engine.kind import Context
from inferasim_operator.engine.labels import MANAGER
from inferasim_operator.engine.reconcile import Outcome, Reconciler
from inferasim_operator.kinds.deploymentmix.handlers import KIND
from tests.integration.harness import Cluster

GOLDEN = Path(__file__).parents[1] / "golden/manifests"
NAME = "chat"


class Mix:
    """One mix in a namespace, reconciled by hand so that every pass is counted."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        client = clients.Client.connect(manager=MANAGER, kubeconfig=str(cluster.plane.kubeconfig))
        self.reconciler = Reconciler(KIND, Context(client), Clock())
        self.document: dict[str, Any] = yaml.safe_load((GOLDEN / "vllm-one-node/mix.yaml").read_text())
        self.document["spec"]["namespace"] = cluster.namespace
        self.document["spec"]["delivery"] = {"type": "Apply"}

    @property
    def configuration(self) -> dict[str, Any]:
        configuration: dict[str, Any] = self.document["spec"]["configurations"][0]["configuration"]
        return configuration

    def apply(self) -> None:
        self.cluster.apply(self.document)

    def run(self) -> Outcome:
        return self.reconciler.run(ObjectKey(self.cluster.namespace, NAME))

    def settle(self) -> dict[str, Any]:
        """Passes until one writes nothing and wants no other; the mix as it is then."""
        for _ in range(6):
            outcome = self.run()
            if not outcome.failed and not outcome.written_version and outcome.wake_after_s is None:
                return self.get()
        raise AssertionError(f"does not settle: {self.get()['status']}")

    def get(self) -> dict[str, Any]:
        return self.cluster.get("deploymentmix", NAME)

    def condition(self, kind: str) -> dict[str, Any]:
        return {c["type"]: c for c in self.get()["status"]["conditions"]}[kind]

    def deployment(self) -> dict[str, Any]:
        return self.cluster.get("deployment", f"{NAME}-interactive")

    def versions(self) -> dict[str, str]:
        kinds = "deploymentmixes,configmaps,deployments,services,poddisruptionbudgets"
        # The controller manager writes the status of Deployments whenever it likes: for them the generation counts.
        field = {"Deployment": "generation", "PodDisruptionBudget": "generation"}
        return {
            f"{o['kind']}/{o['metadata']['name']}": str(o["metadata"][field.get(o["kind"], "resourceVersion")])
            for o in self.cluster.list(kinds)
        }


@pytest.fixture
def mix(cluster: Cluster) -> Mix:
    return Mix(cluster)


def test_a_mix_is_applied_and_a_second_pass_writes_nothing(mix: Mix) -> None:
    mix.apply()
    live = mix.settle()
    assert mix.condition("Ready")["status"] == "True"
    assert mix.condition("Delivered")["status"] == "True"
    assert live["spec"] == mix.document["spec"]  # D02
    kinds = [item["kind"] for item in live["status"]["inventory"]]
    assert kinds == ["Service", "PodDisruptionBudget", "Deployment"]
    before = mix.versions()
    for _ in range(5):
        outcome = mix.run()
        assert not outcome.written_version
        assert not outcome.failed
    assert mix.versions() == before
    (kept,) = (c for c in mix.cluster.list("configmap") if c["metadata"]["name"].startswith(f"{NAME}-"))
    assert kept["immutable"] is True
    assert kept["metadata"]["name"] == live["status"]["manifests"]["configMap"]


def test_children_carry_our_labels_only_and_go_with_the_mix(mix: Mix) -> None:
    """Case D01."""
    mix.document["metadata"]["labels"] = {"app.kubernetes.io/instance": "myapp"}
    mix.document["metadata"]["annotations"] = {"argocd.argoproj.io/tracking-id": "a:b"}
    mix.apply()
    owner = mix.settle()["metadata"]["uid"]
    for child in mix.cluster.list("configmaps,deployments,services,poddisruptionbudgets"):
        if child["metadata"]["name"].startswith("kube-root-ca"):
            continue
        text = json.dumps(child["metadata"])
        assert "myapp" not in text
        assert "tracking-id" not in text
        assert "last-applied-configuration" not in text
        assert child["metadata"]["ownerReferences"][0]["uid"] == owner


def test_a_dropped_variable_goes_and_a_hand_scaled_deployment_is_reported(mix: Mix) -> None:
    """Case D05, and D04 with autoscaling off: reported, not fought over."""
    mix.apply()
    mix.settle()
    mix.cluster.kubectl("scale", "deployment", f"{NAME}-interactive", "--replicas=3")
    del mix.configuration["env"]
    mix.apply()
    mix.settle()
    deployment = mix.deployment()
    container = deployment["spec"]["template"]["spec"]["containers"][0]
    assert [variable["name"] for variable in container["env"]] == ["TRITON_CACHE_DIR", "VLLM_CACHE_ROOT"]
    assert deployment["spec"]["replicas"] == 3
    told = mix.condition("Delivered")
    assert (told["status"], told["reason"]) == ("True", "ReplicasElsewhere")
    assert "kubectl" in told["message"]


def test_an_autoscaler_keeps_its_replicas(mix: Mix) -> None:
    """Case D04: from the first emission on, and when autoscaling is turned on later."""
    mix.apply()
    mix.settle()
    mix.document["spec"]["autoscaling"] = "Enabled"
    mix.apply()
    mix.settle()
    assert mix.deployment()["spec"]["replicas"] == 2  # held: giving it up would have meant 1
    mix.cluster.kubectl("scale", "deployment", f"{NAME}-interactive", "--replicas=3")
    for _ in range(5):
        mix.run()
    assert mix.deployment()["spec"]["replicas"] == 3
    assert mix.condition("Delivered")["reason"] == "Delivered"


def test_another_managers_field_is_reported_with_its_name(mix: Mix) -> None:
    mix.apply()
    mix.settle()
    patch = {
        "spec": {"template": {"spec": {"containers": [{"name": "modelserver", "image": "example.test/other:v1"}]}}}
    }
    mix.cluster.kubectl(
        "patch", "deployment", f"{NAME}-interactive", "--field-manager=somebody", "-p", json.dumps(patch)
    )
    outcome = mix.run()
    assert outcome.failed  # tried again with back-off
    told = mix.condition("Ready")
    assert (told["status"], told["reason"]) == ("False", "Conflict")
    assert "somebody" in told["message"]
    image = mix.deployment()["spec"]["template"]["spec"]["containers"][0]["image"]
    assert image == "example.test/other:v1"  # not taken silently


def test_what_is_wanted_no_more_is_pruned_and_a_deleted_object_comes_back(mix: Mix) -> None:
    mix.apply()
    mix.settle()
    mix.cluster.kubectl("delete", "service", f"{NAME}-interactive")
    mix.settle()
    mix.cluster.get("service", f"{NAME}-interactive")
    mix.document["spec"]["configurations"][0]["name"] = "bulk"
    mix.apply()
    mix.settle()
    names = {o["metadata"]["name"] for o in mix.cluster.list("deployments,services,poddisruptionbudgets")}
    assert names == {f"{NAME}-bulk"}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda document: document["spec"].update(namespace="kube-system"), "ForeignNamespace"),
        (
            lambda document: document["spec"]["configurations"][0]["configuration"].update(engineVersion="9.9.9"),
            "CannotEmit",
        ),
    ],
    ids=["namespace", "version"],
)
def test_a_refusal_is_said(mix: Mix, change: Callable[[dict[str, Any]], None], reason: str) -> None:
    change(mix.document)
    mix.apply()
    mix.settle()
    stalled = mix.condition("Stalled")
    assert (stalled["status"], stalled["reason"]) == ("True", reason)
    assert mix.cluster.list("deployments") == []
    mix.document["spec"]["namespace"] = mix.cluster.namespace
    mix.configuration["engineVersion"] = "0.33.0"
    mix.apply()
    mix.settle()
    assert mix.condition("Ready")["status"] == "True"
