"""`inferasim import`: result files of load generators as corpus rows (CSV), with each tool's own definitions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from inferasim_operator.cli.output import Format, emit, exit_codes
from simcore.validate.corpus import Role
from simcore.validate.importers.read import read_results
from simcore.validate.importers.rows import Deployment, Measured, corpus_text
from simcore.validate.importers.tools import READERS

Text = Annotated[str | None, typer.Option()]
Width = Annotated[int, typer.Option(min=1, max=4096)]


def import_results(
    paths: Annotated[list[str], typer.Argument(help="Result files: JSON or JSON lines.")],
    series: Text = None,
    role: Annotated[Role, typer.Option(help="Fit on these rows, or only score them.")] = Role.ANCHOR,
    engine: Text = None,
    model: Text = None,
    accelerator: Text = None,
    weights_dtype: Text = None,
    tp: Annotated[int | None, typer.Option(min=1, max=4096)] = None,
    pp: Width = 1,
    dp: Width = 1,
    ep: Width = 1,
    attention_dp: Width = 1,
    pools: Annotated[str, typer.Option(help="prefill=NxTPa[EPb];decode=MxTPc[EPd]")] = "",
    tool: Annotated[str | None, typer.Option(help="Unless told by the file: " + ", ".join(READERS) + ".")] = None,
    output: Annotated[Format, typer.Option("-o", "--output", help="What to print.")] = Format.TABLE,
) -> None:
    """Turn result files of load generators into corpus rows (CSV on standard output, a summary on standard error)."""
    with exit_codes():
        said = Deployment(
            series=series, role=role.value, engine=engine, model=model, accelerator=accelerator,
            weights_dtype=weights_dtype, tp=tp, pp=pp, dp=dp, ep=ep, attention_dp=attention_dp, pools=pools,
        )  # fmt: skip
        emit(run(paths, said, tool), output, draw)


def run(paths: list[str], said: Deployment, tool: str | None = None) -> dict[str, Any]:
    """The corpus text and what was read. `said` completes what the files leave open.

    Raises FormatError for an unknown or unconvertible file, InputError for what neither says.
    """
    runs: list[tuple[Measured, Deployment, str]] = []
    read: list[dict[str, Any]] = []
    for path in paths:
        name, found = read_results(path, tool)
        runs += [(measured, said, name) for measured in found]
        read += [_described(path, name, measured) for measured in found]
    return {"corpus": corpus_text(runs), "runs": read}


def _described(path: str, tool: str, measured: Measured) -> dict[str, Any]:
    return {
        "file": path,
        "tool": tool,
        "promptTokens": round(measured.prompt_tokens),
        "outputTokens": round(measured.output_tokens),
        "concurrency": measured.concurrency,
        "ttftMilliseconds": round(measured.ttft_s * 1e3, 3),
        "tpotMilliseconds": None if measured.tpot_s is None else round(measured.tpot_s * 1e3, 4),
        "tokensPerSecond": (
            None if measured.throughput_tokens_per_s is None else round(measured.throughput_tokens_per_s, 3)
        ),
        "requests": measured.requests_count,
        "notes": list(measured.notes),
    }


def draw(result: dict[str, Any]) -> None:
    """The runs on stderr for people; the corpus itself on stdout, so that it can be redirected to a file."""
    table = Table(title="Imported runs", title_justify="left")
    for name in ("file", "tool", "prompt", "output", "clients", "TTFT ms", "TPOT ms", "tok/s"):
        table.add_column(name, overflow="fold")
    keys = ("file", "tool", "promptTokens", "outputTokens", "concurrency", "ttftMilliseconds", "tpotMilliseconds")
    for item in result["runs"]:
        cells = ["–" if item[key] is None else str(item[key]) for key in (*keys, "tokensPerSecond")]
        cells[0] = Path(cells[0]).name
        table.add_row(*cells)
    console = Console(stderr=True)
    console.print(table)
    for item in result["runs"]:
        for note in item["notes"]:
            console.print(f"{Path(item['file']).name}: {note}", markup=False, highlight=False)
    print(result["corpus"], end="")
