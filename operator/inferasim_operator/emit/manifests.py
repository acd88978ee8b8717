"""The entry: deployments of a mix become the manifests of one format, in the order of delivery."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from inferasim_operator.emit import llmd, sglang_router
from inferasim_operator.emit.configuration import Role
from inferasim_operator.emit.objects import Manifest, ordered
from inferasim_operator.emit.target import Deployment, Format, Target
from inferasim_operator.emit.workloads import disruption_budget, engine_workload, pod_monitor, service
from simcore.cards.layout import Engine
from simcore.errors import InputError

_ENGINE_OF = {Format.VLLM: Engine.VLLM, Format.SGLANG: Engine.SGLANG, Format.ATOM: Engine.ATOM}


def emit(deployments: Sequence[Deployment], target: Target) -> list[Manifest]:
    """All manifests of `deployments`, byte-identical for equal input once written by `emit.yaml`. Raises InputError."""
    names = [deployment.name for deployment in deployments]
    if len(set(names)) != len(names):
        raise InputError("configurations", names, "have names of their own")
    manifests: list[Manifest] = []
    for deployment in deployments:
        manifests += _emit_one(deployment, target)
    identities = Counter((manifest["kind"], manifest["metadata"]["name"]) for manifest in manifests)
    twice = [f"{kind} {name}" for (kind, name), count in identities.items() if count > 1]
    if twice:
        raise InputError("configurations", twice, "make objects with names of their own")
    return ordered(manifests)


def _emit_one(deployment: Deployment, target: Target) -> Iterable[Manifest]:
    configuration = deployment.configuration
    if target.format is Format.LLMD:
        return llmd.manifests(deployment, target)
    engine = _ENGINE_OF[target.format]
    if configuration.engine is not engine:
        raise InputError(
            "format", target.format.value, f"fit the engine of {deployment.name} ({configuration.engine.value})"
        )
    if configuration.disaggregation is None:
        return plain_pool(deployment, target, Role.COLOCATED)
    if engine is not Engine.SGLANG:
        raise InputError(
            "format",
            target.format.value,
            f"be LLMD for disaggregated {engine.value}",
            "it has no router of its own here",
        )
    return sglang_router.manifests(deployment, target)


def plain_pool(deployment: Deployment, target: Target, role: Role) -> list[Manifest]:
    """One pool with a Service in front of it."""
    manifests = [
        engine_workload(target, deployment, role),
        service(target, deployment, role),
        disruption_budget(target, deployment, role),
    ]
    if target.is_monitored:
        manifests.append(pod_monitor(target, deployment, role))
    return manifests
