"""Colocated or disaggregated: one client by hand, the budget, the pattern of the paper's Table 3, the command."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
import yaml

from inferasim_operator.cli.explain import explain_files
from simcore.cards import load_accelerator_card, load_model_card
from simcore.cards.layout import Engine, Layout
from simcore.errors import InputError
from simcore.laws.handoff import HandoffBackend
from simcore.prediction.predictor import Mode, Predictor, Setting
from simcore.prediction.shapes import EngineOption
from simcore.search import plan, split
from simcore.search.tiers import default_tiers
from simcore.stepcost.step import Step
from tests.search_spaces import example_anchors

LAYOUTS = (Layout(1), Layout(2), Layout(4), Layout(4, attention_data_parallel=4))
EXAMPLES = Path(__file__).parents[2] / "examples"


def setup(prompt_tokens: int, loads: tuple[int, ...], budget: int = 8) -> tuple[plan.Question, Predictor]:
    card, accelerator = load_model_card("Qwen3.6-35B-A3B"), load_accelerator_card("MI355X")
    setting = Setting(card, accelerator, example_anchors(), Mode.ANCHORED, prompt_tokens, 1024)
    question = plan.Question((EngineOption(Engine.SGLANG, layouts=LAYOUTS),), 8, 1, budget, loads)
    return question, Predictor(setting)


def test_one_client_by_hand() -> None:
    """Alone, a prompt is prefilled, handed over, and decoded without company: no term of the other pool appears."""
    question, predictor = setup(1024, (1,), budget=2)
    (found,) = split.split_candidates(question, predictor, HandoffBackend.MOONCAKE)
    assert found.gpus_count == 2
    cost = predictor.facts(found.prefill).cost
    prefill_s, _ = cost.price(Step.of(chunks=[(0, 1024)]))
    host_s = cost.host.request_s + 1024 * cost.host.s_per_token
    # 40 layers of which a quarter keep a cache: 10 x 2 x 2 KV heads x 256 x 2 bytes = 20,480 bytes a token; the link of
    # Mooncake is exposed in full.
    assert predictor.facts(found.prefill).kv_bytes_per_token == 20_480
    from simcore.data.constants import constant

    floor = constant("handoff.mooncake.floor_s").value
    handoff_s = floor + 1024 * 20_480 / constant("handoff.mooncake.bandwidth_bytes_per_s").value
    step_s, _ = cost.price(Step.of(contexts=[1024 + 512], window_tokens=cost.window_tokens))
    assert found.tpot_s == pytest.approx(step_s, rel=0.01)
    # The first token leaves with the prefill or one decode step later, depending on who emits it.
    assert prefill_s + host_s + handoff_s - 1e-4 <= found.ttft_s <= prefill_s + host_s + handoff_s + step_s * 1.1


@cache
def compared(prompt_tokens: int) -> tuple[split.Comparison, ...]:
    question, predictor = setup(prompt_tokens, (16, 64, 256))
    answer = plan.answer(question, predictor)
    splits = split.split_candidates(question, predictor, HandoffBackend.MORI)
    assert all(one.gpus_count <= question.gpu_budget_count for one in splits)
    assert len({one.key for one in splits}) == len(splits)
    return split.compare(answer, splits, default_tiers())


def test_short_prompts_favour_colocation_and_long_ones_a_split() -> None:
    """Paper Table 3: at 1k/1k colocation wins or ties every tier both meet; at 8k/1k splits win in the interactive."""
    for item in compared(1024):
        assert item.gain_factor is None or item.gain_factor <= 1.02, item.tier.name
    gains = {item.tier.name: item.gain_factor for item in compared(8192)}
    assert gains["interactive"] is not None
    assert gains["interactive"] > 1.1


def test_a_comparison_is_of_the_best_that_qualify() -> None:
    for item in compared(8192):
        if item.split is not None and item.tier.max_ttft_s is not None:
            assert item.split.ttft_s <= item.tier.max_ttft_s / 2
        if item.split is not None and item.tier.min_interactivity_tokens_per_s:
            assert 1 / item.split.tpot_s >= item.tier.min_interactivity_tokens_per_s


def test_a_budget_of_one_gpu_has_no_split() -> None:
    question, predictor = setup(1024, (1, 16), budget=1)
    assert split.split_candidates(question, predictor, HandoffBackend.MORI) == []


def test_the_command_compares(tmp_path: Path) -> None:
    document = yaml.safe_load((EXAMPLES / "plan.yaml").read_text())
    document["spec"]["engines"][0]["layouts"] = [{"tensorParallel": 1}, {"tensorParallel": 2}]
    document["spec"]["load"] = {"concurrencies": [8, 64]}
    path = tmp_path / "plan.yaml"
    path.write_text(yaml.safe_dump(document))
    found = explain_files([str(path), str(EXAMPLES / "anchors")], "MoRI")["disaggregation"]
    assert found["splits"] > 0
    assert [item["tier"] for item in found["tiers"]] == ["realtime", "interactive", "responsive", "bulk"]
    bulk = found["tiers"][3]
    assert bulk["gainPermille"] < 0
    assert bulk["split"]["tokensPerSecondPerGpu"] < bulk["colocated"]["tokensPerSecondPerGpu"]
    with pytest.raises(InputError, match="NIXL"):
        explain_files([str(path)], "carrier-pigeon")
