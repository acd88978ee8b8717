"""ServingPlan's decision, as tables: what is observed → what is said and done."""

from __future__ import annotations

import datetime
import hashlib
import json
from dataclasses import replace
from typing import Any

import pytest

from inferasim_operator import convert, packing
from inferasim_operator.api.v1alpha1.servingplan import ServingPlan
from inferasim_operator.engine.actions import ApplyObject, CreateObject, DeleteObject, Plan, Reference
from inferasim_operator.engine.compute import Computation, Failure, Phase
from inferasim_operator.kinds.servingplan import inputs, render, search_job, sharding
from inferasim_operator.kinds.servingplan.checks import Reason, failure_finding
from inferasim_operator.kinds.servingplan.observe import AgentKey, AnchorObject, Ledger, ModelConfig, Observed, Trace
from inferasim_operator.kinds.servingplan.observe_nodes import Nodes, resolved
from inferasim_operator.kinds.servingplan.observe_search import SearchJob
from inferasim_operator.kinds.servingplan.plan import plan
from tests import builders
from tests.conditions import problems

NOW = datetime.datetime(2026, 11, 30, 12, 0, 0, tzinfo=datetime.UTC)
ANCHOR = AnchorObject("anchor-a", accelerator="MI355X", content={"schema": "…"})
SEEN_REASONS: set[str] = set()


def _observed(manifest: dict[str, Any] | None = None, **changes: Any) -> Observed:
    raw = builders.live(manifest or builders.serving_plan())
    fields: dict[str, Any] = {
        "plan": ServingPlan.model_validate(raw),
        "anchors": (ANCHOR,),
        "request": {"spec": raw["spec"]},
        "digest": "d" * 40,
    }
    return Observed(raw, **(fields | changes))


def _decide(observed: Observed) -> tuple[Plan, dict[str, Any], dict[str, str]]:
    """The plan, its status as JSON, and Ready's reason by condition type; always a legal set of conditions."""
    decided = plan(observed, NOW)
    status = decided.status.to_dict()
    assert problems(status, generation=1) == []
    reasons = {c["type"]: c["reason"] for c in status["conditions"]}
    SEEN_REASONS.update(reasons.values())
    again = plan(observed, NOW + datetime.timedelta(hours=1))
    live = {**observed.raw, "status": status}
    assert plan(_replace_raw(observed, live), NOW + datetime.timedelta(hours=1)).status == decided.status, "no rewrite"
    assert (again.actions, again.computation) == (decided.actions, decided.computation)
    return decided, status, reasons


def _replace_raw(observed: Observed, raw: dict[str, Any]) -> Observed:
    return Observed(**{**{f: getattr(observed, f) for f in observed.__dataclass_fields__}, "raw": raw})


def _job(*, suspended: bool = False, **ended: str) -> SearchJob:
    conditions = [{"type": type_, "status": "True", "message": text} for type_, text in ended.items()]
    job = {
        "metadata": {"name": "plan-job", "namespace": "default", "uid": "uid-job"},
        "spec": {"suspend": suspended},
        "status": {"conditions": conditions},
    }
    return SearchJob(2, "example.test/op:1", job=job)


def _shard(index: int, *, is_done: bool) -> dict[str, Any]:
    found: dict[str, Any] = {"metadata": {"name": f"plan-job-{index}"}, "data": {"inputDigest": "d" * 40}}
    if is_done:
        found["data"] |= {"candidatesScored": "7", "candidatesTotal": "20"}
        found["binaryData"] = {search_job.SHARD_KEY: f"shard-{index}"}
    return found


