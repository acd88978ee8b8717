"""An event loop whose clock jumps over idle time, so that a harvest of hours takes seconds.

Works when every party lives in this loop and talks over loopback: sockets are polled for real, and only when none is
ready does the clock jump to the next timer. Threads and child processes would be overtaken.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _JumpingSelector(selectors.DefaultSelector):
    """Never sleeps while a timer is known: it moves the clock instead."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or timeout is None or timeout <= 0:
            # Without any timer only a socket can go on: wait for it, bounded, so that a lost wake-up fails a test.
            return ready if ready or timeout is not None else super().select(5.0)
        self.now_s += timeout
        return super().select(0)


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """`time()` is the jumping clock."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now_s


def run(main: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run` in virtual time."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)
