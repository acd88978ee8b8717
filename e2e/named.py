"""Clusters that a shell starts by name and ends by name: one process each, found again through a record on disk."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import select
import shutil
import signal
import subprocess
import sys
import time
import types

from e2e import cache, cluster, controlplane, errors, node, processes, progress

WATCH_S = 1.0
READY_S = 3 * controlplane.READY_S
DOWN_S = 4 * controlplane.GRACE_S


@dataclasses.dataclass(frozen=True)
class Record:
    """A running cluster. `started` tells its process from a later one that got the same id."""

    pid: int
    started: str
    kubeconfig: str
    server: str
    components: dict[str, int | None]


def state_dir(name: str) -> pathlib.Path:
    """Where a named cluster keeps its kubeconfig and logs."""
    if not name.replace("-", "").isalnum():
        raise errors.E2EError(f"cluster name {name!r}: only letters, digits and dashes")
    return cache.cache_root() / "clusters" / name


def find(name: str) -> Record | None:
    """The record of a named cluster if its process lives."""
    try:
        record = Record(**json.loads(_record_file(name).read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    return record if processes.started_at(record.pid) == record.started else None


def run(name: str, *, audit: bool, shown: progress.Progress, with_node: bool = False) -> None:
    """Run a named cluster in this process until SIGINT or SIGTERM; raise ComponentError if a component ends itself."""
    kind = cluster.LocalCluster if with_node else controlplane.ControlPlane
    folder = state_dir(name)

    def refuse() -> None:
        raise errors.E2EError(f"cluster {name!r} is already running or starting")

    signal.signal(signal.SIGTERM, _interrupt)
    with cache.exclusive(folder.with_suffix(".lock"), while_waiting=refuse):
        _record_file(name).unlink(missing_ok=True)
        try:
            with kind(state_dir=folder, audit=audit, shown=shown) as running:
                _write_record(name, running)
                print(export_line(str(running.kubeconfig)), flush=True)
                while True:
                    running.check()
                    time.sleep(WATCH_S)
        except KeyboardInterrupt:
            return
        finally:
            _record_file(name).unlink(missing_ok=True)


def detach(name: str, *, audit: bool, with_node: bool = False) -> Record:
    """Start a named cluster in a process of its own session and return once it is ready; reuse a running one."""
    running = find(name)
    if running is not None:
        return running
    log = state_dir(name) / "up.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "e2e", "up", "--name", name, *_options(audit=audit, node=with_node)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=pathlib.Path(__file__).parent.parent,
            start_new_session=True,
        )
    deadline_s = time.monotonic() + READY_S
    while (record := find(name)) is None:
        if process.poll() is not None or time.monotonic() > deadline_s:
            processes.end(process, grace_s=controlplane.GRACE_S)
            raise errors.ComponentError(f"cluster {name!r} did not start; end of {log}:\n{processes.tail(log)}")
        time.sleep(processes.POLL_S)
    return record


def _options(**switches: bool) -> list[str]:
    return [f"--{name}" for name, is_on in switches.items() if is_on]


def down(name: str) -> bool:
    """End a named cluster, wait until it is gone, and remove what killed ones left; False when there was none."""
    try:
        return _down(name)
    finally:
        node.sweep()
        _remove_left(name)


def _remove_left(name: str) -> None:
    """Remove the images and pods that a killed process could not, unless a new one is starting there."""

    def refuse() -> None:
        raise errors.E2EError("in use")

    with (
        contextlib.suppress(errors.E2EError),
        cache.exclusive(state_dir(name).with_suffix(".lock"), while_waiting=refuse),
    ):
        shutil.rmtree(state_dir(name) / "node", ignore_errors=True)


def _down(name: str) -> bool:
    record = find(name)
    if record is None:
        return False
    try:
        process = os.pidfd_open(record.pid)
    except ProcessLookupError:
        return True
    try:
        signal.pidfd_send_signal(process, signal.SIGTERM)
        poll = select.poll()
        poll.register(process, select.POLLIN)
        if not poll.poll(DOWN_S * 1000):
            signal.pidfd_send_signal(process, signal.SIGKILL)
    except ProcessLookupError:
        return True
    finally:
        os.close(process)
    return True


def export_line(kubeconfig: str) -> str:
    """What to type, or to `eval`, so that kubectl talks to the cluster."""
    return f"export KUBECONFIG={kubeconfig}"


def _write_record(name: str, running: controlplane.ControlPlane) -> None:
    record = Record(
        pid=os.getpid(),
        started=processes.started_at(os.getpid()),
        kubeconfig=str(running.kubeconfig),
        server=running.server,
        components=running.pids(),
    )
    whole = _record_file(name).with_suffix(".new")
    whole.write_text(json.dumps(dataclasses.asdict(record), indent=2), encoding="utf-8")
    whole.replace(_record_file(name))


def _record_file(name: str) -> pathlib.Path:
    return state_dir(name) / "cluster.json"


def _interrupt(_number: int, _frame: types.FrameType | None) -> None:
    raise KeyboardInterrupt