STALLED: dict[str, tuple[dict[str, Any], Reason, str]] = {
    "invalid": ({"plan": None, "spec_problem": "`spec.load`: missing"}, Reason.INVALID_SPEC, "`spec.load`: missing"),
    "no-config": (
        {"model_config": ModelConfig(is_missing=True, problem="ConfigMap m does not exist")},
        Reason.MODEL_CONFIG_NOT_FOUND,
        "ConfigMap m does not exist",
    ),
    "bad-config": (
        {"model_config": ModelConfig(problem="ConfigMap m: not JSON")},
        Reason.MODEL_CONFIG_INVALID,
        "not JSON",
    ),
    "no-trace": ({"trace": Trace(problem="ConfigMap t has no key x")}, Reason.TRACE_NOT_FOUND, "has no key x"),
    "no-anchor": ({"anchors": ()}, Reason.NO_ANCHOR, "run an AnchorHarvest"),
    "bad-anchor": ({"anchors": (AnchorObject("a", problem="no key"),)}, Reason.ANCHOR_INVALID, "a: no key"),
    "other-anchor": (
        {"anchors": (AnchorObject("a", accelerator="MI300X", content={}),)},
        Reason.NO_ANCHOR_FOR_ACCELERATOR,
        "no anchor for MI355X: the namespace has anchors for MI300X only",
    ),
    "no-list": (
        {"nodes": Nodes(may_list=False, problem="may not list nodes"), "request": None, "digest": ""},
        Reason.DISCOVERY_NOT_ALLOWED,
        "may not list nodes",
    ),
    "no-nodes": ({"nodes": Nodes(problem="no node with MI355X")}, Reason.NO_NODES_FOUND, "no node with"),
    "no-image": ({"search": SearchJob(4, "")}, Reason.NO_WORKER_IMAGE, "does not know its own image"),
    "job-failed": ({"search": _job(Failed="indexes failed: 1")}, Reason.JOB_FAILED, "without a result: 0, 1"),
    "no-shards": ({"search": _job(Complete="done")}, Reason.SHARDS_MISSING, "set `rerun`"),
    "bad-result": ({"result_problem": "ConfigMap x: holds no answer"}, Reason.RESULT_INVALID, "holds no answer"),
}


@pytest.mark.parametrize("case", STALLED)
def test_findings_stall_without_work(case: str) -> None:
    """Each finding: terminal, its own reason and text, nothing computed or written."""
    changes, reason, fragment = STALLED[case]
    decided, status, reasons = _decide(_observed(**changes))
    assert (reasons["Ready"], reasons["Stalled"]) == (reason, reason)
    assert fragment in status["conditions"][0]["message"]
    assert (decided.actions, decided.computation) == ((), None)


@pytest.mark.parametrize("case", ["no-anchor", "bad-anchor", "other-anchor"])
def test_a_plan_waits_for_a_harvest_under_way(case: str) -> None:
    """Nobody needs to act, so the plan is not stalled; what it lacks stays in its own condition."""
    changes, reason, _ = STALLED[case]
    decided, status, reasons = _decide(_observed(**changes, harvests=("llama-tp2",)))
    assert reasons == {"Ready": "WaitingForHarvest", "Reconciling": "WaitingForHarvest", "AnchorsResolved": reason}
    assert "AnchorHarvest llama-tp2" in status["conditions"][0]["message"]
    assert (decided.actions, decided.computation) == ((), None)


AGENT = {"method": "Agent", "agent": {"url": "https://llm.example.test/v1", "model": "m"}}


@pytest.mark.parametrize(
    ("search", "key", "says"),
    [
        ({"method": "Agent"}, None, "names no chat model; method Seeds"),
        (AGENT, AgentKey(problem="Secret llm does not exist"), "spec.search.agent.secret: Secret llm does not exist"),
    ],
)
def test_an_agent_without_endpoint_or_key_stalls(search: dict[str, Any], key: AgentKey | None, says: str) -> None:
    decided, status, reasons = _decide(_observed(builders.serving_plan(search=search), agent_key=key))
    assert (decided.wake_after_s is not None) == (key is not None), "a Secret that comes makes no event"
    assert (reasons["Ready"], reasons["Stalled"]) == (Reason.AGENT_NOT_CONFIGURED, Reason.AGENT_NOT_CONFIGURED)
    assert says in status["conditions"][0]["message"]
    assert (decided.actions, decided.computation) == ((), None)


def test_an_agents_key_goes_to_the_computation_and_nowhere_else() -> None:
    key = "sk-very-secret"
    observed = _observed(builders.serving_plan(search=AGENT), agent_key=AgentKey(key))
    decided, status, reasons = _decide(observed)
    assert reasons["Ready"] == Reason.SEARCHING
    assert decided.computation is not None
    assert decided.computation.request["agentKey"] == key
    assert observed.request is not None
    assert "agentKey" not in observed.request, "so the digest does not know it"
    assert key not in json.dumps(status) + repr(observed)


