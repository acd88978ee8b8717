"""Agentic coding sessions: AgentX/WEKA traces, one JSON object per session, and the compact form of the same.

A session: `id`, `block_size`, `requests`. A request: `t` (s), `in`, `out` (tokens), `think_time` (s after the answer
before), and its prompt's blocks: `hash_ids` in full, or compact: `n` leading blocks of request number `ref` (counted in
file order, sub-agents' requests included), then `tail`, runs of [start, count]. An item with nested `requests` is a
sub-agent: it starts after the request before it, runs beside the session, and its requests follow each other.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from simcore.des.kernel.fields import Ints
from simcore.des.workload.batch import Batch, BatchBuilder
from simcore.des.workload.lines import MAX_RECORD_BYTES, Row, is_folder, lines, open_text, parse
from simcore.des.workload.synthetic import BATCH_REQUESTS, MAX_DURATION_S
from simcore.errors import FormatError
from simcore.units import PS_PER_S

MAX_TOKENS: Final = 1 << 30
MAX_BLOCKS: Final = 1 << 22
BATCH_BLOCKS: Final = 1 << 18
MAX_SESSION_BLOCKS: Final = 1 << 23
"""New blocks of one session, which is held in memory: 256 MiB. A run of ids takes a few bytes of file."""


def session_rows(path: Path) -> Generator[Row, None, None]:
    """One row per session: from JSON lines, one JSON document, or a folder of documents. Raises FormatError."""
    if is_folder(path):
        files = sorted(path.glob("*.json"))
        if not files:
            raise FormatError(str(path), None, "trace", str(path), "hold *.json files")
        for file in files:
            yield from session_rows(file)
        return
    where = str(path)
    with open_text(path) as stream:
        first = True
        for number, line in lines(stream, where):
            if first and not line.rstrip().endswith(b"}"):  # one document over many lines
                rest = stream.read(MAX_RECORD_BYTES + 1 - len(line))
                if len(rest) + len(line) > MAX_RECORD_BYTES:
                    raise FormatError(where, 1, "trace", "...", f"be at most {MAX_RECORD_BYTES >> 20} MiB long")
                yield Row(parse(line + rest, where, number), where, number)
                return
            first = False
            yield Row(parse(line, where, number), where, number)


@dataclass
class _Session:
    """The requests of the session under way, by their number in file order."""

    builder: BatchBuilder
    scope: int
    block: int
    positions: list[int] = field(default_factory=list)
    leaves: list[int] = field(default_factory=list)
    depths: list[int] = field(default_factory=list)
    last_leaf: int = -1
    last_ids: Ints = field(default_factory=lambda: np.zeros(0, np.int64))

    def __post_init__(self) -> None:
        self.first_block = self.builder.blocks_count


def batches(path: Path, block: int) -> Iterator[Batch]:
    """Sessions in file order, a few at a time. Raises FormatError."""
    return session_batches(session_rows(path), block)


def session_batches(sessions: Iterable[Row], block: int) -> Iterator[Batch]:
    """As `batches`, of sessions from anywhere."""
    builder = BatchBuilder(block)
    for number, row in enumerate(sessions):
        items = row.value.get("requests")
        if not isinstance(items, list):
            raise row.fail("requests", "be a list")
        if row.integer("block_size", 1, 1 << 16) != block:
            raise row.fail("block_size", f"be {block} as in the sessions before")
        name = row.value.get("id", number)
        is_local = row.value.get("hash_id_scope", row.value.get("scope", "local")) == "local"
        scope = zlib.crc32(json.dumps(name).encode()) + (number << 32) + 1 if is_local else 0
        if items:
            builder.start_session()
            _add_items(_Session(builder, scope, block), row, items, start_s=0.0, after=-1)
        if len(builder) >= BATCH_REQUESTS or builder.blocks_count >= BATCH_BLOCKS:
            yield builder.build()
    if len(builder):
        yield builder.build()


def _add_items(session: _Session, parent: Row, items: list[Any], *, start_s: float, after: int) -> None:
    """Add a list of turns; the first waits for request `after` (-1: nothing), each other one for the turn before."""
    before, answered_s = after, start_s
    last_s = 0.0
    for item in items:
        row = Row(item, parent.where, parent.line)
        at_s = row.number("t", MAX_DURATION_S)
        if at_s < last_s:
            raise row.fail("t", f"not go back in time ({last_s:g} s came before)")
        last_s = at_s
        if "requests" in row.value:
            nested = row.value["requests"]
            if not isinstance(nested, list):
                raise row.fail("requests", "be a list")
            _add_subagent(session, row, nested, max(0.0, at_s - answered_s), before)
            continue
        think_s = max(0.0, at_s - answered_s)
        if row.has("think_time"):
            think_s = row.number("think_time", MAX_DURATION_S)
        before = _add_request(session, row, think_s if before >= 0 else 0.0, before)
        answered_s = at_s + (row.number("api_time", MAX_DURATION_S) if row.has("api_time") else 0.0)


def _add_subagent(session: _Session, parent: Row, items: list[Any], wait_s: float, after: int) -> None:
    before = after
    for number, item in enumerate(items):
        row = Row(item, parent.where, parent.line)
        if "requests" in row.value:
            raise row.fail("requests", "not be nested twice")
        think_s = row.number("think_time", MAX_DURATION_S, 0.0)
        before = _add_request(session, row, wait_s if number == 0 and after >= 0 else think_s, before)


def _add_request(session: _Session, row: Row, think_s: float, after: int) -> int:
    prompt = row.integer("in", 1, MAX_TOKENS)
    output = max(1, row.integer("out", 0, MAX_TOKENS))
    if row.has("hash_ids"):
        ids = np.array(row.integers("hash_ids"), dtype=np.int64)
        shorter = min(len(ids), len(session.last_ids))
        differs = np.flatnonzero(ids[:shorter] != session.last_ids[:shorter])
        shared = int(differs[0]) if len(differs) else shorter
        below = session.last_leaf if shared else -1
        leaf = session.builder.path(ids[shared:], below=below, blocks=shared, scope=session.scope)
        session.last_ids, session.last_leaf, depth = ids, leaf, len(ids)
    else:
        leaf, depth = _compact_path(session, row)
    if session.builder.blocks_count - session.first_block > MAX_SESSION_BLOCKS:
        raise row.fail("in", f"make at most {MAX_SESSION_BLOCKS} new blocks in a session")
    if not prompt // session.block <= depth <= -(-prompt // session.block):
        raise row.fail(
            "hash_ids" if row.has("hash_ids") else "tail",
            f"give one block per {session.block} tokens",
            f"{depth} blocks for {prompt} tokens",
        )
    position = session.builder.add(
        prompt,
        output,
        delay_ps=round(think_s * PS_PER_S),
        leaf=leaf,
        waits_for=() if after < 0 else (session.positions[after],),
    )
    session.positions.append(position)
    session.leaves.append(leaf)
    session.depths.append(depth)
    return len(session.positions) - 1


def _compact_path(session: _Session, row: Row) -> tuple[int, int]:
    """(leaf, blocks) of a request in the compact form."""
    tail = row.value.get("tail")
    if not isinstance(tail, list):
        raise row.fail("hash_ids", "be given, or `ref`, `n` and `tail`")
    runs = []
    total = 0
    for run in tail:
        is_run = isinstance(run, list) and len(run) == 2 and all(type(part) is int for part in run)
        if not is_run or run[0] < 0 or run[0] > 1 << 61 or not 0 <= run[1] <= MAX_BLOCKS:
            raise row.fail("tail", "hold runs of [start, count]")
        total += run[1]
        if total > MAX_BLOCKS:
            raise row.fail("tail", f"hold at most {MAX_BLOCKS} blocks")
        runs.append(np.arange(run[0], run[0] + run[1], dtype=np.int64))
    ids = np.concatenate(runs) if runs else np.zeros(0, np.int64)
    ref = row.integer("ref", -1, MAX_TOKENS)
    if ref >= len(session.positions):
        raise row.fail("ref", f"name an earlier request of the session (there are {len(session.positions)})")
    shared = row.integer("n", 0, session.depths[ref] if ref >= 0 else 0)
    leaf = session.builder.path(ids, below=session.leaves[ref] if ref >= 0 else -1, blocks=shared, scope=session.scope)
    return leaf, shared + len(ids)
