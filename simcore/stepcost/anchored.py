"""Anchored mode: a measured step, moved by laws to the target's layout and traffic.

Every term is the measured one times or plus what a law says; at the anchor's own layout nothing moves.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from simcore.anchors.schema import Anchor, Signature
from simcore.cards.accelerator import AcceleratorCard
from simcore.cards.formats import canonical_format
from simcore.cards.layout import Engine, Layout, ResolvedLayout, resolve
from simcore.cards.model import ModelCard
from simcore.data.constants import constant
from simcore.errors import InputError
from simcore.laws import width as width_laws
from simcore.stepcost.communication import PREFILL_PROBE_TOKENS, Communication, communication
from simcore.stepcost.curve import DecodeCurve, decode_curve
from simcore.stepcost.experts import ExpertLoad, ExpertRates, expert_rates, experts_s, uniform_router
from simcore.stepcost.pipeline import pipeline_of
from simcore.stepcost.step import HostCost, StepCost, Term, term
from simcore.stepcost.work import RankWork, rank_work
from simcore.units import MICRO, MILLI

Floats = NDArray[np.float64]


class WidthLaw(StrEnum):
    """How a decode sweep moves to another width."""

    AUTO = "auto"
    PAPER = "paper"
    """Eq. 1: the cheapest step stays, the rest shrinks by w/w' or the shrink measured on a half-width sibling."""
    SPLIT_FLOOR = "split-floor"
    """Eq. 1 with the floor split into a constant, weight reading that shrinks, and collectives of each width."""
    DIVIDED = "divided"
    """Baseline: step * w/w'."""
    SAME_STEP = "same-step"
    """Baseline: the step stays."""


@dataclass(frozen=True, eq=False)
class ExpertShift:
    """Expert time at the target's EP minus the same at the anchor's EP, both over the target's ranks.

    Imbalance is evaluated at both widths: one value on both sides would cancel and make a wider EP look free (B.3).
    """

    target: RankWork
    as_anchor: RankWork
    rates: ExpertRates
    load: ExpertLoad

    def decode_s(self, engine_batch: Floats) -> Floats:
        """Seconds added to a decode step, by engine batch; negative where the target shards less."""
        after, before = (experts_s(w, engine_batch, self.rates, self.load) for w in (self.target, self.as_anchor))
        return after - before

    @property
    def prefill_s(self) -> tuple[float, float]:
        """(fixed seconds, seconds per token) added to a prefill step, through two prompt lengths."""
        small, large = PREFILL_PROBE_TOKENS
        low, high = self.decode_s(np.array([small, large], dtype=np.float64))
        slope = (high - low) / (large - small)
        return float(low - slope * small), float(slope)


