"""Reading hostile text in bounded memory: capped lines, capped records, JSON values with their line numbers."""

from __future__ import annotations

import codecs
import gzip
import json
import math
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Final

from simcore.errors import FormatError

MAX_RECORD_BYTES: Final = 64 << 20
"""A record of two million block ids fits; anything longer is not a trace."""
DAMAGE: Final = (OSError, EOFError, zlib.error)
_PIECE: Final = 1 << 16


def open_text(path: Path) -> IO[bytes]:
    """The file's bytes, unpacked if it is gzip. Raises FormatError."""
    try:
        with path.open("rb") as head:
            packed = head.read(2) == b"\x1f\x8b"
        stream: Any = gzip.open(path, "rb") if packed else path.open("rb")  # noqa: SIM115 (the caller closes it)
        return stream  # type: ignore[no-any-return]
    except OSError as error:
        raise FormatError(str(path), None, "trace", str(path), "be a readable file", error.strerror or "") from error


def pieces(stream: IO[bytes], where: str, size: int = 1 << 20) -> Iterator[bytes]:
    """The stream's bytes, `size` at a time. Raises FormatError."""
    while True:
        try:
            piece = stream.read(size)
        except DAMAGE as error:
            raise FormatError(where, None, "trace", str(error), "be readable; the file is damaged") from error
        if not piece:
            return
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


def parse(text: bytes | str, where: str, number: int) -> Any:
    """The JSON value of `text`. Raises FormatError with the line."""
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        shown = text[:60] if isinstance(text, str) else text[:60].decode("utf-8", errors="replace")
        raise FormatError(where, number, "record", shown, "be valid JSON", str(error)[:120]) from error


def array_values(stream: IO[bytes], where: str) -> Iterator[tuple[int, Any]]:
    """(line number, value) of each element of a JSON array, one in memory at a time. Raises FormatError."""
    text = codecs.getincrementaldecoder("utf-8")(errors="replace")
    decoder = json.JSONDecoder(parse_constant=_refuse_constant)
    buffer, at, number, at_end, opened = "", 0, 1, False, False
    while True:
        while at < len(buffer) and (buffer[at] in " \t\r\n," or (buffer[at] == "[" and not opened)):
            opened = opened or buffer[at] == "["
            number += buffer[at] == "\n"
            at += 1
        if at < len(buffer) and buffer[at] == "]":
            return
        value, end = None, 0
        if at < len(buffer):
            try:
                value, end = decoder.raw_decode(buffer, at)
            except (ValueError, RecursionError) as error:
                if at_end or len(buffer) - at > MAX_RECORD_BYTES:
                    shown = buffer[at : at + 60]
                    raise FormatError(where, number, "record", shown, "be valid JSON", str(error)[:120]) from error
        if end and end < len(buffer):  # a value at the very end may be the head of a longer one
            yield number, value
            number += buffer.count("\n", at, end)
            at = end
            continue
        if at_end:
            raise FormatError(where, number, "trace", buffer[at : at + 60], "end with ]", "the file is cut off")
        try:
            piece = stream.read(max(_PIECE, len(buffer) - at))
        except DAMAGE as error:
            raise FormatError(where, number, "trace", str(error), "be readable; the file is damaged") from error
        at_end = not piece
        buffer, at = buffer[at:] + text.decode(piece, final=at_end), 0


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
