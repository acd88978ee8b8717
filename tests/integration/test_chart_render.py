"""What the chart renders, by the real helm: lint, scope and rights, hardening, values that are refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from inferasim_operator.engine.rbac import policy_rules
from inferasim_operator.kinds.registry import RULES
from tests.integration import chart

EVERYTHING: dict[str, Any] = {
    "replicas": 2,
    "imagePullSecrets": [{"name": "pull"}],
    "serviceAccount": {"annotations": {"example.com/role": "planner"}},
    "rbac": {"aggregateToDefaultRoles": True},
    "priorityClassName": "system-cluster-critical",
    "nodeSelector": {"kubernetes.io/os": "linux"},
    "tolerations": [{"key": "dedicated", "operator": "Exists"}],
    "affinity": {"nodeAffinity": {}},
    "topologySpreadConstraints": [
        {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway"}
    ],
    "extraEnv": [{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}],
    "extraVolumes": [{"name": "ca", "configMap": {"name": "ca"}}],
    "extraVolumeMounts": [{"name": "ca", "mountPath": "/etc/ssl/certs"}],
    "podLabels": {"team": "serving"},
    "podAnnotations": {"example.com/note": "x"},
    "networkPolicy": {"enabled": True, "egress": [{"ports": [{"port": 443}]}]},
    "metrics": {
        "podMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
        "prometheusRule": {"enabled": True},
        "dashboard": {"enabled": True},
    },
}


def _rights(rules: list[dict[str, Any]]) -> set[tuple[str, str, str]]:
    return {
        (group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


@pytest.mark.parametrize("values", [{}, EVERYTHING, {"scope": "Namespace"}], ids=["default", "everything", "namespace"])
def test_lint_is_clean(values: dict[str, Any], tmp_path: Any) -> None:
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump(values))
    said = chart.helm("lint", str(chart.CHART), "--strict", "--values", str(file))
    assert "0 chart(s) failed" in said


def test_two_renderings_are_equal() -> None:
    """Nothing random, no dates: a GitOps tool sees no difference where nothing changed (D02)."""
    assert chart.render(EVERYTHING) == chart.render(EVERYTHING)


def test_cluster_scope_has_exactly_the_rights_of_the_kinds() -> None:
    """The lease is the operator's own: no right on other leases, nodes' heartbeats among them."""
    objects = chart.render()
    cluster_role = the_rules = chart.the(objects, "ClusterRole")
    lease_role = chart.the(objects, "Role")
    assert lease_role["metadata"]["namespace"] == "serving"
    assert _rights(the_rules["rules"]) | _rights(lease_role["rules"]) == _rights(policy_rules(RULES))
    assert not any("leases" in rule["resources"] for rule in cluster_role["rules"])
    assert not any("*" in json.dumps(rule) for rule in [*cluster_role["rules"], *lease_role["rules"]])
    assert [rule.get("resourceNames") for rule in lease_role["rules"]] == [None, ["inferasim"]]
    assert {"name": "INFERASIM_LEASE_NAME", "value": "inferasim"} in chart.container(objects)["env"]
    assert "--all-namespaces" in chart.container(objects)["args"]
    for binding in (chart.the(objects, "ClusterRoleBinding"), chart.the(objects, "RoleBinding")):
        account = chart.the(objects, "ServiceAccount")["metadata"]
        assert binding["subjects"] == [{"kind": "ServiceAccount", "name": account["name"], "namespace": "serving"}]


def test_namespace_scope_touches_no_other_namespace() -> None:
    """No ClusterRole; nothing outside the served namespaces but the CRDs (C08)."""
    objects = chart.render({"scope": "Namespace", "namespaces": ["team-a", "team-b"], "crds": {"install": False}})
    assert {found["kind"] for found in objects} == {"ServiceAccount", "Role", "RoleBinding", "Deployment"}
    roles = {found["metadata"]["namespace"]: found for found in chart.of_kind(objects, "Role")}
    assert set(roles) == {"team-a", "team-b", "serving"}
    lease = _rights(roles["serving"]["rules"])
    assert lease == {("coordination.k8s.io", "leases", verb) for verb in ("get", "create", "update")}
    for name in ("team-a", "team-b"):
        assert _rights(roles[name]["rules"]) | lease == _rights(policy_rules(RULES, cluster=False))
    arguments = chart.container(objects)["args"]
    assert [argument for argument in arguments if "namespace" in argument] == [
        "--namespace=team-a",
        "--namespace=team-b",
        "--lease-namespace=serving",
    ]
    alone = chart.render({"scope": "Namespace"}, namespace="team-a")
    assert "--namespace=team-a" in chart.container(alone)["args"]


@pytest.mark.parametrize(
    ("rbac", "want"),
    [
        ({}, {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}),
        (
            {"secretAccess": "Named", "secretNames": ["git"]},
            {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"], "resourceNames": ["git"]},
        ),
        ({"secretAccess": "Named"}, None),  # an empty resourceNames would mean every Secret
        ({"secretAccess": "None"}, None),
    ],
)
def test_secret_access(rbac: dict[str, Any], want: dict[str, Any] | None) -> None:
    rules = chart.the(chart.render({"rbac": rbac}), "ClusterRole")["rules"]
    assert [rule for rule in rules if "secrets" in rule["resources"]] == ([want] if want else [])


def test_the_pod_is_hardened() -> None:
    """The restricted Pod Security Standard, and a root file system that cannot be written."""
    pod = chart.the(chart.render(), "Deployment")["spec"]["template"]["spec"]
    operator = pod["containers"][0]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] == 65532
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert operator["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
    assert [volume["name"] for volume in pod["volumes"]] == ["tmp"]
    assert operator["livenessProbe"]["httpGet"]["path"] == "/healthz"
    assert operator["resources"]["limits"]["memory"]
    assert pod["terminationGracePeriodSeconds"] > 30


def test_everything_reaches_its_place() -> None:
    objects = chart.render(EVERYTHING)
    deployment = chart.the(objects, "Deployment")
    pod = deployment["spec"]["template"]["spec"]
    assert deployment["spec"]["replicas"] == 2
    for name in ("imagePullSecrets", "priorityClassName", "nodeSelector", "tolerations", "affinity"):
        assert pod[name] == EVERYTHING[name]
    assert EVERYTHING["extraEnv"][0] in pod["containers"][0]["env"]
    assert EVERYTHING["extraVolumeMounts"][0] in pod["containers"][0]["volumeMounts"]
    assert chart.the(objects, "ServiceAccount")["metadata"]["annotations"] == {"example.com/role": "planner"}
    monitor = chart.the(objects, "PodMonitor")
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert deployment["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    policy = chart.the(objects, "NetworkPolicy")["spec"]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    groups = chart.the(objects, "PrometheusRule")["spec"]["groups"]
    assert any("{{ $labels.mix }}" in json.dumps(group) for group in groups)
    assert json.loads(chart.the(objects, "ConfigMap")["data"]["inferasim.json"])["panels"]
    assert {role["metadata"]["name"] for role in chart.of_kind(objects, "ClusterRole")} == {
        "inferasim",
        "inferasim-view",
        "inferasim-edit",
    }


def test_the_image() -> None:
    assert chart.container(chart.render())["image"] == "inferasim-operator:0.1.0"
    digest = "sha256:" + "0" * 64
    pinned = chart.render({"image": {"repository": "mirror.example.com/inferasim", "tag": "x", "digest": digest}})
    assert chart.container(pinned)["image"] == f"mirror.example.com/inferasim@{digest}"


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"scope": "cluster"}, "scope"),
        ({"scope": "Cluster", "namespaces": ["a"]}, "namespaces"),
        ({"scope": "Namespace", "namespaces": ["Not_A_Name"]}, "namespaces"),
        ({"replicas": "two"}, "replicas"),
        ({"replicaCount": 2}, "replicaCount"),
        ({"operator": {"computeWorkers": 0}}, "computeWorkers"),
        ({"image": {"digest": "latest"}}, "digest"),
        ({"rbac": {"secretAccess": "All"}}, "secretAccess"),
        ({"networkPolicy": {"enabled": "yes please"}}, "networkPolicy"),
        ({"nameOverride": "a b\n- c: d"}, "nameOverride"),
        ({"priorityClassName": "a\nhostNetwork: true"}, "priorityClassName"),
        ({"image": {"repository": "a\ncommand: [id]"}}, "repository"),
        ({"serviceAccount": {"name": "$(id)"}}, "serviceAccount"),
        ({"resources": {"limits": {"memory": "lots"}}}, "memory"),
        ({"resources": {"limit": {}}}, "limit"),
        ({"podSecurityContext": {"runAsUser": "root"}}, "runAsUser"),
        ({"securityContext": {"capabilities": {"drop": "ALL"}}}, "drop"),
        # What selects the pods, and what other values set: twice would mean one of the two, silently.
        ({"podLabels": {"app.kubernetes.io/name": "other"}}, "podLabels"),
        ({"extraEnv": [{"name": "INFERASIM_LEASE_NAME", "value": "x"}]}, "extraEnv"),
        ({"podAnnotations": {"kubectl.kubernetes.io/default-container": "x"}}, "podAnnotations"),
        ({"page": {"enabled": True, "port": 8080}}, "port"),
        ({"extraVolumes": [{"name": "tmp", "emptyDir": {}}]}, "extraVolumes"),
        ({"extraVolumeMounts": [{"name": "ca", "mountPath": "/tmp"}]}, "mountPath"),
        # A misspelt key would be dropped by the API server: an empty egress rule lets everything out.
        ({"networkPolicy": {"egress": [{"port": 53}]}}, "egress"),
        ({"networkPolicy": {"egress": [{}]}}, "egress"),
        ({"networkPolicy": {"ingressFrom": [{"podSelecter": {}}]}}, "ingressFrom"),
        ({"tolerations": [{"key": "a", "operator": "Exist"}]}, "tolerations"),
        ({"tolerations": [{"kee": "a"}]}, "tolerations"),
        ({"affinity": {"nodeAfinity": {}}}, "affinity"),
        ({"extraEnv": [{"name": "A", "vlaue": "x"}]}, "extraEnv"),
        ({"extraEnv": [{"name": "A", "value": 1}]}, "value"),
        ({"imagePullSecrets": [{"name": "Not_A_Name"}]}, "imagePullSecrets"),
        ({"metrics": {"podMonitor": {"interval": "0s"}}}, "interval"),
    ],
    ids=str,
)
def test_bad_values_are_refused(values: dict[str, Any], said: str) -> None:
    with pytest.raises(chart.HelmError, match=said):
        chart.render(values)


def test_long_names_stay_valid() -> None:
    objects = chart.render({"fullnameOverride": "a" * 50, "scope": "Namespace"})
    assert all(len(found["metadata"]["name"]) <= 63 for found in objects if found["kind"] != "CustomResourceDefinition")
