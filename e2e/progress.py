"""One line that tells a person how a long step goes, and that does not flood a log file."""

from __future__ import annotations

import collections.abc
import sys
import time
import typing

TERMINAL_EVERY_S = 0.5
LOG_EVERY_S = 30.0


class Progress:
    """Rewrites one line on a terminal; elsewhere prints a line at once and then every half minute."""

    def __init__(
        self,
        stream: typing.TextIO | None = None,
        *,
        clock: collections.abc.Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._clock = clock
        self._terminal = self._stream.isatty()
        self._started_s = clock()
        self._shown_s: float | None = None
        self._width = 0

    def elapsed(self) -> str:
        """Time since the start, as minutes and seconds."""
        minutes, seconds = divmod(int(self._clock() - self._started_s), 60)
        return f"{minutes:02d}:{seconds:02d}"

    def update(self, text: str) -> None:
        """Show `text` if the last line is old enough by now."""
        now_s = self._clock()
        every_s = TERMINAL_EVERY_S if self._terminal else LOG_EVERY_S
        if self._shown_s is not None and now_s - self._shown_s < every_s:
            return
        self._shown_s = now_s
        self._write(text, end="" if self._terminal else "\n")

    def finish(self, text: str) -> None:
        """Show `text` as the last line of this step, whenever the one before was."""
        self._write(text, end="\n")
        self._width = 0
        self._shown_s = None

    def _write(self, text: str, *, end: str) -> None:
        line = f"[{self.elapsed()}] {text}"
        if self._terminal:
            padding = " " * max(0, self._width - len(line))
            self._stream.write(f"\r{line}{padding}{end}")
            self._width = len(line)
        else:
            self._stream.write(line + end)
        self._stream.flush()
