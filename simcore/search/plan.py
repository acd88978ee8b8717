"""From a question (model, cluster, traffic, tiers) to an answer: sweep, front, one choice per tier, what binds.

Pure: a `Scorer` prices single engine replicas; everything else here is enumeration and choice. The answer does not
depend on the order of engines, layouts, concurrencies or anchors.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import numpy as np

from simcore.cards.layout import Layout
from simcore.errors import InputError
from simcore.prediction.bounds import Bound
from simcore.prediction.predictor import Overrides
from simcore.prediction.result import Prediction
from simcore.prediction.shapes import EngineOption, Refusal, Shape
from simcore.search import pareto
from simcore.search.replicas import replica_counts
from simcore.search.tiers import Binding, Tier, TierChoice, TierRule, choose, default_rule, default_tiers

MAX_CANDIDATES = 2_000_000


@dataclass(frozen=True)
class Candidate:
    """`replicas_count` equal engine replicas sharing `concurrency` clients, as predicted."""

    shape: Shape
    replicas_count: int
    concurrency: int
    prediction: Prediction
    throughput_tokens_per_s: float
    """Of all replicas; the replica with one client less than the others is counted as such."""
    request_rate_per_s: float | None = None
    """Arrivals of an open loop over all replicas; then `concurrency` is the mean number in flight, rounded up."""
    overrides: Overrides | None = None
    """Engine settings of a configuration that was proposed; None in a sweep, which takes the engine's own."""
    settings: str = ""
    """Engine settings that differ from the baseline, as levers and values, e.g. `kvDtype=fp8`."""

    @property
    def gpus_count(self) -> int:
        return self.shape.gpus_count * self.replicas_count

    @property
    def ttft_s(self) -> float:
        return self.prediction.ttft_s

    @property
    def tpot_s(self) -> float:
        return self.prediction.tpot_s

    @property
    def throughput_per_gpu_tokens_per_s(self) -> float:
        return self.throughput_tokens_per_s / self.gpus_count

    @property
    def interactivity_tokens_per_s(self) -> float:
        return 1.0 / self.tpot_s

    @property
    def key(self) -> tuple[object, ...]:
        shape = self.shape
        return (
            shape.option.engine.value,
            shape.option.version or "",
            shape.layout,
            self.replicas_count,
            self.concurrency,
            self.settings,
        )


@dataclass(frozen=True)
class Question:
    """What is asked of the cluster part; model, anchors and traffic are the scorer's."""

    engines: tuple[EngineOption, ...]
    gpus_per_node: int
    nodes_count: int
    gpu_budget_count: int
    concurrencies: tuple[int, ...] = ()
    request_rate_per_s: float | None = None
    """Arrivals of an open loop, in the place of `concurrencies`."""
    tiers: tuple[Tier, ...] = ()
    rule: TierRule | None = None

    def __post_init__(self) -> None:
        if not self.engines:
            raise InputError("engines", (), "name at least one engine")
        rate = self.request_rate_per_s
        if rate is not None and (self.concurrencies or not 0 < rate < math.inf):
            raise InputError("load.requestsPerMinute", rate, "be positive, and stand without `concurrencies`")
        if rate is None and (not self.concurrencies or min(self.concurrencies) < 1):
            raise InputError("load.concurrencies", self.concurrencies, "hold at least one positive number")
        if not 1 <= self.gpu_budget_count <= self.gpus_per_node * self.nodes_count:
            raise InputError(
                "cluster.gpuBudget",
                self.gpu_budget_count,
                f"be 1 to {self.gpus_per_node * self.nodes_count}, the GPUs of the cluster",
            )
        names = [tier.name for tier in self.tiers]
        if len(set(names)) != len(names):
            raise InputError("tiers", names, "have unique names")


@runtime_checkable
class Bounding(Protocol):
    """A scorer that knows what a replica cannot beat."""

    def bound(self, shape: Shape, concurrency: int) -> Bound:
        """Limits of what `predict` says of the same arguments."""
        ...


