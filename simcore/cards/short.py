"""The short spelling of a model's shape (`heads`, `kvHeads`, `layers`, …) turned into Hugging Face keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from simcore.cards.formats import canonical_format, storage_format
from simcore.cards.hf_fields import LARGEST_LAYERS, check_integer
from simcore.errors import InputError, UnknownNameError

SHORT_KEYS: Mapping[str, str] = {
    "layers": "num_hidden_layers",
    "hidden": "hidden_size",
    "heads": "num_attention_heads",
    "kvHeads": "num_key_value_heads",
    "headDim": "head_dim",
    "vocab": "vocab_size",
    "intermediate": "intermediate_size",
    "experts": "num_experts",
    "expertsPerToken": "num_experts_per_tok",
    "moeIntermediate": "moe_intermediate_size",
    "sharedExperts": "n_shared_experts",
    "sharedExpertIntermediate": "shared_intermediate_size",
    "denseLayers": "first_k_dense_replace",
    "mla": "mla",
    "kvLora": "kv_lora_rank",
    "qLora": "q_lora_rank",
    "rope": "qk_rope_head_dim",
    "nope": "qk_nope_head_dim",
    "valueHeadDim": "v_head_dim",
    "slidingWindow": "sliding_window",
    "indexHeads": "index_n_heads",
    "indexHeadDim": "index_head_dim",
    "indexTopk": "index_topk",
    "maxPositions": "max_position_embeddings",
    "maxPos": "max_position_embeddings",
    "mtpLayers": "num_nextn_predict_layers",
    "tiedEmbeddings": "tie_word_embeddings",
}
"""Short key to Hugging Face key; `windowLayers`, `quant`, `block`, `group` and `architecture` are read beside them."""
_SPECIAL = ("windowLayers", "quant", "block", "group", "architecture")


def is_short(config: Mapping[str, Any]) -> bool:
    """Does `config` use at least one key of the short spelling?"""
    return any(key in SHORT_KEYS or key in _SPECIAL for key in config)


def expand_short(config: Mapping[str, Any], path: str = "model.config") -> dict[str, Any]:
    """`config` in Hugging Face spelling; Hugging Face keys pass through. Raises InputError, UnknownNameError."""
    result: dict[str, Any] = {}
    for key, value in config.items():
        if key in _SPECIAL or value is None:
            continue
        name = SHORT_KEYS.get(key, key)
        if name == key and key != "mla" and key != key.lower():
            raise UnknownNameError(f"{path} key", str(key), [*SHORT_KEYS, *_SPECIAL])
        if name in result:
            raise InputError(f"{path}.{key}", value, f"not repeat {name}")
        result[name] = value
    window_layers = config.get("windowLayers")
    if window_layers is not None:
        layers = check_integer(f"{path}.layers", result.get("num_hidden_layers"), 1, LARGEST_LAYERS)
        count = check_integer(f"{path}.windowLayers", window_layers, 0, layers)
        # Spread evenly: window layers alternate with full ones in every model seen.
        result["layer_types"] = [
            "sliding_attention" if (index + 1) * count // layers > index * count // layers else "full_attention"
            for index in range(layers)
        ]
    quant = config.get("quant")
    if quant is not None:
        result["quantization_config"] = _quantisation(str(quant), config, path)
    elif config.get("block") is not None or config.get("group") is not None:
        raise InputError(f"{path}.quant", None, "be given with block or group")
    if config.get("architecture") is not None:
        result["architecture_name"] = str(config["architecture"])
    return result


def _quantisation(quant: str, config: Mapping[str, Any], path: str) -> dict[str, Any] | None:
    form = canonical_format(quant, f"{path}.quant")
    if form == "fp8":
        block = config.get("block")
        if block is None:
            return {"quant_method": "fp8"}
        sizes = block if isinstance(block, list) else [block, block]
        return {"quant_method": "fp8", "weight_block_size": sizes}
    weights: dict[str, Any]
    if form in ("mxfp4", "nvfp4"):
        weights = {"num_bits": 4, "type": "float", "group_size": storage_format(form).group}
    elif form == "mxfp8":
        weights = {"num_bits": 8, "type": "float", "group_size": storage_format(form).group}
    elif form in ("int4", "int8"):
        group = config.get("group") or -1
        weights = {"num_bits": 4 if form == "int4" else 8, "type": "int", "group_size": group}
    else:
        return None
    groups = {"group_0": {"targets": ["Linear"], "weights": weights}}
    return {"quant_method": "compressed-tensors", "config_groups": groups}
