"""The measured step moved by laws: the terms of an anchored step cost."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simcore.laws import width as width_laws
from simcore.stepcost.curve import DecodeCurve
from simcore.stepcost.step import StepCost, Term, term
from simcore.stepcost.width import MAX_FLOOR_SHARE, ExpertShift, WidthLaw, WidthMove

Floats = NDArray[np.float64]


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
    move: WidthMove | None
    """The split floor between the two layouts; None under the other laws."""
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
        shift = np.maximum(self.expert_shift.decode_s(engine_batch), -MAX_FLOOR_SHARE * room)
        fixed, per_token = self.expert_shift.prefill_s
        return (
            *moved,
            term(
                "expertParallel",
                max_batch,
                base=shift,
                prefill=(max(fixed, -MAX_FLOOR_SHARE * self.prefill_fit[0]), per_token, 0.0),
            ),
        )

    def _moved_terms(self, max_batch: int) -> tuple[Term, ...]:
        rank_batch = np.arange(1, max_batch + 1, dtype=np.float64)
        engine_batch = rank_batch * self.batch_factor
        curve = self.curve
        base, step = curve.base_at(engine_batch), curve.step_at(engine_batch)
        slope = curve.slope_at(engine_batch)
        own, own_window = curve.own_context(engine_batch)
        shrink = self._shrink(engine_batch)
        context_from = slope * own + curve.window_slope_s_per_token * own_window
        if self.move is None:
            return self._whole_step_terms(max_batch, step, slope, context_from, shrink)
        floor = curve.context_free_floor_s
        decode = self.move.decode(
            np.maximum(base, floor),
            engine_batch,
            floor_s=floor,
            floor_batch=float(curve.batches[0]),
            excess_shrink_factor=shrink,
        )
        prefill = self.move.prefill(*self.prefill_fit)
        return (
            term("fixed", max_batch, base=decode.fixed_s),
            term("weights", max_batch, base=decode.weights_s),
            term("excess", max_batch, base=decode.excess_s),
            term("context", max_batch, context=slope * self.context_factor),
            term("window", max_batch, window=curve.window_slope_s_per_token * self.window_factor),
            term(
                "collectives",
                max_batch,
                base=decode.collectives_s,
                prefill=(0.0, prefill.collectives_s_per_token, 0.0),
            ),
            term("prefill", max_batch, prefill=(prefill.fixed_s, prefill.s_per_token, prefill.s_per_token2)),
        )

    def _whole_step_terms(
        self, max_batch: int, step: Floats, slope: Floats, context_from: Floats, shrink: Floats
    ) -> tuple[Term, ...]:
        """Eq. 1 and the two baselines: the whole measured step moves, contexts with it."""
        f, c1, c2 = self.prefill_fit
        ideal = self.ranks_from_count / self.ranks_to_count
        floor = min(self.curve.floor_s, float(step.min()))  # below the first measured batch contexts are fewer
        if self.law is WidthLaw.DIVIDE:
            shrink, moved = np.full_like(step, ideal), step * ideal
            floor, prefill = floor * ideal, (f * ideal, c1 * ideal, c2 * ideal)
        elif self.law is WidthLaw.SAME:
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
