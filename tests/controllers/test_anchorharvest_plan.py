"""AnchorHarvest's decision and its Job, as tables."""

from __future__ import annotations

import datetime
from typing import Any

import pytest

from inferasim_operator.api.v1alpha1.anchorharvest import AnchorHarvest, AnchorHarvestStatus, HarvestProgress
from inferasim_operator.engine.actions import ApplyObject, CreateObject, DeleteObject, ObjectKey, Plan
from inferasim_operator.engine.clock import Clock
from inferasim_operator.engine.kind import Context, Kind
from inferasim_operator.engine.reconcile import Reconciler
from inferasim_operator.kinds.anchorharvest import render
from inferasim_operator.kinds.anchorharvest.checks import Reason
from inferasim_operator.kinds.anchorharvest.observe import Observed, observe, spec_digest
from inferasim_operator.kinds.anchorharvest.plan import plan
from tests import builders
from tests.conditions import problems
from tests.fake_cluster import FakeCluster

NOW = datetime.datetime(2026, 11, 30, 12, 0, 0, tzinfo=datetime.UTC)
SEEN_REASONS: set[str] = set()


def _observed(manifest: dict[str, Any] | None = None, **changes: Any) -> Observed:
    raw = builders.live(manifest or builders.anchor_harvest())
    harvest = AnchorHarvest.model_validate(raw)
    return Observed(raw, **({"harvest": harvest, "digest": spec_digest(harvest)} | changes))


def _job(observed: Observed, *, condition: str = "", suspend: bool = False, **more: Any) -> dict[str, Any]:
    conditions = [{"type": condition, "status": "True", **more}] if condition else []
    name = render.job_name(observed.raw["metadata"]["name"], observed.digest)
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": "default", "uid": "uid-job"},
        "spec": {"suspend": suspend},
        "status": {"conditions": conditions},
    }


def _pod(state: dict[str, Any] | None = None, *, age_s: int = 10, node: str = "n", **status: Any) -> dict[str, Any]:
    start = (NOW - datetime.timedelta(seconds=age_s)).isoformat().replace("+00:00", "Z")
    containers = [] if state is None else [{"name": "harvester", "restartCount": 0, "state": {}, **state}]
    return {
        "metadata": {"name": "p", "creationTimestamp": start},
        "spec": {"nodeName": node} if node else {},
        "status": {"phase": "Pending", "startTime": start, "containerStatuses": containers, **status},
    }


def _with(observed: Observed, **changes: Any) -> Observed:
    return Observed(**{**{f: getattr(observed, f) for f in observed.__dataclass_fields__}, **changes})


def _decide(observed: Observed) -> tuple[Plan, dict[str, Any], str]:
    """The plan, its status as JSON, Ready's reason; always legal conditions, and no rewrite an hour later."""
    decided = plan(observed, NOW)
    status = decided.status.to_dict()
    assert problems(status, generation=1) == []
    SEEN_REASONS.update(c["reason"] for c in status["conditions"])
    assert isinstance(decided.status, AnchorHarvestStatus)
    later = plan(_with(observed, status=decided.status), NOW + datetime.timedelta(seconds=1))
    assert later.status.to_dict() == status
    return decided, status, status["conditions"][0]["reason"]


def test_new_harvest_makes_everything_once() -> None:
    """Account, its one right, spec, progress, Job: in that order; GPUs as the layout says, requests equal to limits."""
    observed = _observed()
    decided, status, reason = _decide(observed)
    made = [action.manifest for action in decided.actions if isinstance(action, CreateObject)]
    assert [m["kind"] for m in made] == ["ServiceAccount", "Role", "RoleBinding", "ConfigMap", "ConfigMap", "Job"]
    assert made[1]["rules"] == [
        {
            "apiGroups": [""],
            "resources": ["configmaps"],
            "resourceNames": [made[4]["metadata"]["name"]],
            "verbs": ["patch"],
        }
    ]
    job = made[5]
    pod = job["spec"]["template"]["spec"]
    assert pod["containers"][0]["resources"] == {"requests": {"amd.com/gpu": "4"}, "limits": {"amd.com/gpu": "4"}}
    assert pod["nodeSelector"] == {"amd.com/gpu.compute-memory-partition": "spx_nps1"}
    terms = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    # Device ids of MI355X, bare metal and virtual function: operators-facts B6.
    assert terms == [
        {"matchExpressions": [{"key": "amd.com/gpu.device-id", "operator": "In", "values": ["75a3", "75b3"]}]}
    ]
    assert "tolerations" not in pod
    assert job["spec"]["backoffLimit"] == 0
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    shm = next(volume for volume in pod["volumes"] if volume["name"] == "inferasim-shm")
    assert shm["emptyDir"] == {"medium": "Memory", "sizeLimit": "16384Mi"}
    assert (reason, status["gpus"], status["run"]["outcome"]) == (Reason.JOB_CREATED, 4, "Running")
    followed, _, _ = _decide(_with(observed, jobs=(_job(observed),)))
    assert followed.actions == ()


