"""The pod of an engine: container, probes, GPUs, shared memory, weights, caches, placement (case D09)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from inferasim_operator.api.v1alpha1.anchorharvest import ModelSource
from inferasim_operator.emit.arguments import render_args
from inferasim_operator.emit.configuration import Configuration, Role, TransferBackend
from inferasim_operator.emit.flagmap import FlagMap, flag_map, matches
from inferasim_operator.emit.levers import levers_of
from inferasim_operator.emit.nodes import node_affinity, refuse_other_nodes
from inferasim_operator.emit.objects import quantity_mebibytes
from inferasim_operator.emit.startup import PERIOD_S, startup_budget
from inferasim_operator.emit.target import Target
from simcore.errors import InputError

GPU_RESOURCE: Final = "amd.com/gpu"
CONTAINER: Final = "modelserver"
SHARED_MEMORY_MEBIBYTES: Final = 16384
_MODELS: Final = "/models"
_CACHE: Final = "/cache"
_QUEUE_LABEL: Final = "kueue.x-k8s.io/queue-name"


@dataclass(frozen=True)
class NodePosition:
    """Which node of a replica a pod is: the only one, the leader of several, or a worker."""

    nodes_count: int = 1
    is_worker: bool = False


def gpus_per_pod(configuration: Configuration, role: Role) -> int:
    """GPUs that one pod asks for: those of the replica over its nodes."""
    return configuration.resolved(role).gpus_count // configuration.nodes_per_replica(role)


def engine_pod(
    configuration: Configuration, role: Role, target: Target, position: NodePosition, *, is_behind_sidecar: bool = False
) -> dict[str, Any]:
    """The pod spec of one node of one replica. Raises InputError."""
    flags = flag_map(configuration.engine, configuration.engine_version)
    check_image(configuration.image)
    port = flags.sidecar_port if is_behind_sidecar else flags.port
    options = target.pod
    container: dict[str, Any] = {
        "args": [
            *render_args(configuration, role, model_path=model_path(configuration.model.source), port=port),
            *_node_args(configuration, role, flags, position),
        ],
        "command": list(flags.command),
        "env": _env(configuration, role, flags),
        "image": configuration.image,
        "name": CONTAINER,
        "resources": _resources(configuration, role, target),
        "securityContext": _security(configuration),
        "volumeMounts": _mounts(configuration, role, target),
    }
    if not position.is_worker:
        container["ports"] = _ports(configuration, role, flags, port)
        container |= _probes(configuration, flags, target)
    _refuse_seconds(container["volumeMounts"], "mountPath", "pod.volumeMounts")
    volumes = _volumes(configuration, role, target)
    _refuse_seconds(volumes, "name", "pod.volumes")
    refuse_other_nodes(configuration.accelerator, options.node_selector or {})
    pod: dict[str, Any] = {
        "affinity": node_affinity(configuration.accelerator),
        "automountServiceAccountToken": False,
        "containers": [container],
        "volumes": volumes,
    }
    passed = options.to_dict()
    for name in ("nodeSelector", "tolerations", "priorityClassName", "serviceAccountName", "imagePullSecrets"):
        if name in passed:
            pod[name] = passed[name]
    return pod


def pod_labels(target: Target) -> dict[str, str]:
    """Labels of the pod template that the user asks for."""
    options = target.pod
    queue = {_QUEUE_LABEL: options.queue_name} if options.queue_name else {}
    return {**target.labels, **(options.labels or {}), **queue}


def assumptions(configuration: Configuration, target: Target) -> tuple[str, ...]:
    """What the pod rests on that nobody measured or said."""
    found = startup_budget(configuration.model.weight_bytes, target.load_bytes_per_s).assumed
    spans = any(configuration.nodes_per_replica(role) > 1 for role in configuration.roles())
    if not target.rdma_resources and (spans or configuration.disaggregation is not None):
        what = "the KV cache moves" if configuration.disaggregation is not None else "collectives run"
        found += (f"network: no `rdmaResources`; {what} over the pod network unless nodes give cards by other means",)
    return found


def _refuse_seconds(items: Sequence[Mapping[str, Any]], key: str, field: str) -> None:
    """The API server would refuse the pod; the engine's own folders come first."""
    seen: set[str] = set()
    for item in items:
        if item[key] in seen:
            raise InputError(field, item[key], f"not repeat a `{key}` of the pod")
        seen.add(item[key])


def model_path(source: ModelSource) -> str:
    """What the engine is told to load: a folder of the mounted claim, or the hub id."""
    if source.claim is None:
        return source.hub.id if source.hub is not None else ""
    path = (source.claim.path or "").strip("/")
    if ".." in path.split("/"):
        raise InputError("model.source.claim.path", path, "stay inside the claim")
    return f"{_MODELS}/{path}".rstrip("/")


def check_image(image: str) -> None:
    """The image must say which build it is. Raises InputError for `latest` or nothing."""
    tag = image.rsplit("/", 1)[-1].partition(":")[2]
    if "@sha256:" not in image and tag in ("", "latest"):
        raise InputError("image", image, "be pinned by a tag or a digest", "use the image the anchor was measured with")


