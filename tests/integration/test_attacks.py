"""What people and other controllers do to the operator's objects, on the real API server."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import yaml

from e2e.errors import KubectlError
from tests import builders
from tests.conditions import assert_conditions
from tests.integration.harness import Cluster, Object, Operator, until
from tests.integration.recording import Recorder, seconds

MakeOperator = Callable[..., Operator]
FIGHT_S = 30.0
RESULTS = ("configmaps", "-l", "inferasim.dev/role=plan-result")


def _ready(cluster: Cluster, kind: str, name: str) -> Object:
    """The Ready condition now; empty while there is none."""
    conditions = cluster.get(kind, name).get("status", {}).get("conditions", ())
    return next((c for c in conditions if c["type"] == "Ready"), {})


def _until_said(cluster: Cluster, kind: str, name: str, text: str) -> Object:
    """Until Ready is not true and its message holds `text`."""
    until(lambda: text in _ready(cluster, kind, name).get("message", ""), f"{kind} {name} says {text!r}")
    found = _ready(cluster, kind, name)
    assert found["status"] == "False"
    assert_conditions(cluster.get(kind, name))
    return found


def _quota(resource: str, count: int) -> Object:
    hard = {f"count/{resource}": str(count)}
    return {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "tight"}, "spec": {"hard": hard}}


def _until_quota_counts(cluster: Cluster, resource: str) -> None:
    """Until the quota controller has counted: before that nothing is refused."""
    until(
        lambda: f"count/{resource}" in cluster.get("resourcequota", "tight").get("status", {}).get("used", {}), "quota"
    )


def test_an_object_made_anew_under_its_name(cluster: Cluster, operator: MakeOperator, record: Recorder) -> None:
    """Deleted and made again at once, three times: the last one ends with an answer of its own uid."""
    op = operator()
    op.start()
    cluster.apply(builders.anchor_config_map("anchor-a"), builders.serving_plan())
    cluster.wait("servingplan", "plan", "Ready")
    for _ in range(3):
        cluster.kubectl("delete", "servingplan", "plan", "--wait=false")
        cluster.apply(builders.serving_plan())
    uid = cluster.get("servingplan", "plan")["metadata"]["uid"]

    def is_whole() -> bool:
        owners = [kept["metadata"]["ownerReferences"][0]["uid"] for kept in cluster.list(*RESULTS)]
        return owners == [uid] and _ready(cluster, "servingplan", "plan").get("status") == "True"

    took_s = seconds(lambda: until(is_whole, "the last one has an answer of its own", timeout_s=180))
    assert_conditions(cluster.get("servingplan", "plan"))
    assert "Traceback" not in op.text
    record.row(
        "an object deleted and made anew under its name, three times",
        outcome="children of the former one are never taken over; the last one gets its own answer",
        measured=f"whole after {took_s:.1f} s (the garbage collector's rounds)",
    )


def test_a_quota_that_refuses_jobs(cluster: Cluster, operator: MakeOperator, record: Recorder) -> None:
    """The condition holds the server's words; with the quota gone the Job is made, without an edit."""
    operator().start()
    cluster.apply(_quota("jobs.batch", 0))
    _until_quota_counts(cluster, "jobs.batch")
    cluster.apply(builders.anchor_harvest())
    assert _until_said(cluster, "anchorharvest", "harvest", "exceeded quota: tight")["reason"] == "Forbidden"
    cluster.kubectl("delete", "resourcequota", "tight")
    took_s = seconds(lambda: until(lambda: len(cluster.list("jobs")) == 1, "the Job"))
    record.row(
        "a quota refuses the Job of a harvest",
        outcome="Ready=False `Forbidden` with the quota's name; tried again with backoff",
        measured=f"made {took_s:.1f} s after the quota is gone",
    )


def test_a_quota_that_refuses_the_answer(cluster: Cluster, operator: MakeOperator) -> None:
    """A plan whose answer cannot be kept says so, and keeps it when there is room."""
    operator().start()
    cluster.apply(builders.anchor_config_map("anchor-a"))
    cluster.apply(_quota("configmaps", 0))  # those that are there stay
    _until_quota_counts(cluster, "configmaps")
    cluster.apply(builders.serving_plan())
    _until_said(cluster, "servingplan", "plan", "exceeded quota: tight")
    assert cluster.list(*RESULTS) == []
    cluster.kubectl("delete", "resourcequota", "tight")
    cluster.wait("servingplan", "plan", "Ready")
    assert len(cluster.list(*RESULTS)) == 1


