"""Starting and ending programs that must not outlive this process, each with a log of its own."""

from __future__ import annotations

import collections.abc
import contextlib
import os
import pathlib
import subprocess
import sys
import time

from e2e import errors

POLL_S = 0.05
TAIL_LINES = 25
_SUPERVISE = pathlib.Path(__file__).with_name("supervise.py")


def spawn(
    arguments: collections.abc.Sequence[str],
    *,
    log: pathlib.Path,
    cwd: pathlib.Path | None = None,
    environment: collections.abc.Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    """Start a program under `supervise.py`, its output appended to `log`; it dies with this process, however that ends.

    A session of its own keeps Ctrl-C at the terminal from reaching it: the owner decides the order of ending.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-I", "-S", str(_SUPERVISE), str(os.getpid()), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=cwd,
            env=None if environment is None else dict(environment),
            start_new_session=True,
        )


def end(process: subprocess.Popen[bytes], *, grace_s: float) -> None:
    """Ask a spawned program to end, and kill it when it has not done so within `grace_s`."""
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(timeout=grace_s)
    except subprocess.TimeoutExpired:
        kill(process)


def kill(process: subprocess.Popen[bytes]) -> None:
    """End a spawned program without letting it clean up, as a crash does.

    Killing the supervisor would return before its child is gone, while a successor needs the child's port; so the
    child is killed first, and the supervisor ends by itself.
    """
    for child in children(process.pid):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, 9)
    try:
        process.wait(timeout=1.0)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def children(pid: int) -> list[int]:
    """The direct children of a process."""
    try:
        text = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii")
    except (FileNotFoundError, ProcessLookupError):
        return []
    return [int(word) for word in text.split()]


def started_at(pid: int) -> str:
    """When a process started, in ticks since boot; empty when there is none."""
    try:
        text = pathlib.Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except (FileNotFoundError, ProcessLookupError):
        return ""
    state, *fields = text.rpartition(") ")[2].split()
    return "" if state == "Z" else fields[18]


def tail(log: pathlib.Path, *, lines: int = TAIL_LINES) -> str:
    """The last lines of a log, or a remark that there is none."""
    try:
        text = log.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return "(no log)"
    return "\n".join(line[:400] for line in text.splitlines()[-lines:]) or "(empty log)"


class Component:
    """One running program of the control plane: its process, its log, and what to say when it fails."""

    def __init__(self, name: str, arguments: collections.abc.Sequence[str], *, log: pathlib.Path) -> None:
        self.name = name
        self.log = log
        self._process = spawn(arguments, log=log)

    @property
    def pid(self) -> int | None:
        """The program's own process id, None once it ended."""
        return next(iter(children(self._process.pid)), None)

    def is_running(self) -> bool:
        """Whether the program has not ended yet."""
        return self._process.poll() is None

    def wait_until(self, is_ready: collections.abc.Callable[[], bool], *, timeout_s: float) -> None:
        """Poll until `is_ready`; raise ComponentError with the log's tail when the program ends or time is over."""
        deadline_s = time.monotonic() + timeout_s
        while not is_ready():
            if not self.is_running():
                raise self.failure(f"ended with exit code {self._process.returncode} before it was ready")
            if time.monotonic() > deadline_s:
                raise self.failure(f"was not ready after {timeout_s:.0f} s")
            time.sleep(POLL_S)

    def failure(self, what: str) -> errors.ComponentError:
        """An error that names this component and shows the end of its log."""
        return errors.ComponentError(f"{self.name} {what}; end of {self.log}:\n{tail(self.log)}")

    def end(self, *, grace_s: float) -> None:
        """End the program, killing it after `grace_s`."""
        end(self._process, grace_s=grace_s)

    def kill(self) -> None:
        """End the program at once, as a crash does."""
        kill(self._process)
