"""What the laws need to know of one layout, read off the model and accelerator cards. Bytes and FLOP are per GPU."""

from __future__ import annotations

from dataclasses import dataclass

from simcore.cards.accelerator import AcceleratorCard
from simcore.cards.layout import Engine, Layout, resolve
from simcore.cards.library import with_weights_format
from simcore.cards.model import Dtypes, ModelCard
from simcore.stepcost.communication import Communication, communication
from simcore.stepcost.experts import ExpertRates, expert_rates
from simcore.stepcost.work import RankWork, bytes_per_param, rank_work


@dataclass(frozen=True)
class LayoutFeatures:
    """One GPU's share of the work of one layout."""

    width: int
    """GPUs that share one request's step in a stage: tensor times data-parallel ranks."""
    matrix_bytes: float
    """Weights that every step reads whatever the batch (attention, dense and shared layers, head)."""
    expert_bytes: float
    """All routed experts that the GPU holds."""
    experts_count: int
    experts_per_token: int
    layers_count: int
    hidden: int
    communication: Communication
    """Collectives of a step that the GPU takes part in."""
    context_bytes_per_token: float
    """KV bytes read per context token and request, layers that read everything."""
    window_bytes_per_token: float
    window_tokens: int
    """Window (or sparse top-k) of the other layers; 0 = none."""
    token_flop: float
    """FLOP of one token in all matrices and its routed experts."""
    attention_flop_per_token2: float
    """FLOP per query token and context token, layers without a window."""
    index_flop_per_token2: float
    """The same of sparse attention's indexers, which every rank runs whole."""
    hbm_bytes: float
    hbm_bytes_per_s: float
    peak_flop_per_s: float
    is_borrowed: bool
    """An accelerator kept for validation only."""
    mixes_prefill: bool
    """The engine puts prefill chunks into decode steps (vLLM), so that both read the weights once."""
    work: RankWork
    expert_rates: ExpertRates
    assumed: tuple[str, ...] = ()

    @property
    def weight_bytes(self) -> float:
        """All weights of the GPU."""
        return self.matrix_bytes + self.expert_bytes

    def expert_coverage_frac(self, batch: float) -> float:
        """Share of the held experts that a decode step of `batch` tokens reads under independent routing: 1-(1-k/E)^b.

        Source: paper App. B.3.
        """
        if not self.experts_count:
            return 0.0
        return float(1.0 - (1.0 - self.experts_per_token / self.experts_count) ** max(batch, 1.0))

    def unread_frac(self, batch: float) -> float:
        """Share of the weights that a decode step of `batch` does not read anyway: what a prefill beside it adds."""
        if not self.mixes_prefill:
            return 1.0
        return self.expert_bytes * (1.0 - self.expert_coverage_frac(batch)) / self.weight_bytes

    def read_context_bytes(self, context_tokens: float) -> float:
        """KV bytes that one request of `context_tokens` reads in a decode step."""
        windowed = min(context_tokens, float(self.window_tokens)) if self.window_tokens else 0.0
        return self.context_bytes_per_token * context_tokens + self.window_bytes_per_token * windowed

    def stored_context_bytes_per_token(self) -> float:
        """KV bytes that one token of context occupies, windows counted as full (the cautious side)."""
        return self.context_bytes_per_token + self.window_bytes_per_token


def layout_features(
    card: ModelCard,
    accelerator: AcceleratorCard,
    engine: Engine,
    layout: Layout,
    weights_dtype: str = "",
    *,
    kv_dtype: str = "bf16",
) -> LayoutFeatures:
    """Features of `layout` with the checkpoint stored in `weights_dtype` (empty = as the card says).

    Raises UnknownNameError for a dtype without a known size.
    """
    if weights_dtype == "fp4" and accelerator.architecture.startswith("gfx"):
        weights_dtype = "mxfp4"  # tables call each vendor's own four-bit format so
    stored = with_weights_format(card, weights_dtype) if weights_dtype else card
    resolved = resolve(layout, engine, is_moe=card.is_moe)
    work = rank_work(stored, resolved, kv_dtype=kv_dtype)
    stages = max(layout.pipeline_parallel, 1)
    full, windowed = work.cached_bytes_per_token
    matrix_bytes = sum(product.weight_bytes for product in work.products)
    expert_bytes = sum(e.layers_count * e.experts_count * e.slice_bytes / e.expert_parallel for e in work.experts)
    full_flop = sum(a.layers_count * a.prefill_flop_per_token for a in work.attention if not a.window_tokens)
    index_flop = _index_flop(card)
    peak, assumed = _peak(accelerator, stored.dtypes)
    return LayoutFeatures(
        width=max(resolved.attention_tp * resolved.attention_dp, resolved.moe_tp * resolved.moe_ep),
        matrix_bytes=matrix_bytes / stages,
        expert_bytes=expert_bytes / stages,
        experts_count=work.experts[0].experts_count if work.experts else 0,
        experts_per_token=work.experts[0].experts_per_token if work.experts else 0,
        layers_count=work.layers_count,
        hidden=work.hidden,
        communication=communication(work, accelerator),
        context_bytes_per_token=full / stages,
        window_bytes_per_token=windowed / stages,
        window_tokens=work.window_tokens,
        token_flop=_token_flop(work),
        attention_flop_per_token2=max(full_flop - index_flop, 0.0),
        index_flop_per_token2=index_flop,
        hbm_bytes=float(accelerator.hbm_bytes),
        hbm_bytes_per_s=accelerator.hbm_bytes_per_s,
        peak_flop_per_s=peak,
        is_borrowed=accelerator.validation_only,
        mixes_prefill=engine is Engine.VLLM,
        work=work,
        expert_rates=expert_rates(stored, accelerator, engine),
        assumed=assumed,
    )


def _index_flop(card: ModelCard) -> float:
    specs = [(group.layers_count, group.attention) for group in card.groups]
    return sum(
        layers * 2.0 * spec.index_heads * spec.index_head_dim / spec.kv_compress_ratio
        for layers, spec in specs
        if spec.index_heads and spec.indexer_own
    )


def _token_flop(work: RankWork) -> float:
    """FLOP of one token on one GPU: matrices, routed experts spread over the expert-parallel
    ranks, attention over full windows."""
    matrices = sum(2.0 * product.inner * product.columns * product.count for product in work.products)
    routed = sum(e.layers_count * e.experts_per_token * e.flop_per_row / e.expert_parallel for e in work.experts)
    windows = sum(a.layers_count * a.prefill_flop_per_token * a.window_tokens for a in work.attention)
    return matrices + routed + windows


def _peak(accelerator: AcceleratorCard, dtypes: Dtypes) -> tuple[float, tuple[str, ...]]:
    """Matrix peak of the format most FLOP run in; a format without a native path runs in the next wider one."""
    peaks = accelerator.peak_flop_per_s
    wanted = dtypes.experts
    for name in (wanted, "fp8", "bf16"):
        if bytes_per_param(name) >= bytes_per_param(wanted) and name in peaks:
            return peaks[name], () if name == wanted else (f"{wanted} runs at the {name} peak",)
    return max(peaks.values()), (f"no peak known for {wanted}",)
