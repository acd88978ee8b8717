"""One active operator: a Lease of our own (kopf's peering pauses all peers of equal priority, strangers' too: C02).

A process that dies is replaced when its lease has run out; one that ends well gives the lease back at once. A process
that cannot renew in time must end, because another may lead by then.
"""

from __future__ import annotations

import datetime
import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from inferasim_operator.engine.client import Client
from inferasim_operator.engine.clock import Clock
from inferasim_operator.errors import AlreadyExistsError, ClusterError, ConflictError

logger = logging.getLogger(__name__)
API_VERSION, KIND = "coordination.k8s.io/v1", "Lease"


def _micro_time(moment: datetime.datetime) -> str:
    return moment.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


@dataclass
class Lease:
    """The lease `namespace/name`, wanted by `identity`. All methods block."""

    client: Client
    clock: Clock
    namespace: str
    name: str
    identity: str
    duration_s: int = 15

    def __post_init__(self) -> None:
        self._seen: tuple[str, str, int] | None = None
        self._seen_at_s = 0.0
        self._renewed_at_s = 0.0

    def acquire(self, stop: threading.Event) -> bool:
        """Wait until this process leads; False when told to stop before."""
        waiting_told = False
        while not stop.is_set():
            try:
                if self.try_acquire():
                    logger.info("leading as %s", self.identity)
                    return True
                if not waiting_told:
                    logger.info("another instance leads; waiting")
                    waiting_told = True
            except ClusterError as error:
                logger.warning("lease %s/%s: %s", self.namespace, self.name, error)
            stop.wait(self.duration_s / 5)
        return False

    def hold(self, stop: threading.Event) -> None:
        """Renew until told to stop; returns earlier only when another has taken the lease."""
        pause_s = self.duration_s / 5
        while not stop.wait(pause_s):
            pause_s = self.duration_s / 5
            try:
                if not self.try_acquire():
                    logger.error("lease taken by another instance")
                    return
            except ClusterError as error:
                logger.warning("lease %s/%s not renewed: %s", self.namespace, self.name, error)
                pause_s = self.duration_s / 30  # there is time for one more, perhaps over a better connection

    def left_s(self) -> float:
        """Seconds until this process must have renewed, or stop: well before another may take the lease."""
        return self._renewed_at_s + self.duration_s * 2 / 3 - self.clock.monotonic_s()

    def try_acquire(self) -> bool:
        """Take or renew the lease if it is free, run out or ours. Raises ClusterError."""
        live = self.client.find(API_VERSION, KIND, self.namespace, self.name)
        started_s = self.clock.monotonic_s()
        try:
            if live is None:
                self.client.create(self._manifest({}))
            elif self._is_free(live):
                self.client.replace(self._manifest(live))
            else:
                return False
        except (AlreadyExistsError, ConflictError):
            return False
        self._renewed_at_s = started_s
        return True

    def release(self) -> None:
        """Give the lease back, so that a successor need not wait."""
        try:
            live = self.client.find(API_VERSION, KIND, self.namespace, self.name)
            if live is not None and live["spec"].get("holderIdentity") == self.identity:
                live["spec"]["holderIdentity"] = ""
                self.client.replace(live)
        except ClusterError as error:
            logger.warning("lease %s/%s not released: %s", self.namespace, self.name, error)

    def _is_free(self, live: Mapping[str, Any]) -> bool:
        """Whether we may take it. Judged by our own clock since we last saw it change: clocks of two nodes differ."""
        spec = live.get("spec") or {}
        holder = spec.get("holderIdentity") or ""
        if holder in ("", self.identity):
            return True
        seen = (holder, str(spec.get("renewTime")), int(spec.get("leaseDurationSeconds") or 0))
        if seen != self._seen:
            self._seen, self._seen_at_s = seen, self.clock.monotonic_s()
            return False
        return self.clock.monotonic_s() - self._seen_at_s > seen[2]

    def _manifest(self, live: Mapping[str, Any]) -> dict[str, Any]:
        now = _micro_time(self.clock.now())
        before = live.get("spec") or {}
        ours = before.get("holderIdentity") == self.identity
        spec = {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": self.duration_s,
            "renewTime": now,
            "acquireTime": before.get("acquireTime", now) if ours else now,
            "leaseTransitions": int(before.get("leaseTransitions") or 0) + (0 if ours or not before else 1),
        }
        metadata = live.get("metadata") or {"name": self.name, "namespace": self.namespace}
        return {"apiVersion": API_VERSION, "kind": KIND, "metadata": dict(metadata), "spec": spec}
