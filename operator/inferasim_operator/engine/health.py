"""Liveness and metrics over HTTP, served by the event loop itself, so that a blocked loop does not answer.

`/healthz` fails when a watch that must run has no live task (C01: a watch that ends silently looks healthy otherwise).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from inferasim_operator.engine.web import NOT_FOUND, Reply, Request, WebServer


def dead_watches(expected: Iterable[str]) -> list[str]:
    """The resources (plurals) for which no live watcher task exists; kopf names them `watcher for <resource>@…`."""
    alive = [task.get_name() for task in asyncio.all_tasks() if not task.done()]
    return [plural for plural in expected if not any(name.startswith(f"watcher for {plural}.") for name in alive)]


class HealthServer(WebServer):
    """Answers `/healthz` by `problems`, `/readyz` by `obstacles`, and `/metrics`."""

    def __init__(
        self, host: str, port: int, problems: Callable[[], list[str]], obstacles: Callable[[], list[str]]
    ) -> None:
        super().__init__(host, port, self._reply)
        self._probes = {"/healthz": problems, "/readyz": obstacles}

    async def _reply(self, request: Request) -> Reply:
        if request.path in self._probes:
            problems = self._probes[request.path]()
            if problems:
                return Reply("500 Internal Server Error", "text/plain", ("; ".join(problems) + "\n").encode())
            return Reply("200 OK", "text/plain", b"ok\n")
        if request.path == "/metrics":
            return Reply("200 OK", CONTENT_TYPE_LATEST, generate_latest())
        return NOT_FOUND