LAYOUTS = [
    ("SGLang", {"tensorParallel": 8}, 8),
    ("SGLang", {"tensorParallel": 8, "attentionDataParallel": 8}, 8),  # DP attention lives inside the TP group
    ("VLLM", {"tensorParallel": 2, "dataParallel": 4}, 8),  # vLLM's ranks are GPUs of their own
    ("ATOM", {"tensorParallel": 4, "expertParallel": 4}, 4),
    ("VLLM", None, 1),
]


@pytest.mark.parametrize(("engine", "layout", "gpus"), LAYOUTS)
def test_gpus_of_the_layout(engine: str, layout: dict[str, int] | None, gpus: int) -> None:
    """Public case A10: what each engine makes of the widths."""
    image = {"name": engine, "version": "1.0", "image": "example.test/e:1"}
    _, status, _ = _decide(_observed(builders.anchor_harvest(engine=image, layout=layout)))
    assert status["gpus"] == gpus


def test_a_cpu_can_be_tried_out() -> None:
    """No GPU is asked for, any node will do but never one with another harvest; the summary says what it is worth."""
    observed = _observed(builders.anchor_harvest(accelerator={"product": "cpu"}, layout=None))
    decided, status, _ = _decide(observed)
    job = next(a.manifest for a in decided.actions if isinstance(a, CreateObject) and a.manifest["kind"] == "Job")
    spec = job["spec"]["template"]["spec"]
    assert spec["containers"][0]["resources"] == {"requests": {}, "limits": {}}
    assert (spec["nodeSelector"], list(spec["affinity"])) == ({}, ["podAntiAffinity"])
    assert "gpus" not in status
    kept, status, _ = _decide(
        _with(observed, jobs=(_job(observed, condition="Complete"),), anchor=builders.anchor("CPU"))
    )
    assert status["summary"].endswith("of a CPU, for trying things out: no plan for a GPU takes it")
    assert len(kept.actions) == 1


def test_user_pod_fields_pass_through() -> None:
    """Node selector, tolerations, priority, queue, volumes, pull secrets, groups; ours are never overridden."""
    pod = {
        "nodeSelector": {"pool": "gpu", "amd.com/gpu.compute-memory-partition": "cpx_nps4"},
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "priorityClassName": "high",
        "queueName": "gpus",
        "serviceAccountName": "mine",
        "imagePullSecrets": [{"name": "registry"}],
        "volumes": [{"name": "extra", "hostPath": {"path": "/data"}}],
        "volumeMounts": [{"name": "extra", "mountPath": "/data"}],
        "supplementalGroups": [109],
        "labels": {"team": "a", "inferasim.dev/owner-uid": "forged"},
    }
    decided, _, _ = _decide(_observed(builders.anchor_harvest(pod=pod)))
    made = [action.manifest for action in decided.actions if isinstance(action, CreateObject)]
    assert "ServiceAccount" not in [m["kind"] for m in made]
    job = made[-1]
    spec = job["spec"]["template"]["spec"]
    assert spec["nodeSelector"] == {"pool": "gpu", "amd.com/gpu.compute-memory-partition": "spx_nps1"}
    assert (spec["serviceAccountName"], spec["priorityClassName"]) == ("mine", "high")
    assert spec["tolerations"] == [{"key": "gpu", "operator": "Exists"}]
    assert spec["volumes"][-1] == {"name": "extra", "hostPath": {"path": "/data"}}
    assert spec["securityContext"]["supplementalGroups"] == [109]
    assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "gpus"
    assert job["spec"]["template"]["metadata"]["labels"]["inferasim.dev/owner-uid"] == "uid-1"
    assert job["spec"]["template"]["metadata"]["labels"]["team"] == "a"


