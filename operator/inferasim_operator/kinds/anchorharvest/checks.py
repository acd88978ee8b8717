"""What can be wrong with a harvest before its Job is made, and what its Job and pods say. Pure."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from inferasim_harvester.spec import parse_spec
from inferasim_operator import convert
from inferasim_operator.api.v1alpha1.anchorharvest import AnchorHarvestSpec
from inferasim_operator.engine.jobs import job_condition
from inferasim_operator.kinds.anchorharvest import render
from inferasim_operator.kinds.anchorharvest.observe import LOG_LINES, Observed
from simcore.cards import layout as layouts
from simcore.cards.accelerator import AcceleratorCard, is_cpu
from simcore.cards.library import load_accelerator_card
from simcore.errors import FormatError, InputError

FORBIDDEN_TAINTS = ("amd-gpu-unhealthy", "amd-dcm")
"""Taints that say: this GPU is broken, or being repartitioned. A measurement there would be worthless."""
START_GRACE_S = 180.0
"""How long a pod may fail to start before it is given up: registries and volumes have hiccups."""
RESTARTS_LIMIT = 3


class Reason(StrEnum):
    """Condition reasons of an AnchorHarvest."""

    HARVESTED = "Harvested"
    HARVESTER_FAILED = "HarvesterFailed"
    CHECKS_REFUSED = "ChecksRefused"
    INVALID_SPEC = "InvalidSpec"
    UNKNOWN_ACCELERATOR = "UnknownAccelerator"
    BAD_LAYOUT = "BadLayout"
    TOO_MANY_GPUS = "TooManyGpus"
    FORBIDDEN_TOLERATION = "ForbiddenToleration"
    JOB_CREATED = "JobCreated"
    WAITING_FOR_NODE = "WaitingForNode"
    STARTING = "Starting"
    RUNNING = "Running"
    SUSPENDED = "Suspended"
    POD_REFUSED = "PodRefused"
    POD_TAKEN_AWAY = "PodTakenAway"
    POD_CANNOT_START = "PodCannotStart"
    CONTAINER_FAILED = "ContainerFailed"
    DEADLINE_EXCEEDED = "DeadlineExceeded"
    JOB_FAILED = "JobFailed"
    NO_ANCHOR_WRITTEN = "NoAnchorWritten"
    ANCHOR_INVALID = "AnchorInvalid"


@dataclass(frozen=True)
class Finding:
    """One statement about the harvest, for a condition."""

    reason: Reason
    message: str


Check = Callable[[Observed], Finding | None]


def gpus_count(spec: AnchorHarvestSpec) -> int:
    """GPUs that the layout takes; none for a try-out on a CPU. Raises InputError."""
    if is_cpu(spec.accelerator.product):
        return 0
    engine = spec.engine.name
    # Whether the model has experts changes who shares what, never how many GPUs there are.
    return layouts.resolve(convert.simcore_layout(spec.layout), engine, is_moe=False).gpus_count


def accelerator_card(spec: AnchorHarvestSpec) -> AcceleratorCard | None:
    """The card of the harvest's accelerator; None for a CPU. Raises UnknownNameError."""
    return None if is_cpu(spec.accelerator.product) else load_accelerator_card(spec.accelerator.product)


def spec_is_invalid(observed: Observed) -> Finding | None:
    """The spec breaks a rule that the API server did not know (an older CRD)."""
    return Finding(Reason.INVALID_SPEC, observed.spec_problem) if observed.harvest is None else None


def accelerator_is_unknown(observed: Observed) -> Finding | None:
    """No card, or one that nodes of a cluster cannot be found by."""
    if observed.harvest is None:
        return None
    try:
        card = accelerator_card(observed.harvest.spec)
    except InputError as error:
        return Finding(Reason.UNKNOWN_ACCELERATOR, f"spec.accelerator.product: {error}")
    if card is None:
        given = observed.harvest.spec.accelerator
        if given.partition is not None or given.resource_name is not None:
            return Finding(Reason.INVALID_SPEC, "spec.accelerator: a CPU has neither `partition` nor `resourceName`")
        return None
    if not card.device_ids:
        text = f"{card.name} has no PCI device id on record, so its nodes cannot be told apart"
        return Finding(Reason.UNKNOWN_ACCELERATOR, text)
    return None


