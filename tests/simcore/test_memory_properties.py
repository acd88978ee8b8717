"""Memory: literal second transcriptions, conservation over ranks and stages, monotone capacity."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simcore.cards import load_accelerator_card, load_model_card
from simcore.cards.hf import model_card_from_config
from simcore.cards.layout import Engine, Layout
from simcore.cards.matrices import parameters_count
from simcore.cards.model import ModelCard
from simcore.errors import InputError, UnknownNameError
from simcore.memory import (
    MemoryRequest,
    Reserve,
    WeightChoices,
    index_buffer_bytes,
    kv_format,
    kv_pool_bytes,
    kv_profile,
    minimum_memory_fraction,
    plan_memory,
    pool_tokens,
    weight_bytes_by_stage,
)
from simcore.memory.pool import share_bytes, tightest_stage_tokens

GIB = 1 << 30


def _dense(layers: int, heads: int, kv: int, dim: int, width: int, vocab: int) -> ModelCard:
    return model_card_from_config(
        {
            "model_type": "llama", "num_hidden_layers": layers, "hidden_size": heads * dim,
            "num_attention_heads": heads,
            "num_key_value_heads": kv, "head_dim": dim, "intermediate_size": width, "vocab_size": vocab,
            "max_position_embeddings": 4096,
        }
    )  # fmt: skip


dense_cards = st.builds(
    _dense,
    layers=st.integers(1, 12),
    heads=st.sampled_from([8, 16, 32]),
    kv=st.sampled_from([1, 2, 4, 8]),
    dim=st.sampled_from([64, 128]),
    width=st.sampled_from([1024, 2048, 5632]),
    vocab=st.sampled_from([1000, 32000, 32064]),
)


@given(card=dense_cards, tp=st.sampled_from([1, 2, 4, 8]))
def test_weights_against_a_literal_transcription(card: ModelCard, tp: int) -> None:
    """Written again from the shapes: q, k, v, o, three MLP matrices, two norms per layer, table and head."""
    spec, hidden, width = card.groups[0].attention, card.hidden, card.groups[0].ffn.intermediate
    kv = max(1, spec.kv_heads // tp)
    per_layer = (
        hidden * (spec.heads // tp) * spec.head_dim
        + 2 * hidden * kv * spec.head_dim
        + (spec.heads // tp) * spec.head_dim * hidden
        + 3 * hidden * width // tp
        + 2 * hidden
    )
    table = -(-card.vocab_tokens // tp) * hidden
    total = 2 * (card.layers_count * per_layer + 2 * table + hidden) + 2 * 4096 * spec.head_dim
    (stage,) = weight_bytes_by_stage(card=card, layout=Layout(tp), engine=Engine.VLLM)
    assert sum(stage.values()) == total


@given(card=dense_cards, tp=st.sampled_from([1, 2, 4, 8]), element=st.sampled_from([("bf16", 2), ("fp8", 1)]))
def test_kv_against_a_literal_transcription(card: ModelCard, tp: int, element: tuple[str, int]) -> None:
    """2 x kv heads of the rank x head dim x bytes x layers (public cases, table of constants)."""
    spec = card.groups[0].attention
    profile = kv_profile(card=card, attention_tp=tp, form=kv_format(element[0], card=card))
    assert profile.bytes_per_token == 2 * max(1, spec.kv_heads // tp) * spec.head_dim * element[1] * card.layers_count
    assert profile.growing_bytes_per_token == profile.bytes_per_token


@given(card=dense_cards, pp=st.integers(1, 6))
def test_stages_hold_the_whole_model_once(card: ModelCard, pp: int) -> None:
    if pp > card.layers_count:
        with pytest.raises(InputError):
            weight_bytes_by_stage(card=card, layout=Layout(pipeline_parallel=pp), engine=Engine.VLLM)
        return
    stages = weight_bytes_by_stage(card=card, layout=Layout(pipeline_parallel=pp), engine=Engine.VLLM)
    rotary = 2 * 4096 * card.rope_dim
    assert sum(sum(stage.values()) - rotary for stage in stages) == 2 * parameters_count(card)


@pytest.mark.parametrize("name", ["DeepSeek-R1", "Qwen3-235B-A22B-FP8", "Kimi-K3", "DeepSeek-V4-Flash"])
def test_expert_parallelism_at_the_same_gpus_changes_no_weight_byte(name: str) -> None:
    """Public case A21: measured 192.31 GiB both ways."""
    card = load_model_card(name)
    without = weight_bytes_by_stage(card=card, layout=Layout(8), engine=Engine.VLLM)[0]
    with_ep = weight_bytes_by_stage(card=card, layout=Layout(8, expert_parallel=8), engine=Engine.VLLM)[0]
    assert abs(sum(without.values()) - sum(with_ep.values())) <= 0.002 * sum(without.values())


def test_case_b01_by_part() -> None:
    """76.125 + 14.116 + 3.452 GiB (public case B01); the rest of the total is named apart."""
    card = load_model_card("DeepSeek-R1")
    layout = Layout(1, data_parallel=8, expert_parallel=8)
    (parts,) = weight_bytes_by_stage(card=card, layout=layout, engine=Engine.VLLM)
    assert parts["routedExperts"] == 653_908_770_816 // 8
    assert parts["routedExperts"] / GIB == pytest.approx(76.125)
    assert (parts["attention"] + parts["dense"] + parts["sharedExperts"]) / GIB == pytest.approx(14.116, abs=5e-4)
    assert (parts["embedding"] + parts["head"]) / GIB == pytest.approx(3.452, abs=5e-4)
    assert parts["router"] == 58 * 256 * 7168 * 2
    assert set(parts) == {
        "routedExperts", "attention", "dense", "sharedExperts", "embedding", "head", "router", "norms", "scales",
        "rotaryTable",
    }  # fmt: skip


def test_redundant_and_fused_experts_cost_bytes() -> None:
    card, layout = load_model_card("DeepSeek-R1"), Layout(8, expert_parallel=8)
    per_expert = 58 * 3 * 7168 * 2048

    def routed(choices: WeightChoices, part: str) -> int:
        return weight_bytes_by_stage(card=card, layout=layout, engine=Engine.VLLM, choices=choices)[0][part]

    assert routed(WeightChoices(8), "routedExperts") - routed(WeightChoices(), "routedExperts") == per_expert
    assert routed(WeightChoices(fused_shared_experts=True), "sharedExperts") == per_expert
    assert routed(WeightChoices(), "sharedExperts") == per_expert // 8
    assert routed(WeightChoices(draft_layers_count=1), "draft") > per_expert * 32 / 58


@given(pool=st.integers(-(10**9), 10**12), size=st.integers(1, 10**6), block=st.sampled_from([1, 16, 32, 256]))
def test_pool_tokens_are_whole_blocks_that_fit(pool: int, size: int, block: int) -> None:
    tokens = pool_tokens(pool_bytes=pool, bytes_per_token=size, block_tokens=block)
    assert tokens >= 0
    assert tokens % block == 0
    assert tokens * size <= max(pool, 0)
    assert (tokens + block) * size > pool


@given(pools=st.lists(st.integers(0, 10**12), min_size=1, max_size=8), data=st.data())
def test_the_tightest_stage_is_the_minimum(pools: list[int], data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(1, 10**6), min_size=len(pools), max_size=len(pools)))
    tokens, stage = tightest_stage_tokens(pool_bytes=pools, bytes_per_token=sizes)
    assert tokens == min(pool // size for pool, size in zip(pools, sizes, strict=True))
    assert tokens == pools[stage] // sizes[stage]


@given(
    tokens=st.integers(1, 200_000),
    sequences=st.integers(1, 64),
    name=st.sampled_from(["gpt-oss-20b", "Qwen3-8B", "Qwen3.6-35B-A3B"]),
)
def test_window_capped_footprint_is_a_lower_bound(tokens: int, sequences: int, name: str) -> None:
    card = load_model_card(name)
    profile = kv_profile(card=card, attention_tp=1, form=kv_format(None, card=card))
    capped = profile.capped_bytes(sequences_count=sequences, tokens=tokens)
    assert capped <= profile.reserved_bytes(sequences_count=sequences, tokens=tokens)
    if tokens <= 128:
        assert capped == profile.reserved_bytes(sequences_count=sequences, tokens=tokens)


@given(total=st.integers(GIB, 300 * GIB), weights=st.integers(0, 299 * GIB), draft=st.integers(0, GIB))
def test_minimum_fraction_is_where_the_sglang_pool_starts(total: int, weights: int, draft: int) -> None:
    fraction = minimum_memory_fraction(free_before_bytes=total, weight_bytes=weights, draft_bytes=draft)
    assert fraction == pytest.approx((weights + draft) / total, abs=1e-12)

    def pool(frac: float) -> int:
        return kv_pool_bytes(
            engine=Engine.SGLANG, total_bytes=total, memory_frac=frac, weight_bytes=weights + draft, reserve=Reserve()
        )

    if 0.001 < fraction < 0.99:
        assert pool(round(fraction + 1e-3, 6)) > 0 >= pool(round(fraction - 1e-3, 6))


def test_pools_by_engine() -> None:
    """Public case A19: vLLM subtracts the reserve, ATOM 2 % more and no more than is free, SGLang neither."""
    reserve = Reserve(non_torch_bytes=1, graph_bytes=2, peak_bytes=3)

    def pool(engine: Engine, weights: int, free: int | None = None) -> int:
        return kv_pool_bytes(
            engine=engine, total_bytes=1000, memory_frac=0.9, weight_bytes=weights, reserve=reserve, free_bytes=free
        )

    assert [pool(engine, 500) for engine in (Engine.VLLM, Engine.SGLANG, Engine.ATOM)] == [394, 400, 374]
    assert pool(Engine.ATOM, 500, free=600) == 94
    assert pool(Engine.SGLANG, 500, free=800) == 220
    assert pool(Engine.VLLM, 900) == -6
    assert share_bytes(10**18 + 7, 0.9) == (10**18 + 7) * 9 // 10


def test_index_buffer() -> None:
    """Public case A20, to the byte."""
    assert index_buffer_bytes(query_rows=8192, coscheduled_tokens=348_000) == 11_403_264_000
    assert index_buffer_bytes(query_rows=16_384, coscheduled_tokens=460_000) == 30_146_560_000


def _request(name: str, layout: Layout, **changes: object) -> MemoryRequest:
    card = load_model_card(name)
    request = MemoryRequest(card=card, engine=Engine.VLLM, layout=layout, kv=kv_format(None, card=card))
    return replace(request, hbm_bytes=load_accelerator_card("MI300X").hbm_bytes, **changes)  # type: ignore[arg-type]


def test_negative_room_is_a_violation_not_a_number() -> None:
    plan = plan_memory(_request("Llama-3.1-405B", Layout(4)))
    assert not plan.fits
    assert plan.pool_tokens_per_rank == 0
    assert [item.rule for item in plan.violations] == ["memory-fit"]


@given(tp=st.sampled_from([1, 2, 4, 8]), fraction=st.sampled_from([0.5, 0.7, 0.9, 0.95]))
def test_capacity_grows_with_width_and_memory(tp: int, fraction: float) -> None:
    plan = plan_memory(_request("Qwen3-32B", Layout(tp), memory_frac=fraction))
    wider = plan_memory(_request("Qwen3-32B", Layout(8), memory_frac=fraction))
    more = plan_memory(_request("Qwen3-32B", Layout(tp), memory_frac=0.97))
    assert plan.pool_tokens_per_rank is not None
    assert wider.pool_tokens_per_rank is not None
    assert more.pool_tokens_per_rank is not None
    assert plan.pool_tokens_per_rank <= wider.pool_tokens_per_rank
    assert plan.pool_tokens_per_rank <= more.pool_tokens_per_rank
    assert plan.assumed, "without a measured reserve the activation estimate is named as assumed"


def test_the_peak_depends_on_the_batched_tokens_not_on_the_length() -> None:
    """Public case A13."""
    short = plan_memory(_request("Llama-3.1-8B", Layout(), model_length_tokens=1000))
    long = plan_memory(_request("Llama-3.1-8B", Layout(), model_length_tokens=100_000))
    wide = plan_memory(_request("Llama-3.1-8B", Layout(), batched_tokens=65_536))
    assert short.pool_bytes_per_gpu == long.pool_bytes_per_gpu
    assert (wide.pool_bytes_per_gpu or 0) < (short.pool_bytes_per_gpu or 0)


def test_compressed_pools_are_flagged() -> None:
    plan = plan_memory(_request("DeepSeek-V4-Flash", Layout(8)))
    assert not plan.kv.exact
    assert any("size the engine reports" in note for note in plan.assumed)


def test_linear_state_per_request() -> None:
    """Gated delta net of Qwen3.5-35B: 30 layers x (32 x 128 x 128 x 4 + (2 x 16 + 32) x 128 x 3 x 2) bytes at TP1."""
    card = load_model_card("Qwen3.5-35B-A3B")
    profile = kv_profile(card=card, attention_tp=1, form=kv_format(None, card=card))
    assert profile.state_bytes_per_request == 30 * (32 * 128 * 128 * 4 + 64 * 128 * 3 * 2)
    assert profile.bytes_per_token == 10 * 2 * 2 * 256 * 2


def test_draft_layers_add_kv() -> None:
    card = load_model_card("DeepSeek-R1")
    form = kv_format("bf16", card=card)
    with_draft = kv_profile(card=card, attention_tp=8, form=form, draft_layers_count=1)
    assert with_draft.bytes_per_token == 62 * 1152


def test_kv_formats() -> None:
    card = load_model_card("Llama-3.1-8B")
    scaled = kv_profile(card=card, attention_tp=1, form=kv_format("fp8_per_token_head", card=card))
    assert scaled.bytes_per_token == 32 * 2 * 8 * (128 + 4)
    given_scale = kv_profile(card=card, attention_tp=1, form=kv_format("fp8", card=card, scale_bytes_per_vector=2))
    assert given_scale.bytes_per_token == 32 * 2 * 8 * (128 + 2)
    with pytest.raises(UnknownNameError):
        kv_format("fp7", card=card)
    with pytest.raises(InputError):
        kv_format("fp8_ds_mla", card=card)


@pytest.mark.parametrize(
    ("quant", "total"),
    [
        # 6,979,321,856 weights in groups of 128: half a byte each, per group a 16-bit scale and a packed zero point;
        # embedding and head 2 x 128,256 x 4,096, norms 65 x 4,096 and the rotary table 131,072 x 128 in 16 bits.
        ({"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}, 5_761_409_024),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True}, 5_761_409_024),
        ({"quant_method": "gptq", "bits": 8, "group_size": 128}, 9_278_332_928),
        # Symmetric compressed-tensors store no zero points: 54,525,952 groups x 0.5 less.
        ({"quant_method": "compressed-tensors", "ignore": ["lm_head"], "config_groups": {"g": {"weights": {
            "num_bits": 4, "type": "int", "group_size": 128}}}}, 5_734_146_048),
        ({"quant_method": "compressed-tensors", "ignore": ["lm_head"], "config_groups": {"g": {"weights": {
            "num_bits": 4, "type": "int", "group_size": 128, "symmetric": False}}}}, 5_761_409_024),
        # The head in int4 too: 525,336,576 x (2 - 0.5 - 2.5/128) less.
        ({"quant_method": "gptq", "bits": 4, "group_size": 128, "lm_head": True}, 4_983_664_640),
    ],
    ids=["awq", "gptq", "gptq-8", "ct", "ct-asymmetric", "gptq-head"],
)  # fmt: skip
def test_grouped_integers_store_scales_and_zero_points(quant: dict[str, object], total: int) -> None:
    """Llama-3.1-8B; the public AWQ checkpoint's files are 5.73 GB, which is this without the rotary table."""
    shape = {
        "model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32,
        "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256, "tie_word_embeddings": False,
        "max_position_embeddings": 131072, "torch_dtype": "bfloat16",
    }  # fmt: skip
    card = model_card_from_config(shape | {"quantization_config": quant})
    (parts,) = weight_bytes_by_stage(card=card, layout=Layout(), engine=Engine.VLLM)
    assert sum(parts.values()) == total


