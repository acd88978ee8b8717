"""A model card from a Hugging Face `config.json`: tolerant of unknown keys, strict about wrong values."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from simcore.cards.formats import canonical_format
from simcore.cards.hf_attention import attention_layers, rotary_dim
from simcore.cards.hf_ffn import ffn_layers
from simcore.cards.hf_fields import LARGEST_LAYERS, Fields
from simcore.cards.hf_quant import LayerSample, dtypes_from_config
from simcore.cards.model import AttentionKind, AttentionSpec, FfnSpec, LayerGroup, ModelCard
from simcore.data import loader
from simcore.errors import InputError

_NESTED = ("text_config", "language_config", "llm_config", "thinker_config")
_INHERITED = ("quantization_config", "quant_config", "tie_word_embeddings", "torch_dtype", "dtype", "expert_dtype")
_DEEPEST_NESTING = 3
"""Omni models nest the text model in a thinker in the whole."""
HEAD_DIM_DERIVED = "head_dim = hidden / heads: the partial config does not give it"
_YARN = ("yarn", "linear", "dynamic")
_ENCODERS = ("vision_config", "audio_config", "vision_tower_config", "visual")
_HARMLESS = (
    "no_rope_layers", "no_rope_layer_interval", "max_window_layers", "num_layers", "n_layer", "num_hash_layers",
)  # fmt: skip
"""Keys about layers that change no weight, no KV byte and no width, or repeat another key."""
_SAYS_LAYERS = re.compile(r"(^|_)(pattern|interval|period|every_n)($|_)|_layers$")
"""Keys with these words tell which layers differ."""
_SAYS_ATTENTION = re.compile(r"attn|attention|window|swa|global|rope|linear|mamba|conv")
"""Of those, what `layer_types` says again."""
_ORIGINAL_KEYS = ("dim", "n_heads", "n_kv_heads")
"""Spellings of the `params.json` that Mistral and Llama ship beside the config."""


def model_card_from_config(
    config: Mapping[str, Any], name: str | None = None, *, partial: bool = False, source: str = "config.json"
) -> ModelCard:
    """The card of the checkpoint described by `config`, a parsed `config.json`.

    `partial` accepts a config of a few shape fields (then `ModelCard.unknown` lists what is missing); a config that
    says `architectures` or `model_type` is always read in full. Raises InputError naming the field.
    """
    if not isinstance(config, Mapping):
        raise InputError("config", config, "be a mapping")
    fields = _language_part(config)
    partial = partial and not {"architectures", "model_type"} & set(config)
    assumed: list[str] = []
    fields = _with_family_defaults(fields, assumed)
    layer_names = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
    if partial:
        _require_some_shape(fields)
    # Without a layer count two layers stand for all: a dense one and a routed one where both are described.
    layers = fields.integer(*layer_names, default=2 if partial else None, minimum=1, maximum=LARGEST_LAYERS)
    # A partial config may be without a shape field; a full one may not.
    hidden = fields.integer("hidden_size", "n_embd", "d_model", default=0 if partial else None, minimum=1)
    vocab = fields.integer("vocab_size", "padded_vocab_size", default=0 if partial else None, minimum=1)
    attention = attention_layers(fields, hidden=hidden, layers=layers, partial=partial)
    ffn = ffn_layers(fields, hidden=hidden, layers=layers, partial=partial)
    groups = _group(attention, ffn)
    base = canonical_format(fields.text("torch_dtype", "dtype", default="bf16"), f"{fields.path}.torch_dtype")
    if base == "fp32":
        base = "fp16"
        assumed.append("a 32-bit checkpoint is loaded as 16-bit, as engines do unless told otherwise")
    samples = [
        LayerSample(group.layer_indexes[step * (group.layers_count - 1) // 4], group.attention.kind, group.ffn.is_moe)
        for group in groups
        for step in range(5)  # the first and last layers are often left unquantised: those between outvote them
    ]
    if partial and "head_dim" not in fields and any(spec.head_dim for spec in attention):
        assumed.append(HEAD_DIM_DERIVED)
    dtypes, notes = dtypes_from_config(fields, base, samples)
    assumed += notes + _structural_notes(fields, groups)
    if not partial and "tie_word_embeddings" not in fields:
        assumed.append("an output head of its own: the config does not say whether embeddings are tied")
    if any(isinstance(config.get(key), Mapping) for key in _ENCODERS):
        assumed.append("vision and audio encoders are not counted: text only")
    full = next((spec for spec in attention if spec.kind is not AttentionKind.LINEAR), attention[0])
    _, declared = fields.find("architectures")
    longest = _max_position(fields, assumed)
    mtp_layers = _mtp_layers(fields)
    assumed += _unread_notes(fields, layers)
    return ModelCard(
        name=name or fields.text("_name_or_path", "name") or fields.text("model_type") or "unnamed",
        hidden=hidden,
        vocab_tokens=vocab,
        max_position_tokens=longest,
        groups=groups,
        dtypes=dtypes,
        tied_embeddings=fields.flag("tie_word_embeddings"),
        mtp_layers_count=mtp_layers,
        rope_dim=rotary_dim(fields, full),
        hidden_connections=fields.integer("hc_mult", default=1, minimum=1),
        architecture=str(declared[0])
        if isinstance(declared, list) and declared
        else fields.text("architecture_name", "model_type"),
        source=source,
        assumed=tuple(assumed),
        unknown=_unknown(fields, hidden=hidden, vocab=vocab, groups=groups, layer_names=layer_names),
    )


def _require_some_shape(fields: Fields) -> None:
    shape = (
        "num_attention_heads", "num_key_value_heads", "num_hidden_layers", "hidden_size", "intermediate_size",
        "moe_intermediate_size", "kv_lora_rank", "num_experts", "n_routed_experts", "num_local_experts", "vocab_size",
        "shared_intermediate_size", "shared_expert_intermediate_size", "share_expert_dim",
    )  # fmt: skip
    original = next((name for name in _ORIGINAL_KEYS if name in fields), None)
    if original is not None:
        raise InputError(
            f"{fields.path}.{original}", fields.values[original], "be spelled as in config.json",
            "this is a key of the original params.json (num_attention_heads, num_key_value_heads, hidden_size, …)",
        )  # fmt: skip
    if not any(name in fields for name in shape):
        raise InputError(fields.path, sorted(map(str, fields.values))[:8], "name at least one shape of the model")


def _language_part(config: Mapping[str, Any]) -> Fields:
    """The config of the language model inside a multimodal one, with the keys it inherits from the outside."""
    found = Fields(config)
    declared = {"architectures": config["architectures"]} if "architectures" in found else {}
    for _depth in range(_DEEPEST_NESTING):
        if any(name in found for name in ("num_hidden_layers", "n_layer", "num_layers")):
            break
        inner = next((section for key in _NESTED if (section := found.section(key)) is not None), None)
        if inner is None:
            break
        kept = {name: found.values[name] for name in _INHERITED if name in found}
        found = Fields({**kept, **inner.values, **declared}, inner.path)
    return found


@cache
def _family_defaults() -> Mapping[str, Mapping[str, Any]]:
    records = [
        loader.record(item, "families.yaml", required={"family", "values"})
        for item in loader.read_data("families.yaml")
    ]
    return {item["family"]: item["values"] for item in records}


def _with_family_defaults(fields: Fields, assumed: list[str]) -> Fields:
    family = fields.values.get("model_type")
    defaults = _family_defaults().get(family, {}) if isinstance(family, str) else {}
    missing = {key: value for key, value in defaults.items() if key not in fields}
    if missing:
        assumed.append(f"family defaults of {family}: {', '.join(sorted(missing))}")
    return Fields({**fields.values, **missing}, fields.path) if missing else fields


def _group(attention: list[AttentionSpec], ffn: list[FfnSpec]) -> tuple[LayerGroup, ...]:
    """Equal layers together, in the order of their first layer."""
    members: dict[tuple[AttentionSpec, FfnSpec], list[int]] = {}
    for index, pair in enumerate(zip(attention, ffn, strict=True)):
        members.setdefault(pair, []).append(index)
    return tuple(LayerGroup(len(where), pair[0], pair[1], tuple(where)) for pair, where in members.items())


def _max_position(fields: Fields, assumed: list[str]) -> int:
    """Longest context the positions allow; position scaling counts (0 = not said)."""
    names = ("max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length", "seq_length", "n_ctx")
    longest = fields.integer(*names, default=0)
    scaling = fields.section("rope_scaling", "rope_parameters")
    if scaling is None or not longest:
        return longest
    kind = scaling.text("rope_type", "type")
    if kind not in _YARN:
        return longest
    factor = scaling.number("factor", default=1.0, minimum=1.0)
    original = scaling.integer("original_max_position_embeddings", default=0) or longest
    scaled = int(original * factor)
    if scaled > longest:
        assumed.append(f"longest context {scaled} = {original} positions x {kind} factor {factor:g}")
    return max(longest, scaled)


def _mtp_layers(fields: Fields) -> int:
    """Layers of the built-in draft (multi-token prediction) modules."""
    for key in ("num_nextn_predict_layers", "mtp_num_hidden_layers", "mtp_num_layers"):
        if key in fields:
            return fields.integer(key, maximum=LARGEST_LAYERS)
    if "num_mtp_modules" in fields and fields.flag("use_mtp", default=True):
        per_module = fields.integer("mtp_transformer_layers", default=1, maximum=LARGEST_LAYERS)
        return fields.integer("num_mtp_modules", maximum=LARGEST_LAYERS) * per_module
    return 0


def _unread_notes(fields: Fields, layers: int) -> list[str]:
    """Keys that nobody read and that seem to say which layers differ: the card may be wrong about them."""
    notes = []
    for key, value in fields.values.items():
        if key in fields.read or key in _HARMLESS or value in (None, False, 0, "", []):
            continue
        per_layer = isinstance(value, list) and len(value) == layers > 1 and not isinstance(value[0], Mapping)
        explained = "layer_types" in fields and _SAYS_ATTENTION.search(str(key)) is not None
        hinted = _SAYS_LAYERS.search(str(key)) is not None and not explained
        if per_layer or (hinted and isinstance(value, int | str | list)):
            notes.append(f"config key {key} is not read: layers may differ from this card")
    return notes


def _structural_notes(fields: Fields, groups: tuple[LayerGroup, ...]) -> list[str]:
    """Shapes that the config does not fix and the card had to take from elsewhere."""
    notes = []
    if any(not group.attention.latent_expanded for group in groups):
        notes.append("compressor and indexer weights of compressed latent attention: shapes not in the config")
    linear = any(group.attention.kind is AttentionKind.LINEAR for group in groups)
    if linear and "mamba_ssm_dtype" not in fields and "linear_attn_config" not in fields:
        notes.append("recurrent state in 16 bit, as vLLM keeps it where the config says nothing; SGLang keeps 32 bit")
    if "linear_attn_config" in fields:
        notes.append("KDA projections (low-rank decay gate of one head's width): shapes not in the config")
    if any(group.attention.index_heads and group.attention.kind is AttentionKind.GQA for group in groups):
        notes.append("block-sparse indexer: one shared index key per token, stored in the KV format")
    return notes


def _unknown(
    fields: Fields, *, hidden: int, vocab: int, groups: tuple[LayerGroup, ...], layer_names: tuple[str, ...]
) -> tuple[str, ...]:
    """Shape fields that a partial config leaves out."""
    missing = [] if fields.find(*layer_names)[1] is not None else ["layers"]
    missing += [] if hidden else ["hidden"]
    missing += [] if vocab else ["vocab"]
    kinds = [group.attention for group in groups]
    latent = [spec for spec in kinds if spec.kind is AttentionKind.MLA]
    grouped = [spec for spec in kinds if spec.kind is AttentionKind.GQA]
    missing += ["heads"] if any(spec.heads == 0 for spec in kinds) else []
    missing += ["kv_heads"] if any(spec.kv_heads == 0 for spec in grouped) else []
    missing += ["head_dim"] if any(spec.head_dim == 0 for spec in grouped) else []
    missing += ["kv_lora_rank"] if any(spec.kv_lora_rank == 0 for spec in latent) else []
    missing += ["mla_dims"] if any(not (spec.qk_nope_head_dim and spec.value_head_dim) for spec in latent) else []
    routed = any(group.ffn.is_moe for group in groups)
    names = ("n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts", "num_routed_experts")
    missing += ["experts"] if routed and not fields.find(*names)[1] else []
    if any(not group.ffn.is_moe and group.ffn.intermediate == 0 for group in groups):
        missing.append("intermediate")
    if any(group.ffn.is_moe and group.ffn.expert_intermediate == 0 for group in groups):
        missing.append("expert_intermediate")
    return tuple(missing)