def test_harvester_is_told_the_measurement() -> None:
    """docs/harvest-protocol.md: model path, no env, nothing of the cluster."""
    hub = {"name": "m", "source": {"hub": {"id": "org/m", "revision": "main"}}}
    speculation = {"method": "MTP", "draftTokens": 3, "forcedAcceptanceLengthPermille": 2500}
    manifest = builders.anchor_harvest(model=hub, signature={"kvDtype": "fp8", "speculation": speculation})
    manifest["spec"]["engine"]["env"] = [{"name": "TOKEN", "value": "x"}]
    told = render.harvester_spec(AnchorHarvest.model_validate(builders.live(manifest)))
    assert told == {
        "schema": "inferasim.dev/harvest/v1",
        "engine": {"name": "SGLang", "version": "0.5.9", "image": "example.test/sglang:0.5.9"},
        "model": {"name": "m", "path": "org/m", "revision": "main"},
        "accelerator": {"product": "MI355X"},
        "layout": {"tensorParallel": 4},
        "signature": {
            "kvDtype": "fp8",
            "speculation": {"method": "MTP", "draftTokens": 3, "forcedAcceptanceLength": 2.5},
        },
    }
    claim = render.harvester_spec(AnchorHarvest.model_validate(builders.live(builders.anchor_harvest())))
    assert claim["model"]["path"] == "/models/llama-3.1-8b"


MISTAKES = [
    ({"layout": {"tensorParallel": 4, "expertParallel": 3}}, Reason.INVALID_SPEC),
    ({"layout": {"tensorParallel": 2, "dataParallel": 2}}, Reason.INVALID_SPEC),
    ({"layout": {"tensorParallel": 4, "attentionDataParallel": 3}}, Reason.BAD_LAYOUT),
    (
        {
            "engine": {"name": "VLLM", "version": "1.0", "image": "example.test/e:1"},
            "layout": {"tensorParallel": 2, "attentionDataParallel": 4},
        },
        Reason.BAD_LAYOUT,
    ),
    ({"layout": {"tensorParallel": 16}}, Reason.TOO_MANY_GPUS),
    ({"accelerator": {"product": "MI999X"}}, Reason.UNKNOWN_ACCELERATOR),
    ({"accelerator": {"product": "H100-SXM"}}, Reason.UNKNOWN_ACCELERATOR),
    ({"accelerator": {"product": "CPU", "partition": "spx_nps1"}}, Reason.INVALID_SPEC),
    ({"accelerator": {"product": "CPU", "resourceName": "amd.com/gpu"}}, Reason.INVALID_SPEC),
    ({"pod": {"tolerations": [{"key": "amd-dcm", "operator": "Exists"}]}}, Reason.FORBIDDEN_TOLERATION),
    ({"pod": {"tolerations": [{"operator": "Exists"}]}}, Reason.FORBIDDEN_TOLERATION),
]


@pytest.mark.parametrize(("change", "reason"), MISTAKES)
def test_mistakes_make_no_job(change: dict[str, Any], reason: Reason) -> None:
    """Terminal, nothing created; a Job of a former spec is ended."""
    decided, _, found = _decide(_observed(builders.anchor_harvest(**change)))
    assert (found, decided.actions) == (reason, ())


def test_invalid_spec() -> None:
    """A spec of another version of the types."""
    _, _, reason = _decide(_observed(harvest=None, digest="", spec_problem="`spec.engine`: missing"))
    assert reason == Reason.INVALID_SPEC


