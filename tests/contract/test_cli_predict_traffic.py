"""`inferasim predict` beyond fixed lengths: drafters, shared prefixes, host tiers, traces, split pools, overload."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from inferasim_operator.cli.app import app
from simcore.cards.layout import Engine, Layout
from simcore.cards.library import known_model, load_accelerator_card, load_model_card
from simcore.data.acceptance import AcceptanceCurve, find_acceptance, load_acceptance
from simcore.laws.speculation import Drafter
from simcore.prediction.costs import CostRequest, Speculation, build_cost

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
LLAMA: dict[str, Any] = {
    "model": "Llama-3.1-8B",
    "engine": {"name": "SGLang", "version": "0.5.19"},
    "accelerator": "MI355X",
    "layout": {"tensorParallel": 1},
    "anchors": ["llama-3.1-8b-sglang-mi355x-tp1"],
    "workload": {"fixed": {"promptTokens": 2048, "outputTokens": 256}},
    "load": {"concurrency": 1},
}
PAIR = {"prefill": {"tensorParallel": 1}, "decode": {"tensorParallel": 1}, "layout": None}
TALK = {
    "synthetic": {
        "promptTokens": 2000,
        "outputTokens": 100,
        "conversation": {"turns": 6, "turnTokens": 400, "thinkSeconds": 5.0},
    }
}
RECORD = {"timestamp": 0, "input_length": 1024, "output_length": 2, "hash_ids": [1, 2]}


def invoke(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, list(arguments))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


def scenario(folder: Path, **changes: Any) -> str:
    path = folder / "scenario.yaml"
    kept = {key: value for key, value in (LLAMA | changes).items() if value is not None}
    path.write_text(yaml.safe_dump(kept))
    return str(path)


def predicted(folder: Path, **changes: Any) -> dict[str, Any]:
    code, out, error = invoke("predict", "-f", scenario(folder, **changes), "-o", "json")
    assert code == 0, error
    found: dict[str, Any] = json.loads(out)
    return found


def refused(folder: Path, **changes: Any) -> tuple[int, str]:
    code, out, error = invoke("predict", "-f", scenario(folder, **changes), "-o", "json")
    assert out == ""
    assert len(error.strip().splitlines()) == 1, error
    return code, error


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("predict-*.yaml")), ids=lambda path: path.stem)
def test_every_example_is_predicted(path: Path) -> None:
    one = invoke("predict", "-f", str(path), "-o", "json")
    assert one[0] == 0, one[2]
    assert invoke("predict", "-f", str(path), "-o", "json") == one
    found = json.loads(one[1])
    assert found["ttftMs"]["mean"] > 0
    assert found["interval80"]["ttftMs"][0] < found["ttftMs"]["mean"] < found["interval80"]["ttftMs"][1]


def test_the_replay_examples_run() -> None:
    trace = str(EXAMPLES / "traces" / "chat.jsonl")
    for file in ("replay-deployment", "predict-trace", "predict-pools"):
        code, out, error = invoke("replay", trace, "-f", str(EXAMPLES / f"{file}.yaml"), "-o", "json")
        assert code == 0, error
        found = json.loads(out)
        assert found["completedRequests"] == 60
        sides = {
            pool: sum(r["requests"] for r in found["ranks"] if r["pool"] == pool) for pool in ("decode", "prefill")
        }
        assert set(sides.values()) <= {0, 60}


def test_replay_takes_a_scenario_with_a_host_tier(tmp_path: Path) -> None:
    """The trace stands for the scenario's own traffic; a scenario without any will do."""
    trace = str(EXAMPLES / "traces" / "chat.jsonl")
    words = {"kvOffload": {"hostGibibytes": 64}, "kvPoolBytesPerGpu": 700_000_000}
    answers = []
    for changes in ({}, {"workload": None, "load": None}):
        code, out, error = invoke("replay", trace, "-f", scenario(tmp_path, **words, **changes), "-o", "json")
        assert code == 0, error
        answers.append(out)
    assert answers[0] == answers[1]
    assert json.loads(answers[0])["hostHitRate"] > 0


