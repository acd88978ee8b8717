"""llm-d: pools with the labels its router looks for, routing sidecar, InferencePool, endpoint picker, HTTPRoute.

Source: llm-d guides (recipes/modelserver, pd-disaggregation) and llm-d-router charts, mid to late 2026.
"""

from __future__ import annotations

from typing import Any, Final

from inferasim_operator.emit import epp
from inferasim_operator.emit.configuration import Role, TransferBackend
from inferasim_operator.emit.flagmap import flag_map
from inferasim_operator.emit.objects import DEPLOYMENT, MIX, Manifest, metadata, object_name, selector
from inferasim_operator.emit.pod import check_image
from inferasim_operator.emit.target import Deployment, Target
from inferasim_operator.emit.workloads import (
    SERVICE_PORT,
    WORKER_INDEX,
    disruption_budget,
    engine_workload,
    pod_monitor,
)
from inferasim_operator.engine import names
from simcore.cards.layout import Engine
from simcore.errors import InputError

ENGINE_TYPE: Final = {Engine.VLLM: "vllm", Engine.SGLANG: "sglang", Engine.ATOM: "atom"}
_ROLE_LABEL: Final = {Role.COLOCATED: "prefill-decode", Role.PREFILL: "prefill", Role.DECODE: "decode"}
_SIDECAR: Final = "routing-proxy"
# What the sidecar is told by the backend that moves the KV cache; SGLang moves it by its own bootstrap server.
_CONNECTOR: Final = {Engine.VLLM: "nixlv2", Engine.ATOM: "nixlv2", Engine.SGLANG: "sglang"}


def manifests(deployment: Deployment, target: Target) -> list[Manifest]:
    """Everything llm-d needs for one deployment. Raises InputError for what its sidecar cannot carry."""
    configuration = deployment.configuration
    result: list[Manifest] = []
    for role in configuration.roles():
        sidecar = [_sidecar(deployment, target)] if role is Role.DECODE else None
        labels = _labels(deployment, role)
        result.append(engine_workload(target, deployment, role, extra_labels=labels, init_containers=sidecar))
        result.append(disruption_budget(target, deployment, role))
        if target.is_monitored:
            result.append(pod_monitor(target, deployment, role))
    pool = _pool(deployment, target)
    result += [pool, *epp.manifests(deployment, target, pool["metadata"]["name"])]
    if target.is_monitored:
        result.append(epp.pod_monitor(deployment, target))
    if target.gateway is not None:
        result.append(_route(deployment, target, pool["metadata"]["name"]))
    return result


def _labels(deployment: Deployment, role: Role) -> dict[str, str]:
    configuration = deployment.configuration
    return {
        "llm-d.ai/accelerator-variant": "gpu",
        "llm-d.ai/accelerator-vendor": "amd",
        "llm-d.ai/engine-type": ENGINE_TYPE[configuration.engine],
        "llm-d.ai/inference-serving": "true",
        "llm-d.ai/model": names.label_value(configuration.model.name.rsplit("/", 1)[-1]),
        "llm-d.ai/role": _ROLE_LABEL[role],
    }


