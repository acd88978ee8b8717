"""llm-d's endpoint picker: its configuration, with what the anchor measured filled in, and its Deployment."""

from __future__ import annotations

from typing import Any, Final

from inferasim_operator.emit import yaml
from inferasim_operator.emit.objects import Manifest, metadata, object_name, selector
from inferasim_operator.emit.pod import check_image
from inferasim_operator.emit.sglang_router import pod_reader
from inferasim_operator.emit.target import Deployment, Target
from inferasim_operator.emit.workloads import SCRAPE_INTERVAL
from inferasim_operator.engine import names
from simcore.cards.layout import Engine
from simcore.errors import InputError

EXT_PROC_PORT: Final = 9002
HEALTH_PORT: Final = 9003
METRICS_PORT: Final = 9090
_CONFIG_KEY: Final = "epp-config.yaml"
POOL_VALUE: Final = "epp"
"""Of the pool label on the picker's objects."""
# The longest grace period of the pods in the pool (llm-d-router chart).
_GRACE_S: Final = 130


def epp_name(target: Target, deployment: Deployment) -> str:
    """The name of the picker's Deployment, Service, account and ConfigMap."""
    return object_name(target, deployment, POOL_VALUE)


def configuration_document(deployment: Deployment) -> dict[str, Any]:
    """The EndpointPickerConfig (`llm-d.ai/v1alpha1`, decoded strictly by the picker)."""
    disaggregated = deployment.configuration.disaggregation is not None
    plugins: list[dict[str, Any]] = [{"type": "approx-prefix-cache-producer"}, {"type": "inflight-load-producer"}]
    affinity: list[str] = []
    if deployment.peak_prefill_tokens_per_s is not None:
        # The picker wants this rate measured; the anchor has it.
        parameters = {"peakPrefillThroughput": deployment.peak_prefill_tokens_per_s}
        plugins.append({"parameters": parameters, "type": "prefix-cache-affinity-filter"})
        affinity = ["prefix-cache-affinity-filter"]
    plugins += [{"type": "token-load-scorer"}, {"type": "max-score-picker"}]
    if disaggregated:
        decider = "always-disagg-pd-decider"
        plugins += [
            {"type": decider},
            {"parameters": {"deciders": {"prefill": decider}}, "type": "disagg-profile-handler"},
            {"type": "prefill-filter"},
            {"type": "decode-filter"},
            {"type": "active-request-scorer"},
        ]
        profiles = [
            _profile("prefill", "prefill-filter", *affinity, "token-load-scorer", "max-score-picker"),
            _profile("decode", "decode-filter", "active-request-scorer", "max-score-picker"),
        ]
    else:
        plugins.append({"type": "single-profile-handler"})
        profiles = [_profile("default", *affinity, "token-load-scorer", "max-score-picker")]
    document: dict[str, Any] = {
        "apiVersion": "llm-d.ai/v1alpha1",
        "kind": "EndpointPickerConfig",
        "plugins": plugins,
        "schedulingProfiles": profiles,
    }
    if deployment.configuration.engine is Engine.ATOM:
        plugins += [{"type": "metrics-data-source"}, _atom_metrics()]
        extractors = [{"pluginRef": "core-metrics-extractor"}]
        document["dataLayer"] = {"sources": [{"extractors": extractors, "pluginRef": "metrics-data-source"}]}
    return document