@dataclass(frozen=True, kw_only=True, eq=False)
class AnchoredStepCost(StepCost):
    """A step cost calibrated by one anchor. Build it with `anchored`."""

    law: WidthLaw
    curve: DecodeCurve
    ranks_from_count: int
    """GPUs that share a step's work at the anchor and, below, at the target."""
    ranks_to_count: int
    batch_factor: int
    """Engine batch per rank batch: the target's attention-DP ranks."""
    context_factor: float
    """Cost of an own context token at the target over the anchor's."""
    window_factor: float
    shrink_curve: tuple[Floats, Floats] | None
    """Measured shrink per doubling (batches, factors)."""
    weight_from_s: float
    """Weight reading of a batch-1 step at each width; 0 outside split-floor."""
    weight_to_s: float
    collectives_from: Communication
    collectives_to: Communication
    prefill_fit: tuple[float, float, float]
    """F [s], c1 [s/token], c2 [s/token2] of the anchor."""
    expert_shift: ExpertShift | None = None
    """What sharding experts otherwise than the anchor costs; None at the anchor's EP."""

    def terms(self, max_batch: int) -> tuple[Term, ...]:
        """The moved terms: fixed, weights, excess, context, window, collectives, prefill, expertParallel."""
        moved = self._moved_terms(max_batch)
        if self.expert_shift is None:
            return moved
        engine_batch = np.arange(1, max_batch + 1, dtype=np.float64) * self.batch_factor
        room = np.sum([part.decode_base_s[1:] for part in moved], axis=0)
        shift = np.maximum(self.expert_shift.decode_s(engine_batch), -0.5 * room)  # never more than half the step
        fixed, per_token = self.expert_shift.prefill_s
        return (
            *moved,
            term(
                "expertParallel",
                max_batch,
                base=shift,
                prefill=(max(fixed, -0.5 * self.prefill_fit[0]), per_token, 0.0),
            ),
        )

    def _moved_terms(self, max_batch: int) -> tuple[Term, ...]:
        rank_batch = np.arange(1, max_batch + 1, dtype=np.float64)
        engine_batch = rank_batch * self.batch_factor
        curve = self.curve
        step = curve.step_at(engine_batch)
        slope = curve.slope_at(engine_batch)
        own, own_window = curve.own_context(engine_batch)
        shrink = self._shrink(engine_batch)
        context_from = slope * own + curve.window_slope_s_per_token * own_window
        if self.law is not WidthLaw.SPLIT_FLOOR:
            return self._whole_step_terms(max_batch, step, slope, context_from, shrink)
        floor = curve.context_free_floor_s
        base = np.maximum(step - context_from, floor)
        reduce_from, reduce_to = self.collectives_from, self.collectives_to
        first = curve.batches[:1]
        from_s, to_s = reduce_from.decode_s(engine_batch), reduce_to.decode_s(engine_batch)
        from_floor_s = float(reduce_from.decode_s(first)[0])
        fit = _fitting(floor, self.weight_from_s, from_floor_s)
        weight_s, held_floor_s = self.weight_from_s * fit, from_floor_s * fit
        held_s = held_floor_s + np.clip(from_s - from_floor_s, 0.0, base - floor)
        moved_s = np.maximum(held_s + (to_s - from_s), 0.0)
        weight_ratio = self.weight_to_s / self.weight_from_s if self.weight_from_s else 1.0
        whole = width_laws.decode_transfer_split(
            step_s=base,
            floor_s=floor,
            weight_s=weight_s,
            collective_from_s=held_s,
            collective_floor_from_s=held_floor_s,
            collective_to_s=moved_s,
            weight_shrink_factor=weight_ratio,
            excess_shrink_factor=shrink,
        )
        fixed = floor - weight_s - held_floor_s
        weights = weight_s * weight_ratio
        return (
            term("fixed", max_batch, base=fixed),
            term("weights", max_batch, base=weights),
            term("excess", max_batch, base=np.asarray(whole) - moved_s - fixed - weights),
            term("context", max_batch, context=slope * self.context_factor),
            term("window", max_batch, window=curve.window_slope_s_per_token * self.window_factor),
            *self._prefill_terms(max_batch, moved_s),
        )

    def _prefill_terms(self, max_batch: int, decode_collectives_s: Floats) -> tuple[Term, ...]:
        """Prefill coefficients moved by w/w' with the collectives that the anchor held exchanged for the target's."""
        f, c1, c2 = self.prefill_fit
        ideal = self.ranks_from_count / self.ranks_to_count
        fixed_from, slope_from = self.collectives_from.prefill_s
        fixed_to, slope_to = self.collectives_to.prefill_s
        held_fixed, held_slope = min(fixed_from, f), min(slope_from, c1)
        return (
            term(
                "collectives",
                max_batch,
                base=decode_collectives_s,
                prefill=(
                    max(held_fixed + fixed_to - fixed_from, 0.0),
                    max(held_slope + slope_to - slope_from, 0.0),
                    0.0,
                ),
            ),
            term("prefill", max_batch, prefill=(f - held_fixed, (c1 - held_slope) * ideal, c2 * ideal)),
        )

    def _whole_step_terms(
        self, max_batch: int, step: Floats, slope: Floats, context_from: Floats, shrink: Floats
    ) -> tuple[Term, ...]:
        """Eq. 1 and the two baselines: the whole measured step moves, contexts with it."""
        f, c1, c2 = self.prefill_fit
        ideal = self.ranks_from_count / self.ranks_to_count
        floor = self.curve.floor_s
        if self.law is WidthLaw.DIVIDED:
            shrink, moved = np.full_like(step, ideal), step * ideal
            floor, prefill = floor * ideal, (f * ideal, c1 * ideal, c2 * ideal)
        elif self.law is WidthLaw.SAME_STEP:
            shrink, moved, prefill = np.ones_like(step), step, (f, c1, c2)
        else:
            moved = np.asarray(width_laws.decode_transfer(step_s=step, floor_s=floor, shrink_factor=shrink))
            prefill = (f, c1 * ideal, c2 * ideal)
        ranks = self.batch_factor / self.curve.ranks_count  # a rank's own tokens are a larger share of the engine's
        first = np.array([self.curve.batches[int(np.argmin(self.curve.step_s))]])
        own, window = self.curve.own_context(first)
        per_token = self.curve.window_slope_s_per_token
        fixed = floor - float((shrink[:1] * (self.curve.slope_at(first) * own + per_token * window))[0])
        return (
            term("fixed", max_batch, base=fixed),
            term("excess", max_batch, base=moved - shrink * context_from - fixed),
            term("context", max_batch, context=shrink * slope * ranks),
            term("window", max_batch, window=shrink * per_token * ranks),
            term("prefill", max_batch, prefill=prefill),
        )

    def _shrink(self, engine_batch: Floats) -> Floats:
        ratio = self.ranks_from_count / self.ranks_to_count
        if self.shrink_curve is None or ratio == 1.0:
            return np.full_like(engine_batch, ratio)
        batches, factors = self.shrink_curve
        return np.asarray(
            width_laws.shrink_at(
                batch_requests=engine_batch,
                curve_batch_requests=batches,
                curve_factor=factors,
                doublings_count=-math.log2(ratio),
            )
        )


