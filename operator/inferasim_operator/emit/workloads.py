"""Workloads of one pool: Deployment or LeaderWorkerSet, Service, PodDisruptionBudget, PodMonitor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from inferasim_operator.emit.configuration import Role
from inferasim_operator.emit.flagmap import flag_map
from inferasim_operator.emit.objects import ASSUMED, UNVERIFIED, Manifest, metadata, object_name, selector
from inferasim_operator.emit.pod import NodePosition, assumptions, engine_pod, pod_labels
from inferasim_operator.emit.target import Deployment, Target

SERVICE_PORT: Final = 8000
WORKER_INDEX: Final = "leaderworkerset.sigs.k8s.io/worker-index"
SCRAPE_INTERVAL: Final = "30s"


def pool_name(target: Target, deployment: Deployment, role: Role) -> str:
    """The name of a pool's objects: mix and deployment, and the role where there are two."""
    suffix = () if role is Role.COLOCATED else (role.value,)
    return object_name(target, deployment, *suffix)


def leader_selector(target: Target, deployment: Deployment, role: Role) -> dict[str, str]:
    """Labels of the pods that serve requests: every pod, or the leader of each group."""
    labels = selector(target, deployment, role.value)
    return {**labels, WORKER_INDEX: "0"} if deployment.configuration.nodes_per_replica(role) > 1 else labels


def engine_workload(
    target: Target,
    deployment: Deployment,
    role: Role,
    *,
    extra_labels: Mapping[str, str] | None = None,
    init_containers: list[dict[str, Any]] | None = None,
) -> Manifest:
    """The Deployment, or the LeaderWorkerSet when a replica spans nodes. Raises InputError."""
    configuration = deployment.configuration
    nodes = configuration.nodes_per_replica(role)
    labels = selector(target, deployment, role.value)
    template_labels = {**pod_labels(target), **(extra_labels or {}), **labels}

    def template(position: NodePosition) -> dict[str, Any]:
        pod = engine_pod(configuration, role, target, position, is_behind_sidecar=bool(init_containers))
        if init_containers and not position.is_worker:
            pod["initContainers"] = init_containers
        return {"metadata": {"labels": template_labels}, "spec": pod}

    name = pool_name(target, deployment, role)
    spec: dict[str, Any] = {} if target.is_autoscaled else {"replicas": configuration.pool(role).replicas}
    meta = metadata(target, name, labels, _notes(target, deployment))
    if nodes == 1:
        spec |= {"selector": {"matchLabels": labels}, "template": template(NodePosition())}
        return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta, "spec": spec}
    spec["leaderWorkerTemplate"] = {
        "leaderTemplate": template(NodePosition(nodes)),
        "restartPolicy": "RecreateGroupOnPodRestart",
        "size": nodes,
        "workerTemplate": template(NodePosition(nodes, is_worker=True)),
    }
    return {"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet", "metadata": meta, "spec": spec}


def service(target: Target, deployment: Deployment, role: Role, *, target_port: str = "http") -> Manifest:
    """The Service in front of one pool's serving pods."""
    labels = selector(target, deployment, role.value)
    spec = {
        "ports": [{"name": "http", "port": SERVICE_PORT, "protocol": "TCP", "targetPort": target_port}],
        "selector": leader_selector(target, deployment, role),
        "type": "ClusterIP",
    }
    meta = metadata(target, pool_name(target, deployment, role), labels)
    return {"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": spec}


def disruption_budget(target: Target, deployment: Deployment, role: Role) -> Manifest:
    """One replica at a time may be evicted."""
    labels = selector(target, deployment, role.value)
    spec = {"maxUnavailable": 1, "selector": {"matchLabels": leader_selector(target, deployment, role)}}
    meta = metadata(target, pool_name(target, deployment, role), labels)
    return {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": meta, "spec": spec}


def pod_monitor(target: Target, deployment: Deployment, role: Role) -> Manifest:
    """Scrapes the engine itself, leaders only: groups are counted, not pods (case B13)."""
    configuration = deployment.configuration
    flags = flag_map(configuration.engine, configuration.engine_version)
    labels = selector(target, deployment, role.value)
    spec = {
        "podMetricsEndpoints": [{"interval": SCRAPE_INTERVAL, "path": flags.metrics_path, "port": "http"}],
        "podTargetLabels": sorted(labels),
        "selector": {"matchLabels": leader_selector(target, deployment, role)},
    }
    meta = metadata(target, pool_name(target, deployment, role), labels)
    return {"apiVersion": "monitoring.coreos.com/v1", "kind": "PodMonitor", "metadata": meta, "spec": spec}


def _notes(target: Target, deployment: Deployment) -> dict[str, str]:
    configuration = deployment.configuration
    notes: dict[str, str] = {}
    assumed = assumptions(configuration, target)
    if assumed:
        notes[ASSUMED] = "; ".join(assumed)
    unverified = flag_map(configuration.engine, configuration.engine_version).unverified
    if unverified:
        notes[UNVERIFIED] = unverified
    return notes


__all__ = [
    "SCRAPE_INTERVAL",
    "SERVICE_PORT",
    "disruption_budget",
    "engine_workload",
    "leader_selector",
    "pod_monitor",
    "pool_name",
    "service",
]
