"""Mooncake traces: JSON lines or a JSON array of requests, with sessions, waits, joins and the compact prefix form.

A record: `timestamp` (ms), `input_length`, `output_length` (tokens), `hash_ids` (one id per block of the prompt; the
last block may be partial). Optional: `delay` (ms of think time), `session_id`, `id`, `wait_for` (an id), `joins` (ids),
`prefix_of` (an id) with `prefix_blocks`: the prompt starts with so many blocks of that record and goes on with
`hash_ids`. docs/formats/traces.md says what each means.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from simcore.des.workload.batch import Batch, BatchBuilder
from simcore.des.workload.lines import Row, array_values, lines, open_text, parse, pieces
from simcore.des.workload.synthetic import BATCH_REQUESTS, MAX_DURATION_S
from simcore.errors import FormatError

BLOCK_SIZES: Final = (512, 64, 16, 32, 128, 256, 1024, 2048)
"""Tried in this order: Mooncake's, AgentX's, then the engines' usual ones."""
INFER_FROM: Final = 64
MAX_GROUPED_REQUESTS: Final = 2_000_000
MAX_GROUPED_BLOCKS: Final = 1 << 27
"""Of a trace with links, which is held in memory: 1 GiB of ids."""
MAX_TOKENS: Final = 1 << 30
MS_TO_PS: Final = 10**9
_LINKED: Final = re.compile(rb'"(session_id|wait_for|joins|prefix_of)"')


def is_array(path: Path) -> bool:
    """Whether the file's first character opens a JSON array."""
    with open_text(path) as stream:
        return next(pieces(stream, str(path), 1 << 12), b"").removeprefix(codecs.BOM_UTF8).lstrip()[:1] == b"["


def rows(path: Path) -> Generator[Row, None, None]:
    """The trace's records in order. Raises FormatError."""
    where = str(path)
    with open_text(path) as stream:
        values: Iterator[tuple[int, Any]]
        if is_array(path):
            values = array_values(stream, where)
        else:
            values = ((number, parse(line, where, number)) for number, line in lines(stream, where))
        for number, value in values:
            yield Row(value, where, number)


def is_linked(path: Path) -> bool:
    """Whether any record refers to another, so that the trace must be read whole."""
    tail = b""
    with open_text(path) as stream:
        for piece in pieces(stream, str(path)):
            if _LINKED.search(tail + piece):
                return True
            tail = piece[-16:]
    return False


