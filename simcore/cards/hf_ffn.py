"""Feed-forward layers from a Hugging Face config: dense width, routed experts, shared experts, per layer."""

from __future__ import annotations

import re
from collections.abc import Mapping

from simcore.cards.hf_fields import Fields
from simcore.cards.model import FfnSpec
from simcore.errors import InputError

_NOT_GATED = {
    "phi", "gpt2", "gpt_neox", "gptj", "falcon", "opt", "bloom", "mpt", "starcoder2", "gpt_bigcode", "nemotron",
    "arcee", "apertus", "persimmon", "codegen", "gpt_neo", "xglm", "nanochat",
}  # fmt: skip
_FOUR_HIDDEN = ("gpt2", "gptj", "bloom", "falcon")
"""Families whose config may leave the width out: it is four times the hidden size then."""
_EXPERTS = ("n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts", "num_routed_experts")
_TOP_K = ("num_experts_per_tok", "num_experts_per_token", "moe_top_k", "moe_topk", "top_k_experts", "experts_per_token",
          "moe_k")  # fmt: skip
_SHARED_COUNT = ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts", "num_shared_expert")
_SAYS_EXPERTS = re.compile(r"(^|_)(moe|experts?)($|_)")
_EXPERT_WIDTH = ("moe_intermediate_size", "moe_ffn_hidden_size", "expert_ffn_hidden_size")


def ffn_layers(fields: Fields, *, hidden: int, layers: int, partial: bool = False) -> list[FfnSpec]:
    """One FfnSpec per layer, in order; `partial` allows a config without widths. Raises InputError."""
    family = fields.text("model_type")
    gated = family not in _NOT_GATED
    experts = fields.integer(*_EXPERTS, default=0)
    width_names: tuple[str, ...] = ("intermediate_size", "ffn_dim", "ffn_hidden_size", "n_inner")
    shared_names = ("shared_expert_intermediate_size", "shared_intermediate_size", "share_expert_dim")
    hinted = any(fields.find(name)[1] for name in (*_EXPERT_WIDTH, *shared_names))
    if partial and experts == 0 and hinted:
        # A few shape fields of a MoE without its expert count: one stands for all, the card lists it as unknown.
        experts = 1
    if experts <= 1 and not partial:
        experts = 0  # one expert is a dense layer to the model files that allow it (HunYuan)
        _refuse_unread_experts(fields)
        if family == "granitemoehybrid":  # its dense MLP is the shared one
            width_names = ("shared_intermediate_size", *width_names)
    if experts == 0:
        unsaid = 4 * hidden if family in _FOUR_HIDDEN else 0 if partial else None
        width = fields.integer(*width_names, default=unsaid, minimum=0 if partial else 1)
        if family == "qwen":  # the first Qwen states gate and up together
            width //= 2
        return [FfnSpec(intermediate=width, gated=gated)] * layers
    expert_width = fields.integer(*_EXPERT_WIDTH, *width_names, default=0 if partial else None, minimum=0)
    if not expert_width and not partial:
        raise InputError(f"{fields.path}.moe_intermediate_size", 0, "be at least 1", "the model has routed experts")
    top_k = fields.integer(*_TOP_K, default=0 if partial else None, minimum=0 if partial else 1)
    if top_k > experts and not partial:
        field, _ = fields.find(*_TOP_K)
        raise InputError(field, top_k, f"be at most the {experts} routed experts")
    shared_width = _shared_width(fields, expert_width)
    shared_count = fields.integer(*_SHARED_COUNT, default=0)
    sparse = FfnSpec(
        intermediate=_parallel_dense_width(fields, hidden),
        experts_count=experts,
        experts_per_token=top_k,
        expert_intermediate=expert_width,
        expert_hidden=fields.integer("routed_expert_hidden_size", default=0),
        shared_experts_count=max(shared_count, 1) if shared_width else 0,
        shared_intermediate=shared_width,
        shared_gate="shared_expert_intermediate_size" in fields and shared_width > 0,
        bias=fields.text("model_type") == "gpt_oss",
        gated=gated,
    )
    flags = _moe_flags(fields, layers)
    if partial and "intermediate_size" in fields and any(name in fields for name in _EXPERT_WIDTH) and all(flags):
        # Both widths given and nothing says which layers are dense: one is.
        flags[0] = layers == 1 and flags[0]
    dense = FfnSpec(gated=gated)
    if not all(flags):
        dense_names = ("dense_intermediate_size", "intermediate_size_mlp", *width_names)
        width = fields.integer(*dense_names, default=0 if partial else None, minimum=0 if partial else 1)
        dense = FfnSpec(intermediate=width, gated=gated)
    return [sparse if flag else dense for flag in flags]