class Shaping(Protocol):
    """Knows which replicas can run."""

    def shapes(
        self, option: EngineOption, *, gpus_per_node: int, nodes_count: int
    ) -> tuple[list[Shape], list[Refusal]]:
        """Layouts of `option` that are legal, fit in memory and have a step cost; and the others with reasons."""
        ...


class Scorer(Shaping, Protocol):
    """Prices one engine replica. Implemented by `simcore.prediction.predictor`."""

    def predict(self, shape: Shape, concurrency: int) -> Prediction:
        """The prediction of one replica that serves `concurrency` clients."""
        ...


@dataclass(frozen=True)
class Answer:
    """All candidates in a fixed order, the front among them, and the choice of each tier."""

    candidates: tuple[Candidate, ...]
    front: tuple[int, ...]
    choices: tuple[TierChoice, ...]
    refusals: tuple[Refusal, ...]
    simulations_count: int
    pruned_count: int = 0
    """Candidates that were not simulated: even at their bounds they could be in no front, choice or short list."""

    @property
    def is_feasible(self) -> bool:
        """Whether at least one tier has a configuration."""
        return any(choice.chosen is not None for choice in self.choices)


Progress = Callable[[int, int, "Candidate | None"], None]
"""Called with (scored, total, best so far by throughput per GPU)."""
Chooser = Callable[[Sequence[Candidate], Tier, TierRule], TierChoice]
"""Picks for one tier; `tiers.choose` is the paper's."""

Item = tuple[Shape, int, int]
"""A candidate to be scored: shape, concurrency, replicas."""


@dataclass(frozen=True)
class Work:
    """All candidates of a question in their fixed order, and the layouts that are none."""

    items: tuple[Item, ...]
    refusals: tuple[Refusal, ...]


