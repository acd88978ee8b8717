"""Cards from config.json: every family we know, families we were never shown, and what must be refused."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simcore.cards.hf import model_card_from_config
from simcore.cards.matrices import attention_matrices, parameters_count
from simcore.cards.model import AttentionKind
from simcore.errors import InputError
from simcore.memory import kv_format, kv_profile

SHARED = Path(__file__).parents[3] / "shared" / "data" / "model_configs"

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096,
    "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256,
    "max_position_embeddings": 131072, "torch_dtype": "bfloat16", "tie_word_embeddings": False,
}  # fmt: skip
MIXTRAL = LLAMA | {
    "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "vocab_size": 32000, "num_local_experts": 8,
    "num_experts_per_tok": 2, "max_position_embeddings": 32768,
}  # fmt: skip
QWEN2_7B = {
    "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "num_hidden_layers": 28, "hidden_size": 3584,
    "num_attention_heads": 28, "num_key_value_heads": 4, "intermediate_size": 18944, "vocab_size": 152064,
    "max_position_embeddings": 131072, "sliding_window": 131072, "use_sliding_window": False, "max_window_layers": 28,
    "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}  # fmt: skip
DEEPSEEK_V2_LITE = {
    "architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2", "num_hidden_layers": 27,
    "hidden_size": 2048, "num_attention_heads": 16, "num_key_value_heads": 16, "intermediate_size": 10944,
    "moe_intermediate_size": 1408, "n_routed_experts": 64, "n_shared_experts": 2, "num_experts_per_tok": 6,
    "first_k_dense_replace": 1, "moe_layer_freq": 1, "q_lora_rank": None, "kv_lora_rank": 512,
    "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "vocab_size": 102400,
    "max_position_embeddings": 163840, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}  # fmt: skip
GEMMA3 = {
    "architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3",
    "text_config": {
        "model_type": "gemma3_text", "head_dim": 128, "hidden_size": 5376, "intermediate_size": 21504,
        "num_attention_heads": 32, "num_hidden_layers": 62, "num_key_value_heads": 16, "sliding_window": 1024,
    },
    "vision_config": {"num_hidden_layers": 27}, "torch_dtype": "bfloat16",
}  # fmt: skip
STEP = {
    "architectures": ["Step3p5ForCausalLM"], "model_type": "step3p5", "num_hidden_layers": 45, "hidden_size": 4096,
    "num_attention_heads": 64, "num_attention_groups": 8, "head_dim": 128, "intermediate_size": 11264,
    "moe_num_experts": 288, "moe_top_k": 8, "moe_intermediate_size": 1280, "share_expert_dim": 1280,
    "moe_layers_enum": ",".join(str(index) for index in range(3, 45)), "vocab_size": 128896, "max_seq_len": 262144,
    "layer_types": ["full_attention" if index % 4 == 0 else "sliding_attention" for index in range(45)],
    "sliding_window": 512,
    "attention_other_setting": {"attention_type": "sliding_attention", "num_attention_heads": 96,
                                "num_attention_groups": 8, "head_dim": 128},
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
}  # fmt: skip


def _like(
    family: str, layers: int, hidden: int, heads: int, kv: int, width: int, vocab: int, **more: Any
) -> dict[str, Any]:
    shape = {"num_hidden_layers": layers, "hidden_size": hidden, "num_attention_heads": heads, "vocab_size": vocab}
    widths = {"num_key_value_heads": kv, "intermediate_size": width, "model_type": family}
    return {"architectures": ["X"], "torch_dtype": "bfloat16", "tie_word_embeddings": False} | shape | widths | more


MIMO = _like(
    "mimo_v2_flash", 48, 4096, 64, 4, 16384, 152576, head_dim=192, v_head_dim=128, swa_num_attention_heads=64,
    swa_num_key_value_heads=8, swa_head_dim=192, swa_v_head_dim=128, sliding_window=128,
    hybrid_layer_pattern=[0, *[1, 1, 1, 1, 0] * 9, 1, 0], moe_layer_freq=[0, *[1] * 47], moe_intermediate_size=2048,
    n_routed_experts=256, n_shared_experts=None, num_experts_per_tok=8,
)  # fmt: skip
GEMMA4 = _like(
    "gemma4_text", 60, 5376, 32, 16, 21504, 262144, num_global_key_value_heads=4, head_dim=256, global_head_dim=512,
    attention_k_eq_v=True, sliding_window=1024, num_kv_shared_layers=0, hidden_size_per_layer_input=0,
    layer_types=(["sliding_attention"] * 5 + ["full_attention"]) * 10, tie_word_embeddings=True,
)  # fmt: skip
PUBLISHED: dict[str, tuple[dict[str, Any], int]] = {
    "Llama-4-Scout": (_like(
        "llama4_text", 48, 5120, 40, 8, 8192, 202048, head_dim=128, num_local_experts=16, num_experts_per_tok=1,
        intermediate_size_mlp=16384, interleave_moe_layer_step=1, attention_chunk_size=8192), 107_769_835_520),
    "Llama-4-Maverick": (_like(
        "llama4_text", 48, 5120, 40, 8, 8192, 202048, head_dim=128, num_local_experts=128, num_experts_per_tok=1,
        intermediate_size_mlp=16384, interleave_moe_layer_step=2, attention_chunk_size=8192), 400_711_848_960),
    "Hunyuan-A13B": (_like(
        "hunyuan_v1_moe", 32, 4096, 32, 8, 3072, 128167, head_dim=128, num_experts=64, moe_topk=[8] * 32,
        moe_intermediate_size=[3072] * 32, num_shared_expert=[1] * 32, use_qk_norm=True, tie_word_embeddings=True),
        80_393_183_232),
    "Ernie-4.5-21B": (_like(
        "ernie4_5_moe", 28, 2560, 20, 4, 12288, 103424, moe_num_experts=64, moe_k=6, moe_intermediate_size=1536,
        moe_layer_start_index=1, moe_layer_end_index=27, moe_layer_interval=1, moe_num_shared_experts=2,
        tie_word_embeddings=None), 21_825_437_888),
    "EXAONE-4.0-32B": (_like(
        "exaone4", 64, 5120, 40, 8, 27392, 102400, sliding_window=4096, sliding_window_pattern="LLLG"), 32_003_216_384),
    "Seed-OSS-36B": (_like(
        "seed_oss", 64, 5120, 80, 8, 27648, 155136, head_dim=128, attention_bias=True, attention_out_bias=False),
        36_151_104_512),
    "Grok-2": (_like(
        "git", 64, 8192, 64, 8, 32768, 131072, num_local_experts=8, num_experts_per_tok=2,
        moe_intermediate_size=16384, residual_moe=True), 269_500_000_000),
    "Apertus-70B": (_like("apertus", 80, 8192, 64, 8, 43008, 131072, qk_norm=True), 70_600_000_000),
    "Step-3": (_like(
        "step3_text", 61, 7168, 64, 1, 18432, 128815, head_dim=256, share_q_dim=2048, moe_num_experts=48, moe_top_k=3,
        moe_intermediate_size=5120, share_expert_dim=5120, moe_layers_enum=",".join(map(str, range(4, 60)))),
        316_000_000_000),
    "Falcon-7B": ({
        "model_type": "falcon", "hidden_size": 4544, "num_attention_heads": 71, "num_kv_heads": 71,
        "num_hidden_layers": 32, "multi_query": True, "new_decoder_architecture": False, "vocab_size": 65024},
        6_921_720_704),
    "GLM-4-9B": ({
        "model_type": "chatglm", "num_layers": 40, "hidden_size": 4096, "num_attention_heads": 32,
        "multi_query_attention": True, "multi_query_group_num": 2, "kv_channels": 128, "ffn_hidden_size": 13696,
        "padded_vocab_size": 151552, "add_qkv_bias": True, "tie_word_embeddings": False}, 9_399_951_360),
    "Gemma-4-31B": (GEMMA4, 30_700_000_000),
    "Trinity-Mini": (_like(  # gated attention, and dense layers under a name of its own beside layer_types
        "afmoe", 32, 2048, 32, 4, 6144, 200192, head_dim=128, num_experts=128, num_experts_per_tok=8,
        moe_intermediate_size=1024, num_shared_experts=1, num_dense_layers=2, global_attn_every_n_layers=4,
        sliding_window=2048, layer_types=(["sliding_attention"] * 3 + ["full_attention"]) * 8), 26_120_000_000),
    "Granite-4.0-Micro": (_like(  # every layer is attention, and its dense MLP is the shared one
        "granitemoehybrid", 40, 2560, 40, 8, 8192, 100352, layer_types=["attention"] * 40, mamba_d_state=256,
        num_local_experts=0, num_experts_per_tok=0, shared_intermediate_size=8192, tie_word_embeddings=True),
        3_402_836_480),
    "MiniCPM3-4B": ({
        "model_type": "minicpm3", "num_hidden_layers": 62, "hidden_size": 2560, "num_attention_heads": 40,
        "intermediate_size": 6400, "vocab_size": 73448, "q_lora_rank": 768, "kv_lora_rank": 256,
        "qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "v_head_dim": 64}, 4_074_000_000),
    "HunYuan-dense-with-one-expert": (_like(
        "hunyuan", 32, 4096, 32, 8, 14336, 128167, head_dim=128, num_experts=1, moe_topk=1, num_shared_expert=1,
        use_qk_norm=True, tie_word_embeddings=True), 7_505_000_000),
    "Qwen-7B": (_like("qwen", 32, 4096, 32, 32, 22016, 151936, attention_bias=True), 7_721_324_544),
    "Persimmon-8B": (_like("persimmon", 36, 4096, 64, 64, 16384, 262144), 9_398_000_000),
    "Phi-4": (_like("phi3", 40, 5120, 40, 10, 17920, 100352), 14_659_507_200),
    "GLM-4.5": (_like(
        "glm4_moe", 92, 5120, 96, 8, 12288, 151552, head_dim=128, n_routed_experts=160, n_shared_experts=1,
        num_experts_per_tok=8, moe_intermediate_size=1536, first_k_dense_replace=3, attention_bias=True,
        use_qk_norm=True, num_nextn_predict_layers=1), 352_797_829_120),
    "Kimi-Linear-48B": (_like(
        "kimi_linear", 27, 2304, 32, 32, 9216, 163840, kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64,
        v_head_dim=128, mla_use_nope=True, num_experts=256, num_experts_per_token=8, num_shared_experts=1,
        moe_intermediate_size=1024, first_k_dense_replace=1, linear_attn_config={
            "head_dim": 128, "num_heads": 32, "kda_layers": [index for index in range(1, 27) if index % 4]}),
        49_122_681_728),
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_other_families_have_their_published_size(name: str) -> None:
    """Counts of the model hub, language part; the round ones are those the model's page names."""
    config, count = PUBLISHED[name]
    assert parameters_count(model_card_from_config(config)) == pytest.approx(count, rel=1e-3)


