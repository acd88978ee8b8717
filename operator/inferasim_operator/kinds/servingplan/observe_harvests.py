"""Harvests under way that may bring the anchor which a plan lacks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inferasim_operator.api.v1alpha1.anchorharvest import AnchorHarvest
from inferasim_operator.api.v1alpha1.conditions import READY, STALLED
from inferasim_operator.api.v1alpha1.servingplan import ServingPlanSpec
from inferasim_operator.engine.kind import Context

ANY_HARVEST = ("AnchorHarvest", "*")
"""What a plan without an anchor refers to: any harvest of its namespace."""


def under_way(context: Context, namespace: str, spec: ServingPlanSpec) -> tuple[str, ...]:
    """Names of the harvests that still measure the plan's accelerator with one of its engines, and its model."""
    resource = AnchorHarvest.resource
    found = context.client.list(resource.api_version, resource.kind, namespace)
    return tuple(sorted(str(live["metadata"]["name"]) for live in found if _may_help(live, spec)))


def _may_help(live: Mapping[str, Any], spec: ServingPlanSpec) -> bool:
    asked = live.get("spec") or {}
    if asked.get("suspend") or _has_ended(live):
        return False
    product = str((asked.get("accelerator") or {}).get("product", ""))
    engine = (asked.get("engine") or {}).get("name")
    if product.lower() != spec.cluster.accelerator.lower() or engine not in {item.name.value for item in spec.engines}:
        return False
    wanted = spec.model.name
    model = str((asked.get("model") or {}).get("name", ""))
    return wanted is None or _last(model) == _last(wanted)


def _has_ended(live: Mapping[str, Any]) -> bool:
    """Ready or stalled, by what is said of its present spec."""
    generation = live["metadata"].get("generation")
    return any(
        condition.get("type") in (READY, STALLED)
        and condition.get("status") == "True"
        and condition.get("observedGeneration") == generation
        for condition in (live.get("status") or {}).get("conditions") or ()
    )


def _last(name: str) -> str:
    """A checkpoint's name without its owner, which a plan may leave out."""
    return name.rsplit("/", 1)[-1].lower()
