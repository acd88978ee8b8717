"""Live objects for the command line: where the cluster is, what is in it, and the answer of a plan."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inferasim_operator.api.v1alpha1.anchorharvest import AnchorHarvest
from inferasim_operator.api.v1alpha1.common import API_VERSION, DNS_SUBDOMAIN, Resource
from inferasim_operator.api.v1alpha1.deploymentmix import DeploymentMix
from inferasim_operator.api.v1alpha1.servingplan import ServingPlan
from inferasim_operator.engine.client import Client, context_namespace
from inferasim_operator.errors import NotFoundError, OperatorError
from inferasim_operator.kinds.servingplan import render
from simcore.errors import InputError, UnknownNameError

Object = Mapping[str, Any]
KINDS: tuple[Resource, ...] = (AnchorHarvest.resource, ServingPlan.resource, DeploymentMix.resource)
MANAGER = "inferasim-cli"
FILE_SUFFIXES = {".json", ".yaml", ".yml"}


class NoAnswerError(OperatorError):
    """The object has not got what was asked for, and its own words say why."""


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


def place(namespace: str | None, context: str | None, kubeconfig: str | None) -> Place:
    """The cluster and namespace that the options, or the kubeconfig's context, name. Raises InputError."""
    client = Client.connect(manager=MANAGER, kubeconfig=kubeconfig, context=context)
    return Place(client, namespace or context_namespace(kubeconfig=kubeconfig, context=context))


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


def result_of(live: Object, where: Place) -> dict[str, Any]:
    """The answer of a live plan. Raises NoAnswerError when there is none yet, InputError when it cannot be read."""
    status, name = live.get("status") or {}, live["metadata"]["name"]
    reference = status.get("result")
    if not reference:
        raise NoAnswerError(f"plan `{name}` has no answer: {ready_text(live)}")
    config_map = where.client.get("v1", "ConfigMap", where.namespace, reference["configMap"])
    try:
        return render.read_result(config_map, status["inputDigest"])
    except (ValueError, KeyError) as error:
        must = f"hold the answer of plan `{name}` ({error})"
        raise InputError("ConfigMap", reference["configMap"], must, "ask for a new one: set spec.rerun") from error


def is_outdated(live: Object) -> bool:
    """Whether the spec was changed after what the status speaks of."""
    return int((live.get("status") or {}).get("observedGeneration") or 0) < int(live["metadata"]["generation"])


def condition(live: Object, type_: str) -> Mapping[str, Any]:
    """A condition of a live object; empty when there is none."""
    found = (live.get("status") or {}).get("conditions") or ()
    return next((item for item in found if item["type"] == type_), {})


def ready_text(live: Object) -> str:
    """Why the object is, or is not, ready."""
    ready = condition(live, "Ready")
    return f"{ready['reason']}: {ready['message']}" if ready else "no operator has looked at it yet"
