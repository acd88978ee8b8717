"""Setting conditions, purely: the time is an argument, and a condition that says the same keeps its transition time.

`Ready` is always there; `Reconciling` and `Stalled` only while true, never both (Flux polarity, kstatus-compatible).
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable

from inferasim_operator.api.v1alpha1.conditions import (
    READY,
    RECONCILING,
    STALLED,
    Condition,
    ConditionStatus,
)

MESSAGE_LENGTH = 4096
_ORDER = {READY: 0, RECONCILING: 1, STALLED: 2}


def one_line(text: str, length: int) -> str:
    """Text as a status, an event or a terminal takes it: no ends of lines, no control or direction characters.

    Messages quote what servers, engines and files say.
    """
    plain = "".join(c if c.isprintable() else "?" for c in " ".join(text.split()))
    return plain if len(plain) <= length else plain[: length - 1] + "…"


def timestamp(now: datetime.datetime) -> str:
    """The form that Kubernetes uses: UTC, whole seconds."""
    return now.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def set_condition(
    conditions: Iterable[Condition],
    type_: str,
    status: ConditionStatus,
    reason: str,
    message: str,
    *,
    generation: int,
    now: datetime.datetime,
) -> tuple[Condition, ...]:
    """The conditions with one of them set, sorted for human eyes.

    The transition time moves only when the status does, so a repeated reconcile writes the same bytes.
    """
    others = [c for c in conditions if c.type != type_]
    before = next((c for c in conditions if c.type == type_), None)
    since = before.last_transition_time if before is not None and before.status is status else timestamp(now)
    new = Condition(
        type=type_,
        status=status,
        reason=reason,
        message=one_line(message, MESSAGE_LENGTH),
        last_transition_time=since,
        observed_generation=generation,
    )
    return tuple(sorted([*others, new], key=lambda c: (_ORDER.get(c.type, 9), c.type)))


def drop_condition(conditions: Iterable[Condition], type_: str) -> tuple[Condition, ...]:
    """The conditions without one type."""
    return tuple(c for c in conditions if c.type != type_)


class Conditions:
    """The conditions of one reconcile: starts from the live ones, ends with exactly those that were set.

    A type that is not set in this pass is dropped: the list is recomputed, only transition times carry over.
    """

    def __init__(self, live: Iterable[Condition], *, generation: int, now: datetime.datetime) -> None:
        self._live = tuple(live)
        self._set: set[str] = set()
        self._conditions = self._live
        self._generation, self._now = generation, now

    def set(self, type_: str, status: ConditionStatus | bool | None, reason: str, message: str) -> None:
        """Set one condition; True, False and None are short for the three states."""
        if not isinstance(status, ConditionStatus):
            status = {True: ConditionStatus.TRUE, False: ConditionStatus.FALSE, None: ConditionStatus.UNKNOWN}[status]
        others = tuple(c for c in self._conditions if c.type != type_)
        # Compared with what is live, not with what this pass said before: a type set twice is one transition or none.
        before = tuple(c for c in self._live if c.type == type_)
        self._conditions = set_condition(
            (*others, *before), type_, status, reason, message, generation=self._generation, now=self._now
        )
        self._set.add(type_)

    def ready(self, reason: str, message: str) -> None:
        """The object is what its spec asks for."""
        self.set(READY, True, reason, message)
        self._set -= {RECONCILING, STALLED}

    def working(self, reason: str, message: str, *, ready: bool | None = False) -> None:
        """Work goes on by itself; `ready` is what holds meanwhile."""
        self.set(READY, ready, reason, message)
        self.set(RECONCILING, True, reason, message)
        self._set.discard(STALLED)

    def stalled(self, reason: str, message: str) -> None:
        """Nothing will change until a person (or another object) does something."""
        self.set(READY, False, reason, message)
        self.set(STALLED, True, reason, message)
        self._set.discard(RECONCILING)

    def idle(self, reason: str, message: str) -> None:
        """Not ready, and nothing goes on, because that is what was asked for (suspended)."""
        self.set(READY, False, reason, message)
        self._set -= {RECONCILING, STALLED}

    def done(self) -> tuple[Condition, ...]:
        """The conditions that were set, sorted."""
        return tuple(c for c in self._conditions if c.type in self._set)
