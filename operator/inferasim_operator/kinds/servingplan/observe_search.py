"""Reading what there is of a plan's search as a Job. Reads only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from inferasim_operator.api.v1alpha1.servingplan import ServingPlan, ServingPlanSpec
from inferasim_operator.engine import jobs, labels
from inferasim_operator.engine.actions import ObjectKey
from inferasim_operator.engine.kind import Context
from inferasim_operator.kinds.servingplan import search_job, sharding

Live = Mapping[str, Any]


@dataclass(frozen=True)
class SearchJob:
    """The search as an Indexed Job: how wide it is to be, and what there is of it.

    Race: a shard is written before its pod ends, and the Job is read first: a Job seen complete has its shards here.
    """

    shards_count: int
    image: str
    """What its pods run; empty when the operator was not told."""
    job: Live | None = None
    """The live Job of this question in so many shards."""
    shards: tuple[Live, ...] = ()
    """The shards' ConfigMaps that exist, by index."""
    done: tuple[int, ...] = ()
    """Indexes of the shards that hold a result."""
    pods: tuple[Live, ...] = ()


def search(
    context: Context, raw: Live, spec: ServingPlanSpec, digest: str, *, is_answered: bool
) -> tuple[SearchJob | None, tuple[Live, ...]]:
    """The search that the spec asks for (None: in this process), and what is left of others.

    Without an image of the operator no Job was ever made: nothing is looked for, and only who asks for shards in words
    is told so.
    """
    metadata = raw["metadata"]
    count = sharding.pods_count(spec)
    is_asked = (spec.search is not None and spec.search.shards is not None) or spec.needs_volumes
    if not context.worker_image:
        return (SearchJob(count, "") if is_asked and count > 0 else None), ()
    client, namespace = context.client, metadata["namespace"]
    key = ObjectKey(namespace, metadata["name"])
    wanted = search_job.job_name(metadata["name"], digest, count) if count > 0 and not is_answered else ""
    # A Job that is not known yet wakes its plan when it is: thousands of answered plans need not ask each time.
    if not wanted and not context.references.is_parent(ServingPlan.resource.kind, key):
        return None, ()
    mine = labels.owned_by(raw, role=search_job.JOB_ROLE)
    live_jobs = client.list("batch/v1", "Job", namespace, labels=mine)
    if live_jobs:
        context.references.note_parent(ServingPlan.resource.kind, key)
    elif not wanted:
        return None, ()
    maps = client.list("v1", "ConfigMap", namespace, labels=labels.owned_by(raw, role=search_job.SHARD_ROLE))
    names = [search_job.shard_name(wanted, index) for index in range(count)]
    by_name = {config_map["metadata"]["name"]: config_map for config_map in maps}
    job = next((live for live in live_jobs if live["metadata"]["name"] == wanted), None)
    own = {wanted, *names, search_job.request_name(wanted)} if wanted else set()
    leftovers = tuple(
        live
        for live in (*maps, *live_jobs)  # the Job last: as long as it is there, the rest is looked for
        if live["metadata"]["name"] not in own and not live["metadata"].get("deletionTimestamp")
    )
    if not wanted:
        return None, leftovers
    pods: tuple[Live, ...] = ()
    if job is not None:
        selector = f"batch.kubernetes.io/job-name={wanted}"
        found = client.list("v1", "Pod", namespace, labels=selector)
        pods = tuple(sorted(found, key=lambda pod: str(pod["metadata"].get("creationTimestamp", ""))))
    return (
        SearchJob(
            count,
            context.worker_image,
            job=job,
            shards=tuple(by_name[name] for name in names if name in by_name),
            done=tuple(
                index
                for index, name in enumerate(names)
                if name in by_name and search_job.is_done(by_name[name], digest)
            ),
            pods=pods,
        ),
        leftovers,
    )


def is_stuck(search: SearchJob) -> bool:
    """Whether the Job has ended without all shards."""
    job = search.job
    return job is not None and not jobs.is_active(job) and len(search.done) < search.shards_count
