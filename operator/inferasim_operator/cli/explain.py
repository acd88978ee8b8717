"""`inferasim explain`: why a plan chose what it chose, from the plan's files or from its result."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from inferasim_operator import plan_explanation
from inferasim_operator.cli import cluster
from inferasim_operator.cli import plan as plan_command
from inferasim_operator.cli.options import Claims, Context, Kubeconfig, Namespace, Report
from inferasim_operator.cli.output import Format, emit, exit_codes, screen, write_page
from inferasim_operator.planning import answer_prepared
from inferasim_operator.report import explain as page
from simcore.errors import InputError


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
    claims: Claims = None,
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
            document = explain_files(files, disaggregation, claims)
        elif disaggregation is not None:
            raise InputError(
                "disaggregation", disaggregation, "come with the plan's files", "a live plan is not priced"
            )
        else:
            live = cluster.live_result(name, cluster.place(namespace, context, kubeconfig))
            document = plan_explanation.from_result(live)
        emit(document, output, draw)
        write_page(report, page.render, document)


def explain_files(files: list[str], disaggregation: str | None = None, claims: Path | None = None) -> dict[str, Any]:
    """The explanation of one result, or of the plan in `files`. Raises InputError."""
    if disaggregation is not None:
        plan_explanation.backend(disaggregation)  # before the search, which takes longer
    result = _result(files[0]) if len(files) == 1 else None
    if result is None:
        request = plan_command.gather(files)
        if (request["spec"].get("search") or {}).get("method") == "Agent":
            must = "be explained from its result, in which a language model is not asked again"
            raise InputError("search.method", "Agent", must, "inferasim plan -o json writes it")
        if claims is not None:
            request["claims"] = str(claims)
        prepared, answer = answer_prepared(request)
        return plan_explanation.from_answer(prepared, answer, disaggregation)
    if disaggregation is not None:
        raise InputError("disaggregation", disaggregation, "come with the plan's files", "a result prices nothing")
    return plan_explanation.from_result(result)


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
            say(f"  {blocked['why']}")
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
