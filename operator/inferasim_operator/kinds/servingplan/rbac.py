"""The rights that ServingPlans need, and why."""

from __future__ import annotations

from inferasim_operator.engine.rbac import Rule

RULES = (
    Rule(
        "inferasim.dev", "servingplans", ("get", "list", "watch"), "the plans themselves; their spec is never written"
    ),
    Rule("inferasim.dev", "anchorharvests", ("list", "watch"), "a plan without an anchor waits for one under way"),
    Rule("inferasim.dev", "servingplans/status", ("patch",), "conditions, progress and the answer"),
    Rule(
        "",
        "configmaps",
        ("get", "list", "watch", "create", "patch", "delete"),
        "anchors and model configs are read, answers written once; shards of a search are made, given on to its pods "
        "to patch, and cleaned up",
    ),
    Rule("batch", "jobs", ("get", "list", "watch", "create", "patch", "delete"), "large searches; suspend; clean-up"),
    Rule("", "pods", ("list",), "why the pod of a search does not start, or how it ended"),
    Rule("", "serviceaccounts", ("get", "create"), "an account of its own per search"),
    Rule("rbac.authorization.k8s.io", "roles", ("get", "create"), "which may patch its own shards and nothing else"),
    Rule("rbac.authorization.k8s.io", "rolebindings", ("get", "create"), "as above"),
    Rule("", "secrets", ("get",), "the key of the language model that a plan names, and no other"),
    Rule("", "nodes", ("list",), "cluster.discovery counts them; with scope Cluster only", cluster_only=True),
)
