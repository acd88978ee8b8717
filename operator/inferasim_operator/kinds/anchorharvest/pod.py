"""The harvest's pod: the right GPUs on the right nodes, one harvest per node, no more rights than it needs. Pure."""

from __future__ import annotations

from typing import Any

from inferasim_operator.api.v1alpha1.anchorharvest import AnchorHarvestSpec
from inferasim_operator.api.v1alpha1.common import PodOptions
from inferasim_operator.engine import labels

SPEC_KEY = "spec.json"
SPEC_PATH = "/etc/inferasim"
OUT_PATH = "/var/lib/inferasim"
MODEL_PATH = "/models"
CACHE_PATH = "/cache"
CONTAINER = "harvester"
GPU_RESOURCE = "amd.com/gpu"
DEVICE_ID_LABEL = "amd.com/gpu.device-id"
PARTITION_LABEL = "amd.com/gpu.compute-memory-partition"
PARTITION = "spx_nps1"
"""One device per GPU; in other modes a node's GPUs are many small devices, and figures do not compare."""
SHARED_MEMORY_MEBIBYTES = 16 * 1024
"""Collectives of several ranks need far more than a container's usual 64 MiB."""
USER_ID = 1000

Manifest = dict[str, Any]


def pod_spec(
    spec: AnchorHarvestSpec,
    *,
    account: str,
    spec_map: str,
    progress: str,
    gpus_count: int,
    device_ids: tuple[str, ...],
    deadline_s: int,
) -> Manifest:
    """The pod's spec. `progress` is the `namespace/name` of the ConfigMap that the harvester mirrors into.

    `device_ids` are the PCI ids of the accelerator, bare metal and virtual function alike; without any, a CPU is
    harvested, for trying things out: on any node, with no GPU asked for.
    """
    options = spec.pod or PodOptions()
    selector, affinity = dict(options.node_selector or {}), {"podAntiAffinity": _alone_on_node()}
    if device_ids:
        selector[PARTITION_LABEL] = spec.accelerator.partition or PARTITION
        affinity["nodeAffinity"] = _on_devices(device_ids)
    built: Manifest = {
        "restartPolicy": "Never",
        "serviceAccountName": account,
        # Counted from the pod's start on the node, so that waiting for a free node costs nothing.
        "activeDeadlineSeconds": deadline_s,
        "nodeSelector": selector,
        "affinity": affinity,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER_ID,
            "runAsGroup": USER_ID,
            "fsGroup": USER_ID,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [_container(spec, options, gpus_count, progress)],
        "volumes": _volumes(spec, options, spec_map),
    }
    if options.supplemental_groups:
        built["securityContext"]["supplementalGroups"] = list(options.supplemental_groups)
    if options.tolerations:
        built["tolerations"] = [toleration.to_dict() for toleration in options.tolerations]
    if options.priority_class_name is not None:
        built["priorityClassName"] = options.priority_class_name
    if options.image_pull_secrets:
        built["imagePullSecrets"] = [secret.to_dict() for secret in options.image_pull_secrets]
    return built


def _container(spec: AnchorHarvestSpec, options: PodOptions, gpus_count: int, progress: str) -> Manifest:
    resource = spec.accelerator.resource_name or GPU_RESOURCE
    gpus = {resource: str(gpus_count)} if gpus_count else {}
    env: list[Manifest] = [
        {"name": "HOME", "value": CACHE_PATH},
        {"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        {"name": "HOST_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.hostIP"}}},
    ]
    hub = spec.model.source.hub
    if hub is not None and hub.token_secret is not None:
        secret = {"name": hub.token_secret.name, "key": hub.token_secret.key}
        env.append({"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": secret}})
    given = {item.name for item in spec.engine.env or ()}
    env = [item for item in env if item["name"] not in given]
    env += [item.to_dict() for item in spec.engine.env or ()]
    mounts: list[Manifest] = [
        {"name": "inferasim-spec", "mountPath": SPEC_PATH, "readOnly": True},
        {"name": "inferasim-out", "mountPath": OUT_PATH},
        {"name": "inferasim-cache", "mountPath": CACHE_PATH},
        {"name": "inferasim-shm", "mountPath": "/dev/shm"},  # noqa: S108 - a mount in the pod, not a file of ours
    ]
    if spec.model.source.claim is not None:
        mounts.append({"name": "inferasim-model", "mountPath": MODEL_PATH, "readOnly": True})
    mounts += [mount.to_dict() for mount in options.volume_mounts or ()]
    arguments = [f"--spec={SPEC_PATH}/{SPEC_KEY}", f"--out={OUT_PATH}", f"--config-map={progress}"]
    if spec.accelerator.metrics_url is not None:
        arguments.append(f"--gpu-metrics-url={spec.accelerator.metrics_url}")
    return {
        "name": CONTAINER,
        "image": spec.engine.image,
        "command": ["python", "-m", "inferasim_harvester", "run"],
        "args": arguments,
        "env": env,
        "resources": {"requests": gpus, "limits": gpus},
        # The end of the log reaches the pod's status, so no right to read logs is needed.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "volumeMounts": mounts,
    }


def _volumes(spec: AnchorHarvestSpec, options: PodOptions, spec_map: str) -> list[Manifest]:
    size = options.shared_memory_mebibytes or SHARED_MEMORY_MEBIBYTES
    volumes: list[Manifest] = [
        {"name": "inferasim-spec", "configMap": {"name": spec_map}},
        {"name": "inferasim-out", "emptyDir": {}},
        {"name": "inferasim-cache", "emptyDir": {}},
        {"name": "inferasim-shm", "emptyDir": {"medium": "Memory", "sizeLimit": f"{size}Mi"}},
    ]
    claim = spec.model.source.claim
    if claim is not None:
        source = {"claimName": claim.claim_name, "readOnly": True}
        volumes.append({"name": "inferasim-model", "persistentVolumeClaim": source})
    return [*volumes, *(volume.to_dict() for volume in options.volumes or ())]


def _on_devices(device_ids: tuple[str, ...]) -> Manifest:
    """Nodes by PCI id: product names are empty on virtual functions and differ in spelling."""
    expression = {"key": DEVICE_ID_LABEL, "operator": "In", "values": sorted(device_ids)}
    return {
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
    }


def _alone_on_node() -> Manifest:
    """The scheduler queues harvests: never two on one node, whatever their namespaces, since they would disturb each
    other's step times."""
    return {
        "requiredDuringSchedulingIgnoredDuringExecution": [
            {
                "topologyKey": "kubernetes.io/hostname",
                "namespaceSelector": {},
                "labelSelector": {
                    "matchLabels": {labels.MANAGED_BY: labels.MANAGER, labels.OWNER_KIND: "AnchorHarvest"}
                },
            }
        ]
    }