# speculation ----------------------------------------------------------------------------------------------------------
def test_a_drafted_step_commits_what_was_accepted(tmp_path: Path) -> None:
    """Public cases B07 and E04: TPOT is the step over L, the visible gap is the step; 2.66 tokens per step."""
    drafter = {"method": "eagle3", "draftTokens": 3, "acceptedLengthTokens": [1.7, 2.25, 2.66]}
    found = predicted(tmp_path, speculation=drafter, workload={"fixed": {"promptTokens": 2048, "outputTokens": 2049}})
    assert found["itlMs"]["mean"] / found["tpotMs"]["mean"] == pytest.approx(2.66, rel=0.002)
    assert found["tpotMs"]["mean"] == pytest.approx(found["stepBreakdown"]["decode"]["seconds"] * 1e3 / 2.66, rel=0.01)
    assert "draft" in found["stepBreakdown"]["decode"]["parts"]
    assert "modelled-drafter" in found["flags"]


def test_the_models_own_acceptance_is_taken_and_a_borrowed_one_is_flagged(tmp_path: Path) -> None:
    own = {"model": "GLM-5.2", "anchors": None, "layout": {"tensorParallel": 8}, "engine": {"name": "SGLang"}}
    lengths = {"fixed": {"promptTokens": 1024, "outputTokens": 1025}}
    drafter = {"method": "MTP", "draftTokens": 2}
    found = predicted(tmp_path, **own, speculation=drafter, workload=lengths)
    measured = find_acceptance(model="GLM-5.2", drafter="mtp").accepted_length_tokens[1]
    assert found["itlMs"]["mean"] / found["tpotMs"]["mean"] == pytest.approx(measured, rel=0.01)
    assert "acceptance-borrowed" not in found["flags"]
    borrowed = predicted(tmp_path, speculation={"method": "EAGLE3", "draftTokens": 2, "borrowAcceptance": True})
    assert "acceptance-borrowed" in borrowed["flags"]


@pytest.mark.parametrize("curve", [c for c in load_acceptance() if c.thinking and not c.variant], ids=lambda c: c.model)
def test_every_measured_curve_can_be_used(curve: AcceptanceCurve) -> None:
    """Also where a measured length falls by noise (DeepSeek-V4-Pro: 2.55 at depth six, 2.54 at seven)."""
    model = known_model(curve.model)
    if model is None:
        pytest.skip("no card of that name")
    asked = Speculation(Drafter(curve.drafter), 8)
    layout = Layout(tensor_parallel=8)
    request = CostRequest(
        load_model_card(model), load_accelerator_card("MI355X"), Engine.SGLANG, layout, "bf16", 1, speculation=asked
    )
    assert build_cost(request).tokens_per_step == pytest.approx(max(curve.accepted_length_tokens), rel=0.01)


@pytest.mark.parametrize(
    ("drafter", "fragment"),
    [
        ({"method": "NGRAM", "draftTokens": 2}, "ngram"),  # nobody measured it: no default (B07)
        ({"method": "NGRAM", "draftTokens": 2, "borrowAcceptance": True}, "ngram"),
        ({"method": "EAGLE3", "draftTokens": 2}, "acceptedLengthTokens"),  # not on this model
        ({"method": "MTP", "draftTokens": 9}, "draftTokens"),
        ({"method": "MTP", "draftTokens": 0}, "draftTokens"),
        ({"method": "Medusa", "draftTokens": 2}, "speculation.method"),
        ({"method": "MTP", "draftTokens": 2, "acceptedLengthTokens": [2.5]}, "acceptedLengthTokens"),
        ({"method": "MTP", "draftTokens": 2, "acceptedLengthTokens": [1.5, 1.2]}, "not fall"),
        ({"method": "MTP", "draftTokens": 2, "acceptedLengthTokens": [0.5]}, "acceptedLengthTokens"),
        ({"method": "MTP", "draftTokens": 2, "acceptedLengthTokens": [float("nan")]}, "acceptedLengthTokens"),
    ],
)
def test_bad_drafters(tmp_path: Path, drafter: dict[str, Any], fragment: str) -> None:
    code, error = refused(tmp_path, speculation=drafter)
    assert code == 2
    assert fragment in error


