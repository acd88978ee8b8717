"""Legality: the table is in order, all violations at once, enumeration agrees with brute force."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simcore.cards import known_models, load_accelerator_card, load_model_card
from simcore.cards.hf import model_card_from_config
from simcore.cards.layout import Engine, Layout
from simcore.cards.model import AttentionKind
from simcore.legality import (
    LegalityCase,
    Verdict,
    batches_without_graph,
    enumerate_layouts,
    fp8_kv_needs_output_check,
    judge,
    legality_table,
    parse_version,
)
from simcore.legality.disaggregation import RULE
from simcore.legality.rules import RULES
from simcore.legality.table import Match

ENGINES = list(Engine)
layouts = st.builds(
    Layout,
    tensor_parallel=st.integers(1, 16),
    pipeline_parallel=st.integers(1, 4),
    data_parallel=st.integers(1, 4),
    expert_parallel=st.sampled_from([1, 2, 3, 4, 8, 16]),
    attention_data_parallel=st.sampled_from([1, 2, 4, 8]),
)


def test_each_entry_has_a_rule_and_each_rule_an_entry() -> None:
    named = {entry.rule for entry in legality_table()}
    assert named == set(RULES) | {RULE}
    assert all(entry.source for entry in legality_table())


def test_version_ranges_of_a_rule_do_not_overlap() -> None:
    versions = [(0, minor, patch) for minor in range(40) for patch in (0, 5, 17)] + [
        (2026, month) for month in range(1, 13)
    ]
    for rule, engine in product(RULES, Engine):
        if rule == "block-shape-aiter-moe":
            continue
        entries = [entry for entry in legality_table() if entry.rule == rule and engine in entry.engines]
        for version in versions:
            assert sum(entry.match_version(version) is Match.YES for entry in entries) <= 1, (rule, engine, version)


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("0.9", (0, 9)), ("v0.16.0", (0, 16, 0)), ("0.5.13.post1-rocm720-mi30x", (0, 5, 13)), ("0.21.0rc1", (0, 21, 0)),
        ("2026-08-22", (2026, 8, 22)), ("nightly-abc", None), ("", None), (None, None),
    ],
)  # fmt: skip
def test_versions(text: str | None, version: tuple[int, ...] | None) -> None:
    assert parse_version(text) == version


@given(layout=layouts, engine=st.sampled_from(ENGINES), name=st.sampled_from(known_models()))
def test_judging_never_raises_and_names_tensor_and_number(layout: Layout, engine: Engine, name: str) -> None:
    case = LegalityCase(load_model_card(name), engine, layout, accelerator=load_accelerator_card("MI300X"))
    judgement = judge(case)
    for item in (*judgement.violations, *judgement.unverified):
        assert item.tensor
        assert str(item.value) in item.detail or item.rule.endswith("-native") or item.rule == "ep-expressible"
    assert judge(case) == judgement
    assert (judgement.verdict is Verdict.ILLEGAL) == bool(judgement.violations)


@given(layout=layouts, engine=st.sampled_from(ENGINES), heads=st.integers(1, 64), experts=st.integers(2, 64))
def test_every_broken_rule_is_reported(layout: Layout, engine: Engine, heads: int, experts: int) -> None:
    """Public case A09, against a literal transcription of three rules."""
    config = {"num_attention_heads": heads, "num_experts": experts, "num_experts_per_tok": 1}
    card = model_card_from_config(config, partial=True)
    case = LegalityCase(card, engine, layout)
    rules = {item.rule for item in judge(case).violations}
    tp = case.widths.attention_tp
    assert ("tp-divides-heads" in rules) == (heads % tp != 0)
    assert ("experts-divide-ep" in rules) == (experts % layout.expert_parallel != 0)
    assert "tp-divides-kv-heads" not in rules, "every head has its own KV: one reason, not two"


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", ["Qwen3-235B-A22B-FP8", "Llama-3.1-70B", "DeepSeek-R1", "Qwen3.5-397B-A17B"])
def test_enumeration_agrees_with_brute_force(engine: Engine, name: str) -> None:
    """Every layout of up to 8 GPUs, judged one by one, is in the list exactly when it is not illegal."""
    card = load_model_card(name)
    base = LegalityCase(card, engine, Layout(), version="0.5.16" if engine is Engine.SGLANG else "0.27", gpu_budget=8)
    found = {item.layout for item in enumerate_layouts(base, gpus=8)}
    for tp, pp, dp, ep, adp in product(range(1, 9), range(1, 9), range(1, 9), range(1, 9), range(1, 9)):
        if tp * pp * dp > 8:
            continue
        if (engine is Engine.VLLM and (adp > 1 or (dp > 1 and not card.is_moe))) or (
            engine is not Engine.VLLM and dp > 1
        ):
            continue  # other spellings of the same, and copies of the engine
        layout = Layout(tp, pp, dp, ep, adp)
        legal = judge(replace(base, layout=layout)).verdict is not Verdict.ILLEGAL
        assert (layout in found) == legal, layout.label()


@pytest.mark.parametrize("engine", ENGINES)
def test_expert_widths_multiply_to_the_group(engine: Engine) -> None:
    """Public case A10: dp x tp = moe_tp x moe_ep on every layout; on vLLM never both above one."""
    base = LegalityCase(load_model_card("Qwen3-235B-A22B"), engine, Layout())
    for item in enumerate_layouts(base, gpus=8):
        layout, widths = item.layout, item.widths
        assert layout.tensor_parallel * layout.data_parallel == widths.moe_tp * widths.moe_ep
        assert widths.gpus_count == layout.tensor_parallel * layout.data_parallel * layout.pipeline_parallel <= 8
        if engine is not Engine.SGLANG:
            assert min(widths.moe_tp, widths.moe_ep) == 1
            assert layout.expert_parallel in (1, layout.tensor_parallel * layout.data_parallel)


@given(tp=st.sampled_from([1, 2, 4, 8, 16, 32]), block=st.sampled_from([32, 64, 128]))
def test_block_rule_against_division(tp: int, block: int) -> None:
    """A05 and its siblings with other blocks: a slice is legal exactly when it is whole blocks."""
    config = {
        "num_attention_heads": 128, "intermediate_size": 18432, "moe_intermediate_size": 2048,
        "quantization_config": {"quant_method": "fp8", "weight_block_size": [block, block]},
    }  # fmt: skip
    judgement = judge(LegalityCase(model_card_from_config(config, partial=True), Engine.SGLANG, Layout(tp)))
    values = sorted(item.value for item in judgement.violations)
    assert values == sorted(width // tp for width in (18432, 2048) if width // tp % block)


def test_redundant_experts_can_rescue_ep() -> None:
    card = load_model_card("Qwen3-235B-A22B")
    base = LegalityCase(card, Engine.SGLANG, Layout(8, expert_parallel=8))
    assert judge(base).verdict is Verdict.LEGAL
    assert judge(replace(base, redundant_experts_count=3)).verdict is Verdict.ILLEGAL
    assert judge(replace(base, redundant_experts_count=8)).verdict is Verdict.LEGAL


def test_linear_heads_and_integer_groups() -> None:
    hybrid = LegalityCase(load_model_card("Qwen3.5-397B-A17B"), Engine.VLLM, Layout(32))
    assert {item.rule for item in judge(hybrid).violations} == {"tp-divides-linear-heads"}
    grouped = LegalityCase(load_model_card("Kimi-K2.5"), Engine.VLLM, Layout(64))
    assert judge(grouped).verdict is Verdict.LEGAL
    config = {"num_attention_heads": 64, "intermediate_size": 11264, "quantization_config": {
        "quant_method": "awq", "bits": 4, "group_size": 128}}  # fmt: skip
    card = model_card_from_config(config, partial=True)
    assert [item.value for item in judge(LegalityCase(card, Engine.VLLM, Layout(16))).violations] == [704]


def test_backend_decides_for_latent_attention_only() -> None:
    card = load_model_card("Qwen3-235B-A22B")
    case = LegalityCase(card, Engine.VLLM, Layout(4), version="0.9", attention_backend="aiter")
    assert all(group.attention.kind is AttentionKind.GQA for group in card.groups)
    assert judge(case).verdict is Verdict.LEGAL
    nvidia = LegalityCase(
        load_model_card("DeepSeek-R1"), Engine.VLLM, Layout(4), version="0.9", attention_backend="aiter",
        accelerator=load_accelerator_card("H200"),
    )  # fmt: skip
    assert judge(nvidia).verdict is Verdict.LEGAL


def test_unnamed_backend_is_an_advisory() -> None:
    case = LegalityCase(load_model_card("DeepSeek-R1"), Engine.VLLM, Layout(4), version="0.10")
    judgement = judge(case)
    assert judgement.verdict is Verdict.LEGAL
    assert any("AITER" in note and "32 heads per rank" in note for note in judgement.advisories)


@pytest.mark.parametrize(
    ("dtype", "needs"), [("fp8", True), ("fp8_e4m3", True), ("fp8_ds_mla", True), ("bf16", False), (None, False)]
)
def test_fp8_kv_needs_an_output_check(dtype: str | None, needs: bool) -> None:
    """Public case A24."""
    case = LegalityCase(load_model_card("Llama-3.1-8B"), Engine.VLLM, Layout(), kv_dtype=dtype)
    assert fp8_kv_needs_output_check(case) is needs


def test_capture_gaps() -> None:
    """Public case A19 (iii)."""
    assert batches_without_graph(tuple(range(8, 105, 8)), 100) == (97, 100)
    assert batches_without_graph(tuple(range(8, 105, 8)), 96) is None
    assert batches_without_graph((), 4) == (1, 4)
