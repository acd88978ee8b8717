"""An API server in memory, for tests of the engine: the part of the `Client` surface that passes use.

A fake, not a mock: objects have versions that move only when content does, creation is exclusive, status writes name a
uid. What only the real server can say (validation, field ownership) is left to the integration tests.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from inferasim_operator.engine.actions import Reference
from inferasim_operator.engine.client import Client
from inferasim_operator.errors import AlreadyExistsError, ClusterError, ConflictError, NotFoundError

Object = dict[str, Any]


class FakeCluster(Client):
    """All objects by (apiVersion, kind, namespace, name); `writes` counts what changed something."""

    def __init__(self, *objects: Mapping[str, Any]) -> None:
        self.manager = "inferasim-operator"
        self.objects: dict[Reference, Object] = {}
        self.events: list[Object] = []
        self.writes = 0
        self.broken: dict[str, ClusterError] = {}
        """Method name to the error that it raises."""
        self._version = 100
        for item in objects:
            self.put(item)

    def put(self, item: Mapping[str, Any]) -> Object:
        """Place an object as if somebody else had written it."""
        stored = copy.deepcopy(dict(item))
        stored["metadata"].setdefault("uid", f"uid-{len(self.objects) + 1}")
        self._version += 1
        stored["metadata"]["resourceVersion"] = str(self._version)
        self.objects[Reference.of(stored)] = stored
        return copy.deepcopy(stored)

    def find(self, api_version: str, kind: str, namespace: str, name: str) -> Object | None:
        self._maybe_break("find")
        found = self.objects.get(Reference(api_version, kind, namespace, name))
        return copy.deepcopy(found)

    def get(self, api_version: str, kind: str, namespace: str, name: str) -> Object:
        self._maybe_break("get")
        found = self.objects.get(Reference(api_version, kind, namespace, name))
        if found is None:
            raise NotFoundError(f"{kind} {name} not found", status=404)
        return copy.deepcopy(found)

    def list(
        self, api_version: str, kind: str, namespace: str = "", *, labels: str = "", fields: str = ""
    ) -> list[Object]:
        """Field selectors are not imitated: what is kept here holds only what a test is about."""
        self._maybe_break("list")
        wanted = dict(part.split("=", 1) for part in labels.split(",") if part)
        return [
            copy.deepcopy(item)
            for reference, item in sorted(self.objects.items())
            if (reference.api_version, reference.kind) == (api_version, kind)
            and reference.namespace == namespace
            and wanted.items() <= (item["metadata"].get("labels") or {}).items()
        ]

    def create(self, manifest: Mapping[str, Any], *, dry_run: bool = False) -> Object:
        self._maybe_break("create")
        reference = Reference.of(manifest)
        if reference.kind == "Event":
            self.events.append(dict(manifest))
            return dict(manifest)
        if reference in self.objects:
            raise AlreadyExistsError(f"{reference} exists", status=409)
        self.writes += 1
        return self.put(manifest)

    def apply(self, manifest: Mapping[str, Any], *, dry_run: bool = False, force: bool = False) -> Object:
        self._maybe_break("apply")
        before = self.objects.get(Reference.of(manifest))
        merged = _merged(before or {}, manifest)
        if before is not None and merged == before:
            return copy.deepcopy(before)
        if dry_run:
            return merged
        self.writes += 1
        return self.put(merged)

    def merge(self, reference: Reference, change: Mapping[str, Any]) -> Object:
        self._maybe_break("merge")
        live = self.objects.get(reference)
        if live is None:
            raise NotFoundError(f"{reference} not found", status=404)
        merged = _merged(live, change)
        if merged == live:
            return copy.deepcopy(live)
        self.writes += 1
        return self.put(merged)

    def apply_status(self, manifest: Mapping[str, Any]) -> Object:
        self._maybe_break("apply_status")
        reference = Reference.of(manifest)
        live = self.objects.get(reference)
        if live is None:
            raise NotFoundError(f"{reference} not found", status=404)
        if live["metadata"]["uid"] != manifest["metadata"]["uid"]:
            raise ConflictError(f"{reference} has another uid")
        self.writes += 1
        return self.put({**live, "status": copy.deepcopy(manifest["status"])})

    def replace(self, manifest: Mapping[str, Any]) -> Object:
        self._maybe_break("replace")
        reference = Reference.of(manifest)
        live = self.objects.get(reference)
        if live is None:
            raise NotFoundError(f"{reference} not found", status=404)
        if live["metadata"]["resourceVersion"] != manifest["metadata"].get("resourceVersion"):
            raise ConflictError(f"{reference} was changed since")
        self.writes += 1
        return self.put(manifest)

    def delete(self, reference: Reference, *, uid: str) -> None:
        self._maybe_break("delete")
        live = self.objects.get(reference)
        if live is None:
            raise NotFoundError(f"{reference} not found", status=404)
        if live["metadata"]["uid"] != uid:
            raise ConflictError(f"{reference} has another uid")
        self.writes += 1
        del self.objects[reference]

    def _maybe_break(self, method: str) -> None:
        if method in self.broken:
            raise self.broken[method]


def _merged(before: Mapping[str, Any], change: Mapping[str, Any]) -> Object:
    result = copy.deepcopy(dict(before))
    for key, value in change.items():
        if isinstance(value, Mapping) and isinstance(result.get(key), Mapping):
            result[key] = _merged(result[key], value)
        else:
            result[key] = copy.deepcopy(value)
    return result