# prefixes, conversations, host tier -----------------------------------------------------------------------------------
def test_shared_prefixes_hit_as_often_as_they_are_shared(tmp_path: Path) -> None:
    """Ten prefixes of 1,024 in prompts of 2,048 tokens, 500 requests, a pool for all: every request but the first ten
    finds its prefix, so the rate is 0.5 x 490/500."""
    load = {"requestRate": 2.0, "requests": 500}
    prefixes = {"count": 10, "tokens": 1024}
    words = {"promptTokens": 2048, "outputTokens": 16, "prefixes": prefixes}
    found = predicted(tmp_path, workload={"synthetic": words}, load=load)
    assert found["hitRates"]["prefix"] == pytest.approx(0.5 * 490 / 500, abs=1e-9)
    off = predicted(tmp_path, workload={"synthetic": words}, load=load, prefixCaching=False)
    assert off["hitRates"]["prefix"] is None
    assert off["ttftMs"]["mean"] > found["ttftMs"]["mean"]


def test_a_host_tier_gives_back_what_the_gpu_pool_lost(tmp_path: Path) -> None:
    """A pool for a few of 32 conversations loses their contexts; enough host memory keeps all of them, so that the hit
    rate is that of a pool without limit; the loads cost time on the host's link."""
    talk = {"workload": TALK, "load": {"concurrency": 32, "requests": 384}}
    small = talk | {"kvPoolBytesPerGpu": 6_000_000_000}  # 45,776 tokens
    without = predicted(tmp_path, **small)
    tier = predicted(tmp_path, **small, kvOffload={"hostGibibytes": 256})
    whole = predicted(tmp_path, **talk)
    assert without["hitRates"]["prefix"] < 0.8 * whole["hitRates"]["prefix"]
    assert tier["hitRates"]["prefix"] == pytest.approx(whole["hitRates"]["prefix"], abs=1e-3)
    assert tier["hitRates"]["host"] > 0
    assert "host-tier-modelled" in tier["flags"]
    slow = predicted(tmp_path, **small, kvOffload={"hostGibibytes": 256, "linkGigabytesPerSecond": 1.0})
    assert slow["ttftMs"]["mean"] > tier["ttftMs"]["mean"] + 100


def test_intervals_hold_what_the_agentic_runs_were_off(tmp_path: Path) -> None:
    """Simulated over measured, from docs/simulator.md: 8 clients in HBM, and the worse of 16 and 32 with LMCache."""
    off = {
        "shared": {"tpotMs": 0.92, "ttftMs": 0.83, "throughputTokensPerSecond": 1.07},
        "tier": {"tpotMs": 0.69, "ttftMs": 0.56, "throughputTokensPerSecond": 1.55},
    }
    talk: dict[str, Any] = {"workload": TALK, "load": {"concurrency": 8}}
    tier = talk | {"kvOffload": {"hostGibibytes": 64}}
    found = {"shared": predicted(tmp_path, **talk), "tier": predicted(tmp_path, **tier)}
    pools = talk | PAIR | {"kvOffload": {"hostGibibytes": 64}}
    assert {"host-tier-modelled", "prefixes-simulated"} <= set(predicted(tmp_path, **pools)["flags"])
    for name, factors in off.items():
        for metric, factor in factors.items():
            low, high = found[name]["interval80"][metric]
            value = (low * high) ** 0.5  # the ends are as many times above as below
            assert low < value / factor < high, (name, metric)
    plain = predicted(tmp_path)["interval80"]["tpotMs"]
    alike = found["shared"]["interval80"]["tpotMs"]
    assert plain[1] / plain[0] < alike[1] / alike[0]


@pytest.mark.parametrize(
    ("changes", "fragment"),
    [
        ({"kvOffload": {"hostGibibytes": 64}}, "share prefixes"),
        ({"prefixCaching": True}, "share prefixes"),
        ({"workload": TALK, "kvOffload": {"hostGibibytes": 64}, "prefixCaching": False}, "prefixCaching"),
        ({"workload": TALK, "kvOffload": {"hostGibibytes": 0.0001}}, "hostGibibytes"),
        ({"workload": TALK, "kvOffload": {"hostGibibytes": -1}}, "hostGibibytes"),
        ({"workload": TALK, "load": {"concurrency": 4, "requests": 12}}, "24"),
        ({"workload": {"synthetic": TALK["synthetic"] | {"prefixes": {"count": 1, "tokens": 1}}}}, "at most one"),
        ({"workload": {"synthetic": {"promptTokens": {"minimum": 2, "maximum": 1}, "outputTokens": 1}}}, "minimum"),
        ({"load": {"concurrency": 64, "requests": 10}}, "64"),  # never 64 at once: the label would lie
        ({"load": {"concurrency": 1, "requests": 5, "warmupRequests": 5}}, "warmupRequests"),
        ({"load": {"requestRate": 1.0, "requests": 16_000_000}}, "2097152"),  # memory of exact tails
        ({"load": {"concurrency": 1_000_000}}, "2097152"),
        ({"load": {"requestRate": 1e-6, "requests": 1000}}, "45 simulated days"),
        ({"maxModelLength": 2303}, "2304"),
        ({"workload": {"fixed": {"promptTokens": 131072, "outputTokens": 1}}}, "131072"),
    ],
)
def test_traffic_that_cannot_be(tmp_path: Path, changes: dict[str, Any], fragment: str) -> None:
    code, error = refused(tmp_path, **changes)
    assert code == 2
    assert fragment in error


