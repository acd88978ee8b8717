"""Computations in child processes: one per digest, given up when unwanted, failures told apart."""

from __future__ import annotations

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


def test_overrun_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """A computation has a time limit."""
    monkeypatch.setenv("PYTHONPATH", str(pathlib.Path(__file__).parent / "computing"))
    watcher = Watcher(timeout_s=0.1)
    watcher.computations.want("a", _want("d1", how="hang", value=1))
    assert watcher.ended("d1").failure == Failure("ComputationTimeout", "no answer within 0.1 s")
    watcher.computations.close()