def test_window_layers_have_their_own_heads() -> None:
    """KV bytes by hand: MiMo has 11 full layers of 4 heads and 37 windowed ones of 8, keys 192 and values 128."""
    card = model_card_from_config(MIMO)
    profile = kv_profile(card=card, attention_tp=1, form=kv_format("bf16", card=card))
    assert profile.bytes_per_token == (11 * 4 + 37 * 8) * (192 + 128) * 2
    assert profile.windows == ((128, 37 * 8 * (192 + 128) * 2),)
    gemma = model_card_from_config(GEMMA4)
    profile = kv_profile(card=gemma, attention_tp=1, form=kv_format("bf16", card=gemma))
    assert profile.growing_bytes_per_token == 10 * 4 * (512 + 512) * 2


@pytest.mark.parametrize(
    "change",
    [
        {"block_types": ["recurrent", "recurrent", "attention"]}, {"block_configs": [{}] * 32}, {"layer_group_size": 8},
        {"zero_expert_num": 256}, {"num_kv_shared_layers": 20}, {"hidden_size_per_layer_input": 256},
        {"state_size": 16}, {"use_cla": True}, {"cross_attention_layers": [3, 8]}, {"is_encoder_decoder": True},
        {"num_key_value_heads_per_layer": [4, 2] * 16}, {"mixer_types": ["lightning-attn"] * 32},
        {"model_type": "rwkv7"}, {"model_type": "jetmoe"}, {"layer_types": ["linear_attention"] * 32},
    ],
    ids=str,
)  # fmt: skip
def test_what_is_not_modelled_is_refused_not_guessed(change: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="not modelled"):
        model_card_from_config(LLAMA | change)


