"""Why this configuration and not that one: what each tier's limits cost, the runners-up, and where the choice flips."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from simcore.search.plan import Answer, Candidate
from simcore.search.tiers import Scored, Tier, TierRule, choose, default_rule, headroom_frac, margins

RUNNERS_UP_COUNT: Final = 4
SAME_FRAC: Final = 0.0005
"""Differences that round to nothing in the text."""


@dataclass(frozen=True)
class Row:
    """A candidate as an explanation needs it: one deployment at one load."""

    engine: str
    layout: str
    replicas_count: int
    gpus_count: int
    concurrency: int
    ttft_s: float
    tpot_s: float
    throughput_per_gpu_tokens_per_s: float

    @property
    def deployment(self) -> tuple[str, str, int]:
        """What is deployed, whatever the load."""
        return self.engine, self.layout, self.replicas_count

    @property
    def key(self) -> tuple[object, ...]:
        return (*self.deployment, self.concurrency)

    @property
    def label(self) -> str:
        """e.g. `SGLang TP2 x4`."""
        return f"{self.engine} {self.layout} x{self.replicas_count}"


@dataclass(frozen=True)
class BreakEven:
    """Loads between which the runner-up becomes the better of the two."""

    holds_at: int
    """Last number of clients at which the chosen one is better."""
    flips_at: int
    """First number of clients at which it is not."""
    reason: str


@dataclass(frozen=True)
class RunnerUp:
    """Another configuration that meets the tier."""

    row: Row
    throughput_frac: float
    """Throughput per GPU over the chosen one's, minus 1."""
    headroom_frac: float | None
    why: str
    break_even: BreakEven | None


@dataclass(frozen=True)
class Blocked:
    """The best candidate that the tier's limits keep out."""

    row: Row
    limits: tuple[str, ...]
    """`interactivity`, `ttft` or both: all that it misses, so that without them it would qualify."""
    gain_frac: float
    """Throughput per GPU that they cost."""
    miss_frac: float
    """By which it misses them, the larger one of two, from where it would qualify: of a TTFT half the limit."""


@dataclass(frozen=True)
class Explanation:
    """One tier."""

    tier: Tier
    chosen: Row | None
    headroom_frac: float | None
    why: str
    blocked: Blocked | None
    runners_up: tuple[RunnerUp, ...]


def rows_of(answer: Answer) -> list[Row]:
    """All scored candidates as rows."""
    return [row_of(candidate) for candidate in answer.candidates]


def named(layout: str, settings: str) -> str:
    """A layout with the engine settings that were changed, e.g. `TP4 (kvDtype=fp8)`."""
    return f"{layout} ({settings})" if settings else layout


def row_of(candidate: Candidate) -> Row:
    """One candidate as a row; settings that were tried belong to what is deployed."""
    return Row(
        candidate.shape.option.engine.value,
        named(candidate.shape.layout.label(), candidate.settings),
        candidate.replicas_count,
        candidate.gpus_count,
        candidate.concurrency,
        candidate.ttft_s,
        candidate.tpot_s,
        candidate.throughput_per_gpu_tokens_per_s,
    )


def explain(rows: Sequence[Row], tier: Tier, *, chosen: Row | None = None, rule: TierRule | None = None) -> Explanation:
    """Explain `chosen` (the rule's own choice when None) against the other `rows`. Pure; simulates nothing."""
    rule = rule or default_rule()
    if chosen is None:
        index = choose(rows, tier, rule).chosen
        if index is None:
            return _nothing(rows, tier, rule)
        chosen = rows[index]
    room = headroom_frac(chosen, tier, rule)
    return Explanation(
        tier,
        chosen,
        room,
        _why(chosen, tier, rule, room),
        _blocked(rows, chosen, tier, rule),
        tuple(_runners_up(rows, chosen, tier, rule)),
    )


def _nothing(rows: Sequence[Row], tier: Tier, rule: TierRule) -> Explanation:
    binding = choose(rows, tier, rule).binding
    why = "nothing could be scored" if binding is None else f"no candidate qualifies: {binding.limit}: {binding.detail}"
    return Explanation(tier, None, None, why, None, ())


def _qualifies(row: Scored, tier: Tier, rule: TierRule) -> bool:
    return all(margin >= 0 for margin in margins(row, tier, rule).values())


def _why(chosen: Row, tier: Tier, rule: TierRule, room: float | None) -> str:
    rate = f"{chosen.throughput_per_gpu_tokens_per_s:.0f} tokens/s per GPU"
    band = f"within {rule.throughput_band_frac:.0%} of the best that qualifies"
    if room is None:
        return f"{rate}, {band}; the quickest of these, as the tier has no limit"
    nearest = min(margins(chosen, tier, rule).items(), key=lambda item: (item[1], item[0]))[0]
    return f"{rate}, {band}, with the most headroom: {room:.0%} to its nearest limit, {nearest}"


