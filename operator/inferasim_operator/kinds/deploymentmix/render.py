"""The manifests of a mix, the ConfigMap that keeps them, and how they are applied. Pure; the command line's as well."""

from __future__ import annotations

import base64
import gzip
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from inferasim_operator.api.v1alpha1.common import PodOptions
from inferasim_operator.api.v1alpha1.configuration import Switch
from inferasim_operator.api.v1alpha1.deploymentmix import DeploymentMix, DeploymentMixSpec, MixImages
from inferasim_operator.emit import yaml
from inferasim_operator.emit.manifests import emit
from inferasim_operator.emit.objects import Manifest
from inferasim_operator.emit.package import Package
from inferasim_operator.emit.package import files as package_files
from inferasim_operator.emit.target import Gateway, Images, Target
from inferasim_operator.engine import labels, names
from inferasim_operator.kinds.deploymentmix.choices import Chosen, PlanAnswer, chosen

MANIFESTS_KEY: Final = "manifests.yaml"
COMPRESSED_KEY: Final = "manifests.yaml.gz"
DIGEST_KEY: Final = "digest"
ROLE_MANIFESTS: Final = "mix-manifests"
ROLE_DEPLOYED: Final = "mix-deployed"
CONTENT: Final = "inferasim.dev/content-digest"
PLAIN_LIMIT_BYTES: Final = 512 * 1024


@dataclass(frozen=True)
class Emission:
    """What a mix comes to."""

    chosen: tuple[Chosen, ...]
    target: Target
    manifests: tuple[Manifest, ...]
    digest: str
    """Of the manifests: equal manifests have one digest, whoever asked for them."""

    def text(self) -> str:
        """The manifests as canonical YAML."""
        return yaml.dump_all(self.manifests)

    def files(self, package: Package) -> dict[str, str]:
        """The manifests as a folder. Raises InputError."""
        return package_files(package, [choice.deployment for choice in self.chosen], self.target, self.manifests)


def emission(name: str, namespace: str, spec: DeploymentMixSpec, answer: PlanAnswer | None) -> Emission:
    """Everything that the mix `name` of `namespace` emits. Raises InputError."""
    found = chosen(spec, answer)
    place = target(name, namespace, spec)
    manifests = tuple(emit([choice.deployment for choice in found], place))
    return Emission(found, place, manifests, names.digest(manifests))


def target(name: str, namespace: str, spec: DeploymentMixSpec) -> Target:
    """The destination that a mix describes. Raises InputError."""
    images = spec.images or MixImages()
    return Target(
        mix=name,
        namespace=spec.namespace or namespace,
        format=spec.format,
        pod=spec.pod or PodOptions(),
        labels=dict(spec.labels or {}),
        images=Images(router=images.router or "", sidecar=images.sidecar or ""),
        is_autoscaled=spec.autoscaling is Switch.ENABLED,
        is_monitored=spec.monitoring is Switch.ENABLED,
        rdma_resources={resource.name: resource.count for resource in spec.rdma_resources or ()},
        load_bytes_per_s=spec.load_bytes_per_second,
        gateway=None if spec.gateway is None else Gateway(spec.gateway.name, spec.gateway.namespace or ""),
    )


def manifests_name(mix: str, digest: str) -> str:
    """The name of the ConfigMap that keeps an emission."""
    return names.object_name(mix, digest[:16])


def manifests_config_map(owner: Mapping[str, Any], result: Emission) -> Manifest:
    """The immutable ConfigMap of an emission of the live mix `owner`."""
    text = result.text()
    manifest: Manifest = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": labels.child_metadata(
            owner, manifests_name(owner["metadata"]["name"], result.digest), ROLE_MANIFESTS
        ),
        "immutable": True,
        "data": {DIGEST_KEY: result.digest},
    }
    if len(text.encode()) <= PLAIN_LIMIT_BYTES:
        manifest["data"][MANIFESTS_KEY] = text
    else:
        packed = gzip.compress(text.encode(), mtime=0)
        manifest["binaryData"] = {COMPRESSED_KEY: base64.b64encode(packed).decode("ascii")}
    return manifest


