"""Which missing anchor would change an answer, or narrow it, most."""

from __future__ import annotations

from dataclasses import dataclass

from simcore.anchors.select import Flag
from simcore.cards.layout import Engine, Layout
from simcore.search.plan import Answer, Candidate

MOST_COUNT = 8
MOVED = frozenset({Flag.NARROWER_ANCHOR, Flag.WIDER_ANCHOR, Flag.EXPERT_PARALLEL, Flag.ATTENTION_DP})
"""Flags of a prediction that was carried over from another layout."""


@dataclass(frozen=True)
class Harvest:
    """A harvest worth its GPU minutes, with what it would bring."""

    engine: Engine
    layout: Layout
    reason: str
    gain_frac: float
    """Width of the throughput interval over its value, which measuring would shrink; 1 where nothing is known."""


def recommend(answer: Answer, mode: str) -> tuple[Harvest, ...]:
    """Harvests, most useful first: engines without any anchor, then chosen layouts that no anchor measured.

    A layout that was refused for want of an anchor stands for its engine's narrowest such layout, because one narrow
    sweep covers the wider ones. A chosen layout that was predicted from another width is named with its interval.
    """
    found: dict[tuple[str, Layout], Harvest] = {}
    for refusal in sorted((r for r in answer.refusals if r.rule == "anchor"), key=lambda r: r.layout):
        engine = refusal.option.engine
        if not any(key[0] == engine.value for key in found):
            reason = f"no anchor applies to {engine.value} in mode {mode}: none of its layouts could be scored"
            found[(engine.value, refusal.layout)] = Harvest(engine, refusal.layout, reason, 1.0)
    for choice in answer.choices:
        index = choice.chosen if choice.chosen is not None else choice.nearest
        if index is None:
            continue
        candidate = answer.candidates[index]
        gain = _gain(candidate)
        key = (candidate.shape.option.engine.value, candidate.shape.layout)
        if gain > 0 and key not in found:
            reason = (
                f"chosen for tier {choice.tier.name} from another width or without an anchor; its 80 % interval spans "
                f"{gain:.0%} of the predicted throughput"
            )
            found[key] = Harvest(candidate.shape.option.engine, candidate.shape.layout, reason, gain)
    ordered = sorted(found.values(), key=lambda h: (-h.gain_frac, h.engine.value, h.layout))
    return tuple(ordered[:MOST_COUNT])


def _gain(candidate: Candidate) -> float:
    """Relative width of the throughput interval where the layout was not measured itself; else 0."""
    prediction = candidate.prediction
    if prediction.source.mode == "anchored" and not MOVED.intersection(prediction.flags):
        return 0.0
    low, high = prediction.interval80["throughput"]
    return (high - low) / prediction.throughput_tokens_per_s