def test_a_model_that_is_no_decoder_of_known_experts_is_refused() -> None:
    with pytest.raises(InputError, match="keeps no KV cache"):
        model_card_from_config(LLAMA | {"architectures": ["BertModel"], "model_type": "bert"})
    with pytest.raises(InputError, match="whether the layers are routed"):
        model_card_from_config(LLAMA | {"moe_config": {"count": 32}})
    with pytest.raises(InputError, match="a key of the original"):
        model_card_from_config({"dim": 4096, "n_layers": 32, "n_heads": 32, "vocab_size": 32000}, partial=True)


def test_a_gated_delta_net_with_as_many_key_as_value_heads_is_no_kda() -> None:
    """Per value head one decay and one beta: 2 x 32 columns beside q, k, v, z, no low-rank gate."""
    delta = {"linear_num_key_heads": 32, "linear_num_value_heads": 32, "linear_key_head_dim": 128}
    kinds = ["linear_attention"] * 31 + ["full_attention"]
    card = model_card_from_config(LLAMA | delta | {"linear_value_head_dim": 128, "layer_types": kinds})
    linear = next(group for group in card.groups if group.attention.kind is AttentionKind.LINEAR)
    elements = sum(matrix.elements_count for matrix in attention_matrices(linear.attention, 4096))
    assert elements == 4096 * 4096 * 5 + 4096 * 32 * 2 + 4 * 3 * 4096


