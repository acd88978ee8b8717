"""Carrying out a plan's actions: server-side apply only, a change set as the result, no write where nothing changes.

An action that fails does not stop the others; all errors come back with the changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from inferasim_operator.engine import labels
from inferasim_operator.engine.actions import (
    Action,
    ApplyObject,
    Change,
    ChangeKind,
    CreateObject,
    DeleteObject,
    Reference,
)
from inferasim_operator.engine.client import Client
from inferasim_operator.errors import AlreadyExistsError, ConflictError, NotFoundError, NotOursError, OperatorError

_SERVER_FIELDS = ("managedFields", "resourceVersion", "generation", "creationTimestamp", "selfLink")


@dataclass
class ChangeSet:
    """What happened to each object that is worth telling, in the order of the actions, and what went wrong."""

    changes: list[Change] = field(default_factory=list)
    errors: list[OperatorError] = field(default_factory=list)


def carry_out(client: Client, actions: Iterable[Action], *, owner_uid: str) -> ChangeSet:
    """Do all actions for the owner with this uid. Never raises an OperatorError: they are in the result."""
    result = ChangeSet()
    for action in actions:
        try:
            change = _carry_out(client, action, owner_uid)
            if not isinstance(action, ApplyObject) or action.is_announced:
                result.changes.append(change)
        except OperatorError as error:
            result.errors.append(error)
    return result


def _carry_out(client: Client, action: Action, owner_uid: str) -> Change:
    if isinstance(action, CreateObject):
        return _create(client, action, owner_uid)
    if isinstance(action, ApplyObject):
        return _apply(client, action, owner_uid)
    return _delete(client, action)


def _create(client: Client, action: CreateObject, owner_uid: str) -> Change:
    reference = Reference.of(action.manifest)
    try:
        client.create(action.manifest)
    except AlreadyExistsError:
        live = client.find(reference.api_version, reference.kind, reference.namespace, reference.name)
        if live is not None:
            _require_ours(live, owner_uid, reference)
        return Change(ChangeKind.UNCHANGED, reference)
    return Change(ChangeKind.CREATED, reference)


def _apply(client: Client, action: ApplyObject, owner_uid: str) -> Change:
    reference = Reference.of(action.manifest)
    live = client.find(reference.api_version, reference.kind, reference.namespace, reference.name)
    if live is None:
        client.apply(action.manifest, force=action.force)
        return Change(ChangeKind.CREATED, reference)
    _require_ours(live, owner_uid, reference)
    wanted = client.apply(action.manifest, dry_run=True, force=action.force)
    if _content(wanted) == _content(live):
        return Change(ChangeKind.UNCHANGED, reference)
    client.apply(action.manifest, force=action.force)
    return Change(ChangeKind.CONFIGURED, reference)


def _delete(client: Client, action: DeleteObject) -> Change:
    try:
        client.delete(action.reference, uid=action.uid)
    except (NotFoundError, ConflictError):
        # Gone, or another object has the name by now: either way ours is no more.
        return Change(ChangeKind.UNCHANGED, action.reference)
    return Change(ChangeKind.DELETED, action.reference)


def _require_ours(live: Mapping[str, Any], owner_uid: str, reference: Reference) -> None:
    if not labels.is_owned(live, owner_uid):
        raise NotOursError(f"{reference} exists and was not made for this object; delete or rename one of them")


def _content(live: Mapping[str, Any]) -> dict[str, Any]:
    """A live object without what the server keeps for itself."""
    metadata = {key: value for key, value in live["metadata"].items() if key not in _SERVER_FIELDS}
    return {key: value for key, value in live.items() if key not in ("metadata", "status")} | {"metadata": metadata}
