"""Reading what an AnchorHarvest is decided from. The only part of the kind that talks to the cluster."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pydantic

from inferasim_operator.api.v1alpha1.anchorharvest import AnchorHarvest, AnchorHarvestStatus, HarvestProgress
from inferasim_operator.convert import first_error
from inferasim_operator.engine import labels, names
from inferasim_operator.engine.actions import ObjectKey, Reference
from inferasim_operator.engine.client import Client
from inferasim_operator.engine.jobs import is_active
from inferasim_operator.engine.kind import Context
from inferasim_operator.kinds.anchorharvest import render
from simcore.anchors.schema import Anchor, parse_anchor
from simcore.errors import FormatError

KIND = "AnchorHarvest"
LOG_LINES = 5
Live = Mapping[str, Any]


@dataclass(frozen=True)
class Observed:
    """One moment of a harvest. Races: the Job's end and the harvester's last words are two objects. The Jobs are read
    first and the words after them, and a harvester speaks before it ends: a Job seen complete has its anchor here."""

    raw: Live
    """The live object."""
    harvest: AnchorHarvest | None
    """Parsed; None when the spec breaks a rule of this version (then `spec_problem` says which)."""
    spec_problem: str = ""
    status: AnchorHarvestStatus = field(default_factory=AnchorHarvestStatus)
    """The status as last written; empty when there is none or it is of another version."""
    digest: str = ""
    """Of the spec without `suspend`; names the Job."""
    jobs: tuple[Live, ...] = ()
    """All Jobs made for this harvest, of former specs too."""
    pods: tuple[Live, ...] = ()
    """The pods of the present spec's Job, oldest first."""
    progress: HarvestProgress | None = None
    anchor: Anchor | None = None
    """What the harvester wrote for the present spec, once it is complete."""
    anchor_problem: str = ""
    """Why what it wrote is not an anchor."""
    said_failure: str = ""
    """The harvester's own account of its failure: reason, message, the last lines of the engine's log."""
    beside: Mapping[str, str] = field(default_factory=dict)
    """What optional phases wrote, by key; kept with the anchor."""
    anchor_is_kept: bool = False
    """Whether the anchor's own ConfigMap exists; one of somebody else under its name does not count."""
    missing: tuple[Live, ...] = ()
    """What a Job that is under way needs and somebody has deleted."""
    pod_refusal: str = ""
    """Why the Job controller cannot make the Job's pod: quotas and admission say it in events only."""

    @property
    def job(self) -> Live | None:
        """The Job of the present spec."""
        wanted = render.job_name(self.raw["metadata"]["name"], self.digest)
        return next((job for job in self.jobs if job["metadata"]["name"] == wanted), None)


def spec_digest(harvest: AnchorHarvest) -> str:
    """The digest of what is measured: the whole spec, `rerun` included, but for `suspend`."""
    fields = harvest.spec.to_dict()
    fields.pop("suspend", None)
    return names.digest(fields)


def observe(context: Context, key: ObjectKey) -> Observed | None:
    """Read everything; None when the harvest is gone."""
    client = context.client
    raw = client.find(AnchorHarvest.resource.api_version, KIND, key.namespace, key.name)
    if raw is None:
        return None
    status = _status(raw)
    try:
        harvest = AnchorHarvest.model_validate({**raw, "status": None})
    except pydantic.ValidationError as error:
        return Observed(raw, None, spec_problem=first_error(error), status=status)
    digest = spec_digest(harvest)
    job = render.job_name(key.name, digest)
    jobs = tuple(client.list("batch/v1", "Job", key.namespace, labels=labels.owned_by(raw)))
    pods: list[Live] = []
    missing: tuple[Live, ...] = ()
    refusal = ""
    present = next((live for live in jobs if live["metadata"]["name"] == job), None)
    if present is not None:
        pods = list(client.list("v1", "Pod", key.namespace, labels=f"batch.kubernetes.io/job-name={job}"))
        pods.sort(key=lambda pod: str(pod["metadata"].get("creationTimestamp", "")))
        if is_active(present):
            missing = _missing(client, raw, harvest, digest)
            refusal = "" if pods else _pod_refusal(client, present)
    written = client.find("v1", "ConfigMap", key.namespace, render.progress_name(key.name, digest))
    data = (written or {}).get("data") or {}
    anchor, problem = _anchor(data)
    kept = False
    if anchor is not None:
        live = client.find("v1", "ConfigMap", key.namespace, render.anchor_name(key.name, anchor))
        kept = live is not None and labels.is_owned(live, str(raw["metadata"]["uid"]))
    return Observed(
        raw,
        harvest,
        status=status,
        digest=digest,
        jobs=jobs,
        pods=tuple(pods),
        progress=_progress(data),
        anchor=anchor,
        anchor_problem=problem,
        said_failure=_said_failure(data),
        beside={key: data[key] for key in render.BESIDE_KEYS if key in data},
        anchor_is_kept=kept,
        missing=missing,
        pod_refusal=refusal,
    )


def _missing(client: Client, raw: Live, harvest: AnchorHarvest, digest: str) -> tuple[Live, ...]:
    wanted = render.support_objects(raw, harvest, digest)
    held = {
        reference: client.find(reference.api_version, reference.kind, reference.namespace, reference.name)
        for reference in map(Reference.of, wanted)
    }
    return tuple(manifest for manifest in wanted if held[Reference.of(manifest)] is None)


def _pod_refusal(client: Client, job: Live) -> str:
    """The Job controller's last words on a pod that it could not create; empty when there are none."""
    fields = f"regarding.uid={job['metadata']['uid']},reason=FailedCreate"
    events = client.list("events.k8s.io/v1", "Event", job["metadata"]["namespace"], fields=fields)
    last = max(events, key=lambda event: str(event["metadata"].get("creationTimestamp", "")), default=None)
    return str(last.get("note") or "") if last is not None else ""


def _status(raw: Live) -> AnchorHarvestStatus:
    try:
        return AnchorHarvestStatus.model_validate(raw.get("status") or {})
    except pydantic.ValidationError:
        return AnchorHarvestStatus()


def _progress(data: Mapping[str, str]) -> HarvestProgress | None:
    """The harvester's words are input like any other: what does not parse is not shown."""
    try:
        said = json.loads(data.get(render.PROGRESS_KEY, "null"))
        if not isinstance(said, dict):
            return None
        done, total = said.get("pointsDone"), said.get("pointsTotal")
        if isinstance(done, int):
            said["points"] = f"{done}/{total}" if isinstance(total, int) else str(done)
        return HarvestProgress.model_validate(said)
    except (ValueError, RecursionError):
        return None


def _said_failure(data: Mapping[str, str]) -> str:
    try:
        said = json.loads(data.get(render.RESULT_KEY, "null"))
    except (ValueError, RecursionError):
        return ""
    if not isinstance(said, dict) or said.get("outcome") != "Failed":
        return ""
    text = f"{said.get('reason', 'Failed')}: {said.get('message', '')}"
    tail = [line.strip() for line in str(said.get("logTail") or "").splitlines() if line.strip()]
    return text + (": " + " | ".join(tail[-LOG_LINES:]) if tail else "")


def _anchor(data: Mapping[str, str]) -> tuple[Anchor | None, str]:
    text = data.get(render.ANCHOR_KEY)
    if text is None:
        return None, ""
    try:
        return parse_anchor(text, "the harvester's anchor"), ""
    except FormatError as error:
        return None, str(error)