def test_an_admission_policy_that_denies(cluster: Cluster, operator: MakeOperator) -> None:
    """The policy's words stand in the condition, and no hot loop asks again and again."""
    operator().start()
    match = {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": cluster.namespace}},
        "resourceRules": [
            {"apiGroups": ["batch"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["jobs"]}
        ],
    }
    policy = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": cluster.namespace},
        "spec": {
            "matchConstraints": match,
            "validations": [{"expression": "false", "message": "GPU jobs need an approval"}],
        },
    }
    binding = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": cluster.namespace},
        "spec": {"policyName": cluster.namespace, "validationActions": ["Deny"], "matchResources": match},
    }
    cluster.plane.kubectl("apply", "-f", "-", input=yaml.safe_dump_all([policy, binding]))
    until(lambda: _is_denied(cluster), "the policy works")
    try:
        cluster.apply(builders.anchor_harvest())
        _until_said(cluster, "anchorharvest", "harvest", "GPU jobs need an approval")
        asked = [event for event in cluster.operator_requests() if event.resource == "jobs.batch" and event.is_write]
        assert len(asked) <= 5
        assert cluster.list("jobs") == []
    finally:
        for kind in ("validatingadmissionpolicybinding", "validatingadmissionpolicy"):
            cluster.plane.kubectl("delete", kind, cluster.namespace)
    until(lambda: not _is_denied(cluster), "the policy is gone")
    cluster.kubectl("patch", "anchorharvest", "harvest", "--type=merge", "-p", '{"spec":{"rerun":"approved"}}')
    until(lambda: len(cluster.list("jobs")) == 1, "the Job")


def _is_denied(cluster: Cluster) -> bool:
    try:
        cluster.kubectl("create", "job", "probe", "--image=x", "--dry-run=server")
    except KubectlError as error:
        return "approval" in error.stderr
    return False


def test_rights_taken_away_and_given_back(cluster: Cluster, operator: MakeOperator, record: Recorder) -> None:
    """Without the right to make ConfigMaps a plan says so, and a metric counts it; given back, it goes on by itself."""
    op = operator()
    op.start()
    cluster.apply(builders.anchor_config_map("anchor-a"), builders.serving_plan("before"))
    cluster.wait("servingplan", "before", "Ready")
    role = cluster.get("role", "inferasim-operator")
    fewer = [
        {**rule, "verbs": [verb for verb in rule["verbs"] if "configmaps" not in rule["resources"] or verb != "create"]}
        for rule in role["rules"]
    ]
    _set_rules(cluster, fewer)
    cluster.apply(builders.serving_plan())
    assert _until_said(cluster, "servingplan", "plan", "cannot create resource")["reason"] == "Forbidden"
    failed = op.metric("inferasim_reconciles_total", kind="ServingPlan", result="error")
    assert failed >= 1
    _set_rules(cluster, role["rules"])
    took_s = seconds(lambda: cluster.wait("servingplan", "plan", "Ready"))
    assert op.process is not None
    assert op.process.poll() is None
    record.row(
        "the right to create ConfigMaps is taken away, and given back",
        outcome='Ready=False `Forbidden` names verb and resource, `inferasim_reconciles_total{result="error"}` grows',
        measured=f"ready {took_s:.1f} s after it is back",
    )


def _set_rules(cluster: Cluster, rules: list[dict[str, Any]]) -> None:
    patch = json.dumps({"rules": rules})
    cluster.kubectl("patch", "role", "inferasim-operator", "--type=merge", "-p", patch)


def test_an_anchor_changed_and_deleted_under_a_plan(cluster: Cluster, operator: MakeOperator) -> None:
    """A Ready plan answers anew when its anchor changes, says so when it is gone, and comes back with it."""
    operator().start()
    cluster.apply(builders.anchor_config_map("anchor-a"), builders.serving_plan())
    first = cluster.wait("servingplan", "plan", "Ready")["status"]["result"]["digest"]
    changed = builders.anchor_config_map("anchor-a")
    points = [{"promptTokens": n, "milliseconds": 9.0 + 0.02 * n} for n in (512, 1024, 2048, 4096, 8192)]
    fit = {"fixedMilliseconds": 9.0, "perTokenMicroseconds": 20.0, "perTokenSquaredNanoseconds": 0.0}
    prefill = {"points": points, "fit": {**fit, "residualPercent": 0.0}}
    changed["data"] = {"anchor.json": builders.anchor(prefill=prefill).to_json()}
    cluster.apply(changed)

    def digest() -> str:
        return str(cluster.get("servingplan", "plan")["status"].get("result", {}).get("digest", first))

    until(lambda: digest() != first, "the answer to the new question")
    cluster.wait("servingplan", "plan", "Ready")
    cluster.kubectl("delete", "configmap", "anchor-a")
    assert_conditions(cluster.wait("servingplan", "plan", "AnchorsResolved=False"))
    cluster.apply(builders.anchor_config_map("anchor-a"))
    cluster.wait("servingplan", "plan", "Ready")
    assert digest() == first, "the answer kept under the first question"


