"""The errors of simcore, one tree.

InferasimError
├── InputError          the caller's input is wrong: names field, value, what is allowed, what to do (exit code 2)
│   ├── FormatError     a file or record cannot be read: adds where (path, line)
│   ├── UnknownNameError  a name that no table holds: adds the nearest names
│   └── UnknownKeyError a key that the format does not have: adds those it may have been meant to be
├── NoAnchorError       nothing measured covers the question, and the mode forbids to go on without (exit code 1)
├── InfeasibleError     every candidate breaks a limit: names the limit that binds (exit code 1)
├── DomainError         a law was asked outside the domain it is stated for: a bug of the caller inside simcore
└── InternalError       something that cannot happen did: a bug, shown as such
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

HINT_LENGTH = 1500
"""Of the longest part of a message: lists of legal layouts are long."""


def _shown(text: str, length: int) -> str:
    """A part of a message: what a file says may be endless, and no terminal or JSON writer takes half a character."""
    whole = text.encode("utf-8", "backslashreplace").decode("utf-8")
    return whole if len(whole) <= length else whole[: length - 3] + "..."


class InferasimError(Exception):
    """Base of all errors raised on purpose."""


class InputError(InferasimError):
    """The input breaks a rule; the text says `field` must …, got …."""

    def __init__(self, field: str, value: object, must: str, hint: str = "") -> None:
        self.field, self.value, self.must, self.hint = field, value, must, hint
        advice = f"; {_shown(hint, HINT_LENGTH)}" if hint else ""
        super().__init__(
            f"`{_shown(field, 120)}` must {_shown(must, HINT_LENGTH)}, got {_shown(repr(value), 120)}{advice}"
        )


class FormatError(InputError):
    """A file or a record in it cannot be read."""

    def __init__(self, where: str, line: int | None, field: str, value: object, must: str, hint: str = "") -> None:
        super().__init__(field, value, must, hint)
        self.where, self.line = where, line
        place = _shown(where, 1000) if line is None else f"{_shown(where, 1000)}, line {line}"
        self.args = (f"{place}: {self.args[0]}",)


def unreadable(path: object, error: OSError | ValueError, must: str = "be a readable UTF-8 file") -> FormatError:
    """The refusal of a file that cannot be opened, or whose bytes are not text."""
    why = error.strerror if isinstance(error, OSError) else "bytes that are not UTF-8"
    return FormatError(str(path), None, "file", why or str(error), must)


class UnknownNameError(InputError):
    """A name that is in no table; the text lists the closest known ones."""

    def __init__(self, field: str, value: str, known: Iterable[str]) -> None:
        names = sorted(known)
        near = difflib.get_close_matches(value, names, n=5, cutoff=0.3) or names[:8]
        super().__init__(field, value, "be a known name", "did you mean one of: " + ", ".join(near))


class UnknownKeyError(InputError):
    """A key that the format does not have; the text lists those of its place that look alike."""

    def __init__(self, field: str, key: str, known: Iterable[str]) -> None:
        near = difflib.get_close_matches(key, sorted(set(known) - {key}), n=3)
        hint = f"did you mean one of: {', '.join(near)}" if near else "remove it or correct its name"
        super().__init__(field, key, "be a key of this format", hint)


class NoAnchorError(InferasimError):
    """No anchor applies; carries the reason each one was refused."""

    def __init__(self, target: str, refusals: dict[str, list[str]]) -> None:
        self.target, self.refusals = target, refusals
        lines = "; ".join(f"{name}: {', '.join(why)}" for name, why in sorted(refusals.items())) or "none given"
        super().__init__(f"no anchor applies to {target} ({lines}); harvest one or use mode `simulate` to rank only")


class InfeasibleError(InferasimError):
    """Every candidate breaks a limit; names it with its numbers."""

    def __init__(self, limit: str, detail: str) -> None:
        self.limit, self.detail = limit, detail
        super().__init__(f"infeasible: {limit}: {detail}")


class DomainError(InferasimError):
    """A law called outside the domain it is stated for."""


class InternalError(InferasimError):
    """Something that cannot happen did: a bug."""
