"""The wall clock and the monotonic clock, in one place, so that tests can pass their own."""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable
from dataclasses import dataclass


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


@dataclass(frozen=True)
class Clock:
    """`now` for conditions, `monotonic_s` for timeouts and durations."""

    now: Callable[[], datetime.datetime] = _now
    monotonic_s: Callable[[], float] = time.monotonic