def anchored(
    anchor: Anchor,
    *,
    layout: Layout,
    model: ModelCard | None = None,
    accelerator: AcceleratorCard | None = None,
    sibling: Anchor | None = None,
    law: WidthLaw = WidthLaw.AUTO,
    nodes_count: int = 1,
    read_bandwidth_frac: float | None = None,
    load: ExpertLoad = uniform_router,
) -> AnchoredStepCost:
    """The step cost of `layout` from `anchor`; `sibling` is the same stack at half the anchor's width.

    Law choice (AUTO): same widths, nothing moves. Else with a model card and an accelerator card the split floor; else
    Eq. 1. A sibling's measured shrink replaces w/w' in both. `read_bandwidth_frac` overrides the reached share of HBM
    bandwidth; `load` gives the busiest rank's factors (a uniform router unless routing was recorded). The choice and
    all assumptions are in `reasons`, stable words in `flags`. Raises InputError.
    """
    signature = anchor.signature
    engine = Engine.parse(signature.engine, "signature.engine")
    is_moe = model.is_moe if model else _looks_moe(signature, layout)
    source = resolve(_layout(signature), engine, is_moe=is_moe)
    target = resolve(layout, engine, is_moe=is_moe)
    ranks_from, ranks_to = (r.attention_tp * r.attention_dp for r in (source, target))
    flags: list[str] = []
    reasons: list[str] = []
    if model is not None and not _stores(model, signature.weights_dtype):
        flags.append("card-weights-differ")
        reasons.append(
            f"the anchor ran {signature.weights_dtype} weights, the model card stores {model.dtypes.weights}"
        )
    work = _works(model, source, target, signature.kv_dtype)
    bandwidth = None
    if accelerator is not None:
        fraction = constant("memory.read_bandwidth_frac").value if read_bandwidth_frac is None else read_bandwidth_frac
        bandwidth = accelerator.hbm_bytes_per_s * fraction
    chosen = _choose(law, moved=source != target, has_cards=work is not None and bandwidth is not None)
    reasons.append(_why(law, chosen, source, target, sibling))
    curve = _curve(anchor, work, accelerator)
    shrink = _sibling_shrink(anchor, sibling)
    if sibling is not None and shrink is None:
        reasons.append("the sibling shares no batch whose excess reaches 1 ms, so w/w' stands")
    weight_from = weight_to = 0.0
    context_factor = window_factor = source.attention_tp / target.attention_tp
    none = Communication()
    reduce_from = reduce_to = none
    if chosen is WidthLaw.SPLIT_FLOOR and work and accelerator and bandwidth:
        weight_from, weight_to = (
            float(width_laws.weight_read(weight_bytes=w.step_weight_bytes, effective_bytes_per_s=bandwidth))
            for w in work
        )
        reduce_from, reduce_to = (communication(w, accelerator) for w in work)
        context_factor, window_factor = _cache_factors(work)
        flags += reduce_to.flags
    shift, shift_flags = _expert_shift(model, accelerator, engine, source, target, signature.kv_dtype, load)
    flags += shift_flags
    doublings = abs(math.log2(ranks_to / ranks_from))
    if doublings > 1:
        flags.append("extrapolated-width")
    if ranks_to < ranks_from:
        flags.append("narrower-than-anchor")
    pipeline, pipeline_flags = pipeline_of(layout, engine, model, nodes_count)
    fit = anchor.prefill.fit
    host = anchor.host_time
    speculation = signature.speculation
    if speculation is not None and speculation.acceptance_length is None:
        raise InputError("signature.speculation.acceptanceLength", None, "be measured when the anchor speculates")
    return AnchoredStepCost(
        window_tokens=curve.window_tokens,
        pipeline=pipeline,
        host=HostCost(host.per_request_milliseconds * MILLI, host.per_prompt_token_microseconds * MICRO)
        if host
        else HostCost(),
        tokens_per_step=speculation.acceptance_length or 1.0 if speculation else 1.0,
        flags=tuple(dict.fromkeys((*flags, *curve.flags, *pipeline_flags))),
        reasons=(*reasons, *curve.reasons),
        law=chosen,
        curve=curve,
        ranks_from_count=ranks_from,
        ranks_to_count=ranks_to,
        batch_factor=target.attention_dp,
        context_factor=context_factor,
        window_factor=window_factor,
        shrink_curve=shrink,
        weight_from_s=weight_from,
        weight_to_s=weight_to,
        collectives_from=reduce_from,
        collectives_to=reduce_to,
        prefill_fit=(
            fit.fixed_milliseconds * MILLI,
            fit.per_token_microseconds * MICRO,
            fit.per_token_squared_nanoseconds * MICRO * MILLI,
        ),
        expert_shift=shift,
    )