def layout_is_impossible(observed: Observed) -> Finding | None:
    """Widths that no engine can start with (public cases A10, B03)."""
    layout = observed.harvest.spec.layout if observed.harvest is not None else None
    if observed.harvest is None or layout is None:
        return None
    tensor, attention = layout.tensor_parallel or 1, layout.attention_data_parallel or 1
    engine = observed.harvest.spec.engine.name
    if engine is layouts.Engine.VLLM and tensor > 1 and attention > 1:
        return Finding(
            Reason.BAD_LAYOUT,
            "spec.layout: vLLM has no attention data parallelism inside a wider tensor-parallel group; "
            "state its ranks as `dataParallel`",
        )
    if engine is not layouts.Engine.VLLM and tensor % attention != 0:
        text = f"spec.layout: attentionDataParallel {attention} must divide tensorParallel {tensor}"
        return Finding(Reason.BAD_LAYOUT, text)
    return None


def harvester_would_refuse(observed: Observed) -> Finding | None:
    """The harvester's own parser says no: better told here than by a pod that waited for GPUs."""
    if observed.harvest is None:
        return None
    try:
        parse_spec(json.dumps(render.harvester_spec(observed.harvest)), "spec")
    except FormatError as error:
        return Finding(Reason.INVALID_SPEC, str(error))
    return None


def gpus_exceed_node(observed: Observed) -> Finding | None:
    """One Job runs on one node."""
    if observed.harvest is None or accelerator_is_unknown(observed) is not None:
        return None
    spec = observed.harvest.spec
    wanted, card = gpus_count(spec), accelerator_card(spec)
    if card is None or wanted <= card.gpus_per_node:
        return None
    label = convert.layout_label(spec.layout)
    return Finding(
        Reason.TOO_MANY_GPUS, f"layout {label} takes {wanted} GPUs; a {card.name} node has {card.gpus_per_node}"
    )


def toleration_is_forbidden(observed: Observed) -> Finding | None:
    """The pod would be let onto nodes whose GPUs are marked as broken or in repartitioning."""
    if observed.harvest is None or observed.harvest.spec.pod is None:
        return None
    for toleration in observed.harvest.spec.pod.tolerations or ():
        key = toleration.key or ""
        if not key:
            return Finding(Reason.FORBIDDEN_TOLERATION, "spec.pod.tolerations: a toleration must name a key")
        if key.rsplit("/", 1)[-1] in FORBIDDEN_TAINTS:
            return Finding(Reason.FORBIDDEN_TOLERATION, f"spec.pod.tolerations: must not tolerate `{key}`")
    return None


CHAIN: tuple[Check, ...] = (
    spec_is_invalid,
    accelerator_is_unknown,
    layout_is_impossible,
    harvester_would_refuse,
    gpus_exceed_node,
    toleration_is_forbidden,
)


# --- what the Job and its pods say -----------------------------------------------------------------------------------


def failure(observed: Observed, now: datetime.datetime) -> Finding | None:
    """Why the measurement is lost: found at the pod, before the Job's deadline if possible."""
    job = observed.job
    if job is None:
        return None
    failed = job_condition(job, "Failed")
    if failed is not None and observed.said_failure:
        return Finding(Reason.HARVESTER_FAILED, observed.said_failure)
    pod = observed.pods[-1] if observed.pods else None
    trouble = pod_failure(pod, now) if pod is not None else None
    if trouble is not None and (failed is not None or trouble.reason is not Reason.DEADLINE_EXCEEDED):
        return trouble
    if failed is None:
        return None
    text = str(failed.get("message") or failed.get("reason") or "the Job failed")
    is_late = failed.get("reason") == "DeadlineExceeded"
    return Finding(Reason.DEADLINE_EXCEEDED if is_late else Reason.JOB_FAILED, text)


