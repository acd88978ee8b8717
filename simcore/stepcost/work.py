"""What one rank does in a step, read off the model card: matrices, experts, attention, collectives. No times here.

Counts are per rank of one layout; head counts that do not divide are rounded up, as engines pad or replicate them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from simcore.cards.formats import storage_format
from simcore.cards.layout import ResolvedLayout
from simcore.cards.matrices import Part, Split, layer_matrices, part_dtype
from simcore.cards.model import AttentionKind, LayerGroup, ModelCard

ACTIVATION_BYTES: Final = 2
"""Hidden states travel in 16 bits between layers and in collectives."""
PART_KEYS: Final = {Part.ROUTER: "router", Part.SHARED: "sharedExperts"}


def bytes_per_param(dtype: str) -> float:
    """Stored bytes of one parameter with its block scales. Raises UnknownNameError."""
    stored = storage_format(dtype)
    scales = stored.scale_bytes / stored.group if stored.group else 0.0
    return stored.element_bits / 8 + scales


@dataclass(frozen=True)
class Product:
    """`count` equal weight products of one rank in a step: (rows, inner) x (inner, columns)."""

    part: str
    inner: float
    columns: float
    dtype: str
    count: float

    @property
    def weight_bytes(self) -> float:
        """Bytes of all `count` matrices."""
        return self.inner * self.columns * self.count * bytes_per_param(self.dtype)


@dataclass(frozen=True)
class Experts:
    """Routed experts of `layers_count` equal MoE layers, as one rank sees them."""

    layers_count: int
    experts_count: int
    experts_per_token: int
    hidden: float
    intermediate: float
    """Width of the slice of one expert that a rank holds (divided by the expert TP)."""
    matrices_count: int
    """3 with a gate projection, else 2."""
    expert_parallel: int
    dtype: str

    @property
    def slice_bytes(self) -> float:
        """Bytes of one expert's slice in one layer."""
        return self.matrices_count * self.hidden * self.intermediate * bytes_per_param(self.dtype)

    @property
    def flop_per_row(self) -> float:
        """FLOP of one routed row through one expert's slice in one layer."""
        return 2.0 * self.matrices_count * self.hidden * self.intermediate


@dataclass(frozen=True)
class Attention:
    """Attention over cached context in `layers_count` equal layers, per rank."""

    layers_count: int
    window_tokens: int
    """Most context tokens a query reads; 0 = all. Sparse top-k attention is a window of k tokens."""
    cached_bytes_per_token: float
    """Bytes read per context token and layer in decode."""
    decode_flop_per_token: float
    """FLOP per query and context token and layer, decode."""
    prefill_flop_per_token: float
    """The same in prefill, where latent attention is not absorbed."""
    state_bytes: float = 0.0
    """Bytes of state read and written per request and layer (linear attention)."""
    state_flop: float = 0.0
    """FLOP per token and layer on the state."""


@dataclass(frozen=True)
class RankWork:
    """All work of one rank for one layout."""

    products: tuple[Product, ...]
    experts: tuple[Experts, ...]
    attention: tuple[Attention, ...]
    hidden: int
    layers_count: int
    attention_reduces_count: int
    """All-reduces after attention per step (0 when one rank holds all heads)."""
    ffn_reduces_count: int
    """All-reduces after dense or expert layers per step."""
    layout: ResolvedLayout

    @property
    def step_weight_bytes(self) -> float:
        """Bytes of weights one rank reads in a decode step of one request: all matrices and top-k experts."""
        fixed = sum(product.weight_bytes for product in self.products)
        return fixed + sum(
            e.layers_count * e.experts_per_token * e.slice_bytes / e.expert_parallel for e in self.experts
        )

    @property
    def cached_bytes_per_token(self) -> tuple[float, float]:
        """Bytes read per context token of a request: (layers that read all, layers that read a window)."""
        full = sum(a.layers_count * a.cached_bytes_per_token for a in self.attention if not a.window_tokens)
        window = sum(a.layers_count * a.cached_bytes_per_token for a in self.attention if a.window_tokens)
        return full, window

    @property
    def window_tokens(self) -> int:
        """The window that most cached bytes sit behind; the step table knows one, the others count as full."""
        behind: dict[int, float] = {}
        for part in self.attention:
            if part.window_tokens:
                share = part.layers_count * part.cached_bytes_per_token * part.window_tokens
                behind[part.window_tokens] = behind.get(part.window_tokens, 0.0) + share
        return max(behind, key=lambda window: (behind[window], window)) if behind else 0


