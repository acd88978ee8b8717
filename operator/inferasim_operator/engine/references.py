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
        # The other way round, because it is asked on every event of a ConfigMap: a scan of 10,000 plans each is not.
        self._by: dict[tuple[str, str, Target], set[ObjectKey]] = {}
        self._parents: set[tuple[str, ObjectKey]] = set()

    def note(self, kind: str, key: ObjectKey, targets: Iterable[Target]) -> None:
        """All that the object of `kind` at `key` refers to now; replaces what was noted before."""
        found = frozenset(targets)
        with self._lock:
            before = self._of.pop((kind, key), frozenset())
            if found:
                self._of[kind, key] = found
            for target in found - before:
                self._by.setdefault((kind, key.namespace, target), set()).add(key)
            for target in before - found:
                keys = self._by[kind, key.namespace, target]
                keys.discard(key)
                if not keys:
                    del self._by[kind, key.namespace, target]

    def note_parent(self, kind: str, key: ObjectKey) -> None:
        """The object of `kind` at `key` was seen to own what `is_parent` is asked for."""
        with self._lock:
            self._parents.add((kind, key))

    def is_parent(self, kind: str, key: ObjectKey) -> bool:
        """Whether it may own any: True for ever once it did, since only a look can tell that all are gone."""
        with self._lock:
            return (kind, key) in self._parents

    def forget(self, kind: str, key: ObjectKey) -> None:
        """The object of `kind` at `key` is gone."""
        self.note(kind, key, ())
        with self._lock:
            self._parents.discard((kind, key))

    def referrers(self, kind: str, namespace: str, target: Target) -> list[ObjectKey]:
        """The objects of `kind` in `namespace` that refer to the target."""
        with self._lock:
            return sorted(self._by.get((kind, namespace, target), ()))
