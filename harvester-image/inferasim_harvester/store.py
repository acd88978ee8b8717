"""The points measured so far, kept under the spec's digest: a second pod measures only what is missing."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

SCHEMA_ID: Final = "inferasim.dev/harvest-points/v1"
FILE: Final = "points.json"
MAX_CHARS: Final = 900_000
"""A ConfigMap holds 1 MiB in all."""


def write_whole(path: Path, text: str, *, is_durable: bool = True) -> None:
    """Replaces a file in one step: a reader, or a restart, sees the old text or the new one.

    A durable file also survives the machine; that waits for the disk.
    """
    beside = path.with_name(path.name + ".tmp")
    with beside.open("w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        if is_durable:
            os.fsync(stream.fileno())
    beside.replace(path)


class Points:
    """Point name to its record (plain JSON data)."""

    def __init__(self, folder: Path, digest: str, known: Mapping[str, Any] | None = None) -> None:
        self.path, self.digest = folder / FILE, digest
        self.records: dict[str, Any] = dict(known or {})

    @classmethod
    def restore(cls, folder: Path, digest: str, mirrored: str | None) -> Points:
        """From the folder, else from the ConfigMap's copy; points of another spec are left behind."""
        points = cls(folder, digest)
        try:
            own: str | None = points.path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            own = None
        for text in (own, mirrored):
            records = _records(text, digest)
            if records is not None:
                points.records = records
                break
        return points

    def __contains__(self, name: str) -> bool:
        return name in self.records

    def add(self, name: str, record: Mapping[str, Any]) -> None:
        """Keeps one point, at once and whole."""
        self.records[name] = dict(record)
        write_whole(self.path, self.text())

    def text(self) -> str:
        """The file's text."""
        plain = {"schema": SCHEMA_ID, "specDigest": self.digest, "points": self.records}
        return json.dumps(plain, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _records(text: str | None, digest: str) -> dict[str, Any] | None:
    if not text or len(text) > 2 * MAX_CHARS:
        return None
    try:
        plain = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(plain, dict) or plain.get("schema") != SCHEMA_ID or plain.get("specDigest") != digest:
        return None
    points = plain.get("points")
    return points if isinstance(points, dict) and all(isinstance(v, dict) for v in points.values()) else None