STAGES = [
    ((), Reason.JOB_CREATED),
    ((_pod(node=""),), Reason.WAITING_FOR_NODE),
    (
        (_pod(node="", conditions=[{"type": "PodScheduled", "status": "False", "message": "0/3 nodes"}]),),
        Reason.WAITING_FOR_NODE,
    ),
    ((_pod(),), Reason.STARTING),
    ((_pod({"state": {"waiting": {"reason": "ImagePullBackOff"}}}, age_s=30),), Reason.STARTING),
    ((_pod({"state": {"running": {}}}, phase="Running"),), Reason.RUNNING),
]


@pytest.mark.parametrize(("pods", "reason"), STAGES)
def test_stages(pods: tuple[dict[str, Any], ...], reason: Reason) -> None:
    """What an active Job is doing, looked at again soon."""
    observed = _observed()
    progress = HarvestProgress(phase="Decode", points_done=3, points_total=9, points="3/9", eta_seconds=60)
    decided, status, found = _decide(_with(observed, jobs=(_job(observed),), pods=pods, progress=progress))
    assert (found, decided.wake_after_s, decided.actions) == (reason, 10.0, ())
    assert status["summary"] == "Decode: 3/9 points, about 60 s left"


def test_why_a_pod_is_not_made_or_does_not_start_is_told_at_once() -> None:
    """A quota on pods or GPUs speaks in events only; a registry that does not answer is told before it is given up."""
    observed = _observed()
    words = "Error creating: pods is forbidden: exceeded quota: gpus, requested: requests.amd.com/gpu=4"
    decided, status, reason = _decide(_with(observed, jobs=(_job(observed),), pod_refusal=words))
    assert (reason, decided.actions, decided.wake_after_s) == (Reason.POD_REFUSED, (), 10.0)
    assert status["conditions"][0]["message"].endswith(words)
    pod = _pod({"state": {"waiting": {"reason": "ErrImagePull", "message": "no such tag"}}}, age_s=5)
    _, status, reason = _decide(_with(observed, jobs=(_job(observed),), pods=(pod,)))
    assert reason == Reason.STARTING
    assert status["conditions"][0]["message"].endswith("container harvester: ErrImagePull: no such tag")


def test_what_somebody_deletes_under_a_running_job_is_made_again() -> None:
    """Without its progress ConfigMap the harvester could hand nothing over, and hours of GPU would be lost."""
    cluster = FakeCluster(builders.live(builders.anchor_harvest()))
    key = ObjectKey("default", "harvest")
    reconciler = Reconciler(
        Kind(AnchorHarvest.resource, observe, plan), Context(cluster), Clock(now=lambda: NOW, monotonic_s=lambda: 0.0)
    )
    reconciler.run(key)
    made = {r: item for r, item in cluster.objects.items() if r.kind not in ("AnchorHarvest", "Job")}
    assert len(made) == 5
    for reference, item in made.items():
        del cluster.objects[reference]
        reconciler.run(key)
        assert cluster.objects[reference].get("data") == item.get("data"), reference
    (job,) = [r for r in cluster.objects if r.kind == "Job"]
    del cluster.objects[job]
    reconciler.run(key)
    assert job in cluster.objects
    writes = cluster.writes
    reconciler.run(key)
    assert cluster.writes == writes


def test_a_config_map_of_somebody_else_under_the_anchors_name() -> None:
    """It is neither taken for the anchor nor overwritten; the condition says which it is."""
    cluster = FakeCluster(builders.live(builders.anchor_harvest()))
    key = ObjectKey("default", "harvest")
    reconciler = Reconciler(
        Kind(AnchorHarvest.resource, observe, plan), Context(cluster), Clock(now=lambda: NOW, monotonic_s=lambda: 0.0)
    )
    reconciler.run(key)
    anchor = _anchor("pass")
    progress = next(r for r in cluster.objects if r.name.endswith("-progress"))
    cluster.objects[progress]["data"] = {"anchor.json": anchor.to_json()}
    name = render.anchor_name("harvest", anchor)
    foreign = cluster.put(
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": name, "namespace": "default"},
            "data": {"a": "b"},
        }
    )
    reconciler.run(key)
    kept = cluster.get("v1", "ConfigMap", "default", name)
    assert kept["data"] == foreign["data"]
    live = cluster.get("inferasim.dev/v1alpha1", "AnchorHarvest", "default", "harvest")
    ready = next(c for c in live["status"]["conditions"] if c["type"] == "Ready")
    assert ready["status"] == "False"
    assert name in ready["message"]
    assert "was not made for this object" in ready["message"]


