"""Computations in child processes: one per digest, given up when unwanted, failures told apart."""

from __future__ import annotations

import itertools
import pathlib
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from inferasim_operator.engine.actions import StartComputation
from inferasim_operator.engine.compute import Computation, Computations, Failure, Phase


class Watcher:
    """Computations whose changes can be waited for."""

    def __init__(self, **options: Any) -> None:
        self.changed = threading.Condition()
        self.told: list[Any] = []
        self.computations = Computations("compute_functions:double", on_change=self._note, **options)

    def _note(self, owner: Any) -> None:
        with self.changed:
            self.told.append(owner)
            self.changed.notify_all()

    def ended(self, digest: str) -> Computation:
        with self.changed:
            assert self.changed.wait_for(lambda: self._state(digest).phase in (Phase.DONE, Phase.FAILED), timeout=60)
        return self._state(digest)

    def started(self, digest: str) -> None:
        pause = threading.Event()
        for _ in range(3000):
            if self._state(digest).phase is Phase.RUNNING:
                return
            pause.wait(0.02)
        raise AssertionError("not started within a minute")

    def _state(self, digest: str) -> Computation:
        found = self.computations.state(digest)
        assert found is not None
        return found


@pytest.fixture
def watcher(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watcher]:
    """With the function of `computing/` importable in the children."""
    monkeypatch.setenv("PYTHONPATH", str(pathlib.Path(__file__).parent / "computing"))
    made = Watcher(workers=1, timeout_s=30.0)
    yield made
    made.computations.close()


def _want(digest: str, **request: Any) -> StartComputation:
    return StartComputation(digest, request)


def test_one_answer_for_all_who_want_it(watcher: Watcher) -> None:
    """Two owners of one digest: computed once, both told; the process serves the next question too."""
    watcher.computations.want("a", _want("d1", value=21))
    watcher.computations.want("b", _want("d1", value=21))
    first = watcher.ended("d1")
    assert first.phase is Phase.DONE
    assert first.result is not None
    assert first.result["value"] == 42
    assert sorted(watcher.told) == ["a", "b"]
    watcher.computations.want("a", _want("d2", value=1))
    second = watcher.ended("d2")
    assert second.result is not None
    assert second.result["process"] == first.result["process"]
    watcher.computations.want("b", None)
    assert watcher.computations.state("d1") is None, "what nobody wants is forgotten"


@pytest.mark.usefixtures("watcher")
def test_an_idle_process_is_ended() -> None:
    """Its memory is given back; the next question gets another one."""
    idle = Watcher(workers=1, timeout_s=30.0, idle_s=0.05)
    idle.computations.want("a", _want("d1", value=21))
    first = idle.ended("d1").result
    assert first is not None
    pause = threading.Event()
    for _ in range(3000):
        if not pathlib.Path(f"/proc/{first['process']}").exists():
            break
        pause.wait(0.02)
    assert not pathlib.Path(f"/proc/{first['process']}").exists(), "still there after a minute"
    idle.computations.want("a", _want("d2", value=1))
    second = idle.ended("d2").result
    assert second is not None
    assert second["process"] != first["process"]
    idle.computations.close()


def test_failures(watcher: Watcher) -> None:
    """A refusal keeps its class and field; a process that dies is tried again, then told as such."""
    watcher.computations.want("a", _want("d1", how="refuse"))
    failure = watcher.ended("d1").failure
    assert failure is not None
    assert failure.error.split("/")[:2] == ["UnknownNameError", "InputError"]
    assert (failure.field, "did you mean" in failure.message) == ("model.name", True)
    watcher.computations.want("a", _want("d2", how="die"))
    assert watcher.ended("d2").failure == Failure("WorkerDied", "the computing process died each time")


def test_unwanted_work_is_given_up(watcher: Watcher) -> None:
    """A minute of work ends at once when its owner wants something else."""
    watcher.computations.want("a", _want("d1", how="hang", value=1))
    watcher.started("d1")
    watcher.computations.want("a", _want("d2", value=4))
    result = watcher.ended("d2").result
    assert result is not None
    assert result["value"] == 8