def _looks_moe(signature: Signature, layout: Layout) -> bool:
    """Whether a model without a card routes experts, by what the anchor and the layout say of them."""
    named = signature.moe_backend is not None or signature.expert_dtype is not None
    return named or signature.expert_parallel > 1 or layout.expert_parallel > 1


def _layout(signature: Signature) -> Layout:
    return Layout(
        tensor_parallel=signature.tensor_parallel,
        expert_parallel=signature.expert_parallel,
        attention_data_parallel=signature.attention_data_parallel,
    )


def _stores(model: ModelCard, weights_dtype: str) -> bool:
    """Whether the card holds weights in the anchor's format, in its linear layers or its experts."""
    held = (model.dtypes.weights, model.dtypes.experts) if model.is_moe else (model.dtypes.weights,)
    return canonical_format(weights_dtype, "signature.weightsDtype") in map(canonical_format, held)


def _works(
    model: ModelCard | None, source: ResolvedLayout, target: ResolvedLayout, kv_dtype: str | None
) -> tuple[RankWork, RankWork] | None:
    if model is None:
        return None
    stored = kv_dtype or "bf16"
    return rank_work(model, source, kv_dtype=stored), rank_work(model, target, kv_dtype=stored)


def _curve(anchor: Anchor, work: tuple[RankWork, RankWork] | None, accelerator: AcceleratorCard | None) -> DecodeCurve:
    if work is None or accelerator is None:
        return decode_curve(anchor)
    cache_bandwidth = accelerator.hbm_bytes_per_s * constant("memory.cache_read_bandwidth_frac").value
    full, window = work[0].cached_bytes_per_token
    return decode_curve(
        anchor,
        cached_s_per_token=full / cache_bandwidth,
        window_s_per_token=window / cache_bandwidth,
        window_tokens=work[0].window_tokens,
    )


