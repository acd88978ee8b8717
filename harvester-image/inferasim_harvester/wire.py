"""A lean HTTP/1.1 client that stamps the arrival of every byte and parses nothing until the answer is complete.

A wave of hundreds of streams gives tens of thousands of events a second; a general client would spend longer on each
than the engine on its step. One connection carries one request. Times are `loop.time()`, seconds.
"""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any, Final
from urllib.parse import urlsplit

from inferasim_harvester.errors import EngineDiedError, RequestFailedError
from simcore.errors import InputError

MAX_ANSWER_BYTES: Final = 64 * 1024 * 1024
"""Larger answers are cut off: an engine is not trusted with our memory."""
CONNECT_TIMEOUT_S: Final = 10.0
_DATE: Final = re.compile(rb"\r\ndate:[ \t]*([ -~]+)", re.IGNORECASE)
_URL: Final = re.compile(r"https?://[A-Za-z0-9.\-\[\]:]+(/[A-Za-z0-9._~/\-]*)?")


@dataclass(frozen=True)
class Address:
    """Where the engine listens."""

    host: str
    port: int

    @classmethod
    def parse(cls, url: str, field: str = "engine-url") -> Address:
        """The address in `http://host:port`; only the metrics exporter's may have a path. Raises InputError."""
        parts = urlsplit(url)
        try:
            port = parts.port
        except ValueError:
            port = None
        has_path = parts.path not in ("", "/") and field == "engine-url"
        if parts.scheme != "http" or not parts.hostname or port is None or has_path or not _URL.fullmatch(url):
            raise InputError(field, url, "be http://HOST:PORT")
        return cls(parts.hostname, port)


@dataclass(frozen=True)
class Piece:
    """Bytes that arrived together, and when."""

    at_s: float
    data: bytes


@dataclass
class Answer:
    """One complete answer: status, and its body piece by piece."""

    sent_s: float
    ended_s: float = 0.0
    status: int = 0
    pieces: list[Piece] = field(default_factory=list)
    chunked: bool = False
    head: bytes = b""

    @property
    def body(self) -> bytes:
        """The whole body, transfer coding removed."""
        return b"".join(piece.data for piece in self.pieces)

    @property
    def date_s(self) -> float | None:
        """The server's own clock, from its Date header: whole seconds since 1970; None without one."""
        found = _DATE.search(self.head)
        if found is None:
            return None
        try:
            return parsedate_to_datetime(found[1].decode("ascii")).timestamp()
        except ValueError:
            return None

    def json(self) -> Any:
        """The body as JSON. Raises RequestFailedError."""
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError) as error:
            raise RequestFailedError(f"the engine's answer is no JSON: {self.body[:80]!r}") from error


