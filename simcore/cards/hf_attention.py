"""Attention layers from a Hugging Face config: which kind each layer is, and its dimensions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction

from simcore.cards.formats import canonical_format
from simcore.cards.hf_fields import Fields
from simcore.cards.model import AttentionKind, AttentionSpec
from simcore.errors import InputError

FULL, WINDOW, LINEAR = "full", "window", "linear"
_LAYER_TYPES = {
    "full_attention": FULL, "attention": FULL, "full": FULL, "global": FULL, "global_attention": FULL,
    "sparse_attention": FULL, "compressed_sparse_attention": FULL, "heavily_compressed_attention": FULL,
    "sliding_attention": WINDOW, "sliding_window_attention": WINDOW, "sliding": WINDOW, "local": WINDOW,
    "local_attention": WINDOW, "chunked_attention": WINDOW,
    "linear_attention": LINEAR, "gated_delta_net": LINEAR, "kda": LINEAR,
}  # fmt: skip
_LARGEST_DENOMINATOR = 1024
"""Partial rotary factors are small fractions such as 1/4; this makes them exact."""
_NOT_MODELLED: Mapping[str, str] = {
    **dict.fromkeys(
        ("hybrid_override_pattern", "layers_block_type", "ssm_cfg", "attn_layer_period", "mamba_d_state", "state_size"),
        "state-space layers are not modelled",
    ),
    **dict.fromkeys(("block_types", "lru_width"), "recurrent layers are not modelled"),
    **dict.fromkeys(("block_configs", "num_key_value_heads_per_layer"), "layers of different shapes are not modelled"),
    "use_cla": "layers that share another layer's KV are not modelled",
    "cross_attention_layers": "layers that attend to an image are not modelled",
    "is_encoder_decoder": "a decoder that attends to an encoder is not modelled",
    "mixer_types": "lightning attention is not modelled",
    "layer_group_size": "lightning attention is not modelled",
    "zero_expert_num": "layers with two attentions and zero experts are not modelled",
    "num_kv_shared_layers": "layers that share another layer's KV are not modelled",
    "hidden_size_per_layer_input": "per-layer embeddings are not modelled",
}
"""Keys that make a model something else than this file describes, unless they are 0 or false."""
_NAMED_BY_LAYER_TYPES = ("mamba_d_state",)
"""Of those, what says nothing beside `layer_types`, which names each state-space layer (Granite 4 without any)."""
_FAMILIES_NOT_MODELLED: Mapping[str, str] = {
    **dict.fromkeys(("rwkv", "xlstm", "mamba", "falcon_mamba", "retnet"), "recurrent layers are not modelled"),
    **dict.fromkeys(
        ("bert", "roberta", "xlm-roberta", "distilbert", "electra", "albert", "deberta", "modernbert", "nomic_bert"),
        "an encoder generates nothing and keeps no KV cache",
    ),
    "jetmoe": "attention heads that are routed like experts are not modelled",
}
"""Starts of model types whose keys look like those of a transformer decoder."""


def attention_layers(fields: Fields, *, hidden: int, layers: int, partial: bool = False) -> list[AttentionSpec]:
    """One AttentionSpec per layer, in order; `partial` leaves what is not given at 0.

    Raises InputError for anything that is not modelled or contradictory.
    """
    _refuse_what_is_not_modelled(fields)
    kinds = _layer_kinds(fields, layers)
    linear = _linear_spec(fields) if LINEAR in kinds else None
    if fields.integer("kv_lora_rank", default=0) or fields.flag("mla"):
        base, window_base = _latent_spec(fields, partial), None
    elif "compress_ratios" in fields:
        return _compressed_latent(fields, layers)
    else:
        base = _grouped_spec(fields, hidden, partial)
        window_base = _window_spec(fields, base) if WINDOW in kinds else None
        base = _global_spec(fields, base) if WINDOW in kinds else base
    own = fields.strings("indexer_types", at_least=layers)
    sparse = _block_sparse(fields, layers)
    result = []
    for index, kind in enumerate(kinds):
        if kind == LINEAR and linear is not None:
            result.append(linear)
            continue
        spec = base if kind == FULL or window_base is None else window_base
        if own is not None and spec.index_heads:
            if own[index] not in ("full", "shared"):
                raise InputError(f"{fields.path}.indexer_types[{index}]", own[index], "be `full` or `shared`")
            spec = replace(spec, indexer_own=own[index] == "full")
        if sparse is not None and sparse[0][index]:
            spec = replace(spec, index_heads=sparse[1], index_head_dim=sparse[2], index_topk_tokens=sparse[3])
        result.append(spec)
    return result


def _refuse_what_is_not_modelled(fields: Fields) -> None:
    explained = _NAMED_BY_LAYER_TYPES if "layer_types" in fields else ()
    for key, reason in _NOT_MODELLED.items():
        if key in fields and fields.values[key] != 0 and key not in explained:
            raise InputError(f"{fields.path}.{key}", fields.values[key], "be absent", reason)
    family = fields.text("model_type").lower()
    for start, reason in _FAMILIES_NOT_MODELLED.items():
        if family.startswith(start):
            raise InputError(f"{fields.path}.model_type", family, "be a modelled family", reason)


def _layer_kinds(fields: Fields, layers: int) -> list[str]:
    linear_config = fields.section("linear_attn_config")
    if linear_config is not None and "kda_layers" in linear_config:
        linear = set(linear_config.integers("kda_layers", minimum=1) or ())
        if linear and max(linear) > layers:
            raise InputError(f"{linear_config.path}.kda_layers", max(linear), f"be at most the layer count {layers}")
        return [LINEAR if index + 1 in linear else FULL for index in range(layers)]
    names = fields.strings("layer_types", at_least=layers)
    if names is not None:
        kinds = []
        for index, name in enumerate(names[:layers]):
            if name not in _LAYER_TYPES:
                known = ", ".join(sorted(_LAYER_TYPES))
                raise InputError(
                    f"{fields.path}.layer_types[{index}]", name, "be a modelled layer type", f"one of {known}"
                )
            kinds.append(_LAYER_TYPES[name])
        return kinds
    windowed = fields.integers("hybrid_layer_pattern", at_least=layers)
    if windowed is not None:  # MiMo-V2: 1 marks a window
        return [WINDOW if flag else FULL for flag in windowed[:layers]]
    flags = fields.integers("attn_type_list", at_least=layers)
    if flags is not None and any(flag != 1 for flag in flags[:layers]):
        raise InputError(f"{fields.path}.attn_type_list", flags, "be all 1", "lightning attention is not modelled")
    if "linear_num_value_heads" in fields:
        interval = fields.integer("full_attention_interval", default=4, minimum=1)
        return [FULL if (index + 1) % interval == 0 else LINEAR for index in range(layers)]
    return _window_kinds(fields, layers)


def _window_kinds(fields: Fields, layers: int) -> list[str]:
    family = fields.text("model_type")
    window = fields.integer("sliding_window", "sliding_window_size", "attention_chunk_size", default=0)
    if not window or not fields.flag("use_sliding_window", default=not family.startswith(("qwen2", "qwen3"))):
        return [FULL] * layers
    field, pattern = fields.find("sliding_window_pattern", "_sliding_window_pattern")
    if isinstance(pattern, str):  # EXAONE-4: `LLLG` repeats local, local, local, global
        if not pattern or set(pattern) - {"L", "G"}:
            raise InputError(field, pattern, "be a number or letters L and G")
        return [WINDOW if pattern[index % len(pattern)] == "L" else FULL for index in range(layers)]
    period = fields.integer("sliding_window_pattern", "_sliding_window_pattern", default=0)
    if not period and family.startswith("gemma3"):
        period = 6
    elif not period and family in ("cohere2", "llama4_text", "llama4"):
        period = 4
    elif not period and family in ("gpt_oss", "gemma2"):
        period = 2
    if period:
        return [FULL if (index + 1) % period == 0 else WINDOW for index in range(layers)]
    first = 0
    if "use_sliding_window" in fields or family.startswith(("qwen2", "qwen3")):
        first = fields.integer("max_window_layers", default=0)
    return [WINDOW if index >= first else FULL for index in range(layers)]


def _latent_spec(fields: Fields, partial: bool) -> AttentionSpec:
    missing = 0 if partial else None
    heads = fields.integer("num_attention_heads", "n_head", default=missing, minimum=1)
    nope = fields.integer("qk_nope_head_dim", default=missing, minimum=1)
    rope = fields.integer("qk_rope_head_dim", default=missing, minimum=0)
    return AttentionSpec(
        kind=AttentionKind.MLA, heads=heads, kv_heads=1, head_dim=nope + rope,
        value_head_dim=fields.integer("v_head_dim", default=missing, minimum=1),
        q_lora_rank=fields.integer("q_lora_rank", default=0),
        kv_lora_rank=fields.integer("kv_lora_rank", default=missing, minimum=1),
        qk_nope_head_dim=nope, qk_rope_head_dim=rope,
        index_heads=fields.integer("index_n_heads", default=0),
        index_head_dim=fields.integer("index_head_dim", default=0) if "index_n_heads" in fields else 0,
        index_topk_tokens=fields.integer("index_topk", default=0) if "index_n_heads" in fields else 0,
        output_gate=fields.flag("mla_use_output_gate"), qkv_bias=fields.flag("attention_bias"),
    )  # fmt: skip


def _compressed_latent(fields: Fields, layers: int) -> list[AttentionSpec]:
    """DeepSeek-V4: one 512-wide latent per entry, a window plus a pool compressed by a ratio per layer."""
    ratios = fields.integers("compress_ratios", at_least=layers) or []
    head_dim, rope = fields.integer("head_dim", minimum=1), fields.integer("qk_rope_head_dim", minimum=0)
    if rope > head_dim:
        raise InputError(f"{fields.path}.qk_rope_head_dim", rope, f"be at most head_dim {head_dim}")
    base = AttentionSpec(
        kind=AttentionKind.MLA, heads=fields.integer("num_attention_heads", minimum=1), kv_heads=1,
        head_dim=head_dim, value_head_dim=head_dim, window_tokens=fields.integer("sliding_window", minimum=1),
        q_lora_rank=fields.integer("q_lora_rank", minimum=1), kv_lora_rank=head_dim - rope,
        qk_nope_head_dim=head_dim - rope, qk_rope_head_dim=rope, latent_expanded=False,
        o_lora_rank=fields.integer("o_lora_rank", default=0), o_groups=fields.integer("o_groups", default=0),
    )  # fmt: skip
    # The indexer picks entries of the finely compressed pool; layers with the coarse ratio attend to all of it.
    fine = min((ratio for ratio in ratios[:layers] if ratio > 1), default=0)
    indexed = replace(
        base, index_heads=fields.integer("index_n_heads", default=0),
        index_head_dim=fields.integer("index_head_dim", default=0),
        index_topk_tokens=fields.integer("index_topk", default=0),
    )  # fmt: skip
    return [
        replace(indexed if ratio == fine and ratio > 1 else base, kv_compress_ratio=max(ratio, 1))
        for ratio in ratios[:layers]
    ]


def _grouped_spec(fields: Fields, hidden: int, partial: bool) -> AttentionSpec:
    heads = fields.integer("num_attention_heads", "n_head", "num_heads", default=0 if partial else None, minimum=1)
    kv_heads = fields.integer(
        "num_key_value_heads", "num_kv_heads", "num_attention_groups", "n_head_kv", "multi_query_group_num",
        default=heads, minimum=1,
    )  # fmt: skip
    if fields.flag("multi_query") and not fields.flag("new_decoder_architecture"):
        kv_heads = 1  # Falcon-7B's config also states as many KV heads as heads
    if kv_heads and heads % kv_heads:
        raise InputError(
            f"{fields.path}.num_key_value_heads", kv_heads, "divide num_attention_heads", f"{heads} heads leave a rest"
        )
    head_dim = fields.integer("head_dim", "kv_channels", "attention_head_dim", default=0)
    if not head_dim and hidden and heads:
        if hidden % heads:
            field = f"{fields.path}.hidden_size"
            raise InputError(field, hidden, f"be a multiple of num_attention_heads {heads}", "or give head_dim")
        head_dim = hidden // heads
    family = fields.text("model_type")
    bias = fields.flag("attention_bias", "qkv_bias", "add_qkv_bias", default=family in ("qwen2", "qwen2_moe"))
    return AttentionSpec(
        kind=AttentionKind.GQA, heads=heads, kv_heads=kv_heads, head_dim=head_dim,
        value_head_dim=fields.integer("v_head_dim", default=head_dim),
        q_lora_rank=fields.integer("share_q_dim", default=0), sinks=family == "gpt_oss",
        qkv_bias=bias, o_bias=fields.flag("attention_out_bias", default="attention_bias" in fields and bias),
        qk_norm=fields.flag("use_qk_norm", "qk_layernorm", default=family.startswith(("qwen3", "gemma3"))),
        output_gate=fields.flag("attn_output_gate", "attention_output_gate", default=family in ("qwen3_next", "afmoe")),
    )  # fmt: skip


def _window_spec(fields: Fields, base: AttentionSpec) -> AttentionSpec:
    window = fields.integer("sliding_window", "sliding_window_size", "attention_chunk_size", minimum=1)
    base = replace(base, window_tokens=window)
    other = fields.section("attention_other_setting")  # Step-3.5: its window layers have their own head counts
    if other is not None:
        return _reshaped(
            base, other, heads="num_attention_heads", kv_heads="num_attention_groups", head_dim="head_dim",
            value_head_dim="v_head_dim",
        )  # fmt: skip
    return _reshaped(
        base, fields, heads="swa_num_attention_heads", kv_heads="swa_num_key_value_heads", head_dim="swa_head_dim",
        value_head_dim="swa_v_head_dim",
    )  # fmt: skip


def _global_spec(fields: Fields, base: AttentionSpec) -> AttentionSpec:
    """Gemma 4: the full layers beside windowed ones have their own heads, and keys serve as values."""
    shared = fields.flag("attention_k_eq_v")
    kv_heads = "num_global_key_value_heads" if shared else "num_key_value_heads"
    spec = _reshaped(
        base, fields, heads="num_attention_heads", kv_heads=kv_heads, head_dim="global_head_dim",
        value_head_dim="global_head_dim",
    )  # fmt: skip
    return replace(spec, values_are_keys=shared)


def _reshaped(base: AttentionSpec, source: Fields, **keys: str) -> AttentionSpec:
    """`base` with the dimensions that `source` gives under `keys`; values are as wide as keys where not said."""
    given = {name: source.integer(key, default=0) for name, key in keys.items()}
    head_dim = given["head_dim"] or base.head_dim
    value_head_dim = given["value_head_dim"] or (given["head_dim"] or base.value_head_dim)
    heads, kv_heads = given["heads"] or base.heads, given["kv_heads"] or base.kv_heads
    if kv_heads and heads % kv_heads:
        raise InputError(f"{source.path}.{keys['kv_heads']}", kv_heads, f"divide the {heads} heads")
    return replace(base, heads=heads, kv_heads=kv_heads, head_dim=head_dim, value_head_dim=value_head_dim)


def _linear_spec(fields: Fields) -> AttentionSpec:
    section = fields.section("linear_attn_config")
    # vLLM and ATOM keep KDA's recurrent state in 32 bit whatever is said (kda_state_dtype, 2026).
    unsaid = "bf16" if section is None else "fp32"
    state = canonical_format(fields.text("mamba_ssm_dtype", default=unsaid), f"{fields.path}.mamba_ssm_dtype")
    if section is not None:
        heads, dim = section.integer("num_heads", minimum=1), section.integer("head_dim", minimum=1)
        key_heads, value_heads, key_dim, value_dim = heads, heads, dim, dim
        kernel = section.integer("short_conv_kernel_size", default=4, minimum=1)
        full_rank_gate = section.flag("use_full_rank_gate")
    else:
        if "linear_num_key_heads" not in fields:
            must = "be a gated delta net (linear_num_key_heads) or KDA (linear_attn_config)"
            raise InputError(f"{fields.path}.layer_types", "linear_attention", must, "other kinds are not modelled")
        key_heads = fields.integer("linear_num_key_heads", minimum=1)
        value_heads = fields.integer("linear_num_value_heads", minimum=1)
        key_dim = fields.integer("linear_key_head_dim", minimum=1)
        value_dim = fields.integer("linear_value_head_dim", minimum=1)
        kernel, full_rank_gate = fields.integer("linear_conv_kernel_dim", default=4, minimum=1), True
    if value_heads % key_heads:
        raise InputError(
            f"{fields.path}.linear_num_value_heads", value_heads, f"be a multiple of {key_heads} key heads"
        )
    return AttentionSpec(
        kind=AttentionKind.LINEAR, heads=value_heads, kv_heads=key_heads, head_dim=key_dim, value_head_dim=value_dim,
        linear_key_heads=key_heads, linear_value_heads=value_heads, linear_key_dim=key_dim,
        linear_value_dim=value_dim, conv_kernel_tokens=kernel, state_dtype=state, output_gate=full_rank_gate,
        per_channel_decay=section is not None,
    )  # fmt: skip


def _block_sparse(fields: Fields, layers: int) -> tuple[list[int], int, int, int] | None:
    """MiniMax-M3: (flag per layer, index heads, index head dim, attended tokens), or None."""
    section = fields.section("sparse_attention_config")
    if section is None or not section.flag("use_sparse_attention", default=True):
        return None
    layer_flags = section.integers("sparse_attention_freq", at_least=layers) or [1] * layers
    blocks = section.integer("sparse_topk_blocks", minimum=1) * section.integer("sparse_block_size", minimum=1)
    return (
        layer_flags,
        section.integer("sparse_num_index_heads", default=1),
        section.integer("sparse_index_dim"),
        blocks,
    )


def rotary_dim(fields: Fields, spec: AttentionSpec) -> int:
    """Width of the cached cos/sin table (0 = no rotary positions): `rotary_dim`, partial factor or the whole head."""
    if fields.flag("mla_use_nope"):
        return 0
    if spec.kind is AttentionKind.MLA:
        return spec.qk_rope_head_dim
    given = fields.integer("rotary_dim", default=0)
    if given:
        return given
    parameters = fields.section("rope_parameters")
    factor = fields.number("partial_rotary_factor", "rotary_pct", default=1.0)
    if parameters is not None:
        factor = parameters.number("partial_rotary_factor", default=factor)
    return int(spec.head_dim * Fraction(factor).limit_denominator(_LARGEST_DENOMINATOR))