def _expert_shift(
    model: ModelCard | None,
    accelerator: AcceleratorCard | None,
    engine: Engine,
    source: ResolvedLayout,
    target: ResolvedLayout,
    kv_dtype: str | None,
    load: ExpertLoad,
) -> tuple[ExpertShift | None, list[str]]:
    ranks = target.moe_tp * target.moe_ep
    held_ep = min(source.moe_ep, ranks)
    if target.moe_ep == held_ep:
        return None, []
    if model is None or accelerator is None:
        return None, ["expert-parallel-unpriced"]
    as_anchor = replace(target, moe_ep=held_ep, moe_tp=max(1, ranks // held_ep))
    stored = kv_dtype or "bf16"
    rates = expert_rates(model, accelerator, engine)
    shift = ExpertShift(
        rank_work(model, target, kv_dtype=stored), rank_work(model, as_anchor, kv_dtype=stored), rates, load
    )
    return shift, ["uniform-router"] if load is uniform_router else []


def _cache_factors(work: tuple[RankWork, RankWork]) -> tuple[float, float]:
    (full_from, window_from), (full_to, window_to) = (w.cached_bytes_per_token for w in work)
    return full_to / full_from if full_from else 1.0, window_to / window_from if window_from else 1.0


def _choose(asked: WidthLaw, *, moved: bool, has_cards: bool) -> WidthLaw:
    if asked is WidthLaw.SPLIT_FLOOR and not has_cards:
        raise InputError("law", asked.value, "come with a model card and an accelerator card")
    if asked is not WidthLaw.AUTO:
        return asked
    return WidthLaw.SPLIT_FLOOR if moved and has_cards else WidthLaw.PAPER


def _why(
    asked: WidthLaw, chosen: WidthLaw, source: ResolvedLayout, target: ResolvedLayout, sibling: Anchor | None
) -> str:
    if source == target:
        return "same widths as the anchor: measured steps, nothing moved"
    shrink = "the shrink measured on the half-width sibling" if sibling else "w/w'"
    what = {
        WidthLaw.PAPER: f"Eq. 1: the cheapest step stays, the rest moves by {shrink}",
        WidthLaw.SPLIT_FLOOR: f"split floor: constant kept, weights and collectives by width, rest by {shrink}",
        WidthLaw.DIVIDED: "baseline: the whole step divided by the width",
        WidthLaw.SAME_STEP: "baseline: the step of the anchor",
    }[chosen]
    because = (
        "asked for"
        if asked is not WidthLaw.AUTO
        else (
            "model and accelerator cards are known"
            if chosen is WidthLaw.SPLIT_FLOOR
            else "without a model card and an accelerator card the floor cannot be split"
        )
    )
    return f"{what} ({because})"


def _sibling_shrink(anchor: Anchor, sibling: Anchor | None) -> tuple[Floats, Floats] | None:
    if sibling is None:
        return None
    if sibling.signature.tensor_parallel * 2 != anchor.signature.tensor_parallel:
        raise InputError(
            "sibling.tensorParallel",
            sibling.signature.tensor_parallel,
            f"be half of {anchor.signature.tensor_parallel}",
        )
    half = {point.batch: point.step_s for point in sibling.decode[0].points}
    shared = [point for point in anchor.decode[0].points if point.batch in half]
    if len(shared) < 2 or shared[0].batch != 1:
        return None
    batches, factors = width_laws.measured_shrink(
        batches=np.array([point.batch for point in shared], dtype=np.float64),
        half_width_step_s=np.array([half[point.batch] for point in shared]),
        width_step_s=np.array([point.step_s for point in shared]),
        excess_floor_s=constant("decode.shrink_excess_floor_s").value,
        low_factor=constant("decode.shrink_low_factor").value,
        high_factor=constant("decode.shrink_high_factor").value,
    )
    return (batches, factors) if len(batches) else None


def _fitting(floor: float, weight: float, collectives: float) -> float:
    """Scale (at most 1) that makes the card's parts fit into the measured floor."""
    parts = weight + collectives
    return min(1.0, floor / parts) if parts > 0 else 1.0
