"""Small builders that every emitted object shares: metadata, labels, quantities, the order of documents."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from inferasim_operator.api.v1alpha1.common import GROUP
from inferasim_operator.emit.target import Deployment, Target
from inferasim_operator.engine import names
from inferasim_operator.engine.labels import MANAGED_BY, MANAGER

Manifest = dict[str, Any]

MIX: Final = f"{GROUP}/mix"
DEPLOYMENT: Final = f"{GROUP}/deployment"
POOL: Final = f"{GROUP}/pool"
ASSUMED: Final = f"{GROUP}/assumed"
UNVERIFIED: Final = f"{GROUP}/unverified"

# Kinds in the order in which a cluster wants them: what others refer to comes first.
_ORDER: Final = (
    "ServiceAccount",
    "Role",
    "RoleBinding",
    "ConfigMap",
    "Service",
    "PodDisruptionBudget",
    "Deployment",
    "LeaderWorkerSet",
    "InferencePool",
    "HTTPRoute",
    "PodMonitor",
)

_SUFFIXES: Final = ("prefill", "decode", "router", "epp")
"""What names of objects end in beside the deployment's own."""


def object_name(target: Target, deployment: Deployment, *suffixes: str) -> str:
    """The name of an object of one deployment; `a-b` of mix `c` and `b` of mix `c-a` never get the same.

    It begins with a letter, which a Service's name must.
    """
    base = f"{target.mix}-{deployment.name}"
    mark = names.digest([target.mix, deployment.name])[: names.HASH_LENGTH]
    if base[0].isdigit():
        base = f"mix-{base}-{mark}"
    elif "-" in deployment.name or deployment.name in _SUFFIXES:
        base = f"{base}-{mark}"
    return names.object_name(base, *suffixes)


def selector(target: Target, deployment: Deployment, role: str) -> dict[str, str]:
    """The labels that tell one pool's pods from all others; never changed once emitted."""
    return {MIX: names.label_value(target.mix), DEPLOYMENT: names.label_value(deployment.name), POOL: role}


def metadata(
    target: Target, name: str, labels: Mapping[str, str], annotations: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Metadata with our own labels and those the mix asks for; the mix's own labels are never copied (D01)."""
    record: dict[str, Any] = {
        "labels": {**target.labels, **labels, MANAGED_BY: MANAGER},
        "name": name,
        "namespace": target.namespace,
    }
    if annotations:
        record["annotations"] = dict(annotations)
    return record


def quantity_mebibytes(mebibytes: int) -> str:
    """The form that the API server would write back: the largest binary unit that divides."""
    for unit, factor in (("Ti", 1 << 20), ("Gi", 1 << 10)):
        if mebibytes % factor == 0:
            return f"{mebibytes // factor}{unit}"
    return f"{mebibytes}Mi"


def ordered(manifests: Iterable[Manifest]) -> list[Manifest]:
    """The manifests in the order of delivery, the same whatever order they were made in."""
    return sorted(manifests, key=lambda m: (_ORDER.index(m["kind"]), m["metadata"]["name"]))
