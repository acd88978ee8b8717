"""What a kind gives to the engine, and what the engine gives to a kind's `observe`."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from inferasim_operator.api.v1alpha1.common import Resource
from inferasim_operator.engine import client as clients
from inferasim_operator.engine import compute, references
from inferasim_operator.engine.actions import ObjectKey, Plan


class Observed(Protocol):
    """All that a plan is made from, read at one moment; each kind has its own frozen dataclass."""

    @property
    def raw(self) -> Mapping[str, Any]:
        """The live object, as read."""
        ...


ObservedT = TypeVar("ObservedT", bound=Observed)


@dataclass(frozen=True)
class Context:
    """What `observe` may read from."""

    client: clients.Client
    computations: compute.Computations | None = None
    references: references.References = field(default_factory=references.References)
    """Where `observe` notes what an object refers to, so that a change there wakes it."""
    worker_image: str = ""
    """The operator's own image, for Jobs that run its code; empty when it was not told."""
    serves_all_namespaces: bool = False
    """Whether the operator holds a ClusterRole, and so may read what belongs to no namespace."""


@dataclass(frozen=True)
class Kind(Generic[ObservedT]):
    """One kind: how to look, how to decide. `observe` blocks and only reads; `plan` is pure and total."""

    resource: Resource
    observe: Callable[[Context, ObjectKey], ObservedT | None]
    plan: Callable[[ObservedT, datetime.datetime], Plan]
    resync_s: float = 600.0
    """An object is looked at again after this long even if nothing woke it."""
    threads: int = 4
    """Own threads per kind, so that a crowd of one kind never keeps another from its first status."""
