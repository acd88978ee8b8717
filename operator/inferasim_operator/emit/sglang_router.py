"""Prefill and decode pools of SGLang behind SGLang's own router, which finds the pods by label."""

from __future__ import annotations

from typing import Any, Final

from inferasim_operator.emit.configuration import Role
from inferasim_operator.emit.objects import Manifest, metadata, object_name, selector
from inferasim_operator.emit.pod import check_image
from inferasim_operator.emit.target import Deployment, Target
from inferasim_operator.emit.workloads import (
    SERVICE_PORT,
    disruption_budget,
    engine_workload,
    leader_selector,
    pod_monitor,
)
from simcore.errors import InputError

BOOTSTRAP_ANNOTATION: Final = "sglang.ai/bootstrap-port"
_BOOTSTRAP_PORT: Final = "8998"
_METRICS_PORT: Final = 29000
_ROUTER: Final = "router"


def manifests(deployment: Deployment, target: Target) -> list[Manifest]:
    """Both pools, the router with the right to list pods, and one Service. Raises InputError without a router image."""
    if not target.images.router:
        raise InputError("images.router", "", "be given for disaggregated SGLang", "an image with `sglang_router`")
    check_image(target.images.router)
    prefill = engine_workload(target, deployment, Role.PREFILL)
    for template in _serving_templates(prefill):
        template["metadata"]["annotations"] = {BOOTSTRAP_ANNOTATION: _BOOTSTRAP_PORT}
    result = [prefill, engine_workload(target, deployment, Role.DECODE), *_router(deployment, target)]
    for role in (Role.PREFILL, Role.DECODE):
        result.append(disruption_budget(target, deployment, role))
        if target.is_monitored:
            result.append(pod_monitor(target, deployment, role))
    return result


def _serving_templates(workload: Manifest) -> list[dict[str, Any]]:
    spec = workload["spec"]
    return [spec["template"]] if "template" in spec else [spec["leaderWorkerTemplate"]["leaderTemplate"]]


def _router(deployment: Deployment, target: Target) -> list[Manifest]:
    name = object_name(target, deployment, _ROUTER)
    labels = selector(target, deployment, _ROUTER)
    meta = metadata(target, name, labels)

    def selectors(role: Role) -> list[str]:
        return [f"{key}={value}" for key, value in sorted(leader_selector(target, deployment, role).items())]

    arguments = [
        "--pd-disaggregation",
        "--host=0.0.0.0",
        f"--port={SERVICE_PORT}",
        f"--prometheus-port={_METRICS_PORT}",
        "--service-discovery",
        f"--service-discovery-namespace={target.namespace}",
        f"--service-discovery-port={SERVICE_PORT}",
        "--prefill-selector",
        *selectors(Role.PREFILL),
        "--decode-selector",
        *selectors(Role.DECODE),
    ]
    container = {
        "args": arguments,
        "command": ["python3", "-m", "sglang_router.launch_router"],
        "image": target.images.router,
        "name": _ROUTER,
        "ports": [
            {"containerPort": SERVICE_PORT, "name": "http", "protocol": "TCP"},
            {"containerPort": _METRICS_PORT, "name": "metrics", "protocol": "TCP"},
        ],
        "securityContext": {"allowPrivilegeEscalation": False},
    }
    pod = {"containers": [container], "serviceAccountName": name}
    spec = {
        "replicas": 1,
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": {**target.labels, **labels}}, "spec": pod},
    }
    return [
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta, "spec": spec},
        _service(meta, labels),
        *pod_reader(meta, target.namespace),
    ]


def _service(meta: dict[str, Any], labels: dict[str, str]) -> Manifest:
    ports = [{"name": "http", "port": SERVICE_PORT, "protocol": "TCP", "targetPort": "http"}]
    spec = {"ports": ports, "selector": labels, "type": "ClusterIP"}
    return {"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": spec}


def pod_reader(meta: dict[str, Any], namespace: str, extra_rules: tuple[dict[str, Any], ...] = ()) -> list[Manifest]:
    """A service account that may watch the pods of its namespace, and what `extra_rules` add."""
    name = meta["name"]
    group = "rbac.authorization.k8s.io"
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}, *extra_rules]
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta},
        {"apiVersion": f"{group}/v1", "kind": "Role", "metadata": meta, "rules": rules},
        {
            "apiVersion": f"{group}/v1",
            "kind": "RoleBinding",
            "metadata": meta,
            "roleRef": {"apiGroup": group, "kind": "Role", "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": namespace}],
        },
    ]
