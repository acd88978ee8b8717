"""The activation working set of one step on one GPU (paper B.5), an analytical estimate marked as assumed."""

from __future__ import annotations

from simcore.cards.formats import storage_format
from simcore.cards.layout import ResolvedLayout
from simcore.cards.model import AttentionKind, LayerGroup, ModelCard

ASSUMED = "activation working set: residual streams plus the widest layer's inputs and outputs, no measured peak"
_LIVE_HIDDEN_COPIES = 2
"""The residual and its normalised copy are alive together."""


def activation_bytes(*, card: ModelCard, widths: ResolvedLayout, batched_tokens: int, logit_rows: int) -> int:
    """Bytes alive at the widest point of a step of `batched_tokens`, plus 32-bit logits of `logit_rows` requests."""
    form = storage_format(card.dtypes.embeddings)
    widest = max(_layer_width(group, card.hidden, widths) for group in card.groups)
    residual = card.hidden * card.hidden_connections * _LIVE_HIDDEN_COPIES
    logits = storage_format("fp32").payload_bytes(logit_rows * -(-card.vocab_tokens // widths.attention_tp))
    return form.payload_bytes(batched_tokens * (residual + widest)) + logits


def _layer_width(group: LayerGroup, hidden: int, widths: ResolvedLayout) -> int:
    """Elements per token of the larger of the attention part and the feed-forward part."""
    spec, ffn, tp = group.attention, group.ffn, widths.attention_tp
    heads = -(-spec.heads // tp)
    attention = heads * (spec.head_dim + spec.value_head_dim)
    if spec.kind is AttentionKind.GQA:
        attention += -(-spec.kv_heads // tp) * (spec.head_dim + spec.value_head_dim)
    else:
        attention += spec.q_lora_rank + spec.kv_lora_rank + spec.qk_rope_head_dim
    dense = 2 * -(-ffn.intermediate // tp)
    if not ffn.is_moe:
        return max(attention, dense)
    # Each token's top-k copies are spread over the EP ranks; one rank holds its mean share of expanded rows.
    rows = -(-ffn.experts_per_token // widths.moe_ep)
    routed = rows * ((ffn.expert_hidden or hidden) + 2 * -(-ffn.expert_intermediate // widths.moe_tp))
    return max(attention, routed + 2 * -(-ffn.shared_intermediate // tp))
