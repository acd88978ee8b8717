"""Which of its rights the operator has used, from the API server's audit log; kept when `INFERASIM_RECORD` is set.

tests/contract/test_rights.py compares the record with the rights that it is given.
"""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Iterable

from e2e import audit, controlplane

FILE = pathlib.Path(__file__).with_name("rights_used.json")
ACCOUNTS = (":inferasim-operator", ":inferasim")
"""Ends of the users' names: of the operators that tests start, and of the chart's."""


def used(events: Iterable[audit.Event]) -> set[str]:
    """`verb resource.group` of what was asked and not forbidden.

    A server-side apply is a patch in the log; where it made the object, the right to create was needed too.
    """
    found = set()
    for event in events:
        if not event.user.endswith(ACCOUNTS) or event.is_forbidden or not event.resource:
            continue
        resource, dot, group = event.resource.partition(".")
        place = f"{resource}{f'/{event.subresource}' if event.subresource else ''}{dot}{group}"
        found.add(f"{event.verb} {place}")
        if event.verb == "patch" and event.code == 201:
            found.add(f"create {place}")
    return found


def record(plane: controlplane.ControlPlane) -> None:
    """Add what this control plane has seen."""
    if os.environ.get("INFERASIM_RECORD"):
        known = set(json.loads(FILE.read_text(encoding="utf-8"))) if FILE.exists() else set()
        text = json.dumps(sorted(known | used(plane.audit_events())), indent=1)
        FILE.write_text(text + "\n", encoding="utf-8")
