"""What a mix wants observed, what its status and events say, and the anchor that may come of it."""

from __future__ import annotations

import datetime
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pydantic
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from inferasim_operator.api.v1alpha1.deploymentmix import DeploymentMix
from inferasim_operator.emit.configuration import Configuration
from inferasim_operator.engine.actions import CreateObject, ObjectKey
from inferasim_operator.engine.kind import Context
from inferasim_operator.kinds.deploymentmix import live, live_anchor, live_observe, render
from inferasim_operator.kinds.deploymentmix.choices import PlanAnswer
from inferasim_operator.kinds.deploymentmix.live import LiveState
from inferasim_operator.kinds.deploymentmix.live_anchor import Basis
from inferasim_operator.kinds.deploymentmix.observe import Observed, observe
from inferasim_operator.kinds.deploymentmix.plan import plan
from inferasim_operator.live.compare import Comparison, Figure, incomparable
from inferasim_operator.live.export import LiveCollector
from inferasim_operator.live.loop import LiveLoop
from inferasim_operator.live.request import Report, Subject
from inferasim_operator.live.scrape import Histogram
from inferasim_operator.live.window import Window
from simcore.anchors.schema import parse_anchor
from tests import builders
from tests.conditions import assert_conditions
from tests.fake_cluster import FakeCluster

GOLDEN = Path(__file__).parents[1] / "golden/manifests"
NOW = datetime.datetime(2026, 11, 30, 12, 0, tzinfo=datetime.UTC)
PREDICTED = {"ttftMilliseconds": 400, "tpotMicroseconds": 25_000, "tokensPerSecondPerGpu": 500}
ASKED: dict[str, Any] = {"observation": {"windowSeconds": 60}, "tolerance": {"ttftPermille": 100, "tpotPermille": 300}}


def raw_mix(case: str = "vllm-one-node", **spec: Any) -> dict[str, Any]:
    document: dict[str, Any] = yaml.load((GOLDEN / case / "mix.yaml").read_text(), yaml.CSafeLoader)
    document["metadata"] |= {"uid": "u1", "generation": 1}
    document["spec"]["configurations"][0]["predicted"] = PREDICTED
    document["spec"].update(spec)
    return document


def subject_of(case: str, *, is_direct: bool = True, **spec: Any) -> Subject:
    mix = DeploymentMix.model_validate(raw_mix(case, **spec))
    emission = render.emission(mix.metadata.name, mix.metadata.namespace, mix.spec, None)
    return live.subject(mix, emission, emission.chosen[0], is_direct=is_direct)


def comparison(ttft: float = 0.5, tpot: float = 0.02, requests: float = 1000) -> Comparison:
    figures = {
        "ttft": Figure(0.4, ttft, ttft / 0.4 - 1),
        "tpot": Figure(0.025, tpot, tpot / 0.025 - 1),
        "throughput": Figure(500.0, 505.4, 0.0108),
    }
    return Comparison(figures, (), replicas_count=2, requests_count=requests)


def observed(raw: dict[str, Any], found: Comparison | None = None, **parts: Any) -> Observed:
    mix = DeploymentMix.model_validate(raw)
    emission = render.emission(mix.metadata.name, mix.metadata.namespace, mix.spec, None)
    digest = render.delivery_digest(mix.spec, emission)
    key = live.subject(mix, emission, emission.chosen[0], is_direct=True).key
    state = LiveState(live.is_asked_for(mix), None if found is None else Report({key: found}))
    look = Observed(raw, mix, emission=emission, is_kept=True, delivery_digest=digest, live_state=state)
    return replace(look, **parts)


def conditions(result: Any) -> dict[str, tuple[str, str]]:
    return {c.type: (c.status.value, c.reason) for c in result.status.conditions}


# --- what is wanted


