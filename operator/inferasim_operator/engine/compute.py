"""Long computations in processes of their own, keyed by the digest of their input.

Neither the event loop nor the threads ever compute: the interpreter's lock would starve watches and probes (C07). Each
of a few slots is a thread that owns one child process (`compute_worker`) and talks to it in JSON lines; a child that
overruns its time or is no longer wanted is killed and replaced. The record of an answer is the ConfigMap that the plan
makes of it, not this object: after a restart what has no ConfigMap is computed again. A computation that must not begin
again from nothing, because it spends money, asks for a record to be kept, and waits until the plan has done it.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import selectors
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from inferasim_operator import metrics
from inferasim_operator.engine.actions import StartComputation

logger = logging.getLogger(__name__)

ATTEMPTS = 3
PROGRESS_EVERY_S = 5.0
IDLE_S = 60.0
"""A child that has had nothing to do for so long is ended: it holds more memory than the rest of an idle operator."""
_STEP_S = 0.5

Owner = Hashable


class Phase(StrEnum):
    """Where a computation stands."""

    WAITING = "Waiting"
    RUNNING = "Running"
    DONE = "Done"
    FAILED = "Failed"


@dataclass(frozen=True)
class Failure:
    """Why a computation has no answer: the error's class, the input field it names, its text."""

    error: str
    message: str
    field: str = ""


@dataclass(frozen=True)
class Computation:
    """The state of one computation, as `observe` sees it."""

    digest: str
    phase: Phase = Phase.WAITING
    progress: Mapping[str, Any] = field(default_factory=dict)
    record: str | None = None
    """What it wants kept before it goes on; a later life of it gets that as `"resume"`."""
    result: Mapping[str, Any] | None = None
    failure: Failure | None = None


