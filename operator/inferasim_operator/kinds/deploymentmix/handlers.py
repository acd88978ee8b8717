"""kopf handlers of DeploymentMix: they only wake workers."""

from __future__ import annotations

from typing import Any

import kopf

from inferasim_operator.api.v1alpha1.deploymentmix import DeploymentMix
from inferasim_operator.api.v1alpha1.servingplan import ServingPlan
from inferasim_operator.engine.kind import Kind
from inferasim_operator.engine.wiring import Wiring
from inferasim_operator.kinds.deploymentmix import live_observe
from inferasim_operator.kinds.deploymentmix.observe import Observed, observe
from inferasim_operator.kinds.deploymentmix.plan import plan

KIND: Kind[Observed] = Kind(resource=DeploymentMix.resource, observe=observe, plan=plan, resync_s=300.0)


def register(registry: kopf.OperatorRegistry, wiring: Wiring) -> None:
    """Wake a mix for itself, its plan, its Deployments and its figures; the rest waits for the resync."""
    resource, plans = DeploymentMix.resource, ServingPlan.resource
    live_observe.loop().on_change = wiring.workers.wake_from_thread

    @kopf.on.event(resource.group, resource.version, resource.plural, registry=registry)
    async def on_mix(body: kopf.Body, **_: Any) -> None:
        wiring.own_event(body)

    @kopf.on.event(plans.group, plans.version, plans.plural, registry=registry)
    async def on_plan(body: kopf.Body, **_: Any) -> None:
        wiring.other_event(plans.kind, body)

    @kopf.on.event("apps", "v1", "deployments", registry=registry)
    async def on_deployment(body: kopf.Body, **_: Any) -> None:
        wiring.other_event("Deployment", body)
