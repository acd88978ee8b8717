"""`inferasim validate`: fit from a corpus' anchor rows, project its target rows, errors per series and overall."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.table import Table

from inferasim_operator.cli.output import EXIT_INFEASIBLE, Format, emit, exit_codes, screen
from simcore.errors import InputError
from simcore.stepcost.width import WidthLaw
from simcore.validate.corpus import read_corpus
from simcore.validate.evaluate import Note, evaluate
from simcore.validate.ladders import ladders
from simcore.validate.report import LAW_TEXT, report
from simcore.validate.steps import is_steps_file, read_steps, steps_report


def validate(
    corpus: Annotated[str, typer.Argument(help="Corpus CSV, or a table of single steps (docs/formats/corpus.md).")],
    law: Annotated[str, typer.Option(help="Width law: " + ", ".join(LAW_TEXT) + ".")] = WidthLaw.SPLIT_FLOOR.value,
    output: Annotated[Format, typer.Option("-o", "--output", help="What to print.")] = Format.TABLE,
) -> None:
    """Fit from the corpus' anchor rows, project its target rows, report errors per series and overall.

    Exit 0 when every series was scored, 1 when one was refused, 2 for a file that cannot be read.
    """
    with exit_codes():
        result = run(corpus, law)
        emit(result, output, draw)
        if result["refused"]:
            raise SystemExit(EXIT_INFEASIBLE)


def run(corpus: str, law: str = WidthLaw.SPLIT_FLOOR.value) -> dict[str, Any]:
    """The report on the corpus file: the contract's JSON. Files of single steps are told by their header.

    Raises FormatError, InputError.
    """
    if law not in LAW_TEXT:
        raise InputError("law", law, "be one of " + ", ".join(LAW_TEXT))
    chosen = WidthLaw(law)
    if is_steps_file(corpus):
        return steps_report(read_steps(corpus), law=chosen)
    refused: dict[str, str] = {}
    corpus_rows = read_corpus(corpus)
    notes: list[Note] = []
    rows = evaluate(corpus_rows, law=chosen, refused=refused, notes=notes)
    return report(rows, law=chosen.value, refused=refused, notes=notes) | {"ladders": ladders(corpus_rows, rows)}


def draw(result: dict[str, Any]) -> None:
    """The report for people: one line per series, then all rows together and the law used."""
    table = Table(title="Median absolute error [%] on target rows", title_justify="left")
    table.add_column("series", overflow="fold")
    for name in ("rows", "TPOT", "TTFT", "throughput", "80 % covered", "pairs ordered", "same", "divided", "Eq. 1"):
        table.add_column(name, justify="right")
    for part in [*result["series"], {"series": "all", **result["overall"]}]:
        median, simple = part["medianAbsErrorPercent"], part["baselineMedianAbsTpotErrorPercent"]
        table.add_row(
            part["series"],
            str(part["rows"]),
            *(_shown(median[name]) for name in ("tpot", "ttft", "throughput")),
            _shown(part["intervalCoveragePercent"]["tpot"]),
            _shown(part["ranking"]["pairsOrderedPercent"]),
            *(_shown(simple[name]) for name in ("sameStep", "divided", "equation1Raw")),
            style="bold" if part["series"] == "all" else None,
        )
    console = screen()
    console.print(table)
    console.print(f"law: {result['law']['name']} – {result['law']['explanation']}")
    for mode, order in result.get("ladders", {}).items():
        if order["pairs"]:
            console.print(
                f"layout ladders, {mode}: {_shown(order['pairsOrderedPercent'])} % of {order['pairs']} pairs ordered, "
                f"regret {_shown(order['regretPercent'])} %"
            )
    for item in result["refused"]:
        console.print(f"refused: {item['series']}: {item['reason']}", style="red", markup=False)
    for item in result.get("notes", []):
        console.print(f"note: {item['series']}: {item['rows']} {item['note']}", markup=False)
    flagged = sorted({flag for row in result["rows"] for flag in row["flags"]})
    console.print("flags: " + (", ".join(flagged) or "none"))


def _shown(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"
