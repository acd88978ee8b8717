"""Tells people and the operator how far the harvest is: JSON lines on stdout, a file, the ConfigMap."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Protocol, TextIO

from inferasim_harvester.store import FILE as POINTS_FILE
from inferasim_harvester.store import MAX_CHARS, Points, write_whole

PROGRESS_FILE: Final = "progress.json"
ANCHOR_FILE: Final = "anchor.json"
RESULT_FILE: Final = "result.json"
PHASES: Final = (
    "Preparing", "Collectives", "Starting", "WarmingUp", "Prefill", "Decode", "Packed", "Routing", "Checking", "Done",
    "Failed",
)  # fmt: skip


def utc_now() -> str:
    """The time as RFC 3339, to the second."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class Mirror(Protocol):
    """Where files are mirrored to."""

    async def write(self, data: dict[str, str]) -> bool:
        """Sets keys; whether it worked."""
        ...


@dataclass
class Progress:
    """Reports of one harvest. `elapsed_s` is a clock; `costs` weighs the points that are still to come."""

    folder: Path
    clock_s: Callable[[], float]
    now: Callable[[], str] = utc_now
    mirror: Mirror | None = None
    out: TextIO | None = None
    phase: str = "Preparing"
    total: int = 0
    done: int = 0
    measured: list[tuple[float, float]] = field(default_factory=list)
    """(weight, seconds) of the points measured by this process."""
    remaining_weight: float = 0.0
    mirror_failed: bool = False

    def eta_s(self) -> int | None:
        """Seconds left, by the points measured so far; None before the first."""
        weight = sum(item[0] for item in self.measured)
        if not weight:
            return None
        return max(0, round(self.remaining_weight * sum(item[1] for item in self.measured) / weight))

    async def say(self, message: str, phase: str | None = None, points: Points | None = None) -> None:
        """One report; `points` are mirrored with it."""
        self.phase = phase or self.phase
        record: dict[str, object] = {
            "phase": self.phase,
            "pointsDone": self.done,
            "pointsTotal": self.total,
            "message": message[:500],
            "at": self.now(),
        }
        eta_s = self.eta_s()
        if eta_s is not None:
            record["etaSeconds"] = eta_s
        text = json.dumps(record, sort_keys=True)
        print(text, file=self.out or sys.stdout, flush=True)
        data = {PROGRESS_FILE: text}
        write_whole(self.folder / PROGRESS_FILE, text, is_durable=False)
        if points is not None and len(points.text()) <= MAX_CHARS:
            data[POINTS_FILE] = points.text()
        await self._mirror(data)

    async def keep(self, name: str, text: str) -> None:
        """Writes a final file."""
        write_whole(self.folder / name, text)
        await self._mirror({name: text})

    async def _mirror(self, data: dict[str, str]) -> None:
        if self.mirror is None:
            return
        worked = await self.mirror.write(data)
        if not worked and not self.mirror_failed:
            print(json.dumps({"warning": "the ConfigMap could not be written; files are kept"}), file=sys.stderr)
        self.mirror_failed = not worked
