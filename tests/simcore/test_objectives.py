"""The 24 objectives: their list, and each figure against a hand calculation from what the simulator and cards say."""

from __future__ import annotations

import math

import numpy as np
import pytest

from simcore.cards.layout import Engine
from simcore.errors import UnknownNameError
from simcore.prediction.predictor import Mode
from simcore.search.objectives import Direction, Slo, objective, objectives
from tests.search_spaces import space

# App. K, transcribed: six throughputs, six latencies, two capacities, four memories, three interferences, two
# communications, one cost.
APP_K = {
    "throughput": 6,
    "latency": 6,
    "capacity": 2,
    "memory": 4,
    "interference": 3,
    "communication": 2,
    "cost": 1,
}


def figure(name: str, configuration: dict[str, object] | None = None, **changes: object) -> float:
    trial = space(name, **changes).evaluate(configuration or {"load.concurrency": 8})  # type: ignore[arg-type]
    assert trial.legal, trial.reason
    value = trial.figures[name]
    assert value is not None
    return value


def test_there_are_24() -> None:
    assert len(objectives()) == sum(APP_K.values()) == 24
    with pytest.raises(UnknownNameError, match="ttft"):
        objective("ttf")


def test_scores_are_signed_so_that_more_is_better() -> None:
    assert objective("ttft").score(2.0) == -2.0
    assert objective("interactivity").score(2.0) == 2.0
    assert {o.direction for o in objectives().values()} == set(Direction)


@pytest.mark.parametrize("name", sorted(objectives()))
@pytest.mark.parametrize("engine", [Engine.VLLM, Engine.SGLANG])
def test_every_objective_has_a_finite_figure(name: str, engine: Engine) -> None:
    value = figure(name, engine=engine)
    assert math.isfinite(value)
    assert value >= 0


def test_throughputs_by_hand() -> None:
    """512 prompt and 128 output tokens: the prompt side carries four times the output side; 8 GPUs."""
    decode = figure("decodeThroughput")
    assert figure("prefillThroughput") == pytest.approx(4 * decode)
    assert figure("totalThroughput") == pytest.approx(5 * decode)
    for name in ("decode", "prefill", "total"):
        assert figure(f"{name}ThroughputPerGpu") == pytest.approx(figure(f"{name}Throughput") / 8)


def test_latencies_agree_with_each_other() -> None:
    """E2E = TTFT + (output - 1) TPOT per request, so of means too; interactivity and rate are their inverses."""
    ttft, tpot, e2e = (figure(name) for name in ("ttft", "tpot", "endToEndLatency"))
    assert e2e == pytest.approx(ttft + 127 * tpot, rel=1e-9)
    assert figure("interactivity") == pytest.approx(1 / tpot)
    assert figure("requestGenerationRate") == pytest.approx(128 / e2e)


def test_one_client_is_neither_polluted_nor_mixed() -> None:
    """With one client no prompt can meet a decode step: TPOT is the uncontended step, contexts growing around it."""
    alone = {"load.concurrency": 1}
    for engine in (Engine.VLLM, Engine.SGLANG):
        assert figure("mixedStepFraction", alone, engine=engine) == 0.0
        step, tpot = (figure(name, alone, engine=engine) for name in ("uncontendedDecodeStep", "tpot"))
        assert tpot == pytest.approx(step, rel=0.01)
        assert figure("tpotPollution", alone, engine=engine) <= 0.01 * tpot


def test_engines_that_mix_have_mixed_steps_and_the_others_none() -> None:
    """Public case B11: vLLM mixes, SGLang prefills first and ATOM prefills alone."""
    busy: dict[str, object] = {"load.concurrency": 64}
    assert figure("mixedStepFraction", busy, engine=Engine.VLLM) > 0
    assert figure("mixedStepFraction", busy, engine=Engine.SGLANG) == 0.0
    assert figure("mixedStepFraction", busy, engine=Engine.ATOM) == 0.0
    assert figure("tpotPollution", busy, engine=Engine.VLLM) > 0


def test_a_mixed_step_costs_at_least_its_larger_part() -> None:
    for engine in (Engine.VLLM, Engine.SGLANG, Engine.ATOM):
        mixed, step = (figure(name, engine=engine) for name in ("mixedDecodeStep", "uncontendedDecodeStep"))
        assert mixed > step


def test_memory_by_hand() -> None:
    """Qwen3-14B stores 14.77e9 parameters in 16 bits; TP8 holds an eighth of nearly all of it."""
    weights = figure("weightMemory")
    assert weights == pytest.approx(2 * 14.77e9 / 8, rel=0.06)
    parts = weights + figure("activationMemory") + figure("kvCacheMemory")
    assert figure("memoryPerGpu") == pytest.approx(parts)
    # 40 layers, 8 KV heads of 128, keys and values in 16 bits, one head per GPU: 20,480 bytes a token; 8 clients hold
    # at most 640 tokens each.
    assert figure("kvCacheMemory") <= 8 * 640 * 20_480 * 1.01
    assert figure("kvCacheMemory") >= 8 * 512 * 20_480 * 0.9


def test_sequences_are_bounded_by_the_cap_and_the_pool() -> None:
    """A pool of a TP8 engine holds millions of tokens: the running cap of 16 binds; two clients more would queue."""
    capped: dict[str, object] = {"load.concurrency": 8, "maxRunningRequests": 16}
    assert figure("maxConcurrentSequences", capped) == 16
    assert figure("maxSustainableConcurrency", capped) <= 16


def test_a_tighter_slo_sustains_no_more_clients() -> None:
    free = figure("maxSustainableConcurrency")
    slo = Slo(max_tpot_s=1.5 * figure("tpot", {"load.concurrency": 8}))
    held = figure("maxSustainableConcurrency", slo=slo)
    assert 8 <= held <= free


def test_communication_is_nothing_on_one_gpu_and_grows_with_the_prompt() -> None:
    one: dict[str, object] = {"layout.tensorParallel": 1, "load.concurrency": 8}
    assert figure("decodeCommunication", one) == 0.0
    assert figure("prefillCommunication", one) == 0.0
    assert figure("prefillCommunication", prompt_tokens=2048) > figure("prefillCommunication") > 0


def test_the_cost_of_a_replica_is_its_gpus() -> None:
    assert figure("replicaGpuCost", {"layout.tensorParallel": 2, "replicas": 4, "load.concurrency": 8}) == 2.0


def test_a_missed_budget_is_a_rejection_with_its_reason() -> None:
    trial = space(slo=Slo(max_ttft_s=1e-6)).evaluate({})
    assert not trial.legal
    assert trial.score_value is None
    assert "misses the budget" in trial.reason


def test_uncontended_step_is_the_step_model_s(monkeypatch: pytest.MonkeyPatch) -> None:
    """Price the same step through another door: the table that the simulator runs on."""
    here = space("uncontendedDecodeStep", mode=Mode.SIMULATE)
    trial = here.evaluate({"load.concurrency": 8})
    assert trial.candidate is not None
    facts = here._predictors[here._overrides(here.complete({}))].facts(trial.candidate.shape)
    context = 512 + 64
    seconds = facts.cost.table(8).price_ps(8, 8 * context, 0, 0, 0) / 1e12
    assert trial.figures["uncontendedDecodeStep"] == pytest.approx(seconds, rel=1e-6)
    assert np.isfinite(seconds)
