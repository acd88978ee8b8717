"""The decision for a search that runs as a Job: make it, let it go on, say where it is or why it is lost. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inferasim_operator.api.v1alpha1.servingplan import SearchProgress, ServingPlan
from inferasim_operator.engine import jobs
from inferasim_operator.engine.actions import Action, ApplyObject, CreateObject
from inferasim_operator.kinds.servingplan import search_job
from inferasim_operator.kinds.servingplan.checks import Finding, Reason
from inferasim_operator.kinds.servingplan.observe_search import SearchJob, is_stuck

LOOK_AGAIN_S = 30.0
"""Pods are not watched; shards and the Job are, so this only finds pods that cannot start."""
LOG_LINES = 5


def pause(search: SearchJob | None) -> tuple[Action, ...]:
    """Suspend a Job that runs; the shards that are done are kept."""
    if search is None or search.job is None or not jobs.is_active(search.job) or search.job["spec"].get("suspend"):
        return ()
    return (ApplyObject(jobs.suspension(search.job, is_suspended=True), force=True),)


def actions(
    owner: Mapping[str, Any], plan: ServingPlan, digest: str, request: Mapping[str, Any], search: SearchJob
) -> tuple[Action, ...]:
    """What brings the Job about or lets it go on; nothing while it runs. A Job in Kueue's queue is left to Kueue."""
    if search.job is None:
        objects = search_job.run_objects(
            owner, plan, digest, request, shards_count=search.shards_count, image=search.image
        )
        return tuple(CreateObject(manifest) for manifest in objects)
    is_queued = plan.spec.pod is not None and plan.spec.pod.queue_name is not None
    if search.job["spec"].get("suspend") and not is_queued:
        return (ApplyObject(jobs.suspension(search.job, is_suspended=False), force=True),)
    return ()


def stage(plan: ServingPlan, search: SearchJob) -> Finding:
    """Where the search is, with what keeps a pod from starting if something does."""
    if search.job is not None and search.job["spec"].get("suspend"):
        is_queued = plan.spec.pod is not None and plan.spec.pod.queue_name is not None
        if is_queued:
            return Finding(Reason.QUEUED, "waiting in the queue for admission")
    trouble = _trouble(search)
    text = f"the search runs as a Job of {search.shards_count} shards"
    return Finding(Reason.SEARCHING, f"{text}; {trouble}" if trouble else text)


def failure(search: SearchJob) -> Finding | None:
    """Why the search is lost: its Job has ended and shards are missing. The Job stays as the record of it."""
    if search.job is None or not is_stuck(search):
        return None
    missing = [str(index) for index in range(search.shards_count) if index not in search.done]
    lost = f"shards without a result: {', '.join(missing)}"
    failed = jobs.job_condition(search.job, "Failed")
    if failed is None:
        return Finding(Reason.SHARDS_MISSING, f"the Job is complete, but {lost}; set `rerun` to search again")
    why = str(failed.get("message") or failed.get("reason") or "the Job failed")
    words = jobs.last_words(search.pods, lines_count=LOG_LINES)
    return Finding(Reason.JOB_FAILED, f"{why}; {lost}" + (f"; last pod: {words}" if words else ""))


def progress(search: SearchJob) -> SearchProgress:
    """Candidates that the shards say they have scored; the total is known once one is done."""
    scored, totals = 0, set()
    for shard in search.shards:
        data = shard.get("data") or {}
        scored += _number(data.get(search_job.SCORED_KEY)) or 0
        if search_job.SHARD_KEY in (shard.get("binaryData") or {}):
            totals.add(_number(data.get(search_job.TOTAL_KEY)))
    total = totals.pop() if len(totals) == 1 else None
    return SearchProgress(
        candidates_scored=scored, candidates_total=total, shards=f"{len(search.done)}/{search.shards_count}"
    )


def merge_request(request: Mapping[str, Any], search: SearchJob) -> dict[str, Any]:
    """The question together with what the shards found; its answer is that of the question alone."""
    return {**request, "shards": [shard["binaryData"][search_job.SHARD_KEY] for shard in search.shards]}


def _trouble(search: SearchJob) -> str:
    for pod in search.pods:
        for container in (pod.get("status") or {}).get("containerStatuses") or ():
            waiting = (container.get("state") or {}).get("waiting") or {}
            why = str(waiting.get("reason", ""))
            if why and why not in ("ContainerCreating", "PodInitializing"):
                return f"a pod waits: {why}: {waiting.get('message', '')}".rstrip(": ")[:1024]
    words = jobs.last_words(search.pods, lines_count=LOG_LINES)
    return f"a pod failed and is made again: {words}"[:1024] if words else ""


def _number(text: object) -> int | None:
    """A shard's words are input like any other."""
    return int(text) if isinstance(text, str) and text.isdigit() and len(text) < 16 else None