def infer_block_tokens(path: Path) -> int:
    """Tokens per hash block from the first records' lengths; 0 if they have no hash ids. Raises FormatError."""
    sizes = list(BLOCK_SIZES)
    seen = 0
    with closing(rows(path)) as records:
        for row in records:
            if not row.has("hash_ids") or row.has("prefix_of"):
                continue
            prompt, blocks = row.integer("input_length", 1, MAX_TOKENS), len(row.integers("hash_ids"))
            sizes = [size for size in sizes if prompt // size <= blocks <= -(-prompt // size)]
            seen += 1
            if not sizes:
                raise row.fail("hash_ids", "have one id per block of input_length", f"{blocks} ids for {prompt} tokens")
            if seen == INFER_FROM:
                break
    return sizes[0] if seen else 0


@dataclass
class _Record:
    """What a linked trace keeps of a record until its session is complete."""

    row_line: int
    prompt: int
    output: int
    timestamp_ps: int | None
    delay_ps: int
    ids: np.ndarray[tuple[int], np.dtype[np.int64]]
    prefix_of: int
    prefix_blocks: int
    waits_for: tuple[int, ...]


def _lengths(row: Row, block: int, shared_blocks: int = 0) -> tuple[int, int, list[int]]:
    prompt = row.integer("input_length", 1, MAX_TOKENS)
    output = row.integer("output_length", 0, MAX_TOKENS)
    ids: list[int] = []
    if block:
        if not row.has("hash_ids"):
            raise row.fail("hash_ids", "be given in every record or in none")
        ids = row.integers("hash_ids")
        blocks = shared_blocks + len(ids)
        if not prompt // block <= blocks <= -(-prompt // block):
            raise row.fail(
                "hash_ids", f"have one id per block of {block} tokens", f"{blocks} blocks for {prompt} tokens"
            )
    return prompt, max(1, output), ids


def _time_ps(row: Row, field: str) -> int:
    return round(row.number(field, MAX_DURATION_S * 1e3) * MS_TO_PS)


def stream_batches(path: Path, block: int) -> Iterator[Batch]:
    """Batches of an unlinked trace, each record its own session, O(batch) memory. Raises FormatError."""
    builder, last = BatchBuilder(block), 0
    for row in rows(path):
        prompt, output, ids = _lengths(row, block)
        at = _time_ps(row, "timestamp")
        if at < last:
            raise row.fail("timestamp", f"not go back in time (the record before is at {last / MS_TO_PS:g} ms)")
        last = at
        builder.start_session()
        leaf = builder.path(ids) if ids else -1
        builder.add(prompt, output, timestamp_ps=at, leaf=leaf)
        if len(builder) >= BATCH_REQUESTS or builder.blocks_count >= 1 << 20:
            yield builder.build()
    if len(builder):
        yield builder.build()


def linked_batches(path: Path, block: int) -> Iterator[Batch]:
    """Batches of a trace whose records refer to each other: records that are linked make one session.

    Reads the whole trace into memory. A record may refer only to records before it, which rules out cycles; one with a
    `session_id` and no `wait_for` waits for its session's record before it. Raises FormatError.
    """
    records = _read_linked(path, block)
    root = list(range(len(records)))

    def find(at: int) -> int:
        while root[at] != at:
            root[at] = root[root[at]]
            at = root[at]
        return at

    for position, record in enumerate(records):
        for other in record.waits_for + ((record.prefix_of,) if record.prefix_of >= 0 else ()):
            one, two = find(position), find(other)
            root[max(one, two)] = min(one, two)
    groups: dict[int, list[int]] = {}
    for position in range(len(records)):
        groups.setdefault(find(position), []).append(position)
    starts = {
        first: min((records[at].timestamp_ps or 0 for at in members if not records[at].waits_for), default=0)
        for first, members in groups.items()
    }
    builder = BatchBuilder(block)
    for first in sorted(groups, key=lambda at: (starts[at], at)):
        builder.start_session()
        _add_group(builder, records, groups[first], starts[first])
        if len(builder) >= BATCH_REQUESTS or builder.blocks_count >= 1 << 20:
            yield builder.build()
    if len(builder):
        yield builder.build()


def _read_linked(path: Path, block: int) -> list[_Record]:
    records: list[_Record] = []
    known: dict[str | int, int] = {}
    last_of: dict[str | int, int] = {}
    last_head_ps = blocks_count = 0

    def name(row: Row, field: str, value: object) -> str | int:
        if isinstance(value, bool) or not isinstance(value, (str, int)):
            raise FormatError(row.where, row.line, field, value, "be a string or a whole number")
        return value

    def earlier(row: Row, field: str, value: object) -> int:
        found = known.get(name(row, field, value))
        if found is None:
            raise FormatError(
                row.where, row.line, field, value, "name an earlier record's id", "a later one could make a cycle"
            )
        return found

    for row in rows(path):
        if len(records) == MAX_GROUPED_REQUESTS:
            raise row.fail("id", f"be among the first {MAX_GROUPED_REQUESTS} records of a trace with links")
        joins = row.value.get("joins") or []
        if not isinstance(joins, list):
            raise row.fail("joins", "be a list of ids")
        waits = [earlier(row, "joins", value) for value in joins]
        if row.has("wait_for"):
            waits.append(earlier(row, "wait_for", row.value["wait_for"]))
        session = name(row, "session_id", row.value["session_id"]) if row.has("session_id") else None
        if session is not None and not waits and session in last_of:
            waits.append(last_of[session])
        prefix_of, prefix_blocks = -1, 0
        if row.has("prefix_of"):
            prefix_of = earlier(row, "prefix_of", row.value["prefix_of"])
            there = records[prefix_of]
            prefix_blocks = row.integer("prefix_blocks", 0, len(there.ids) + there.prefix_blocks)
        prompt, output, ids = _lengths(row, block, prefix_blocks)
        timestamp = _time_ps(row, "timestamp") if row.has("timestamp") or not waits else None
        if not waits and timestamp is not None:
            if timestamp < last_head_ps:
                raise row.fail("timestamp", f"not go back in time ({last_head_ps / MS_TO_PS:g} ms came before)")
            last_head_ps = timestamp
        delay = _time_ps(row, "delay") if row.has("delay") else 0
        tail = np.array(ids, dtype=np.int64)
        blocks_count += len(ids)
        if blocks_count > MAX_GROUPED_BLOCKS:
            raise row.fail("hash_ids", f"stay within {MAX_GROUPED_BLOCKS} ids in all in a trace with links")
        own = name(row, "id", row.value["id"]) if row.has("id") else f"#{len(records)}"
        if own in known:
            raise row.fail("id", "be unique in the trace")
        known[own] = len(records)
        if session is not None:
            last_of[session] = len(records)
        records.append(
            _Record(
                row.line, prompt, output, timestamp, delay, tail, prefix_of, prefix_blocks, tuple(sorted(set(waits)))
            )
        )
    return records


def _add_group(builder: BatchBuilder, records: list[_Record], members: list[int], start_ps: int) -> None:
    position_of: dict[int, int] = {}
    leaf_of: dict[int, int] = {}
    for at in members:
        record = records[at]
        below = leaf_of.get(record.prefix_of, -1)
        leaf = -1
        if len(record.ids) or record.prefix_blocks:
            leaf = builder.path(record.ids, below=below, blocks=record.prefix_blocks)
        leaf_of[at] = leaf
        position_of[at] = builder.add(
            record.prompt,
            record.output,
            timestamp_ps=max(start_ps, record.timestamp_ps or 0),
            delay_ps=record.delay_ps,
            leaf=leaf,
            waits_for=[position_of[other] for other in record.waits_for],
        )