def test_a_key_that_tells_layers_apart_and_is_not_read_is_said() -> None:
    full = {"layer_types": ["full_attention"] * 32}
    for change in (
        {"novel_layer_kinds": list("ab" * 16)}, {"dense_layer_interval": 3}, {"thin_layers": 2, **full},
    ):  # fmt: skip
        (note,) = model_card_from_config(LLAMA | change).assumed
        assert next(iter(change)) in note
    assert model_card_from_config(LLAMA | full | {"global_attn_every_n_layers": 4}).assumed == ()
    assert model_card_from_config(LLAMA | {"no_rope_layers": [1, 1, 1, 0] * 8}).assumed == ()


def test_a_checkpoint_that_states_its_kv_format_means_it_by_auto() -> None:
    """vLLM: ModelOpt's kv_cache_quant_algo and compressed-tensors' kv_cache_scheme turn `auto` into FP8."""
    scheme = {"num_bits": 8, "type": "float"}
    tensors = {"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": scheme}}}
    for quant in (
        {"quant_method": "modelopt", "quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"},
        {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}},
        tensors | {"kv_cache_scheme": scheme},
    ):
        card = model_card_from_config(LLAMA | {"quantization_config": quant})
        assert kv_format("auto", card=card).name == "fp8"
        assert kv_format("bf16", card=card).name == "bf16"
        assert any("`auto`" in note for note in card.assumed)
    assert kv_format(None, card=model_card_from_config(LLAMA | {"quantization_config": tensors})).name == "bf16"


@pytest.mark.parametrize(
    ("quant", "expected"),
    [
        # Names as inside a multimodal checkpoint: listed one by one, by glob, by pattern.
        ({"quant_method": "fp8", "modules_to_not_convert": [
            f"model.language_model.layers.{index}.self_attn.{name}_proj" for index in range(32) for name in "qkvo"]},
         ("fp8", "bf16")),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4",
          "exclude_modules": ["model.language_model.layers.*.self_attn*"]}, ("nvfp4", "bf16")),
        ({"quant_method": "fp8", "ignored_layers": ["re:language_model.model.layers.*self_attn.*"]}, ("fp8", "bf16")),
        # AutoAWQ leaves out what contains a listed text: here all of attention, and layer 0 only.
        ({"quant_method": "awq", "modules_to_not_convert": ["self_attn", "model.layers.0."]}, ("int4", "bf16")),
        ({"quant_method": "awq", "modules_to_not_convert": ["layers.0."]}, ("int4", "int4")),
        # Kimi-K2-Thinking's own pattern names dense MLPs, not experts.
        ({"quant_method": "fp8", "ignored_layers": ["re:.*mlp\\.(gate|up|gate_up|down)_proj.*"]}, ("bf16", "fp8")),
    ],
    ids=["listed", "glob", "pattern", "awq", "awq-layer", "dense-mlp"],
)  # fmt: skip
def test_modules_are_found_by_every_name_they_have(quant: dict[str, Any], expected: tuple[str, str]) -> None:
    dtypes = model_card_from_config(LLAMA | {"quantization_config": quant}).dtypes
    assert (dtypes.weights, dtypes.attention) == expected


