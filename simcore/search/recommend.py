"""Which missing anchor would change an answer, or narrow it, most: the expected value of measuring a layout.

A throughput that was carried over from another layout is taken as log-normal within its 80 % interval. Measuring it
pays when it turns out better than the choice, or, of the choice itself, worse than the runner-up: then the other one is
taken. The gains are those of an exact measurement, so an upper bound; that one harvest also narrows its neighbours is
left out, and so is that limits may be met or missed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Final

from simcore.anchors.select import Flag
from simcore.cards.layout import Engine, Layout
from simcore.search.plan import Answer, Candidate
from simcore.search.tiers import TierChoice, TierRule, default_rule, margins

MOST_COUNT: Final = 8
LEAST_GAIN_FRAC: Final = 0.005
"""Layouts that nobody chose are named from this expected gain on: half a percent of a tier's throughput."""
MOVED: Final = frozenset({Flag.NARROWER_ANCHOR, Flag.WIDER_ANCHOR, Flag.EXPERT_PARALLEL, Flag.ATTENTION_DP})
"""Flags of a prediction that was carried over from another layout."""
_NORMAL = NormalDist()
_Z80: Final = _NORMAL.inv_cdf(0.9)
"""Half an 80 % interval in standard deviations."""


@dataclass(frozen=True)
class Harvest:
    """A harvest worth its GPU minutes, with what it would bring."""

    engine: Engine
    layout: Layout
    reason: str
    gain_frac: float | None
    """Expected gain of the tier's throughput per GPU by choosing with the measurement; None where nothing is known."""
    change_frac: float | None
    """Probability that the choice changes."""
    interval_frac: float | None
    """Width of the 80 % interval of the throughput over its value, which the measurement would shrink."""


def gain_of_option(value_tokens_per_s: float, log_sd_frac: float, best_tokens_per_s: float) -> tuple[float, float]:
    """(expected gain over the best, probability of one) of measuring an option X, log-normal around its value.

    E[max(X - best, 0)] / best, in closed form.
    """
    above, beyond = _places(value_tokens_per_s, log_sd_frac, best_tokens_per_s)
    mean = value_tokens_per_s * math.exp(log_sd_frac**2 / 2)
    return max(0.0, mean * _NORMAL.cdf(above) / best_tokens_per_s - _NORMAL.cdf(beyond)), _NORMAL.cdf(beyond)


def gain_of_choice(value_tokens_per_s: float, log_sd_frac: float, runner_up_tokens_per_s: float) -> tuple[float, float]:
    """(expected gain, probability of a change) of measuring the choice itself: E[max(runner-up - X, 0)] / value."""
    above, beyond = _places(value_tokens_per_s, log_sd_frac, runner_up_tokens_per_s)
    mean = value_tokens_per_s * math.exp(log_sd_frac**2 / 2)
    gain = runner_up_tokens_per_s * _NORMAL.cdf(-beyond) - mean * _NORMAL.cdf(-above)
    return max(0.0, gain / value_tokens_per_s), _NORMAL.cdf(-beyond)


def _places(value_tokens_per_s: float, log_sd_frac: float, other_tokens_per_s: float) -> tuple[float, float]:
    beyond = math.log(value_tokens_per_s / other_tokens_per_s) / log_sd_frac
    return beyond + log_sd_frac, beyond


def recommend(answer: Answer, mode: str, rule: TierRule | None = None) -> tuple[Harvest, ...]:
    """Harvests, most useful first: engines without any anchor, then layouts that no anchor measured, by their gain.

    A layout that was refused for want of an anchor stands for its engine's narrowest such layout, because one narrow
    sweep covers the wider ones. Layouts whose attention runs alike (tensor and attention data parallel) are named once,
    by the one worth most: what is not known of them is mostly the same, and one measurement tells it of all.
    """
    unknown = _engines_without(answer, mode)
    names = {harvest.engine for harvest in unknown}
    alike: dict[tuple[object, ...], list[tuple[Harvest, str]]] = {}
    for choice in answer.choices:
        for key, harvest in _of_tier(answer.candidates, choice, rule or default_rule()).items():
            if harvest.engine not in names:
                *option, layout = key
                assert isinstance(layout, Layout)  # noqa: S101 - as `_measured_as` makes it
                widths = (*option, layout.tensor_parallel, layout.attention_data_parallel)
                alike.setdefault(widths, []).append((harvest, choice.tier.name))
    known = sorted(map(_for_all, alike.values()), key=_order)
    return (*unknown, *known)[:MOST_COUNT]