def test_a_status_written_by_others(cluster: Cluster, operator: MakeOperator) -> None:
    """It is mended in one pass; what only others own stays, and the two do not fight."""
    op = operator()
    op.start()
    cluster.apply(builders.anchor_config_map("anchor-a"), builders.serving_plan())
    good = cluster.wait("servingplan", "plan", "Ready")["status"]
    op.until_settled("ServingPlan")
    lie = {"status": {"summary": "TP64 x1000", "selected": [], "observedGeneration": 99}}
    cluster.kubectl("patch", "servingplan", "plan", "--subresource=status", "--type=merge", "-p", json.dumps(lie))
    until(lambda: cluster.get("servingplan", "plan")["status"] == good, "the status is what it was")
    op.until_settled("ServingPlan")
    writes = len(cluster.operator_writes())
    cluster.apply(builders.anchor_config_map("anchor-of-nobody") | {"data": {"note": "wakes every plan"}})
    until(lambda: op.metric("inferasim_objects_due") == 0, "nothing is due")
    cluster.apply(builders.anchor_harvest(suspend=True))
    cluster.wait_for("anchorharvest", "harvest", ".status.observedGeneration", "1")
    later = [event for event in cluster.operator_writes()[writes:] if "servingplans" in event.uri]
    assert later == []


def test_two_installs_that_serve_one_namespace(cluster: Cluster, operator: MakeOperator, record: Recorder) -> None:
    """Each has a lease of its own and knows nothing of the other: nothing is made twice, and they come to rest."""
    both = [operator(lease_s=60), operator(lease_s=60, environment={"INFERASIM_LEASE_NAME": "other-install"})]
    for op in both:
        op.start()
    for op in both:
        until(lambda op=op: "leading as" in op.text, "it leads")
    plans = [builders.serving_plan(f"plan-{n}", load={"concurrencies": [n]}) for n in range(1, 6)]
    cluster.apply(builders.anchor_config_map("anchor-a"), *plans, builders.anchor_harvest())
    cluster.kubectl("wait", "servingplan", "--all", "--for=condition=Ready", "--timeout=80s", timeout_s=90)
    until(lambda: bool(cluster.list("jobs")), "the Job")

    def settle() -> None:
        for op in both:
            for kind in ("ServingPlan", "AnchorHarvest"):
                op.until_settled(kind)

    settle()
    created = [event for event in cluster.operator_writes() if event.verb == "create" and event.code == 201]
    assert [event.resource for event in created].count("jobs.batch") == 1
    assert len(cluster.list(*RESULTS)) == len(plans)
    before = cluster.versions()
    cluster.apply(builders.anchor_config_map("anchor-of-nobody") | {"data": {"note": "wakes every plan"}})
    settle()
    after = cluster.versions()
    assert {name: after[name] for name in before} == before
    record.row(
        "two installs, each with a lease of its own, serve one namespace",
        outcome="names say what is asked: one Job, one answer per plan; the same words, so no fight",
        measured=f"{len(created)} objects made, none twice; no write once they rest",
    )


def test_an_operator_of_another_version_fights_for_the_status(
    cluster: Cluster, operator: MakeOperator, record: Recorder
) -> None:
    """Whatever we write, it writes its own word at once, for half a minute: no hot loop; then ours is the last word."""
    op = operator(lease_s=60)
    op.start()
    cluster.apply(builders.anchor_config_map("anchor-a"), builders.serving_plan())
    good = cluster.wait("servingplan", "plan", "Ready")["status"]
    op.until_settled("ServingPlan")
    before = len(cluster.operator_writes())
    path = f"/apis/inferasim.dev/v1alpha1/namespaces/{cluster.namespace}/servingplans/plan/status"
    other = json.dumps({"status": {"summary": "says the other"}})
    headers = {"Content-Type": "application/merge-patch+json"}
    ends_s, pause = time.monotonic() + FIGHT_S, threading.Event()
    with cluster.plane.http() as client:
        while time.monotonic() < ends_s:
            client.patch(path, content=other, headers=headers).raise_for_status()
            pause.wait(0.05)
    writes = [event for event in cluster.operator_writes()[before:] if event.uri.split("?")[0] == path]
    until(lambda: cluster.get("servingplan", "plan")["status"] == good, "the status is what it was")
    assert 10 <= len(writes) <= 10 + FIGHT_S / 2 + 2
    record.row(
        "another operator writes the status of a plan, again and again",
        outcome="ten answers at once, then one in two seconds; when it ends, ours is the last word",
        measured=f"{len(writes)} writes in {FIGHT_S:.0f} s",
    )


