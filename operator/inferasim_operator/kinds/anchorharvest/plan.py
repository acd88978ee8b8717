"""The decision for an AnchorHarvest: pure, total, and a fixed point once its Job is made, and again once it has ended.

The record of a run that has ended is `status.run`, under the digest of the spec: neither a Job that is cleaned up nor
an operator that restarts makes it run again. Only an edit or a new `rerun` token does.
"""

from __future__ import annotations

import datetime

from inferasim_operator.api.v1alpha1.anchorharvest import (
    MEASURED,
    AnchorHarvestStatus,
    CheckResult,
    CheckVerdict,
    HarvestProgress,
    Run,
    RunOutcome,
)
from inferasim_operator.api.v1alpha1.common import ResultReference
from inferasim_operator.engine import jobs
from inferasim_operator.engine.actions import Action, ApplyObject, CreateObject, DeleteObject, Plan, Reference
from inferasim_operator.engine.conditions import Conditions, timestamp
from inferasim_operator.engine.findings import first_finding
from inferasim_operator.kinds.anchorharvest import checks, render
from inferasim_operator.kinds.anchorharvest.checks import Finding, Reason
from inferasim_operator.kinds.anchorharvest.observe import Observed
from simcore.anchors.schema import Anchor
from simcore.cards.accelerator import is_cpu

LOOK_AGAIN_S = 10.0
"""Pods are not watched (that would be all pods of the cluster); an active Job's pod is looked at this often."""
SETTLE_S = 1.0
ENDED_PHASE = "Done"
"""As the harvester calls it."""
_VERDICTS = {"pass": CheckVerdict.PASSED, "flag": CheckVerdict.FLAGGED, "refuse": CheckVerdict.REFUSED}


def plan(observed: Observed, now: datetime.datetime) -> Plan:
    """What to do for a harvest, and what to say of it."""
    generation = int(observed.raw["metadata"].get("generation", 0))
    conditions = Conditions(observed.status.conditions, generation=generation, now=now)
    obsolete = tuple(_delete(job) for job in observed.jobs if job is not observed.job and jobs.is_active(job))
    finding = first_finding(checks.CHAIN, observed)
    if finding is not None:
        conditions.stalled(finding.reason, finding.message)
        return Plan(AnchorHarvestStatus(conditions=conditions.done(), observed_generation=generation), obsolete)
    ended = observed.status.run
    if ended is not None and ended.spec_digest == observed.digest and ended.outcome is RunOutcome.SUCCEEDED:
        return _succeeded_before(observed, conditions, generation, obsolete)
    if observed.anchor is not None:
        return _succeeded(observed, observed.anchor, conditions, generation, obsolete, now)
    if ended is not None and ended.spec_digest == observed.digest and ended.outcome is RunOutcome.FAILED:
        return _failed_before(observed, ended, conditions, generation, obsolete)
    return _run(observed, conditions, generation, obsolete, now)


def _run(
    observed: Observed,
    conditions: Conditions,
    generation: int,
    obsolete: tuple[Action, ...],
    now: datetime.datetime,
) -> Plan:
    """No end is on record: make the Job, follow it, or put its end on record."""
    assert observed.harvest is not None  # noqa: S101 - the chain has found it otherwise
    spec, job = observed.harvest.spec, observed.job
    failure = _failure(observed, now)
    if failure is not None:
        conditions.set(MEASURED, False, failure.reason, failure.message)
        conditions.stalled(failure.reason, failure.message)
        run = _record(observed, RunOutcome.FAILED, now, failure)
        # The record first; the next pass frees the node. The other way round, a crash between would run it again.
        return Plan(_status(observed, conditions, generation, run), obsolete, wake_after_s=SETTLE_S)
    if spec.suspend:
        conditions.idle(Reason.SUSPENDED, "suspended: the node is free; points measured so far are kept")
        pause: tuple[Action, ...] = ()
        if job is not None and jobs.is_active(job) and not job["spec"].get("suspend"):
            pause = (ApplyObject(jobs.suspension(job, is_suspended=True), force=True),)
        return Plan(_status(observed, conditions, generation, None), (*obsolete, *pause))
    run = _record(observed, RunOutcome.RUNNING, now)
    if job is None:
        conditions.working(Reason.JOB_CREATED, "the Job is created; its pod is not there yet")
        objects = render.run_objects(
            observed.raw,
            observed.harvest,
            observed.digest,
            gpus_count=checks.gpus_count(spec),
            card=checks.accelerator_card(spec),
        )
        make = tuple(CreateObject(manifest) for manifest in objects)
        return Plan(_status(observed, conditions, generation, run), (*obsolete, *make), wake_after_s=LOOK_AGAIN_S)
    resume: tuple[Action, ...] = ()
    is_queued = spec.pod is not None and spec.pod.queue_name is not None
    if job["spec"].get("suspend") and is_queued:
        conditions.working(Reason.WAITING_FOR_NODE, "waiting in the queue for admission")
    else:
        if job["spec"].get("suspend"):
            resume = (ApplyObject(jobs.suspension(job, is_suspended=False), force=True),)
        stage = checks.stage(observed)
        conditions.working(stage.reason, stage.message)
    again = tuple(CreateObject(manifest) for manifest in observed.missing)
    return Plan(_status(observed, conditions, generation, run), (*obsolete, *again, *resume), wake_after_s=LOOK_AGAIN_S)


def _failure(observed: Observed, now: datetime.datetime) -> Finding | None:
    if observed.anchor_problem:
        return Finding(Reason.ANCHOR_INVALID, observed.anchor_problem)
    job = observed.job
    if job is not None and jobs.job_condition(job, "Complete") is not None:
        return Finding(Reason.NO_ANCHOR_WRITTEN, "the Job is complete, but the harvester wrote no anchor")
    return checks.failure(observed, now)


