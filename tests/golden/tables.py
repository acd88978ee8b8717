"""Golden tables: a row without a source does not load, a file without an entry in its SOURCES.md does not load."""

from __future__ import annotations

import csv
from pathlib import Path

GOLDEN = Path(__file__).parent


class GoldenError(ValueError):
    """A golden table breaks the rules of the house."""


def load_table(name: str, root: Path = GOLDEN) -> list[dict[str, str]]:
    """Rows of `name`, e.g. `paper/table_19.csv`. Raises GoldenError for rows or files without a source."""
    path = root / name
    sources = path.parent / "SOURCES.md"
    if not sources.exists() or f"| {path.name} |" not in sources.read_text(encoding="utf-8"):
        raise GoldenError(f"{name} has no entry in SOURCES.md")
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    if not rows:
        raise GoldenError(f"{name} is empty")
    for number, row in enumerate(rows, start=2):
        if None in row or None in row.values():
            raise GoldenError(f"{name}, line {number}: not as many cells as the header")
        if not (row.get("source") or "").strip():
            raise GoldenError(f"{name}, line {number}: no source")
    return rows
