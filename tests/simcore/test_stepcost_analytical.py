"""Simulate mode: exact work counts, sane magnitudes without tuning, and the flag that it only ranks."""

from __future__ import annotations

import math

import numpy as np
import pytest

from simcore.cards.layout import Engine, Layout, resolve
from simcore.cards.library import known_models, load_accelerator_card, load_model_card
from simcore.cards.matrices import parameters_count
from simcore.errors import InputError
from simcore.laws.speculation import Drafter
from simcore.stepcost.analytical import analytical
from simcore.stepcost.experts import ExpertRates, experts_s
from simcore.stepcost.roofline import matrix_s, peak_flop_per_s
from simcore.stepcost.speculation import speculative
from simcore.stepcost.step import Step
from simcore.stepcost.work import rank_work

MI355X = load_accelerator_card("MI355X")


@pytest.mark.parametrize("name", ["Llama-3.1-8B", "DeepSeek-V3", "Qwen3.6-35B-A3B", "Kimi-K3", "DeepSeek-V4-Pro"])
def test_work_holds_every_parameter_once(name: str) -> None:
    card = load_model_card(name)
    work = rank_work(card, resolve(Layout(), Engine.SGLANG, is_moe=card.is_moe))
    products = sum(product.inner * product.columns * product.count for product in work.products)
    routed = sum(e.layers_count * e.experts_count * e.matrices_count * e.hidden * e.intermediate for e in work.experts)
    embedding = 0 if card.tied_embeddings else card.hidden * card.vocab_tokens  # looked up, never multiplied
    assert products + routed + embedding == parameters_count(card, norms=False)


def test_bytes_of_a_decode_step_by_hand() -> None:
    # Llama-3.1-8B in BF16: 7,504,658,432 parameters are multiplied, 2 bytes each; KV 32 x 2 x 8 x 128 x 2 per token.
    work = rank_work(load_model_card("Llama-3.1-8B"), resolve(Layout(), Engine.VLLM, is_moe=False))
    assert work.step_weight_bytes == 2 * 7_504_658_432
    assert work.cached_bytes_per_token == (131_072, 0)
    halved = rank_work(load_model_card("Llama-3.1-8B"), resolve(Layout(tensor_parallel=2), Engine.VLLM, is_moe=False))
    assert halved.step_weight_bytes == 7_504_658_432
    # DeepSeek-V3: latent 576 x 2 bytes x 61 layers on every rank, whatever the width.
    card = load_model_card("DeepSeek-V3")
    latent = [
        rank_work(card, resolve(Layout(tensor_parallel=tp), Engine.SGLANG, is_moe=True)).cached_bytes_per_token[0]
        for tp in (1, 8)
    ]
    assert latent == [70_272, 70_272]


def test_roofline_by_hand() -> None:
    arguments = {
        "inner": 4096.0,
        "columns": 16_384.0,
        "weight_bytes": 2.0 * 4096 * 16_384,
        "activation_bytes_per_value": 2.0,
        "read_bytes_per_s": 4e12,
        "flop_per_s": 1e15,
        "units_count": 256,
    }
    one, many = matrix_s(np.array([1.0, 8192.0]), **arguments)  # type: ignore[arg-type]
    # One row: 134,217,728 weight bytes and 40,960 of activations at 4 TB/s. 8,192 rows: 32 x 64 tiles of 256, 8 waves,
    # nothing wasted: 2 x 8192 x 4096 x 16384 / 1e15.
    assert one == pytest.approx((134_217_728 + 2 * (4096 + 16_384)) / 4e12)
    assert many == pytest.approx(2 * 8192 * 4096 * 16_384 / 1e15)


def test_peak_is_the_wider_format_with_a_native_path() -> None:
    assert peak_flop_per_s(MI355X, "fp8", "fp8") == 5033.2e12
    assert peak_flop_per_s(MI355X, "mxfp4", "bf16") == 2516.6e12
    assert peak_flop_per_s(load_accelerator_card("MI300X"), "mxfp4", "mxfp4") == pytest.approx(2614.9e12, rel=1e-3)


# Paper Table 20, TP1 PP1, 1024-token prompts: TPOT [ms] at 1, 16, 64 clients. Nothing here was fitted to them.
TABLE_20_MS = {
    "Llama-3.1-8B": (4.46, 5.03, 7.73),
    "Qwen3-14B-FP8": (8.86, 10.26, 12.79),
    "Qwen3.6-35B-A3B": (3.95, 7.51, 12.82),
}


@pytest.mark.parametrize("name", TABLE_20_MS)
def test_magnitudes_are_right_within_a_factor_of_two(name: str) -> None:
    cost = analytical(load_model_card(name), MI355X, layout=Layout(), engine=Engine.SGLANG)
    for batch, measured_ms in zip((1, 16, 64), TABLE_20_MS[name], strict=True):
        assert 0.5 < 1e3 * cost.price(Step.of(contexts=[1536] * batch))[0] / measured_ms < 2