def _succeeded(
    observed: Observed,
    anchor: Anchor,
    conditions: Conditions,
    generation: int,
    obsolete: tuple[Action, ...],
    now: datetime.datetime,
) -> Plan:
    """The harvester has written an anchor: keep it, and say what its checks say."""
    results = tuple(
        CheckResult(name=check.name, verdict=_VERDICTS[check.verdict], detail=check.detail)
        for check in anchor.provenance.checks
    )
    refused = [check for check in results if check.verdict is CheckVerdict.REFUSED]
    flagged = [check for check in results if check.verdict is CheckVerdict.FLAGGED]
    verdict = CheckVerdict.REFUSED if refused else CheckVerdict.FLAGGED if flagged else CheckVerdict.PASSED
    keep: tuple[Action, ...] = ()
    if not observed.anchor_is_kept:
        keep = (CreateObject(render.anchor_config_map(observed.raw, anchor, verdict, observed.beside)),)
    summary = f"{anchor.label}: {sum(len(sweep.points) for sweep in anchor.decode)} decode points"
    if flagged:
        summary += f", {len(flagged)} flagged"
    if is_cpu(anchor.signature.accelerator):
        summary += "; of a CPU, for trying things out: no plan for a GPU takes it"
    conditions.set(MEASURED, True, Reason.HARVESTED, summary)
    if refused:
        text = "; ".join(f"{check.name}: {check.detail}" for check in refused)
        conditions.stalled(Reason.CHECKS_REFUSED, f"the anchor is kept for inspection and never selected: {text}")
    else:
        conditions.ready(Reason.HARVESTED, summary)
    reference = ResultReference(
        config_map=render.anchor_name(observed.raw["metadata"]["name"], anchor), digest=anchor.digest()
    )
    status = AnchorHarvestStatus(
        conditions=conditions.done(),
        observed_generation=generation,
        summary=summary,
        run=_record(observed, RunOutcome.SUCCEEDED, now),
        gpus=_gpus(observed),
        progress=_ended(observed.progress),
        checks=results or None,
        anchor_ref=reference,
    )
    return Plan(status, (*obsolete, *keep))


def _succeeded_before(
    observed: Observed, conditions: Conditions, generation: int, obsolete: tuple[Action, ...]
) -> Plan:
    """The end is on record; nothing is measured again, whatever has become of the Job and the progress."""
    before = observed.status
    for condition in before.conditions:
        conditions.set(condition.type, condition.status, condition.reason, condition.message)
    keep: tuple[Action, ...] = ()
    if observed.anchor is not None and not observed.anchor_is_kept:
        refused = any(check.verdict is CheckVerdict.REFUSED for check in before.checks or ())
        verdict = CheckVerdict.REFUSED if refused else CheckVerdict.PASSED
        keep = (CreateObject(render.anchor_config_map(observed.raw, observed.anchor, verdict, observed.beside)),)
    status = before.model_copy(update={"conditions": conditions.done(), "observed_generation": generation})
    return Plan(status, (*obsolete, *keep))


def _failed_before(
    observed: Observed, ended: Run, conditions: Conditions, generation: int, obsolete: tuple[Action, ...]
) -> Plan:
    reason, message = ended.reason or Reason.JOB_FAILED, ended.message or ""
    conditions.set(MEASURED, False, reason, message)
    conditions.stalled(reason, message)
    job = observed.job
    stop: tuple[Action, ...] = (_delete(job),) if job is not None and jobs.is_active(job) else ()
    return Plan(_status(observed, conditions, generation, ended), (*obsolete, *stop))


def _status(observed: Observed, conditions: Conditions, generation: int, run: Run | None) -> AnchorHarvestStatus:
    return AnchorHarvestStatus(
        conditions=conditions.done(),
        observed_generation=generation,
        summary=_progress_text(observed.progress),
        run=run if run is not None else _present_run(observed),
        gpus=_gpus(observed),
        progress=observed.progress,
    )


def _record(observed: Observed, outcome: RunOutcome, now: datetime.datetime, finding: Finding | None = None) -> Run:
    return Run(
        spec_digest=observed.digest,
        job=render.job_name(observed.raw["metadata"]["name"], observed.digest),
        outcome=outcome,
        reason=finding.reason if finding is not None else None,
        message=finding.message[:4096] if finding is not None else None,
        finished_at=timestamp(now) if outcome is not RunOutcome.RUNNING else None,
    )


def _present_run(observed: Observed) -> Run | None:
    run = observed.status.run
    return run if run is not None and run.spec_digest == observed.digest else None


def _gpus(observed: Observed) -> int | None:
    return checks.gpus_count(observed.harvest.spec) or None if observed.harvest is not None else None


def _ended(progress: HarvestProgress | None) -> HarvestProgress | None:
    """The anchor may be seen before the harvester's last word on its progress."""
    return progress and progress.model_copy(update={"phase": ENDED_PHASE, "eta_seconds": None})


def _progress_text(progress: HarvestProgress | None) -> str | None:
    if progress is None:
        return None
    text = f"{progress.phase}: {progress.points or progress.points_done} points"
    return text if progress.eta_seconds is None else f"{text}, about {progress.eta_seconds} s left"


def _delete(job: object) -> DeleteObject:
    assert isinstance(job, dict)  # noqa: S101 - live objects are plain dicts
    return DeleteObject(Reference.of(job), job["metadata"]["uid"])
