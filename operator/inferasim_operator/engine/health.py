"""Liveness and metrics over HTTP, served by the event loop itself, so that a blocked loop does not answer.

`/healthz` fails when a watch that must run has no live task (C01: a watch that ends silently looks healthy otherwise).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest


def dead_watches(expected: Iterable[str]) -> list[str]:
    """The resources (plurals) for which no live watcher task exists; kopf names them `watcher for <resource>@…`."""
    alive = [task.get_name() for task in asyncio.all_tasks() if not task.done()]
    return [plural for plural in expected if not any(name.startswith(f"watcher for {plural}.") for name in alive)]


class HealthServer:
    """Answers `/healthz`, `/readyz` and `/metrics`."""

    def __init__(self, host: str, port: int, problems: Callable[[], list[str]]) -> None:
        self._host, self._port, self._problems = host, port, problems
        self._server: asyncio.Server | None = None

    async def start(self) -> int:
        """Listen; returns the port (useful when 0 was asked for)."""
        self._server = await asyncio.start_server(self._answer, self._host, self._port)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def stop(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            line = await asyncio.wait_for(reader.readline(), 5.0)
            path = [*line.decode("latin-1").split(" "), "", ""][1].split("?")[0]
            status, kind, body = self._route(path)
            head = (
                f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
            )
            writer.write(head.encode() + body)
            await writer.drain()
        except (TimeoutError, OSError, ValueError):
            pass
        finally:
            writer.close()

    def _route(self, path: str) -> tuple[str, str, bytes]:
        if path in ("/healthz", "/readyz"):
            problems = self._problems()
            if problems:
                return "500 Internal Server Error", "text/plain", ("; ".join(problems) + "\n").encode()
            return "200 OK", "text/plain", b"ok\n"
        if path == "/metrics":
            return "200 OK", CONTENT_TYPE_LATEST, generate_latest()
        return "404 Not Found", "text/plain", b"not found\n"
