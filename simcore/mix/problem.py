"""The mix over a fleet: slots (a model in a latency tier) with demand, options for each, one GPU budget (paper 4.1)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from simcore.errors import InputError
from simcore.search.plan import Answer, Candidate
from simcore.search.tiers import TierChoice, TierRule, default_rule, margins

MAX_SLOTS = 512
MAX_OPTIONS = 64
"""Of one slot."""
SERVED_TOLERANCE = 2e-6
"""Share of a demand that may be missing: the solver keeps its constraints to 1e-6."""


@dataclass(frozen=True)
class Option:
    """One engine replica that keeps the tier's limits, at the load it was predicted for."""

    label: str
    """Unique within the slot."""
    gpus_count: int
    capacity_tokens_per_s: float
    """Output tokens of one replica within the tier's limits."""

    def __post_init__(self) -> None:
        if not isinstance(self.gpus_count, int) or self.gpus_count < 1:
            raise InputError("options.gpus", self.gpus_count, "be a positive whole number")
        if not (math.isfinite(self.capacity_tokens_per_s) and self.capacity_tokens_per_s > 0):
            raise InputError("options.tokensPerSecond", self.capacity_tokens_per_s, "be positive")


@dataclass(frozen=True)
class Slot:
    """One model in one tier. One option is chosen for it; options are listed the preferred first."""

    model: str
    tier: str
    demand_tokens_per_s: float
    options: tuple[Option, ...]
    """Empty where no configuration keeps the tier's limits: the demand then stays unserved."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.demand_tokens_per_s) and self.demand_tokens_per_s >= 0):
            raise InputError("demand.tokensPerSecond", self.demand_tokens_per_s, "be 0 or more")
        labels = [option.label for option in self.options]
        if len(set(labels)) != len(labels) or len(labels) > MAX_OPTIONS:
            raise InputError("options", labels[:8], f"be at most {MAX_OPTIONS} and have labels of their own")

    @property
    def key(self) -> tuple[str, str]:
        return self.model, self.tier


@dataclass(frozen=True)
class Fleet:
    """All slots and the GPUs they share."""

    slots: tuple[Slot, ...]
    gpu_budget_count: int

    def __post_init__(self) -> None:
        keys = [slot.key for slot in self.slots]
        if len(set(keys)) != len(keys) or not 1 <= len(keys) <= MAX_SLOTS:
            raise InputError("slots", keys[:8], f"be 1 to {MAX_SLOTS}, each model and tier once")
        if not isinstance(self.gpu_budget_count, int) or self.gpu_budget_count < 0:
            raise InputError("gpuBudget", self.gpu_budget_count, "be a whole number of at least 0")


@dataclass(frozen=True)
class Allocation:
    """What a slot gets."""

    slot: Slot
    option: Option | None
    """None = nothing of this slot is served."""
    replicas_count: int

    @property
    def gpus_count(self) -> int:
        return self.option.gpus_count * self.replicas_count if self.option else 0

    @property
    def served_tokens_per_s(self) -> float:
        """Never more than the demand."""
        capacity = self.option.capacity_tokens_per_s * self.replicas_count if self.option else 0.0
        return min(self.slot.demand_tokens_per_s, capacity)

    @property
    def unserved_tokens_per_s(self) -> float:
        return self.slot.demand_tokens_per_s - self.served_tokens_per_s

    @property
    def is_served(self) -> bool:
        """Whether the demand is served, to the solver's tolerance."""
        return self.unserved_tokens_per_s <= SERVED_TOLERANCE * self.slot.demand_tokens_per_s


@dataclass(frozen=True)
class Mix:
    """The answer: the most demand that the budget serves, with the fewest GPUs that serve it."""

    allocations: tuple[Allocation, ...]
    """One per slot, by model and tier."""
    bound_tokens_per_s: float
    """Demand that the linear relaxation serves: no mix serves more."""

    @property
    def gpus_count(self) -> int:
        return sum(allocation.gpus_count for allocation in self.allocations)

    @property
    def served_tokens_per_s(self) -> float:
        return sum(allocation.served_tokens_per_s for allocation in self.allocations)

    @property
    def is_complete(self) -> bool:
        """Whether all demand is served."""
        return all(item.is_served for item in self.allocations)

    def binding(self, fleet: Fleet) -> dict[tuple[str, str], str]:
        """Why demand stays unserved, by slot: no configuration keeps the tier, or the GPU budget."""
        found = {}
        for item in self.allocations:
            if not item.is_served:
                found[item.slot.key] = (
                    "tier: no configuration keeps its limits"
                    if not item.slot.options
                    else f"gpu-budget: {self.gpus_count} of {fleet.gpu_budget_count} GPUs are in use; "
                    f"{item.unserved_tokens_per_s:.0f} tokens/s stay unserved"
                )
        return found


def candidates_of(answer: Answer, choice: TierChoice, rule: TierRule | None = None) -> tuple[Candidate, ...]:
    """What a slot may be served with: the tier's choice, its short list, and the best of every replica size.

    The sizes beside the best let the program fill a budget that whole replicas of the best would leave in part unused.
    One replica of each is meant, at the load it was predicted for.
    """
    if choice.chosen is None:
        return ()
    rule = rule or default_rule()
    fit = [c for c in answer.candidates if all(m >= 0 for m in margins(c, choice.tier, rule).values())]
    sizes: dict[int, Candidate] = {}
    for candidate in sorted(fit, key=lambda c: (-_replica_rate_per_gpu(c), c.key)):
        sizes.setdefault(candidate.shape.gpus_count, candidate)
    listed = [answer.candidates[index] for index in (choice.chosen, *choice.short_list)]
    found: dict[str, Candidate] = {}
    for candidate in (*listed, *(sizes[size] for size in sorted(sizes))):
        found.setdefault(option_of(candidate).label, candidate)
    return tuple(found.values())


def option_of(candidate: Candidate) -> Option:
    """One replica of a candidate as an option."""
    shape, prediction = candidate.shape, candidate.prediction
    label = f"{shape.option.engine.value} {shape.layout.label()} at {prediction.concurrency} clients"
    return Option(label, shape.gpus_count, prediction.throughput_tokens_per_s)


def _replica_rate_per_gpu(candidate: Candidate) -> float:
    return candidate.prediction.throughput_tokens_per_s / candidate.shape.gpus_count
