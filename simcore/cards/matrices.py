"""The weight matrices of a model, one by one: shape, how each is split over ranks, and how it is stored.

Parameter counts, weight bytes, the block-shape rules of the legality table and GEMM shapes all come from this list.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

from simcore.cards.model import AttentionKind, AttentionSpec, FfnSpec, LayerGroup, ModelCard


class Split(StrEnum):
    """Which dimension tensor parallelism divides."""

    COLUMN = "column"
    """The output dimension."""
    ROW = "row"
    """The input dimension."""
    NONE = "none"
    """Replicated on every rank."""


class Part(StrEnum):
    """What a matrix belongs to; decides its parallel width and its storage format."""

    ATTENTION = "attention"
    DENSE = "dense"
    SHARED = "sharedExperts"
    EXPERTS = "routedExperts"
    ROUTER = "router"
    EMBEDDING = "embedding"
    HEAD = "head"
    NORMS = "norms"


@dataclass(frozen=True)
class Matrix:
    """`copies` equal matrices of `in_dim` x `out_dim`; the split dimension is cut in whole `units`."""

    name: str
    part: Part
    in_dim: int
    out_dim: int
    split: Split = Split.NONE
    units: int = 0
    """Indivisible units along the split dimension (heads, KV heads); 0 = single elements."""
    copies: int = 1
    merged: bool = False
    """First or middle member of a merged matrix (gate of gate_up, q and k of qkv)."""
    plain: bool = False
    """Never quantised, whatever the checkpoint does (router, small indexer projections)."""

    @property
    def elements_count(self) -> int:
        return self.in_dim * self.out_dim * self.copies

    def local_width(self, width: int) -> int:
        """Size of the split dimension on one of `width` ranks; units that are fewer than ranks are replicated."""
        size = self.out_dim if self.split is Split.COLUMN else self.in_dim
        if self.split is Split.NONE or width == 1 or size == 0:
            return size
        units = self.units or size
        return -(-units // width) * (size // units)

    def local_elements_count(self, width: int) -> int:
        """Elements of one copy set on one of `width` ranks."""
        other = self.in_dim if self.split is Split.COLUMN else self.out_dim
        if self.split is Split.NONE:
            return self.elements_count
        return self.local_width(width) * other * self.copies


def attention_matrices(spec: AttentionSpec, hidden: int) -> tuple[Matrix, ...]:
    """Linear maps of one attention layer."""
    if spec.kind is AttentionKind.LINEAR:
        return _linear_matrices(spec, hidden)
    if spec.kind is AttentionKind.MLA:
        return _latent_matrices(spec, hidden)
    part, heads, kv = Part.ATTENTION, spec.heads, spec.kv_heads
    q_width = heads * spec.head_dim * (2 if spec.output_gate else 1)
    found = [
        Matrix("q_proj", part, spec.q_lora_rank or hidden, q_width, Split.COLUMN, heads, merged=True),
        Matrix("k_proj", part, hidden, kv * spec.head_dim, Split.COLUMN, kv, merged=True),
        Matrix("v_proj", part, hidden, kv * spec.value_head_dim, Split.COLUMN, kv),
        Matrix("o_proj", part, heads * spec.value_head_dim, hidden, Split.ROW, heads),
    ]
    if spec.q_lora_rank:  # Step-3: queries through one shared low-rank projection
        found.append(Matrix("q_a_proj", part, hidden, spec.q_lora_rank))
    if spec.values_are_keys:
        del found[2]
    if spec.index_heads:
        found += [
            Matrix("indexer.q_proj", part, hidden, spec.index_heads * spec.index_head_dim, plain=True),
            Matrix("indexer.k_proj", part, hidden, spec.index_head_dim, plain=True),
        ]
    return tuple(found)


def _latent_matrices(spec: AttentionSpec, hidden: int) -> tuple[Matrix, ...]:
    part, heads = Part.ATTENTION, spec.heads
    q_width = heads * spec.head_dim
    found: list[Matrix] = []
    if spec.q_lora_rank:
        found.append(Matrix("q_a_proj", part, hidden, spec.q_lora_rank, merged=True))
        found.append(Matrix("q_b_proj", part, spec.q_lora_rank, q_width, Split.COLUMN, heads))
    else:
        found.append(Matrix("q_proj", part, hidden, q_width, Split.COLUMN, heads))
    found.append(Matrix("kv_a_proj", part, hidden, spec.kv_lora_rank + spec.qk_rope_head_dim))
    o_in = heads * spec.value_head_dim
    if spec.latent_expanded:
        kv_b = heads * (spec.qk_nope_head_dim + spec.value_head_dim)
        found.append(Matrix("kv_b_proj", part, spec.kv_lora_rank, kv_b, Split.COLUMN, heads))
    if spec.output_gate:
        found.append(Matrix("g_proj", part, hidden, o_in, Split.COLUMN, heads))
    if spec.o_lora_rank and spec.o_groups:
        per_group = o_in // spec.o_groups
        found.append(Matrix("o_a_proj", part, per_group, spec.o_groups * spec.o_lora_rank, Split.COLUMN, spec.o_groups))
        found.append(Matrix("o_b_proj", part, spec.o_groups * spec.o_lora_rank, hidden, Split.ROW, spec.o_groups))
    else:
        found.append(Matrix("o_proj", part, o_in, hidden, Split.ROW, heads))
    found += _compressor_matrices(spec, hidden)
    if spec.index_heads and spec.indexer_own:
        rank = spec.q_lora_rank or hidden
        found.append(Matrix("indexer.q_b_proj", part, rank, spec.index_heads * spec.index_head_dim))
        if spec.latent_expanded:
            found.append(Matrix("indexer.k_proj", part, hidden, spec.index_head_dim))
        found.append(Matrix("indexer.weights_proj", part, hidden, spec.index_heads, plain=True))
    return tuple(found)


def _compressor_matrices(spec: AttentionSpec, hidden: int) -> list[Matrix]:
    """DeepSeek-V4: value and gate projections of the KV compressor; doubled for the fine pool (overlapping)."""
    if spec.latent_expanded or spec.kv_compress_ratio <= 1:
        return []
    overlap = 2 if spec.index_heads else 1
    widths = [("compressor", spec.head_dim)] + (
        [("indexer.compressor", spec.index_head_dim)] if spec.index_heads else []
    )
    return [
        Matrix(f"{name}.{role}", Part.ATTENTION, hidden, overlap * width, plain=True)
        for name, width in widths
        for role in ("kv_proj", "gate_proj")
    ]


def _linear_matrices(spec: AttentionSpec, hidden: int) -> tuple[Matrix, ...]:
    """Gated delta net, or KDA where decay is per channel."""
    part = Part.ATTENTION
    keys, values = spec.linear_key_heads * spec.linear_key_dim, spec.linear_value_heads * spec.linear_value_dim
    channels = 2 * keys + values
    found = [
        Matrix("in_proj_q", part, hidden, keys, Split.COLUMN, spec.linear_key_heads, merged=True),
        Matrix("in_proj_k", part, hidden, keys, Split.COLUMN, spec.linear_key_heads, merged=True),
        Matrix("in_proj_v", part, hidden, values, Split.COLUMN, spec.linear_value_heads, merged=True),
        Matrix("in_proj_z", part, hidden, values, Split.COLUMN, spec.linear_value_heads),
        Matrix("in_proj_b", part, hidden, spec.linear_value_heads, Split.COLUMN, plain=True),
        Matrix("conv1d", part, spec.conv_kernel_tokens, channels, Split.COLUMN, plain=True),
        Matrix("out_proj", part, values, hidden, Split.ROW, spec.linear_value_heads),
    ]
    if spec.per_channel_decay:
        found.append(Matrix("f_a_proj", part, hidden, spec.linear_key_dim))
        found.append(Matrix("f_b_proj", part, spec.linear_key_dim, keys, Split.COLUMN, spec.linear_key_heads))
        if not spec.output_gate:
            found[3:4] = [
                Matrix("g_a_proj", part, hidden, spec.linear_value_dim),
                Matrix("g_b_proj", part, spec.linear_value_dim, values, Split.COLUMN, spec.linear_value_heads),
            ]
    else:
        found.append(Matrix("in_proj_a", part, hidden, spec.linear_value_heads, Split.COLUMN, plain=True))
    return tuple(found)


def ffn_matrices(spec: FfnSpec, hidden: int) -> tuple[Matrix, ...]:
    """Linear maps of one feed-forward layer: dense MLP or router, routed experts and shared experts."""
    found: list[Matrix] = []
    if spec.intermediate:
        found += _mlp("mlp", Part.DENSE, hidden, spec.intermediate, gated=spec.gated)
    if spec.is_moe:
        found.append(Matrix("router", Part.ROUTER, hidden, spec.experts_count, plain=True))
        inner = spec.expert_hidden or hidden
        if spec.expert_hidden:
            found.append(Matrix("latent_in_proj", Part.ROUTER, hidden, inner, plain=True))
            found.append(Matrix("latent_out_proj", Part.ROUTER, inner, hidden, plain=True))
        width = spec.expert_intermediate
        found += _mlp("experts", Part.EXPERTS, inner, width, gated=spec.gated, copies=spec.experts_count)
        if spec.bias:
            found.append(Matrix("router.bias", Part.ROUTER, 1, spec.experts_count, plain=True))
            copies = spec.experts_count
            up_bias = Matrix("experts.up_bias", Part.EXPERTS, 1, 2 * width, Split.COLUMN, copies=copies, plain=True)
            found += [up_bias, Matrix("experts.down_bias", Part.EXPERTS, 1, inner, copies=copies, plain=True)]
    if spec.shared_intermediate:
        found += _mlp("shared_experts", Part.SHARED, hidden, spec.shared_intermediate, gated=spec.gated)
        if spec.shared_gate:
            found.append(Matrix("shared_expert_gate", Part.ROUTER, hidden, 1, plain=True))
    return tuple(found)


def _mlp(name: str, part: Part, hidden: int, width: int, *, gated: bool, copies: int = 1) -> list[Matrix]:
    up = Matrix(f"{name}.up_proj", part, hidden, width, Split.COLUMN, copies=copies)
    down = Matrix(f"{name}.down_proj", part, width, hidden, Split.ROW, copies=copies)
    gate = Matrix(f"{name}.gate_proj", part, hidden, width, Split.COLUMN, copies=copies, merged=True)
    return [gate, up, down] if gated else [up, down]


@lru_cache(maxsize=4096)
def layer_matrices(group: LayerGroup, hidden: int) -> tuple[Matrix, ...]:
    """All linear maps of one layer of `group`."""
    return attention_matrices(group.attention, hidden) + ffn_matrices(group.ffn, hidden)


def embedding_matrices(card: ModelCard) -> tuple[Matrix, ...]:
    """Token embedding and output head (one matrix where they are tied)."""
    embedding = Matrix("embed_tokens", Part.EMBEDDING, card.hidden, card.vocab_tokens, Split.COLUMN, plain=True)
    if card.tied_embeddings:
        return (embedding,)
    return embedding, Matrix("lm_head", Part.HEAD, card.hidden, card.vocab_tokens, Split.COLUMN)


def vector_elements_count(group: LayerGroup, hidden: int) -> int:
    """Norm weights and biases of one layer: replicated, stored in the unquantised format."""
    spec = group.attention
    count = 2 * hidden
    if spec.kind is AttentionKind.MLA:
        count += spec.q_lora_rank + spec.kv_lora_rank
    if spec.kind is AttentionKind.LINEAR:
        count += 2 * spec.linear_value_heads + spec.linear_value_dim
    if spec.qk_norm and spec.kind is AttentionKind.GQA:
        count += 2 * spec.head_dim
    if spec.qkv_bias and spec.kind is AttentionKind.GQA:
        count += (spec.heads + spec.kv_heads) * spec.head_dim + spec.kv_heads * spec.value_head_dim
    count += (hidden if spec.o_bias else 0) + (spec.heads if spec.sinks else 0)
    return count


def part_dtype(card: ModelCard, matrix: Matrix) -> str:
    """Storage format of `matrix` in this checkpoint."""
    dtypes = card.dtypes
    if matrix.plain or matrix.part in (Part.ROUTER, Part.NORMS, Part.EMBEDDING):
        return dtypes.embeddings
    return {
        Part.ATTENTION: dtypes.attention,
        Part.DENSE: dtypes.weights,
        Part.SHARED: dtypes.shared_experts,
        Part.EXPERTS: dtypes.experts,
        Part.HEAD: dtypes.head or dtypes.embeddings,
    }[matrix.part]


def parameters_count(card: ModelCard, *, norms: bool = True) -> int:
    """Parameters of the checkpoint without its MTP layers; `norms` adds norm weights and biases.

    DeepSeek-V3 without norms is 671,025,397,760; Llama-3.1-8B with norms is 8,030,261,248 (public cases A13, B01).
    """
    total = sum(matrix.elements_count for matrix in embedding_matrices(card))
    for group in card.groups:
        per_layer = sum(matrix.elements_count for matrix in layer_matrices(group, card.hidden))
        per_layer += vector_elements_count(group, card.hidden) if norms else 0
        total += group.layers_count * per_layer
    return total + (card.hidden if norms else 0)


def routed_parameters_count(card: ModelCard) -> int:
    """Parameters of the routed experts alone."""
    return sum(
        group.layers_count * matrix.elements_count
        for group in card.groups
        for matrix in ffn_matrices(group.ffn, card.hidden)
        if matrix.part is Part.EXPERTS
    )
