"""Reading hostile text in bounded memory: capped lines, capped records, JSON values with their line numbers."""

from __future__ import annotations

import codecs
import gzip
import json
import math
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Final

from simcore.errors import FormatError

MAX_RECORD_BYTES: Final = 64 << 20
"""A record of two million block ids fits; anything longer is not a trace."""
DAMAGE: Final = (OSError, EOFError, zlib.error)
_PIECE: Final = 1 << 16
_SPACE: Final = re.compile(r"[ \t\r\n]*")


def is_folder(path: Path) -> bool:
    """Whether `path` is a folder. Raises FormatError for a path that no file system takes."""
    try:
        return path.is_dir()
    except OSError as error:
        raise FormatError(str(path), None, "trace", str(path), "be a readable file", error.strerror or "") from error


def open_text(path: Path) -> IO[bytes]:
    """The file's bytes, unpacked if it is gzip. Raises FormatError: also for a pipe, on which one may wait for ever."""
    try:
        if path.exists() and not path.is_file():
            raise FormatError(str(path), None, "trace", str(path), "be a regular file", "it is read more than once")
        with path.open("rb") as head:
            packed = head.read(2) == b"\x1f\x8b"
        stream: Any = gzip.open(path, "rb") if packed else path.open("rb")  # noqa: SIM115 (the caller closes it)
        return stream  # type: ignore[no-any-return]
    except OSError as error:
        raise FormatError(str(path), None, "trace", str(path), "be a readable file", error.strerror or "") from error


def pieces(stream: IO[bytes], where: str, size: int = 1 << 20) -> Iterator[bytes]:
    """The stream's bytes, `size` at a time. Raises FormatError."""
    number = 1
    while True:
        try:
            piece = stream.read(size)
        except DAMAGE as error:
            raise FormatError(where, number, "trace", str(error), "be readable; the file is damaged") from error
        if not piece:
            return
        number += piece.count(b"\n")
        yield piece


def lines(stream: IO[bytes], where: str) -> Iterator[tuple[int, bytes]]:
    """(line number, line) of each line that is not blank. Raises FormatError for a line over MAX_RECORD_BYTES."""
    number = 0
    while True:
        try:
            line = stream.readline(MAX_RECORD_BYTES + 1)
        except DAMAGE as error:
            raise FormatError(where, number + 1, "line", str(error), "be readable; the file is damaged") from error
        if not line:
            return
        number += 1
        if len(line) > MAX_RECORD_BYTES:
            shown = line[:40].decode("utf-8", errors="replace")
            raise FormatError(where, number, "line", shown + "...", f"be at most {MAX_RECORD_BYTES >> 20} MiB long")
        if line.strip():
            yield number, line


def _refuse_constant(text: str) -> float:
    raise ValueError(f"{text} is not JSON")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(name for number, (name, _) in enumerate(pairs) if name in dict(pairs[:number]))
        raise ValueError(f"the key {twice[:40]!r} stands twice")
    return found


def parse(text: bytes | str, where: str, number: int) -> Any:
    """The JSON value of `text`. Raises FormatError with the line."""
    try:
        return json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        shown = text[:60] if isinstance(text, str) else text[:60].decode("utf-8", errors="replace")
        raise FormatError(where, number, "record", shown, "be valid JSON", str(error)[:120]) from error