def work_of(question: Question, scorer: Scorer) -> Work:
    """Every engine, layout, concurrency and replica count. Raises InputError."""
    shapes, refusals = shapes_of(question, scorer)
    items = tuple(
        (shape, concurrency, count)
        for shape in shapes
        for concurrency in sorted(set(question.concurrencies))
        for count in replica_counts(concurrency, question.gpu_budget_count // shape.gpus_count)
    )
    if len(items) > MAX_CANDIDATES:
        raise InputError("load.concurrencies", len(items), f"make at most {MAX_CANDIDATES} candidates")
    return Work(items, refusals)


def shard_of(number: int, count: int) -> int:
    """Whose turn it is to take piece `number` of a list whose neighbours are much alike: there and back again, so that
    no shard always gets the longer one of a pair."""
    turn, place = divmod(number, count)
    return place if turn % 2 == 0 else count - 1 - place


def shapes_of(question: Question, scorer: Shaping) -> tuple[list[Shape], tuple[Refusal, ...]]:
    """Replicas that can run within the budget, in a fixed order; the other layouts with their reasons."""
    shapes: list[Shape] = []
    refusals: list[Refusal] = []

    def place(option: EngineOption) -> tuple[str, str, int]:
        return option.engine.value, option.version or "", option.host_kv_gibibytes_per_gpu

    for option in sorted(question.engines, key=place):
        found, refused = scorer.shapes(option, gpus_per_node=question.gpus_per_node, nodes_count=question.nodes_count)
        for shape in found:
            if shape.gpus_count <= question.gpu_budget_count:
                shapes.append(shape)
            else:
                label, budget = shape.layout.label(), question.gpu_budget_count
                detail = f"{label}: needs {shape.gpus_count} GPUs of a budget of {budget}"
                refused.append(Refusal(option, shape.layout, "gpu-budget", detail))
        refusals.extend(refused)
    return sorted(shapes, key=lambda shape: shape.key), tuple(refusals)


def answer(
    question: Question, scorer: Scorer, progress: Progress | None = None, *, chooser: Chooser | None = None
) -> Answer:
    """Sweep all engines, layouts, replica counts and concurrencies; choose per tier. Raises InputError.

    A `chooser` may read other figures than the bounds know, so with one every candidate is simulated.
    """
    work = work_of(question, scorer)
    bounds = scorer if chooser is None and isinstance(scorer, Bounding) else None
    rule = question.rule or default_rule()
    candidates, simulations_count = score(work.items, scorer, progress, bounds=bounds, rule=rule)
    return chosen(question, candidates, work.refusals, simulations_count, len(work.items) - len(candidates), chooser)


def chosen(
    question: Question,
    candidates: Sequence[Candidate],
    refusals: Sequence[Refusal],
    simulations_count: int,
    pruned_count: int,
    chooser: Chooser | None = None,
) -> Answer:
    """The answer once all candidates are scored: the front, and one choice per tier."""
    rule, pick = question.rule or default_rule(), chooser or choose
    choices = tuple(_explained(pick(candidates, tier, rule), refusals) for tier in question.tiers or default_tiers())
    return Answer(tuple(candidates), front_of(candidates), choices, tuple(refusals), simulations_count, pruned_count)


def candidate_of(
    shape: Shape, replicas_count: int, concurrency: int, replica: Callable[[Shape, int], Prediction]
) -> Candidate:
    """`replicas_count` replicas that share `concurrency` clients; `replica` prices one of them at its own clients.

    The busiest replica decides what a user may see; throughput counts each replica at its own share.
    """
    share, full = math.ceil(concurrency / replicas_count), concurrency % replicas_count or replicas_count
    prediction = replica(shape, share)
    throughput = full * prediction.throughput_tokens_per_s
    if full < replicas_count and share > 1:
        throughput += (replicas_count - full) * replica(shape, share - 1).throughput_tokens_per_s
    return Candidate(shape, replicas_count, concurrency, prediction, throughput, settings=settings_of(shape))


def settings_of(shape: Shape) -> str:
    """What a sweep changes of an engine's settings, as a lever and its value."""
    return f"kvOffload.hostGibibytes={shape.host_kv_gibibytes}" if shape.host_kv_gibibytes else ""


def score(
    items: Sequence[Item],
    scorer: Scorer,
    progress: Progress | None = None,
    *,
    bounds: Bounding | None,
    rule: TierRule,
) -> tuple[list[Candidate], int]:
    """Candidates of `items` in their order, and how many simulations they took; with `bounds` hopeless ones are left
    out."""
    cache: dict[tuple[int, int], Prediction] = {}
    best: Candidate | None = None
    candidates: list[Candidate] = []
    limits = _Limits(bounds, rule.short_list_count) if bounds is not None else None

    def replica(shape: Shape, share: int) -> Prediction:
        key = (id(shape), share)
        if key not in cache:
            cache[key] = scorer.predict(shape, share)
        return cache[key]

    for number, (shape, concurrency, count) in enumerate(items, start=1):
        is_known = (id(shape), math.ceil(concurrency / count)) in cache
        if limits is None or is_known or not limits.can_prune(shape, count, concurrency):
            candidate = candidate_of(shape, count, concurrency, replica)
            candidates.append(candidate)
            if limits is not None:
                limits.add(candidate)
            if best is None or _faster(candidate, best):
                best = candidate
        if progress is not None:
            progress(number, len(items), best)
    return candidates, len(cache)


class _Limits:
    """Which candidates need no simulation, because enough scored ones beat even their bounds.

    With more throughput per GPU than the bound and no worse elsewhere, a scored candidate meets every tier that this
    one meets, has as much headroom and comes first in every order: so `enough_count` of them keep it out of a short
    list of that length, one keeps it from being chosen, nearest or on the front.
    """

    def __init__(self, scorer: Bounding, enough_count: int) -> None:
        self._scorer, self._enough_count = scorer, enough_count
        self._bounds: dict[tuple[int, int], Bound] = {}
        self._rows = np.empty((64, 4))
        self._count = 0

    def add(self, candidate: Candidate) -> None:
        """A scored candidate, to judge others by."""
        if self._count == len(self._rows):
            self._rows = np.vstack([self._rows, np.empty_like(self._rows)])
        throughput = -candidate.throughput_per_gpu_tokens_per_s
        self._rows[self._count] = (throughput, candidate.tpot_s, candidate.ttft_s, candidate.gpus_count)
        self._count += 1

    def can_prune(self, shape: Shape, replicas_count: int, concurrency: int) -> bool:
        """Whether the candidate can be left out."""
        share, full = math.ceil(concurrency / replicas_count), concurrency % replicas_count or replicas_count
        bound = self._bound(shape, share)
        throughput = full * bound.throughput_tokens_per_s
        if full < replicas_count and share > 1:
            throughput += (replicas_count - full) * self._bound(shape, share - 1).throughput_tokens_per_s
        gpus = shape.gpus_count * replicas_count
        rows = self._rows[: self._count]
        better = (rows[:, 0] < -throughput / gpus) & (rows[:, 1:] <= (bound.tpot_s, bound.ttft_s, gpus)).all(axis=1)
        return int(better.sum()) >= self._enough_count

    def _bound(self, shape: Shape, share: int) -> Bound:
        key = (id(shape), share)
        if key not in self._bounds:
            self._bounds[key] = self._scorer.bound(shape, share)
        return self._bounds[key]


def _faster(one: Candidate, other: Candidate) -> bool:
    return one.throughput_per_gpu_tokens_per_s > other.throughput_per_gpu_tokens_per_s


def front_of(candidates: Sequence[Candidate]) -> tuple[int, ...]:
    """Indexes of the Pareto front: throughput per GPU and interactivity up, TTFT and GPUs down."""
    if not candidates:
        return ()
    values = np.array(
        [[c.throughput_per_gpu_tokens_per_s, c.interactivity_tokens_per_s, c.ttft_s, c.gpus_count] for c in candidates]
    )
    found = pareto.pareto_front(values, maximise=(True, True, False, False))
    return tuple(int(index) for index in found)


_REFUSAL_ORDER = ("overload", "gpu-budget", "anchor", "memory", "legality")
"""When nothing could be scored, the limit nearest to an answer binds: a layout is refused for one only if it passed all
that come after it. So memory binds when everything legal died of it (public case B04), and not before."""


def _explained(choice: TierChoice, refusals: Sequence[Refusal]) -> TierChoice:
    """Without any candidate the limit is why none could be scored, never the latency target (public case B04)."""
    if choice.chosen is not None or choice.nearest is not None:
        return choice
    counts = Counter(refusal.rule for refusal in refusals)
    for rule in _REFUSAL_ORDER:
        if counts[rule]:
            # The nearest first: the fewest GPUs that would do, but the most that do not.
            widest_first = -1 if rule == "memory" else 1
            found = sorted(
                (r for r in refusals if r.rule == rule),
                key=lambda r: (r.short_frac, widest_first * _width(r.layout), r.layout, r.detail),
            )
            details = list(dict.fromkeys(refusal.detail for refusal in found))
            shown = "; ".join(details[:4]) + ("; …" if len(details) > 4 else "")
            nearest = None if rule == "legality" else found[0]
            return replace(choice, binding=Binding(rule, 0.0, 0.0, shown, nearest))
    return replace(choice, binding=Binding("legality", 0.0, 0.0, "no engine has a layout for this cluster"))


def _width(layout: Layout) -> int:
    return layout.tensor_parallel * layout.pipeline_parallel * layout.data_parallel


def refusal_counts(refusals: Sequence[Refusal]) -> Mapping[str, int]:
    """Refused layouts by rule."""
    return dict(sorted(Counter(refusal.rule for refusal in refusals).items()))
