"""The decision for a mix: findings, conditions, actions, and the bridge from a plan's answer."""

from __future__ import annotations

import copy
import datetime
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from inferasim_operator.api.v1alpha1.deploymentmix import DeploymentMix
from inferasim_operator.convert import parse_conditions
from inferasim_operator.delivery.background import DeliveryState
from inferasim_operator.delivery.git import GitOutcome
from inferasim_operator.engine.actions import ApplyObject, CreateObject, DeleteObject
from inferasim_operator.engine.labels import MANAGER
from inferasim_operator.kinds.deploymentmix import render
from inferasim_operator.kinds.deploymentmix.checks import Reason
from inferasim_operator.kinds.deploymentmix.choices import PlanAnswer
from inferasim_operator.kinds.deploymentmix.observe import Observed, PlanState
from inferasim_operator.kinds.deploymentmix.plan import plan
from simcore.errors import InputError

GOLDEN = Path(__file__).parents[1] / "golden/manifests"
NOW = datetime.datetime(2026, 11, 30, 12, 0, tzinfo=datetime.UTC)

PLAN_SPEC = {
    "model": {"name": "Qwen3-32B"},
    "cluster": {"accelerator": "MI355X", "nodes": 4},
    "workload": {"fixed": {"promptTokens": 8000, "outputTokens": 1000}},
}
CHOICE = {
    "tier": "interactive",
    "configuration": {
        "engine": "SGLang",
        "engineVersion": "0.5.16",
        "image": "lmsysorg/sglang:v0.5.16-rocm720-mi35x",
        "accelerator": "MI355X",
        "layout": {"tensorParallel": 4},
        "replicas": 3,
        "gpusPerReplica": 4,
        "concurrency": 100,
    },
    "predicted": {"ttftMilliseconds": 400, "tpotMicroseconds": 9000, "tokensPerSecondPerGpu": 500},
    "source": {"mode": "Anchored", "anchor": "a", "flags": ["prompt length extrapolated"]},
}
SETTINGS = {"kvDtype": "bf16", "memoryPermille": 900, "maxBatchedTokens": 16384, "prefixCaching": "Disabled"}


def raw_mix(**spec: Any) -> dict[str, Any]:
    document: dict[str, Any] = yaml.load((GOLDEN / "vllm-one-node/mix.yaml").read_text(), yaml.CSafeLoader)
    document["metadata"] |= {"uid": "u1", "generation": 1}
    document["spec"].update(spec)
    return document


def planned_mix(**spec: Any) -> dict[str, Any]:
    document = raw_mix(format="SGLang", planRef={"name": "p"}, serving=SETTINGS, **spec)
    document["spec"]["model"] = {"source": {"claim": {"claimName": "w"}}}
    del document["spec"]["configurations"]
    return document


def observed(raw: dict[str, Any], answer: PlanAnswer | None = None, **parts: Any) -> Observed:
    mix = DeploymentMix.model_validate(raw)
    emission = render.emission(mix.metadata.name, mix.metadata.namespace, mix.spec, answer)
    digest = render.delivery_digest(mix.spec, emission)
    return Observed(raw, mix, emission=emission, delivery_digest=digest, **parts)


def conditions(result: Any) -> dict[str, tuple[str, str]]:
    return {c.type: (c.status.value, c.reason) for c in result.status.conditions}


def test_a_mix_is_kept_in_a_config_map_and_ready() -> None:
    result = plan(observed(raw_mix()), NOW)
    (action,) = result.actions
    assert isinstance(action, CreateObject)
    assert action.manifest["immutable"] is True
    assert action.manifest["data"]["manifests.yaml"] == (GOLDEN / "vllm-one-node/manifests.yaml").read_text()
    assert conditions(result) == {
        "Ready": ("True", "Delivered"),
        "Emitted": ("True", "Emitted"),
        "Delivered": ("True", "Delivered"),
    }
    assert result.status.summary == "interactive: VLLM TP4-DP2 x2 (16 GPUs)"
    again = plan(replace(observed(raw_mix()), is_kept=True), NOW)
    assert again.actions == ()
    assert again.status == result.status


def test_the_same_pass_again_says_the_same() -> None:
    raw = raw_mix()
    first = plan(observed(raw), NOW)
    raw["status"] = first.status.to_dict()
    second = plan(observed(raw), NOW + datetime.timedelta(hours=1))
    assert second.status == first.status
    assert parse_conditions(raw) == second.status.conditions


