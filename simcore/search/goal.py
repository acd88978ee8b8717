"""A tier's choice by one of the 24 objectives, within latency budgets; the paper's rule is `tiers.choose`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from simcore.search.objectives import Objective, Reading, Slo, figure
from simcore.search.plan import Candidate, Scorer
from simcore.search.predictors import Predictors
from simcore.search.tiers import Binding, Tier, TierChoice, TierRule, choose, headroom_frac, margins


class Goal:
    """Chooses, among the candidates that meet a tier and the SLO, the one with the best figure.

    Without an objective the paper's rule decides among those that keep the SLO.
    """

    def __init__(
        self,
        predictors: Predictors,
        scorer: Scorer,
        objective: Objective | None,
        slo: Slo,
        *,
        prompt_tokens: int,
        output_tokens: int,
    ) -> None:
        """`prompt_tokens` and `output_tokens` of a mean request."""
        self._predictors, self._scorer, self.objective, self.slo = predictors, scorer, objective, slo
        self._prompt_tokens, self._output_tokens = prompt_tokens, output_tokens
        self._figures: dict[tuple[object, ...], float | None] = {}

    def choose(self, candidates: Sequence[Candidate], tier: Tier, rule: TierRule) -> TierChoice:
        """The choice for one tier; ties fall as the paper's rule orders them."""
        kept = [index for index, candidate in enumerate(candidates) if not self.slo.misses(candidate.prediction)]
        if candidates and not kept:
            return self._slo_binds(candidates, tier)
        found = choose([candidates[index] for index in kept], tier, rule)
        choice = replace(
            found,
            chosen=None if found.chosen is None else kept[found.chosen],
            short_list=tuple(kept[index] for index in found.short_list),
            nearest=None if found.nearest is None else kept[found.nearest],
        )
        if self.objective is None or choice.chosen is None:
            return choice
        return self._by_figure(candidates, kept, choice, tier, rule)

    def figure(self, candidate: Candidate) -> float | None:
        """The objective's figure of a candidate, in its unit; None where it does not exist."""
        if self.objective is None:
            return None
        if candidate.key not in self._figures:
            shape, predictor = candidate.shape, self._predictors.of(candidate)
            scorer = self._scorer if candidate.overrides is None else predictor
            reading = Reading(
                candidate,
                predictor.facts(shape),
                self._prompt_tokens,
                self._output_tokens,
                self.slo,
                lambda clients: scorer.predict(shape, clients),
            )
            self._figures[candidate.key] = figure(self.objective.name, reading)
        return self._figures[candidate.key]

    def _by_figure(
        self, candidates: Sequence[Candidate], kept: Sequence[int], choice: TierChoice, tier: Tier, rule: TierRule
    ) -> TierChoice:
        objective = self.objective
        assert objective is not None  # noqa: S101 - the caller has branched on it
        ranked = []
        for index in kept:
            candidate = candidates[index]
            if any(margin < 0 for margin in margins(candidate, tier, rule).values()):
                continue
            value = self.figure(candidate)
            if value is not None:
                throughput = candidate.throughput_per_gpu_tokens_per_s
                order = (-objective.score(value), -throughput, candidate.gpus_count, candidate.key)
                ranked.append((order, index))
        if not ranked:
            detail = f"no configuration has a figure for {objective.name}"
            return TierChoice(tier, None, None, (), choice.chosen, Binding("objective", 0.0, 0.0, detail))
        best = [index for _, index in sorted(ranked)]
        room = headroom_frac(candidates[best[0]], tier, rule)
        return TierChoice(tier, best[0], room, tuple(best[: rule.short_list_count]), None, None)

    def _slo_binds(self, candidates: Sequence[Candidate], tier: Tier) -> TierChoice:
        """All miss the SLO: the nearest is the one that misses by the smallest sum of shares."""

        def miss(index: int) -> tuple[float, object]:
            return self.slo.miss_frac(candidates[index].prediction), candidates[index].key

        nearest = min(range(len(candidates)), key=miss)
        detail = "; ".join(self.slo.misses(candidates[nearest].prediction))
        return TierChoice(tier, None, None, (), nearest, Binding("slo", 0.0, 0.0, detail))
