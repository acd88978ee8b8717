"""A measured step moved to another layout: where the width laws, the cards and the learnt quantities meet.

Plans (`anchored`) and the validation of corpora (`simcore.validate.project`) both move steps through `WidthMove`, so
that the errors of the one are those of the other.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from simcore.laws.routing_replay import Phase
from simcore.laws.width import (
    decode_transfer_split,
    ideal_shrink,
    prefill_transfer_communicating,
    weight_read,
)
from simcore.stepcost.calibration import Calibration
from simcore.stepcost.communication import PREFILL_PROBE_TOKENS
from simcore.stepcost.experts import ExpertRates, RouterLoad, experts_s
from simcore.stepcost.features import LayoutFeatures
from simcore.stepcost.work import ACTIVATION_BYTES, Experts

Floats = NDArray[np.float64]
MAX_PREFILL_SHARE = 0.8
"""At most this share of a measured prefill is taken to be repeated work and collectives; collectives, which can hide
behind compute, give way."""
MAX_FLOOR_SHARE = 0.5
"""Collectives take at most this share of the cheapest step; sharding experts otherwise saves at most as much of any."""


class WidthLaw(StrEnum):
    """How a step moves to another width."""

    AUTO = "auto"
    """Split floor where the cards are known, else Eq. 1."""
    SPLIT_FLOOR = "split-floor"
    """Constant, weight reading that shrinks, excess, collectives (needs the cards)."""
    PAPER = "paper"
    """Eq. 1: the cheapest step stays, the rest shrinks by w/w' or the shrink measured on a half-width sibling."""
    DIVIDE = "divide"
    """Baseline: the whole step times w/w'."""
    SAME = "same"
    """Baseline: the step does not change."""


@dataclass(frozen=True, eq=False)
class MovedDecode:
    """Decode steps at the target without their context reading, (n,) each; the parts sum to the step."""

    fixed_s: Floats
    weights_s: Floats
    excess_s: Floats
    collectives_s: Floats

    @property
    def total_s(self) -> Floats:
        return self.fixed_s + self.weights_s + self.excess_s + self.collectives_s


@dataclass(frozen=True)
class MovedPrefill:
    """Prefill at the target: F, c1 and c2 without the collectives, and those per token."""

    fixed_s: float
    s_per_token: float
    s_per_token2: float
    collectives_s_per_token: float


@dataclass(frozen=True, eq=False)
class ExpertShift:
    """Expert time at the target's EP minus the same at the anchor's EP, both over the target's ranks.

    Imbalance is evaluated at both widths: one value on both sides would cancel and make a wider EP look free (B.3).
    """

    target: tuple[Experts, ...]
    as_anchor: tuple[Experts, ...]
    rates: ExpertRates
    load: RouterLoad

    def decode_s(self, engine_batch: Floats) -> Floats:
        """Seconds added to a decode step, by engine batch; negative where the target shards less."""
        return self._shift_s(engine_batch, Phase.DECODE)

    @cached_property
    def prefill_s(self) -> tuple[float, float]:
        """(fixed seconds, seconds per token) added to a prefill step, through two prompt lengths."""
        small, large = PREFILL_PROBE_TOKENS
        low, high = self._shift_s(np.array([small, large], dtype=np.float64), Phase.PREFILL)
        slope = (high - low) / (large - small)
        return float(low - slope * small), float(slope)

    def _shift_s(self, tokens: Floats, phase: Phase) -> Floats:
        after, before = (experts_s(e, tokens, self.rates, self.load, phase) for e in (self.target, self.as_anchor))
        return after - before