def pod_failure(pod: Mapping[str, Any], now: datetime.datetime) -> Finding | None:
    """Why a pod will not do its work, with the last lines of its log. A pod taken away (evicted, its node drained) has
    not failed: the Job makes another, by its pod failure policy."""
    status = pod.get("status") or {}
    if _disruption(pod) is not None:
        return None
    for container in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        name, state = container.get("name"), container.get("state") or {}
        ended = state.get("terminated") or {}
        if ended.get("exitCode", 0) != 0:
            return Finding(Reason.CONTAINER_FAILED, _ending(str(name), ended))
        restarts = int(container.get("restartCount") or 0)
        if restarts >= RESTARTS_LIMIT:
            last = (container.get("lastState") or {}).get("terminated") or {}
            return Finding(Reason.CONTAINER_FAILED, f"restarted {restarts} times; {_ending(str(name), last)}")
        waiting = state.get("waiting") or {}
        why = waiting.get("reason", "")
        is_hopeless = why in ("InvalidImageName", "ErrImageNeverPull")
        if is_hopeless or (_is_trouble(waiting) and _age_s(pod, now) > START_GRACE_S):
            return Finding(Reason.POD_CANNOT_START, _waiting(str(name), waiting))
    if status.get("phase") == "Failed":
        is_late = status.get("reason") == "DeadlineExceeded"
        text = str(status.get("message") or status.get("reason") or "the pod failed")
        return Finding(Reason.DEADLINE_EXCEEDED if is_late else Reason.CONTAINER_FAILED, text)
    return None


def stage(observed: Observed) -> Finding:
    """What an active Job is doing."""
    pod = observed.pods[-1] if observed.pods else None
    if pod is None and observed.pod_refusal:
        return Finding(Reason.POD_REFUSED, f"the Job's pod is refused, and tried again: {observed.pod_refusal}")
    if pod is None:
        return Finding(Reason.JOB_CREATED, "the Job is created; its pod is not there yet")
    status = pod.get("status") or {}
    taken = _disruption(pod)
    if taken is not None:
        why = f"{taken.get('reason', 'unknown')}: {taken.get('message', '')}".rstrip(": ")
        return Finding(Reason.POD_TAKEN_AWAY, f"the pod was taken away ({why}); another goes on from the points so far")
    if status.get("phase") == "Running":
        return Finding(Reason.RUNNING, "the sweeps are under way")
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            text = str(condition.get("message") or "the scheduler has found no node")
            return Finding(Reason.WAITING_FOR_NODE, f"waiting for a free node: {text}")
    if not pod.get("spec", {}).get("nodeName"):
        return Finding(Reason.WAITING_FOR_NODE, "waiting for a free node")
    for container in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        waiting = (container.get("state") or {}).get("waiting") or {}
        if _is_trouble(waiting):
            return Finding(
                Reason.STARTING, f"the pod does not start yet: {_waiting(str(container.get('name')), waiting)}"
            )
    return Finding(Reason.STARTING, "the pod is starting")


def _disruption(pod: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Why a pod is taken away (its node drained or lost, preempted); None when it is not."""
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return next((c for c in conditions if c.get("type") == "DisruptionTarget" and c.get("status") == "True"), None)


def _is_trouble(waiting: Mapping[str, Any]) -> bool:
    troubles = ("ErrImage", "ImagePull", "CreateContainer", "RunContainer", "CrashLoop")
    return str(waiting.get("reason", "")).startswith(troubles)


def _waiting(name: str, waiting: Mapping[str, Any]) -> str:
    return f"container {name}: {waiting.get('reason', '')}: {waiting.get('message', '')}".rstrip(": ")


def _ending(name: str, ended: Mapping[str, Any]) -> str:
    lines = [line.strip() for line in str(ended.get("message") or "").splitlines() if line.strip()]
    tail = " | ".join(lines[-LOG_LINES:])
    why = f" ({ended['reason']})" if ended.get("reason") else ""
    return f"container {name} ended with exit code {ended.get('exitCode', 'unknown')}{why}" + (
        f": {tail}" if tail else ""
    )


def _age_s(pod: Mapping[str, Any], now: datetime.datetime) -> float:
    text = (pod.get("status") or {}).get("startTime") or pod["metadata"].get("creationTimestamp")
    if not text:
        return 0.0
    return (now - datetime.datetime.fromisoformat(str(text).replace("Z", "+00:00"))).total_seconds()
