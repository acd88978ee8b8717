"""kopf handlers of ServingPlan: they only wake workers."""

from __future__ import annotations

from typing import Any

import kopf

from inferasim_operator.api.v1alpha1.anchorharvest import AnchorHarvest
from inferasim_operator.api.v1alpha1.servingplan import ServingPlan
from inferasim_operator.engine.kind import Kind
from inferasim_operator.engine.wiring import Wiring, is_anchor
from inferasim_operator.kinds.servingplan.observe import Observed, observe
from inferasim_operator.kinds.servingplan.observe_harvests import ANY_HARVEST
from inferasim_operator.kinds.servingplan.plan import plan

# A pass is three requests, one of them a list, for which the server may wait 0.1 s for its own cache: with thousands of
# plans a restart takes as long as its answers over the threads.
KIND: Kind[Observed] = Kind(resource=ServingPlan.resource, observe=observe, plan=plan, threads=24)


def register(registry: kopf.OperatorRegistry, wiring: Wiring) -> None:
    """Wake a plan for itself, its answer and shards, its Job, the ConfigMaps it names, any anchor of its namespace, and
    any harvest there while it has none."""
    resource = ServingPlan.resource

    @kopf.on.event(resource.group, resource.version, resource.plural, registry=registry)
    async def on_plan(body: kopf.Body, **_: Any) -> None:
        wiring.own_event(body)

    harvest = AnchorHarvest.resource

    @kopf.on.event(harvest.group, harvest.version, harvest.plural, registry=registry)
    async def on_harvest(body: kopf.Body, **_: Any) -> None:
        kind, name = ANY_HARVEST
        wiring.other_event(kind, {"metadata": {"namespace": body["metadata"]["namespace"], "name": name}})

    @kopf.on.event("batch", "v1", "jobs", registry=registry)
    async def on_job(body: kopf.Body, **_: Any) -> None:
        wiring.other_event("Job", body, is_looked_for=True)

    @kopf.on.event("", "v1", "configmaps", registry=registry)
    async def on_config_map(body: kopf.Body, **_: Any) -> None:
        wiring.other_event("ConfigMap", body, wakes_namespace=is_anchor(body))
