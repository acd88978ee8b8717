"""`inferasim explain`: why a plan chose what it chose, from the plan's files or from its result."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from inferasim_operator.cli import cluster
from inferasim_operator.cli import plan as plan_command
from inferasim_operator.cli.options import Context, Kubeconfig, Namespace, Report
from inferasim_operator.cli.output import Format, emit, exit_codes, screen, write_page
from inferasim_operator.planning import answer_prepared
from inferasim_operator.report import explain as page
from inferasim_operator.report.numbers import layout as layout_text
from simcore.errors import FormatError, InputError, UnknownNameError
from simcore.laws.handoff import HandoffBackend
from simcore.search import explain as explain_rows
from simcore.search import split
from simcore.search.explain import Explanation, Row
from simcore.search.plan import refusal_counts
from simcore.search.tiers import Tier
from simcore.units import MICRO, MILLI

FROM_RESULT = "from a result: only its front and short lists are compared; give the plan's files for all candidates"


def explain(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="PLAN|FILES", help="A live plan; RESULT.json of a plan; or the plan's own files and folders."
        ),
    ],
    output: Annotated[Format, typer.Option("-o", "--output", help="How to print it.")] = Format.TABLE,
    disaggregation: Annotated[
        str | None,
        typer.Option(help="Also compare with split pools whose KV cache MoRI, NIXL or Mooncake hands over."),
    ] = None,
    report: Report = None,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Say why each tier got its configuration: binding limits, runners-up, and where the choice flips.

    Exit code 0, 1 when a live plan has no answer yet, or 2 when a file breaks a rule.
    """
    with exit_codes():
        name = cluster.plan_name(files)
        if name is None:
            document = explain_files(files, disaggregation)
        elif disaggregation is not None:
            raise InputError(
                "disaggregation", disaggregation, "come with the plan's files", "a live plan is not priced"
            )
        else:
            from inferasim_operator.cli.live import live_result

            document = from_result(live_result(name, cluster.place(namespace, context, kubeconfig)))
        emit(document, output, draw)
        write_page(report, page.render, document)


def explain_files(files: list[str], disaggregation: str | None = None) -> dict[str, Any]:
    """The explanation of one result, or of the plan in `files`. Raises InputError."""
    backend = None if disaggregation is None else _backend(disaggregation)
    result = _result(files[0]) if len(files) == 1 else None
    if result is not None:
        if backend is not None:
            raise InputError("disaggregation", disaggregation, "come with the plan's files", "a result prices nothing")
        return from_result(result)
    prepared, answer = answer_prepared(plan_command.gather(files))
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
    if backend is not None:
        if prepared.workload.fixed is None or prepared.question.request_rate_per_s is not None:
            raise InputError("disaggregation", disaggregation, "come with `workload.fixed` and `load.concurrencies`")
        splits = split.split_candidates(prepared.question, prepared.predictor, backend)
        compared = split.compare(answer, splits, [choice.tier for choice in answer.choices])
        document["disaggregation"] = {
            "backend": disaggregation,
            "splits": len(splits),
            "tiers": [_comparison(item) for item in compared],
        }
    return document


def _backend(name: str) -> HandoffBackend:
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


def _result(path: str) -> Mapping[str, Any] | None:
    """The document when `path` is a plan's result; None for anything else, which then has to be a plan."""
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError("file", path, "be readable", str(error.strerror)) from error
    except (ValueError, RecursionError):
        return None
    if not isinstance(document, dict) or "selected" not in document or "effective" not in document:
        return None
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
            "limit": blocked.limit,
            "gainPermille": _permille(blocked.gain_frac),
            "missPermille": _permille(blocked.miss_frac),
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


def draw(result: Mapping[str, Any]) -> None:
    """One paragraph per tier."""
    console = screen()

    def say(text: str) -> None:
        console.print(text, highlight=False, soft_wrap=True, markup=False)

    for item in result["tiers"]:
        chosen = item["chosen"]
        say(f"{item['tier']}: {_text(chosen) if chosen else 'no configuration'}")
        say(f"  why: {item['why']}")
        blocked = item["blocked"]
        if blocked:
            say(
                f"  {blocked['limit']} binds: without it {_text(blocked['configuration'])} would give "
                f"{blocked['gainPermille'] / 10:+.0f} %; it misses the limit by {blocked['missPermille'] / 10:.0f} %"
            )
        for other in item["runnersUp"]:
            say(f"  not {_text(other['configuration'])}: {other['why']}")
            flip = other["breakEven"]
            if flip:
                say(
                    f"    flips between {flip['holdsAtConcurrency']} and {flip['flipsAtConcurrency']} clients: "
                    f"{flip['reason']}"
                )
    for item in result.get("disaggregation", {}).get("tiers", []):
        say(f"{item['tier']}, disaggregated: {_split_text(item)}")
    if result["refused"]:
        say("refused layouts: " + ", ".join(f"{rule} {count}" for rule, count in result["refused"].items()))
    say(f"({result['scope']})")


def _split_text(item: Mapping[str, Any]) -> str:
    if item["split"] is None:
        return "no split meets it"
    if item["gainPermille"] is None:
        return f"only {_text(item['split'])} meets it"
    return f"{_text(item['split'])}, {item['gainPermille'] / 10:+.0f} % against the best colocated one"


def _text(row: Mapping[str, Any]) -> str:
    return f"{row['label']} at {row['concurrency']} clients ({row['tokensPerSecondPerGpu']} tok/s/GPU)"