class _ArrayText:
    """The text of a JSON array, of which one element at a time is in memory."""

    def __init__(self, stream: IO[bytes], where: str) -> None:
        self._stream, self._where = stream, where
        self._decode = codecs.getincrementaldecoder("utf-8-sig")(errors="replace").decode
        self._json = json.JSONDecoder(parse_constant=_refuse_constant, object_pairs_hook=_unique)
        self._text, self._at, self._at_end = "", 0, False
        self._line = 1

    def _fail(self, field: str, must: str, hint: str) -> FormatError:
        return FormatError(self._where, self._line, field, self._text[self._at : self._at + 60], must, hint[:120])

    def _read(self) -> None:
        rest = self._text[self._at :]
        try:
            piece = self._stream.read(max(_PIECE, len(rest)))
        except DAMAGE as error:
            raise self._fail("trace", "be readable; the file is damaged", str(error)) from error
        self._at_end = not piece
        self._text, self._at = rest + self._decode(piece, final=self._at_end), 0

    def mark(self) -> str:
        """The next character that is not white space; empty at the end."""
        while True:
            space = _SPACE.match(self._text, self._at)
            end = space.end() if space else self._at
            self._line += self._text.count("\n", self._at, end)
            self._at = end
            if end < len(self._text) or self._at_end:
                return self._text[end : end + 1]
            self._read()

    def take(self, allowed: str) -> str:
        """Go over the next mark, which must be one of `allowed`."""
        mark = self.mark()
        if not mark or mark not in allowed:
            raise self._fail("trace", f"go on with {' or '.join(allowed)}", "" if mark else "the file is cut off")
        self._at += 1
        return mark

    def value(self) -> tuple[int, Any]:
        """(line number, value) of the element that begins here."""
        self.mark()
        while True:
            try:
                value, end = self._json.raw_decode(self._text, self._at)
            except (ValueError, RecursionError) as error:
                if self._at_end or len(self._text) - self._at > MAX_RECORD_BYTES:
                    raise self._fail("record", "be valid JSON", str(error)) from error
            else:
                if end < len(self._text) or self._at_end:  # else it may be the head of a longer one
                    number = self._line
                    self._line += self._text.count("\n", self._at, end)
                    self._at = end
                    return number, value
            self._read()

    def close(self) -> None:
        """Nothing may follow."""
        if self.mark():
            raise self._fail("trace", "end with its array", "")


def array_values(stream: IO[bytes], where: str) -> Iterator[tuple[int, Any]]:
    """(line number, value) of each element of a JSON array, one in memory at a time. Raises FormatError."""
    text = _ArrayText(stream, where)
    text.take("[")
    if text.mark() == "]":
        text.take("]")
    else:
        yield text.value()
        while text.take(",]") == ",":
            yield text.value()
    text.close()


class Row:
    """A JSON object with the place it came from; each getter refuses what it cannot use."""

    def __init__(self, value: Any, where: str, line: int) -> None:
        if not isinstance(value, dict):
            raise FormatError(where, line, "record", value, "be a JSON object")
        self.value: dict[str, Any] = value
        self.where, self.line = where, line

    def fail(self, field: str, must: str, hint: str = "") -> FormatError:
        """The error that names this record's `field`."""
        return FormatError(self.where, self.line, field, self.value.get(field), must, hint)

    def has(self, field: str) -> bool:
        return self.value.get(field) is not None

    def integer(self, field: str, least: int, most: int) -> int:
        """A whole number in range; a float that is whole counts."""
        value = self.value.get(field)
        if (
            not isinstance(value, (int, float))
            or isinstance(value, bool)
            or not math.isfinite(value)
            or int(value) != value
        ):
            raise self.fail(field, "be a whole number")
        if not least <= value <= most:
            raise self.fail(field, f"be from {least} to {most}")
        return int(value)

    def number(self, field: str, largest_value: float, default: float | None = None) -> float:
        """A finite number from 0 to `largest_value`."""
        value = self.value.get(field, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise self.fail(field, "be a number")
        if value < 0:
            raise self.fail(field, "not be negative")
        if value > largest_value:
            raise self.fail(field, f"be at most {largest_value:g}")
        return float(value)

    def integers(self, field: str, most_items: int = 1 << 22) -> list[int]:
        """A list of whole numbers of 0 to 2^62."""
        value = self.value.get(field)
        if not isinstance(value, list) or len(value) > most_items:
            raise self.fail(field, f"be a list of at most {most_items} ids")
        for item in value:
            if isinstance(item, bool) or not isinstance(item, int) or not 0 <= item < 1 << 62:
                raise FormatError(self.where, self.line, field, item, "hold whole numbers from 0 to 2^62")
        return value
