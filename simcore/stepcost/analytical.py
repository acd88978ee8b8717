"""Simulate mode: a step built from the model card and datasheets. Nothing measured, so it only ranks (paper 3, 5.7).

The mode is a harvest by arithmetic: the decode sweep and the prefill sweep are computed kernel family by kernel family,
and the prefill sweep is fitted by F + c1 n like a measured one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from simcore.cards.accelerator import AcceleratorCard
from simcore.cards.formats import storage_format
from simcore.cards.layout import Engine, Layout, resolve
from simcore.cards.model import AttentionKind, ModelCard
from simcore.data.constants import Constant, constant
from simcore.laws.routing_replay import Phase
from simcore.stepcost.communication import Communication, communication
from simcore.stepcost.experts import ExpertRates, RouterLoad, expert_rates, experts_s, uniform_router
from simcore.stepcost.pipeline import pipeline_of
from simcore.stepcost.roofline import COMPUTE_UNITS, matrix_s, peak_flop_per_s
from simcore.stepcost.step import StepCost, Term, term
from simcore.stepcost.work import ACTIVATION_BYTES, Attention, RankWork, rank_work

Floats = NDArray[np.float64]

PREFILL_LENGTHS: Final = np.array([512.0, 1024.0, 2048.0, 4096.0, 8192.0])
"""Prompt lengths of the computed prefill sweep: five, as a harvest takes."""
RANKING_ONLY: Final = "ranking-only"
RATES: Final = (
    "memory.read_bandwidth_frac",
    "memory.cache_read_bandwidth_frac",
    "gemm.peak_frac",
    "attention.peak_frac",
)


@dataclass(frozen=True, kw_only=True, eq=False)
class AnalyticalStepCost(StepCost):
    """A step cost with nothing measured. Build it with `analytical`."""

    card: ModelCard
    accelerator: AcceleratorCard
    work: RankWork
    collectives: Communication
    expert_rates: ExpertRates
    load: RouterLoad

    def terms(self, max_batch: int) -> tuple[Term, ...]:
        """Projections, attention, ffn, experts, elementwise, collectives, lmHead and launches."""
        batch = np.arange(1, max_batch + 1, dtype=np.float64)
        decode = self._token_parts(batch, batch, Phase.DECODE)
        prefill = self._token_parts(PREFILL_LENGTHS, np.ones_like(PREFILL_LENGTHS), Phase.PREFILL)
        whole = np.sum(list(prefill.values()), axis=0) + self._attention_prefill(PREFILL_LENGTHS)
        lines = {key: _line(PREFILL_LENGTHS, values, whole) for key, values in prefill.items()}
        fixed, per_token = self.collectives.prefill_s
        full, window, state = self._attention_decode()
        c1, c2 = self._attention_prefill_rates()
        return (
            *(term(key, max_batch, base=decode[key], prefill=(*lines[key], 0.0)) for key in decode),
            term("attention", max_batch, base=state * batch, context=full, window=window, prefill=(0.0, c1, c2)),
            term(
                "collectives",
                max_batch,
                base=self.collectives.decode_s(batch * self.work.layout.attention_dp),
                prefill=(fixed, per_token, 0.0),
            ),
        )

    def _token_parts(self, rows: Floats, head_rows: Floats, phase: Phase) -> dict[str, Floats]:
        """Seconds by part for steps whose rank holds `rows` tokens; the head runs on `head_rows` of them."""
        card, accelerator = self.card, self.accelerator
        read = accelerator.hbm_bytes_per_s * constant("memory.read_bandwidth_frac").value
        parts: dict[str, Floats] = {}
        for product in self.work.products:
            peak = peak_flop_per_s(accelerator, product.dtype, card.dtypes.activations)
            seconds = matrix_s(
                head_rows if product.part == "lmHead" else rows,
                inner=product.inner,
                columns=product.columns,
                weight_bytes=product.weight_bytes / product.count,
                activation_bytes_per_value=ACTIVATION_BYTES,
                read_bytes_per_s=read,
                flop_per_s=peak * constant("gemm.peak_frac").value,
                units_count=COMPUTE_UNITS.get(accelerator.architecture, min(COMPUTE_UNITS.values())),
            )
            parts[product.part] = parts.get(product.part, np.zeros_like(rows)) + product.count * seconds
        if self.work.experts:
            tokens = rows * self.work.layout.attention_dp
            parts["experts"] = experts_s(self.work.experts, tokens, self.expert_rates, self.load, phase)
        passes = constant("elementwise.passes_count").value * self.work.layers_count
        parts["elementwise"] = passes * rows * self.work.hidden * ACTIVATION_BYTES / read
        kernels = _kernels(card, self.work) + self.collectives.kernels_count
        parts["launches"] = np.full_like(rows, kernels * constant("kernel.occupancy_s").value)
        return parts

    def _attention_decode(self) -> tuple[float, float, float]:
        """Seconds per own context token (all of it, inside the window) and per request for fixed work."""
        full = window = request = 0.0
        for part in self.work.attention:
            per_token = part.layers_count * self._cached_token_s(part, part.decode_flop_per_token)
            if not part.window_tokens:
                full += per_token
            elif part.window_tokens == self.window_tokens:
                window += per_token
            else:
                request += per_token * part.window_tokens  # a second window: taken as full
            request += part.layers_count * part.state_bytes / self._read_bytes_per_s("memory.read_bandwidth_frac")
        return full, window, request

    def _attention_prefill_rates(self) -> tuple[float, float]:
        """(seconds per prompt token, seconds per squared token) of attention: causal, so half of the square."""
        rate = self._attention_flop_per_s()
        linear = square = 0.0
        for part in self.work.attention:
            flop = part.layers_count * part.prefill_flop_per_token
            if part.window_tokens:
                linear += flop * part.window_tokens / rate
            else:
                square += 0.5 * flop / rate
            linear += part.layers_count * part.state_flop / rate
        return linear, square

    def _attention_prefill(self, tokens: Floats) -> Floats:
        linear, square = self._attention_prefill_rates()
        return linear * tokens + square * tokens**2

    def _cached_token_s(self, part: Attention, flop: float) -> float:
        read_s = part.cached_bytes_per_token / self._read_bytes_per_s("memory.cache_read_bandwidth_frac")
        return max(read_s, flop / self._attention_flop_per_s())

    def _read_bytes_per_s(self, name: str) -> float:
        return self.accelerator.hbm_bytes_per_s * constant(name).value

    def _attention_flop_per_s(self) -> float:
        return peak_flop_per_s(self.accelerator, "bf16", "bf16") * constant("attention.peak_frac").value


def analytical(
    model: ModelCard,
    accelerator: AcceleratorCard,
    *,
    layout: Layout,
    engine: Engine,
    kv_dtype: str = "bf16",
    nodes_count: int = 1,
    load: RouterLoad = uniform_router,
) -> AnalyticalStepCost:
    """The step cost of `layout` from cards alone; always flagged `ranking-only`, with what was assumed in `reasons`."""
    resolved = resolve(layout, engine, is_moe=model.is_moe)
    work = rank_work(model, resolved, kv_dtype=kv_dtype)
    exchanges = engine is Engine.VLLM and resolved.attention_dp > 1 and resolved.moe_ep > 1
    collectives = communication(work, accelerator, all_to_all=exchanges, inside_step=True)
    pipeline, pipeline_flags = pipeline_of(layout, engine, model, nodes_count)
    uniform = model.is_moe and resolved.moe_ep > 1 and load is uniform_router
    return AnalyticalStepCost(
        window_tokens=work.window_tokens,
        pipeline=pipeline,
        flags=(RANKING_ONLY, *collectives.flags, *pipeline_flags, *(("uniform-router",) if uniform else ())),
        reasons=(
            "no anchor: the step is computed from the model card and datasheets, and only ranks within one engine",
            *(_stated(constant(name), accelerator) for name in RATES),
            *(f"model card assumes {item}" for item in model.assumed),
        ),
        card=model,
        accelerator=accelerator,
        work=work,
        collectives=collectives,
        expert_rates=expert_rates(model, accelerator, engine),
        load=load,
    )


def _kernels(card: ModelCard, work: RankWork) -> float:
    def count(name: str) -> float:
        return constant(f"kernels.{name}_count").value

    total = count("step")
    for group in card.groups:
        spec, ffn = group.attention, group.ffn
        layer = count(f"attention.{spec.kind.value}")
        if spec.index_heads and spec.indexer_own and spec.kind is not AttentionKind.LINEAR:
            layer += count("attention.indexer")
        if ffn.is_moe:
            layer += count("ffn.routed") + (count("ffn.shared") if ffn.shared_intermediate else 0)
        if ffn.intermediate:
            layer += count("ffn.dense")
        total += group.layers_count * layer
    narrow = [p for p in work.products if storage_format(p.dtype).element_bits <= 8 and p.part != "lmHead"]
    return total + count("quantise_per_product") * sum(product.count for product in narrow)


def _line(lengths: Floats, values: Floats, whole: Floats) -> tuple[float, float]:
    """(F, c1), not negative, of `values` over `lengths`, weighted by the whole step so that relative error counts."""
    columns = np.stack([np.ones_like(lengths), lengths], axis=1) / whole[:, None]
    (fixed, slope), _ = nnls(columns, values / whole)
    return float(fixed), float(slope)


def _stated(record: Constant, accelerator: AcceleratorCard) -> str:
    borrowed = "" if record.is_measured_on(accelerator.name) else f", borrowed from {record.applies_to}"
    return f"{record.name} = {record.value:g} ({record.kind.value}{'' if record.is_assumed else borrowed})"