def test_pools_are_those_of_the_manifests() -> None:
    """The container must be the emitted one; replicas are counted by leaders; the layout has no replicas in it."""
    found = subject_of("vllm-two-nodes-pp")
    manifests = yaml.load_all((GOLDEN / "vllm-two-nodes-pp/manifests.yaml").read_text(), yaml.CSafeLoader)
    group = next(m for m in manifests if m["kind"] == "LeaderWorkerSet")["spec"]["leaderWorkerTemplate"]
    assert list(found.engines.arguments) == group["leaderTemplate"]["spec"]["containers"][0]["args"]
    assert ("leaderworkerset.sigs.k8s.io/worker-index", "0") in found.engines.labels
    assert dict(found.engines.series_labels)["inferasim_dev_pool"] == "colocated"
    assert found.engines.gpus_per_replica_count == 8 * group["size"]
    assert found.key.layout == "TP8xPP2"
    assert (found.prefill, found.router) == (None, None)


@pytest.mark.parametrize(
    ("case", "source", "has_router", "problem"),
    [
        ("vllm-one-node", "VLLM", False, ""),
        ("atom-one-node", "ATOM", False, ""),
        ("vllm-llmd-colocated", "VLLM", False, ""),
        ("vllm-disaggregated-nixl", "VLLM", True, ""),
        ("atom-disaggregated", "ATOM", True, ""),
        ("sglang-disaggregated", "SGLang", False, "each engine sees a part"),
    ],
)
def test_latency_is_the_router_s_where_engines_see_a_part(
    case: str, source: str, has_router: bool, problem: str
) -> None:
    found = subject_of(case)
    assert found.engines.source == source
    assert (found.router is not None) == has_router
    assert (found.prefill is not None) == ("disaggregated" in case)
    assert problem in found.problem
    assert (found.promise is None) == bool(problem)


def test_a_promise_is_of_one_replica() -> None:
    """64 requests in flight over two replicas are 32 on each."""
    promise = subject_of("vllm-one-node").promise
    assert promise is not None
    assert promise.concurrency_per_replica == 32
    assert (promise.ttft_s, promise.tpot_s) == pytest.approx((0.4, 0.025))
    assert promise.gpus_per_replica_count == 8


def test_what_cannot_be_compared_is_said_before_it_is_read() -> None:
    raw = raw_mix()
    del raw["spec"]["configurations"][0]["predicted"]
    mix = DeploymentMix.model_validate(raw)
    emission = render.emission("chat", "serving", mix.spec, None)
    assert "nothing was predicted" in live.subject(mix, emission, emission.chosen[0], is_direct=True).problem
    assert "name a Prometheus" in subject_of("vllm-one-node", namespace="elsewhere").problem
    assert subject_of("vllm-one-node", namespace="elsewhere", is_direct=False).problem == ""
    raw = raw_mix()
    raw["spec"]["configurations"][0]["configuration"]["speculation"] = {"method": "NGram", "draftTokens": 3}
    mix = DeploymentMix.model_validate(raw)
    emission = render.emission("chat", "serving", mix.spec, None)
    assert "acceptance length" in live.subject(mix, emission, emission.chosen[0], is_direct=True).problem


def test_speculation_is_compared_at_the_acceptance_that_was_predicted() -> None:
    """Case B07: 2.66 tokens per step; a drafter that does worse is another load, not an error of the prediction."""
    raw = raw_mix()
    (named,) = raw["spec"]["configurations"]
    named["configuration"]["speculation"] = {"method": "NGram", "draftTokens": 3}
    named["predicted"] = {**PREDICTED, "acceptanceLengthPermille": 2660}
    mix = DeploymentMix.model_validate(raw)
    emission = render.emission("chat", "serving", mix.spec, None)
    found = live.subject(mix, emission, emission.chosen[0], is_direct=True)
    assert found.problem == ""
    assert found.promise is not None
    assert found.promise.acceptance_length_tokens == 2.66

    def reasons(accepted: float) -> tuple[str, ...]:
        counters = {"drafts": 100.0, "acceptedTokens": accepted}
        seen = Window(60.0, 1, histograms={"ttft": Histogram((math.inf,), (100.0,), 40.0)}, counters=counters)
        return tuple(r for r in incomparable(found.promise, seen, seen) if "acceptance" in r)  # type: ignore[arg-type]

    assert reasons(accepted=166.0) == ()
    assert reasons(accepted=100.0) == ("acceptance length is 2, predicted for 2.66",)


