"""What a plan may ask for: a closed union of actions, and the plan that holds them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from inferasim_operator.api.v1alpha1.conditions import ConditionedStatus

Manifest = Mapping[str, Any]


@dataclass(frozen=True, order=True)
class ObjectKey:
    """Where an object of a known kind lives."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, order=True)
class Reference:
    """An object of any kind."""

    api_version: str
    kind: str
    namespace: str
    name: str

    @classmethod
    def of(cls, manifest: Manifest) -> Reference:
        """The reference to a manifest or a live object."""
        metadata = manifest["metadata"]
        return cls(manifest["apiVersion"], manifest["kind"], metadata.get("namespace", ""), metadata["name"])

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}" if self.namespace else f"{self.kind} {self.name}"


@dataclass(frozen=True)
class CreateObject:
    """Create an object whose name says its content; if it exists, that is success and nothing is written."""

    manifest: Manifest


@dataclass(frozen=True)
class ApplyObject:
    """Server-side apply an object of ours; nothing is written when the server says that nothing would change."""

    manifest: Manifest
    force: bool = False
    """Take fields that another manager owns; else that is a ConflictError naming the manager."""
    is_announced: bool = True
    """Whether a change is worth an event; one that comes every few seconds is not."""


@dataclass(frozen=True)
class DeleteObject:
    """Delete an object of ours, and what it owns in the background; gone already is success."""

    reference: Reference
    uid: str
    """Only the object with this uid: never one that took its name since."""


@dataclass(frozen=True)
class StartComputation:
    """The answer to `request` that is wanted; computed outside this process, once per digest."""

    digest: str
    request: Mapping[str, Any]
    kept: str | None = None
    """The record that the computation has asked to be kept, as it is seen in the cluster."""


Action = CreateObject | ApplyObject | DeleteObject


class ChangeKind(StrEnum):
    """What an action did."""

    CREATED = "Created"
    CONFIGURED = "Configured"
    UNCHANGED = "Unchanged"
    DELETED = "Deleted"


@dataclass(frozen=True)
class Change:
    """The outcome of one action."""

    kind: ChangeKind
    reference: Reference

    @property
    def is_change(self) -> bool:
        return self.kind is not ChangeKind.UNCHANGED


@dataclass(frozen=True)
class Announcement:
    """An event to emit with the plan, beyond those that the engine makes of changes and of Ready flipping."""

    reason: str
    message: str
    is_warning: bool = False


@dataclass(frozen=True)
class Plan:
    """What is to be done for one object now; planning again after it has been applied gives no actions."""

    status: ConditionedStatus
    actions: tuple[Action, ...] = ()
    computation: StartComputation | None = None
    """What this object wants computed now, as a state rather than a step: it stays here while it runs and while its
    failure is what the status tells; any other computation of this object is given up."""
    wake_after_s: float | None = None
    announcements: tuple[Announcement, ...] = field(default=())
