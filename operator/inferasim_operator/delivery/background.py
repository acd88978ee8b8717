"""Git deliveries in threads of their own: a slow or dead remote holds up no reconcile, and is retried with back-off."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from inferasim_operator.delivery.git import GitError, GitOutcome, GitRequest, deliver
from simcore.errors import InputError

logger = logging.getLogger(__name__)
FIRST_RETRY_S: Final = 5.0
LAST_RETRY_S: Final = 300.0
WORKERS: Final = 2


@dataclass(frozen=True)
class DeliveryState:
    """Where the delivery of one digest stands; `outcome` None and no problem = under way."""

    digest: str
    outcome: GitOutcome | None = None
    problem: str = ""
    attempts: int = 0
    retry_at_s: float = 0.0
    """Monotonic time before which it is not tried again."""


class Deliveries:
    """Runs the wanted delivery of each owner, one at a time per owner. Safe to use from threads."""

    def __init__(
        self,
        run: Callable[[GitRequest], GitOutcome] = deliver,
        *,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._run, self._monotonic_s = run, monotonic_s
        self._lock = threading.Lock()
        self._states: dict[Hashable, DeliveryState] = {}
        self._running: set[Hashable] = set()
        self._pool = ThreadPoolExecutor(WORKERS, thread_name_prefix="git")

    def want(self, owner: Hashable, digest: str, request: GitRequest) -> DeliveryState:
        """Ask for a delivery; starts it unless it is done, runs, or waits for its next attempt."""
        with self._lock:
            state = self._states.get(owner)
            if state is None or state.digest != digest:
                state = DeliveryState(digest)
                self._states[owner] = state
            is_due = state.outcome is None and self._monotonic_s() >= state.retry_at_s
            if is_due and owner not in self._running:
                self._running.add(owner)
                self._pool.submit(self._deliver, owner, state, request)
            return state

    def forget(self, owner: Hashable) -> None:
        """The owner wants nothing any more."""
        with self._lock:
            self._states.pop(owner, None)

    def close(self) -> None:
        """Wait for what runs; start nothing more."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _deliver(self, owner: Hashable, state: DeliveryState, request: GitRequest) -> None:
        try:
            done = DeliveryState(state.digest, outcome=self._run(request))
        except Exception as error:
            problem = str(error)
            if not isinstance(error, GitError | InputError):
                # A thread that died silently would leave the delivery under way for ever.
                logger.exception("delivery for %s: internal error", owner)
                problem = f"internal error: {type(error).__name__}"
            attempts = state.attempts + 1
            wait_s = min(FIRST_RETRY_S * 2 ** (attempts - 1), LAST_RETRY_S)
            done = DeliveryState(state.digest, None, problem, attempts, self._monotonic_s() + wait_s)
        with self._lock:
            self._running.discard(owner)
            if owner in self._states and self._states[owner].digest == state.digest:
                self._states[owner] = done