def test_a_record_of_the_computation_is_written_down_and_handed_back() -> None:
    """What it asks to be kept becomes a ConfigMap, without an event; once that is seen, it is told so, and begins with
    it in another life; a ConfigMap that is none of this question stops the plan instead of asking twice."""
    search = builders.serving_plan(search=AGENT)
    running = Computation("d" * 40, Phase.RUNNING, record="line 1\n")
    decided, _, reasons = _decide(_observed(search, computation=running))
    (action,) = decided.actions
    assert isinstance(action, ApplyObject)
    assert not action.is_announced
    assert render.read_ledger(action.manifest, "d" * 40) == "line 1\n"
    assert decided.computation is not None
    assert decided.computation.kept is None

    decided, _, _ = _decide(_observed(search, computation=running, ledger=Ledger("line 1\n")))
    assert decided.actions == ()
    assert decided.computation is not None
    assert decided.computation.kept == decided.computation.request["resume"] == "line 1\n"

    decided, _, reasons = _decide(_observed(search, ledger=Ledger(problem="ConfigMap x: holds no ledger")))
    assert reasons["Stalled"] == Reason.RESULT_INVALID
    assert (decided.actions, decided.computation) == ((), None)


def test_the_ledger_lies_beside_the_answer_and_a_failing_model_is_told() -> None:
    record = {"method": "Agent", "budget": 9, "trials": 3, "refused": 1, "modelRequests": 8}
    record["modelFailures"] = ["Timeout: none"]
    result = builders.plan_result() | {"search": record, "ledger": '{"kind":"search"}\n'}
    done = Computation("d" * 40, Phase.DONE, result=result)
    decided, status, _ = _decide(_observed(builders.serving_plan(search=AGENT), computation=done))
    (made,) = [action.manifest for action in decided.actions if isinstance(action, CreateObject)]
    assert packing.unpack(made["binaryData"][render.LEDGER_KEY]) == result["ledger"]
    assert "ledger" not in json.loads(made["data"][render.RESULT_KEY])
    assert status["search"] == record
    assert "the language model failed, seeds and local search decided: Timeout" in status["conditions"][0]["message"]


def test_a_demand_of_another_model_that_is_not_served_is_told() -> None:
    allocation = {"tier": "bulk", "model": "Other", "demandTokensPerSecond": 9, "servedTokensPerSecond": 0, "gpus": 0}
    mix = {"gpuBudget": 8, "gpus": 8, "demandTokensPerSecond": 9, "servedTokensPerSecond": 0, "boundTokensPerSecond": 0}
    result = builders.plan_result(mix=mix | {"allocations": [allocation | {"unserved": "memory: TP8: too large"}]})
    _, status, reasons = _decide(_observed(result=result))
    assert reasons["Feasible"] == Reason.PARTLY_FEASIBLE
    assert any("Other bulk: memory: TP8" in condition["message"] for condition in status["conditions"])
    assert status["mix"]["gpus"] == 8


def test_how_trials_are_searched_for_is_part_of_the_question_and_how_a_sweep_runs_is_not() -> None:
    def digest(**changes: Any) -> str:
        spec = ServingPlan.model_validate(builders.live(builders.serving_plan(**changes))).spec
        return inputs.input_digest(inputs.question(spec, {}, None), rerun=None, version="1")

    plain = digest()
    assert digest(search={"shards": 4}) == digest(search={"method": "Sweep"}) == plain
    seeds = {digest(search={"method": "Seeds"}), digest(search={"method": "Seeds", "budget": 9}), digest(search=AGENT)}
    assert len(seeds | {plain}) == 4