@pytest.mark.parametrize(
    ("observation", "is_taken"),
    [
        ({"prometheusUrl": "https://p.test:9090/prefix", "secret": {"name": "p"}}, True),
        ({"prometheusUrl": "http://p.test", "secret": {"name": "p"}}, False),
        ({"secret": {"name": "p"}}, False),
        ({"prometheusUrl": "https://user@p.test"}, False),
        ({"prometheusUrl": "file:///etc/passwd"}, False),
        ({"windowSeconds": 29}, False),
    ],
)
def test_a_secret_is_not_sent_in_the_clear(observation: dict[str, Any], is_taken: bool) -> None:
    if is_taken:
        DeploymentMix.model_validate(raw_mix(observation=observation))
    else:
        with pytest.raises(pydantic.ValidationError):
            DeploymentMix.model_validate(raw_mix(observation=observation))


# --- what is said


def test_a_mix_that_asks_for_nothing_says_nothing() -> None:
    assert set(conditions(plan(observed(raw_mix()), NOW))) == {"Ready", "Emitted", "Delivered"}


def test_before_the_first_figure_nothing_is_claimed() -> None:
    said = conditions(plan(observed(raw_mix(**ASKED)), NOW))
    assert said["Reporting"] == ("Unknown", "Collecting")
    assert said["PredictionWithinTolerance"] == ("Unknown", "NotComparable")
    assert said["Ready"] == ("True", "Delivered")


def test_an_error_beyond_tolerance_turns_a_condition_and_is_told_once() -> None:
    raw = raw_mix(**ASKED)
    first = plan(observed(raw, comparison()), NOW)
    assert conditions(first)["PredictionWithinTolerance"] == ("False", "OutOfTolerance")
    assert conditions(first)["Reporting"] == ("True", "Comparable")
    (event,) = first.announcements
    assert (event.reason, event.is_warning) == ("OutOfTolerance", True)
    assert event.message == "interactive: TTFT +25 % (limit 10.0%)"
    record = first.status.to_dict()["deployments"][0]
    assert record["error"] == {"ttftPermille": 250, "tpotPermille": -200, "throughputPermille": 10}
    assert record["observed"] == {
        "requests": 1000,
        "ttftMilliseconds": 500,
        "tpotMicroseconds": 20_000,
        "tokensPerSecondPerGpu": 505,
    }
    assert record["observedReplicas"] == 2
    raw["status"] = first.status.to_dict()
    assert_conditions(raw)
    later = NOW + datetime.timedelta(seconds=30)
    again = plan(observed(raw, comparison(ttft=0.5004)), later)
    assert again.announcements == ()
    assert again.status == first.status, "noise below the steps writes nothing"
    back = plan(observed(raw, comparison(ttft=0.41)), later)
    assert conditions(back)["PredictionWithinTolerance"] == ("True", "WithinTolerance")
    assert [event.reason for event in back.announcements] == ["WithinTolerance"]
    assert plan(observed(raw_mix(**ASKED), comparison(ttft=0.41)), NOW).announcements == (), "good news is no event"


def test_another_load_is_a_reason_and_no_figure() -> None:
    found = Comparison({}, ("mean prompt length is 1000, predicted for 4000",), replicas_count=2)
    result = plan(observed(raw_mix(**ASKED), found), NOW)
    assert conditions(result)["Reporting"] == ("False", "NotComparable")
    assert conditions(result)["PredictionWithinTolerance"] == ("Unknown", "NotComparable")
    record = result.status.to_dict()["deployments"][0]
    assert record["incomparable"] == "mean prompt length is 1000, predicted for 4000"
    assert not {"error", "observed"} & set(record)


def test_what_keeps_from_observing_is_said() -> None:
    look = replace(observed(raw_mix(**ASKED)), live_state=LiveState(True, problem="secrets p not found"))
    assert conditions(plan(look, NOW))["Reporting"] == ("False", "NotObserved")


@given(error=st.floats(-0.99, 50.0))
def test_an_error_in_steps_is_within_half_a_step(error: float) -> None:
    assert live.step(error) % 10 == 0
    assert abs(live.step(error) / 1000 - error) <= 0.005 + 1e-9


@given(value=st.floats(0.5, 1e9))
def test_rounding_keeps_three_digits(value: float) -> None:
    assert live.rounded(value) == pytest.approx(value, rel=0.005, abs=0.51)


# --- observing


