"""A fitted layout as an anchor file: `source: fitted`, its residuals, unknown choices left open."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from simcore.anchors.schema import (
    Anchor,
    DecodePoint,
    DecodeSweep,
    HostTime,
    MeasuredMemory,
    PrefillFit,
    PrefillPoint,
    PrefillSweep,
    Provenance,
    Signature,
)
from simcore.cards.layout import Layout
from simcore.cards.library import load_model_card
from simcore.cards.model import main_weights_dtype
from simcore.errors import InputError, UnknownNameError
from simcore.stepcost.calibration import calibration
from simcore.stepcost.width import WidthLaw
from simcore.units import MILLI
from simcore.validate.cells import Shape
from simcore.validate.corpus import CorpusRow, Role
from simcore.validate.evaluate import card_features
from simcore.validate.layout_fit import FittedLayout
from simcore.validate.predict_row import UNTIMED_TTFT_FRAC, predict_row
from simcore.validate.series import SeriesModel, fit_series

PREFILL_LENGTHS = (1024, 2048, 4096, 8192, 16384)
"""Prompt lengths the fitted prefill curve is written at: the five that a harvest takes by default."""
CONTEXT_STRETCH = 4.0
"""Rows of one prompt length: the second sweep is the fitted context slope at so many times the context."""


@dataclass(frozen=True)
class Residuals:
    """Median absolute relative errors of the fit on its own rows, simulated in closed form."""

    tpot_frac: float
    ttft_frac: float | None
    throughput_frac: float | None

    def by_name(self) -> dict[str, float]:
        found = {"tpot": self.tpot_frac, "ttft": self.ttft_frac, "throughput": self.throughput_frac}
        return {name: round(value, 5) for name, value in found.items() if value is not None}


def fit_anchor(rows: Sequence[CorpusRow]) -> Anchor:
    """The anchor behind benchmark rows of one layout of one stack. Roles are ignored: every row is fitted.

    Raises InputError when the rows mix layouts or stacks, or hold no TPOT.
    """
    members = [replace(row, role=Role.ANCHOR, series="fit") for row in rows if not row.is_disaggregated]
    if not members:
        raise InputError("pools", len(rows), "be empty in at least one row: anchors are colocated")
    layouts = sorted({row.layout for row in members})
    if len(layouts) > 1:
        shown = ", ".join(layout.label() for layout in layouts)
        raise InputError("tp", shown, "be one layout", "an anchor is one layout: filter the rows first")
    if layouts[0].pipeline_parallel > 1:
        raise InputError("pp", layouts[0].pipeline_parallel, "be 1", "anchors are single-stage; Eq. 4 adds the stages")
    if layouts[0].data_parallel > 1:
        hint = "an anchor does not state data parallelism; of independent copies divide clients and throughput by dp"
        raise InputError("dp", layouts[0].data_parallel, "be 1", hint)
    model = fit_series("fit", members, card_features, calibration(), WidthLaw.SPLIT_FLOOR)
    fitted = model.layouts[layouts[0]]
    return Anchor(
        signature=_signature(members[0], layouts[0]),
        decode=_sweeps(fitted),
        prefill=_prefill(fitted),
        host_time=HostTime(per_request_milliseconds=fitted.host_s / MILLI, per_prompt_token_microseconds=0.0),
        memory=_memory(fitted),
        provenance=Provenance(
            source="fitted",
            real_weights=True,
            prefix_caching_off=True,
            notes=_notes(fitted, members),
            residuals=_residuals(model, members).by_name(),
            max_concurrency=max(row.concurrency for row in members),
        ),
    )


def _signature(row: CorpusRow, layout: Layout) -> Signature:
    return Signature(
        accelerator=row.accelerator,
        engine=row.engine,
        model=row.model,
        weights_dtype=row.weights_dtype or _own_format(row.model),
        tensor_parallel=layout.tensor_parallel,
        expert_parallel=layout.expert_parallel,
        attention_data_parallel=layout.attention_data_parallel,
    )


def _own_format(model: str) -> str:
    """The format the checkpoint's card stores most weights in: a table that names none ran the checkpoint as it is."""
    try:
        card = load_model_card(model)
    except UnknownNameError:
        return "unknown"
    return main_weights_dtype(card)


