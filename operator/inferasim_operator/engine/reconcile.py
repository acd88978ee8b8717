"""One pass over one object: observe → plan → apply → finish. Blocking; the loop runs it in a thread.

The finish step (status, events, metrics) runs on failure too, so that an error is always on the object that has it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from inferasim_operator import metrics
from inferasim_operator.api.v1alpha1.conditions import READY, Condition
from inferasim_operator.convert import parse_conditions
from inferasim_operator.engine import apply, events, names
from inferasim_operator.engine.actions import Announcement, ObjectKey, Plan
from inferasim_operator.engine.clock import Clock
from inferasim_operator.engine.conditions import Conditions
from inferasim_operator.engine.kind import Context, Kind
from inferasim_operator.errors import NotFoundError, OperatorError

logger = logging.getLogger(__name__)

PROGRESS_EVERY_S = 5.0
"""A status that differs in `progress` alone is written no oftener, whatever wakes the object in between."""


@dataclass(frozen=True)
class Outcome:
    """What the loop needs to know of a pass."""

    gone: bool = False
    failed: bool = False
    """To be tried again, with backoff."""
    wake_after_s: float | None = None
    written_version: str = ""
    """The resourceVersion that our own status write gave: its echo on the watch wakes nobody."""


@dataclass(frozen=True)
class Reconciler:
    """Runs passes for one kind."""

    kind: Kind[Any]
    context: Context
    clock: Clock
    _progress_told_s: dict[ObjectKey, float] = field(default_factory=dict)

    def run(self, key: ObjectKey) -> Outcome:
        """One pass. Never raises: a failure is an outcome, on the object's status if that can be written."""
        started_s = self.clock.monotonic_s()
        try:
            outcome = self._pass(key)
        except Exception as error:
            outcome = self._fail(key, error)
        result = "gone" if outcome.gone else "error" if outcome.failed else "success"
        metrics.reconciles.labels(self.kind.resource.kind, result).inc()
        metrics.reconcile_seconds.labels(self.kind.resource.kind).observe(self.clock.monotonic_s() - started_s)
        return outcome

    def _pass(self, key: ObjectKey) -> Outcome:
        observed = self.kind.observe(self.context, key)
        if observed is None or observed.raw["metadata"].get("deletionTimestamp"):
            self._want(key, None)
            self._progress_told_s.pop(key, None)
            return Outcome(gone=True)
        now = self.clock.now()
        plan: Plan = self.kind.plan(observed, now)
        changed = apply.carry_out(self.context.client, plan.actions, owner_uid=observed.raw["metadata"]["uid"])
        self._want(key, plan)
        announcements = [*events.of_changes(changed.changes), *plan.announcements]
        status = plan.status.to_dict()
        if changed.errors:
            status["conditions"] = self._failure_conditions(observed.raw, plan.status.conditions, changed.errors)
        retry = any(not error.is_terminal for error in changed.errors)
        early_s = self._early_s(key, observed.raw.get("status") or {}, status)
        if early_s > 0:
            events.send(self.context.client, observed.raw, announcements, now=self.clock.now())
            return Outcome(failed=retry, wake_after_s=min(early_s, plan.wake_after_s or early_s))
        version = self._finish(observed.raw, status, announcements)
        return Outcome(failed=retry, wake_after_s=plan.wake_after_s, written_version=version)

    def _early_s(self, key: ObjectKey, live: Mapping[str, Any], status: Mapping[str, Any]) -> float:
        """Seconds until this status may be written; 0 unless it differs from the live one in its progress alone."""
        if names.canonical_json(status.get("progress")) == names.canonical_json(live.get("progress")):
            return 0.0
        others, before = ({**said, "progress": None} for said in (status, live))
        now_s = self.clock.monotonic_s()
        if names.canonical_json(others) == names.canonical_json(before):
            early_s = self._progress_told_s.get(key, -PROGRESS_EVERY_S) + PROGRESS_EVERY_S - now_s
            if early_s > 0:
                return early_s
        self._progress_told_s[key] = now_s
        return 0.0

    def _want(self, key: ObjectKey, plan: Plan | None) -> None:
        if self.context.computations is not None:
            wanted = plan.computation if plan is not None else None
            self.context.computations.want((self.kind.resource.kind, key), wanted)

    def _fail(self, key: ObjectKey, error: Exception) -> Outcome:
        """The finish step of a pass that raised."""
        if isinstance(error, OperatorError):
            logger.warning("%s %s: %s", self.kind.resource.kind, key, error)
        else:
            logger.exception("%s %s: internal error", self.kind.resource.kind, key)
        try:
            live = self.context.client.get(
                self.kind.resource.api_version, self.kind.resource.kind, key.namespace, key.name
            )
            status = dict(live.get("status") or {})
            status["observedGeneration"] = int(live["metadata"].get("generation", 0))
            status["conditions"] = self._failure_conditions(live, parse_conditions(live), [error])
            self._finish(live, status, [])
        except NotFoundError:
            return Outcome(gone=True)
        except OperatorError as second:
            logger.warning("%s %s: status not written: %s", self.kind.resource.kind, key, second)
        return Outcome(failed=not (isinstance(error, OperatorError) and error.is_terminal))

    def _failure_conditions(
        self, live: Mapping[str, Any], planned: Sequence[Condition], errors: Sequence[Exception]
    ) -> list[dict[str, Any]]:
        conditions = Conditions(
            parse_conditions(live), generation=int(live["metadata"].get("generation", 0)), now=self.clock.now()
        )
        for condition in planned:
            conditions.set(condition.type, condition.status, condition.reason, condition.message)
        known = [error for error in errors if isinstance(error, OperatorError)]
        reason = known[0].reason if known else "InternalError"
        text = "; ".join(
            str(e) if isinstance(e, OperatorError) else f"internal error: {type(e).__name__}" for e in errors
        )
        if known and all(error.is_terminal for error in known) and len(known) == len(errors):
            conditions.stalled(reason, text)
        else:
            conditions.working(reason, f"{text}; will be tried again")
        return [condition.to_dict() for condition in conditions.done()]

    def _finish(self, live: Mapping[str, Any], status: dict[str, Any], announcements: list[Announcement]) -> str:
        """Write the status if it differs, then the events. Returns the version written, or empty."""
        version = ""
        if names.canonical_json(status) != names.canonical_json(live.get("status") or {}):
            metadata = live["metadata"]
            manifest = {
                "apiVersion": live["apiVersion"],
                "kind": live["kind"],
                "metadata": {"name": metadata["name"], "namespace": metadata["namespace"], "uid": metadata["uid"]},
                "status": status,
            }
            answer = self.context.client.apply_status(manifest)
            version = str(answer["metadata"]["resourceVersion"])
            turned = events.of_ready(parse_conditions(live), parse_conditions({"status": status}))
            announcements = [*announcements, *turned]
        events.send(self.context.client, live, announcements, now=self.clock.now())
        return version


def is_ready(live: Mapping[str, Any]) -> bool:
    """Whether a live object of ours says Ready=True about its present generation."""
    generation = live["metadata"].get("generation")
    return any(
        c.type == READY and c.status == "True" and c.observed_generation == generation for c in parse_conditions(live)
    )
