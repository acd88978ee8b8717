"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from inferasim_operator.cli.output import Format

Output = Annotated[Format, typer.Option("-o", "--output", help="Output form.")]
Report = Annotated[Path | None, typer.Option("--report", metavar="FILE", help="Also write a self-contained HTML page.")]
Namespace = Annotated[str | None, typer.Option("-n", "--namespace", help="Namespace; the context's when absent.")]
Context = Annotated[str | None, typer.Option("--context", help="Context of the kubeconfig.")]
Kubeconfig = Annotated[
    str | None, typer.Option("--kubeconfig", metavar="FILE", help="As kubectl finds it when absent.")
]
