"""Speculation over a step cost that has none: verify steps of k + 1 tokens, drafting, Eq. 2 (paper App. A.2)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

import numpy as np

from simcore.errors import InputError
from simcore.laws import speculation as speculation_laws
from simcore.laws.speculation import DEPTH_LIMIT, Drafter
from simcore.stepcost.analytical import AnalyticalStepCost
from simcore.stepcost.step import MAX_BATCH, Floats, StepCost, Term, term

DRAFTER_LAYERS: Final[Mapping[Drafter, int]] = MappingProxyType(
    {Drafter.MTP: 1, Drafter.EAGLE3: 1, Drafter.DSPARK: 3, Drafter.NGRAM: 0}
)
"""Layers of each drafter (paper App. A.2); MTP takes the model's own count where the card has one."""
DRAFT_CONTEXT_TOKENS: Final = 2048
"""Context at which the drafter's share of a step is modelled; the share hardly depends on it."""


@dataclass(frozen=True, kw_only=True, eq=False)
class SpeculativeStepCost(StepCost):
    """A step cost whose decode steps draft and verify. Build it with `speculative`."""

    base: StepCost
    modelled: AnalyticalStepCost
    drafter: Drafter
    depth: int
    layers_count: int

    def terms(self, max_batch: int) -> tuple[Term, ...]:
        """The base's terms at k + 1 tokens per request (context read once), and `draft`."""
        batch = np.arange(1, max_batch + 1)
        rows = np.minimum(batch * (self.depth + 1), MAX_BATCH)
        verified = tuple(
            term(
                part.key,
                max_batch,
                base=part.decode_base_s[rows],
                context=part.decode_context_s_per_token[batch],
                window=part.decode_window_s_per_token[batch],
                prefill=(part.prefill_fixed_s, part.prefill_s_per_token, part.prefill_s_per_token2),
            )
            for part in self.base.terms(int(rows[-1]))
        )
        ratio = self._draft_ratio(batch)
        whole = [
            np.sum([getattr(part, name)[1:] for part in verified], axis=0)
            for name in ("decode_base_s", "decode_context_s_per_token", "decode_window_s_per_token")
        ]
        return (
            *verified,
            term("draft", max_batch, base=whole[0] * ratio, context=whole[1] * ratio, window=whole[2] * ratio),
        )

    def _draft_ratio(self, batch: np.ndarray[tuple[int], np.dtype[np.int64]]) -> Floats:
        """Modelled draft time over modelled verify step, by batch."""
        model, rows = self.modelled, np.minimum(batch * (self.depth + 1), MAX_BATCH)
        plain = {part.key: part for part in model.terms(int(rows[-1]))}
        context = batch * DRAFT_CONTEXT_TOKENS
        window = batch * min(DRAFT_CONTEXT_TOKENS, model.window_tokens)

        def seconds(parts: list[Term], at: np.ndarray[tuple[int], np.dtype[np.int64]]) -> Floats:
            total = np.zeros(len(batch))
            for part in parts:
                total += part.decode_base_s[at] + part.decode_context_s_per_token[batch] * context
                total += part.decode_window_s_per_token[batch] * window
            return total

        step = seconds(list(plain.values()), rows)
        head = plain["lmHead"].decode_base_s[batch]
        layers = seconds(list(plain.values()), batch) - head
        drafted = speculation_laws.draft_time(
            drafter=self.drafter,
            depth_count=float(self.depth),
            backbone_s=layers * self.layers_count / model.card.layers_count,
            head_s=head,
        )
        return np.asarray(
            speculation_laws.anchored_draft_time(
                step_s=np.ones_like(step), modelled_draft_s=drafted, modelled_step_s=step
            )
        )


def speculative(
    base: StepCost,
    modelled: AnalyticalStepCost,
    *,
    drafter: Drafter,
    depth: int,
    committed_tokens: float,
    layers_count: int | None = None,
) -> SpeculativeStepCost:
    """`base` with speculation of `depth` tokens that commits `committed_tokens` per step and request (Eq. 2's L(k)).

    `modelled` is the same target in simulate mode: the draft time is the measured step times the modelled ratio.
    Raises InputError for a depth outside 1..8, an L(k) outside [1, k + 1], or a base that speculates already.
    """
    if not 1 <= depth <= DEPTH_LIMIT:
        raise InputError("speculation.depth", depth, f"be 1 to {DEPTH_LIMIT}")
    if not 1.0 <= committed_tokens <= depth + 1:
        raise InputError("speculation.acceptedLength", committed_tokens, f"lie in [1, {depth + 1}]")
    if base.tokens_per_step != 1.0:
        raise InputError("speculation", drafter.value, "not be added to an anchor measured with speculation")
    card = modelled.card
    default = card.mtp_layers_count or 1 if drafter is Drafter.MTP else DRAFTER_LAYERS[drafter]
    return SpeculativeStepCost(
        window_tokens=base.window_tokens,
        pipeline=base.pipeline,
        host=base.host,
        tokens_per_step=committed_tokens,
        flags=(*base.flags, "modelled-drafter"),
        reasons=(*base.reasons, f"{drafter.value} at depth {depth} is modelled: the anchor has no speculation"),
        base=base,
        modelled=replace(modelled, _cache={}),
        drafter=drafter,
        depth=depth,
        layers_count=default if layers_count is None else layers_count,
    )
