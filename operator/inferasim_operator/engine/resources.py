"""How the kinds that the operator touches are served: plural and scope, so that no discovery call is needed."""

from __future__ import annotations

from urllib.parse import quote

from inferasim_operator.errors import NotFoundError

_PLURALS = {
    ("v1", "ConfigMap"): "configmaps",
    ("events.k8s.io/v1", "Event"): "events",
    ("v1", "Node"): "nodes",
    ("v1", "Pod"): "pods",
    ("v1", "Secret"): "secrets",
    ("v1", "Service"): "services",
    ("v1", "ServiceAccount"): "serviceaccounts",
    ("apps/v1", "Deployment"): "deployments",
    ("batch/v1", "Job"): "jobs",
    ("policy/v1", "PodDisruptionBudget"): "poddisruptionbudgets",
    ("rbac.authorization.k8s.io/v1", "Role"): "roles",
    ("rbac.authorization.k8s.io/v1", "RoleBinding"): "rolebindings",
    ("coordination.k8s.io/v1", "Lease"): "leases",
    ("autoscaling/v2", "HorizontalPodAutoscaler"): "horizontalpodautoscalers",
    ("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet"): "leaderworkersets",
    ("inference.networking.k8s.io/v1", "InferencePool"): "inferencepools",
    ("gateway.networking.k8s.io/v1", "HTTPRoute"): "httproutes",
    ("monitoring.coreos.com/v1", "PodMonitor"): "podmonitors",
    ("inferasim.dev/v1alpha1", "AnchorHarvest"): "anchorharvests",
    ("inferasim.dev/v1alpha1", "ServingPlan"): "servingplans",
    ("inferasim.dev/v1alpha1", "DeploymentMix"): "deploymentmixes",
    ("apiextensions.k8s.io/v1", "CustomResourceDefinition"): "customresourcedefinitions",
}
_CLUSTER_SCOPED = {"CustomResourceDefinition", "Node"}


def path(api_version: str, kind: str, namespace: str = "", name: str = "", subresource: str = "") -> str:
    """The URL path of an object, or of a collection without `name`; names are escaped. Raises NotFoundError."""
    plural = _PLURALS.get((api_version, kind))
    if plural is None:
        raise NotFoundError(f"kind {kind} of {api_version} is not one that the operator handles")
    parts = ["api" if "/" not in api_version else "apis", api_version]
    if namespace and kind not in _CLUSTER_SCOPED:
        parts += ["namespaces", quote(namespace, safe="")]
    parts.append(plural)
    if name:
        parts.append(quote(name, safe=""))
    if subresource:
        parts.append(subresource)
    return "/" + "/".join(parts)