def _sidecar(deployment: Deployment, target: Target) -> dict[str, Any]:
    """The native sidecar (restartPolicy Always) that owns the decode pod's public port."""
    configuration = deployment.configuration
    transfer = configuration.disaggregation
    assert transfer is not None  # noqa: S101 - a decode role exists only with it
    if not target.images.sidecar:
        raise InputError("images.sidecar", "", "be given for disaggregated llm-d", "llm-d-router-disagg-sidecar")
    check_image(target.images.sidecar)
    if configuration.engine is Engine.VLLM and transfer.backend is TransferBackend.MOONCAKE:
        raise InputError("disaggregation.backend", "Mooncake", "be MoRI or NIXL for vLLM behind llm-d")
    flags = flag_map(configuration.engine, configuration.engine_version)
    arguments = [
        f"--port={SERVICE_PORT}",
        f"--model-server-port={flags.sidecar_port}",
        f"--kv-connector={_CONNECTOR[configuration.engine]}",
        "--secure-proxy=false",
    ]
    if transfer.backend is TransferBackend.MORI and configuration.engine is not Engine.SGLANG:
        arguments += _mori_arguments(deployment)
    return {
        "args": arguments,
        "env": [{"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
        "image": target.images.sidecar,
        "name": _SIDECAR,
        "ports": [{"containerPort": SERVICE_PORT, "name": "sidecar", "protocol": "TCP"}],
        "restartPolicy": "Always",
        "securityContext": {"allowPrivilegeEscalation": False, "runAsNonRoot": True},
    }


def _mori_arguments(deployment: Deployment) -> list[str]:
    configuration = deployment.configuration
    layout = configuration.canonical_layout(Role.PREFILL)
    decode = configuration.canonical_layout(Role.DECODE)
    if (layout.tensor_parallel, layout.data_parallel) != (decode.tensor_parallel, decode.data_parallel):
        raise InputError(
            "disaggregation",
            f"{layout.label()} and {decode.label()}",
            "have the same TP and DP on both sides with MoRI behind llm-d",
            "its sidecar is told one size",
        )
    arguments = [
        "--moriio-write-mode",
        f"--moriio-tp-size={layout.tensor_parallel}",
        "--moriio-parallel-dispatch",
        "--moriio-local-pod-ip=$(POD_IP)",
    ]
    if layout.data_parallel > 1:
        if configuration.nodes_per_replica(Role.PREFILL) > 1:
            raise InputError("disaggregation.prefill.layout", layout.label(), "fit one node with MoRI behind llm-d")
        arguments += [
            f"--moriio-dp-size={layout.data_parallel}",
            f"--moriio-dp-size-local={layout.data_parallel}",
        ]
    return arguments


def _pool(deployment: Deployment, target: Target) -> Manifest:
    labels = {MIX: names.label_value(target.mix), DEPLOYMENT: names.label_value(deployment.name)}
    serving = {**labels, "llm-d.ai/inference-serving": "true"}
    nodes = {deployment.configuration.nodes_per_replica(role) for role in deployment.configuration.roles()}
    if nodes != {1}:
        if 1 in nodes:
            raise InputError(
                "disaggregation", sorted(nodes), "have both sides on one node, or both on several, in one pool"
            )
        serving[WORKER_INDEX] = "0"
    name = object_name(target, deployment)
    spec = {
        "endpointPickerRef": {
            "failureMode": "FailOpen",
            "kind": "Service",
            "name": epp.epp_name(target, deployment),
            "port": {"number": epp.EXT_PROC_PORT},
        },
        "selector": {"matchLabels": serving},
        "targetPorts": [{"number": SERVICE_PORT}],
    }
    return {
        "apiVersion": "inference.networking.k8s.io/v1",
        "kind": "InferencePool",
        "metadata": metadata(target, name, selector(target, deployment, "all")),
        "spec": spec,
    }


def _route(deployment: Deployment, target: Target, pool: str) -> Manifest:
    assert target.gateway is not None  # noqa: S101 - the caller asked
    parent = {"name": target.gateway.name}
    if target.gateway.namespace:
        parent["namespace"] = target.gateway.namespace
    backend = {"group": "inference.networking.k8s.io", "kind": "InferencePool", "name": pool}
    # Deployments of one mix share the gateway; the model name alone cannot tell tiers apart, so the path does.
    match = {"path": {"type": "PathPrefix", "value": f"/{deployment.name}"}}
    rewrite = {"type": "URLRewrite", "urlRewrite": {"path": {"replacePrefixMatch": "/", "type": "ReplacePrefixMatch"}}}
    spec = {"parentRefs": [parent], "rules": [{"backendRefs": [backend], "filters": [rewrite], "matches": [match]}]}
    return {
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "HTTPRoute",
        "metadata": metadata(target, pool, selector(target, deployment, "all")),
        "spec": spec,
    }
