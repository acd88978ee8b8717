"""What the fault tests measured, kept beside them when `INFERASIM_RECORD` is set; docs/faults.md shows it."""

from __future__ import annotations

import json
import os
import pathlib
import time
from collections.abc import Callable

FILE = pathlib.Path(__file__).with_name("faults.json")


class Recorder:
    """Of one test: a row says what was done to the operator, what it did, and how long or how much that took."""

    def __init__(self, test: str) -> None:
        self._test = test

    def row(self, fault: str, *, outcome: str, measured: str) -> None:
        """Keep the test's row; a later one replaces it. Shown on the terminal with -s in any case."""
        print(f"\n{fault}: {measured}")
        if os.environ.get("INFERASIM_RECORD"):
            rows = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}
            rows[self._test] = {"fault": fault, "outcome": outcome, "measured": measured}
            text = json.dumps(rows, indent=1, sort_keys=True, ensure_ascii=False)
            FILE.write_text(text + "\n", encoding="utf-8")


def seconds(wait: Callable[[], object]) -> float:
    """How long `wait` took."""
    started_s = time.monotonic()
    wait()
    return time.monotonic() - started_s
