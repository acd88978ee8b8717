"""Azure LLM inference traces: CSV of TIMESTAMP, ContextTokens, GeneratedTokens (2023 release, CC-BY)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np

from simcore.des.workload.batch import Batch, plain_batch
from simcore.des.workload.lines import lines, open_text
from simcore.des.workload.synthetic import BATCH_REQUESTS, MAX_DURATION_S
from simcore.errors import FormatError
from simcore.units import PS_PER_S

HEADER: Final = ("timestamp", "contexttokens", "generatedtokens")
_TIME: Final = re.compile(r"(\d{4})-(\d\d)-(\d\d)[ T](\d\d):(\d\d):(\d\d)(?:\.(\d{1,12}))?(?:\+00:00|Z)?", re.ASCII)
_TOKENS: Final = re.compile(r"[0-9]{1,10}")
_FEBRUARY: Final = 2
_MONTH_DAYS: Final = (0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334)


def _picoseconds(text: str) -> int | None:
    """Picoseconds since the year 1 of a UTC time stamp, or None if it is none."""
    found = _TIME.fullmatch(text.strip())
    if found is None:
        return None
    year, month, day, hour, minute, second = (int(part) for part in found.groups()[:6])
    if not (1 <= month <= 12 and 1 <= day <= _days_of(year, month) and hour < 24 and minute < 60 and second < 61):
        return None
    past = year - 1 if month <= 2 else year
    days = year * 365 + past // 4 - past // 100 + past // 400 + _MONTH_DAYS[month - 1] + day
    whole = ((days * 24 + hour) * 60 + minute) * 60 + second
    return whole * PS_PER_S + int((found.group(7) or "0").ljust(12, "0"))


def _days_of(year: int, month: int) -> int:
    if month == _FEBRUARY:
        return 29 if year % 4 == 0 and (year % 100 != 0 or year % 400 == 0) else 28
    return 30 if month in {4, 6, 9, 11} else 31


def batches(path: Path) -> Iterator[Batch]:
    """Requests in time order, from the first one's time on. Raises FormatError."""
    where = str(path)
    rows: list[tuple[int, int, int]] = []
    first = last = None
    has_header = False
    with open_text(path) as stream:
        for number, line in lines(stream, where):
            parts = line.decode("utf-8", errors="replace").strip().lstrip("\ufeff").split(",")
            if not has_header:
                if tuple(part.strip().lower() for part in parts) != HEADER:
                    must = "be TIMESTAMP,ContextTokens,GeneratedTokens"
                    raise FormatError(where, number, "header", ",".join(parts), must)
                has_header = True
                continue
            if len(parts) != 3:
                raise FormatError(where, number, "row", ",".join(parts), "have three columns")
            at = _picoseconds(parts[0])
            if at is None:
                raise FormatError(where, number, "TIMESTAMP", parts[0], "be a UTC time like 2023-11-16 18:17:03.98")
            first = at if first is None else first
            if last is not None and at < last:
                raise FormatError(where, number, "TIMESTAMP", parts[0], "not go back in time")
            last = at
            if at - first > MAX_DURATION_S * PS_PER_S:
                raise FormatError(where, number, "TIMESTAMP", parts[0], "be within 45 days of the first")
            tokens = []
            for field, part in zip(("ContextTokens", "GeneratedTokens"), parts[1:], strict=True):
                if not _TOKENS.fullmatch(part.strip()) or int(part) > 1 << 30:
                    raise FormatError(where, number, field, part, "be a whole number of tokens")
                tokens.append(max(1, int(part)))
            rows.append((tokens[0], tokens[1], at - first))
            if len(rows) == BATCH_REQUESTS:
                yield _batch(rows)
                rows = []
    if rows:
        yield _batch(rows)


def _batch(rows: list[tuple[int, int, int]]) -> Batch:
    columns = np.array(rows, dtype=np.int64)
    return plain_batch(columns[:, 0], columns[:, 1], columns[:, 2])
