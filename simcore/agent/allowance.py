"""Requests to the language model, which cost money: granted in lumps, and written down before the first is made.

A search that is begun again from its ledger counts what was granted as made. So it may make fewer requests than its
budget, never more, wherever it was cut off.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from simcore.agent.tools import SearchOver
from simcore.search.ledger import Session

LUMP_COUNT: Final = 8
"""Requests of one grant: what a cut costs at most."""


class Allowance:
    """What one search may still ask, in this life of it."""

    def __init__(self, session: Session, keep: Callable[[], None]) -> None:
        """`keep` returns once the ledger is where another life of the search will find it."""
        self._session, self._keep, self._left_count = session, keep, 0

    @property
    def is_used(self) -> bool:
        """Whether the next request would be refused."""
        return self._left_count == 0 and self._session.requests_left_count == 0

    def take(self) -> None:
        """Count one request that is about to be made. Raises SearchOver when none is left."""
        if self._left_count == 0:
            self._left_count = self._session.grant(LUMP_COUNT)
            if self._left_count == 0:
                raise SearchOver("the requests to the language model are used")
            self._keep()
        self._left_count -= 1