def test_llama4_experts_are_found_by_their_own_name() -> None:
    experts = {"targets": ["re:.*feed_forward.experts.*"], "weights": {"num_bits": 4, "type": "int", "group_size": 128}}
    quant = {"quant_method": "compressed-tensors", "config_groups": {"g": experts}}
    dtypes = model_card_from_config(PUBLISHED["Llama-4-Scout"][0] | {"quantization_config": quant}).dtypes
    assert (dtypes.experts, dtypes.shared_experts, dtypes.attention) == ("int4", "bf16", "bf16")


def test_what_an_engine_makes_of_a_checkpoint_is_said() -> None:
    card = model_card_from_config(LLAMA | {"torch_dtype": "float32"})
    assert (card.dtypes.weights, kv_format("auto", card=card).name) == ("fp16", "fp16")
    assert "32-bit" in card.assumed[0]
    quark = {"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "fp8_e4m3"}}}
    for scales in ({"export": {"kv_cache_group": ["*k_proj"]}}, {"kv_cache_quant_config": {"*k_proj": {}}}):
        card = model_card_from_config(LLAMA | {"quantization_config": quark | scales})
        assert kv_format("auto", card=card).name == "bf16"
        assert "KV scales (Quark)" in card.assumed[0]


def test_unquantised_outer_layers_do_not_speak_for_the_model() -> None:
    ends = [f"model.layers.{index}" for index in (0, 31)]
    card = model_card_from_config(LLAMA | {"quantization_config": {"quant_method": "fp8", "ignored_layers": ends}})
    assert (card.dtypes.weights, card.dtypes.attention) == ("fp8", "fp8")
    assert any("several formats" in note for note in card.assumed)


@pytest.mark.parametrize(
    ("config", "count"),
    [(LLAMA, 8_030_261_248), (MIXTRAL, 46_702_792_704), (QWEN2_7B, 7_615_616_512), (DEEPSEEK_V2_LITE, 15_706_484_224)],
    ids=["Llama-3.1-8B", "Mixtral-8x7B", "Qwen2-7B", "DeepSeek-V2-Lite"],
)
def test_parameters_match_the_published_checkpoint(config: dict[str, Any], count: int) -> None:
    """Counts as the model hub lists them for the checkpoint's safetensors."""
    assert parameters_count(model_card_from_config(config)) == count


def test_gemma_takes_family_defaults_and_says_so() -> None:
    card = model_card_from_config(GEMMA3)
    windows = [group for group in card.groups if group.attention.window_tokens]
    assert (card.vocab_tokens, card.tied_embeddings, card.max_position_tokens) == (262208, True, 131072)
    assert sum(group.layers_count for group in windows) == 52, "every sixth layer is full: 62 - 10"
    assert "vocab_size" in card.assumed[0]


def test_step_has_its_own_window_heads_and_a_shared_expert() -> None:
    card = model_card_from_config(STEP)
    heads = {group.attention.window_tokens: group.attention.heads for group in card.groups}
    assert heads == {0: 64, 512: 96}
    dense = sum(group.layers_count for group in card.groups if not group.ffn.is_moe)
    assert dense == 3
    moe = next(group.ffn for group in card.groups if group.ffn.is_moe)
    assert (moe.experts_count, moe.experts_per_token, moe.shared_intermediate) == (288, 8, 1280)
    assert (card.dtypes.shared_experts, card.dtypes.block) == ("fp8", (128, 128))


def test_latent_attention_without_query_compression() -> None:
    card = model_card_from_config(DEEPSEEK_V2_LITE)
    assert card.is_mla
    assert card.groups[0].attention.q_lora_rank == 0


@pytest.mark.parametrize(
    ("quant", "expected"),
    [
        ({"quant_method": "fp8", "weight_block_size": [64, 32]}, ("fp8", "fp8", (64, 32), 0)),
        ({"quant_method": "fp8"}, ("fp8", "fp8", None, 0)),
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, ("int4", "int4", None, 128)),
        ({"quant_method": "gptq", "bits": 8, "group_size": -1}, ("int8", "int8", None, 0)),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4", "exclude_modules": ["lm_head", "*self_attn*"]},
         ("nvfp4", "bf16", None, 0)),
        ({"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "fp4", "group_size": 32}},
          "exclude": ["re:.*self_attn.*"]}, ("mxfp4", "bf16", None, 0)),
        ({"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "fp8_e4m3", "qscheme": "per_channel"}}},
         ("fp8", "fp8", None, 0)),
        ({"quant_method": "compressed-tensors", "ignore": ["lm_head"], "config_groups": {"group_0": {
            "targets": ["Linear"], "weights": {"num_bits": 8, "type": "float", "strategy": "channel"}}}},
         ("fp8", "fp8", None, 0)),
        ({"quant_method": "compressed-tensors", "config_groups": {"group_0": {"targets": ["Linear"], "weights": {
            "num_bits": 8, "type": "float", "strategy": "block", "block_structure": [128, 128]}}}},
         ("fp8", "fp8", (128, 128), 0)),
        ({"quant_method": "compressed-tensors", "ignore": ["re:.*self_attn.*"], "config_groups": {"group_0": {
            "targets": ["Linear"], "weights": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}}}},
         ("int4", "bf16", None, 32)),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128, "dynamic": {"+:.*self_attn.*": {"bits": 8}}},
         ("int4", "int8", None, 128)),
        ({"quant_method": "gptq", "bits": 4, "group_size": 64, "dynamic": {"-:.*self_attn.*": {}}},
         ("int4", "bf16", None, 64)),
        ({"quant_method": "modelopt", "quant_algo": "MXFP8"}, ("mxfp8", "mxfp8", None, 0)),
        ({"quant_method": "modelopt", "quant_algo": "W4A16_AWQ", "group_size": 64}, ("int4", "int4", None, 64)),
        ({"quant_method": "auto-round", "bits": 4, "group_size": 32, "data_type": "mx_fp"},
         ("mxfp4", "mxfp4", None, 0)),
        ({"quant_method": "auto-round", "bits": 4, "group_size": 128, "extra_config": {
            f"model.layers.{index}.self_attn.{name}_proj": {"bits": 16} for index in range(32) for name in "qo"}},
         ("int4", "bf16", None, 128)),
    ],
    ids=["fp8-odd-block", "fp8-tensor", "awq", "gptq8", "nvfp4", "quark-mxfp4", "quark-fp8", "ct-channel", "ct-block",
         "ct-int4", "gptq-dynamic-wider", "gptq-dynamic-out", "mxfp8", "modelopt-awq-64", "auto-round-mxfp4",
         "auto-round-extra"],
)  # fmt: skip
def test_quantisation_is_read_not_assumed(quant: dict[str, Any], expected: tuple[Any, ...]) -> None:
    dtypes = model_card_from_config(LLAMA | {"quantization_config": quant}).dtypes
    assert (dtypes.weights, dtypes.attention, dtypes.block, dtypes.group) == expected
    assert dtypes.embeddings == "bf16"


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"num_attention_heads": None}, "num_attention_heads"),
        ({"num_attention_heads": "32"}, "num_attention_heads"),
        ({"num_attention_heads": -1}, "num_attention_heads"),
        ({"num_attention_heads": 0}, "num_attention_heads"),
        ({"num_attention_heads": True}, "num_attention_heads"),
        ({"num_attention_heads": 32.0}, "num_attention_heads"),
        ({"num_attention_heads": math.nan}, "num_attention_heads"),
        ({"num_key_value_heads": 5}, "num_key_value_heads"),
        ({"hidden_size": None}, "hidden_size"),
        ({"hidden_size": 4097}, "hidden_size"),
        ({"hidden_size": 10**12}, "hidden_size"),
        ({"vocab_size": None}, "vocab_size"),
        ({"num_hidden_layers": 10**6}, "num_hidden_layers"),
        ({"intermediate_size": None}, "intermediate_size"),
        ({"max_position_embeddings": "long"}, "max_position_embeddings"),
        ({"rope_scaling": {"type": "yarn", "factor": math.nan}}, "factor"),
        ({"rope_scaling": []}, "rope_scaling"),
        ({"torch_dtype": "bf17"}, "torch_dtype"),
        ({"tie_word_embeddings": "no"}, "tie_word_embeddings"),
        ({"layer_types": ["full_attention"]}, "layer_types"),
        ({"layer_types": ["mamba"] * 32}, "layer_types[0]"),
        ({"layer_types": "full"}, "layer_types"),
        ({"hybrid_override_pattern": "M-M*"}, "hybrid_override_pattern"),
        ({"num_local_experts": 8, "num_experts_per_tok": 9}, "num_experts_per_tok"),
        ({"num_local_experts": 8}, "num_experts_per_tok"),
        ({"kv_lora_rank": 512}, "qk_nope_head_dim"),
        ({"quantization_config": "fp8"}, "quantization_config"),
        ({"quantization_config": {"quant_method": "magic"}}, "quant_method"),
        ({"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}}, "quant_method"),
        ({"quantization_config": {"quant_method": "gguf"}}, "quant_method"),
        ({"quantization_config": {"quant_method": "auto-round", "bits": 4, "data_type": "float"}}, "data_type"),
        (
            {
                "quantization_config": {
                    "quant_method": "compressed-tensors",
                    "format": "marlin-24",
                    "config_groups": {"g": {"weights": {"num_bits": 4, "type": "int", "group_size": 128}}},
                }
            },
            "format",
        ),
        ({"quantization_config": {"quant_method": "fp8", "weight_block_size": [128]}}, "weight_block_size"),
        ({"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 0]}}, "weight_block_size[1]"),
        ({"quantization_config": {"quant_method": "fp8", "ignored_layers": ["re:(a+)+$"]}}, "quantization_config"),
        ({"quantization_config": {"quant_method": "fp8", "ignored_layers": ["re:["]}}, "quantization_config"),
        ({"quantization_config": {"quant_method": "awq", "bits": 3}}, "bits"),
        ({"quantization_config": {"quant_method": "compressed-tensors"}}, "config_groups"),
    ],
    ids=str,
)
def test_a_wrong_value_is_one_line_that_names_its_field(change: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError) as caught:
        model_card_from_config(LLAMA | change)
    text = str(caught.value)
    assert field in caught.value.field
    assert "\n" not in text
    assert len(text) < 420


def test_unknown_keys_are_tolerated() -> None:
    known = model_card_from_config(LLAMA)
    assert model_card_from_config(LLAMA | {"a_new_key": {"x": [1]}, "auto_map": {}}) == known


def test_partial_configs_say_what_they_leave_out() -> None:
    card = model_card_from_config({"num_attention_heads": 64, "num_experts": 256}, partial=True)
    assert {"layers", "hidden", "vocab", "head_dim", "expert_intermediate"} <= set(card.unknown)
    with pytest.raises(InputError, match="hidden_size"):
        model_card_from_config({"num_attention_heads": 64, "num_hidden_layers": 2})
    with pytest.raises(InputError, match="at least one shape"):
        model_card_from_config({"rms_norm_eps": 1e-6}, partial=True)
    with pytest.raises(InputError, match="num_hidden_layers"):
        model_card_from_config({"model_type": "llama", "num_attention_heads": 64}, partial=True)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@given(
    key=st.sampled_from([*sorted(LLAMA), "quantization_config", "rope_scaling", "layer_types", "num_experts"]),
    value=JSON,
)
def test_any_value_gives_a_card_or_an_input_error(key: str, value: object) -> None:
    try:
        card = model_card_from_config(LLAMA | {key: value})
    except InputError as error:
        assert len(str(error).splitlines()) == 1  # noqa: PT017 (either outcome is fine)
    else:
        assert card.layers_count >= 1


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("Qwen--Qwen3-8B", 8_190_735_360), ("Qwen--Qwen3-14B", 14_768_307_200), ("Qwen--Qwen3-32B", 32_762_123_264),
        ("Qwen--Qwen3-30B-A3B", 30_532_122_624), ("Qwen--Qwen3-235B-A22B", 235_093_634_560),
        ("meta-llama--Meta-Llama-3.1-8B", 8_030_261_248), ("meta-llama--Meta-Llama-3.1-70B", 70_553_706_496),
        ("openai--gpt-oss-120b", 116_829_156_672),
    ],
)  # fmt: skip
def test_stored_configs_have_the_published_parameter_counts(name: str, count: int) -> None:
    path = SHARED / f"{name}_config.json"
    if not path.exists():
        pytest.skip("the shared model configs are not here")
    assert parameters_count(model_card_from_config(json.loads(path.read_text("utf-8")))) == count


def test_every_stored_config_gives_a_card() -> None:
    if not SHARED.exists():
        pytest.skip("the shared model configs are not here")
    for path in sorted(SHARED.glob("*.json")):
        card = model_card_from_config(json.loads(path.read_text("utf-8")))
        assert not card.unknown, path.name
        assert any(group.attention.kind is not AttentionKind.LINEAR for group in card.groups), path.name