def manifests(deployment: Deployment, target: Target, pool: str) -> list[Manifest]:
    """ConfigMap, Deployment, Service and account of the picker. Raises InputError without its image."""
    if not target.images.router:
        raise InputError("images.router", "", "be given for llm-d", "llm-d-router-endpoint-picker")
    check_image(target.images.router)
    name = epp_name(target, deployment)
    labels = selector(target, deployment, POOL_VALUE)
    meta = metadata(target, name, labels)
    document = yaml.dump(configuration_document(deployment))
    spec = {
        # In-flight counts live in the process, so a second replica would see half of the load.
        "replicas": 1,
        "selector": {"matchLabels": labels},
        "strategy": {"type": "Recreate"},
        "template": {
            # A picker that runs an old configuration would keep scoring by it: a new one makes a new pod.
            "metadata": {
                "annotations": {"inferasim.dev/config-digest": names.digest(document)},
                "labels": {**target.labels, **labels},
            },
            "spec": _pod(target, name, pool),
        },
    }
    ports = [{"name": "grpc", "port": EXT_PROC_PORT, "protocol": "TCP", "targetPort": "grpc"}]
    ports.append({"name": "metrics", "port": METRICS_PORT, "protocol": "TCP", "targetPort": "metrics"})
    service = {"ports": ports, "selector": labels, "type": "ClusterIP"}
    rules = (
        {
            "apiGroups": ["inference.networking.k8s.io"],
            "resources": ["inferencepools"],
            "verbs": ["get", "list", "watch"],
        },
        {
            "apiGroups": ["llm-d.ai"],
            "resources": ["inferencemodelrewrites", "inferenceobjectives"],
            "verbs": ["get", "list", "watch"],
        },
    )
    return [
        {"apiVersion": "v1", "data": {_CONFIG_KEY: document}, "kind": "ConfigMap", "metadata": meta},
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta, "spec": spec},
        {"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": service},
        *pod_reader(meta, target.namespace, rules),
    ]


def pod_monitor(deployment: Deployment, target: Target) -> Manifest:
    """Scrapes the picker, which alone sees whole requests of ATOM and of two pools."""
    labels = selector(target, deployment, POOL_VALUE)
    spec = {
        "podMetricsEndpoints": [{"interval": SCRAPE_INTERVAL, "path": "/metrics", "port": "metrics"}],
        "podTargetLabels": sorted(labels),
        "selector": {"matchLabels": labels},
    }
    meta = metadata(target, epp_name(target, deployment), labels)
    return {"apiVersion": "monitoring.coreos.com/v1", "kind": "PodMonitor", "metadata": meta, "spec": spec}


def _profile(name: str, *plugins: str) -> dict[str, Any]:
    return {"name": name, "plugins": [{"pluginRef": plugin} for plugin in plugins]}


def _atom_metrics() -> dict[str, Any]:
    # The picker knows no ATOM by itself; names of ATOM 0.1.x (atom/entrypoints/openai/metrics.py).
    engine = {
        "kvUsageSpec": "atom:kv_cache_usage_ratio",
        "name": "atom",
        "queuedRequestsSpec": "atom:requests_waiting",
        "runningRequestsSpec": "atom:requests_running",
    }
    parameters = {"defaultEngine": "atom", "engineConfigs": [engine], "engineLabelKey": "llm-d.ai/engine-type"}
    return {"parameters": parameters, "type": "core-metrics-extractor"}


def _pod(target: Target, name: str, pool: str) -> dict[str, Any]:
    health = {"grpc": {"port": HEALTH_PORT, "service": "inference-extension"}, "periodSeconds": 10}
    container = {
        "args": [
            f"--pool-name={pool}",
            f"--pool-namespace={target.namespace}",
            "--pool-group=inference.networking.k8s.io",
            "--zap-encoder=json",
            f"--config-file=/config/{_CONFIG_KEY}",
            f"--grpc-health-port={HEALTH_PORT}",
            "--tracing=false",
            # Scrapers would need a ClusterRole to authenticate; the port carries counts only.
            "--metrics-endpoint-auth=false",
        ],
        "env": [
            {"name": "NAMESPACE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}},
            {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        ],
        "image": target.images.router,
        "livenessProbe": {**health, "initialDelaySeconds": 5},
        "name": POOL_VALUE,
        "ports": [
            {"containerPort": EXT_PROC_PORT, "name": "grpc", "protocol": "TCP"},
            {"containerPort": HEALTH_PORT, "name": "grpc-health", "protocol": "TCP"},
            {"containerPort": METRICS_PORT, "name": "metrics", "protocol": "TCP"},
        ],
        "readinessProbe": health,
        "resources": {"requests": {"cpu": "8", "memory": "8Gi"}},
        "securityContext": {"allowPrivilegeEscalation": False},
        "volumeMounts": [{"mountPath": "/config", "name": "config", "readOnly": True}],
    }
    return {
        "containers": [container],
        "serviceAccountName": name,
        "terminationGracePeriodSeconds": _GRACE_S,
        "volumes": [{"configMap": {"name": name}, "name": "config"}],
    }