def expert_shift(source: LayoutFeatures, target: LayoutFeatures, load: RouterLoad) -> ExpertShift | None:
    """What the target's EP costs against the source's; None where experts are sharded alike or nothing was measured.

    What few experts and the surplus of the busiest rank cost was measured on AMD's GPUs only.
    """
    layout = target.work.layout
    if target.is_borrowed:
        return None
    ranks = layout.moe_tp * layout.moe_ep
    held_ep = min(source.work.layout.moe_ep, ranks)
    if layout.moe_ep == held_ep:
        return None
    held_tp = max(1, ranks // held_ep)
    as_anchor = tuple(
        replace(experts, expert_parallel=held_ep, intermediate=experts.intermediate * layout.moe_tp / held_tp)
        for experts in target.work.experts
    )
    return ExpertShift(target.work.experts, as_anchor, target.expert_rates, load)


@dataclass(frozen=True, eq=False)
class WidthMove:
    """The split floor from one layout to another, one engine batch or prompt token at a time."""

    source: LayoutFeatures
    target: LayoutFeatures
    width_from: int
    """GPUs that share a request's step."""
    width_to: int
    learnt: Calibration

    @property
    def ideal(self) -> float:
        return float(ideal_shrink(width_from=self.width_from, width_to=self.width_to))

    @property
    def exchanges_alike(self) -> bool:
        """Both layouts exchange the same: what the measured step holds of it stays."""
        return self.source.communication == self.target.communication

    def decode(
        self,
        base_s: Floats,
        engine_batch: Floats,
        *,
        floor_s: float,
        floor_batch: float,
        excess_shrink_factor: Floats | float,
    ) -> MovedDecode:
        """Steps `base_s` (n,) of `engine_batch` (n,) requests, context reading left out, at the target [s].

        `floor_s` is the cheapest step of the same sweep, at `floor_batch`; `excess_shrink_factor` is rho of Eq. 1.
        """
        floor = np.minimum(floor_s, base_s)
        first = np.array([floor_batch])
        held_floor_s = np.minimum(self.collective_s(self.source, first), MAX_FLOOR_SHARE * floor)
        most_s = (1.0 - self.learnt.least_constant_frac) * floor - held_floor_s
        read_from_s, read_to_s = (self.weight_s(side, floor_batch) for side in (self.source, self.target))
        weight_s = np.clip(read_from_s, 0.0, np.maximum(most_s, 0.0))
        held_s = held_floor_s + np.clip(
            self.collective_s(self.source, engine_batch) - held_floor_s, 0.0, base_s - floor
        )
        to_s = held_s if self.exchanges_alike else self.collective_s(self.target, engine_batch)
        weight_ratio = read_to_s / read_from_s if read_from_s else 1.0
        total_s = decode_transfer_split(
            step_s=base_s,
            floor_s=floor,
            weight_s=weight_s,
            collective_from_s=held_s,
            collective_floor_from_s=held_floor_s,
            collective_to_s=to_s,
            weight_shrink_factor=weight_ratio,
            excess_shrink_factor=excess_shrink_factor,
        )
        fixed_s, weights_s = floor - weight_s - held_floor_s, weight_s * weight_ratio
        return MovedDecode(fixed_s, weights_s, np.asarray(total_s) - fixed_s - weights_s - to_s, to_s)

    def weight_s(self, features: LayoutFeatures, batch: float) -> float:
        """Reading of the weights that a step of `batch` touches, on one GPU [s].

        Experts count at the datasheet rate, which under-states them: at small batches their read is in the constant.
        """
        dense_s = weight_read(
            weight_bytes=features.matrix_bytes,
            effective_bytes_per_s=self.learnt.weight_bandwidth_frac * features.hbm_bytes_per_s,
        )
        expert_s = weight_read(
            weight_bytes=features.expert_bytes * features.expert_coverage_frac(batch),
            effective_bytes_per_s=features.hbm_bytes_per_s,
        )
        return float(dense_s + expert_s)

    def collective_s(self, features: LayoutFeatures, engine_batch: Floats) -> Floats:
        """Collectives of a decode step of `engine_batch` requests, (n,) in, (n,) out [s].

        Measured kernels (paper Table 19) where there are any, else the learnt rate. Serving adds the waiting of ranks
        and host, the learnt latency beyond a single step's.
        """
        learnt, exchanged = self.learnt, features.communication
        if exchanged.is_measured:
            waiting_s = learnt.reduce_latency_s - learnt.step_reduce_latency_s
            return exchanged.decode_s(engine_batch) + exchanged.kernels_count * waiting_s
        return exchanged.ring_s(engine_batch, latency_s=learnt.reduce_latency_s, bytes_per_s=learnt.reduce_bytes_per_s)

    def prefill(self, fixed_s: float, s_per_token: float, s_per_token2: float) -> MovedPrefill:
        """F + c1 n + c2 n^2 at the target: F and repeated work stay, collectives follow the links, the rest divides."""
        squared = s_per_token2 * self.ideal
        if s_per_token <= 0.0:
            return MovedPrefill(fixed_s, 0.0, squared, 0.0)
        most_s = MAX_PREFILL_SHARE * s_per_token
        repeated_s = min(self.prefill_repeated_s(self.source), most_s)
        held_s = min(self.source.communication.link_s_per_token, most_s - repeated_s)
        to_s = held_s if self.exchanges_alike else self.target.communication.link_s_per_token
        moved = prefill_transfer_communicating(
            step_s=s_per_token,
            fixed_s=repeated_s,
            communication_from_s=held_s,
            communication_to_s=to_s,
            shrink_factor=self.ideal,
        )
        return MovedPrefill(fixed_s, float(moved) - to_s, squared, to_s)

    def prefill_repeated_s(self, features: LayoutFeatures) -> float:
        """Of one prompt token's prefill, what every GPU of the group does whole: hidden states through HBM [s].

        Tensor parallelism splits matrices; norms, residuals, quantisation, dispatch to experts and their combination
        see whole hidden states on each GPU. Counted at the datasheet rate.
        """
        learnt = self.learnt
        passes = learnt.layer_passes_count + learnt.expert_passes_count * features.experts_per_token
        return passes * features.layers_count * features.hidden * ACTIVATION_BYTES / features.hbm_bytes_per_s