class Script:
    """A child whose words are known, one second apart."""

    def __init__(self, *lines: dict[str, Any] | None) -> None:
        self.now_s, self.lines, self.sent = 0.0, list(lines), list[tuple[float, Any]]()

    def send(self, message: Any) -> bool:
        self.sent.append((self.now_s, message))
        return True

    def receive(self, wait_s: float) -> dict[str, Any] | None:
        self.now_s += 1.0
        return self.lines.pop(0)

    def is_alive(self) -> bool:
        return bool(self.lines)

    def kill(self) -> None:
        raise AssertionError("nobody asked for that")


def test_progress_is_told_once_in_five_seconds_and_the_last_is_not_lost() -> None:
    """23 reports in 23 seconds are told at seconds 5, 10, 15 and 20; the silence after them tells the last."""
    told: list[tuple[float, int]] = []
    reports = [{"progress": {"scored": second}} for second in range(1, 24)]
    child = Script(*reports, None, None, None, None, {"result": {}})

    def note(owner: Any) -> None:
        state = made.state("d")
        assert state is not None
        told.append((child.now_s, state.progress["scored"]))

    made = Computations("", workers=0, monotonic_s=lambda: child.now_s, on_change=note)
    made.want("a", _want("d"))
    assert made._ask(child, "d", {}) == {"result": {}}  # type: ignore[arg-type]
    assert told == [(5.0, 5), (10.0, 10), (15.0, 15), (20.0, 20), (25.0, 23)]


def test_a_child_that_never_stops_reporting_ends_with_its_time() -> None:
    """A time limit is one of the whole, not of silence."""
    child = Script(*[{"progress": {"scored": 1}}] * 40)
    child.kill = lambda: None  # type: ignore[method-assign]
    made = Computations("", workers=0, timeout_s=30.0, monotonic_s=lambda: child.now_s)
    made.want("a", _want("d"))
    answer = made._ask(child, "d", {})  # type: ignore[arg-type]
    assert answer is not None
    assert answer["error"]["type"] == "ComputationTimeout"
    assert child.now_s == 31.0


def test_a_record_is_acknowledged_once_it_is_seen_kept() -> None:
    """Told with the next telling, at second 5; seen in the cluster at second 8; then the child goes on."""
    child = Script({"keep": "one"}, *[None] * 9, {"result": {}})
    seen: list[Any] = []
    made = Computations("", workers=0, monotonic_s=lambda: child.now_s, on_change=lambda _: seen.append(child.now_s))
    made.want("a", _want("d"))
    receive = child.receive

    def later(wait_s: float) -> dict[str, Any] | None:
        if child.now_s == 7.0:
            state = made.state("d")
            assert state is not None
            made.want("a", StartComputation("d", {}, kept=state.record))
        return receive(wait_s)

    child.receive = later  # type: ignore[method-assign]
    assert made._ask(child, "d", {}) == {"result": {}}  # type: ignore[arg-type]
    assert seen == [5.0]
    assert child.sent == [(0.0, {}), (8.0, {"kept": True})]


@pytest.mark.usefixtures("watcher")
def test_a_child_waits_for_its_records_and_begins_again_from_the_last() -> None:
    """Real processes: two records are kept one after the other; one that dies gets its record in its next life."""
    hours = itertools.count(0, 3600)
    made = Watcher(workers=1, timeout_s=1e9, monotonic_s=lambda: float(next(hours)))
    kept: list[str] = []

    def keep(owner: Any) -> None:
        state = made.computations.state(owner)
        if state is not None and state.record is not None and state.record not in kept:
            kept.append(state.record)
            made.computations.want(owner, StartComputation(owner, {}, kept=state.record))
        made._note(owner)

    made.computations.on_change = keep
    made.computations.want("d1", _want("d1", how="keep"))
    assert made.ended("d1").result == {"value": 0}
    assert kept == ["one", "one two"]
    kept.clear()
    made.computations.want("d2", _want("d2", how="die after the first record"))
    assert made.ended("d2").result == {"value": "one"}
    made.computations.close()


def test_overrun_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """A computation has a time limit."""
    monkeypatch.setenv("PYTHONPATH", str(pathlib.Path(__file__).parent / "computing"))
    watcher = Watcher(timeout_s=0.1)
    watcher.computations.want("a", _want("d1", how="hang", value=1))
    assert watcher.ended("d1").failure == Failure("ComputationTimeout", "no answer within 0.1 s")
    watcher.computations.close()