ENDED = {"exitCode": 137, "reason": "OOMKilled", "message": "line 1\n\nline 2\n"}
FAILURES: list[tuple[dict[str, Any], Reason, str]] = [
    ({"pods": (_pod({"state": {"terminated": ENDED}}),)}, Reason.CONTAINER_FAILED, "137 (OOMKilled): line 1 | line 2"),
    (
        {"pods": (_pod({"restartCount": 3, "lastState": {"terminated": ENDED}}),)},
        Reason.CONTAINER_FAILED,
        "restarted 3 times; container harvester ended with exit code 137",
    ),
    (
        {"pods": (_pod({"state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such tag"}}}, age_s=181),)},
        Reason.POD_CANNOT_START,
        "ImagePullBackOff: no such tag",
    ),
    ({"pods": (_pod({"state": {"waiting": {"reason": "InvalidImageName"}}}),)}, Reason.POD_CANNOT_START, "Invalid"),
    ({"job": ("Failed", {"reason": "DeadlineExceeded", "message": "too long"})}, Reason.DEADLINE_EXCEEDED, "too long"),
    ({"job": ("Failed", {"reason": "BackoffLimitExceeded"})}, Reason.JOB_FAILED, "BackoffLimitExceeded"),
    (
        {"job": ("Failed", {}), "pods": (_pod(phase="Failed", reason="DeadlineExceeded", message="late"),)},
        Reason.DEADLINE_EXCEEDED,
        "late",
    ),
    ({"job": ("Failed", {}), "said_failure": "EngineDied: x: log"}, Reason.HARVESTER_FAILED, "EngineDied: x: log"),
    ({"job": ("Complete", {})}, Reason.NO_ANCHOR_WRITTEN, "wrote no anchor"),
    ({"anchor_problem": "schema must be"}, Reason.ANCHOR_INVALID, "schema must be"),
]