def _sweeps(fitted: FittedLayout) -> tuple[DecodeSweep, ...]:
    """The shortest and the longest prompt at all measured batches, apart by the fit's context slope.

    Both are seen from the longest context: what host time and waits leave in a step weighs least in long requests.
    """
    by_shape = {cell.shape: cell.context_tokens for cell in fitted.cells}
    shapes = sorted(by_shape, key=lambda shape: (shape[0] + shape[1] / 2.0, shape))
    first, last = shapes[0], shapes[-1]
    if last[0] > first[0]:
        seen = last if fitted.features is not None else first
        return _sweep(fitted, first, by_shape[first], seen), _sweep(fitted, last, by_shape[last], last)
    if fitted.features is None:
        return (_sweep(fitted, first, by_shape[first], first),)
    return tuple(_sweep(fitted, first, by_shape[first] * stretch, last) for stretch in (1.0, CONTEXT_STRETCH))


def _sweep(fitted: FittedLayout, shape: Shape, context_tokens: float, seen: Shape) -> DecodeSweep:
    """The steps of all measured batches at `context_tokens`, as cells of the shape `seen` tell them."""
    batches = sorted({max(round(cell.running), 1) for cell in fitted.cells})
    points = tuple(
        DecodePoint(batch=batch, step_milliseconds=fitted.step_at(batch, context_tokens, seen) / MILLI)
        for batch in batches
    )
    cell = next(cell for cell in fitted.cells if cell.shape == shape)
    prompt = max(round(cell.prompt_tokens), 1)  # as measured, also where the context is stretched
    return DecodeSweep(prompt_tokens=prompt, context_tokens=max(round(context_tokens), prompt), points=points)


def _prefill(fitted: FittedLayout) -> PrefillSweep:
    curve = fitted.prefill
    points = tuple(
        PrefillPoint(prompt_tokens=length, milliseconds=curve.seconds(length) / MILLI) for length in PREFILL_LENGTHS
    )
    return PrefillSweep(
        points=points,
        fit=PrefillFit(
            fixed_milliseconds=curve.fixed_s / MILLI,
            per_token_microseconds=curve.s_per_token * 1e6,
            per_token_squared_nanoseconds=curve.s_per_token2 * 1e9,
            residual_percent=0.0,
        ),
    )


def _memory(fitted: FittedLayout) -> MeasuredMemory | None:
    """KV pool that saturated rows show; None when no row reached it."""
    saturated = [cell for cell in fitted.cells if cell.is_saturated]
    if not saturated:
        return None
    return MeasuredMemory(kv_pool_tokens=round(max(cell.running * cell.context_tokens for cell in saturated)))


def _notes(fitted: FittedLayout, rows: Sequence[CorpusRow]) -> tuple[str, ...]:
    notes = ["prefill points are the fitted curve; decode points are served means with prefill stalls taken out"]
    if fitted.features is not None and len({cell.shape[0] for cell in fitted.cells}) == 1:
        notes.append("rows of one prompt length: the second decode sweep is the fitted context slope")
    if not fitted.is_timed:
        notes.append("no row tells a prefill: prefill and host time are priors, and TTFT's residual is assumed")
    if fitted.features is None:
        notes.append("no model card: prefill read off TTFT, context slope unknown")
    notes += [f"source: {source}" for source in sorted({row.source for row in rows if row.source})[:8]]
    return tuple(notes)


def _residuals(model: SeriesModel, rows: Sequence[CorpusRow]) -> Residuals:
    tpot, ttft, throughput = [], [], []
    for row in rows:
        predicted = predict_row(model, row)
        if row.tpot_s and predicted.tpot_s > 0:
            tpot.append(abs(predicted.tpot_s / row.tpot_s - 1.0))
        if row.ttft_s:
            ttft.append(abs(predicted.ttft_s / row.ttft_s - 1.0))
        if row.throughput_tokens_per_s:
            throughput.append(abs(predicted.throughput_tokens_per_s / row.throughput_tokens_per_s - 1.0))
    is_timed = all(fitted.is_timed for fitted in model.layouts.values())
    return Residuals(float(np.median(tpot)), _median(ttft) if is_timed else UNTIMED_TTFT_FRAC, _median(throughput))


def _median(values: list[float]) -> float | None:
    return float(np.median(values)) if values else None