def _blocked(rows: Sequence[Row], chosen: Row, tier: Tier, rule: TierRule) -> Blocked | None:
    """The best that one limit alone keeps out: to lift it would help. Where there is none, the best that both do."""
    best: dict[tuple[str, ...], Row] = {}
    for row in rows:
        missed = tuple(sorted(name for name, margin in margins(row, tier, rule).items() if margin < 0))
        if missed and row.throughput_per_gpu_tokens_per_s > chosen.throughput_per_gpu_tokens_per_s:
            known = best.get(missed)
            best[missed] = row if known is None or _order(row) < _order(known) else known
    if not best:
        return None
    limits = min(best, key=lambda missed: (len(missed), _order(best[missed]), missed))
    row = best[limits]
    found = margins(row, tier, rule)
    return Blocked(row, limits, _relative(row, chosen), max(-found[name] for name in limits))


def _relative(row: Row, chosen: Row) -> float:
    return row.throughput_per_gpu_tokens_per_s / chosen.throughput_per_gpu_tokens_per_s - 1.0


def _runners_up(rows: Sequence[Row], chosen: Row, tier: Tier, rule: TierRule) -> list[RunnerUp]:
    """The best load of each other deployment that qualifies, the most throughput per GPU first."""
    best: dict[tuple[str, str, int], Row] = {}
    for row in rows:
        if row.deployment == chosen.deployment or not _qualifies(row, tier, rule):
            continue
        known = best.get(row.deployment)
        if known is None or _order(row) < _order(known):
            best[row.deployment] = row
    found = []
    for row in sorted(best.values(), key=_order)[:RUNNERS_UP_COUNT]:
        relative, room = _relative(row, chosen), headroom_frac(row, tier, rule)
        why = _why_not(row, chosen, tier, rule)
        found.append(RunnerUp(row, relative, room, why, _break_even(rows, chosen, row, tier, rule)))
    return found


def _order(row: Row) -> tuple[object, ...]:
    return (-row.throughput_per_gpu_tokens_per_s, row.gpus_count, row.key)


def _why_not(row: Row, chosen: Row, tier: Tier, rule: TierRule) -> str:
    relative = _relative(row, chosen)
    if relative < -rule.throughput_band_frac:
        return f"{-relative:.1%} less throughput per GPU"
    if abs(relative) < SAME_FRAC:
        side = "the same throughput per GPU"
    else:
        side = f"{abs(relative):.1%} {'more' if relative > 0 else 'less'} throughput per GPU, inside the band"
    room, chosen_room = headroom_frac(row, tier, rule), headroom_frac(chosen, tier, rule)
    if room is None or chosen_room is None:
        return f"{side}, and slower for each user"
    if abs(room - chosen_room) >= SAME_FRAC:
        return f"{side}, but {room:.1%} headroom against {chosen_room:.1%}"
    if row.gpus_count > chosen.gpus_count:
        return f"{side} and headroom, on {row.gpus_count} GPUs instead of {chosen.gpus_count}"
    return f"{side} and headroom: a tie"


def _break_even(rows: Sequence[Row], chosen: Row, other: Row, tier: Tier, rule: TierRule) -> BreakEven | None:
    """The first load, upwards from the chosen one, at which the other deployment does better within the tier.

    Loads are compared only where both were scored. None where the order holds at all of them.
    """
    mine = {row.concurrency: row for row in rows if row.deployment == chosen.deployment}
    theirs = {row.concurrency: row for row in rows if row.deployment == other.deployment}
    last = chosen.concurrency
    for load in sorted(set(mine) & set(theirs)):
        if load < chosen.concurrency:
            continue
        reason = _flips(mine[load], theirs[load], tier, rule)
        if reason and load > chosen.concurrency:
            return BreakEven(last, load, reason)
        last = load
    return None


def _flips(mine: Row, theirs: Row, tier: Tier, rule: TierRule) -> str:
    if not _qualifies(theirs, tier, rule):
        return ""
    missed: Mapping[str, float] = {name: m for name, m in margins(mine, tier, rule).items() if m < 0}
    if missed:
        return f"beyond it the chosen one misses {', '.join(sorted(missed))}"
    if _relative(theirs, mine) > rule.throughput_band_frac:
        return f"beyond it the other has {_relative(theirs, mine):.0%} more throughput per GPU"
    return ""
