"""Kernel fusions over a step cost: what a build with these fused kernels would save (paper Sec. 4, Table 21)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from simcore.cards.accelerator import AcceleratorCard
from simcore.cards.layout import ResolvedLayout
from simcore.cards.model import ModelCard
from simcore.data.constants import constant
from simcore.laws.fusions import fusion_saving_range, legal_fusions, load_fusions
from simcore.stepcost.step import Floats, StepCost, Term, term
from simcore.stepcost.work import ACTIVATION_BYTES

MOST_SAVED_FRAC: Final = 0.5
"""A fusion never takes more than this share of a step: beyond it the kernel counts, not the build, would be wrong."""


@dataclass(frozen=True)
class FusionScope:
    """Where fusions act on one rank: layers, bytes per token, memory bandwidth."""

    layers_count: int
    moe_layers_count: int
    hidden_bytes_per_token: float
    dense_bytes_per_token: float
    """Activation between up and down projection of one token on this rank, dense MLP."""
    expert_bytes_per_token: float
    """The same of all routed experts of one token that this rank holds a share of."""
    memory_bytes_per_s: float

    def saving_s(self, name: str, step_tokens: float) -> tuple[float, float]:
        """(low, high) seconds that `name` saves in a step of `step_tokens` tokens per rank. Raises UnknownNameError."""
        has_experts = self.moe_layers_count > 0
        on_moe = name in load_fusions() and load_fusions()[name].needs_moe
        return fusion_saving_range(
            name=name,
            layers_count=self.moe_layers_count if on_moe else self.layers_count,
            step_tokens=step_tokens,
            hidden_bytes_per_token=self.hidden_bytes_per_token,
            intermediate_bytes_per_token=self.expert_bytes_per_token if has_experts else self.dense_bytes_per_token,
            memory_bytes_per_s=self.memory_bytes_per_s,
        )


def fusion_scope(card: ModelCard, widths: ResolvedLayout, accelerator: AcceleratorCard) -> FusionScope:
    """The scope on one rank of `widths`."""
    moe = [group for group in card.groups if group.ffn.is_moe]
    dense = max((group.ffn.intermediate for group in card.groups), default=0)
    experts = max((group.ffn.experts_per_token * group.ffn.expert_intermediate for group in moe), default=0)
    # All attention-DP ranks' tokens meet in the experts, so a rank's own token brings `attention_dp` shares.
    share = widths.attention_dp / (widths.moe_tp * widths.moe_ep)
    return FusionScope(
        layers_count=card.layers_count,
        moe_layers_count=sum(group.layers_count for group in moe),
        hidden_bytes_per_token=float(card.hidden * ACTIVATION_BYTES),
        dense_bytes_per_token=dense * ACTIVATION_BYTES / widths.attention_tp,
        expert_bytes_per_token=experts * ACTIVATION_BYTES * share,
        memory_bytes_per_s=accelerator.hbm_bytes_per_s * constant("memory.read_bandwidth_frac").value,
    )


def fusion_opportunities(
    scope: FusionScope, *, quantised_activations: bool, step_s: float, step_tokens: float, floor_frac: float
) -> dict[str, float]:
    """Legal fusions worth at least `floor_frac` of a decode step of `step_s`: name to share saved, largest first.

    Priced at the low end of the range, 75 % of the ideal saving (paper App. J).
    """
    names = legal_fusions(quantised_activations=quantised_activations, is_moe=scope.moe_layers_count > 0)
    shares = {name: scope.saving_s(name, step_tokens)[0] / step_s for name in names}
    worth = [(name, share) for name, share in shares.items() if share >= floor_frac]
    return dict(sorted(worth, key=lambda item: (-item[1], item[0])))


@dataclass(frozen=True, kw_only=True, eq=False)
class FusedStepCost(StepCost):
    """A step cost with fused kernels. Build it with `fused`."""

    base: StepCost
    names: tuple[str, ...]
    scope: FusionScope

    def terms(self, max_batch: int) -> tuple[Term, ...]:
        """The base's terms and `fusions`, negative: the low end of what each saves."""
        parts = self.base.terms(max_batch)
        batch = np.arange(1, max_batch + 1, dtype=np.float64)
        room: Floats = MOST_SAVED_FRAC * np.sum([part.decode_base_s[1:] for part in parts], axis=0)
        one, two = (sum(self.scope.saving_s(name, tokens)[0] for name in self.names) for tokens in (1.0, 2.0))
        fixed, per_token = 2.0 * one - two, two - one
        prefill_room = MOST_SAVED_FRAC * sum(part.prefill_fixed_s for part in parts)
        slope_room = MOST_SAVED_FRAC * sum(part.prefill_s_per_token for part in parts)
        return (
            *parts,
            term(
                "fusions",
                max_batch,
                base=-np.minimum(fixed + per_token * batch, room),
                prefill=(-min(fixed, prefill_room), -min(per_token, slope_room), 0.0),
            ),
        )


def fused(
    base: StepCost, names: Sequence[str], *, card: ModelCard, widths: ResolvedLayout, accelerator: AcceleratorCard
) -> FusedStepCost:
    """`base` as a build with the fusions `names` would run it; legality is the caller's (`check_fusions`)."""
    return FusedStepCost(
        window_tokens=base.window_tokens,
        pipeline=base.pipeline,
        host=base.host,
        tokens_per_step=base.tokens_per_step,
        flags=(*base.flags, "modelled-fusions"),
        reasons=(*base.reasons, "fusions " + ", ".join(names) + " are modelled at 75 % of their ideal saving"),
        base=base,
        names=tuple(names),
        scope=fusion_scope(card, widths, accelerator),
    )
