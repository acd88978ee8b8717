"""Colocated or disaggregated (paper Table 3): prefill and decode pools, simulated, against a sweep's own candidates."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from simcore.des.simulate import simulate
from simcore.errors import InputError
from simcore.laws.handoff import HandoffBackend, handoff_link
from simcore.legality import LegalityCase, Verdict, judge_pair
from simcore.prediction.pools import DecodeOf, PoolOf, split_deployment
from simcore.prediction.predictor import Predictor
from simcore.prediction.shapes import EngineOption, Shape
from simcore.prediction.traffic import LoadInput, WorkloadInput, workload_of
from simcore.search.plan import Answer, Candidate, Question
from simcore.search.tiers import Scored, Tier, TierRule, default_rule, margins

MOST_REPLICAS = 4
"""Of one pool: ratios of prefill to decode replicas from 1:4 to 4:1."""
MAX_SPLITS = 200_000
Kind = TypeVar("Kind", bound=Scored)


@dataclass(frozen=True)
class SplitCandidate:
    """A prefill and a decode pool of equal replicas each, under `concurrency` clients, as simulated."""

    prefill: Shape
    prefill_replicas_count: int
    decode: Shape
    decode_replicas_count: int
    concurrency: int
    backend: HandoffBackend
    ttft_s: float
    """Mean from arrival to the first token, which decode emits after the hand-off."""
    tpot_s: float
    throughput_tokens_per_s: float
    flags: tuple[str, ...]

    @property
    def gpus_count(self) -> int:
        """Of both pools."""
        prefill = self.prefill.gpus_count * self.prefill_replicas_count
        return prefill + self.decode.gpus_count * self.decode_replicas_count

    @property
    def throughput_per_gpu_tokens_per_s(self) -> float:
        return self.throughput_tokens_per_s / self.gpus_count

    @property
    def label(self) -> str:
        """e.g. `SGLang 2 x TP4 prefill + 1 x TP8 decode`."""
        return (
            f"{self.prefill.option.engine.value} {self.prefill_replicas_count} x {self.prefill.layout.label()} prefill "
            f"+ {self.decode_replicas_count} x {self.decode.layout.label()} decode"
        )

    @property
    def key(self) -> tuple[object, ...]:
        return (
            self.prefill.option.engine.value,
            self.prefill.option.version or "",
            self.prefill.layout,
            self.decode.layout,
            self.prefill_replicas_count,
            self.decode_replicas_count,
            self.concurrency,
        )


@dataclass(frozen=True)
class Comparison:
    """One tier: the most throughput per GPU of each kind that qualifies."""

    tier: Tier
    colocated: Candidate | None
    split: SplitCandidate | None

    @property
    def gain_factor(self) -> float | None:
        """Split over colocated; None where one of them meets no tier."""
        if self.colocated is None or self.split is None:
            return None
        return self.split.throughput_per_gpu_tokens_per_s / self.colocated.throughput_per_gpu_tokens_per_s


def split_candidates(question: Question, predictor: Predictor, backend: HandoffBackend) -> list[SplitCandidate]:
    """All legal pairs of layouts of one engine, up to four replicas a pool, within the GPU budget, at every load.

    Pools are priced by the step costs of the colocated shapes; each has its own scheduler and KV budget, and the
    hand-off queues on the prefill replica's link (App. D.4). Raises InputError when there are too many.
    """
    work = [
        (prefill, ours, decode, theirs, load)
        for option in sorted(question.engines, key=lambda o: (o.engine.value, o.version or ""))
        for prefill, decode in _pairs(question, predictor, option)
        for ours, theirs in _counts(prefill, decode, question.gpu_budget_count)
        for load in sorted(set(question.concurrencies))
        if load >= max(ours, theirs)
    ]
    if len(work) > MAX_SPLITS:
        raise InputError("engines.layouts", len(work), f"make at most {MAX_SPLITS} splits", "name the layouts to pair")
    found = (_simulated(predictor, backend, *item) for item in work)
    return [candidate for candidate in found if candidate is not None]


def _pairs(question: Question, predictor: Predictor, option: EngineOption) -> Iterator[tuple[Shape, Shape]]:
    shapes, _ = predictor.shapes(option, gpus_per_node=question.gpus_per_node, nodes_count=question.nodes_count)
    # A pipeline in a pool of its own is not simulated against measurements anywhere; it is left out.
    flat = sorted((s for s in shapes if s.layout.pipeline_parallel == 1), key=lambda s: s.layout)
    setting = predictor.setting
    for prefill in flat:
        for decode in flat:
            if prefill.gpus_count + decode.gpus_count > question.gpu_budget_count:
                continue
            cases = [
                LegalityCase(
                    card=setting.card,
                    engine=option.engine,
                    layout=shape.layout,
                    version=predictor.engine_version(shape),
                    accelerator=setting.accelerator,
                    gpus_per_node=question.gpus_per_node,
                )
                for shape in (prefill, decode)
            ]
            if judge_pair(*cases).verdict is not Verdict.ILLEGAL:
                yield prefill, decode


def _counts(prefill: Shape, decode: Shape, budget: int) -> Iterator[tuple[int, int]]:
    """Replica counts without common divisor: a multiple of a split is two splits."""
    for ours in range(1, MOST_REPLICAS + 1):
        for theirs in range(1, MOST_REPLICAS + 1):
            gpus = ours * prefill.gpus_count + theirs * decode.gpus_count
            if gpus <= budget and math.gcd(ours, theirs) == 1:
                yield ours, theirs


def _simulated(
    predictor: Predictor, backend: HandoffBackend, prefill: Shape, ours: int, decode: Shape, theirs: int, load: int
) -> SplitCandidate | None:
    """None where a request does not fit a pool's KV cache."""
    setting = predictor.setting
    sides = PoolOf(predictor, prefill, ours), DecodeOf(predictor, decode, theirs, backend)
    fixed = {"promptTokens": setting.prompt_tokens, "outputTokens": setting.output_tokens}
    workload = workload_of(WorkloadInput.model_validate({"fixed": fixed}), LoadInput(concurrency=load))
    run = simulate(split_deployment(*sides, most=load), workload)
    if run.rejected_count or run.ttft.mean_s is None:
        return None
    flags = {*predictor.facts(prefill).cost.flags, *predictor.facts(decode).cost.flags}
    if not handoff_link(backend, layers_count=setting.card.layers_count).is_measured:
        flags.add("handoff-unmeasured")
    return SplitCandidate(
        prefill,
        ours,
        decode,
        theirs,
        load,
        backend,
        run.ttft.mean_s,
        run.tpot.mean_s or 0.0,
        run.output_tokens_per_s,
        tuple(sorted(flags)),
    )


def compare(
    answer: Answer, splits: Sequence[SplitCandidate], tiers: Sequence[Tier], rule: TierRule | None = None
) -> tuple[Comparison, ...]:
    """Per tier, the best colocated candidate of `answer` and the best split that qualify."""
    chosen = rule or default_rule()
    return tuple(
        Comparison(tier, _best(answer.candidates, tier, chosen), _best(splits, tier, chosen)) for tier in tiers
    )


def _best(found: Sequence[Kind], tier: Tier, rule: TierRule) -> Kind | None:
    fit = [one for one in found if all(margin >= 0 for margin in margins(one, tier, rule).values())]
    return min(fit, key=lambda c: (-c.throughput_per_gpu_tokens_per_s, c.gpus_count, c.key), default=None)