# traces ---------------------------------------------------------------------------------------------------------------
def test_a_trace_is_found_beside_its_scenario_and_keeps_its_times(tmp_path: Path) -> None:
    rows = [RECORD | {"timestamp": 2000 * n, "hash_ids": [1, 10 + n]} for n in range(20)]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = predicted(tmp_path, workload={"trace": "t.jsonl"}, load=None)
    assert found["requests"] == 20
    assert found["concurrency"] is None
    assert found["hitRates"]["prefix"] == pytest.approx(19 / 40)
    assert found["requestsPerSecond"] == pytest.approx(20 / 38, rel=0.01)  # one every 2 s
    few = predicted(tmp_path, workload={"trace": "t.jsonl"}, load={"concurrency": 21})
    assert "concurrency-not-reached" in few["flags"]
    closed = predicted(tmp_path, workload={"trace": {"path": "t.jsonl", "format": "mooncake"}}, load={"concurrency": 4})
    assert "concurrency-not-reached" not in closed["flags"]
    assert closed["concurrency"] == 4
    assert closed["requestsPerSecond"] > 10 * found["requestsPerSecond"]


@pytest.mark.parametrize(
    ("text", "changes", "fragment"),
    [
        (json.dumps(RECORD) + "\n{", {}, "line 2"),
        ("", {}, "be Mooncake"),
        (None, {}, "readable"),
        (json.dumps(RECORD), {"load": {"requestRate": 1.0, "requests": 5}}, "concurrency"),
        (json.dumps(RECORD), {"load": {"concurrency": 1, "requests": 5}}, "concurrency"),
        (json.dumps(RECORD | {"input_length": 200_000, "hash_ids": list(range(391))}), {}, "131072"),
    ],
)
def test_bad_traces_are_one_line(tmp_path: Path, text: str | None, changes: dict[str, Any], fragment: str) -> None:
    if text is not None:
        (tmp_path / "t.jsonl").write_text(text)
    code, error = refused(tmp_path, workload={"trace": "t.jsonl"}, **({"load": None} | changes))
    assert code == 2
    assert fragment in error


# split pools ----------------------------------------------------------------------------------------------------------
def test_a_split_pays_host_time_twice_and_the_hand_off(tmp_path: Path) -> None:
    """App. D.4 at one client: TTFT = prefill + 2 host + floor + exposed bytes/bandwidth; TPOT is the decode step's."""
    together = predicted(tmp_path)
    split = predicted(tmp_path, **PAIR, handoff={"backend": "nixl"})
    streamed = predicted(tmp_path, **PAIR, handoff={"backend": "mori"})
    host_ms = together["ttftMs"]["mean"] - together["stepBreakdown"]["prefill"]["seconds"] * 1e3
    cache_bytes = 2048 * 2 * 32 * 8 * 128 * 2  # tokens x (K and V) x layers x KV heads x head size x bytes
    assert cache_bytes == 2048 * split["memory"]["decode"]["kvBytesPerTokenPerRank"]
    for found, floor_ms, exposed, bytes_per_s in ((split, 0.005, 1.0, 400e9), (streamed, 0.120, 1 / 32, 47.9e9)):
        handed_ms = floor_ms + exposed * cache_bytes / bytes_per_s * 1e3
        extra_ms = found["ttftMs"]["mean"] - together["ttftMs"]["mean"] - host_ms
        assert extra_ms == pytest.approx(handed_ms, abs=0.002)  # figures are printed with six digits
    assert "handoff-unmeasured" in split["flags"]
    assert "handoff-unmeasured" not in streamed["flags"]
    assert split["tpotMs"]["mean"] == pytest.approx(together["tpotMs"]["mean"], rel=1e-6)
    assert split["gpus"] == 2


