"""KV cache bytes: per token and rank, per request, reserved or capped by windows (public cases A12-A17, A25, B12)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from simcore.cards.formats import canonical_format, storage_format
from simcore.cards.kv_dtype import DS_MLA, PER_TOKEN_HEAD, kv_dtype_name
from simcore.cards.layout import Engine
from simcore.cards.model import AttentionKind, AttentionSpec, ModelCard
from simcore.errors import InputError

_INDEX_SCALE_BLOCK = 128
"""The sparse-attention indexer stores FP8 keys with one FP32 scale per 128 values (public case A17)."""


@dataclass(frozen=True)
class KvFormat:
    """How KV entries are stored."""

    name: str
    scale_bytes_per_vector: int = 0
    """Scale bytes beside each stored vector (one head's K or V, or one latent)."""
    packed_latent: bool = False
    """vLLM's fp8_ds_mla: FP8 latent, one FP32 scale per 128 of it, rotary part in 16 bit."""

    def vector_bytes(self, elements_count: int) -> int:
        """Bytes of one stored vector."""
        form = storage_format(self.name)
        scales = -(-elements_count // form.group) * form.scale_bytes if form.group else 0
        return form.payload_bytes(elements_count) + scales + self.scale_bytes_per_vector


def kv_format(
    dtype: str | None, *, card: ModelCard, engine: Engine | None = None, scale_bytes_per_vector: int = 0
) -> KvFormat:
    """The KV format named `dtype`; None or `auto` is what `engine` makes of the checkpoint (`kv_dtype_name`).

    Raises UnknownNameError.
    """
    name = kv_dtype_name(dtype, card=card, engine=engine)
    if name == DS_MLA:
        if not card.is_mla:
            raise InputError(
                "kvDtype", dtype, "be a format that the model's attention can store", "it packs MLA latents"
            )
        return KvFormat("fp8", scale_bytes_per_vector, packed_latent=True)
    if name in PER_TOKEN_HEAD:
        return KvFormat(PER_TOKEN_HEAD[name], scale_bytes_per_vector or storage_format("fp32").payload_bytes(1))
    return KvFormat(canonical_format(name), scale_bytes_per_vector)


def kv_heads_per_rank(kv_heads: int, attention_tp: int) -> int:
    """KV heads that one rank stores: split while TP allows, then replicated."""
    return max(1, kv_heads // attention_tp)


def entry_bytes(spec: AttentionSpec, *, attention_tp: int, form: KvFormat) -> int:
    """Bytes that one stored position of one layer takes on one rank (0 for linear attention).

    GQA: K and V of the rank's heads. MLA: latent and rotary key, not divided by TP. Layers with their own
    sparse indexer add its keys: FP8 and a scale beside a latent, the KV format beside per-head KV (assumed).
    """
    if spec.kind is AttentionKind.LINEAR:
        return 0
    if spec.kind is AttentionKind.MLA:
        if form.packed_latent:
            scales = -(-spec.kv_lora_rank // _INDEX_SCALE_BLOCK) * storage_format("fp32").payload_bytes(1)
            rotary = storage_format("bf16").payload_bytes(spec.qk_rope_head_dim)
            size = form.vector_bytes(spec.kv_lora_rank) + scales + rotary
        else:
            size = form.vector_bytes(spec.kv_lora_rank + spec.qk_rope_head_dim)
        if spec.index_heads and spec.indexer_own:
            scales = -(-spec.index_head_dim // _INDEX_SCALE_BLOCK) * storage_format("fp32").payload_bytes(1)
            size += storage_format("fp8").payload_bytes(spec.index_head_dim) + scales
        return size
    heads = kv_heads_per_rank(spec.kv_heads, attention_tp)
    size = heads * (form.vector_bytes(spec.head_dim) + form.vector_bytes(spec.value_head_dim))
    return size + (form.vector_bytes(spec.index_head_dim) if spec.index_heads else 0)


def state_bytes(spec: AttentionSpec, *, attention_tp: int) -> int:
    """Bytes of one request's recurrent state in one linear layer on one rank: matrix state plus convolution tail."""
    if spec.kind is not AttentionKind.LINEAR:
        return 0
    key_heads = -(-spec.linear_key_heads // attention_tp)
    value_heads = -(-spec.linear_value_heads // attention_tp)
    matrix = storage_format(spec.state_dtype).payload_bytes(value_heads * spec.linear_key_dim * spec.linear_value_dim)
    channels = 2 * key_heads * spec.linear_key_dim + value_heads * spec.linear_value_dim
    return matrix + storage_format("bf16").payload_bytes(channels * (spec.conv_kernel_tokens - 1))


@dataclass(frozen=True)
class KvProfile:
    """KV bytes of the layers that one rank (of one pipeline stage) holds."""

    bytes_per_token: int
    """Reserved: every layer keeps every token, as engines without a window-aware pool do. What plans use."""
    growing_bytes_per_token: Fraction
    """Layers without a window only, compressed pools by their ratio: what a window-aware pool grows by."""
    windows: tuple[tuple[int, int], ...]
    """(window tokens, bytes per token) of the windowed layers."""
    state_bytes_per_request: int
    exact: bool
    """False where the pool does not reduce to per-token arithmetic: use the size that the engine reports."""

    @property
    def planning_bytes_per_token(self) -> int:
        """What a pool is divided by: reserved bytes, or the growth of a compressed pool (an estimate)."""
        return (
            self.bytes_per_token
            if self.exact
            else -(-self.growing_bytes_per_token.numerator // self.growing_bytes_per_token.denominator)
        )

    def reserved_bytes(self, *, sequences_count: int, tokens: int) -> int:
        """Footprint of equal sequences when every layer keeps every token."""
        return sequences_count * (tokens * self.bytes_per_token + self.state_bytes_per_request)

    def capped_bytes(self, *, sequences_count: int, tokens: int) -> int:
        """Lower bound of the footprint: windowed layers keep at most their window."""
        growing = -(-tokens * self.growing_bytes_per_token.numerator // self.growing_bytes_per_token.denominator)
        windowed = sum(min(tokens, window) * size for window, size in self.windows)
        return sequences_count * (growing + windowed + self.state_bytes_per_request)


def kv_profile(
    *,
    card: ModelCard,
    attention_tp: int,
    form: KvFormat,
    layers: Sequence[int] | None = None,
    draft_layers_count: int = 0,
) -> KvProfile:
    """KV profile of the given layer numbers (all when None), plus `draft_layers_count` copies of the last layer."""
    chosen = None if layers is None else set(layers)
    reserved, growing, state = 0, Fraction(0), 0
    windows: dict[int, int] = {}
    compressed = False
    counts = [
        (group.attention, group.layers_count if chosen is None else len(chosen.intersection(group.layer_indexes)))
        for group in card.groups
    ]
    if draft_layers_count:
        attending = [group.attention for group in card.groups if group.attention.kind is not AttentionKind.LINEAR]
        counts += [(attending[-1], draft_layers_count)] if attending else []
    for spec, count in counts:
        size = count * entry_bytes(spec, attention_tp=attention_tp, form=form)
        state += count * state_bytes(spec, attention_tp=attention_tp)
        reserved += size
        if spec.window_tokens:
            windows[spec.window_tokens] = windows.get(spec.window_tokens, 0) + size
        if spec.kv_compress_ratio > 1:
            compressed = True
            growing += Fraction(size, spec.kv_compress_ratio)
        elif not spec.window_tokens:
            growing += size
    compressed = compressed or any(not group.attention.latent_expanded for group in card.groups)
    return KvProfile(
        bytes_per_token=reserved,
        growing_bytes_per_token=growing,
        windows=tuple(sorted(windows.items())),
        state_bytes_per_request=state,
        exact=not compressed,
    )


def kv_transfer_bytes(*, card: ModelCard, prompt_tokens: int, form: KvFormat) -> int:
    """Bytes that a prefill worker hands to a decode worker for one prompt: all KV heads, or the latent once.

    DeepSeek-V3, 8,192 tokens, bf16: 575,668,224 (public case B12).
    """
    profile = kv_profile(card=card, attention_tp=1, form=form)
    return profile.reserved_bytes(sequences_count=1, tokens=prompt_tokens)
