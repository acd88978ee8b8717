"""Rights as data: each kind lists its own beside its code, and `tools/rbacgen.py` makes the chart's roles of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

VERBS = ("get", "list", "watch", "create", "update", "patch", "delete")


@dataclass(frozen=True)
class Rule:
    """Verbs on one resource (`plural` or `plural/subresource`) of one API group, and why they are needed."""

    group: str
    resource: str
    verbs: tuple[str, ...]
    why: str
    cluster_only: bool = False
    """The resource lies in no namespace: left out of a Role, which could not grant it."""

    def __post_init__(self) -> None:
        unknown = set(self.verbs) - set(VERBS)
        if unknown or not self.verbs or not self.why:
            raise ValueError(f"rule for {self.resource}: verbs must be among {VERBS} (no wildcard), with a reason")


ENGINE_RULES = (
    Rule("events.k8s.io", "events", ("create",), "events about our objects"),
    Rule("coordination.k8s.io", "leases", ("get", "create", "update"), "one active operator at a time"),
)


def policy_rules(rules: Iterable[Rule], *, cluster: bool = True) -> list[dict[str, Any]]:
    """The `rules` of a ClusterRole, or of a Role: one entry per resource, verbs merged, sorted."""
    merged: dict[tuple[str, str], set[str]] = {}
    for rule in rules:
        if rule.cluster_only and not cluster:
            continue
        merged.setdefault((rule.group, rule.resource), set()).update(rule.verbs)
    return [
        {"apiGroups": [group], "resources": [resource], "verbs": [verb for verb in VERBS if verb in verbs]}
        for (group, resource), verbs in sorted(merged.items())
    ]