def test_recurrent_states_are_as_wide_as_the_engines_keep_them() -> None:
    """KDA: 20 layers of 32 heads x 128 x 128 in 32 bit and 3 x 32 x 128 channels x 3 steps in 16 (Kimi-Linear)."""
    shape = {
        "model_type": "kimi_linear", "num_hidden_layers": 27, "hidden_size": 2304, "num_attention_heads": 32,
        "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "vocab_size": 163840,
        "intermediate_size": 9216, "tie_word_embeddings": False,
        "linear_attn_config": {
            "head_dim": 128, "num_heads": 32, "kda_layers": [index for index in range(1, 27) if index % 4],
        },
    }  # fmt: skip
    card = model_card_from_config(shape)
    profile = kv_profile(card=card, attention_tp=1, form=kv_format(None, card=card))
    assert profile.state_bytes_per_request == 20 * (32 * 128 * 128 * 4 + 3 * 32 * 128 * 3 * 2)
    assert any("SGLang keeps 32 bit" in note for note in load_model_card("Qwen3-Next-80B-A3B-Instruct").assumed)
    assert not any("32 bit" in note for note in load_model_card("Qwen3.5-35B-A3B").assumed)


@pytest.mark.parametrize(
    ("engine", "layout", "ranks"),
    [
        # (attention TP, expert TP, expert EP) by the engines' own rules (public cases A10, B03)
        (Engine.VLLM, Layout(4), (4, 4, 1)),
        (Engine.VLLM, Layout(4, expert_parallel=4), (4, 1, 4)),
        (Engine.VLLM, Layout(2, data_parallel=4, expert_parallel=8), (2, 1, 8)),
        (Engine.SGLANG, Layout(8, expert_parallel=2), (8, 4, 2)),
        (Engine.SGLANG, Layout(8, expert_parallel=4, attention_data_parallel=2), (4, 2, 4)),
        (Engine.ATOM, Layout(8, expert_parallel=8, attention_data_parallel=8), (1, 1, 8)),
    ],
    ids=lambda value: value.label() if isinstance(value, Layout) else None,
)  # fmt: skip
@pytest.mark.parametrize("latent", [False, True], ids=["gqa", "mla"])
def test_expert_weights_against_a_literal_transcription(
    engine: Engine, layout: Layout, ranks: tuple[int, int, int], latent: bool
) -> None:
    """GLM-4.5-Air's and DeepSeek-V2-Lite-like shapes, written again matrix by matrix, 16 bits each."""
    tp, expert_tp, ep = ranks
    layers, hidden, heads, kv, dense, width, experts, vocab = 6, 4096, 96, 8, 10944, 1408, 128, 151552
    shape: dict[str, object] = {
        "model_type": "x", "num_hidden_layers": layers, "hidden_size": hidden, "num_attention_heads": heads,
        "num_key_value_heads": kv, "head_dim": 128, "intermediate_size": dense, "moe_intermediate_size": width,
        "n_routed_experts": experts, "n_shared_experts": 1, "num_experts_per_tok": 8, "first_k_dense_replace": 1,
        "vocab_size": vocab, "tie_word_embeddings": False,
    }  # fmt: skip
    attention = 2 * hidden * (heads // tp) * 128 + 2 * hidden * max(1, kv // tp) * 128
    if latent:
        shape |= {
            "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
            "v_head_dim": 128,
        }  # fmt: skip
        down = hidden * 1536 + hidden * (512 + 64)
        attention = down + (heads // tp) * (1536 * 192 + 512 * 256 + 128 * hidden)
    routed = experts // ep * 3 * hidden * (width // expert_tp) + hidden * experts + 3 * hidden * (width // tp)
    total = layers * attention + 3 * hidden * (dense // tp) + (layers - 1) * routed + 2 * hidden * (vocab // tp)
    card = model_card_from_config(shape)
    (parts,) = weight_bytes_by_stage(card=card, layout=layout, engine=engine)
    assert sum(parts.values()) - parts["norms"] - parts.get("rotaryTable", 0) == 2 * total
