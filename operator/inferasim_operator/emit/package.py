"""An emission as a folder of files: one file of manifests, a kustomize base with its overlay, or values for Helm."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Any, Final

from inferasim_operator.emit import epp, yaml
from inferasim_operator.emit.configuration import Role
from inferasim_operator.emit.llmd import ENGINE_TYPE
from inferasim_operator.emit.objects import DEPLOYMENT, POOL, Manifest
from inferasim_operator.emit.target import Deployment, Format, Target
from inferasim_operator.engine.names import label_value
from simcore.errors import InputError

MANIFESTS: Final = "manifests.yaml"
KUSTOMIZATION: Final = "kustomization.yaml"
BASE: Final = "base"
ROUTER: Final = "router"
OWNED: Final = (MANIFESTS, KUSTOMIZATION, f"{BASE}/", f"{ROUTER}/")
"""What any package may hold: when the package changes, the rest of these goes."""
_PICKER_CONFIG: Final = "inferasim.yaml"
RELEASE_LENGTH: Final = 53
"""Of a Helm release's name."""
_WORKLOADS: Final = ("Deployment", "LeaderWorkerSet")


class Package(StrEnum):
    """What the folder is for."""

    MANIFESTS = "Manifests"
    KUSTOMIZE = "Kustomize"
    HELM = "Helm"
    """llm-d only: model servers for kustomize, and values for llm-d's router chart, which makes pool and picker."""


def files(
    package: Package, deployments: Sequence[Deployment], target: Target, manifests: Sequence[Manifest]
) -> dict[str, str]:
    """Path to text. Raises InputError for values that no chart takes."""
    if package is Package.MANIFESTS:
        return {MANIFESTS: yaml.dump_all(manifests), KUSTOMIZATION: _kustomization([MANIFESTS])}
    if package is Package.KUSTOMIZE:
        return _kustomize(manifests)
    if target.format is not Format.LLMD:
        raise InputError("package", package.value, "be Manifests or Kustomize", "the chart is llm-d's: format LLMD")
    by_label = {label_value(deployment.name): deployment for deployment in deployments}
    found = _kustomize([manifest for manifest in manifests if not _is_of_the_chart(manifest)])
    for pool in (manifest for manifest in manifests if manifest["kind"] == "InferencePool"):
        release = str(pool["metadata"]["name"])
        if len(release) > RELEASE_LENGTH:
            raise InputError("metadata.name", release, f"make release names of at most {RELEASE_LENGTH} characters")
        deployment = by_label[pool["metadata"]["labels"][DEPLOYMENT]]
        found[f"{ROUTER}/{release}.values.yaml"] = _router_values(deployment, target, pool)
    return found


def _kustomize(manifests: Sequence[Manifest]) -> dict[str, str]:
    """The base as it was emitted, and an overlay that repeats what people change: images, and replicas where they may.

    The namespace stays in the base: arguments name it too, and no transformer sees those.
    """
    names = [f"{manifest['kind'].lower()}-{manifest['metadata']['name']}.yaml" for manifest in manifests]
    base = {f"{BASE}/{name}": yaml.dump(manifest) for name, manifest in zip(names, manifests, strict=True)}
    found: dict[str, Any] = {}
    images = _pins({image for manifest in manifests for image in _images(manifest)})
    if images:
        found["images"] = images
    counts = [
        {"count": manifest["spec"]["replicas"], "name": manifest["metadata"]["name"]}
        for manifest in manifests
        if manifest["kind"] == "Deployment"
        and "replicas" in manifest["spec"]
        # A router counts requests in its own process: there is one.
        and manifest["metadata"]["labels"][POOL] in tuple(Role)
    ]
    if counts:
        found["replicas"] = counts
    return {**base, f"{BASE}/{KUSTOMIZATION}": _kustomization(names), KUSTOMIZATION: _kustomization([BASE], **found)}


def _kustomization(resources: Sequence[str], **more: Any) -> str:
    return yaml.dump(
        {
            "apiVersion": "kustomize.config.k8s.io/v1beta1",
            "kind": "Kustomization",
            "resources": list(resources),
            **more,
        }
    )


def _images(manifest: Manifest) -> list[str]:
    if manifest["kind"] not in _WORKLOADS:
        return []
    spec = manifest["spec"]
    group = spec.get("leaderWorkerTemplate", {})
    pods = [spec[name] for name in ("template",) if name in spec]
    pods += [group[name] for name in ("leaderTemplate", "workerTemplate") if name in group]
    return [
        container["image"]
        for pod in pods
        for name in ("containers", "initContainers")
        for container in pod["spec"].get(name, ())
    ]


def _pins(images: Iterable[str]) -> list[dict[str, str]]:
    """Entries of kustomize's `images`, which go by name: one that is there twice, or has tag and digest, has none."""
    found: dict[str, list[dict[str, str]]] = {}
    for image in sorted(images):
        name, at, digest = image.partition("@")
        head, slash, last = name.rpartition("/")
        last, _, tag = last.partition(":")
        name = f"{head}{slash}{last}"
        pin = [{"name": name, **({"digest": digest} if at else {"newTag": tag})}] if not (at and tag) else [{}, {}]
        found.setdefault(name, []).extend(pin)
    return [pins[0] for pins in found.values() if len(pins) == 1]


def _is_of_the_chart(manifest: Manifest) -> bool:
    """Made by llm-d's router chart: the pool, and the picker with all that belongs to it."""
    labels: dict[str, str] = manifest["metadata"]["labels"]
    return manifest["kind"] == "InferencePool" or labels.get(POOL) == epp.POOL_VALUE


def _router_values(deployment: Deployment, target: Target, pool: Manifest) -> str:
    """Values of llm-d's router charts (llm-d-router 0.9 and 0.10); the release must have the name of the pool."""
    monitoring = {"prometheus": {"auth": {"enabled": False}, "enabled": target.is_monitored}}
    values = {
        "router": {
            "epp": {
                "image": _chart_image(target.images.router),
                "pluginsConfigFile": _PICKER_CONFIG,
                "pluginsCustomConfig": {_PICKER_CONFIG: yaml.dump(epp.configuration_document(deployment))},
                # In-flight counts live in the process.
                "replicas": 1,
            },
            "inferencePool": {"create": True, "failureMode": pool["spec"]["endpointPickerRef"]["failureMode"]},
            "modelServers": {
                "matchLabels": pool["spec"]["selector"]["matchLabels"],
                "protocol": "http",
                "targetPorts": pool["spec"]["targetPorts"],
                "type": ENGINE_TYPE[deployment.configuration.engine],
            },
            "monitoring": monitoring,
        }
    }
    return f"# helm upgrade --install {pool['metadata']['name']} <chart> --values <this file>\n{yaml.dump(values)}"


def _chart_image(image: str) -> dict[str, str]:
    """The chart writes `registry/repository:tag`; a digest is what follows the last colon just as well."""
    path, _, tag = image.rpartition(":")
    registry, slash, repository = path.rpartition("/")
    if not slash:
        raise InputError("images.router", image, "name its registry for Helm", "the chart joins registry and name")
    return {"registry": registry, "repository": repository, "tag": tag}
