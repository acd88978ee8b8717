"""A small HTTP/1.1 server on the event loop: reading only, one request per connection, everything bounded."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

HEAD_LIMIT_BYTES = 16 * 1024
PATIENCE_S = 5.0


@dataclass(frozen=True)
class Request:
    """What was asked; the query is not looked at."""

    method: str
    path: str
    host: str
    """The `Host` header without its port."""


@dataclass(frozen=True)
class Reply:
    """What is answered."""

    status: str
    kind: str
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


NOT_FOUND = Reply("404 Not Found", "text/plain", b"not found\n")
Route = Callable[[Request], Awaitable[Reply]]


class WebServer:
    """Answers each request with what `route` says."""

    def __init__(self, host: str, port: int, route: Route) -> None:
        self._host, self._port, self._route = host, port, route
        self._server: asyncio.Server | None = None

    async def start(self) -> int:
        """Listen; returns the port (useful when 0 was asked for)."""
        self._server = await asyncio.start_server(self._answer, self._host, self._port, limit=HEAD_LIMIT_BYTES)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def stop(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE_S)
            request = parse(head)
            if request.method in ("GET", "HEAD"):
                reply = await self._route(request)
            else:
                reply = Reply("405 Method Not Allowed", "text/plain", b"only GET\n", {"Allow": "GET, HEAD"})
            fields = {
                "Content-Type": reply.kind,
                "Content-Length": str(len(reply.body)),
                "Connection": "close",
                **reply.headers,
            }
            lines = [f"HTTP/1.1 {reply.status}", *(f"{name}: {value}" for name, value in fields.items()), "", ""]
            writer.write("\r\n".join(lines).encode() + (b"" if request.method == "HEAD" else reply.body))
            await asyncio.wait_for(writer.drain(), PATIENCE_S)
        except (TimeoutError, OSError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # who does not ask properly, or does not listen, is not answered
        finally:
            writer.close()


def parse(head: bytes) -> Request:
    """The request in its head. Raises ValueError."""
    first, *rest = head.decode("latin-1").split("\r\n")
    method, target, _ = first.split(" ")
    fields = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in rest)}
    host = fields.get("host", "")
    bare = host.partition("]")[0].lstrip("[") if host.startswith("[") else host.partition(":")[0]
    return Request(method, target.split("?")[0], bare)