def applied_live(raw: dict[str, Any], look: Observed) -> tuple[dict[str, Any], ...]:
    assert look.emission is not None
    live = []
    for manifest in look.emission.manifests:
        found = copy.deepcopy(dict(render.applied(raw, manifest, None, MANAGER)))
        found["metadata"]["uid"] = f"uid-{manifest['kind']}"
        live.append(found)
    return tuple(live)


def test_apply_waits_until_all_is_there_and_prunes_the_rest() -> None:
    raw = raw_mix(delivery={"type": "Apply"})
    look = observed(raw)
    result = plan(look, NOW)
    assert [type(action) for action in result.actions] == [CreateObject] + [ApplyObject] * 3
    assert conditions(result)["Delivered"] == ("False", "Delivering")
    assert result.wake_after_s is not None
    assert "delivered" not in result.status.to_dict()
    live = applied_live(raw, look)
    stray = copy.deepcopy(live[0])
    stray["metadata"] |= {"name": "chat-old", "uid": "uid-old"}
    result = plan(replace(look, live=(*live, stray)), NOW)
    assert conditions(result)["Ready"] == ("True", "Delivered")
    (deleted,) = (action for action in result.actions if isinstance(action, DeleteObject))
    assert (deleted.reference.name, deleted.uid) == ("chat-old", "uid-old")
    assert not any(action.force for action in result.actions if isinstance(action, ApplyObject))


def test_git_says_what_it_does() -> None:
    git = {"url": "https://example.test/r.git", "branch": "main", "path": "a"}
    raw = raw_mix(delivery={"type": "Git", "git": git})
    look = observed(raw)
    assert conditions(plan(look, NOW))["Delivered"] == ("False", "Delivering")
    broken = DeliveryState(look.delivery_digest, problem="git push: fatal: no", attempts=1)
    assert conditions(plan(replace(look, git=broken), NOW))["Delivered"] == ("False", "GitFailed")
    assert conditions(plan(replace(look, git_problem="no Secret"), NOW))["Delivered"] == ("False", "GitFailed")
    done = DeliveryState(look.delivery_digest, outcome=GitOutcome("abc123", is_new=True))
    result = plan(replace(look, git=done), NOW)
    assert conditions(result)["Ready"] == ("True", "Delivered")
    assert result.status.to_dict()["delivered"]["commit"] == "abc123"
    # After a restart nothing is asked of the repository: the status says that it is done.
    raw["status"] = result.status.to_dict()
    again = plan(observed(raw), NOW)
    assert again.status == result.status
    # Another place is another delivery.
    raw["spec"]["delivery"]["git"]["branch"] = "prod"
    assert conditions(plan(observed(raw), NOW))["Delivered"] == ("False", "Delivering")


def test_a_message_in_the_repository_says_why() -> None:
    raw = planned_mix()
    mix = DeploymentMix.model_validate(raw)
    emission = render.emission("chat", "serving", mix.spec, PlanAnswer(PLAN_SPEC, (CHOICE,)))
    message = render.commit_message(mix, emission)
    assert message.splitlines()[0] == "Deploy serving/chat"
    assert "interactive: SGLang 0.5.16, predicted TTFT 400 ms, TPOT 9000 us, 500 tok/s per GPU" in message
    assert f"Manifests: {emission.digest}" in message


@pytest.mark.parametrize(
    ("look", "reason", "stalled"),
    [
        (Observed(raw_mix(), None, spec_problem="`spec.format`: bad"), Reason.INVALID_SPEC, True),
        (PlanState("p", is_missing=True, problem="no p"), Reason.PLAN_NOT_FOUND, True),
        (PlanState("p", problem="p searches"), Reason.PLAN_NOT_READY, False),
        (PlanState("p", problem="p is infeasible", is_final=True), Reason.PLAN_HAS_NO_ANSWER, True),
    ],
)
def test_each_finding_is_said_and_nothing_is_done(look: Observed | PlanState, reason: Reason, stalled: bool) -> None:
    if isinstance(look, PlanState):
        raw = planned_mix()
        look = Observed(raw, DeploymentMix.model_validate(raw), plan=look)
    result = plan(look, NOW)
    assert result.actions == ()
    assert conditions(result)["Emitted"] == ("False", reason)
    assert ("Stalled" in conditions(result)) is stalled
    assert ("Reconciling" in conditions(result)) is not stalled


def test_refusals_of_emission_and_namespace() -> None:
    raw = raw_mix(delivery={"type": "Apply"}, namespace="elsewhere")
    assert conditions(plan(observed(raw), NOW))["Stalled"] == ("True", Reason.FOREIGN_NAMESPACE)
    mix = DeploymentMix.model_validate(raw)
    result = plan(Observed(raw, mix, emission_problem="`engineVersion` must …"), NOW)
    assert conditions(result)["Stalled"] == ("True", Reason.CANNOT_EMIT)


