"""Moving a fitted layout to another one: width here, pipeline stages and pools by the caller."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from simcore.laws.width import decode_transfer, ideal_shrink
from simcore.stepcost.calibration import Calibration
from simcore.stepcost.experts import uniform_router
from simcore.stepcost.features import LayoutFeatures
from simcore.stepcost.width import MAX_FLOOR_SHARE, ExpertShift, WidthLaw, WidthMove, expert_shift
from simcore.validate.cells import Shape
from simcore.validate.layout_fit import FittedLayout, Prefill


@dataclass(frozen=True)
class Projection:
    """A fitted layout seen at another width."""

    fitted: FittedLayout
    features: LayoutFeatures | None
    """Of the target."""
    law: WidthLaw
    width_from: int
    width_to: int
    calibration: Calibration

    @property
    def ideal(self) -> float:
        return float(ideal_shrink(width_from=self.width_from, width_to=self.width_to))

    @cached_property
    def move(self) -> WidthMove | None:
        """The split floor between the two layouts; None where a card is missing or another law was asked for."""
        source, target = self.fitted.features, self.features
        if self.law is not WidthLaw.SPLIT_FLOOR or source is None or target is None:
            return None
        return WidthMove(source, target, self.width_from, self.width_to, self.calibration)

    @cached_property
    def shift(self) -> ExpertShift | None:
        """What sharding experts otherwise than the anchor costs under a uniform router; None where nothing changes."""
        return None if self.move is None else expert_shift(self.move.source, self.move.target, uniform_router)

    def step_s(self, batch: float, context_tokens: float, shape: Shape) -> float:
        """Decode step of `batch` requests at the target width [s]."""
        moved_s = self._moved_step_s(batch, context_tokens, shape)
        if self.shift is None:
            return moved_s
        return moved_s + max(float(self.shift.decode_s(np.array([batch]))[0]), -MAX_FLOOR_SHARE * moved_s)

    def _moved_step_s(self, batch: float, context_tokens: float, shape: Shape) -> float:
        fitted = self.fitted
        whole_s = fitted.step_at(batch, context_tokens, shape)
        if self.width_from == self.width_to or self.law is WidthLaw.SAME:
            return whole_s
        if self.law is WidthLaw.DIVIDE:
            return whole_s * self.ideal
        floor_s, floor_batch = fitted.floor(shape)
        if self.move is None:
            floor_s = min(floor_s + fitted.context_s(floor_batch, context_tokens), whole_s)
            return float(decode_transfer(step_s=whole_s, floor_s=floor_s, shrink_factor=self.ideal))
        reading_s = fitted.context_s(batch, context_tokens)
        moved = self.move.decode(
            np.array([whole_s - reading_s]),
            np.array([batch]),
            floor_s=floor_s,
            floor_batch=floor_batch,
            excess_shrink_factor=self.ideal,
        )
        read_from, read_to = (side.read_context_bytes(context_tokens) for side in (self.move.source, self.move.target))
        return float(moved.total_s[0]) + reading_s * read_to / max(read_from, 1e-12)

    @cached_property
    def prefill(self) -> Prefill:
        """Prefill at the target width."""
        moved = self._moved_prefill()
        if self.shift is None:
            return moved
        fixed_s, s_per_token = self.shift.prefill_s
        return Prefill(
            moved.fixed_s + max(fixed_s, -MAX_FLOOR_SHARE * moved.fixed_s),
            moved.s_per_token + max(s_per_token, -MAX_FLOOR_SHARE * moved.s_per_token),
            moved.s_per_token2,
        )

    def _moved_prefill(self) -> Prefill:
        here, ideal = self.fitted.prefill, self.ideal
        if self.width_from == self.width_to or self.law is WidthLaw.SAME:
            return here
        if self.law is WidthLaw.PAPER:
            return Prefill(here.fixed_s, here.s_per_token * ideal, here.s_per_token2 * ideal)
        if self.move is None:
            return Prefill(here.fixed_s * ideal, here.s_per_token * ideal, here.s_per_token2 * ideal)
        moved = self.move.prefill(here.fixed_s, here.s_per_token, here.s_per_token2)
        return Prefill(moved.fixed_s, moved.s_per_token + moved.collectives_s_per_token, moved.s_per_token2)
