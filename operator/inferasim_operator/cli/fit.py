"""`inferasim anchors fit`: an anchor from a benchmark table, without GPU time."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from inferasim_operator.cli.output import Format, emit, exit_codes, screen
from simcore.anchors.schema import Anchor
from simcore.errors import InputError
from simcore.validate.anchor_export import fit_anchor
from simcore.validate.corpus import CorpusRow, Role, read_corpus


def fit(
    corpus: Annotated[str, typer.Argument(help="Benchmark table (docs/formats/corpus.md).")],
    series: Annotated[str | None, typer.Option(help="Which series, when the table holds several.")] = None,
    tensor_parallel: Annotated[int | None, typer.Option("--tensor-parallel", "--tp", min=1)] = None,
    write: Annotated[str | None, typer.Option(help="Anchor file to write (JSON).")] = None,
    output: Annotated[Format, typer.Option("-o", "--output", help="What to print.")] = Format.TABLE,
) -> None:
    """Fit an anchor from the anchor rows of one layout: source `fitted`, with its residuals and a wider interval."""
    with exit_codes():
        anchor = run(corpus, series=series, tensor_parallel=tensor_parallel)
        if write is not None:
            try:
                Path(write).write_text(anchor.to_json(), encoding="utf-8")
            except OSError as error:
                raise InputError("write", write, f"be a file that can be written ({error.strerror})") from error
        emit(document(anchor), output, draw)


def run(corpus: str, *, series: str | None = None, tensor_parallel: int | None = None) -> Anchor:
    """The anchor behind the corpus' anchor rows of one layout; `series` and `tensor_parallel` choose among several.

    Raises FormatError, InputError (no such rows, or rows of more than one layout).
    """
    rows: list[CorpusRow] = [row for row in read_corpus(corpus) if row.role is Role.ANCHOR]
    if series is not None:
        names = sorted({row.series for row in rows})
        rows = [row for row in rows if row.series == series]
        if not rows:
            raise InputError("series", series, "be a series of the corpus", ", ".join(names[:8]))
    if tensor_parallel is not None:
        rows = [row for row in rows if row.layout.tensor_parallel == tensor_parallel]
    names = sorted({row.series for row in rows})
    if len(names) > 1:
        raise InputError("series", ", ".join(names[:8]), "be one series: say which with --series")
    if not rows:
        raise InputError("role", "no anchor row left", "leave at least one row of role `anchor`")
    return fit_anchor(rows)


def document(anchor: Anchor) -> dict[str, Any]:
    """The anchor as plain data for `-o json|yaml`."""
    return anchor.model_dump(mode="json", by_alias=True, exclude_none=True)


def draw(result: dict[str, Any]) -> None:
    """What was fitted, for people."""
    console = screen()
    sign, provenance = result["signature"], result["provenance"]
    console.print(f"{sign['model']} {sign['engine']} {sign['accelerator']} TP{sign['tensorParallel']} (fitted)")
    curve, host = result["prefill"]["fit"], result["hostTime"]["perRequestMilliseconds"]
    console.print(
        f"prefill F {curve['fixedMilliseconds']:.1f} ms, c1 {curve['perTokenMicroseconds']:.2f} us/token, "
        f"c2 {curve['perTokenSquaredNanoseconds']:.4f} ns/token2; host {host:.1f} ms"
    )
    for sweep in result["decode"]:
        steps = ", ".join(f"{point['batch']}: {point['stepMilliseconds']:.2f}" for point in sweep["points"])
        console.print(f"decode steps in ms at context {sweep['contextTokens']}: {steps}")
    console.print(
        "residuals: " + ", ".join(f"{name} {100 * value:.1f} %" for name, value in provenance["residuals"].items())
    )
