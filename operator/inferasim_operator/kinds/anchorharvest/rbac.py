"""The rights that AnchorHarvests need, and why."""

from __future__ import annotations

from inferasim_operator.engine.rbac import Rule

RULES = (
    Rule("inferasim.dev", "anchorharvests", ("get", "list", "watch"), "the harvests; their spec is never written"),
    Rule("inferasim.dev", "anchorharvests/status", ("patch",), "conditions, progress, checks and the anchor's name"),
    Rule("batch", "jobs", ("get", "list", "watch", "create", "patch", "delete"), "one Job per spec; suspend; clean-up"),
    Rule("events.k8s.io", "events", ("list",), "why a Job's pod is not made: quotas and admission say it nowhere else"),
    Rule("", "pods", ("list",), "why a Job's pod does not start, or what its container last said"),
    Rule(
        "",
        "configmaps",
        ("get", "list", "watch", "create", "patch"),
        "the harvest's spec and progress, the anchor; "
        "`patch` is held to be given on, for one ConfigMap, to the harvest's pod",
    ),
    Rule("", "serviceaccounts", ("get", "create"), "an account of its own per harvest"),
    Rule("rbac.authorization.k8s.io", "roles", ("get", "create"), "which may patch its own progress and nothing else"),
    Rule("rbac.authorization.k8s.io", "rolebindings", ("get", "create"), "as above"),
)
