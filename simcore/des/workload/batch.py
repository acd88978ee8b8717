"""The one shape every workload is turned into: batches of sessions of requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from simcore.des.kernel import arena as kernel_arena
from simcore.des.kernel import fields as f
from simcore.des.kernel import loop
from simcore.des.kernel.fields import Ints


@dataclass(frozen=True, eq=False)
class Batch:
    """Whole sessions, ready to load. A session is what one client works through; most have one request."""

    columns: Ints
    """(requests, LOAD_COLUMNS) int64; LOAD_LEAF is a row of `arena` or -1, LOAD_SESSION counts from 0 in the batch."""
    sessions_count: int
    parents: Ints
    """(waits,) request positions that must end first, and ..."""
    children: Ints
    """(waits,) ... the positions that wait for them."""
    arena: Ints
    """(blocks, A_FIELDS) the tree of prompt blocks."""

    @property
    def first_timestamp_ps(self) -> int:
        return int(self.columns[:, loop.LOAD_TIMESTAMP].min())


@dataclass(frozen=True)
class Workload:
    """A stream of batches and how it is sent.

    `clients` None: open loop, each session starts at its first request's timestamp, and batches come in that order.
    Otherwise a closed loop: `clients` clients take sessions one after the other and timestamps mean nothing.
    """

    batches: Callable[[np.random.SeedSequence], Iterator[Batch]]
    clients: int | None
    block_tokens: int = 0
    """Tokens of one prefix block; 0 when prompts share nothing."""
    requests_count: int | None = None
    """If known before the end."""
    most_in_flight: int | None = None
    """A bound on requests under way at once, where the load gives one (a client sends one request at a time)."""
    source: str = ""


@dataclass
class BatchBuilder:
    """Collects sessions, then makes a batch."""

    block_tokens: int = 0
    """Tokens of a prefix block, where the last one of a prompt may be partial; 0: none is."""
    _rows: list[tuple[int, ...]] = field(default_factory=list)
    _parents: list[int] = field(default_factory=list)
    _children: list[int] = field(default_factory=list)
    _sessions: int = 0
    _arena: Ints = field(default_factory=lambda: np.zeros((1024, f.A_FIELDS), np.int64))
    _blocks: int = 0

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def blocks_count(self) -> int:
        return self._blocks

    def start_session(self) -> None:
        """Requests added from now on belong to a new session."""
        self._sessions += 1

    def path(self, ids: Sequence[int] | Ints, *, below: int = f.NONE, blocks: int = 0, scope: int = 0) -> int:
        """Arena row of the path made of the first `blocks` blocks of row `below` and then `ids`; NONE if empty.

        `scope` distinguishes id spaces: equal ids of different scopes are different blocks.
        """
        tail = np.asarray(ids, dtype=np.int64)
        parent = kernel_arena.ancestor(self._arena, below, blocks) if below != f.NONE and blocks > 0 else f.NONE
        need = self._blocks + len(tail)
        if need > len(self._arena):
            grown = np.zeros((max(need, 2 * len(self._arena)), f.A_FIELDS), np.int64)
            grown[: self._blocks] = self._arena[: self._blocks]
            self._arena = grown
        row = int(kernel_arena.extend(self._arena, self._blocks, parent, scope, tail))
        self._blocks = need
        return row

    def add(
        self,
        prompt_tokens: int,
        output_tokens: int,
        *,
        timestamp_ps: int = 0,
        delay_ps: int = 0,
        leaf: int = f.NONE,
        waits_for: Sequence[int] = (),
    ) -> int:
        """Add a request to the session under way; its position. `waits_for`: positions that must end first."""
        position = len(self._rows)
        blocks = int(self._arena[leaf, f.A_DEPTH]) if leaf != f.NONE else 0
        filled = prompt_tokens - (blocks - 1) * self.block_tokens
        if 0 < filled < self.block_tokens and blocks > 0:  # with fewer tokens in it, it is another block
            mark = int(self._arena[leaf, f.A_KEY]) ^ (filled << 40)
            leaf = self.path([mark], below=leaf, blocks=blocks - 1)
        self._rows.append((prompt_tokens, output_tokens, timestamp_ps, delay_ps, leaf, blocks, 0, self._sessions - 1))
        for parent in waits_for:
            self._parents.append(parent)
            self._children.append(position)
        return position

    def build(self) -> Batch:
        """The batch of all sessions added since the last one; the builder starts afresh."""
        batch = Batch(
            columns=np.array(self._rows, dtype=np.int64).reshape(-1, loop.LOAD_COLUMNS),
            sessions_count=self._sessions,
            parents=np.array(self._parents, dtype=np.int64),
            children=np.array(self._children, dtype=np.int64),
            arena=self._arena[: self._blocks].copy(),
        )
        self._rows, self._parents, self._children = [], [], []
        self._sessions, self._blocks = 0, 0
        return batch


def plain_batch(prompts: Ints, outputs: Ints, timestamps_ps: Ints | None = None) -> Batch:
    """One request per session, nothing shared. Arrays: (requests,)."""
    columns = np.zeros((len(prompts), loop.LOAD_COLUMNS), np.int64)
    columns[:, loop.LOAD_PROMPT] = prompts
    columns[:, loop.LOAD_OUTPUT] = outputs
    if timestamps_ps is not None:
        columns[:, loop.LOAD_TIMESTAMP] = timestamps_ps
    columns[:, loop.LOAD_LEAF] = f.NONE
    columns[:, loop.LOAD_SESSION] = np.arange(len(prompts))
    empty = np.zeros(0, np.int64)
    return Batch(columns, len(prompts), empty, empty, np.zeros((0, f.A_FIELDS), np.int64))
