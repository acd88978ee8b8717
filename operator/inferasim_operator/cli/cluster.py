"""Live objects for the command line: where the cluster is, what is in it, and which arguments name them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inferasim_operator import views
from inferasim_operator.api.v1alpha1.anchorharvest import AnchorHarvest
from inferasim_operator.api.v1alpha1.common import API_VERSION, DNS_SUBDOMAIN, Resource
from inferasim_operator.api.v1alpha1.deploymentmix import DeploymentMix
from inferasim_operator.api.v1alpha1.servingplan import ServingPlan
from inferasim_operator.cli.output import note
from inferasim_operator.engine.client import Client, context_namespace
from inferasim_operator.errors import NotFoundError
from simcore.errors import UnknownNameError

Object = Mapping[str, Any]
KINDS: tuple[Resource, ...] = (AnchorHarvest.resource, ServingPlan.resource, DeploymentMix.resource)
MANAGER = "inferasim-cli"
FILE_SUFFIXES = {".json", ".yaml", ".yml"}


@dataclass(frozen=True)
class Place:
    """One namespace of one cluster."""

    client: Client
    namespace: str

    def find(self, kind: str, name: str) -> Object:
        """A live object of ours. Raises NotFoundError with the namespace in it."""
        try:
            return self.client.get(API_VERSION, kind, self.namespace, name)
        except NotFoundError:
            raise NotFoundError(f"no {kind} `{name}` in namespace `{self.namespace}`", status=404) from None

    def list(self, resource: Resource, *, everywhere: bool = False) -> list[Object]:
        """All objects of a kind of ours. Raises NotFoundError with a hint where the kind is not served."""
        try:
            return list(self.client.list(API_VERSION, resource.kind, "" if everywhere else self.namespace))
        except NotFoundError:
            hint = "install the chart: helm install inferasim charts/inferasim"
            raise NotFoundError(f"the cluster does not serve {resource.crd_name}; {hint}", status=404) from None

    def result(self, live: Object) -> dict[str, Any]:
        """The answer of a live plan. Raises NoAnswerError, InputError."""
        return views.result_of(live, self.client.get("v1", "ConfigMap", self.namespace, views.result_name(live)))


def place(namespace: str | None, context: str | None, kubeconfig: str | None) -> Place:
    """The cluster and namespace that the options, or the kubeconfig's context, name. Raises InputError."""
    client = Client.connect(manager=MANAGER, kubeconfig=kubeconfig, context=context)
    return Place(client, namespace or context_namespace(kubeconfig=kubeconfig, context=context))


def live_result(name: str, where: Place) -> dict[str, Any]:
    """The answer of a live plan, with a word on standard error when its spec has changed since."""
    live = where.find(ServingPlan.resource.kind, name)
    result = where.result(live)
    if views.is_outdated(live):
        note(f"plan `{name}` was edited after this answer")
    return result


def plan_name(arguments: list[str]) -> str | None:
    """The name of a live plan when the arguments are one, written `NAME` or `servingplan/NAME`; None for files."""
    if len(arguments) != 1 or Path(arguments[0]).exists() or Path(arguments[0]).suffix in FILE_SUFFIXES:
        return None
    try:
        kind, name = split_name(arguments[0])
    except UnknownNameError:
        return None  # a path
    return name if kind in (None, ServingPlan.resource) and re.fullmatch(DNS_SUBDOMAIN, name) else None


def split_name(text: str) -> tuple[Resource | None, str]:
    """`sp/chat` as (ServingPlan, chat); without a kind, all of them are meant. Raises UnknownNameError."""
    word, slash, name = text.rpartition("/")
    if not slash:
        return None, name
    for resource in KINDS:
        if word.lower().removesuffix(f".{resource.group}") in {
            resource.kind.lower(),
            resource.plural,
            *resource.short_names,
        }:
            return resource, name
    raise UnknownNameError("kind", word, [resource.kind for resource in KINDS])
