"""kopf handlers of AnchorHarvest: they only wake workers."""

from __future__ import annotations

from typing import Any

import kopf

from inferasim_operator.api.v1alpha1.anchorharvest import AnchorHarvest
from inferasim_operator.engine.kind import Kind
from inferasim_operator.engine.wiring import Wiring
from inferasim_operator.kinds.anchorharvest.observe import Observed, observe
from inferasim_operator.kinds.anchorharvest.plan import plan

KIND: Kind[Observed] = Kind(resource=AnchorHarvest.resource, observe=observe, plan=plan, threads=2)


def register(registry: kopf.OperatorRegistry, wiring: Wiring) -> None:
    """Wake a harvest for itself, its Job, and the ConfigMaps made for it (the harvester's progress is one)."""
    resource = AnchorHarvest.resource

    @kopf.on.event(resource.group, resource.version, resource.plural, registry=registry)
    async def on_harvest(body: kopf.Body, **_: Any) -> None:
        wiring.own_event(body)

    @kopf.on.event("batch", "v1", "jobs", registry=registry)
    async def on_job(body: kopf.Body, **_: Any) -> None:
        wiring.other_event("Job", body)

    @kopf.on.event("", "v1", "configmaps", registry=registry)
    async def on_config_map(body: kopf.Body, **_: Any) -> None:
        wiring.other_event("ConfigMap", body)
