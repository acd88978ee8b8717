"""A cluster with a node comes up by one command, goes by one, and leaves nothing even when its process is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from e2e import leftovers, named, node
from tests.integration.harness import ROOT, until

NAME = "teardown"

pytestmark = pytest.mark.skipif(
    os.environ.get("CLUSTER") == "kind" or os.geteuid() != 0 or bool(node.missing_packages()),
    reason="about this machine's own node, which needs root and its packages",
)


def command(*arguments: str) -> str:
    """`python -m e2e …` as a person types it."""
    answer = subprocess.run(
        [sys.executable, "-m", "e2e", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


@pytest.mark.parametrize("is_killed", [False, True], ids=["down", "killed"])
def test_nothing_is_left(*, is_killed: bool) -> None:
    """After `down`, and after SIGKILL of its process followed by `down`, which then only sweeps."""
    before = leftovers.snapshot()
    assert "export KUBECONFIG=" in command("up", "--node", "--detach", "--name", NAME)
    record = named.find(NAME)
    assert record is not None
    state_dir = named.state_dir(NAME)
    try:
        assert {"etcd", "kube-apiserver", "kube-scheduler", "node"} <= set(record.components)
        assert leftovers.find(before, state_dir) != [], "a running cluster is seen"
        if is_killed:
            os.kill(record.pid, signal.SIGKILL)
            until(lambda: named.find(NAME) is None, "its process is gone")
    finally:
        said = command("down", "--name", NAME).strip()
    assert said == (f"no cluster {NAME!r} is running" if is_killed else "stopped")
    until(lambda: leftovers.find(before, state_dir) == [], "nothing is left", timeout_s=30.0)
    assert not (state_dir / "node").exists()
