"""The measured step moved by laws: the terms of an anchored step cost."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from simcore.laws import width as width_laws
from simcore.laws.routing_replay import Phase
from simcore.stepcost.communication import PREFILL_PROBE_TOKENS, Communication
from simcore.stepcost.curve import DecodeCurve
from simcore.stepcost.experts import ExpertRates, RouterLoad, experts_s
from simcore.stepcost.step import StepCost, Term, term
from simcore.stepcost.work import RankWork

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
    load: RouterLoad

    def decode_s(self, engine_batch: Floats) -> Floats:
        """Seconds added to a decode step, by engine batch; negative where the target shards less."""
        return self._shift_s(engine_batch, Phase.DECODE)

    @property
    def prefill_s(self) -> tuple[float, float]:
        """(fixed seconds, seconds per token) added to a prefill step, through two prompt lengths."""
        small, large = PREFILL_PROBE_TOKENS
        low, high = self._shift_s(np.array([small, large], dtype=np.float64), Phase.PREFILL)
        slope = (high - low) / (large - small)
        return float(low - slope * small), float(slope)

    def _shift_s(self, tokens: Floats, phase: Phase) -> Floats:
        after, before = (experts_s(w, tokens, self.rates, self.load, phase) for w in (self.target, self.as_anchor))
        return after - before


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


def _fitting(floor: float, weight: float, collectives: float) -> float:
    """Scale (at most 1) that makes the card's parts fit into the measured floor."""
    parts = weight + collectives
    return min(1.0, floor / parts) if parts > 0 else 1.0