def _node_args(configuration: Configuration, role: Role, flags: FlagMap, position: NodePosition) -> list[str]:
    if position.nodes_count == 1:
        return []
    if flags.multi_node is None:
        raise InputError(
            "layout",
            configuration.canonical_layout(role).label(),
            f"fit one node on {configuration.engine.value}",
            flags.one_node,
        )
    layout = configuration.canonical_layout(role)
    arguments = [*flags.multi_node["all"]]
    if layout.data_parallel > 1:
        arguments += flags.multi_node["dataParallel"]
    if position.is_worker:
        arguments += flags.multi_node["worker"]
    return [argument.replace("{nodes}", str(position.nodes_count)) for argument in arguments]


def _env(configuration: Configuration, role: Role, flags: FlagMap) -> list[dict[str, Any]]:
    levers = levers_of(configuration, role)
    env: dict[str, dict[str, Any]] = {
        name: {"name": name, "value": f"{_CACHE}/{folder}"} for name, folder in flags.cache_env.items()
    }
    source = configuration.model.source
    if source.hub is not None:
        env["HF_HOME"] = {"name": "HF_HOME", "value": f"{_CACHE}/huggingface"}
        if source.hub.token_secret is not None:
            key = source.hub.token_secret.to_dict()
            env["HF_TOKEN"] = {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": key}}
    for record in flags.env:
        if matches(record["when"], levers):
            reference = {"fieldRef": {"fieldPath": record["fieldPath"]}}
            env[record["name"]] = {"name": record["name"], "valueFrom": reference}
    # What the anchor was measured with comes last and wins.
    for variable in configuration.env or ():
        env[variable.name] = variable.to_dict()
    return [env[name] for name in sorted(env)]


def _resources(configuration: Configuration, role: Role, target: Target) -> dict[str, Any]:
    counts = {GPU_RESOURCE: gpus_per_pod(configuration, role), **target.rdma_resources}
    quantities = {name: str(count) for name, count in counts.items()}
    return {"limits": dict(quantities), "requests": dict(quantities)}


def _security(configuration: Configuration) -> dict[str, Any]:
    context: dict[str, Any] = {"allowPrivilegeEscalation": False}
    transfer = configuration.disaggregation
    if transfer is not None and transfer.backend in (TransferBackend.MORI, TransferBackend.NIXL):
        # RDMA registers pinned memory; without escalation the capability comes from the container runtime alone.
        context["capabilities"] = {"add": ["IPC_LOCK"]}
    return context


def _ports(configuration: Configuration, role: Role, flags: FlagMap, port: int) -> list[dict[str, Any]]:
    levers = levers_of(configuration, role)
    ports = [{"containerPort": port, "name": "http", "protocol": "TCP"}]
    return ports + [
        {"containerPort": record["port"], "name": record["name"], "protocol": "TCP"}
        for record in flags.container_ports
        if matches(record["when"], levers)
    ]


def _probes(configuration: Configuration, flags: FlagMap, target: Target) -> dict[str, Any]:
    budget = startup_budget(configuration.model.weight_bytes, target.load_bytes_per_s)
    ready = {"httpGet": {"path": flags.ready_path, "port": "http"}}
    # The kubelet runs the liveness probe only after the startup probe has succeeded, so a slow load is never killed.
    return {
        "livenessProbe": {
            "failureThreshold": 3,
            "httpGet": {"path": flags.health_path, "port": "http"},
            "periodSeconds": 10,
            "timeoutSeconds": 5,
        },
        "readinessProbe": {**ready, "failureThreshold": 3, "periodSeconds": 10, "timeoutSeconds": 5},
        "startupProbe": {
            **ready,
            "failureThreshold": budget.failure_threshold,
            "periodSeconds": PERIOD_S,
            "timeoutSeconds": 5,
        },
    }


def _needs_shared_memory(configuration: Configuration, role: Role) -> bool:
    return gpus_per_pod(configuration, role) > 1


def _mounts(configuration: Configuration, role: Role, target: Target) -> list[dict[str, Any]]:
    mounts: list[dict[str, Any]] = [{"mountPath": _CACHE, "name": "cache"}]
    if _needs_shared_memory(configuration, role):
        mounts.append({"mountPath": "/dev/shm", "name": "shm"})  # noqa: S108 - the pod's own
    if configuration.model.source.claim is not None:
        mounts.append({"mountPath": _MODELS, "name": "model", "readOnly": True})
    mounts += [mount.to_dict() for mount in target.pod.volume_mounts or ()]
    return mounts


def _volumes(configuration: Configuration, role: Role, target: Target) -> list[Mapping[str, Any]]:
    volumes: list[Mapping[str, Any]] = [{"emptyDir": {}, "name": "cache"}]
    if _needs_shared_memory(configuration, role):
        size = quantity_mebibytes(target.pod.shared_memory_mebibytes or SHARED_MEMORY_MEBIBYTES)
        volumes.append({"emptyDir": {"medium": "Memory", "sizeLimit": size}, "name": "shm"})
    claim = configuration.model.source.claim
    if claim is not None:
        volumes.append({"name": "model", "persistentVolumeClaim": {"claimName": claim.claim_name, "readOnly": True}})
    volumes += [volume.to_dict() for volume in target.pod.volumes or ()]
    return volumes
