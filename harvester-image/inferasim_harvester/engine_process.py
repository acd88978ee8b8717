"""The engine as a child process: its log in a file, its death noticed, its whole group ended."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from inferasim_harvester.errors import EngineStartError

STOP_GRACE_S: Final = 20.0
TAIL_BYTES: Final = 6000
MAX_LOG_BYTES: Final = 8 * 1024 * 1024
OWN_BIN: Final = "/opt/inferasim/bin"
"""Holds our `python` in the image; the engine must find its own."""


class EngineProcess:
    """One engine. `argv` goes to exec as it is: no shell."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str], log: Path) -> None:
        self.argv, self.env, self.log = list(argv), dict(env), log
        self.process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Starts it in a process group of its own. Raises EngineStartError."""
        path = os.pathsep.join(part for part in os.environ.get("PATH", "").split(os.pathsep) if part != OWN_BIN)
        environment = {**os.environ, **self.env, "PATH": path}
        try:
            with self.log.open("wb") as stream:
                self.process = await asyncio.create_subprocess_exec(
                    *self.argv,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=stream,
                    stderr=asyncio.subprocess.STDOUT,
                    env=environment,
                    start_new_session=True,
                )
        except (OSError, ValueError) as error:
            raise EngineStartError(f"cannot start {self.argv[0]!r}: {error}") from error

    @property
    def exit_code(self) -> int | None:
        """How it ended; None while it runs."""
        return self.process.returncode if self.process is not None else None

    def command_line(self) -> list[str] | None:
        """The arguments that the process runs with by the kernel's word, which a wrapper script may have changed."""
        return None if self.process is None else longest_command_line(group_of(self.process.pid), self.argv)

    async def stop(self) -> None:
        """Ends the whole group, workers too; bounded."""
        if self.process is None:
            return
        group = self.process.pid
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGTERM)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.process.wait(), STOP_GRACE_S)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.process.wait(), STOP_GRACE_S)

    def log_tail(self) -> str:
        """The last lines of the log."""
        return read_text(self.log, TAIL_BYTES, from_end=True)

    def log_text(self) -> str:
        """The log's beginning, where engines state what they run with."""
        return read_text(self.log, MAX_LOG_BYTES)


def read_text(path: Path, limit_bytes: int, *, from_end: bool = False) -> str:
    """Up to `limit_bytes` of a file as text; empty when it cannot be read."""
    try:
        with path.open("rb") as stream:
            if from_end:
                stream.seek(max(0, path.stat().st_size - limit_bytes))
            return stream.read(limit_bytes).decode("utf-8", "replace")
    except OSError:
        return ""


def group_of(pid: int, root: Path = Path("/proc")) -> list[list[str]]:
    """Command lines of the processes of a session, its leader first."""
    found: dict[int, list[str]] = {}
    for entry in root.iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError, ValueError, IndexError):
            # Fields after the name in parentheses: state, parent, group, session.
            session = int((entry / "stat").read_text().rpartition(")")[2].split()[3])
            line = (entry / "cmdline").read_bytes().rstrip(b"\0").split(b"\0")
            if session == pid and line != [b""]:
                found[int(entry.name)] = [part.decode("utf-8", "replace") for part in line]
    return [found[key] for key in sorted(found, key=lambda key: (key != pid, key))]


def longest_command_line(lines: Sequence[Sequence[str]], argv: Sequence[str]) -> list[str] | None:
    """The process that serves: the last of `lines` that names the port we gave; None when none does."""
    port = next((token.split("=")[-1] for token in argv if "port=" in token), None)
    serving = [line for line in lines if port and any(port in token for token in line if token.startswith("-"))]
    return list(serving[-1]) if serving else None


def beside(marker: str, root: Path = Path("/proc")) -> list[str] | None:
    """The command line of an engine in a container beside us (shared process namespace); None when it is not seen."""
    for entry in sorted(root.iterdir()):
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            line = [part.decode("utf-8", "replace") for part in (entry / "cmdline").read_bytes().split(b"\0") if part]
            if any(marker in token for token in line):
                return line
    return None
