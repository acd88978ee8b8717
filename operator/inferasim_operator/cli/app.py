"""The `inferasim` command: one sub-command per question. A sub-command's module is imported when it is used."""

from __future__ import annotations

import difflib
import importlib
import signal
import sys
from typing import Annotated, Any, Final, NoReturn

import typer
import typer.core
import typer.main

COMMANDS: Final = {
    "plan": ("plan:plan", "Find the best configuration per latency tier."),
    "predict": (
        "predict:predict",
        "Predict one configuration: latency, throughput, memory, interval, flags.",
    ),
    "check": ("check:check", "Judge one layout: is it legal, does it fit, what capacity does it have."),
    "render": ("render:render", "Print the manifests of a DeploymentMix; the same bytes each time."),
    "anchors": ("anchors:app", "Inspect, check, fit and select anchors."),
    "validate": ("validate:validate", "Fit on a corpus' anchor rows, project its target rows, report the errors."),
    "replay": ("replay:replay", "Run the simulator on a trace: Mooncake, Azure, agentic."),
    "import": ("importers:import_results", "Read benchmark results of several tools into corpus rows."),
    "explain": ("explain:explain", "Why a plan chose what it chose, and when it would not."),
    "status": ("live:status", "How harvests, plans and mixes in the cluster are doing."),
    "report": ("live:report", "A plan's answer as one self-contained HTML page."),
    "harvest": ("live:harvest", "Look into a measurement that runs: logs."),
    "version": ("app:version", "Print the version."),
}
"""Name to (module of this package and attribute, help line), in the order that help lists them."""


class _Later(typer.core.TyperCommand):
    """A command that is known by name and help line; its module is imported when it parses its arguments."""

    def __init__(self, name: str, target: str, text: str) -> None:
        super().__init__(name=name, help=text, short_help=text, callback=lambda: None)
        self._target = target

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """The real command's context: click parses and invokes from there."""
        return self._real().make_context(info_name, args, parent, **extra)

    def _real(self) -> Any:
        module, attribute = self._target.split(":")
        found = getattr(importlib.import_module(f"inferasim_operator.cli.{module}"), attribute)
        if isinstance(found, typer.Typer):
            found.rich_markup_mode = None
            return typer.main.get_command(found)
        single = typer.Typer(pretty_exceptions_enable=False, add_completion=False, rich_markup_mode=None)
        single.command(self.name)(found)
        return typer.main.get_command(single)


_UsageError: Final[Any] = typer.BadParameter.__mro__[1]
"""What the command line's own mistakes are raised as; typer gives the class no name of its own."""


class _Commands(typer.core.TyperGroup):
    """All commands, imported late; a mistake on the command line is one line, as a mistake in a file is."""

    def main(self, args: Any = None, prog_name: str | None = None, *more: Any, **extra: Any) -> Any:
        """Run; in standalone mode leave with the exit code."""
        alone = extra.pop("standalone_mode", True)
        extra["standalone_mode"] = False
        if not alone:
            return super().main(args, prog_name, *more, **extra)
        try:
            code = super().main(args, prog_name, *more, **extra)
        except _UsageError as error:
            _refuse(error)
        sys.exit(code if isinstance(code, int) else 0)

    def list_commands(self, ctx: Any) -> list[str]:
        del ctx
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        del ctx
        return _Later(cmd_name, *COMMANDS[cmd_name]) if cmd_name in COMMANDS else None


def _refuse(error: Any) -> NoReturn:
    from inferasim_operator.cli.output import EXIT_BAD_INPUT, note

    text = error.format_message()
    if type(error).__name__ == "NoArgsIsHelpError":
        sys.stderr.write(f"{text}\n")
        sys.exit(EXIT_BAD_INPUT)
    text = " ".join(text.split()).rstrip(".").replace(": Value error, ", ": ")
    if text.startswith("No such command"):
        near = difflib.get_close_matches(text.split("'")[1], COMMANDS, n=1)
        text += f"; did you mean `{near[0]}`?" if near else ""
    elif text.startswith("Got unexpected extra argument"):
        text += "; every file needs an option of its own, and a folder stands for its files"
    command = error.ctx.command_path if error.ctx is not None else "inferasim"
    note(f"{text}; see `{command} --help`")
    sys.exit(EXIT_BAD_INPUT)


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def version() -> None:
    """Print the version."""
    from importlib import metadata

    typer.echo(metadata.version("inferasim"))


def _version_alone(is_asked: bool) -> None:
    if is_asked:
        version()
        raise typer.Exit


@app.callback()
def root(
    is_version_asked: Annotated[
        bool, typer.Option("--version", callback=_version_alone, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Plan LLM serving on AMD GPUs: predict, search and render configurations; look at those in a cluster."""
    del is_version_asked  # its callback has answered


def main() -> None:
    """Entry point of `inferasim` and of `kubectl inferasim`."""
    signal.signal(signal.SIGINT, _interrupted)  # from here on, also while modules are imported
    app()


def _interrupted(*_: object) -> NoReturn:
    sys.exit(128 + signal.SIGINT)


if __name__ == "__main__":
    main()
