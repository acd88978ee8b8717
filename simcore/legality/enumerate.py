"""Every structurally legal layout of one engine replica within a number of GPUs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from simcore.cards.layout import Engine, Layout, ResolvedLayout
from simcore.legality.case import Judgement, LegalityCase
from simcore.legality.judge import divides_heads, judge
from simcore.legality.table import Verdict


@dataclass(frozen=True)
class JudgedLayout:
    """A layout with what the engine makes of it and how it was judged."""

    layout: Layout
    widths: ResolvedLayout
    judgement: Judgement

    @property
    def verdict(self) -> Verdict:
        return self.judgement.verdict


def enumerate_layouts(
    case: LegalityCase, *, gpus: int, largest_pipeline: int | None = None
) -> tuple[JudgedLayout, ...]:
    """Legal and unverified layouts of up to `gpus` GPUs, narrowest first; `case.layout` is ignored.

    Complete over TP, PP, attention DP (the engine's own way to say it) and EP, under the rules of `judge`; replicas
    are left to the caller, so a dense model's data parallelism is not enumerated.
    """
    budget = replace(case, gpu_budget=gpus, split=None)
    found = []
    for layout in _candidates(budget, gpus, largest_pipeline or case.card.layers_count):
        candidate = replace(budget, layout=layout)
        if candidate.widths.gpus_count > gpus:
            continue
        judgement = judge(candidate)
        if judgement.verdict is not Verdict.ILLEGAL:
            found.append(JudgedLayout(layout, candidate.widths, judgement))
    return tuple(sorted(found, key=lambda item: (item.widths.gpus_count, item.layout)))


def _candidates(case: LegalityCase, gpus: int, largest_pipeline: int) -> Iterator[Layout]:
    """Layouts that the engine's flags can say, before the tensor rules; TP widths that cut no head are left out."""
    moe, engine = case.card.is_moe, case.engine
    for tp in range(1, gpus + 1):
        for adp, dp in _attention_dp(case, tp, gpus):
            if not divides_heads(case.card, max(1, tp // adp)):
                continue
            for ep in _expert_widths(engine, tp, dp) if moe else (1,):
                for pp in range(1, min(gpus // (tp * dp), largest_pipeline) + 1):
                    yield Layout(tp, pp, dp, ep, adp)


def _attention_dp(case: LegalityCase, tp: int, gpus: int) -> Iterator[tuple[int, int]]:
    """(attention DP inside the TP group, data-parallel ranks) pairs of an engine."""
    yield 1, 1
    if case.engine is Engine.VLLM:
        if case.card.is_moe:
            yield from ((1, dp) for dp in range(2, gpus // tp + 1))
        return
    if case.engine is Engine.ATOM:
        if tp > 1:
            yield tp, 1
        return
    yield from ((adp, 1) for adp in range(2, tp + 1) if tp % adp == 0)


def _expert_widths(engine: Engine, tp: int, dp: int) -> tuple[int, ...]:
    if engine is Engine.SGLANG:
        return tuple(ep for ep in range(1, tp + 1) if tp % ep == 0)
    return (1,) if tp * dp == 1 else (1, tp * dp)
