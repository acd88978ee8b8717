"""Options that several commands share."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from inferasim_operator.cli.output import Format


def _writable(path: Path | None) -> Path | None:
    """Refuse a place for the page before the work, not after it."""
    if path is None:
        return None
    if str(path) == "-":
        raise typer.BadParameter("must be a file; `inferasim report RESULT.json -` writes a page to standard output")
    if path.is_dir() or not path.parent.is_dir() or (path.exists() and not os.access(path, os.W_OK)):
        raise typer.BadParameter(f"`{path}` must be a file in a folder that exists, and writable")
    return path


Output = Annotated[Format, typer.Option("-o", "--output", help="Output form.")]
Report = Annotated[
    Path | None,
    typer.Option("--report", metavar="FILE", callback=_writable, help="Also write a self-contained HTML page."),
]
Claims = Annotated[
    Path | None, typer.Option("--claims", help="Folder that holds a folder per claim, for traces on volumes.")
]
Namespace = Annotated[str | None, typer.Option("-n", "--namespace", help="Namespace; the context's when absent.")]
Context = Annotated[str | None, typer.Option("--context", help="Context of the kubeconfig.")]
Kubeconfig = Annotated[
    str | None, typer.Option("--kubeconfig", metavar="FILE", help="As kubectl finds it when absent.")
]
