"""Prefill and all-reduces at another width, against sums done by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from simcore.cards.layout import Layout
from simcore.cards.library import load_accelerator_card, load_model_card, with_weights_format
from simcore.stepcost.anchored import anchored
from simcore.stepcost.calibration import calibration
from simcore.stepcost.features import LayoutFeatures
from simcore.stepcost.step import Step
from simcore.stepcost.width import WidthLaw, WidthMove
from simcore.validate.anchor_export import fit_anchor
from simcore.validate.cells import Cell
from simcore.validate.corpus import CorpusRow, parse_corpus
from simcore.validate.evaluate import _card_features, card_features
from simcore.validate.layout_fit import FittedLayout, Prefill
from simcore.validate.project import Projection
from simcore.validate.series import fit_series


def _features(model: str, width: int, accelerator: str = "MI355X") -> LayoutFeatures:
    found = _card_features(model, accelerator, "vLLM", "", Layout(tensor_parallel=width))
    assert found is not None
    return found


def _projection(model: str, narrow: int, wide: int, s_per_token: float) -> Projection:
    cell = Cell((1024, 1024), 4, 1024.0, 1024.0, 0.2, 0.01, False, 4.0, False)
    fitted = FittedLayout(
        (cell,), Prefill(0.02, s_per_token, 0.0), 0.0, 0.0, _features(model, narrow), np.array([0.01]), np.ones(1)
    )
    return Projection(fitted, _features(model, wide), WidthLaw.SPLIT_FLOOR, narrow, wide, calibration())


def _move(projection: Projection) -> WidthMove:
    assert projection.move is not None
    return projection.move


@pytest.mark.parametrize(
    ("model", "repeated_us"),
    [
        ("Qwen3-32B", 0.98304),  # 12 passes x 64 layers x 5120 x 2 B / 8 TB/s
        ("Qwen3-Next-80B-A3B-Instruct-FP8", 1.277952),  # (12 + 4 x 10 experts) x 48 x 2048 x 2 B / 8 TB/s
        ("Kimi-K2.5-MXFP4", 4.809728),  # (12 + 4 x 8) x 61 x 7168 x 2 B / 8 TB/s
    ],
)
def test_repeated_prefill_is_hidden_states_over_the_hbm_rate(model: str, repeated_us: float) -> None:
    projection = _projection(model, 4, 8, 20e-6)
    assert _move(projection).prefill_repeated_s(_features(model, 8)) * 1e6 == pytest.approx(repeated_us, rel=1e-9)


def test_repeated_work_does_not_divide() -> None:
    # From one GPU, 14 us a token: 1.277952 repeated, 12.722048 over four, and 96 all-reduces of 2048 x 2 B twice
    # 3/4 over three links of 76.8 GB/s.
    projection = _projection("Qwen3-Next-80B-A3B-Instruct-FP8", 1, 4, 14e-6)
    by_hand_us = 1.277952 + 12.722048 / 4 + 96 * 2048 * 2 * 2 * 0.75 / 230.4e9 * 1e6
    assert projection.prefill.s_per_token * 1e6 == pytest.approx(by_hand_us, rel=1e-6)
    assert projection.prefill.fixed_s == 0.02


def test_collectives_give_way_where_a_measured_prefill_has_no_room() -> None:
    # 2 us a token hold 1.6 us of known work: 1.277952 repeated; the rest of the cap is all that all-reduces can be.
    projection = _projection("Qwen3-Next-80B-A3B-Instruct-FP8", 4, 8, 2e-6)
    to_us = _features("Qwen3-Next-80B-A3B-Instruct-FP8", 8).communication.link_s_per_token * 1e6
    assert projection.prefill.s_per_token * 1e6 == pytest.approx(1.277952 + 0.2 + to_us, rel=1e-6)


def test_decode_all_reduce_on_the_mesh_is_table_19() -> None:
    # gpt-oss-120b, two GPUs, 128 tokens of 2880 x 2 B: 4.9 us + 737,280 B / 60.4 GB/s, and 4 us of serving, 72 times.
    features = _features("gpt-oss-120b", 2)
    projection = _projection("gpt-oss-120b", 1, 2, 9e-6)
    by_hand_s = 72 * (4.9e-6 + 737_280 / 60.4e9 + 4e-6)
    assert _move(projection).collective_s(features, np.array([128.0]))[0] == pytest.approx(by_hand_s, rel=1e-6)


def test_other_gpus_keep_the_learnt_all_reduce() -> None:
    features = _features("Qwen3-32B", 2, "h100_sxm")
    assert not features.communication.is_measured
    projection = _projection("Qwen3-32B", 1, 2, 9e-6)
    learnt = replace(calibration(), reduce_latency_s=1e-5, reduce_bytes_per_s=4.2e10)
    by_hand_s = 128 * (1e-5 + 64 * 5120 * 2 / 4.2e10)  # 2 x 64 layers; a ring of two sends the message once
    move = _move(replace(projection, calibration=learnt))
    assert move.collective_s(features, np.array([64.0]))[0] == pytest.approx(by_hand_s, rel=1e-6)


LADDER = (
    "series,role,engine,model,accelerator,weights_dtype,tp,isl_tokens,osl_tokens,concurrency,tpot_ms,ttft_ms,"
    "throughput_tok_s\n"
)


def _rows(model: str, dtype: str, width: int) -> tuple[CorpusRow, ...]:
    """A sweep of one prompt length, made up: 9 ms at one client, TTFT in proportion to the clients."""
    lines = []
    for clients in (1, 4, 16, 64):
        tpot, ttft = 9.0 + 0.25 * clients**0.8, 60.0 * clients**0.5
        rate = clients * 1024 / (ttft + 1023 * tpot) * 1e3
        lines.append(f"s,anchor,SGLang,{model},MI355X,{dtype},{width},1024,1024,{clients},{tpot},{ttft},{rate}")
    return parse_corpus(LADDER + "\n".join(lines) + "\n")


@pytest.mark.parametrize(
    ("model", "dtype", "target"),
    [
        ("Llama-3.1-70B", "fp8", Layout(tensor_parallel=8)),
        ("MiniMax-M2.5", "fp8", Layout(tensor_parallel=4)),
        ("DeepSeek-R1", "fp8", Layout(tensor_parallel=8, expert_parallel=8)),
        ("gpt-oss-120b", "", Layout(tensor_parallel=1)),
    ],
)
def test_validate_and_plans_price_the_same_step(model: str, dtype: str, target: Layout) -> None:
    """What `inferasim validate` scores is what a plan with the fitted anchor uses, decode and prefill."""
    rows = _rows(model, dtype, 2)
    fitted = fit_series("s", rows, card_features, calibration(), WidthLaw.SPLIT_FLOOR)
    projection, _ = fitted.projection(rows[0], target)
    card = with_weights_format(load_model_card(model), dtype) if dtype else load_model_card(model)
    cost = anchored(fit_anchor(rows), layout=target, model=card, accelerator=load_accelerator_card("MI355X"))
    assert cost.law is WidthLaw.SPLIT_FLOOR
    context = round(projection.fitted.cells[0].context_tokens)
    for batch in (1, 4, 16, 64):
        step = Step.of(contexts=[context] * batch, window_tokens=cost.window_tokens)
        wanted = projection.step_s(batch, context, (1024, 1024))
        assert cost.price(step)[0] == pytest.approx(wanted, rel=0.005), batch
    for tokens in (1024, 8192):
        wanted = projection.prefill.seconds(tokens)
        assert cost.price(Step.of(chunks=[(0, tokens)]))[0] == pytest.approx(wanted, rel=1e-6)
