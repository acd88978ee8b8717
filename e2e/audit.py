"""The API server's audit log as records: who asked for what, and what the answer's code was.

Tests use it to count writes and to find requests that RBAC refused.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib

WRITES = frozenset({"create", "update", "patch", "delete", "deletecollection"})

# The control plane's own traffic would bury what tests look for, and nobody asserts on it.
POLICY = """\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
omitManagedFields: true
rules:
  - level: None
    users: ["system:apiserver", "system:kube-controller-manager"]
  - level: None
    userGroups: ["system:serviceaccounts:kube-system"]
  - level: Metadata
"""


@dataclasses.dataclass(frozen=True)
class Event:
    """One answered request. `resource` is like `pods` or `servingplans.inferasim.dev`; absent parts are empty."""

    user: str
    verb: str
    resource: str
    subresource: str
    namespace: str
    name: str
    code: int
    user_agent: str
    uri: str

    @property
    def is_write(self) -> bool:
        """Whether the request could change something."""
        return self.verb in WRITES

    @property
    def is_forbidden(self) -> bool:
        """Whether RBAC (or admission) refused it."""
        return self.code == 403


def read_events(log: pathlib.Path, *, offset: int = 0) -> tuple[list[Event], int]:
    """The answered requests written since `offset` (bytes), and the offset to continue from.

    A watch counts as answered only when it ends. A last line still being written is left for the next call.
    """
    with log.open("rb") as file:
        file.seek(offset)
        whole, newline, _ = file.read().rpartition(b"\n")
    records = [json.loads(line) for line in whole.splitlines()]
    events = [_event(record) for record in records if record["stage"] == "ResponseComplete"]
    return events, offset + len(whole) + len(newline)


def _event(record: dict[str, object]) -> Event:
    reference = _mapping(record, "objectRef")
    group = reference.get("apiGroup", "")
    resource = str(reference.get("resource", ""))
    code = _mapping(record, "responseStatus").get("code", 0)
    return Event(
        user=str(_mapping(record, "user").get("username", "")),
        verb=str(record["verb"]),
        resource=f"{resource}.{group}" if group else resource,
        subresource=str(reference.get("subresource", "")),
        namespace=str(reference.get("namespace", "")),
        name=str(reference.get("name", "")),
        code=code if isinstance(code, int) else 0,
        user_agent=str(record.get("userAgent", "")),
        uri=str(record.get("requestURI", "")),
    )


def _mapping(record: dict[str, object], key: str) -> dict[str, object]:
    value = record.get(key)
    return value if isinstance(value, dict) else {}
