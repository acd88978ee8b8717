"""What a Git server may answer: bytes that are no text, orders to a terminal, endless lines; it is said as one line."""

from __future__ import annotations

import pathlib
import subprocess
import threading

import pytest

from inferasim_operator.delivery.background import Deliveries, DeliveryState
from inferasim_operator.delivery.git import GitError, GitOutcome, GitRequest, deliver
from inferasim_operator.engine.conditions import one_line

FILES = {"manifests.yaml": "---\nkind: Service\n"}
ANSWERS = {
    "no-text": rb"\377\376\200 remote: error: \377",
    "terminal": rb"error: \033]0;owned\007\033[2J\033[31mall is well",
    "endless": b"fatal: " + b"x" * 100_000,
    "nothing": b"",
    "lines": rb"error: one\nerror: two\r\nfatal: three",
}


@pytest.mark.parametrize("name", sorted(ANSWERS))
def test_a_server_that_says_what_it_likes(tmp_path: pathlib.Path, name: str) -> None:
    bare = tmp_path / "remote.git"
    subprocess.run(["git", "init", "--quiet", "--bare", "--initial-branch", "main", str(bare)], check=True)
    hook = bare / "hooks" / "pre-receive"
    hook.parent.mkdir(exist_ok=True)
    hook.write_bytes(b"#!/bin/sh\nprintf '" + ANSWERS[name] + b"' >&2\nexit 1\n")
    hook.chmod(0o755)
    with pytest.raises(GitError) as caught:
        deliver(GitRequest(f"file://{bare}", "main", "a", FILES, "Deploy\n"), allow_local=True)
    said = one_line(str(caught.value), 4096)
    assert said.isprintable()
    assert len(said) < 300


def test_an_error_that_nobody_foresaw_is_told_and_tried_again() -> None:
    """It does not leave the delivery under way for ever."""
    attempts, now = threading.Semaphore(0), [0.0]

    def fail(_: GitRequest) -> GitOutcome:
        attempts.release()
        raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")

    deliveries = Deliveries(fail, monotonic_s=lambda: now[0])
    request = GitRequest("https://git.example.test/a", "main", "a", FILES, "Deploy\n")

    def ended(attempts_count: int) -> DeliveryState:
        pause = threading.Event()
        for _ in range(3000):
            state = deliveries.want("mix", "digest", request)
            if state.attempts == attempts_count:
                return state
            pause.wait(0.01)
        raise AssertionError(f"no attempt {attempts_count} within half a minute")

    assert ended(1).problem == "internal error: UnicodeDecodeError"
    now[0] += 10.0
    assert ended(2).attempts == 2
    deliveries.close()
