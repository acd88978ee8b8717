"""Runs one program and ends it when the process that asked for it is gone.

Started as a script, `python -I -S supervise.py OWNER_PID PROGRAM ARGUMENT…`, one for each component. Why not set
PR_SET_PDEATHSIG on the component directly: the kernel sends that signal when the *thread* that forked ends, so a
component started from a worker thread would die with the thread; and code between fork and exec is unsafe in a parent
that has threads. This process has one thread, so it may do both for its own child, and it watches the owner, whole,
through a pidfd. Killing this process kills the component as well.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import types

OWNER_GONE = 125
NOT_STARTED = 126
PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> int:
    """Run the program; return its exit code, or 128 + signal as a shell does."""
    owner = int(arguments[0])
    try:
        owner_end = os.pidfd_open(owner)
    except ProcessLookupError:
        return OWNER_GONE
    supervisor = os.getpid()
    libc = ctypes.CDLL(None, use_errno=True)
    child: subprocess.Popen[bytes] | None = None

    def forward(number: int, _frame: types.FrameType | None) -> None:
        if child is None:
            sys.exit(128 + number)
        _signal_group(child, number)

    def before_exec() -> None:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != supervisor:
            os._exit(OWNER_GONE)

    signal.signal(signal.SIGTERM, forward)
    signal.signal(signal.SIGINT, forward)
    try:
        child = subprocess.Popen(arguments[1:], preexec_fn=before_exec, process_group=0)  # noqa: PLW1509 - one thread
    except OSError as error:
        print(f"cannot start {arguments[1]}: {error.strerror}", file=sys.stderr, flush=True)
        return NOT_STARTED
    poll = select.poll()
    poll.register(owner_end, select.POLLIN)
    poll.register(os.pidfd_open(child.pid), select.POLLIN)
    ready = {descriptor for descriptor, _ in poll.poll()}
    if owner_end in ready:
        _signal_group(child, signal.SIGKILL)
    code = child.wait()
    return code if code >= 0 else 128 - code


def _signal_group(child: subprocess.Popen[bytes], number: int) -> None:
    """Signal the child and what it started (a compiler has children of its own)."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