@pytest.fixture
def idle(monkeypatch: pytest.MonkeyPatch) -> LiveLoop:
    loop = LiveLoop(LiveCollector(), words=live.words, workers=0)
    monkeypatch.setattr(live_observe, "loop", lambda: loop)
    return loop


def test_a_package_that_cannot_be_is_a_fault_of_the_mix(idle: LiveLoop) -> None:
    """Final, with the reason; the repository is not asked again and again."""
    git = {"url": "https://git.example.test/a.git", "branch": "main", "path": "a", "package": "Helm"}
    raw = raw_mix("vllm-llmd-colocated", delivery={"type": "Git", "git": git})
    raw["metadata"]["name"] = "m" * 60
    key = ObjectKey("serving", raw["metadata"]["name"])
    found = observe(Context(FakeCluster(raw)), key)
    assert found is not None
    assert "53 characters" in found.emission_problem
    assert conditions(plan(found, NOW))["Stalled"] == ("True", "CannotEmit")
    assert not idle.known(key)


def test_a_mix_is_watched_until_it_is_gone(idle: LiveLoop) -> None:
    cluster, key = FakeCluster(raw_mix(**ASKED)), ObjectKey("serving", "chat")
    look = observe(Context(cluster), key)
    assert look is not None
    assert look.live_state == LiveState(True)
    idle.step()
    look = observe(Context(cluster), key)
    assert look is not None
    assert look.live_state.report is not None
    (found,) = look.live_state.report.comparisons.values()
    assert found.reasons == ("no pod of interactive/chat/colocated is ready",)
    cluster.put(
        {**raw_mix(**ASKED), "metadata": {**raw_mix()["metadata"], "deletionTimestamp": "2026-11-30T00:00:00Z"}}
    )
    observe(Context(cluster), key)
    assert idle.known(key) is None
    cluster.objects.clear()
    assert observe(Context(cluster), key) is None


def test_a_secret_that_is_not_there_or_not_text_is_said(idle: LiveLoop) -> None:
    observation = {"prometheusUrl": "https://p.test", "secret": {"name": "p"}}
    cluster, key = FakeCluster(raw_mix(observation=observation)), ObjectKey("serving", "chat")
    look = observe(Context(cluster), key)
    assert look is not None
    assert "p not found" in look.live_state.problem
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "p", "namespace": "serving"}}
    cluster.put({**secret, "data": {"token": "/w=="}})
    look = observe(Context(cluster), key)
    assert look is not None
    assert "not base64" in look.live_state.problem
    cluster.put({**secret, "data": {"token": "aHVzaA=="}})
    look = observe(Context(cluster), key)
    assert look is not None
    assert look.live_state.problem == ""


# --- derived anchors


CHOSEN = {
    "engine": "SGLang",
    "engineVersion": "0.5.9",
    "image": "example.test/sglang:0.5.9",
    "model": {"name": "Llama-3.1-8B", "source": {"claim": {"claimName": "w"}}, "architecture": "Dense"},
    "accelerator": "MI355X",
    "gpusPerNode": 8,
    "layout": {"tensorParallel": 1},
    "replicas": 2,
    "concurrency": 50,
    "promptTokens": 1000,
    "outputTokens": 100,
    "kvDtype": "bf16",
    "memoryPermille": 900,
    "maxRunningRequests": 64,
    "maxBatchedTokens": 8192,
    "prefixCaching": "Disabled",
}