def test_what_runs_stays_when_the_plan_has_no_answer_and_when_suspended() -> None:
    raw = planned_mix()
    first = plan(observed(raw, PlanAnswer(PLAN_SPEC, (CHOICE,))), NOW)
    raw["status"] = first.status.to_dict()
    lost = plan(Observed(raw, DeploymentMix.model_validate(raw), plan=PlanState("p", problem="searches")), NOW)
    assert lost.actions == ()
    assert lost.status.to_dict()["inventory"] == first.status.to_dict()["inventory"]
    raw["spec"]["suspend"] = True
    idle = plan(observed(raw, PlanAnswer(PLAN_SPEC, (CHOICE,))), NOW)
    assert idle.actions == ()
    assert conditions(idle)["Ready"] == ("False", Reason.SUSPENDED)


def test_a_hand_scaled_workload_is_said() -> None:
    raw = raw_mix(delivery={"type": "Apply"})
    look = observed(raw)
    live = applied_live(raw, look)
    scaled = next(item for item in live if item["kind"] == "Deployment")
    scaled["spec"] = {**scaled["spec"], "replicas": 3}
    scaled["metadata"]["managedFields"] = [{"manager": "kubectl", "fieldsV1": {"f:spec": {"f:replicas": {}}}}]
    result = plan(replace(look, live=live), NOW)
    assert conditions(result)["Delivered"] == ("True", Reason.REPLICAS_ELSEWHERE)
    (apply,) = (a for a in result.actions if isinstance(a, ApplyObject) and a.manifest["kind"] == "Deployment")
    assert "replicas" not in apply.manifest["spec"]


def test_what_the_plan_leaves_open_comes_from_its_question_and_the_mix() -> None:
    """100 requests over 3 replicas are at most 34 in one; 8 GPUs in a node and the architecture are on the cards."""
    mix = DeploymentMix.model_validate(planned_mix())
    (choice,) = render.emission("chat", "serving", mix.spec, PlanAnswer(PLAN_SPEC, (CHOICE,))).chosen
    configuration = choice.deployment.configuration
    assert configuration.max_running_requests == 34
    assert (configuration.prompt_tokens, configuration.output_tokens) == (8000, 1000)
    assert configuration.gpus_per_node == 8
    assert configuration.model.architecture.value == "Dense"
    # The checkpoint's index (Qwen/Qwen3-32B, total_size): 65,524,246,528 bytes of bf16.
    assert configuration.model.weight_bytes == 65_524_246_528
    assert choice.flags == ("prompt length extrapolated",)


@given(field=st.sampled_from(["kvDtype", "memoryPermille", "maxBatchedTokens", "prefixCaching"]))
def test_a_stated_setting_is_never_replaced(field: str) -> None:
    stated = {"kvDtype": "fp8", "memoryPermille": 850, "maxBatchedTokens": 4096, "prefixCaching": "Enabled"}
    choice = copy.deepcopy(CHOICE)
    choice["configuration"][field] = stated[field]  # type: ignore[index]
    mix = DeploymentMix.model_validate(planned_mix())
    (chosen,) = render.emission("chat", "serving", mix.spec, PlanAnswer(PLAN_SPEC, (choice,))).chosen
    assert chosen.deployment.configuration.to_dict()[field] == stated[field]


@pytest.mark.parametrize(
    ("spec", "change", "message"),
    [
        ({"tiers": ["bulk"]}, {}, "interactive"),
        ({}, {"gpusPerReplica": 8}, "be the 4 GPUs"),
        ({}, {"image": None}, "images.engine"),
        ({"serving": {**SETTINGS, "kvDtype": None}}, {}, "serving.kvDtype"),
        ({}, {"engineVersion": None}, "engineVersion"),
    ],
)
def test_what_is_missing_is_named(spec: dict[str, Any], change: dict[str, Any], message: str) -> None:
    raw = planned_mix()
    raw["spec"].update(spec)
    choice = copy.deepcopy(CHOICE)
    configuration: dict[str, Any] = choice["configuration"]  # type: ignore[assignment]
    configuration.update(change)
    choice["configuration"] = {name: value for name, value in configuration.items() if value is not None}
    mix = DeploymentMix.model_validate(raw)
    with pytest.raises(InputError, match=message):
        render.emission("chat", "serving", mix.spec, PlanAnswer(PLAN_SPEC, (choice,)))