class Computations:
    """Runs `function` ("module:name", takes a dict, returns a dict) for whoever wants it. Safe to use from threads."""

    def __init__(
        self,
        function: str,
        *,
        workers: int = 1,
        timeout_s: float = 900.0,
        idle_s: float = IDLE_S,
        on_change: Callable[[Owner], None] = lambda _: None,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._function, self._timeout_s, self._idle_s, self._monotonic_s = function, timeout_s, idle_s, monotonic_s
        self.on_change = on_change
        self._lock = threading.Lock()
        self._states: dict[str, Computation] = {}
        self._requests: dict[str, Mapping[str, Any]] = {}
        self._kept: dict[str, str | None] = {}
        self._wanted: dict[Owner, str] = {}
        self._queue: queue.Queue[str | None] = queue.Queue()
        self._closed = threading.Event()
        self._slots = [
            threading.Thread(target=self._serve, name=f"compute-{number}", daemon=True) for number in range(workers)
        ]
        for slot in self._slots:
            slot.start()

    def state(self, digest: str) -> Computation | None:
        """The computation of this digest, if somebody wants it."""
        with self._lock:
            return self._states.get(digest)

    def want(self, owner: Owner, computation: StartComputation | None) -> None:
        """Say what `owner` wants computed now; what nobody wants any more is given up and forgotten."""
        with self._lock:
            before = self._wanted.pop(owner, None)
            if computation is not None:
                self._wanted[owner] = computation.digest
                self._kept[computation.digest] = computation.kept
                if computation.digest not in self._states:
                    self._states[computation.digest] = Computation(computation.digest)
                    self._requests[computation.digest] = computation.request
                    self._queue.put(computation.digest)
                    metrics.computations_waiting.set(self._queue.qsize())
            if before is not None and before not in self._wanted.values():
                self._states.pop(before, None)
                self._requests.pop(before, None)
                self._kept.pop(before, None)

    def close(self) -> None:
        """End the child processes and the threads."""
        self._closed.set()
        for _ in self._slots:
            self._queue.put(None)
        for slot in self._slots:
            slot.join(timeout=10.0)

    # --- in the slots' threads ---------------------------------------------------------------------------------------

    def _serve(self) -> None:
        child: _Child | None = None
        while True:
            try:
                digest = self._queue.get(timeout=self._idle_s if child is not None else None)
            except queue.Empty:
                if child is not None:
                    child.kill()
                    child = None
                continue
            if digest is None or self._closed.is_set():
                break
            metrics.computations_waiting.set(self._queue.qsize())
            with self._lock:
                request = self._requests.get(digest)
            if request is None:
                continue
            started_s = self._monotonic_s()
            for attempt in range(1, ATTEMPTS + 1):
                if child is None or not child.is_alive():
                    child = _Child(self._function)
                self._set(digest, phase=Phase.RUNNING)
                record = self._record_of(digest)
                answer = self._ask(child, digest, request if record is None else {**request, "resume": record})
                if answer is not None and "died" not in answer:
                    break
                child.kill()
                child = None
                if answer is None:  # unwanted, or closed: no answer is expected
                    break
                logger.warning("computation %s: its process died (attempt %d of %d)", digest, attempt, ATTEMPTS)
            if answer is not None:
                self._record(digest, answer)
                metrics.computation_seconds.observe(self._monotonic_s() - started_s)
        if child is not None:
            child.kill()

    def _ask(self, child: _Child, digest: str, request: Mapping[str, Any]) -> dict[str, Any] | None:
        """The child's last word; `{"died": …}` if it has none, None if nobody wants the answer any more."""
        deadline_s = self._monotonic_s() + self._timeout_s
        told_s = self._monotonic_s()
        untold: dict[str, Any] = {}
        unkept: str | None = None
        if not child.send(request):
            return {"died": True}
        while True:
            line = child.receive(_STEP_S)
            if self._closed.is_set() or self.state(digest) is None:
                return None
            if line is not None and "progress" not in line and "keep" not in line:
                return line
            if line is not None and "keep" in line:
                unkept = untold["record"] = line["keep"]
            elif line is not None:
                untold["progress"] = line["progress"]
            if untold and self._monotonic_s() - told_s >= PROGRESS_EVERY_S:
                told_s = self._monotonic_s()
                self._set(digest, **untold)
                untold = {}
                self._tell(digest)
            if unkept is not None and self._is_kept(digest, unkept):
                unkept = None
                child.send({"kept": True})
            if line is None and not child.is_alive():
                return {"died": True}
            if self._monotonic_s() > deadline_s:
                child.kill()
                text = f"no answer within {self._timeout_s:g} s"
                return {"error": {"type": "ComputationTimeout", "message": text}}

    def _is_kept(self, digest: str, record: str) -> bool:
        with self._lock:
            return self._kept.get(digest) == record

    def _record_of(self, digest: str) -> str | None:
        with self._lock:
            state = self._states.get(digest)
            return None if state is None else state.record

    def _record(self, digest: str, answer: Mapping[str, Any]) -> None:
        if "result" in answer:
            self._set(digest, phase=Phase.DONE, result=answer["result"])
            metrics.computations.labels("success").inc()
        else:
            error = answer.get("error") or {"type": "WorkerDied", "message": "the computing process died each time"}
            failure = Failure(
                error=str(error["type"]), message=str(error["message"])[:4096], field=str(error.get("field") or "")
            )
            self._set(digest, phase=Phase.FAILED, failure=failure)
            metrics.computations.labels("error").inc()
        self._tell(digest)

    def _set(self, digest: str, **changes: Any) -> None:
        with self._lock:
            state = self._states.get(digest)
            if state is not None:
                self._states[digest] = replace(state, **changes)

    def _tell(self, digest: str) -> None:
        with self._lock:
            owners = [owner for owner, wanted in self._wanted.items() if wanted == digest]
        for owner in owners:
            self.on_change(owner)


class _Child:
    """One `compute_worker` process."""

    def __init__(self, function: str) -> None:
        self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and module, no shell
            [sys.executable, "-m", "inferasim_operator.engine.compute_worker", function],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._selector = selectors.DefaultSelector()
        assert self._process.stdout is not None  # noqa: S101 - for the type checker: asked for above
        self._output = self._process.stdout
        self._selector.register(self._output, selectors.EVENT_READ)
        self._partial = b""
        self._lines: list[bytes] = []

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def send(self, request: Mapping[str, Any]) -> bool:
        """Whether the request reached the child."""
        assert self._process.stdin is not None  # noqa: S101 - for the type checker: asked for above
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            return False
        return True

    def receive(self, wait_s: float) -> dict[str, Any] | None:
        """The next line, or None when none came within `wait_s` or the child has ended."""
        if not self._lines and self._selector.select(wait_s):
            chunk = os.read(self._output.fileno(), 1 << 20)
            if not chunk:
                self._process.wait()
                return None
            *whole, self._partial = (self._partial + chunk).split(b"\n")
            self._lines += whole
        if not self._lines:
            return None
        line: dict[str, Any] = json.loads(self._lines.pop(0))
        return line

    def kill(self) -> None:
        """End the child at once and free its pipes."""
        self._process.kill()
        self._process.wait()
        self._selector.close()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except OSError:
                    continue
