"""Open a trace file of any format the simulator reads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from enum import StrEnum
from pathlib import Path

from simcore.des.workload import agentic, azure, mooncake
from simcore.des.workload.batch import Batch, Workload
from simcore.des.workload.lines import is_folder, lines, open_text
from simcore.errors import FormatError, InputError


class TraceFormat(StrEnum):
    """Trace formats; AUTO looks at the file."""

    AUTO = "auto"
    MOONCAKE = "mooncake"
    AGENTIC = "agentic"
    AZURE = "azure"


def detect(path: Path) -> TraceFormat:
    """The format of the trace at `path`. Raises FormatError."""
    if is_folder(path):
        return TraceFormat.AGENTIC
    if mooncake.is_array(path):
        return TraceFormat.MOONCAKE
    with open_text(path) as stream:
        for _, line in lines(stream, str(path)):
            head = line.strip()[:4096]
            if head.lstrip(b"\xef\xbb\xbf").lower().startswith(b"timestamp,"):
                return TraceFormat.AZURE
            if b'"input_length"' in line or (b'"hash_ids"' in line[:4096] and b'"requests"' not in line):
                return TraceFormat.MOONCAKE
            if b'"requests"' in line or (head.startswith(b"{") and not head.endswith(b"}")):
                return TraceFormat.AGENTIC
            break
    raise FormatError(
        str(path), 1, "trace", str(path.name), "be Mooncake JSON, agentic sessions or an Azure CSV", "name its format"
    )


def open_trace(
    path: Path, trace_format: TraceFormat = TraceFormat.AUTO, *, clients: int | None = None, block_tokens: int = 0
) -> Workload:
    """A workload that streams the trace.

    `clients` None replays the timestamps (agentic sessions then all start at time zero); otherwise so many clients take
    the sessions in file order and only think times count. `block_tokens` overrides what is inferred. Raises FormatError
    on the first bad record met, which for most is during the run.
    """
    if trace_format is TraceFormat.AUTO:
        trace_format = detect(path)
    if clients is not None and not 1 <= clients <= 1 << 20:
        raise InputError("clients", clients, "be from 1 to 1048576")
    where = str(path)

    def some(batches: Iterator[Batch]) -> Iterator[Batch]:
        first = next(batches, None)
        if first is None:
            raise FormatError(where, None, "trace", where, "hold at least one request")
        yield first
        yield from batches

    if trace_format is TraceFormat.AZURE:
        return Workload(lambda _: some(azure.batches(path)), clients, most_in_flight=clients, source=where)
    if trace_format is TraceFormat.AGENTIC:
        block = block_tokens
        if block == 0:
            with closing(agentic.session_rows(path)) as sessions:
                first = next(sessions, None)
            if first is None:
                raise FormatError(str(path), None, "trace", str(path), "hold at least one session")
            block = first.integer("block_size", 1, 1 << 16)
        return Workload(lambda _: some(agentic.batches(path, block)), clients, block, source=where)
    block = block_tokens or mooncake.infer_block_tokens(path)
    if mooncake.is_linked(path):
        return Workload(lambda _: some(mooncake.linked_batches(path, block)), clients, block, source=where)
    return Workload(
        lambda _: some(mooncake.stream_batches(path, block)), clients, block, most_in_flight=clients, source=where
    )
