"""The rights that DeploymentMixes need, and why."""

from __future__ import annotations

from inferasim_operator.engine.rbac import Rule

_ALL = ("get", "list", "create", "patch", "delete")
_WHY = "applied and pruned for mixes with delivery Apply"

RULES = (
    Rule("inferasim.dev", "deploymentmixes", ("get", "list", "watch"), "the mixes; their spec is never written"),
    Rule("inferasim.dev", "deploymentmixes/status", ("patch",), "conditions, inventory and what was delivered"),
    Rule("inferasim.dev", "servingplans", ("get", "list", "watch"), "the plans that mixes name"),
    Rule("", "configmaps", (*_ALL, "watch"), "manifests are written once; the picker's configuration is applied"),
    Rule("", "secrets", ("get",), "the credentials for Git or Prometheus that a mix names, and no other"),
    Rule("", "services", _ALL, _WHY),
    Rule("", "serviceaccounts", _ALL, _WHY),
    Rule("", "pods", ("get", "list", "watch"), "found to be scraped; held to be given on to routers"),
    Rule("apps", "deployments", (*_ALL, "watch"), _WHY),
    Rule("policy", "poddisruptionbudgets", _ALL, _WHY),
    Rule("rbac.authorization.k8s.io", "roles", _ALL, _WHY),
    Rule("rbac.authorization.k8s.io", "rolebindings", _ALL, _WHY),
    Rule("leaderworkerset.x-k8s.io", "leaderworkersets", _ALL, _WHY),
    Rule("inference.networking.k8s.io", "inferencepools", (*_ALL, "watch"), f"{_WHY}; `watch` is given on to pickers"),
    Rule("llm-d.ai", "inferenceobjectives", ("get", "list", "watch"), "held to be given on to llm-d's picker"),
    Rule("llm-d.ai", "inferencemodelrewrites", ("get", "list", "watch"), "held to be given on to llm-d's picker"),
    Rule("gateway.networking.k8s.io", "httproutes", _ALL, _WHY),
    Rule("monitoring.coreos.com", "podmonitors", _ALL, _WHY),
)