def applied(owner: Mapping[str, Any], manifest: Manifest, live: Mapping[str, Any] | None, manager: str) -> Manifest:
    """A manifest as it is applied for `owner`: owned by it, marked with its content, replicas never fought over."""
    metadata = dict(manifest["metadata"])
    metadata["labels"] = {**metadata["labels"], **labels.child_labels(owner, role=ROLE_DEPLOYED)}
    metadata["annotations"] = {**metadata.get("annotations", {}), CONTENT: names.digest(manifest)}
    metadata["ownerReferences"] = [labels.owner_reference(owner)]
    result = {**manifest, "metadata": metadata}
    if live is None or manifest["kind"] not in ("Deployment", "LeaderWorkerSet"):
        return result
    spec = dict(manifest["spec"])
    others = replica_managers(live, but=manager)
    if "replicas" not in spec and not others and replica_managers(live):
        # Given up while nobody else owns it, the field would fall back to 1: it is held until the autoscaler has it.
        spec["replicas"] = live["spec"]["replicas"]
    elif "replicas" in spec and others and live["spec"].get("replicas") != spec["replicas"]:
        # Somebody scaled by hand: reported, not fought over, and the rest of the object is still applied.
        del spec["replicas"]
    return {**result, "spec": spec}


def replica_managers(live: Mapping[str, Any], *, but: str = "") -> tuple[str, ...]:
    """The field managers that own `spec.replicas` of a live object."""
    found = []
    for entry in live["metadata"].get("managedFields") or ():
        fields = (entry.get("fieldsV1") or {}).get("f:spec") or {}
        if "f:replicas" in fields and entry.get("manager") != but:
            found.append(str(entry.get("manager")))
    return tuple(sorted(set(found)))


def replicas_elsewhere(manifest: Manifest, live: Mapping[str, Any], manager: str) -> str:
    """Who keeps the replicas of a live object at another number than the mix says; empty when nobody does."""
    wanted, found = manifest.get("spec", {}).get("replicas"), (live.get("spec") or {}).get("replicas")
    others = replica_managers(live, but=manager)
    if wanted is None or wanted == found or not others:
        return ""
    name = manifest["metadata"]["name"]
    return f"replicas of {manifest['kind']} {name} are {found} by {', '.join(others)}, the mix says {wanted}"


def delivery_digest(spec: DeploymentMixSpec, result: Emission) -> str:
    """Of the manifests and the place that they go to: a new place is a new delivery."""
    return names.digest([result.digest, spec.delivery.to_dict() if spec.delivery is not None else None])


def commit_message(mix: DeploymentMix, result: Emission) -> str:
    """What changed and why, for the people who read the repository."""
    lines = [f"Deploy {mix.metadata.namespace}/{mix.metadata.name}", ""]
    for choice in result.chosen:
        configuration = choice.deployment.configuration
        line = f"{choice.deployment.name}: {configuration.engine.value} {configuration.engine_version}"
        if choice.predicted is not None:
            line += (
                f", predicted TTFT {choice.predicted.ttft_milliseconds} ms, "
                f"TPOT {choice.predicted.tpot_microseconds} us, "
                f"{choice.predicted.tokens_per_second_per_gpu} tok/s per GPU"
            )
        lines.append(line)
    plan = f"Plan: {mix.spec.plan_ref.name}" if mix.spec.plan_ref is not None else "Plan: stated in the mix"
    return "\n".join([*lines, "", plan, f"Manifests: {result.digest}"]) + "\n"


def is_delivered(manifest: Manifest, live: Mapping[str, Any] | None) -> bool:
    """Whether the live object is the one that this manifest made."""
    if live is None:
        return False
    return bool((live["metadata"].get("annotations") or {}).get(CONTENT) == names.digest(manifest))