class _Exchange(asyncio.Protocol):
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.raw: list[Piece] = []
        self.size_bytes = 0
        self.changed_s = loop.time()
        self.done: asyncio.Future[None] = loop.create_future()
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        now = self.loop.time()
        self.raw.append(Piece(now, data))
        self.changed_s = now
        self.size_bytes += len(data)
        if self.size_bytes > MAX_ANSWER_BYTES and self.transport is not None:
            self.transport.abort()

    def connection_lost(self, _exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_result(None)


class Client:
    """Requests to one engine. `stall_s` is the longest silence that is still taken for work."""

    def __init__(self, address: Address, stall_s: float = 120.0) -> None:
        self.address, self.stall_s = address, stall_s

    async def is_reachable(self) -> bool:
        """Whether anything listens."""
        try:
            exchange = await self._connect()
        except EngineDiedError:
            return False
        if exchange.transport is not None:
            exchange.transport.abort()
        return True

    async def get(self, path: str, stall_s: float | None = None) -> Answer:
        """One GET. Raises EngineDiedError when nothing answers."""
        (answer,) = await self.send([_request("GET", path, self.address, b"")], stall_s)
        return answer

    async def post(self, path: str, bodies: list[bytes], stall_s: float | None = None) -> list[Answer]:
        """All `bodies` at one moment, each on its own connection; answers in the same order. Raises EngineDiedError."""
        return await self.send([_request("POST", path, self.address, body) for body in bodies], stall_s)

    async def send(self, requests: list[bytes], stall_s: float | None = None) -> list[Answer]:
        """Connects everything first, then writes everything, then waits for every end."""
        exchanges = [await self._connect() for _ in requests]
        try:
            sent = []
            for exchange, request in zip(exchanges, requests, strict=True):
                exchange.changed_s = exchange.loop.time()
                sent.append(exchange.changed_s)
                if exchange.transport is not None:
                    exchange.transport.write(request)
            await self._wait(exchanges, stall_s or self.stall_s)
        finally:
            for exchange in exchanges:
                if exchange.transport is not None:
                    exchange.transport.abort()
        return [_answer(exchange, at_s) for exchange, at_s in zip(exchanges, sent, strict=True)]

    async def _connect(self) -> _Exchange:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                _, exchange = await loop.create_connection(
                    lambda: _Exchange(loop), self.address.host, self.address.port
                )
        except (OSError, TimeoutError) as error:
            raise EngineDiedError(f"no connection to {self.address.host}:{self.address.port}: {error}") from error
        return exchange

    async def _wait(self, exchanges: list[_Exchange], stall_s: float) -> None:
        loop = asyncio.get_running_loop()
        pending: set[asyncio.Future[None]] = {exchange.done for exchange in exchanges}
        while pending:
            # Progress of any stream counts: a queued request is silent while others are served.
            quiet_s = loop.time() - max(exchange.changed_s for exchange in exchanges)
            if quiet_s >= stall_s:
                raise EngineDiedError(f"no byte of {len(pending)} requests for {stall_s:g} s")
            _, pending = await asyncio.wait(pending, timeout=stall_s - quiet_s)


def _request(method: str, path: str, address: Address, body: bytes) -> bytes:
    host = f"[{address.host}]" if ":" in address.host else address.host
    head = (
        f"{method} {path} HTTP/1.1\r\nHost: {host}:{address.port}\r\nConnection: close\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode("ascii") + body


def _answer(exchange: _Exchange, sent_s: float) -> Answer:
    """Head and transfer coding taken off; every piece keeps the moment it arrived."""
    raw = b"".join(piece.data for piece in exchange.raw)
    head, separator, _ = raw.partition(b"\r\n\r\n")
    if not separator or not head.startswith(b"HTTP/1."):
        raise EngineDiedError("the engine closed a connection without an answer")
    answer = Answer(sent_s, exchange.changed_s)
    if not head[9:12].isdigit():
        raise RequestFailedError(f"the engine's answer has no status: {head[:40]!r}")
    answer.status = int(head[9:12])
    answer.head = head
    answer.chunked = b"transfer-encoding: chunked" in head.lower()
    skip = len(head) + len(separator)
    reader = _Dechunker() if answer.chunked else None
    for piece in exchange.raw:
        data = piece.data[skip:]
        skip = max(0, skip - len(piece.data))
        if reader is not None:
            data = reader.feed(data)
        if data:
            answer.pieces.append(Piece(piece.at_s, data))
    if reader is not None and not reader.ended:
        raise EngineDiedError("the engine broke off a stream")
    return answer


class _Dechunker:
    """Chunked transfer coding, fed in any cuts."""

    def __init__(self) -> None:
        self.pending = b""
        self.left = 0
        self.ended = False

    def feed(self, data: bytes) -> bytes:
        out = []
        self.pending += data
        while self.pending and not self.ended:
            if self.left > 2:  # payload and its line end
                taken = self.pending[: self.left - 2]
                out.append(taken)
                self.pending, self.left = self.pending[len(taken) :], self.left - len(taken)
            elif self.left:
                end = self.pending[: self.left]
                self.pending, self.left = self.pending[len(end) :], self.left - len(end)
            else:
                line, separator, rest = self.pending.partition(b"\r\n")
                if not separator:
                    break
                try:
                    size = int(line.split(b";")[0], 16)
                except ValueError as error:
                    raise RequestFailedError(f"bad chunk size {line[:40]!r}") from error
                self.pending = rest
                self.ended = size == 0
                self.left = size + 2
        return b"".join(out)
