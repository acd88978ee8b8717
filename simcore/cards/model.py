"""The model card: what the laws, the memory model and the legality table need to know of a checkpoint.

Built from a Hugging Face `config.json` (`simcore.cards.hf`) or by name from `simcore/data/models`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class AttentionKind(StrEnum):
    """Families of attention layers that differ in KV bytes, work and legality."""

    GQA = "gqa"
    """Multi-head or grouped-query attention with per-head KV (kv_heads = heads is MHA)."""
    MLA = "mla"
    """Latent attention: one shared latent of kv_lora + rope per token, replicated over TP."""
    LINEAR = "linear"
    """Linear attention with a constant state per request (gated delta net, KDA)."""


@dataclass(frozen=True)
class AttentionSpec:
    """One attention layer. Fields that a kind does not use are 0."""

    kind: AttentionKind
    heads: int
    kv_heads: int
    head_dim: int
    value_head_dim: int
    window_tokens: int = 0
    """Sliding window; 0 = full context."""
    q_lora_rank: int = 0
    kv_lora_rank: int = 0
    qk_nope_head_dim: int = 0
    qk_rope_head_dim: int = 0
    o_lora_rank: int = 0
    o_groups: int = 0
    index_heads: int = 0
    """Sparse-attention indexer (DSA): heads, dim and top-k; 0 = dense attention."""
    index_head_dim: int = 0
    index_topk_tokens: int = 0
    indexer_own: bool = True
    """False where the layer reuses another layer's indexer (GLM-5.2)."""
    kv_compress_ratio: int = 1
    """Tokens per stored KV entry (DeepSeek-V4 compressed pools)."""
    linear_key_heads: int = 0
    linear_value_heads: int = 0
    linear_key_dim: int = 0
    linear_value_dim: int = 0
    conv_kernel_tokens: int = 0
    state_dtype: str = "bf16"
    """Storage of the recurrent state of a linear layer."""
    per_channel_decay: bool = False
    """KDA: a low-rank gate per channel; else one decay per value head (gated delta net)."""
    latent_expanded: bool = True
    """MLA: False where heads attend to the latent itself, without per-head up-projections (DeepSeek-V4)."""
    qkv_bias: bool = False
    o_bias: bool = False
    sinks: bool = False
    """A learned attention sink per head (gpt-oss)."""
    qk_norm: bool = False
    output_gate: bool = False
    values_are_keys: bool = False
    """Keys serve as values: no value projection, both are cached (Gemma 4's full layers)."""


@dataclass(frozen=True)
class FfnSpec:
    """One feed-forward layer: dense when `experts_count` is 0, else routed experts plus shared ones."""

    intermediate: int = 0
    """Width of the dense MLP (0 for a MoE layer without one)."""
    experts_count: int = 0
    experts_per_token: int = 0
    expert_intermediate: int = 0
    expert_hidden: int = 0
    """Hidden width the routed experts work at (latent MoE); 0 = the model's."""
    shared_experts_count: int = 0
    shared_intermediate: int = 0
    """Width of all shared experts together."""
    shared_gate: bool = False
    """A scalar gate on the shared expert's output (Qwen)."""
    bias: bool = False
    """Biases on the router and the experts (gpt-oss)."""
    gated: bool = True
    """Gate and up projections (SwiGLU): three matrices; else two."""

    @property
    def is_moe(self) -> bool:
        return self.experts_count > 0


@dataclass(frozen=True)
class LayerGroup:
    """`layers_count` equal layers; groups are listed in model order of their first layer."""

    layers_count: int
    attention: AttentionSpec
    ffn: FfnSpec
    layer_indexes: tuple[int, ...] = ()


@dataclass(frozen=True)
class Dtypes:
    """Storage formats by component: bf16, fp16, fp8, int8, mxfp4, nvfp4, int4."""

    weights: str = "bf16"
    """Linear layers that are not experts."""
    experts: str = "bf16"
    shared_experts: str = "bf16"
    embeddings: str = "bf16"
    head: str = ""
    """Output head; empty = as the embeddings."""
    attention: str = "bf16"
    activations: str = "bf16"
    block: tuple[int, int] | None = None
    """`weight_block_size` of a pre-quantised checkpoint; None = no block rule."""
    group: int = 0
    """Elements per scale along the input dimension of a group-quantised checkpoint; 0 = none or the format's own."""
    zero_points: bool = False
    """A grouped integer checkpoint stores a zero point of the element's width beside each scale."""
    kv: str = ""
    """KV format that the checkpoint states; empty = none."""
    kv_stated_by: str = ""
    """Who states it (`modelopt`, `compressed-tensors`): engines differ in whose word they take for `auto`."""
    online: bool = False
    """Quantised at load (then engines pad and the block rule does not apply)."""


@dataclass(frozen=True)
class ModelCard:
    """A checkpoint's shape. All counts are exact integers from its config."""

    name: str
    hidden: int
    vocab_tokens: int
    max_position_tokens: int
    groups: tuple[LayerGroup, ...]
    dtypes: Dtypes
    tied_embeddings: bool = False
    mtp_layers_count: int = 0
    rope_dim: int = 0
    """Rotary width of the cached cos/sin table; 0 = no table."""
    hidden_connections: int = 1
    """Parallel residual streams (hyper-connections, DeepSeek-V4's hc_mult)."""
    architecture: str = ""
    source: str = ""
    assumed: tuple[str, ...] = field(default=())
    """What the config did not say and the card had to assume; shows up in outputs."""
    unknown: tuple[str, ...] = ()
    """Shape fields a partial config left out (stored as 0); figures that need them are unknown, never 0."""

    @property
    def layers_count(self) -> int:
        return sum(group.layers_count for group in self.groups)

    @property
    def is_moe(self) -> bool:
        return any(group.ffn.is_moe for group in self.groups)

    @property
    def has_linear_attention(self) -> bool:
        return any(group.attention.kind is AttentionKind.LINEAR for group in self.groups)

    @property
    def has_window_attention(self) -> bool:
        return any(group.attention.window_tokens > 0 for group in self.groups)

    @property
    def is_mla(self) -> bool:
        return any(group.attention.kind is AttentionKind.MLA for group in self.groups)


def main_weights_dtype(card: ModelCard) -> str:
    """The format that most weights are stored in: what anchors and tables call the checkpoint's."""
    return card.dtypes.experts if card.is_moe else card.dtypes.weights
