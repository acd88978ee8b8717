"""Moving a fitted layout to another one: width, pipeline stages, pools. Each law is a member of one family."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

from simcore.laws.collectives import Collective, Tier, collective_time
from simcore.laws.width import (
    decode_transfer,
    decode_transfer_split,
    ideal_shrink,
    prefill_transfer_communicating,
    weight_read,
)
from simcore.validate.calibration import Calibration
from simcore.validate.cells import Shape
from simcore.validate.features import LayoutFeatures
from simcore.validate.layout_fit import FittedLayout, Prefill

ELEMENT_BYTES = 2
"""Hidden states travel in 16 bits."""
MAX_COLLECTIVE_SHARE = 0.8
"""At most this share of a measured prefill is taken to be repeated work and collectives; collectives, which can hide
behind compute, give way."""
NODE_GPUS = 8
"""GPUs of a node: a wider group reduces over the network."""


class WidthLaw(StrEnum):
    """How a decode step moves to another width."""

    SPLIT_FLOOR = "split-floor"
    """Constant, weight reading that shrinks, excess, collectives (needs the model card)."""
    PAPER = "paper"
    """Eq. 1: the cheapest step stays, the rest shrinks by w/w'."""
    DIVIDE = "divide"
    """The whole step times w/w'."""
    SAME = "same"
    """The step does not change."""


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

    def step_s(self, batch: float, context_tokens: float, shape: Shape) -> float:
        """Decode step of `batch` requests at the target width [s]."""
        fitted, source, target = self.fitted, self.fitted.features, self.features
        whole_s = fitted.step_at(batch, context_tokens, shape)
        if self.width_from == self.width_to or self.law is WidthLaw.SAME:
            return whole_s
        if self.law is WidthLaw.DIVIDE:
            return whole_s * self.ideal
        base_floor_s, floor_batch = fitted.floor(shape)
        if self.law is WidthLaw.PAPER or source is None or target is None:
            floor_s = min(base_floor_s + fitted.context_s(floor_batch, context_tokens), whole_s)
            return float(decode_transfer(step_s=whole_s, floor_s=floor_s, shrink_factor=self.ideal))
        reading_s = fitted.context_s(batch, context_tokens)
        step_s = whole_s - reading_s
        floor_s = min(base_floor_s, step_s)
        floor_collective_s = min(self.collective_s(source, floor_batch), 0.5 * floor_s)
        weight_s = min(
            self.weight_s(source, floor_batch),
            (1 - self.calibration.least_constant_frac) * floor_s - floor_collective_s,
        )
        weight_s = max(weight_s, 0.0)
        collective_s = floor_collective_s + min(
            max(self.collective_s(source, batch) - floor_collective_s, 0.0), step_s - floor_s
        )
        moved_s = decode_transfer_split(
            step_s=step_s,
            floor_s=floor_s,
            weight_s=weight_s,
            collective_from_s=collective_s,
            collective_floor_from_s=floor_collective_s,
            collective_to_s=self.collective_s(target, batch),
            weight_shrink_factor=self.ideal,
            excess_shrink_factor=self.ideal,
        )
        read_to = target.read_context_bytes(context_tokens) / max(source.read_context_bytes(context_tokens), 1e-12)
        return float(moved_s) + reading_s * read_to

    def weight_s(self, features: LayoutFeatures, batch: float) -> float:
        """Reading of the weights that a step of `batch` touches, on one GPU [s].

        Experts count at the datasheet rate, which under-states them: at small batches their read is in the constant.
        """
        learnt = self.calibration
        dense_s = weight_read(
            weight_bytes=features.matrix_bytes,
            effective_bytes_per_s=learnt.weight_bandwidth_frac * features.hbm_bytes_per_s,
        )
        expert_s = weight_read(
            weight_bytes=features.expert_bytes * features.expert_coverage_frac(batch),
            effective_bytes_per_s=features.hbm_bytes_per_s,
        )
        return float(dense_s + expert_s)

    def collective_s(self, features: LayoutFeatures, tokens: float) -> float:
        """All-reduces of a step of `tokens` tokens at the features' width [s].

        Measured kernels (paper Table 19) where there are any, else the learnt rate. Serving adds the waiting of ranks
        and host, the learnt latency beyond a single step's.
        """
        width = features.attention_width
        if width < 2:
            return 0.0
        learnt = self.calibration
        if features.has_measured_reduce:
            reduce_s = collective_time(
                collective=Collective.ALL_REDUCE,
                message_bytes=tokens * features.hidden * ELEMENT_BYTES,
                gpus_count=width,
                tier=Tier.NODE if width <= NODE_GPUS else Tier.NETWORK,
                inside_step=False,
            )
            return features.reduces_count * (reduce_s + learnt.reduce_latency_s - learnt.step_reduce_latency_s)
        ring_bytes = tokens * features.hidden * ELEMENT_BYTES * 2.0 * (width - 1) / width
        return features.reduces_count * (learnt.reduce_latency_s + ring_bytes / learnt.reduce_bytes_per_s)

    @cached_property
    def prefill(self) -> Prefill:
        """Prefill at the target width: F and repeated work stay, other work divides, collectives follow the links."""
        here, source, target = self.fitted.prefill, self.fitted.features, self.features
        if self.width_from == self.width_to or self.law is WidthLaw.SAME:
            return here
        if self.law is WidthLaw.DIVIDE or source is None or target is None:
            return Prefill(here.fixed_s * self.ideal, here.s_per_token * self.ideal, here.s_per_token2 * self.ideal)
        if self.law is WidthLaw.PAPER:
            return Prefill(here.fixed_s, here.s_per_token * self.ideal, here.s_per_token2 * self.ideal)
        if here.s_per_token <= 0.0:
            return Prefill(here.fixed_s, 0.0, here.s_per_token2 * self.ideal)
        most_s = MAX_COLLECTIVE_SHARE * here.s_per_token
        repeated_s = min(self.prefill_repeated_s(source), most_s)
        moved = prefill_transfer_communicating(
            step_s=here.s_per_token,
            fixed_s=repeated_s,
            communication_from_s=min(self.prefill_collective_s(source), most_s - repeated_s),
            communication_to_s=self.prefill_collective_s(target),
            shrink_factor=self.ideal,
        )
        return Prefill(here.fixed_s, float(moved), here.s_per_token2 * self.ideal)

    def prefill_collective_s(self, features: LayoutFeatures) -> float:
        """All-reduces of one prompt token at the features' width, as large messages over the group's links [s]."""
        width = features.attention_width
        ring_bytes = features.hidden * ELEMENT_BYTES * 2.0 * (width - 1) / width
        return features.reduces_count * ring_bytes / features.group_link_bytes_per_s

    def prefill_repeated_s(self, features: LayoutFeatures) -> float:
        """Of one prompt token's prefill, what every GPU of the group does whole: hidden states through HBM [s].

        Tensor parallelism splits matrices; norms, residuals, quantisation, dispatch to experts and their combination
        see whole hidden states on each GPU. Counted at the datasheet rate.
        """
        learnt = self.calibration
        passes = learnt.layer_passes_count + learnt.expert_passes_count * features.experts_per_token
        return passes * features.layers_count * features.hidden * ELEMENT_BYTES / features.hbm_bytes_per_s
