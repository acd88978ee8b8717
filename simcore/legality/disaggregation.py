"""Prefill and decode pools side by side: which pairs can hand KV over (public case A22)."""

from __future__ import annotations

from dataclasses import replace

from simcore.cards.model import ModelCard
from simcore.legality.case import Judgement, LegalityCase, Violation
from simcore.legality.judge import judge
from simcore.legality.table import Match, Verdict, entries_for

RULE = "disaggregated-tp"


def judge_pair(prefill: LegalityCase, decode: LegalityCase) -> Judgement:
    """Both sides' judgements (tensors prefixed `prefill.` and `decode.`) and the rule between them."""
    violations: list[Violation] = []
    unverified: list[Violation] = []
    advisories: list[str] = []
    for name, case in (("prefill", prefill), ("decode", decode)):
        side = judge(case)
        violations += [replace(item, tensor=f"{name}.{item.tensor}") for item in side.violations]
        unverified += [replace(item, tensor=f"{name}.{item.tensor}") for item in side.unverified]
        advisories += [note for note in side.advisories if note not in advisories]
    ours, theirs = prefill.widths.attention_tp, decode.widths.attention_tp
    card = prefill.card
    stages = prefill.layout.pipeline_parallel, decode.layout.pipeline_parallel
    if stages[0] != stages[1]:
        detail = f"unequal pipelines of {stages[0]} and {stages[1]} stages: their hand-over was not seen running"
        unverified.append(Violation(RULE, "kv-transfer", stages[1], detail, Verdict.UNVERIFIED))
    windows = _is_window_hybrid(card) and not card.is_mla
    # Each TP rank holds its own heads of a linear layer's state, latent attention beside it or not.
    if ours != theirs and (windows or card.has_linear_attention):
        detail = f"unequal attention TP {ours} and {theirs}: the caches of a hybrid model cannot be handed over"
        verdict = _verdict(prefill) if windows else Verdict.UNVERIFIED
        item = Violation(RULE, "kv-transfer", theirs, detail, verdict)
        (violations if verdict is Verdict.ILLEGAL else unverified).append(item)
    elif ours != theirs and not card.is_mla:
        advisories.append(
            f"unequal attention TP {ours} and {theirs}: supported, one report of crashes under load (sglang#15674)"
        )
    return Judgement(tuple(violations), tuple(unverified), tuple(advisories))


def _is_window_hybrid(card: ModelCard) -> bool:
    """Windowed layers beside full ones: two caches. Where every layer has the window, there is one."""
    kinds = {group.attention.window_tokens > 0 for group in card.groups}
    return len(kinds) == 2


def _verdict(case: LegalityCase) -> Verdict:
    """Window hybrids by engine and version."""
    for entry in entries_for(case.engine).get(RULE, ()):
        if entry.match_version(case.parsed_version) is Match.YES:
            return entry.verdict
    return Verdict.UNVERIFIED