@pytest.mark.parametrize("name", known_models())
def test_every_built_in_model_is_priced(name: str) -> None:
    card = load_model_card(name)
    for layout in (Layout(tensor_parallel=8), Layout(tensor_parallel=8, expert_parallel=8 if card.is_moe else 1)):
        cost = analytical(card, MI355X, layout=layout, engine=Engine.SGLANG)
        seconds, parts = cost.price(Step.of(contexts=[4000] * 8, chunks=[(0, 2048)], window_tokens=cost.window_tokens))
        assert math.isfinite(seconds)
        assert 1e-3 < seconds < 10
        assert min(value for key, value in parts.items() if key != "sharedInMixedStep") >= 0
        assert "ranking-only" in cost.flags


def test_assumptions_are_stated() -> None:
    cost = analytical(load_model_card("Llama-3.1-8B"), MI355X, layout=Layout(), engine=Engine.VLLM)
    assert any("attention.peak_frac = 0.3 (assumed)" in reason for reason in cost.reasons)
    assert any("borrowed from MI300X" in reason for reason in cost.reasons)


def test_wider_layouts_are_faster_and_larger_steps_slower() -> None:
    card = load_model_card("Qwen3-32B")
    widths = [
        analytical(card, MI355X, layout=Layout(tensor_parallel=tp), engine=Engine.VLLM).price(
            Step.of(contexts=[2000] * 16)
        )[0]
        for tp in (1, 2, 4, 8)
    ]
    assert widths == sorted(widths, reverse=True)
    cost = analytical(card, MI355X, layout=Layout(), engine=Engine.VLLM)
    batches = cost.price_many(np.arange(1, 257), 2000 * np.arange(1, 257))
    assert np.all(np.diff(batches) >= 0)


def test_the_busiest_rank_of_app_b3_gates_the_experts() -> None:
    # 256 experts, top-8, 4 tokens, EP8: the busiest rank reads 1.75 times the mean (paper), 1.716 by sampling.
    card = load_model_card("DeepSeek-V3")
    rates = ExpertRates(1e13, 1e18)
    one, eight = (
        experts_s(
            rank_work(card, resolve(Layout(tensor_parallel=8, expert_parallel=ep), Engine.VLLM, is_moe=True)).experts,
            np.array([512.0]),
            rates,
        )[0]
        for ep in (1, 8)
    )
    assert eight / one == pytest.approx(1.0, abs=0.01)  # 512 tokens touch nearly all experts on every rank
    few = experts_s(
        rank_work(card, resolve(Layout(tensor_parallel=8, expert_parallel=8), Engine.VLLM, is_moe=True)).experts,
        np.array([4.0]),
        rates,
    )[0]
    # 256 (1 - (1 - 8/256)^4) = 30.5 experts, times the coverage factor 0.962 at 4 tokens, / 8 = 3.67 per rank,
    # x 1.716 = 6.30 read at 0.25^(1 - log16 6.30) = 0.628 of the bandwidth; 58 layers of 44.04 MB per expert.
    factor = math.exp(math.log(0.89) * math.log(4) / math.log(64))
    read = 256 * (1 - (1 - 8 / 256) ** 4) * factor / 8 * 1.716
    share = 0.25 ** (1 - math.log(read) / math.log(16))
    assert few == pytest.approx(58 * read * 3 * 7168 * 2048 / (1e13 * share), rel=0.005)


def test_speculation_prices_a_verify_step_and_the_drafter() -> None:
    card = load_model_card("DeepSeek-V3")
    base = analytical(card, MI355X, layout=Layout(tensor_parallel=8), engine=Engine.SGLANG)
    cost = speculative(base, base, drafter=Drafter.MTP, depth=3, committed_tokens=2.66)
    plain, (total, parts) = base.price(Step.of(contexts=[2048] * 4))[0], cost.price(Step.of(contexts=[2048] * 4))
    wide = base.price(Step(batch=16, context_tokens=4 * 2048))[0]  # 4 requests x 4 tokens, their caches read once
    assert total - parts["draft"] == pytest.approx(wide)
    assert plain < total < 2 * plain
    assert cost.table(64).tokens_per_step_permille == 2660
    free = speculative(base, base, drafter=Drafter.NGRAM, depth=3, committed_tokens=1.2)
    assert free.price(Step.of(contexts=[2048]))[1].get("draft", 0.0) == 0.0
    for depth, tokens, word in ((9, 2.0, "depth"), (3, 4.5, "acceptedLength")):
        with pytest.raises(InputError, match=word):
            speculative(base, base, drafter=Drafter.MTP, depth=depth, committed_tokens=tokens)
    with pytest.raises(InputError, match="measured with speculation"):
        speculative(cost, base, drafter=Drafter.MTP, depth=1, committed_tokens=1.5)
