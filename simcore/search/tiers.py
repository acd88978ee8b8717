"""The tier choice of section 4.1: qualify at half the TTFT limit, take the 5 % band, pick the most headroom."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Protocol

from simcore.data.loader import read_data
from simcore.errors import InputError
from simcore.prediction.shapes import Refusal


@dataclass(frozen=True)
class Tier:
    """A class of users: what each of them must get."""

    name: str
    min_interactivity_tokens_per_s: float
    """Tokens per second and user, 1/TPOT; 0 = no limit."""
    max_ttft_s: float | None
    """None = no limit."""

    def __post_init__(self) -> None:
        if not self.min_interactivity_tokens_per_s >= 0:
            raise InputError("tiers.minTokensPerSecondPerUser", self.min_interactivity_tokens_per_s, "be 0 or more")
        if self.max_ttft_s is not None and not self.max_ttft_s > 0:
            raise InputError("tiers.maxTtftMilliseconds", self.max_ttft_s, "be positive")


@dataclass(frozen=True)
class TierRule:
    """The three numbers of the rule; from `simcore/data/tiers.yaml`."""

    ttft_margin_frac: float
    throughput_band_frac: float
    short_list_count: int


class Scored(Protocol):
    """What the choice reads of a candidate; predictions qualify at their point value."""

    @property
    def ttft_s(self) -> float: ...
    @property
    def tpot_s(self) -> float: ...
    @property
    def throughput_per_gpu_tokens_per_s(self) -> float: ...
    @property
    def gpus_count(self) -> int: ...
    @property
    def key(self) -> tuple[object, ...]: ...


@dataclass(frozen=True)
class Binding:
    """The limit that stops a better answer, with the best value reached."""

    limit: str
    """`memory`, `ttft`, `interactivity`, `gpu-budget`, `legality`, `anchor` or `none`."""
    limit_value: float
    reached_value: float
    detail: str
    refused: Refusal | None = None
    """The layout that comes nearest, where none could be priced."""


@dataclass(frozen=True)
class TierChoice:
    """The answer for one tier: a choice and its short list, or the nearest candidate and the limit it breaks."""

    tier: Tier
    chosen: int | None
    """Index into the candidates."""
    headroom_frac: float | None
    """Smallest margin to the tier's own limits at the chosen point; None where the tier has none."""
    short_list: tuple[int, ...]
    nearest: int | None
    binding: Binding | None


@cache
def _load() -> tuple[tuple[Tier, ...], TierRule]:
    document = read_data("tiers.yaml")
    return tuple(Tier(**row) for row in document["tiers"]), TierRule(**document["rule"])


def default_tiers() -> tuple[Tier, ...]:
    """The paper's four tiers (Table 15)."""
    return _load()[0]


def default_rule() -> TierRule:
    """The paper's rule (section 4.1)."""
    return _load()[1]


def margins(candidate: Scored, tier: Tier, rule: TierRule) -> dict[str, float]:
    """Relative margin to each limit the tier sets, at the qualifying threshold; negative = misses it."""
    found: dict[str, float] = {}
    if tier.min_interactivity_tokens_per_s > 0:
        found["interactivity"] = 1.0 / (candidate.tpot_s * tier.min_interactivity_tokens_per_s) - 1.0
    if tier.max_ttft_s is not None:
        found["ttft"] = 1.0 - candidate.ttft_s / (rule.ttft_margin_frac * tier.max_ttft_s)
    return found


def headroom_frac(candidate: Scored, tier: Tier, rule: TierRule) -> float | None:
    """Smallest margin to the tier's limits; None where it has none."""
    return min(margins(candidate, tier, rule).values(), default=None)


def promise_flags(interval80: Mapping[str, tuple[float, float]], tier: Tier) -> tuple[str, ...]:
    """Flags of a choice that meets `tier` by its point values only: the bad end of an 80 % interval does not.

    `interval80` has (low, high) in seconds for `ttft` and `tpot`. The promise is the tier's own TTFT, not the half of
    it by which candidates qualify.
    """
    slow = interval80["tpot"][1] * tier.min_interactivity_tokens_per_s > 1.0
    late = tier.max_ttft_s is not None and interval80["ttft"][1] > tier.max_ttft_s
    return ("limit-inside-interval",) if slow or late else ()


def _miss(candidate: Scored, tier: Tier, rule: TierRule) -> float:
    return sum(max(0.0, -margin) for margin in margins(candidate, tier, rule).values())


def choose(candidates: Sequence[Scored], tier: Tier, rule: TierRule | None = None) -> TierChoice:
    """Pick for one tier. Independent of the candidates' order: ties fall to fewer GPUs, then to the candidate's key."""
    rule = rule or default_rule()
    order = sorted(range(len(candidates)), key=lambda i: _preference(candidates[i]))
    fit = [i for i in order if all(margin >= 0 for margin in margins(candidates[i], tier, rule).values())]
    if not fit:
        nearest = min(order, key=lambda i: _miss(candidates[i], tier, rule), default=None)
        return TierChoice(tier, None, None, (), nearest, _binding(candidates, nearest, tier, rule))
    best = candidates[fit[0]].throughput_per_gpu_tokens_per_s
    floor = best * (1.0 - rule.throughput_band_frac)
    band = [i for i in fit if candidates[i].throughput_per_gpu_tokens_per_s >= floor]
    chosen = max(band, key=lambda i: (_headroom_or_speed(candidates[i], tier, rule), -order.index(i)))
    short_list = tuple(fit[: rule.short_list_count])
    return TierChoice(tier, chosen, headroom_frac(candidates[chosen], tier, rule), short_list, None, None)


def _preference(candidate: Scored) -> tuple[object, ...]:
    return (-candidate.throughput_per_gpu_tokens_per_s, candidate.gpus_count, candidate.key)


def _headroom_or_speed(candidate: Scored, tier: Tier, rule: TierRule) -> float:
    """Headroom where the tier has limits; else the per-user rate, so that a limitless tier prefers the quicker."""
    room = headroom_frac(candidate, tier, rule)
    return room if room is not None else 1.0 / candidate.tpot_s


def _binding(candidates: Sequence[Scored], nearest: int | None, tier: Tier, rule: TierRule) -> Binding | None:
    if nearest is None:
        return None
    candidate = candidates[nearest]
    found = margins(candidate, tier, rule)
    worst = min(found, key=lambda name: (found[name], name))
    if worst == "interactivity":
        reached, limit = 1.0 / candidate.tpot_s, tier.min_interactivity_tokens_per_s
        detail = f"reaches {reached:.1f} tokens/s per user of the {limit:g} the tier asks"
    else:
        limit = rule.ttft_margin_frac * (tier.max_ttft_s or 0.0)
        reached = candidate.ttft_s
        detail = f"TTFT {reached:.3f} s; the tier qualifies at {limit:g} s, half its limit of {tier.max_ttft_s:g} s"
    return Binding(worst, limit, reached, detail)