def test_a_large_search_is_a_job_made_once() -> None:
    """No Job: its objects, the Job last, one ConfigMap per shard, rights to patch those alone. A Job: nothing."""
    manifest = builders.serving_plan(pod={"queueName": "planning", "nodeSelector": {"pool": "cpu"}})
    search = SearchJob(2, "example.test/op:1")
    decided, status, reasons = _decide(_observed(manifest, search=search))
    assert reasons == {"Ready": Reason.SEARCHING, "Reconciling": Reason.SEARCHING}
    made = [action.manifest for action in decided.actions if isinstance(action, CreateObject)]
    assert [found["kind"] for found in made] == [
        "ServiceAccount", "Role", "RoleBinding", "ConfigMap", "ConfigMap", "ConfigMap", "Job",
    ]  # fmt: skip
    shards = [found["metadata"]["name"] for found in made[4:6]]
    assert made[1]["rules"] == [
        {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": shards, "verbs": ["patch"]}
    ]
    job = made[-1]
    assert (job["spec"]["completionMode"], job["spec"]["completions"]) == ("Indexed", 2)
    assert job["spec"]["backoffLimitPerIndex"] == search_job.RETRIES_PER_SHARD
    assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "planning"
    pod = job["spec"]["template"]["spec"]
    assert pod["nodeSelector"] == {"pool": "cpu"}
    assert pod["containers"][0]["image"] == "example.test/op:1"
    named = pod["containers"][0]["args"][-1].replace("$(JOB_COMPLETION_INDEX)", "1")
    assert named == f"--config-map=default/{shards[1]}"
    assert all(len(name) <= 63 for name in [*shards, job["metadata"]["name"]])
    assert decided.computation is None, "nothing runs in the operator"
    decided, status, _ = _decide(_observed(search=replace(_job(), shards=(_shard(0, is_done=True),), done=(0,))))
    assert decided.actions == ()
    assert status["progress"] == {"candidatesScored": 7, "candidatesTotal": 20, "shards": "1/2"}


def test_shards_that_are_done_are_merged_whatever_becomes_of_the_job() -> None:
    """All shards: the question and their results are handed to the merge, under the digest of the question."""
    shards = (_shard(0, is_done=True), _shard(1, is_done=True))
    for search in (_job(), _job(Complete="done"), _job(Failed="too late"), SearchJob(2, "image")):
        decided, _, reasons = _decide(_observed(search=replace(search, shards=shards, done=(0, 1))))
        assert reasons["Ready"] == Reason.SEARCHING
        assert decided.computation is not None
        assert decided.computation.digest == "d" * 40
        assert decided.computation.request["shards"] == ["shard-0", "shard-1"]
        assert decided.actions == ()


def test_suspending_a_search_pauses_its_job_and_kueue_keeps_its_own() -> None:
    """Suspend: the Job is paused. Resume: it goes on, unless it waits in a queue, which is for Kueue to say."""
    paused = builders.serving_plan(suspend=True)
    (pause,) = _decide(_observed(paused, search=_job()))[0].actions
    assert isinstance(pause, ApplyObject)
    assert pause.manifest["spec"] == {"suspend": True}
    assert _decide(_observed(paused, search=_job(suspended=True)))[0].actions == ()
    (resume,) = _decide(_observed(search=_job(suspended=True)))[0].actions
    assert isinstance(resume, ApplyObject)
    assert resume.manifest["spec"] == {"suspend": False}
    queued = builders.serving_plan(pod={"queueName": "planning"})
    decided, _, reasons = _decide(_observed(queued, search=_job(suspended=True)))
    assert (decided.actions, reasons["Ready"]) == ((), Reason.QUEUED)


def test_a_pod_in_trouble_is_shown_while_the_job_goes_on() -> None:
    """An image that cannot be pulled, and the last words of a pod that is made again."""
    for state, fragment in (
        ({"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}, "ImagePullBackOff: no such image"),
        ({"terminated": {"exitCode": 137, "message": "a\nKilled"}}, "exit code 137: a | Killed"),
    ):
        pod = {"metadata": {}, "status": {"containerStatuses": [{"name": "search", "state": state}]}}
        _, status, _ = _decide(_observed(search=replace(_job(), pods=(pod,))))
        assert fragment in status["conditions"][0]["message"]


def test_what_no_search_needs_is_cleaned_up() -> None:
    """Jobs and shards of former questions go, with the answer at hand or on the way to it."""
    old = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "o", "namespace": "default", "uid": "uid-o"}}
    for changes in ({}, {"result": builders.plan_result()}, {"anchors": ()}):
        decided = plan(_observed(leftovers=(old,), **changes), NOW)
        assert [action for action in decided.actions if isinstance(action, DeleteObject)] == [
            DeleteObject(Reference.of(old), "uid-o")
        ]


def test_how_a_search_is_run_is_no_part_of_its_question() -> None:
    """Shards and pod fields change no digest; discovery puts the count in."""
    one = ServingPlan.model_validate(builders.live(builders.serving_plan())).spec
    two = ServingPlan.model_validate(
        builders.live(builders.serving_plan(search={"shards": 3}, pod={"priorityClassName": "low"}))
    ).spec
    assert inputs.question(one, {}, None) == inputs.question(two, {}, None)
    found = ServingPlan.model_validate(
        builders.live(builders.serving_plan(cluster={"accelerator": "MI355X", "discovery": {}}))
    ).spec
    assert resolved(found, Nodes(1, 8)).cluster == one.cluster


def test_small_searches_stay_in_the_operator_and_large_ones_do_not() -> None:
    """By hand: TP1, 2, 4, 8 with 1, 4, 9, 16 layouts; 1 client has 1 replica count, 4 clients on 8 GPUs have 3."""

    def spec(**changes: Any) -> Any:
        return ServingPlan.model_validate(builders.live(builders.serving_plan(**changes))).spec

    # 8 GPUs: 4 clients on at most 8, 4, 2, 1 replicas have 3, 3, 2, 1 counts; and 1 client has 1 each.
    expected = 1 * (1 + 3) + 4 * (1 + 3) + 9 * (1 + 2) + 16 * (1 + 1)
    assert sharding.candidates_estimate(spec(load={"concurrencies": [1, 4]})) == expected
    assert sharding.shards_count(spec()) == 1
    wide = spec(cluster={"accelerator": "MI355X", "nodes": 64}, load={"concurrencies": list(range(64, 4096, 64))})
    assert 1 < sharding.shards_count(wide) <= sharding.MOST_SHARDS
    assert sharding.shards_count(spec(search={"shards": 7})) == 7
    assert sharding.shards_count(spec(search={"shards": 7}, load={"requestsPerMinute": 60})) == 7
    many = {"cluster": {"accelerator": "MI355X", "nodes": 512}, "load": {"requestsPerMinute": 60}}
    assert sharding.pods_count(spec(**many)) > 1
    assert sharding.pods_count(spec(search={"method": "Seeds"}, cluster=many["cluster"])) == 0
    assert sharding.pods_count(spec()) == 0
    assert sharding.pods_count(spec(results={"claim": {"claimName": "tables"}})) == 1, "the operator mounts no volumes"


def test_a_question_that_no_config_map_holds_is_told() -> None:
    """A megabyte of noise as a trace: packed it stays larger than an object of etcd."""
    noise = hashlib.shake_256(b"noise").hexdigest(1_100_000)
    observed = _observed(search=SearchJob(2, "example.test/op:1"), request={"trace": {"data": noise}})
    decided, status, reasons = _decide(observed)
    assert reasons["Stalled"] == Reason.QUESTION_TOO_LARGE
    assert "put its trace on a volume" in status["conditions"][0]["message"]
    assert decided.actions == ()


def test_volumes_of_a_search_reach_its_pods() -> None:
    """A trace's claim read-only under the folder of claims, the results' claim, a folder named as the answer is."""
    manifest = builders.serving_plan(
        workload={"trace": {"claim": {"claimName": "traces", "path": "2026/week.jsonl"}}},
        results={"claim": {"claimName": "tables", "path": "plans"}},
    )
    decided, status, _ = _decide(_observed(manifest, search=SearchJob(1, "example.test/op:1")))
    job = [action.manifest for action in decided.actions if isinstance(action, CreateObject)][-1]
    pod = job["spec"]["template"]["spec"]
    volumes = {volume["name"]: volume.get("persistentVolumeClaim") for volume in pod["volumes"]}
    assert volumes["inferasim-trace"] == {"claimName": "traces", "readOnly": True}
    assert volumes["inferasim-results"] == {"claimName": "tables", "readOnly": False}
    (container,) = pod["containers"]
    mounts = {mount["name"]: (mount["mountPath"], mount.get("readOnly")) for mount in container["volumeMounts"]}
    assert mounts["inferasim-trace"] == ("/var/inferasim/claims/traces", True)
    assert mounts["inferasim-results"] == ("/var/inferasim/results", None)
    assert "--claims=/var/inferasim/claims" in container["args"]
    assert "--table=/var/inferasim/results/plans/plan-dddddddddddddddd" in container["args"]
    _, status, _ = _decide(_observed(manifest, result=builders.plan_result()))
    assert status["table"] == "tables/plans/plan-dddddddddddddddd"


def test_the_first_finding_wins() -> None:
    """The order of the chain is its priority."""
    _, _, reasons = _decide(_observed(anchors=(), model_config=ModelConfig(is_missing=True, problem="missing")))
    assert reasons["Ready"] == Reason.MODEL_CONFIG_NOT_FOUND


def test_simulate_needs_no_anchor() -> None:
    """Only the anchored mode demands measurements."""
    for mode in ("Simulate", "Auto"):
        _, _, reasons = _decide(_observed(builders.serving_plan(anchors={"mode": mode}), anchors=()))
        assert reasons["Ready"] == Reason.SEARCHING


def test_search_is_wanted_until_its_answer_is_kept() -> None:
    """Waiting and running: wanted, in progress. Done: the ConfigMap is created and the status tells the answer."""
    decided, status, reasons = _decide(_observed())
    assert decided.computation is not None
    assert decided.computation.digest == "d" * 40
    assert reasons == {"Ready": Reason.SEARCHING, "Reconciling": Reason.SEARCHING}
    running = Computation("d" * 40, Phase.RUNNING, progress={"scored": 7, "total": 20, "best": "TP1 x8"})
    decided, status, _ = _decide(_observed(computation=running))
    assert status["progress"] == {"candidatesScored": 7, "candidatesTotal": 20, "best": "TP1 x8"}
    done = Computation("d" * 40, Phase.DONE, result=builders.plan_result())
    decided, status, reasons = _decide(_observed(computation=done))
    (action,) = decided.actions
    assert isinstance(action, CreateObject)
    assert reasons == {
        "Ready": Reason.PLAN_FOUND,
        "AnchorsResolved": Reason.ANCHORS_APPLY,
        "Feasible": Reason.TIERS_MET,
    }
    assert decided.computation is not None, "wanted until it is seen kept"
    kept, kept_status, _ = _decide(_observed(result=builders.plan_result()))
    assert (kept.actions, kept.computation) == ((), None)
    assert kept_status == status
    assert status["summary"] == "bulk: SGLang TP1 x8 (8 GPUs), 870 tok/s/GPU"


def test_the_summary_names_a_configuration_once() -> None:
    """Two tiers often get the same one; `kubectl get` has one line for it, and one GPU is no `GPUs`."""
    result = builders.plan_result()
    (bulk,) = result["selected"]
    small = {**bulk, "tier": "interactive", "gpus": 1}
    answer = convert.plan_answer({**result, "selected": [small, {**bulk, "tier": "responsive"}, bulk]})
    assert convert.plan_summary(answer) == (
        "interactive: SGLang TP1 x8 (1 GPU), 870 tok/s/GPU; responsive, bulk: SGLang TP1 x8 (8 GPUs), 870 tok/s/GPU"
    )


def test_infeasible_and_partly_feasible() -> None:
    """No tier met is terminal; some met is an answer that says which are not."""
    limit = {"tier": "realtime", "limit": "tpot", "detail": "9.1 ms exceeds 6.7 ms"}
    nothing = builders.plan_result(selected=[], feasible=False, binding=[limit])
    _, status, reasons = _decide(_observed(result=nothing))
    assert reasons == {"Ready": Reason.INFEASIBLE, "Stalled": Reason.INFEASIBLE, "Feasible": Reason.INFEASIBLE}
    assert "realtime: tpot: 9.1 ms exceeds 6.7 ms" in status["conditions"][0]["message"]
    _, status, reasons = _decide(_observed(result=builders.plan_result(binding=[limit])))
    assert (reasons["Ready"], reasons["Feasible"]) == (Reason.PLAN_FOUND, Reason.PARTLY_FEASIBLE)
    simulated = builders.plan_result()
    simulated["selected"][0]["source"] = {"mode": "Simulate"}
    _, _, reasons = _decide(_observed(result=simulated))
    assert reasons["AnchorsResolved"] == Reason.SIMULATED


def test_suspend_starts_nothing_and_keeps_what_is_there() -> None:
    """Suspended: idle without an answer, Ready with one."""
    suspended = builders.serving_plan(suspend=True)
    decided, _, reasons = _decide(_observed(suspended))
    assert (decided.computation, reasons) == (None, {"Ready": Reason.SUSPENDED})
    _, _, reasons = _decide(_observed(suspended, result=builders.plan_result()))
    assert reasons["Ready"] == Reason.PLAN_FOUND


FAILURES = [
    ("UnknownNameError/InputError/InferasimError", "model.name", Reason.UNKNOWN_MODEL),
    ("UnknownNameError/InputError/InferasimError", "cluster.accelerator", Reason.UNKNOWN_NAME),
    ("InputError/InferasimError", "engines[0].layouts[0]", Reason.BAD_LAYOUT),
    ("InputError/InferasimError", "layout.tensor_parallel", Reason.BAD_LAYOUT),
    ("InputError/InferasimError", "search.agent", Reason.AGENT_NOT_INSTALLED),
    ("FormatError/InputError/InferasimError", "signature", Reason.INVALID_INPUT),
    ("NoAnchorError/InferasimError", "", Reason.NO_ANCHOR),
    ("InfeasibleError/InferasimError", "", Reason.INFEASIBLE),
    ("ComputationTimeout", "", Reason.COMPUTATION_TIMED_OUT),
    ("WorkerDied", "", Reason.COMPUTATION_FAILED),
    ("ZeroDivisionError/ArithmeticError", "", Reason.COMPUTATION_FAILED),
]


@pytest.mark.parametrize(("error", "field", "reason"), FAILURES)
def test_failed_computations_say_why(error: str, field: str, reason: Reason) -> None:
    """By the class of the error; terminal; stays wanted, so that its failure is remembered and not run again."""
    failure = Failure(error, "the text", field)
    failed = Computation("d" * 40, Phase.FAILED, failure=failure)
    decided, status, reasons = _decide(_observed(computation=failed))
    assert (reasons["Ready"], reasons["Stalled"]) == (reason, reason)
    assert "the text" in status["conditions"][0]["message"]
    assert decided.computation is not None
    assert failure_finding(failure).reason is reason


def test_answer_of_another_shape_is_not_shown() -> None:
    """A result that the types refuse is said to be one."""
    _, status, reasons = _decide(_observed(result=builders.plan_result(selected=[{"tier": "x"}])))
    assert reasons["Ready"] == Reason.RESULT_INVALID
    assert "selected" not in status


def test_results_survive_packing() -> None:
    """Small and large answers come back whole; the bytes are the same each time; one too large is refused."""
    owner = builders.live(builders.serving_plan())
    for rows in (0, 40_000):
        result = builders.plan_result(front=[{"row": n} for n in range(rows)])
        kept = render.result_config_map(owner, "d" * 40, result)
        assert kept == render.result_config_map(owner, "d" * 40, json.loads(json.dumps(result)))
        assert render.read_result(kept, "d" * 40) == result
        assert ("binaryData" in kept) == (rows > 0)
        assert len(json.dumps(kept)) < 1_048_576
    with pytest.raises(ValueError, match="no answer to this question"):
        render.read_result(kept, "e" * 40)
    noise = hashlib.shake_256(b"noise").hexdigest(1_100_000)  # two digits a byte: packs to half its length
    done = Computation("d" * 40, Phase.DONE, result=builders.plan_result(front=[{"noise": noise}]))
    _, _, reasons = _decide(_observed(computation=done))
    assert reasons["Ready"] == Reason.RESULT_TOO_LARGE


def test_digest_is_of_what_the_answer_depends_on() -> None:
    """Suspending does not ask again; a rerun, an anchor, a version or a field does."""
    plain = ServingPlan.model_validate(builders.live(builders.serving_plan())).spec
    paused = ServingPlan.model_validate(builders.live(builders.serving_plan(suspend=True))).spec

    def digest(spec: Any = plain, anchors: Any = None, rerun: str | None = None, version: str = "1") -> str:
        return inputs.input_digest(inputs.question(spec, anchors or {}, None), rerun=rerun, version=version)

    assert digest(paused) == digest()
    other = ServingPlan.model_validate(builders.live(builders.serving_plan(load={"concurrencies": [2]}))).spec
    assert len({digest(), digest(rerun="a"), digest(anchors={"a": {}}), digest(version="2"), digest(other)}) == 5


def test_every_reason_occurs() -> None:
    """All reasons are produced by the tests above (this one runs last in the file)."""
    assert {reason.value for reason in Reason} - SEEN_REASONS == set()
