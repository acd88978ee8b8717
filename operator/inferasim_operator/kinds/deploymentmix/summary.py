"""An emission in the words of the status. Pure."""

from __future__ import annotations

from inferasim_operator.api.v1alpha1.deploymentmix import DeployedConfiguration, InventoryItem
from inferasim_operator.emit.configuration import Configuration
from inferasim_operator.emit.flagmap import flag_map
from inferasim_operator.emit.pod import assumptions
from inferasim_operator.emit.target import Target
from inferasim_operator.engine.actions import Reference
from inferasim_operator.kinds.deploymentmix.choices import Chosen
from inferasim_operator.kinds.deploymentmix.render import Emission
from inferasim_operator.report import numbers


def line(emission: Emission) -> str:
    """All deployments in one line, e.g. `interactive: SGLang TP4 x2 (8 GPUs)`."""
    return "; ".join(
        f"{choice.deployment.name}: {choice.deployment.configuration.engine.value} "
        f"{layout(choice.deployment.configuration)} ({numbers.gpus(gpus(choice.deployment.configuration))})"
        for choice in emission.chosen
    )


def layout(configuration: Configuration) -> str:
    """Layout and replicas of every pool, e.g. `TP4 x2`, or `prefill TP4 x2, decode TP8 x1`."""
    parts = []
    for role in configuration.roles():
        name = f"{role.value} " if len(configuration.roles()) > 1 else ""
        parts.append(f"{name}{configuration.canonical_layout(role).label()} x{configuration.pool(role).replicas}")
    return ", ".join(parts)


def gpus(configuration: Configuration) -> int:
    """GPUs of all replicas of all pools."""
    return sum(
        configuration.resolved(role).gpus_count * configuration.pool(role).replicas for role in configuration.roles()
    )


def deployments(emission: Emission) -> tuple[DeployedConfiguration, ...]:
    """One record per deployment, with what its manifests and its prediction assume."""
    return tuple(_deployment(choice, emission.target) for choice in emission.chosen)


def _deployment(choice: Chosen, target: Target) -> DeployedConfiguration:
    configuration = choice.deployment.configuration
    unverified = flag_map(configuration.engine, configuration.engine_version).unverified
    flags = (*choice.flags, *assumptions(configuration, target), *((unverified,) if unverified else ()))
    return DeployedConfiguration(
        name=choice.deployment.name,
        engine=configuration.engine.value,
        layout=layout(configuration),
        gpus=gpus(configuration),
        predicted=choice.predicted,
        flags=flags or None,
    )


def inventory(emission: Emission) -> tuple[InventoryItem, ...]:
    """The emitted objects, in the order of delivery."""
    references = (Reference.of(manifest) for manifest in emission.manifests)
    return tuple(
        InventoryItem(api_version=r.api_version, kind=r.kind, namespace=r.namespace, name=r.name) for r in references
    )
