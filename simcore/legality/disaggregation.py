"""Prefill and decode pools side by side: which pairs can hand KV over (public case A22)."""

from __future__ import annotations

from dataclasses import replace

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
    hybrid = (card.has_window_attention or card.has_linear_attention) and not card.is_mla
    if ours != theirs and hybrid:
        detail = f"unequal attention TP {ours} and {theirs}: the KV of a hybrid model without MLA cannot be handed over"
        verdict = _verdict(prefill)
        item = Violation(RULE, "kv-transfer", theirs, detail, verdict)
        (violations if verdict is Verdict.ILLEGAL else unverified).append(item)
    elif ours != theirs and not card.is_mla:
        advisories.append(
            f"unequal attention TP {ours} and {theirs}: supported, one report of crashes under load (sglang#15674)"
        )
    return Judgement(tuple(violations), tuple(unverified), tuple(advisories))


def _verdict(case: LegalityCase) -> Verdict:
    """Window hybrids by engine and version; linear hybrids are verified nowhere."""
    if not case.card.has_window_attention:
        return Verdict.UNVERIFIED
    for entry in entries_for(case.engine).get(RULE, ()):
        if entry.match_version(case.parsed_version) is Match.YES:
            return entry.verdict
    return Verdict.UNVERIFIED