def test_pools_have_their_own_replicas_and_caps(tmp_path: Path) -> None:
    pools = {
        "layout": None,
        "prefill": {"layout": {"tensorParallel": 1}, "replicas": 3},
        "decode": {"layout": {"tensorParallel": 1}, "replicas": 2, "maxRunningRequests": 2},
        "load": {"concurrency": 12},
    }
    found = predicted(tmp_path, **pools)
    assert found["gpus"] == 5
    assert found["layout"] == "3 x TP1 prefill + 2 x TP1 decode"
    assert found["queueing"]["meanRunningRequests"] <= 2.0
    assert any("MoRI" in text for text in found["source"]["assumed"])


@pytest.mark.parametrize(
    ("changes", "fragment"),
    [
        ({"layout": None, "prefill": {"tensorParallel": 1}}, "decode"),
        (PAIR | {"layout": {"tensorParallel": 1}}, "layout"),
        (PAIR | {"replicas": 2}, "replicas"),
        ({"handoff": {"backend": "mori"}}, "handoff"),
        (PAIR | {"handoff": {"backend": "carrier-pigeon"}}, "handoff.backend"),
        (PAIR | {"decode": {"layout": {"tensorParallel": 3}}}, "32 "),
        (PAIR | {"decode": {"layout": {"tensorParallel": 1}, "colour": 1}}, "colour"),
    ],
)
def test_bad_pools(tmp_path: Path, changes: dict[str, Any], fragment: str) -> None:
    code, error = refused(tmp_path, **changes)
    assert code == 2
    assert fragment in error


def test_a_hybrid_models_cache_does_not_move_between_widths(tmp_path: Path) -> None:
    """Public case A22: unequal attention TP of a window hybrid without MLA."""
    pools = {"prefill": {"tensorParallel": 2}, "decode": {"tensorParallel": 4}, "layout": None}
    words = {"model": "gpt-oss-120b", "anchors": None, "engine": {"name": "vLLM", "version": "0.12.0"}}
    code, out, error = invoke("predict", "-f", scenario(tmp_path, **words, **pools), "-o", "json")
    assert (code == 2 and "hybrid" in error) or "legality-unverified" in json.loads(out)["flags"]


# saturation -----------------------------------------------------------------------------------------------------------
def _one_place(tmp_path: Path, rate: float, requests: int = 4000) -> tuple[int, str, str]:
    load = {"requestRate": rate, "requests": requests}
    return invoke("predict", "-f", scenario(tmp_path, maxRunningRequests=1, load=load), "-o", "json")


def test_one_place_is_a_queue_with_constant_service(tmp_path: Path) -> None:
    """M/D/1: at half the capacity the mean wait is half a service time; above it there is no mean, and none is said."""
    alone = predicted(tmp_path, load={"concurrency": 1, "requests": 40})
    host_ms = alone["ttftMs"]["mean"] - alone["stepBreakdown"]["prefill"]["seconds"] * 1e3
    service_s = (alone["e2eMs"]["mean"] - host_ms) / 1e3
    code, out, error = _one_place(tmp_path, 0.5 / service_s)
    assert code == 0, error
    found = json.loads(out)
    assert found["queueing"]["meanQueueSeconds"] == pytest.approx(0.5 * service_s, rel=0.1)
    assert not {"near-saturation", "falling-behind"} & set(found["flags"])
    near = json.loads(_one_place(tmp_path, 0.97 / service_s)[1])
    assert "near-saturation" in near["flags"]
    assert near["interval80"]["ttftMs"][1] is None, "the capacity's own error reaches this rate: no upper end is known"
    assert found["interval80"]["ttftMs"][1] is not None
    code, out, error = _one_place(tmp_path, 1.03 / service_s)
    assert code == 1
    assert out == ""
    assert f"{1 / service_s:.3g}" in error  # the capacity