def _for_all(members: Sequence[tuple[Harvest, str]]) -> Harvest:
    """The one of several that is worth most, with the layouts and tiers that its measurement would decide too."""
    best, tier = min(members, key=lambda member: _order(member[0]))
    others = sorted({harvest.layout for harvest, _ in members} - {best.layout})
    tiers = dict.fromkeys(name for _, name in members if name != tier)
    words = [best.reason]
    if others:
        words.append(f"it also decides {', '.join(layout.label() for layout in others)}")
    if tiers:
        words.append(f"it bears on {', '.join(tiers)} too")
    return replace(best, reason="; ".join(words))


def _order(harvest: Harvest) -> tuple[object, ...]:
    return -(harvest.gain_frac or 0.0), -(harvest.interval_frac or 0.0), harvest.engine.value, harvest.layout


def _engines_without(answer: Answer, mode: str) -> list[Harvest]:
    found: dict[Engine, Harvest] = {}
    for refusal in sorted((r for r in answer.refusals if r.rule == "anchor"), key=lambda r: r.layout):
        engine = refusal.option.engine
        if engine not in found:
            reason = f"no anchor applies to {engine.value} in mode {mode}: none of its layouts could be scored"
            found[engine] = Harvest(engine, refusal.layout, reason, None, None, None)
    return [found[engine] for engine in sorted(found, key=lambda engine: engine.value)]


def _of_tier(candidates: Sequence[Candidate], choice: TierChoice, rule: TierRule) -> dict[tuple[object, ...], Harvest]:
    """What measuring each moved layout would bring to one tier."""
    if choice.chosen is None:
        if choice.nearest is None or not _is_moved(candidates[choice.nearest]):
            return {}
        nearest = candidates[choice.nearest]
        why = f"nearest to tier {choice.tier.name}, which nothing meets"
        return {_measured_as(nearest): _harvest(nearest, why, 0.0, 0.0)}
    chosen = candidates[choice.chosen]
    leaders: dict[tuple[object, ...], Candidate] = {}
    for candidate in sorted(candidates, key=lambda c: (-c.throughput_per_gpu_tokens_per_s, c.gpus_count, c.key)):
        if all(margin >= 0 for margin in margins(candidate, choice.tier, rule).values()):
            leaders.setdefault(_measured_as(candidate), candidate)
    others = {key: leader for key, leader in leaders.items() if key != _measured_as(chosen)}
    value = chosen.throughput_per_gpu_tokens_per_s
    found: dict[tuple[object, ...], Harvest] = {}
    if _is_moved(chosen):
        runner_up = max((o.throughput_per_gpu_tokens_per_s for o in others.values()), default=None)
        gain, change = (
            (0.0, 0.0) if runner_up is None else gain_of_choice(value, _log_sd(chosen), min(runner_up, value))
        )
        found[_measured_as(chosen)] = _harvest(chosen, f"chosen for tier {choice.tier.name}", gain, change)
    for key, other in others.items():
        if _is_moved(other):
            gain, change = gain_of_option(other.throughput_per_gpu_tokens_per_s, _log_sd(other), value)
            if gain >= LEAST_GAIN_FRAC:
                found[key] = _harvest(other, f"a rival of the choice of tier {choice.tier.name}", gain, change)
    return found


def _harvest(candidate: Candidate, role: str, gain_frac: float, change_frac: float) -> Harvest:
    low, high = candidate.prediction.interval80["throughput"]
    interval_frac = (high - low) / candidate.prediction.throughput_tokens_per_s
    reason = (
        f"{role}, not measured in this layout (its 80 % interval spans {interval_frac:.0%}): a measurement changes the "
        f"choice with probability {change_frac:.0%} and brings {gain_frac:.1%} of throughput per GPU on average"
    )
    return Harvest(candidate.shape.option.engine, candidate.shape.layout, reason, gain_frac, change_frac, interval_frac)


def _measured_as(candidate: Candidate) -> tuple[object, ...]:
    """What one harvest measures: a layout of an engine, whatever its caches and settings."""
    option = candidate.shape.option
    return option.engine, option.version, candidate.shape.layout


def _is_moved(candidate: Candidate) -> bool:
    prediction = candidate.prediction
    return prediction.source.mode != "anchored" or bool(MOVED.intersection(prediction.flags))


def _log_sd(candidate: Candidate) -> float:
    low, high = candidate.prediction.interval80["throughput"]
    return math.log(high / low) / (2 * _Z80)
