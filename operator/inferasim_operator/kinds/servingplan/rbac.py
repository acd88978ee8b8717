"""The rights that ServingPlans need, and why."""

from __future__ import annotations

from inferasim_operator.engine.rbac import Rule

RULES = (
    Rule(
        "inferasim.dev", "servingplans", ("get", "list", "watch"), "the plans themselves; their spec is never written"
    ),
    Rule("inferasim.dev", "servingplans/status", ("patch",), "conditions, progress and the answer"),
    Rule(
        "", "configmaps", ("get", "list", "watch", "create"), "anchors and model configs are read, answers written once"
    ),
)
