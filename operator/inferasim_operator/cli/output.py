"""What every command prints: one document as JSON, YAML or a table; errors as one line; the exit codes."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from inferasim_operator.errors import NotFoundError, OperatorError
from simcore.errors import InfeasibleError, InputError, NoAnchorError

if TYPE_CHECKING:
    from rich.console import Console

EXIT_OK = 0
EXIT_INFEASIBLE = 1
"""Infeasible, or a check failed."""
EXIT_BAD_INPUT = 2
LEAST_WIDTH = 100
"""Columns that our tables need."""


class Format(StrEnum):
    """Output forms of `-o`."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


class OutputError(OperatorError):
    """Standard output takes no more: a full disk, say."""


def dumps(document: Any) -> str:
    """Canonical JSON: sorted keys, two spaces, no NaN; the same bytes for the same document everywhere."""
    return json.dumps(document, sort_keys=True, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def emit(document: Any, form: Format, table: Callable[[Any], None]) -> None:
    """Print `document` in `form`; `table` draws it for people. Raises OutputError."""
    try:
        _write(document, form, table)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputError(f"the output cannot be written: {error.strerror or error}") from error


def _write(document: Any, form: Format, table: Callable[[Any], None]) -> None:
    if form is Format.JSON:
        sys.stdout.write(dumps(document))
    elif form is Format.YAML:
        sys.stdout.write(yaml.safe_dump(json.loads(dumps(document)), sort_keys=True, allow_unicode=True, width=110))
    else:
        table(document)
    sys.stdout.flush()


def screen() -> Console:
    """Where tables go. Without a terminal, or on a narrow one, lines stay whole rather than lose figures."""
    from rich.console import Console

    class Screen(Console):
        def on_broken_pipe(self) -> None:
            # As with JSON: rich's own answer is exit code 1, which says that no tier is feasible.
            raise BrokenPipeError

    found = Screen()
    if found.width >= LEAST_WIDTH and found.is_terminal:
        return found
    # The height too, or a terminal that calls itself dumb stays 80 columns wide.
    return Screen(width=max(found.width, LEAST_WIDTH), height=found.height)


def note(text: str) -> None:
    """Tell the person, not the program that reads the output."""
    sys.stderr.write(f"inferasim: {text}\n")


def write_page(path: Path | None, render: Callable[[Any], str], document: Any) -> None:
    """Write the page of `document` where a path is given. Raises InputError."""
    if path is None:
        return
    try:
        path.write_text(render(document), encoding="utf-8")
    except OSError as error:
        raise InputError("--report", str(path), f"be writable ({error.strerror or error})") from error


@contextmanager
def exit_codes() -> Iterator[None]:
    """Turn our errors into one line on stderr and the exit code of the contract; anything else is a bug and shows."""
    try:
        yield
    except InputError as error:
        _fail(str(error), EXIT_BAD_INPUT)
    except NotFoundError as error:
        _fail(str(error), EXIT_BAD_INPUT)
    except (InfeasibleError, NoAnchorError, OperatorError) as error:
        _fail(str(error), EXIT_INFEASIBLE)
    except BrokenPipeError:
        # The reader went away (`| head`): nothing left to say, and nothing went wrong.
        sys.stderr.close()
        raise SystemExit(EXIT_OK) from None


def _fail(text: str, code: int) -> None:
    line = " ".join(text.split())
    sys.stderr.write(f"inferasim: {line}\n")
    raise SystemExit(code)