def test_a_derived_anchor_is_the_base_with_scaled_decode_steps() -> None:
    """TPOT 30 ms against 25: every decode step times 1.2, everything else untouched, the evidence kept."""
    base = builders.anchor()
    key = subject_of("vllm-one-node").key
    derived = live_anchor.derive(Basis("a", base), key, comparison(tpot=0.03), 300.0)
    for ours, theirs in zip(derived.decode[0].points, base.decode[0].points, strict=True):
        assert ours.step_milliseconds == pytest.approx(1.2 * theirs.step_milliseconds)
    assert (derived.prefill, derived.signature) == (base.prefill, base.signature)
    assert derived.provenance.source == "derived"
    assert derived.provenance.residuals == {"tpot": pytest.approx(0.2)}
    assert base.digest() in derived.provenance.notes[-2]
    assert "1000 requests" in derived.provenance.notes[-2]
    manifest = live_anchor.config_map(builders.live(raw_mix(), uid="u1"), Basis("a", base), derived, "interactive")
    assert parse_anchor(manifest["data"]["anchor.json"]).digest() == derived.digest()
    assert manifest["metadata"]["labels"]["inferasim.dev/anchor"] == "derived", "no plan's selector finds it"
    assert derived.digest().removeprefix("sha256:")[:16] in manifest["metadata"]["name"]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({}, ""),
        ({"layout": {"tensorParallel": 2}}, "tensor parallel is 1"),
        ({"engineVersion": "0.5.10"}, "engine version"),
        ({"image": "example.test/sglang:other"}, "image"),
        ({"layout": {"tensorParallel": 1, "dataParallel": 2}}, "one stage and rank"),
    ],
)
def test_only_the_very_engine_that_was_measured_is_recalibrated(changes: dict[str, Any], problem: str) -> None:
    found = live_anchor.refusal(Configuration.model_validate({**CHOSEN, **changes}), builders.anchor())
    assert problem in found
    assert bool(found) == bool(problem)
    derived = builders.anchor(provenance={"source": "derived", "realWeights": True, "prefixCachingOff": True})
    assert "harvest anew" in live_anchor.refusal(Configuration.model_validate(CHOSEN), derived)


def test_an_anchor_is_derived_once_after_a_whole_window_and_only_with_consent() -> None:
    consent: dict[str, Any] = {**ASKED, "tolerance": {"tpotPermille": 100, "recalibration": "Enabled"}}
    raw = raw_mix(**consent)
    bases = {"interactive": Basis("a", builders.anchor())}
    off = comparison(tpot=0.03)
    first = plan(observed(raw, off, bases=bases), NOW)
    assert first.actions == (), "one window may be chance"
    raw["status"] = first.status.to_dict()
    later = NOW + datetime.timedelta(seconds=60)
    (action,) = plan(observed(raw, off, bases=bases), later).actions
    assert isinstance(action, CreateObject)
    assert plan(observed(raw, off), later).actions == ()
    assert plan(observed(raw, comparison(tpot=0.03, requests=50), bases=bases), later).actions == ()
    assert plan(observed(raw, comparison(), bases=bases), later).actions != (), "too slow and too fast alike"
    done = plan(observed(raw, off, bases={"interactive": Basis("a", builders.anchor(), "chat-anchor-1")}), later)
    assert done.actions == ()
    assert done.status.to_dict()["derivedAnchors"] == ["chat-anchor-1"]


def test_the_basis_is_the_anchor_that_the_prediction_names(idle: LiveLoop) -> None:
    anchor = builders.anchor_config_map("anchor-a", "serving")
    digest = parse_anchor(anchor["data"]["anchor.json"]).digest()
    consent: dict[str, Any] = {**ASKED, "tolerance": {"tpotPermille": 100, "recalibration": "Enabled"}}
    raw = raw_mix(format="SGLang", **consent)
    raw["spec"]["configurations"][0]["configuration"] = CHOSEN
    look = observed(raw, comparison(tpot=0.03))
    assert look.mix is not None
    assert look.emission is not None

    def bases(cluster: FakeCluster, source: dict[str, str]) -> dict[str, Basis]:
        assert look.mix is not None
        assert look.emission is not None
        answer = PlanAnswer({}, ({"tier": "interactive", "source": source},))
        return live_observe.bases(Context(cluster), raw, look.mix, look.emission, answer, look.live_state)

    cluster = FakeCluster(anchor)
    found = bases(cluster, {"anchor": "anchor-a", "anchorDigest": digest})
    assert found["interactive"].derived == ""
    assert bases(cluster, {"anchor": "anchor-a", "anchorDigest": "sha256:other"}) == {}
    assert bases(cluster, {"anchor": "gone"}) == {}
    derived = live_anchor.derive(found["interactive"], subject_of("vllm-one-node").key, comparison(tpot=0.03), 60.0)
    made = cluster.put(live_anchor.config_map(raw, found["interactive"], derived, "interactive"))
    again = bases(cluster, {"anchor": "anchor-a", "anchorDigest": digest})
    assert again["interactive"].derived == made["metadata"]["name"]
    assert json.loads(made["data"]["anchor.json"])["provenance"]["source"] == "derived"