def test_an_error_of_the_step_grows_with_the_load(tmp_path: Path) -> None:
    """Steps k times as long under arrivals at rate r are the steps as they are under k r, on a clock k times slower.

    So the interval's upper end is k times what another prediction says at k r, far from the k that a closed loop has.
    """

    def at(rate: float) -> dict[str, Any]:
        return predicted(tmp_path, load={"requestRate": rate, "requests": 1000})

    def reach(found: dict[str, Any]) -> tuple[float, float]:
        low, high = found["interval80"]["tpotMs"]
        return found["tpotMs"]["mean"] / low, high / found["tpotMs"]["mean"]

    busy, rate = at(15.0), 15.0  # three quarters of what it can serve
    factor = busy["interval80"]["throughputTokensPerSecond"][1] / busy["throughputTokensPerSecond"]
    assert 1.03 < factor < 1.15
    assert busy["interval80"]["tpotMs"][1] == pytest.approx(factor * at(factor * rate)["tpotMs"]["mean"], rel=0.01)
    assert busy["interval80"]["tpotMs"][0] == pytest.approx(at(rate / factor)["tpotMs"]["mean"] / factor, rel=0.01)
    assert min(reach(busy)) > factor**3
    assert max(reach(at(0.5))) < factor**2  # nobody shares a step there


def test_a_trace_that_outruns_its_deployment_says_so(tmp_path: Path) -> None:
    """At its own times a trace can be replayed above capacity: the numbers are of this trace only, and flagged."""
    for gap_ms, behind in ((3000, False), (300, True)):
        rows = [{"timestamp": gap_ms * n, "input_length": 1024, "output_length": 256} for n in range(200)]
        (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        found = predicted(tmp_path, workload={"trace": "t.jsonl"}, load=None, maxRunningRequests=1)
        assert ("falling-behind" in found["flags"]) == behind


def test_thinking_clients_do_not_hide_the_capacity(tmp_path: Path) -> None:
    """Conversations with a minute of thought between turns: what can be served does not depend on the thinking."""
    words = TALK["synthetic"] | {"conversation": {"turns": 4, "turnTokens": 100, "thinkSeconds": 60.0}}
    load = {"requestRate": 2.0, "requests": 400}
    found = predicted(tmp_path, workload={"synthetic": words}, load=load, maxRunningRequests=8)
    assert "near-saturation" not in found["flags"]
    assert "prefixes-simulated" in found["flags"]
    code, error = refused(tmp_path, workload={"synthetic": words}, load=load | {"requestRate": 500.0})
    assert code == 1
    assert "overload" in error


def test_clients_that_stay_in_step_are_named(tmp_path: Path) -> None:
    """Two clients with equal requests are prefilled in one step for ever; apart, each waits for the other's prefill."""

    def at(clients: int, **changes: Any) -> dict[str, Any]:
        words = {"promptTokens": 512, "outputTokens": 64}
        return predicted(tmp_path, load={"concurrency": clients}, **({"workload": {"fixed": words}} | changes))

    alone_ms = at(1)["ttftMs"]["mean"]
    pair = at(2)
    assert "clients-in-step" in pair["flags"]
    # prefill first: the second comes while the first is prefilled, and waits for all of it at worst
    assert alone_ms < pair["ttftMs"]["mean"] < 2 * alone_ms
    assert pair["interval80"]["ttftMs"][1] > 1.5 * alone_ms * 0.9
    drawn = {"synthetic": {"promptTokens": {"minimum": 400, "maximum": 624}, "outputTokens": 64}}
    assert "clients-in-step" not in at(1)["flags"]
    assert "clients-in-step" not in at(2, workload=drawn)["flags"]


# edges ----------------------------------------------------------------------------------------------------------------
def test_one_output_token_has_no_tpot(tmp_path: Path) -> None:
    found = predicted(tmp_path, workload={"fixed": {"promptTokens": 500, "outputTokens": 1}})
    assert found["tpotMs"] is None
    assert found["itlMs"] is None
    assert found["interval80"]["tpotMs"] is None
    assert found["interactivityTokensPerSecond"] is None


def test_a_prompt_longer_than_the_token_budget_is_cut(tmp_path: Path) -> None:
    whole = predicted(tmp_path, workload={"fixed": {"promptTokens": 8192, "outputTokens": 2}})
    cut = predicted(tmp_path, workload={"fixed": {"promptTokens": 8192, "outputTokens": 2}}, chunkTokens=1024)
    assert cut["ttftMs"]["mean"] > whole["ttftMs"]["mean"]  # the fixed part is paid eight times


def test_a_pool_smaller_than_one_request_is_refused(tmp_path: Path) -> None:
    code, error = refused(tmp_path, kvPoolBytesPerGpu=300_000_000)  # 2,288 tokens, 2,304 are needed
    assert code == 1
    assert "2288" in error or "2,288" in error
