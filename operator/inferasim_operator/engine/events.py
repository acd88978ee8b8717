"""Kubernetes events: sent for an action that was done and for Ready turning, never for a pass that changed nothing."""

from __future__ import annotations

import datetime
import logging
from collections.abc import Iterable, Mapping
from typing import Any

from inferasim_operator.api.v1alpha1.conditions import READY, Condition, ConditionStatus
from inferasim_operator.engine import names
from inferasim_operator.engine.actions import Announcement, Change
from inferasim_operator.engine.client import Client
from inferasim_operator.engine.conditions import one_line
from inferasim_operator.errors import ClusterError

logger = logging.getLogger(__name__)
NOTE_LENGTH = 1024


def of_changes(changes: Iterable[Change]) -> list[Announcement]:
    """One announcement per object that was created, changed or deleted."""
    return [
        Announcement(change.kind.value, f"{change.kind.value} {change.reference}")
        for change in changes
        if change.is_change
    ]


def of_ready(before: Iterable[Condition], after: Iterable[Condition]) -> list[Announcement]:
    """The announcement that Ready turned, or changed its reason; empty when it did not."""
    old = next((c for c in before if c.type == READY), None)
    new = next((c for c in after if c.type == READY), None)
    if new is None or (old is not None and (old.status, old.reason) == (new.status, new.reason)):
        return []
    stalled = any(c.type == "Stalled" for c in after)
    return [Announcement(new.reason, new.message, is_warning=new.status is ConditionStatus.FALSE and stalled)]


def send(
    client: Client, live: Mapping[str, Any], announcements: Iterable[Announcement], *, now: datetime.datetime
) -> None:
    """Write the events about a live object; one that cannot be written is logged and dropped."""
    metadata = live["metadata"]
    stamp = now.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    for number, announcement in enumerate(announcements):
        mark = names.digest([metadata["uid"], stamp, number, announcement.reason, announcement.message])[:16]
        event = {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"name": names.object_name(metadata["name"], mark), "namespace": metadata["namespace"]},
            "eventTime": stamp,
            "reportingController": f"inferasim.dev/{client.manager}",
            "reportingInstance": client.manager,
            "action": "Reconcile",
            "reason": announcement.reason,
            "note": one_line(announcement.message, NOTE_LENGTH),
            "type": "Warning" if announcement.is_warning else "Normal",
            "regarding": {
                "apiVersion": live["apiVersion"],
                "kind": live["kind"],
                "name": metadata["name"],
                "namespace": metadata["namespace"],
                "uid": metadata["uid"],
                "resourceVersion": metadata.get("resourceVersion", ""),
            },
        }
        try:
            client.create(event)
        except ClusterError as error:
            logger.warning("event about %s/%s dropped: %s", metadata["namespace"], metadata["name"], error)
