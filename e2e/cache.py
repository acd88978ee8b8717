"""Where built programs live, and the lock that lets several builders share that place.

The cache is outside the work tree so that a clean checkout, or several of them, find what was built before.
"""

from __future__ import annotations

import collections.abc
import contextlib
import fcntl
import os
import pathlib
import shutil
import tempfile
import time

POLL_S = 0.2
STAGING = ".staging-"


def cache_root() -> pathlib.Path:
    """The cache folder: `INFERASIM_CACHE`, else `inferasim` under `XDG_CACHE_HOME`, else under `~/.cache`."""
    own = os.environ.get("INFERASIM_CACHE")
    if own:
        return pathlib.Path(own).expanduser().absolute()
    shared = os.environ.get("XDG_CACHE_HOME")
    base = pathlib.Path(shared) if shared else pathlib.Path.home() / ".cache"
    return base / "inferasim"


@contextlib.contextmanager
def exclusive(
    lock_file: pathlib.Path, *, while_waiting: collections.abc.Callable[[], None]
) -> collections.abc.Iterator[None]:
    """Hold `lock_file` for the body; call `while_waiting` at each poll as long as somebody else holds it.

    The kernel drops the lock with the process, so a killed builder never leaves a stale one. The file itself stays:
    removing it would let two holders lock two different inodes of one name.
    """
    lock_file.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                while_waiting()
                time.sleep(POLL_S)
        yield
    finally:
        os.close(descriptor)


def staging_folder(parent: pathlib.Path) -> pathlib.Path:
    """An empty folder to make something in before it is renamed into `parent`; the caller holds the lock there.

    Since nobody else can be at work, what earlier holders left when they were killed is removed.
    """
    for left in parent.glob(f"{STAGING}*"):
        shutil.rmtree(left, ignore_errors=True)
    return pathlib.Path(tempfile.mkdtemp(prefix=STAGING, dir=parent))
