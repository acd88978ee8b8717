"""What a harvest is made of: an account that may write its own progress, the Job, and at the end the anchor. Pure.

The contract with the harvester in the pod is docs/harvest-protocol.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inferasim_operator.api.v1alpha1.anchorharvest import AnchorHarvest, AnchorHarvestSpec, CheckVerdict
from inferasim_operator.api.v1alpha1.common import PodOptions
from inferasim_operator.engine import labels, names
from inferasim_operator.kinds.anchorharvest import pod
from simcore.anchors.schema import Anchor
from simcore.cards.accelerator import AcceleratorCard

PROGRESS_KEY = "progress.json"
ANCHOR_KEY = "anchor.json"
RESULT_KEY = "result.json"
BESIDE_KEYS = ("collectives.json", "expert-load.json")
"""What optional phases write, kept with the anchor."""
SPEC_KEY = pod.SPEC_KEY
SCHEMA = "inferasim.dev/harvest/v1"
DEADLINE_S = 4 * 3600
QUEUE_DEADLINE_S = 48 * 3600
PERMILLE = 1000
KEEP_FINISHED_S = 24 * 3600
"""A finished Job is cleaned up after a day; its result is in the status and the anchor, so nothing runs again (D08)."""

Manifest = dict[str, Any]


def job_name(harvest: str, digest: str) -> str:
    """The Job of one spec."""
    return names.object_name(harvest, digest[:10])


def progress_name(harvest: str, digest: str) -> str:
    """The ConfigMap that the harvester writes to."""
    return names.object_name(harvest, digest[:10], "progress")


def anchor_name(harvest: str, anchor: Anchor) -> str:
    """The ConfigMap of an anchor, named by its content."""
    return names.object_name(harvest, "anchor", anchor.digest().removeprefix("sha256:")[:16])


def run_objects(
    owner: Mapping[str, Any], harvest: AnchorHarvest, digest: str, *, gpus_count: int, card: AcceleratorCard | None
) -> tuple[Manifest, ...]:
    """All objects of one measurement, in the order in which they are to be created; the Job comes last."""
    job = _job(owner, harvest, digest, gpus_count=gpus_count, card=card)
    return (*support_objects(owner, harvest, digest), job)


def _account(harvest: AnchorHarvest, digest: str) -> str:
    given = (harvest.spec.pod or PodOptions()).service_account_name
    return given or job_name(harvest.metadata.name, digest)


def _spec_name(harvest: AnchorHarvest, digest: str) -> str:
    return names.object_name(harvest.metadata.name, digest[:10], "spec")


def support_objects(owner: Mapping[str, Any], harvest: AnchorHarvest, digest: str) -> tuple[Manifest, ...]:
    """What the Job's pod needs while it runs: account, its one right, spec, progress."""
    name = harvest.metadata.name
    options = harvest.spec.pod or PodOptions()
    account = _account(harvest, digest)
    progress = progress_name(name, digest)
    objects: list[Manifest] = []
    if options.service_account_name is None:
        objects.append(
            {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": labels.child_metadata(owner, account, "harvest")}
        )
    rights: Manifest = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": labels.child_metadata(owner, job_name(name, digest), "harvest"),
        "rules": [{"apiGroups": [""], "resources": ["configmaps"], "resourceNames": [progress], "verbs": ["patch"]}],
    }
    binding: Manifest = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": labels.child_metadata(owner, job_name(name, digest), "harvest"),
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": job_name(name, digest)},
        "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": harvest.metadata.namespace}],
    }
    spec_map: Manifest = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": labels.child_metadata(owner, _spec_name(harvest, digest), "harvest-spec"),
        "immutable": True,
        "data": {SPEC_KEY: names.canonical_json(harvester_spec(harvest))},
    }
    progress_map: Manifest = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": labels.child_metadata(owner, progress, "harvest-progress"),
    }
    return (*objects, rights, binding, spec_map, progress_map)


def harvester_spec(harvest: AnchorHarvest) -> Manifest:
    """What the harvester in the pod is told: only the measurement, so that its own digest changes with it alone."""
    spec = harvest.spec.to_dict()
    told = {
        key: spec[key] for key in ("engine", "model", "accelerator", "layout", "signature", "sweeps") if key in spec
    }
    told["engine"].pop("env", None)  # reaches the process as its environment, where a value may come from a Secret
    source = told["model"].pop("source")
    if "claim" in source:
        told["model"]["path"] = f"{pod.MODEL_PATH}/{source['claim'].get('path', '')}".rstrip("/")
    else:
        told["model"]["path"] = source["hub"]["id"]
        if "revision" in source["hub"]:
            told["model"]["revision"] = source["hub"]["revision"]
    for key in ("resourceName", "metricsUrl"):
        told["accelerator"].pop(key, None)
    forced = told.get("signature", {}).get("speculation", {}).pop("forcedAcceptanceLengthPermille", None)
    if forced is not None:
        told["signature"]["speculation"]["forcedAcceptanceLength"] = forced / PERMILLE
    return {"schema": SCHEMA, **told}


def anchor_config_map(
    owner: Mapping[str, Any], anchor: Anchor, verdict: CheckVerdict, beside: Mapping[str, str]
) -> Manifest:
    """The immutable ConfigMap that plans read; a refused anchor is kept under a label that no plan selects."""
    manifest: Manifest = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": labels.child_metadata(owner, anchor_name(owner["metadata"]["name"], anchor), "anchor"),
        "immutable": True,
        "data": {ANCHOR_KEY: anchor.to_json(), **beside},
    }
    manifest["metadata"]["labels"] |= {
        labels.ANCHOR: "refused" if verdict is CheckVerdict.REFUSED else "true",
        "inferasim.dev/accelerator": names.label_value(anchor.signature.accelerator),
        "inferasim.dev/engine": names.label_value(anchor.signature.engine),
        "inferasim.dev/model": names.label_value(anchor.signature.model.rsplit("/", 1)[-1]),
    }
    return manifest


def _job(
    owner: Mapping[str, Any],
    harvest: AnchorHarvest,
    digest: str,
    *,
    gpus_count: int,
    card: AcceleratorCard | None,
) -> Manifest:
    spec: AnchorHarvestSpec = harvest.spec
    options = spec.pod or PodOptions()
    metadata = labels.child_metadata(owner, job_name(harvest.metadata.name, digest), "harvest")
    template_labels = dict(options.labels or {}) | dict(metadata["labels"])
    if options.queue_name is not None:
        metadata["labels"]["kueue.x-k8s.io/queue-name"] = options.queue_name
    job: Manifest = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata,
        "spec": {
            # GPU hours are dear: a failure is looked at by a person; only an eviction is not held against the run.
            "backoffLimit": 0,
            "podFailurePolicy": {
                "rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]
            },
            "completions": 1,
            "parallelism": 1,
            "activeDeadlineSeconds": spec.queue_deadline_seconds or QUEUE_DEADLINE_S,
            "ttlSecondsAfterFinished": KEEP_FINISHED_S,
            "template": {
                "metadata": {"labels": template_labels},
                "spec": pod.pod_spec(
                    spec,
                    account=_account(harvest, digest),
                    spec_map=_spec_name(harvest, digest),
                    progress=f"{harvest.metadata.namespace}/{progress_name(harvest.metadata.name, digest)}",
                    gpus_count=gpus_count,
                    device_ids=(*card.device_ids, *card.vf_device_ids) if card is not None else (),
                    deadline_s=spec.deadline_seconds or DEADLINE_S,
                ),
            },
        },
    }
    return job
