"""Anchored mode: a measured step, moved by laws to the target's layout and traffic.

Every term is the measured one times or plus what a law says; at the anchor's own layout nothing moves.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from simcore.anchors.schema import Anchor, ExpertLoadRow, Signature
from simcore.cards.accelerator import AcceleratorCard
from simcore.cards.formats import canonical_format
from simcore.cards.layout import Engine, Layout, ResolvedLayout, resolve
from simcore.cards.model import ModelCard
from simcore.data.constants import constant
from simcore.errors import InputError, UnknownNameError
from simcore.laws import width as width_laws
from simcore.laws.routing_replay import ExpertLoad, Phase
from simcore.stepcost.calibration import Calibration, calibration
from simcore.stepcost.curve import DecodeCurve, decode_curve
from simcore.stepcost.experts import RouterLoad, recorded_router, uniform_router
from simcore.stepcost.features import LayoutFeatures, layout_features
from simcore.stepcost.moved import AnchoredStepCost
from simcore.stepcost.pipeline import pipeline_of
from simcore.stepcost.step import HostCost
from simcore.stepcost.width import WidthLaw, WidthMove, expert_shift
from simcore.units import MICRO, MILLI

__all__ = ["AnchoredStepCost", "anchored"]

Floats = NDArray[np.float64]


def anchored(
    anchor: Anchor,
    *,
    layout: Layout,
    model: ModelCard | None = None,
    accelerator: AcceleratorCard | None = None,
    sibling: Anchor | None = None,
    law: WidthLaw = WidthLaw.AUTO,
    nodes_count: int = 1,
    learnt: Calibration | None = None,
    load: RouterLoad = uniform_router,
) -> AnchoredStepCost:
    """The step cost of `layout` from `anchor`; `sibling` is the same stack at half the anchor's width.

    Law choice (AUTO): same widths, nothing moves. Else with a model card and an accelerator card the split floor; else
    Eq. 1. A sibling's measured shrink replaces w/w' in both. `learnt` replaces the shipped calibration; `load` gives
    the busiest rank's factors (a uniform router, unless routing was recorded with the anchor or is given). The choice
    and all assumptions are in `reasons`, stable words in `flags`. Raises InputError.
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
    sides = _sides(model, accelerator, engine, (_layout(signature), layout), signature.kv_dtype)
    chosen = _choose(law, moved=source != target, has_cards=sides is not None)
    reasons.append(_why(law, chosen, source, target, sibling))
    curve = _curve(anchor, sides)
    shrink = _sibling_shrink(anchor, sibling)
    if sibling is not None and shrink is None:
        reasons.append("the sibling shares no batch whose excess reaches 1 ms, so w/w' stands")
    context_factor = window_factor = source.attention_tp / target.attention_tp
    move = shift = None
    if load is uniform_router and anchor.expert_load is not None:
        load, why = _recorded(anchor.expert_load, {target.moe_ep, min(source.moe_ep, target.moe_tp * target.moe_ep)})
        reasons.append(why)
    if sides is not None:
        if chosen is WidthLaw.SPLIT_FLOOR:
            move = WidthMove(*sides, ranks_from, ranks_to, learnt or calibration())
            context_factor, window_factor = _cache_factors(*sides)
            flags += sides[1].communication.flags
        shift = expert_shift(*sides, load)
    if shift is not None and load is uniform_router:
        flags.append("uniform-router")
    if shift is None and target.moe_ep != min(source.moe_ep, target.moe_tp * target.moe_ep):
        flags.append("expert-parallel-unpriced")
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
        move=move,
        prefill_fit=(
            fit.fixed_milliseconds * MILLI,
            fit.per_token_microseconds * MICRO,
            fit.per_token_squared_nanoseconds * MICRO * MILLI,
        ),
        expert_shift=shift,
    )


def _recorded(rows: Sequence[ExpertLoadRow], widths: set[int]) -> tuple[RouterLoad, str]:
    """(the recorded router where it holds every EP that a move needs, else the uniform one; the reason)."""
    held = {(row.expert_parallel, row.phase) for row in rows}
    needed = {(width, phase.value) for width in widths if width > 1 for phase in Phase}
    if missing := sorted(needed - held):
        absent = ", ".join(f"EP{width} {phase}" for width, phase in missing)
        return uniform_router, f"the recorded expert load has no {absent}: a uniform router stands for it"
    table = [
        ExpertLoad(r.expert_parallel, Phase(r.phase), r.step_tokens, r.rows_factor, r.experts_factor, r.samples)
        for r in rows
    ]
    return recorded_router(table), "expert load of the busiest rank: as recorded with the anchor"


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
    try:
        return canonical_format(weights_dtype, "signature.weightsDtype") in map(canonical_format, held)
    except UnknownNameError:  # a table that does not say
        return False


def _sides(
    model: ModelCard | None,
    accelerator: AcceleratorCard | None,
    engine: Engine,
    layouts: tuple[Layout, Layout],
    kv_dtype: str | None,
) -> tuple[LayoutFeatures, LayoutFeatures] | None:
    """What the cards say of both layouts, stages left to Eq. 4; None where a card is missing."""
    if model is None or accelerator is None:
        return None
    here, there = (
        layout_features(model, accelerator, engine, replace(layout, pipeline_parallel=1), kv_dtype=kv_dtype or "bf16")
        for layout in layouts
    )
    return here, there


def _curve(anchor: Anchor, sides: tuple[LayoutFeatures, LayoutFeatures] | None) -> DecodeCurve:
    if sides is None:
        return decode_curve(anchor)
    here = sides[0]
    cache_bandwidth = here.hbm_bytes_per_s * constant("memory.cache_read_bandwidth_frac").value
    return decode_curve(
        anchor,
        cached_s_per_token=here.context_bytes_per_token / cache_bandwidth,
        window_s_per_token=here.window_bytes_per_token / cache_bandwidth,
        window_tokens=here.window_tokens,
    )


def _cache_factors(here: LayoutFeatures, there: LayoutFeatures) -> tuple[float, float]:
    """Cached bytes that a context token costs at the target over the anchor's: (layers that read all, a window)."""
    full, window = here.context_bytes_per_token, here.window_bytes_per_token
    return (
        there.context_bytes_per_token / full if full else 1.0,
        there.window_bytes_per_token / window if window else 1.0,
    )


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
        WidthLaw.DIVIDE: "baseline: the whole step divided by the width",
        WidthLaw.SAME: "baseline: the step of the anchor",
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
