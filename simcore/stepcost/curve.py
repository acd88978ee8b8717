"""An anchor's decode sweep as a curve over batches: context taken out, graph padding put in, ends held or extended."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from simcore.anchors.schema import Anchor
from simcore.laws import batch as batch_laws

Floats = NDArray[np.float64]
LEAST_BASE_FRAC = 0.2
"""At least this share of a step is not context reading, whatever two noisy sweeps say."""


@dataclass(frozen=True, eq=False)
class DecodeCurve:
    """Decode steps of one engine replica by its total batch B; `ranks_count` attention-DP ranks share the batch.

    step(B) at the measured context L splits into base(B) + slope(B) * own context, with own = L * B / ranks.
    """

    batches: Floats
    """(n,) measured batches, ascending."""
    step_s: Floats
    """(n,) measured steps."""
    slope_s_per_token: Floats
    """(n,) cost per context token of a rank's own requests."""
    window_slope_s_per_token: float
    window_tokens: int
    context_tokens: int
    ranks_count: int
    captured: Floats
    """Captured graph sizes; empty in eager mode or where unknown."""
    flags: tuple[str, ...]
    reasons: tuple[str, ...]

    @property
    def floor_s(self) -> float:
        """The cheapest step of the sweep: f of Eq. 1."""
        return float(self.step_s.min())

    @cached_property
    def base_s(self) -> Floats:
        """(n,) measured steps with their contexts taken out."""
        own = self.batches / self.ranks_count
        window = own * min(self.context_tokens, self.window_tokens)
        base = self.step_s - self.slope_s_per_token * own * self.context_tokens - self.window_slope_s_per_token * window
        return np.asarray(base)

    @property
    def context_free_floor_s(self) -> float:
        """The cheapest step of the sweep with its contexts taken out."""
        return float(max(self.base_s.min(), LEAST_BASE_FRAC * self.floor_s))

    def padded(self, batches: Floats) -> Floats:
        """The batch the engine really runs for each of `batches`."""
        return np.asarray(
            batch_laws.padded_batch(batch_requests=batches, captured_requests=self.captured), dtype=np.float64
        )

    def base_at(self, batches: Floats) -> Floats:
        """Step without contexts at the padded batch: linear between points, held below, last slope continued above."""
        return extended(self.padded(batches), self.batches, self.base_s)

    def step_at(self, batches: Floats) -> Floats:
        """Step at the padded batch and the sweep's context: the measured one at the measured batches."""
        own, own_window = self.own_context(batches)
        return self.base_at(batches) + self.slope_at(batches) * own + self.window_slope_s_per_token * own_window

    def slope_at(self, batches: Floats) -> Floats:
        """Context slope at the padded batch, held at both ends."""
        return np.interp(self.padded(batches), self.batches, self.slope_s_per_token)

    def own_context(self, batches: Floats) -> tuple[Floats, Floats]:
        """Context tokens of one rank's requests while the sweep ran, all of them and those inside the window."""
        own = self.padded(batches) / self.ranks_count
        return own * self.context_tokens, own * min(self.context_tokens, self.window_tokens)


def extended(at: Floats, points: Floats, values: Floats) -> Floats:
    """Linear interpolation; the first value below the points, the last segment's slope (never falling) above."""
    inside = np.interp(at, points, values)
    if len(points) < 2:
        return inside
    slope = max(0.0, (values[-1] - values[-2]) / (points[-1] - points[-2]))
    return np.asarray(inside + slope * np.maximum(0.0, at - points[-1]))


def decode_curve(
    anchor: Anchor,
    *,
    cached_s_per_token: float | None = None,
    window_s_per_token: float = 0.0,
    window_tokens: int = 0,
) -> DecodeCurve:
    """The curve of `anchor`; its slope is measured from two prompt lengths, else `cached_s_per_token` of the card.

    `window_s_per_token` prices the layers behind a window (card), which two lengths beyond the window cannot see.
    """
    sweep = anchor.decode[0]
    batches = np.array([point.batch for point in sweep.points], dtype=np.float64)
    steps = np.array([point.step_s for point in sweep.points])
    ranks = anchor.signature.attention_data_parallel
    flags: list[str] = []
    reasons: list[str] = []
    own_tokens = batches / ranks * sweep.context_tokens
    if len(anchor.decode) == 2 and (slopes := _measured_slopes(anchor)) is not None:
        slope = np.interp(batches, slopes[0], slopes[1])
        reasons.append("context slope measured from two prompt lengths")
    elif cached_s_per_token is not None:
        slope = np.full(len(batches), cached_s_per_token)
        flags.append("context-slope-from-card")
        reasons.append("context slope from the model card's KV bytes: the anchor has one prompt length")
    else:
        slope = np.zeros(len(batches))
        flags.append("context-slope-unknown")
        reasons.append("no context slope: one prompt length and no model card, so steps stay at the anchor's context")
    in_window = batches / ranks * min(sweep.context_tokens, window_tokens)
    if "context-slope-from-card" in flags:
        slope, limited = _limited(steps, slope, own_tokens)
        if limited:
            flags.append("context-slope-capped")
            reasons.append("the card's context slope exceeds what the sweep grows with its batch, and is capped there")
    window_slope, _ = _limited(steps, np.full(len(batches), window_s_per_token), in_window)
    capture = anchor.signature.graph_capture
    if capture is None:
        flags.append("graph-capture-unknown")
    return DecodeCurve(
        batches,
        steps,
        slope,
        float(window_slope[0]),
        window_tokens,
        sweep.context_tokens,
        ranks,
        np.array(capture.sizes if capture else (), dtype=np.float64),
        tuple(flags),
        tuple(reasons),
    )


def _measured_slopes(anchor: Anchor) -> tuple[Floats, Floats] | None:
    """Slopes per own context token at the batches that both sweeps hold; None when they share none."""
    short, long = anchor.decode
    far = {point.batch: point.step_s for point in long.points}
    shared = [point for point in short.points if point.batch in far]
    if not shared:
        return None
    ranks = anchor.signature.attention_data_parallel
    batches = np.array([point.batch for point in shared], dtype=np.float64)
    slopes = batch_laws.context_slope(
        short_step_s=np.array([point.step_s for point in shared]),
        long_step_s=np.array([far[point.batch] for point in shared]),
        short_context_tokens=float(short.context_tokens),
        long_context_tokens=float(long.context_tokens),
        batch_requests=batches,
    )
    return batches, np.maximum(np.asarray(slopes) * ranks, 0.0)  # below 0 only by noise


def _limited(steps: Floats, slope: Floats, own_tokens: Floats) -> tuple[Floats, bool]:
    """`slope` scaled down as a whole until its context part fits into the sweep.

    It fits when the widest batch grew at least by its contexts, and when no step is more than half context at the
    smallest batch (a floor that was all context would leave no fixed cost).
    """
    factor = 1.0
    grown_tokens = slope[-1] * own_tokens[-1] - slope[0] * own_tokens[0]
    if len(steps) > 1 and grown_tokens > 0:
        factor = min(factor, max(0.0, (steps[-1] - steps[0]) / grown_tokens))
    if slope[0] > 0 and own_tokens[0] > 0:
        factor = min(factor, 0.5 * float(steps[0]) / float(slope[0] * own_tokens[0]))
    return slope * factor, factor < 1.0
