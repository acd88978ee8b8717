"""Who refers to what: lets the change of one object wake those that read it (C07: cross-object triggers)."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from inferasim_operator.engine.actions import ObjectKey

Target = tuple[str, str]
"""Kind and name, in the referring object's own namespace."""


class References:
    """A thread-safe index; an object that was never observed is in none, and its first event wakes it anyway."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._of: dict[tuple[str, ObjectKey], frozenset[Target]] = {}

    def note(self, kind: str, key: ObjectKey, targets: Iterable[Target]) -> None:
        """All that the object of `kind` at `key` refers to now; replaces what was noted before."""
        found = frozenset(targets)
        with self._lock:
            if found:
                self._of[kind, key] = found
            else:
                self._of.pop((kind, key), None)

    def referrers(self, kind: str, namespace: str, target: Target) -> list[ObjectKey]:
        """The objects of `kind` in `namespace` that refer to the target."""
        with self._lock:
            items = list(self._of.items())
        return [key for (of, key), targets in items if of == kind and key.namespace == namespace and target in targets]
