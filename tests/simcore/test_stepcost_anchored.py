"""Anchored mode against hand calculations of the laws and against single steps measured at four widths."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simcore.anchors.schema import Anchor, anchor_from, load_anchor
from simcore.cards.accelerator import AcceleratorCard
from simcore.cards.layout import Layout
from simcore.cards.library import load_accelerator_card, load_model_card
from simcore.errors import InputError
from simcore.laws.routing_replay import ExpertLoad, Phase
from simcore.stepcost.anchored import AnchoredStepCost, anchored
from simcore.stepcost.calibration import calibration
from simcore.stepcost.experts import recorded_router
from simcore.stepcost.step import Step
from simcore.stepcost.width import WidthLaw

MI355X = load_accelerator_card("MI355X")
EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "anchors"


def made(
    steps: dict[int, float],
    *,
    long_steps: dict[int, float] | None = None,
    context: int = 1000,
    prefill: tuple[float, float, float] = (10.0, 20.0, 0.1),
    **signature: Any,
) -> Anchor:
    """An anchor with these decode steps [ms] at 1,000 (and 9,000) context tokens and T(n) = F + c1 n + c2 n^2."""
    defaults: dict[str, Any] = {
        "accelerator": "MI355X",
        "engine": "VLLM",
        "model": "Qwen3-32B",
        "weightsDtype": "bf16",
        "tensorParallel": 1,
        "graphCapture": {"mode": "none"},
    }
    fixed, slope, square = prefill
    sweeps = [(context, steps)] + ([(context + 8000, long_steps)] if long_steps else [])
    return anchor_from(
        {
            "schema": "inferasim.dev/anchor/v1",
            "signature": defaults | signature,
            "decode": [
                {
                    "promptTokens": length,
                    "contextTokens": length,
                    "points": [{"batch": b, "stepMilliseconds": ms} for b, ms in points.items()],
                }
                for length, points in sweeps
            ],
            "prefill": {
                "points": [{"promptTokens": 1000, "milliseconds": fixed + slope + square}],
                "fit": {
                    "fixedMilliseconds": fixed,
                    "perTokenMicroseconds": slope,
                    "perTokenSquaredNanoseconds": square,
                    "residualPercent": 0,
                },
            },
            "provenance": {"source": "harvested", "realWeights": True, "prefixCachingOff": True},
        }
    )


def decode_ms(cost: AnchoredStepCost, batch: int, context: int = 1000) -> float:
    return 1e3 * cost.price(Step(batch=batch, context_tokens=batch * context))[0]


def prefill_ms(cost: AnchoredStepCost, tokens: int) -> float:
    return 1e3 * cost.price(Step.of(chunks=[(0, tokens)]))[0]


def test_at_its_own_layout_an_anchor_gives_back_its_points() -> None:
    anchor = made({1: 10.0, 4: 11.0, 16: 14.0})
    cost = anchored(anchor, layout=Layout(), model=load_model_card("Qwen3-32B"), accelerator=MI355X)
    assert [decode_ms(cost, b) for b in (1, 4, 16)] == pytest.approx([10.0, 11.0, 14.0], rel=1e-12)
    assert prefill_ms(cost, 1000) == pytest.approx(10 + 20 + 0.1)
    assert "nothing moved" in cost.reasons[0]


def test_eq_1_by_hand() -> None:
    # TP4 -> TP8: f = 10 stays, the excess 4 ms at batch 16 halves; F = 10 stays, c1 and c2 halve.
    anchor = made({1: 10.0, 16: 14.0}, tensorParallel=4)
    cost = anchored(anchor, layout=Layout(tensor_parallel=8))
    assert cost.law is WidthLaw.PAPER
    assert decode_ms(cost, 1) == pytest.approx(10.0)
    assert decode_ms(cost, 16) == pytest.approx(12.0)
    assert prefill_ms(cost, 1000) == pytest.approx(10 + 10 + 0.05)
    assert "without a model card" in cost.reasons[0]


def test_measured_shrink_of_a_sibling_replaces_the_ideal_one() -> None:
    # Excess at batch 16: 6 ms at TP2, 4.2 ms at TP4 -> 0.7 per doubling; TP4 -> TP8: 10 + 4.2 * 0.7, TP16: * 0.7^2.
    sibling = made({1: 10.0, 16: 16.0}, tensorParallel=2)
    anchor = made({1: 10.0, 16: 14.2}, tensorParallel=4)
    for width, factor in ((8, 0.7), (16, 0.49)):
        cost = anchored(anchor, layout=Layout(tensor_parallel=width), sibling=sibling)
        assert decode_ms(cost, 16) == pytest.approx(10 + 4.2 * factor)
    with pytest.raises(InputError, match="be half of 4"):
        anchored(anchor, layout=Layout(tensor_parallel=8), sibling=anchor)


def test_a_small_excess_measures_no_shrink() -> None:
    sibling, anchor = made({1: 10.0, 16: 10.9}, tensorParallel=2), made({1: 10.0, 16: 10.8}, tensorParallel=4)
    cost = anchored(anchor, layout=Layout(tensor_parallel=8), sibling=sibling)
    assert decode_ms(cost, 16) == pytest.approx(10.4)
    assert any("w/w' stands" in reason for reason in cost.reasons)


def test_baselines() -> None:
    anchor = made({1: 10.0, 16: 14.0}, tensorParallel=4)
    for law, wanted in ((WidthLaw.DIVIDE, 7.0), (WidthLaw.SAME, 14.0)):
        assert decode_ms(anchored(anchor, layout=Layout(tensor_parallel=8), law=law), 16) == pytest.approx(wanted)


def test_graph_capture_is_a_staircase() -> None:
    # Paper 3.1.2: a batch of 33 costs as much as 40. Above the largest graph nothing is padded.
    sizes = [1, 8, 16, 24, 32, 40]
    steps = {1: 10.0, 8: 11.0, 16: 12.0, 24: 13.0, 32: 14.0, 40: 15.0}
    cost = anchored(made(steps, graphCapture={"mode": "full", "sizes": sizes}), layout=Layout())
    assert decode_ms(cost, 33) == pytest.approx(15.0)
    assert decode_ms(cost, 40) == pytest.approx(15.0)
    assert decode_ms(cost, 48) == pytest.approx(16.0)
    eager = anchored(made(steps), layout=Layout())
    assert decode_ms(eager, 36) == pytest.approx(14.5)


def test_two_prompt_lengths_measure_the_context_slope() -> None:
    # 8,000 tokens more per request cost 1 ms at batch 1 and 8 ms at batch 16: 125 and 62.5 ns per token.
    cost = anchored(made({1: 10.0, 16: 14.0}, long_steps={1: 11.0, 16: 22.0}), layout=Layout())
    assert decode_ms(cost, 1, 9000) == pytest.approx(11.0)
    assert decode_ms(cost, 16, 5000) == pytest.approx(18.0)
    assert "context-slope-from-card" not in cost.flags


def test_one_prompt_length_takes_the_card_or_stays() -> None:
    anchor = made({1: 10.0, 64: 20.0})
    alone = anchored(anchor, layout=Layout())
    assert decode_ms(alone, 64, 8000) == pytest.approx(decode_ms(alone, 64))
    assert "context-slope-unknown" in alone.flags
    # Qwen3-32B: 64 layers x 2 x 8 heads x 128 x 2 bytes = 262,144 bytes per token at 0.6 x 8 TB/s = 54.6 ns.
    card = anchored(anchor, layout=Layout(), model=load_model_card("Qwen3-32B"), accelerator=MI355X)
    grown = decode_ms(card, 64, 8000) - decode_ms(card, 64, 1000)
    assert grown == pytest.approx(64 * 7000 * 262_144 / 4.8e12 * 1e3)
    assert "context-slope-from-card" in card.flags


def test_a_card_slope_never_exceeds_what_the_sweep_grew() -> None:
    flat = made({1: 10.0, 64: 10.5}, context=8000)
    cost = anchored(flat, layout=Layout(), model=load_model_card("Qwen3-32B"), accelerator=MI355X)
    assert "context-slope-capped" in cost.flags
    assert decode_ms(cost, 64, 8000) == pytest.approx(10.5)
    assert decode_ms(cost, 64, 1) >= decode_ms(cost, 1, 1)


# Batch-1 steps of Qwen3-32B BF16 on vLLM 0.20.1 at TP 1 to 8, context about 4k (aiconfigurator FPM runs, Apache-2.0).
QWEN3_32B_MS = {1: 13.30, 2: 8.41, 4: 5.95, 8: 4.52}
SWITCHED = AcceleratorCard(
    "B300-class",
    "sm",
    288 << 30,
    8e12,
    {"bf16": 2.5e15},
    8,
    900e9,
    100e9,
    60e9,
    (),
    (),
    "",
    "ocp",
    validation_only=True,
)


@pytest.mark.parametrize("source", [1, 2, 4])
def test_the_split_floor_carries_a_dense_model_where_eq_1_cannot(source: int) -> None:
    anchor = made({1: QWEN3_32B_MS[source], 8: QWEN3_32B_MS[source] + 0.5}, context=4100, tensorParallel=source)
    card = load_model_card("Qwen3-32B")
    for target in (width for width in QWEN3_32B_MS if width > source):
        layout, wanted = Layout(tensor_parallel=target), QWEN3_32B_MS[target]
        learnt = calibration().of_single_steps()
        split = anchored(anchor, layout=layout, model=card, accelerator=SWITCHED, learnt=learnt)
        assert split.law is WidthLaw.SPLIT_FLOOR
        # The learnt share of the bandwidth is a compromise with larger batches: 17 % at worst (TP2 to TP8), else 11 %.
        assert decode_ms(split, 1, 4100) == pytest.approx(wanted, rel=0.17 if (source, target) == (2, 8) else 0.11)
        paper = anchored(anchor, layout=layout, model=card, accelerator=SWITCHED, law=WidthLaw.PAPER)
        assert abs(decode_ms(paper, 1, 4100) / wanted - 1) > 0.3


def test_latent_cache_does_not_shrink_with_width_and_head_cache_does() -> None:
    layouts = Layout(tensor_parallel=8), Layout(tensor_parallel=8, attention_data_parallel=8)
    for name, ratio, own in (("DeepSeek-V3", 1.0, 1.0), ("Llama-3.1-70B", 0.5, 4.0)):
        anchor = made(
            {1: 20.0, 16: 24.0}, long_steps={1: 21.0, 16: 40.0}, model=name, engine="SGLang", tensorParallel=4
        )
        card = load_model_card(name)
        before = anchored(anchor, layout=Layout(tensor_parallel=4), model=card, accelerator=MI355X)
        slope = before.terms(4)[2].decode_context_s_per_token[1]
        tensor, data = (anchored(anchor, layout=one, model=card, accelerator=MI355X) for one in layouts)
        after = {part.key: part.decode_context_s_per_token[1] for part in tensor.terms(4)}
        assert after["context"] == pytest.approx(slope * ratio)
        # A rank that owns whole requests reads all heads of its own tokens.
        assert {part.key: part.decode_context_s_per_token for part in data.terms(16)}["context"][1] == pytest.approx(
            data.curve.slope_at(data.curve.padded(data.curve.batches[:1] * 8))[0] * own
        )


def test_sharding_experts_more_finely_is_not_free() -> None:
    # App. B.3: at EP8 the busiest rank reads more distinct experts than the mean, most at small batch.
    anchor = made({1: 20.0, 64: 40.0}, model="DeepSeek-V3", tensorParallel=8, expertDtype="fp8")
    card = load_model_card("DeepSeek-V3")
    same = anchored(anchor, layout=Layout(tensor_parallel=8), model=card, accelerator=MI355X)
    wide = anchored(anchor, layout=Layout(tensor_parallel=8, expert_parallel=8), model=card, accelerator=MI355X)
    assert decode_ms(wide, 4) > 1.05 * decode_ms(same, 4)
    assert decode_ms(wide, 64) / decode_ms(same, 64) < decode_ms(wide, 4) / decode_ms(same, 4)
    assert "uniform-router" in wide.flags
    unpriced = anchored(anchor, layout=Layout(tensor_parallel=8, expert_parallel=8))
    assert "expert-parallel-unpriced" in unpriced.flags


def test_pipeline_terms_of_eq_4() -> None:
    cost = anchored(made({1: 10.0, 16: 14.0}, engine="SGLang"), layout=Layout(pipeline_parallel=4))
    table = cost.table(64)
    assert table.pipeline_stages == 4
    assert table.hop_ps == pytest.approx((970e-6 + 4.98e-6) * 1e12)  # o plus one kernel; the activation is unknown
    assert table.pipeline_host_ps is not None
    assert table.pipeline_host_ps[64] == pytest.approx((0.33e-3 + 64 * 6.3e-6) * 1e12)
    assert table.price_ps(16, 16_000, 0, 0, 0) == pytest.approx(14e9, rel=1e-9)  # full-depth forward
    vllm = anchored(made({1: 10.0, 16: 14.0}), layout=Layout(pipeline_parallel=2))
    assert "pipeline-constants-borrowed" in vllm.flags
    with pytest.raises(InputError, match="keep each pipeline stage inside a node"):
        anchored(made({1: 10.0}), layout=Layout(pipeline_parallel=2), nodes_count=3)


def test_eq_4_on_the_papers_own_ladder() -> None:
    # Llama-3.1-8B, 1k/1k, 64 clients, Table 20: 8.79 ms at PP2, 10.71 at PP4, 16.50 at PP8; paper 7.2 % median.
    anchor = load_anchor(EXAMPLES / "llama-3.1-8b-sglang-mi355x-tp1.json")
    for stages, measured_ms in ((2, 8.79), (4, 10.71), (8, 16.50)):
        cost = anchored(anchor, layout=Layout(pipeline_parallel=stages), model=load_model_card("Llama-3.1-8B"))
        table, micro = cost.table(64), 64 // stages
        assert table.pipeline_host_ps is not None
        cycle_ps = table.price_ps(micro, micro * 1536, 0, 0, 0) + stages * (
            table.hop_ps + int(table.pipeline_host_ps[micro])
        )
        assert cycle_ps / 1e9 == pytest.approx(measured_ms, rel=0.072)


def test_speculation_and_host_time_come_from_the_anchor() -> None:
    draft = {"method": "mtp", "depth": 3, "acceptanceLength": 2.66}
    cost = anchored(made({1: 20.0}, speculation=draft), layout=Layout())
    assert cost.table(1).tokens_per_step_permille == 2660
    with pytest.raises(InputError, match="acceptanceLength"):
        anchored(made({1: 20.0}, speculation={"method": "mtp", "depth": 3}), layout=Layout())


def test_flags_say_how_far_the_anchor_is() -> None:
    anchor = made({1: 10.0, 16: 14.0}, tensorParallel=2)
    assert "extrapolated-width" in anchored(anchor, layout=Layout(tensor_parallel=8)).flags
    assert "narrower-than-anchor" in anchored(anchor, layout=Layout()).flags
    with pytest.raises(InputError, match="model card"):
        anchored(anchor, layout=Layout(), law=WidthLaw.SPLIT_FLOOR)


def test_a_card_in_another_weight_format_is_flagged() -> None:
    anchor = made({1: 10.0, 16: 14.0}, weightsDtype="fp8")
    wrong = anchored(anchor, layout=Layout(tensor_parallel=2), model=load_model_card("Qwen3-32B"), accelerator=MI355X)
    right = anchored(
        anchor, layout=Layout(tensor_parallel=2), model=load_model_card("Qwen3-32B-FP8"), accelerator=MI355X
    )
    assert "card-weights-differ" in wrong.flags
    assert "card-weights-differ" not in right.flags


def test_recorded_routing_replaces_the_uniform_router() -> None:
    # DeepSeek-V3, TP8: 20 ms at batch 64 with experts sliced (EP 1). A recording says the busiest of 8 ranks reads
    # 1.2 times the mean distinct experts; the shift is then that surplus of the read, whatever the uniform router says.
    anchor = made({1: 20.0, 64: 40.0}, model="DeepSeek-V3", tensorParallel=8, expertDtype="fp8")
    card, layout = load_model_card("DeepSeek-V3"), Layout(tensor_parallel=8, expert_parallel=8)
    rows = [ExpertLoad(8, phase, 64, 1.6, factor, 100) for phase, factor in ((Phase.DECODE, 1.2), (Phase.PREFILL, 1.0))]
    cost = anchored(anchor, layout=layout, model=card, accelerator=MI355X, load=recorded_router(rows))
    assert "uniform-router" not in cost.flags
    # 58 layers; 256 (1 - (1 - 8/256)^64) x 0.89 distinct experts of 44.04 MB, / 8 ranks, x 0.2, at 0.81 x 8 TB/s.
    distinct = 256 * (1 - (1 - 8 / 256) ** 64) * 0.89
    shift_s = 58 * distinct / 8 * 3 * 7168 * 2048 * 0.2 / (0.81 * 8e12)
    parts = cost.price(Step(batch=64, context_tokens=64_000))[1]
    assert parts["expertParallel"] == pytest.approx(shift_s, rel=1e-6)


def test_routing_that_was_recorded_with_the_anchor_prices_a_plan() -> None:
    """The same rows in the anchor itself give the same shift; where an EP or a phase is missing, nothing is guessed."""
    plain = made({1: 20.0, 64: 40.0}, model="DeepSeek-V3", tensorParallel=8, expertDtype="fp8")
    card, layout = load_model_card("DeepSeek-V3"), Layout(tensor_parallel=8, expert_parallel=8)
    rows = [
        {
            "expertParallel": 8,
            "phase": phase,
            "stepTokens": 64,
            "rowsFactor": 1.6,
            "expertsFactor": factor,
            "samples": 9,
        }
        for phase, factor in (("decode", 1.2), ("prefill", 1.0))
    ]
    document = plain.model_dump(mode="json", by_alias=True, exclude_none=True)
    recorded = anchor_from(document | {"expertLoad": rows})
    assert recorded.digest() != plain.digest()
    cost = anchored(recorded, layout=layout, model=card, accelerator=MI355X)
    assert "uniform-router" not in cost.flags
    assert "expert load of the busiest rank: as recorded with the anchor" in cost.reasons
    # The hand calculation of the test above.
    distinct = 256 * (1 - (1 - 8 / 256) ** 64) * 0.89
    shift_s = 58 * distinct / 8 * 3 * 7168 * 2048 * 0.2 / (0.81 * 8e12)
    assert cost.price(Step(batch=64, context_tokens=64_000))[1]["expertParallel"] == pytest.approx(shift_s, rel=1e-6)
    half = anchor_from(document | {"expertLoad": rows[:1]})
    cost = anchored(half, layout=layout, model=card, accelerator=MI355X)
    assert "uniform-router" in cost.flags
    assert any("has no EP8 prefill: a uniform router stands" in reason for reason in cost.reasons)


def test_below_its_first_batch_a_sweep_holds_its_context_free_step() -> None:
    # TP4 from batch 4 on: 8,000 tokens more per request cost 8 ms at batch 4: 250 ns per token, 9 ms at no context.
    anchor = made({4: 10.0, 16: 15.0}, long_steps={4: 18.0, 16: 47.0}, tensorParallel=4)
    card = load_model_card("Qwen3-32B")
    cost = anchored(anchor, layout=Layout(tensor_parallel=8), model=card, accelerator=MI355X)
    assert cost.curve.context_free_floor_s == pytest.approx(0.009)
    assert [float(ms) for ms in 1e3 * cost.curve.base_at(np.array([1.0, 2.0, 4.0]))] == pytest.approx([9.0] * 3)
    steps = [decode_ms(cost, batch, 100) for batch in (1, 2, 4, 8, 16)]
    assert steps == sorted(steps)


def test_contexts_never_take_a_whole_step() -> None:
    # Two noisy sweeps: 8 ms more at 8,000 tokens, 1 us per token, would be 30 ms of a 20 ms step at 30,000.
    anchor = made({1: 20.0, 16: 24.0}, long_steps={1: 28.0, 16: 152.0}, context=30_000, tensorParallel=4)
    card = load_model_card("Qwen3-32B")
    cost = anchored(anchor, layout=Layout(tensor_parallel=8), model=card, accelerator=MI355X)
    assert cost.curve.context_free_floor_s == pytest.approx(0.2 * 0.020)
    assert decode_ms(cost, 1, 1) > 0
