"""Why a plan chose what it chose, as the document that `inferasim explain -o json` prints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inferasim_operator.plan_question import Prepared
from inferasim_operator.report.numbers import layout as layout_text
from simcore.errors import FormatError, InputError, UnknownNameError
from simcore.laws.handoff import HandoffBackend
from simcore.search import explain as explain_rows
from simcore.search import split
from simcore.search.explain import Blocked, Explanation, Row
from simcore.search.plan import Answer, refusal_counts
from simcore.search.tiers import Tier
from simcore.units import MICRO, MILLI

FROM_RESULT = "from a result: only its front and short lists are compared; give the plan's files for all candidates"


def from_answer(prepared: Prepared, answer: Answer, disaggregation: str | None = None) -> dict[str, Any]:
    """The explanation of an answer with all its candidates, beside split pools when a hand-off is named.

    Raises InputError for a hand-off that is not known or a load that split pools are not priced for.
    """
    rows = explain_rows.rows_of(answer)
    tiers = []
    for choice in answer.choices:
        chosen = None if choice.chosen is None else rows[choice.chosen]
        found = explain_rows.explain(rows, choice.tier, chosen=chosen)
        tier = _document(found)
        if chosen is None and choice.binding is not None:
            tier["why"] = f"no candidate qualifies: {choice.binding.limit}: {choice.binding.detail}"
        tiers.append(tier)
    refused = dict(refusal_counts(answer.refusals))
    document: dict[str, Any] = {"scope": "all scored candidates", "tiers": tiers, "refused": refused}
    if disaggregation is not None:
        document["disaggregation"] = _disaggregation(prepared, answer, disaggregation)
    return document


def from_result(result: Mapping[str, Any]) -> dict[str, Any]:
    """The explanation of what `inferasim plan -o json` prints. Raises FormatError for another document."""
    return {"scope": FROM_RESULT, "tiers": _from_result(result), "refused": _refused(result.get("refusals") or [])}


def _from_result(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    try:
        rows = [_row(row) for row in result["front"]]
        rows += [_row(row) for short in result.get("shortList", {}).values() for row in short]
        rows = list({row.key: row for row in rows}.values())
        chosen = {item["tier"]: _row(_flat(item)) for item in result["selected"]}
        bindings = {item["tier"]: f"{item['limit']}: {item['detail']}" for item in result["binding"]}
        tiers = [_tier(item) for item in result["effective"]["tiers"]]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise FormatError("result", None, "result", str(error), "be what `inferasim plan -o json` writes") from error
    documents = []
    for tier in tiers:
        if tier.name in chosen:
            documents.append(_document(explain_rows.explain(rows, tier, chosen=chosen[tier.name])))
        else:
            why = f"no candidate qualifies: {bindings.get(tier.name, 'unknown')}"
            documents.append(_document(Explanation(tier, None, None, why, None, ())))
    return documents


def _flat(selection: Mapping[str, Any]) -> dict[str, Any]:
    configuration = selection["configuration"]
    settings = selection.get("settings", "")
    return {**configuration, "settings": settings, "gpus": selection["gpus"], **selection["predicted"]}


def _row(row: Mapping[str, Any]) -> Row:
    return Row(
        str(row["engine"]),
        explain_rows.named(layout_text(row["layout"]), str(row.get("settings", ""))),
        int(row["replicas"]),
        int(row["gpus"]),
        int(row["concurrency"]),
        row["ttftMilliseconds"] * MILLI,
        row["tpotMicroseconds"] * MICRO,
        float(row["tokensPerSecondPerGpu"]),
    )


def _tier(item: Mapping[str, Any]) -> Tier:
    ttft = item["ttftMilliseconds"]
    return Tier(item["name"], float(item["tokensPerSecondPerUser"] or 0), None if ttft is None else ttft * MILLI)


def _refused(refusals: list[Any]) -> dict[str, int]:
    rules = [str(item.get("rule")) for item in refusals if isinstance(item, dict)]
    return {rule: rules.count(rule) for rule in sorted(set(rules))}


def _document(found: Explanation) -> dict[str, Any]:
    blocked = found.blocked
    return {
        "tier": found.tier.name,
        "chosen": None if found.chosen is None else _row_document(found.chosen),
        "headroomPermille": _permille(found.headroom_frac),
        "why": found.why,
        "blocked": None
        if blocked is None
        else {
            "configuration": _row_document(blocked.row),
            "limit": " and ".join(blocked.limits),
            "gainPermille": _permille(blocked.gain_frac),
            "missPermille": _permille(blocked.miss_frac),
            "why": _kept_out(blocked),
        },
        "runnersUp": [
            {
                "configuration": _row_document(item.row),
                "throughputPermille": _permille(item.throughput_frac),
                "headroomPermille": _permille(item.headroom_frac),
                "why": item.why,
                "breakEven": None
                if item.break_even is None
                else {
                    "holdsAtConcurrency": item.break_even.holds_at,
                    "flipsAtConcurrency": item.break_even.flips_at,
                    "reason": item.break_even.reason,
                },
            }
            for item in found.runners_up
        ],
    }


def _kept_out(blocked: Blocked) -> str:
    """The sentence for people."""
    row, limits = blocked.row, blocked.limits
    verb, pronoun = ("binds", "it") if len(limits) == 1 else ("both bind", "them")
    threshold = "half of its limit, which is what qualifies" if limits == ("ttft",) else "where it would qualify"
    return (
        f"{' and '.join(limits)} {verb}: without {pronoun} {row.label} at {row.concurrency} clients would give "
        f"{blocked.gain_frac:+.0%} throughput per GPU; it is {blocked.miss_frac:.0%} off {threshold}"
    )


def _row_document(row: Row) -> dict[str, Any]:
    return {
        "label": row.label,
        "gpus": row.gpus_count,
        "concurrency": row.concurrency,
        "tokensPerSecondPerGpu": round(row.throughput_per_gpu_tokens_per_s),
        "ttftMilliseconds": round(row.ttft_s / MILLI),
        "tpotMicroseconds": round(row.tpot_s / MICRO),
    }


def _permille(fraction: float | None) -> int | None:
    return None if fraction is None else round(fraction * 1000)


def _disaggregation(prepared: Prepared, answer: Answer, name: str) -> dict[str, Any]:
    if prepared.workload.fixed is None or prepared.question.request_rate_per_s is not None:
        raise InputError("disaggregation", name, "come with `workload.fixed` and `load.concurrencies`")
    splits = split.split_candidates(prepared.question, prepared.predictor, backend(name))
    compared = split.compare(answer, splits, [choice.tier for choice in answer.choices])
    return {"backend": name, "splits": len(splits), "tiers": [_comparison(item) for item in compared]}


def backend(name: str) -> HandoffBackend:
    """The hand-off that `name` means. Raises UnknownNameError."""
    try:
        return HandoffBackend(name.lower())
    except ValueError:
        raise UnknownNameError("disaggregation", name, ["MoRI", "NIXL", "Mooncake"]) from None


def _comparison(item: split.Comparison) -> dict[str, Any]:
    pools = item.split
    return {
        "tier": item.tier.name,
        "gainPermille": None if item.gain_factor is None else _permille(item.gain_factor - 1.0),
        "colocated": None if item.colocated is None else _row_document(explain_rows.row_of(item.colocated)),
        "split": None
        if pools is None
        else {
            "label": pools.label,
            "gpus": pools.gpus_count,
            "concurrency": pools.concurrency,
            "tokensPerSecondPerGpu": round(pools.throughput_per_gpu_tokens_per_s),
            "ttftMilliseconds": round(pools.ttft_s / MILLI),
            "tpotMicroseconds": round(pools.tpot_s / MICRO),
            "flags": list(pools.flags),
        },
    }