def _refuse_unread_experts(fields: Fields) -> None:
    """A config that speaks of experts and gives no count that is known here is not a dense model."""
    for key, value in fields.values.items():
        if value in (None, False, 0, 1, "", [], {}) or key in fields.read:
            continue
        if _SAYS_EXPERTS.search(str(key)) and isinstance(value, bool | Mapping):
            must = f"be absent, or the expert count be given as one of {', '.join(_EXPERTS)}"
            raise InputError(f"{fields.path}.{key}", value, must, "whether the layers are routed cannot be told")


def _shared_width(fields: Fields, expert_width: int) -> int:
    """Width of all shared experts together: given as one width, or as a count of expert-sized ones."""
    names = ("shared_expert_intermediate_size", "shared_intermediate_size", "share_expert_dim", "share_expert_dims")
    field, value = fields.find(*names)
    if isinstance(value, list):
        raise InputError(field, value, "be one width")
    if value is not None:
        return fields.integer(*names)
    count = fields.integer(*_SHARED_COUNT, default=0)
    return count * expert_width


def _parallel_dense_width(fields: Fields, hidden: int) -> int:
    """Width of a dense MLP beside the routed experts of the same layer (Grok-2, Gemma 4, Arctic); 0 = none."""
    if fields.flag("residual_moe") or fields.flag("enable_moe_block"):
        return fields.integer("intermediate_size", minimum=1)
    return hidden if fields.flag("parallel_attn_mlp_res") else 0


def _moe_flags(fields: Fields, layers: int) -> list[bool]:
    """True for each layer whose feed-forward part is routed."""
    names = fields.strings("mlp_layer_types", at_least=layers)
    if names is not None:
        for index, name in enumerate(names[:layers]):
            if name not in ("dense", "sparse", "moe"):
                raise InputError(f"{fields.path}.mlp_layer_types[{index}]", name, "be `dense` or `sparse`")
        return [name != "dense" for name in names[:layers]]
    chosen = _chosen_layers(fields)
    if chosen is not None:
        return [index in chosen for index in range(layers)]
    listed = fields.sequence("is_moe_layer", at_least=layers)
    if listed is not None:
        return [bool(flag) for flag in listed[:layers]]
    first = fields.integer("first_k_dense_replace", "moe_layer_start_index", "num_dense_layers", default=0)
    _, frequency = fields.find("moe_layer_freq")
    if isinstance(frequency, list):
        return [bool(flag) for flag in (fields.integers("moe_layer_freq", at_least=layers) or [])[:layers]]
    last = fields.integer("moe_layer_end_index", default=layers - 1)
    step = fields.integer("moe_layer_freq", default=1, minimum=1)
    sparse_step = fields.integer(
        "decoder_sparse_step", "interleave_moe_layer_step", "expert_interval", "moe_layer_interval", default=1,
        minimum=1,
    )  # fmt: skip
    dense_only = set(fields.integers("mlp_only_layers") or ())
    return [
        first <= index <= last and index % step == 0 and (index + 1) % sparse_step == 0 and index not in dense_only
        for index in range(layers)
    ]


def _chosen_layers(fields: Fields) -> set[int] | None:
    """Layer indexes listed as routed (`moe_layers`, or Step's comma-separated `moe_layers_enum`), or None."""
    field, value = fields.find("moe_layers", "moe_layers_enum")
    if value is None:
        return None
    if isinstance(value, str):
        parts = [part.strip() for part in value.split(",") if part.strip()]
        if not all(part.isdigit() for part in parts):
            raise InputError(field, value, "be layer numbers separated by commas")
        return {int(part) for part in parts}
    return set(fields.integers("moe_layers", "moe_layers_enum") or ())