def test_a_finalizer_of_others(cluster: Cluster, operator: MakeOperator) -> None:
    """A harvest that is held in deletion makes no second Job; let go, it goes with its children."""
    operator().start()
    harvest = builders.anchor_harvest()
    harvest["metadata"]["finalizers"] = ["example.com/held"]
    cluster.apply(harvest)
    until(lambda: len(cluster.list("jobs")) == 1, "the Job")
    cluster.kubectl("delete", "anchorharvest", "harvest", "--wait=false")
    cluster.kubectl("delete", "job", "--all")
    cluster.apply(builders.anchor_config_map("anchor-a"), builders.serving_plan())
    cluster.wait("servingplan", "plan", "Ready")  # the operator goes on meanwhile
    assert cluster.list("jobs") == []
    cluster.kubectl("patch", "anchorharvest", "harvest", "--type=merge", "-p", '{"metadata":{"finalizers":[]}}')
    until(lambda: not cluster.list("anchorharvests"), "the harvest is gone")


@pytest.mark.parametrize(
    "path", ["../../etc", "a/../../b", "/etc", "a//b", ".."], ids=["up", "in-between", "absolute", "empty", "parent"]
)
def test_a_path_out_of_the_volume(cluster: Cluster, path: str) -> None:
    """Refused at the door, by the schema."""
    source = {"claim": {"claimName": "models", "path": path}}
    with pytest.raises(KubectlError, match=r"spec\.model\.source\.claim\.path"):
        cluster.apply(builders.anchor_harvest(model={"name": "Llama-3.1-8B", "source": source}))


def test_text_of_all_kinds_reaches_the_pod_as_it_is(cluster: Cluster, operator: MakeOperator) -> None:
    """Environment values with other languages' syntax and any script are data."""
    operator().start()
    values = ["é漢\u202e🚀", "a\nb: c\n---\nkind: Secret", "$(id) `id` ${HOME} {{ .x }}", "' \" \\ # %s"]
    env = [{"name": f"V{number}", "value": text} for number, text in enumerate(values)]
    engine = {**builders.anchor_harvest()["spec"]["engine"], "env": env}
    cluster.apply(builders.anchor_harvest(engine=engine))
    until(lambda: len(cluster.list("jobs")) == 1, "the Job")
    given = {item["name"]: item.get("value") for item in _containers(cluster.list("jobs")[0])[0]["env"]}
    assert [given[f"V{number}"] for number in range(len(values))] == values


def _containers(job: Object) -> list[Object]:
    found: list[Object] = job["spec"]["template"]["spec"]["containers"]
    return found


def test_more_anchors_than_a_page_of_a_list(cluster: Cluster, operator: MakeOperator, record: Recorder) -> None:
    """520 anchors come while a plan is Ready: it ends with an answer to all of them, not after 520 answers."""
    op = operator()
    op.start()
    cluster.apply(builders.anchor_config_map("anchor-a"), builders.serving_plan())
    cluster.wait("servingplan", "plan", "Ready")
    with cluster.plane.http() as client, ThreadPoolExecutor(8) as pool:

        def post(number: int) -> None:
            anchor = builders.anchor_config_map(f"anchor-{number}", cluster.namespace)
            client.post(f"/api/v1/namespaces/{cluster.namespace}/configmaps", json=anchor).raise_for_status()

        list(pool.map(post, range(520)))
    took_s = seconds(lambda: op.until_settled("ServingPlan"))
    until(lambda: _ready(cluster, "servingplan", "plan").get("status") == "True", "the last answer")
    op.until_settled("ServingPlan")
    answers = len(cluster.list(*RESULTS))
    assert answers < 260
    record.row(
        "520 anchors made in a namespace beside a Ready plan",
        outcome="passes and searches of outdated questions are given up; the last answer knows all anchors",
        measured=f"settled {took_s:.1f} s after the last, {answers} answers kept",
    )
