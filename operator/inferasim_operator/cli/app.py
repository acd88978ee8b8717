"""The `inferasim` command: one sub-command per question. Modules are imported when their command runs."""

from __future__ import annotations

from typing import Annotated

import typer

from inferasim_operator.cli.output import EXIT_INFEASIBLE, Format, emit, exit_codes

app = typer.Typer(
    name="inferasim",
    help="Plan LLM serving on AMD GPUs: predict, search and render configurations. No cluster needed.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=True,
)

FileOption = Annotated[str, typer.Option("-f", "--file", help="YAML or JSON file; `-` reads standard input.")]
FilesOption = Annotated[
    list[str], typer.Option("-f", "--file", help="Files or folders: one plan, and the anchors it may use.")
]
OutputOption = Annotated[Format, typer.Option("-o", "--output", help="What to print.")]


@app.command()
def plan(
    file: FilesOption,
    output: OutputOption = Format.TABLE,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="No progress bar.")] = False,
) -> None:
    """Find the best configuration per latency tier; exit code 1 when no tier is feasible."""
    from inferasim_operator.cli import plan as command

    with exit_codes():
        result = command.run(file, quiet=quiet)
        emit(result, output, command.draw)
        if not result["feasible"]:
            raise SystemExit(EXIT_INFEASIBLE)


@app.command()
def predict(file: FileOption, output: OutputOption = Format.TABLE) -> None:
    """Predict one configuration: latency, throughput, memory, step breakdown, 80 % interval, flags."""
    from inferasim_operator.cli import predict as command

    with exit_codes():
        emit(command.run(file), output, command.draw)


@app.command()
def version() -> None:
    """Print the version."""
    from importlib import metadata

    typer.echo(metadata.version("inferasim"))


def main() -> None:
    """Entry point of `inferasim` and of `kubectl inferasim`."""
    app()


if __name__ == "__main__":
    main()
