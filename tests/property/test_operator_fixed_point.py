"""The operator settles: whatever happens to a harvest, soon nothing is written, and no run happens twice."""

from __future__ import annotations

import datetime
import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from inferasim_operator.api.v1alpha1.anchorharvest import AnchorHarvest
from inferasim_operator.api.v1alpha1.common import unknown_fields
from inferasim_operator.api.v1alpha1.servingplan import ServingPlan, ServingPlanSpec
from inferasim_operator.engine import jobs
from inferasim_operator.engine.actions import ObjectKey
from inferasim_operator.engine.clock import Clock
from inferasim_operator.engine.kind import Context, Kind
from inferasim_operator.engine.reconcile import Reconciler
from inferasim_operator.kinds.anchorharvest import render
from inferasim_operator.kinds.anchorharvest.observe import observe, spec_digest
from inferasim_operator.kinds.anchorharvest.plan import plan
from tests import builders, strategies
from tests.conditions import problems
from tests.fake_cluster import FakeCluster

HAPPENINGS = st.lists(
    st.sampled_from(["completes", "fails", "anchor", "refused", "job-deleted", "suspend", "resume", "edit", "rerun"]),
    max_size=8,
)
KEY = ObjectKey("default", "harvest")
API = ("inferasim.dev/v1alpha1", "AnchorHarvest", "default", "harvest")
PASSES_LIMIT = 4


class World:
    """One harvest on a fake cluster, whose clock goes on by an hour at each look."""

    def __init__(self) -> None:
        self.cluster = FakeCluster(builders.live(builders.anchor_harvest()))
        self.hours = 0
        self.jobs_made: list[str] = []

    def now(self) -> datetime.datetime:
        self.hours += 1
        return datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC) + datetime.timedelta(hours=self.hours)

    def settle(self) -> None:
        """Passes by a new process until one writes nothing."""
        kind = Kind(AnchorHarvest.resource, observe, plan)
        reconciler = Reconciler(kind, Context(self.cluster), Clock(now=self.now, monotonic_s=lambda: 0.0))
        for _ in range(PASSES_LIMIT):
            writes = self.cluster.writes
            before = {job["metadata"]["name"] for job in self.jobs()}
            reconciler.run(KEY)
            self.jobs_made += sorted({job["metadata"]["name"] for job in self.jobs()} - before)
            if self.cluster.writes == writes:
                return
        raise AssertionError(f"still writing after {PASSES_LIMIT} passes")

    def live(self) -> dict[str, Any]:
        return self.cluster.get(*API)

    def jobs(self) -> list[dict[str, Any]]:
        return self.cluster.list("batch/v1", "Job", "default")

    def digest(self) -> str:
        return spec_digest(AnchorHarvest.model_validate({**self.live(), "status": None}))

    def happen(self, what: str, number: int) -> None:
        live = self.live()
        name = render.job_name("harvest", self.digest())
        job = self.cluster.find("batch/v1", "Job", "default", name)
        if what in ("completes", "fails") and job is not None:
            state = "Complete" if what == "completes" else "Failed"
            self.cluster.put({**job, "status": {"conditions": [{"type": state, "status": "True"}]}})
        if what in ("anchor", "refused"):
            self._write_anchor("pass" if what == "anchor" else "refuse")
        if what == "job-deleted" and job is not None:
            del self.cluster.objects[next(r for r in self.cluster.objects if r.name == name and r.kind == "Job")]
        if what in ("suspend", "resume", "edit", "rerun"):
            changes: dict[str, Any] = {
                "suspend": {"suspend": True},
                "resume": {"suspend": False},
                "edit": {"deadlineSeconds": 600 + number},
                "rerun": {"rerun": f"r{number}"},
            }[what]
            metadata = {**live["metadata"], "generation": live["metadata"]["generation"] + 1}
            self.cluster.put({**live, "metadata": metadata, "spec": {**live["spec"], **changes}})

    def _write_anchor(self, verdict: str) -> None:
        name = render.progress_name("harvest", self.digest())
        written = self.cluster.find("v1", "ConfigMap", "default", name)
        if written is None:
            return
        check = {"name": "prefix-hits", "verdict": verdict, "detail": "0.2 %"}
        provenance = {"source": "harvested", "realWeights": True, "prefixCachingOff": True, "checks": [check]}
        anchor = builders.anchor(provenance=provenance)
        self.cluster.put({**written, "data": {"anchor.json": anchor.to_json()}})


@given(HAPPENINGS)
@settings(max_examples=25)
def test_a_harvest_settles_and_runs_once(happenings: list[str]) -> None:
    """After each happening: a fixed point, legal conditions, one active Job at most and of the present spec, no Job
    once the end is on record, and no Job name made twice unless somebody deleted it unfinished."""
    world = World()
    world.settle()
    deleted_unfinished = 0
    for number, what in enumerate(happenings):
        before = world.live().get("status", {}).get("run", {})
        active = [job["metadata"]["name"] for job in world.jobs() if jobs.is_active(job)]
        world.happen(what, number)
        world.settle()
        if what == "job-deleted" and active:
            deleted_unfinished += 1
        live = world.live()
        assert problems(live["status"], generation=live["metadata"]["generation"]) == []
        present = render.job_name("harvest", world.digest())
        active = [job["metadata"]["name"] for job in world.jobs() if jobs.is_active(job)]
        assert active in ([], [present])
        run = live["status"].get("run", {})
        if run.get("outcome") in ("Succeeded", "Failed"):
            assert active == [] or run["outcome"] == "Succeeded"
        if before.get("outcome") in ("Succeeded", "Failed") and before["specDigest"] == world.digest():
            assert run["outcome"] in ("Succeeded", before["outcome"])
    repeats = len(world.jobs_made) - len(set(world.jobs_made))
    assert repeats <= deleted_unfinished


@given(strategies.serving_plans())
@settings(max_examples=30)
def test_plans_survive_the_types(manifest: dict[str, Any]) -> None:
    """JSON → types → JSON is the identity, and no field is unknown."""
    parsed = ServingPlan.model_validate(json.loads(json.dumps(manifest)))
    assert parsed.spec.to_dict() == manifest["spec"]
    assert unknown_fields(ServingPlanSpec, manifest["spec"]) == {}
    assert list(unknown_fields(ServingPlanSpec, {**manifest["spec"], "x": 1})) == ["x"]


@given(strategies.anchor_harvests())
def test_harvests_survive_the_types(manifest: dict[str, Any]) -> None:
    """As for plans; and the digest of what is measured does not depend on `suspend`."""
    parsed = AnchorHarvest.model_validate(json.loads(json.dumps(manifest)))
    assert parsed.spec.to_dict() == manifest["spec"]
    other = {**manifest, "spec": {**manifest["spec"], "suspend": not manifest["spec"].get("suspend", False)}}
    assert spec_digest(parsed) == spec_digest(AnchorHarvest.model_validate(other))
