"""What a kind's `handlers.register` gets: the workers of every kind, and the index of who refers to what."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from inferasim_operator.engine import labels
from inferasim_operator.engine.actions import ObjectKey
from inferasim_operator.engine.loop import Workers
from inferasim_operator.engine.references import References


@dataclass(frozen=True)
class Wiring:
    """Turns an event about any object into wakes; what the event says beyond names and versions is not looked at."""

    workers: Workers
    references: References
    kind: str

    def own_event(self, body: Mapping[str, Any]) -> None:
        """An object of this kind was seen, changed or went."""
        metadata = body["metadata"]
        key = ObjectKey(metadata["namespace"], metadata["name"])
        self.workers.wake(key, version=metadata.get("resourceVersion"))

    def other_event(
        self, kind: str, body: Mapping[str, Any], *, wakes_namespace: bool = False, is_looked_for: bool = False
    ) -> None:
        """An object of another kind changed: wakes its owner, and those that refer to it.

        With `wakes_namespace` all objects of this kind in its namespace are woken, for things found by selector. With
        `is_looked_for` its owner is noted as a parent: the others need not ask the server for such children.
        """
        metadata = body["metadata"]
        namespace = metadata.get("namespace", "")
        owner = next((o for o in metadata.get("ownerReferences") or () if o.get("kind") == self.kind), None)
        if owner is not None:
            key = ObjectKey(namespace, owner["name"])
            if is_looked_for:
                self.references.note_parent(self.kind, key)
            self.workers.wake(key)
        for key in self.references.referrers(self.kind, namespace, (kind, metadata["name"])):
            self.workers.wake(key)
        if wakes_namespace:
            self.workers.wake_known(namespace)


def is_anchor(body: Mapping[str, Any]) -> bool:
    """Whether a ConfigMap is labelled as an anchor."""
    return labels.ANCHOR in (body["metadata"].get("labels") or {})