def rank_work(card: ModelCard, layout: ResolvedLayout, *, kv_dtype: str = "bf16") -> RankWork:
    """The work of one rank of `layout` on `card`, with KV stored in `kv_dtype`. Raises UnknownNameError (dtype)."""
    products: list[Product] = []
    experts: list[Experts] = []
    attention: list[Attention] = []
    ffn_ranks = layout.moe_tp * layout.moe_ep
    dense_tp = layout.attention_tp if layout.attention_dp > 1 else ffn_ranks
    for group in card.groups:
        products += _products(card, group, layout.attention_tp, dense_tp)
        attention += _attention(group, layout.attention_tp, bytes_per_param(kv_dtype))
        ffn = group.ffn
        if ffn.is_moe:
            experts.append(
                Experts(
                    group.layers_count,
                    ffn.experts_count,
                    ffn.experts_per_token,
                    ffn.expert_hidden or card.hidden,
                    _split(ffn.expert_intermediate, layout.moe_tp),
                    3 if ffn.gated else 2,
                    layout.moe_ep,
                    card.dtypes.experts,
                )
            )
    head = Product(
        "lmHead",
        card.hidden,
        _split(card.vocab_tokens, layout.attention_tp),
        card.dtypes.head or card.dtypes.embeddings,
        1,
    )
    return RankWork(
        (*products, head),
        tuple(experts),
        tuple(attention),
        card.hidden,
        card.layers_count,
        card.layers_count if layout.attention_tp > 1 else 0,
        card.layers_count if ffn_ranks > 1 and (card.is_moe or layout.attention_tp > 1) else 0,
        layout,
    )


def _split(width: int, ranks: int) -> float:
    return float(-(-width // ranks))


def _products(card: ModelCard, group: LayerGroup, attention_tp: int, dense_tp: int) -> list[Product]:
    """The products of a layer but the routed experts; members of a merged matrix (gate and up, QKV) are one."""
    found: list[Product] = []
    pending: dict[int, float] = {}  # columns waiting for the last member of a merged matrix, by input width
    for matrix in layer_matrices(group, card.hidden):
        if matrix.part is Part.EXPERTS:
            continue
        width = {Part.ATTENTION: attention_tp, Part.ROUTER: 1}.get(matrix.part, dense_tp)
        local = float(matrix.local_width(width))
        inner = local if matrix.split is Split.ROW else float(matrix.in_dim)
        columns = local if matrix.split is Split.COLUMN else float(matrix.out_dim)
        if matrix.merged:
            pending[matrix.in_dim] = pending.get(matrix.in_dim, 0.0) + columns
            continue
        part = "projections" if matrix.part is Part.ATTENTION else PART_KEYS.get(matrix.part, "ffn")
        count = group.layers_count * matrix.copies
        columns += pending.pop(matrix.in_dim, 0.0)
        found.append(Product(part, inner, columns, part_dtype(card, matrix), count))
    return found


def _attention(group: LayerGroup, tp: int, kv_bytes: float) -> list[Attention]:
    spec, layers = group.attention, group.layers_count
    heads = _split(spec.heads, tp) if spec.heads else 0.0
    if spec.kind is AttentionKind.LINEAR:
        state = _split(spec.linear_value_heads, tp) * spec.linear_key_dim * spec.linear_value_dim
        return [Attention(layers, 0, 0.0, 0.0, 0.0, 2.0 * bytes_per_param(spec.state_dtype) * state, 4.0 * state)]
    if spec.kind is AttentionKind.MLA:
        rope = spec.qk_rope_head_dim
        latent = spec.kv_lora_rank + rope if spec.kv_lora_rank else spec.head_dim
        cached = latent * kv_bytes
        decode_flop = 2.0 * heads * (latent + (spec.kv_lora_rank or spec.head_dim))
        plain = spec.qk_nope_head_dim + rope + spec.value_head_dim if spec.kv_lora_rank else 2 * spec.head_dim
        prefill_flop = 2.0 * heads * plain
    else:
        cached = _split(spec.kv_heads, tp) * (spec.head_dim + spec.value_head_dim) * kv_bytes
        decode_flop = prefill_flop = 2.0 * heads * (spec.head_dim + spec.value_head_dim)
    ratio = spec.kv_compress_ratio
    limit = spec.index_topk_tokens * ratio or spec.window_tokens
    main = Attention(layers, limit, cached / ratio, decode_flop / ratio, prefill_flop / ratio)
    if not (spec.index_heads and spec.indexer_own):
        return [main]
    index_flop = 2.0 * spec.index_heads * spec.index_head_dim / ratio
    return [main, Attention(layers, 0, spec.index_head_dim / ratio, index_flop, index_flop)]