def test_a_pod_that_was_taken_away_has_not_failed() -> None:
    """Evicted: its container was killed and the pod is Failed, but the Job makes another one."""
    taken = [{"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}]
    pod = _pod({"state": {"terminated": ENDED}}, phase="Failed", conditions=taken)
    observed = _observed()
    decided, status, reason = _decide(_with(observed, jobs=(_job(observed),), pods=(pod,)))
    assert not [action for action in decided.actions if isinstance(action, DeleteObject)]
    assert (reason, status["run"]["outcome"]) == (Reason.POD_TAKEN_AWAY, "Running")
    assert "the pod was taken away (EvictionByEvictionAPI); another goes on" in status["conditions"][0]["message"]


@pytest.mark.parametrize(("seen", "reason", "fragment"), FAILURES)
def test_failures_are_put_on_record_before_the_node_is_freed(
    seen: dict[str, Any], reason: Reason, fragment: str
) -> None:
    """First the record, then the deletion; with the record, never a new Job."""
    observed = _observed()
    condition, more = seen.pop("job", ("", {})) if "job" in seen else ("", {})
    job = _job(observed, condition=condition, **more)
    observed = _with(observed, jobs=(job,), **seen)
    decided, status, found = _decide(observed)
    assert (found, decided.actions, decided.wake_after_s) == (reason, (), 1.0)
    assert fragment in status["conditions"][0]["message"]
    assert status["run"]["outcome"] == "Failed"
    assert isinstance(decided.status, AnchorHarvestStatus)
    recorded = _with(observed, status=decided.status)
    after, again, _ = _decide(recorded)
    assert again == status
    deletions = [action for action in after.actions if isinstance(action, DeleteObject)]
    assert len(deletions) == (0 if condition else 1)
    gone, _, _ = _decide(_with(recorded, jobs=(), pods=()))
    assert gone.actions == ()


def _anchor(verdict: str) -> Any:
    provenance = {
        "source": "harvested",
        "realWeights": True,
        "prefixCachingOff": True,
        "checks": [{"name": "prefix-hits", "verdict": verdict, "detail": "3 % of tokens were hits"}],
    }
    return builders.anchor(provenance=provenance)


@pytest.mark.parametrize(
    ("verdict", "label", "reason"),
    [
        ("pass", "true", Reason.HARVESTED),
        ("flag", "true", Reason.HARVESTED),
        ("refuse", "refused", Reason.CHECKS_REFUSED),
    ],
)
def test_anchor_is_kept_and_judged(verdict: str, label: str, reason: Reason) -> None:
    """A refused anchor is kept under a label that no plan selects; the end is on record and survives everything."""
    observed = _observed()
    beside = {"expert-load.json": "{}"}
    last = HarvestProgress(phase="Checking", points_done=9, points_total=9, points="9/9", eta_seconds=3)
    observed = _with(
        observed, jobs=(_job(observed, condition="Complete"),), anchor=_anchor(verdict), beside=beside, progress=last
    )
    decided, status, found = _decide(observed)
    (action,) = decided.actions
    assert isinstance(action, CreateObject)
    assert action.manifest["metadata"]["labels"]["inferasim.dev/anchor"] == label
    assert action.manifest["immutable"] is True
    assert sorted(action.manifest["data"]) == ["anchor.json", "expert-load.json"]
    assert (found, status["run"]["outcome"]) == (reason, "Succeeded")
    assert status["progress"] == {"phase": "Done", "pointsDone": 9, "pointsTotal": 9, "points": "9/9"}
    assert isinstance(decided.status, AnchorHarvestStatus)
    # The Job is cleaned up, then somebody deletes the progress too: the same status, and no Job.
    for change in ({"jobs": (), "anchor_is_kept": True}, {"jobs": (), "anchor": None}):
        after, again, _ = _decide(_with(observed, status=decided.status, **change))
        assert (after.actions, again) == ((), status)


def test_edit_ends_the_old_job_and_suspend_pauses() -> None:
    """An active Job of a former spec is deleted; suspending touches one field, resuming undoes it."""
    old = _observed(builders.anchor_harvest(layout={"tensorParallel": 2}))
    observed = _observed()
    decided, _, _ = _decide(_with(observed, jobs=(_job(old),)))
    assert isinstance(decided.actions[0], DeleteObject)
    assert decided.actions[0].reference.name == _job(old)["metadata"]["name"]
    suspended = _observed(builders.anchor_harvest(suspend=True))
    assert suspended.digest == observed.digest
    nothing, _, reason = _decide(suspended)
    assert (nothing.actions, reason) == ((), Reason.SUSPENDED)
    paused, _, _ = _decide(_with(suspended, jobs=(_job(suspended),)))
    (action,) = paused.actions
    assert isinstance(action, ApplyObject)
    assert action.manifest["spec"] == {"suspend": True}
    resumed, _, _ = _decide(_with(observed, jobs=(_job(observed, suspend=True),)))
    (action,) = resumed.actions
    assert isinstance(action, ApplyObject)
    assert action.manifest["spec"] == {"suspend": False}
    queued = _observed(builders.anchor_harvest(pod={"queueName": "q"}))
    held, _, reason = _decide(_with(queued, jobs=(_job(queued, suspend=True),)))
    assert (held.actions, reason) == ((), Reason.WAITING_FOR_NODE)


def test_engine_reaches_a_fixed_point() -> None:
    """Through the whole engine on a fake cluster: the second pass writes nothing, and so does a new process's first."""
    cluster = FakeCluster(builders.live(builders.anchor_harvest()))
    key = ObjectKey("default", "harvest")
    for _ in range(2):
        reconciler = Reconciler(
            Kind(AnchorHarvest.resource, observe, plan),
            Context(cluster),
            Clock(now=lambda: NOW, monotonic_s=lambda: 0.0),
        )
        reconciler.run(key)
        reconciler.run(key)
        assert cluster.writes == 7  # six objects and the status
    assert [event["reason"] for event in cluster.events].count("Created") == 6


def test_every_reason_occurs() -> None:
    """All reasons are produced by the tests above (this one runs last in the file)."""
    assert {reason.value for reason in Reason} - SEEN_REASONS == set()
