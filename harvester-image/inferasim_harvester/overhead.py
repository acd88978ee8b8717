"""What the client itself costs: an instant server answers at once, so all that is left is our own reading."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable

import numpy as np

from inferasim_harvester.wire import Address, Client

ROUNDS = 24
CONNECTIONS = 64
_CHUNK = b'data: {"choices":[{"index":0,"text":" w"}],"usage":{"prompt_tokens":1,"completion_tokens":1}}\n\n'
EVENT = b"%x\r\n%b\r\n" % (len(_CHUNK), _CHUNK)


async def client_s_per_event() -> float:
    """Seconds from a step's chunks lying in the sockets until all are stamped, per chunk (median of rounds)."""
    loop = asyncio.get_running_loop()
    accepted: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0), backlog=CONNECTIONS) as listener:
        listener.setblocking(False)
        client = Client(Address("127.0.0.1", listener.getsockname()[1]))
        wave = asyncio.create_task(client.post("/instant", [b"{}"] * CONNECTIONS, 30.0))
        try:
            while len(accepted) < CONNECTIONS:
                with contextlib.suppress(BlockingIOError):
                    accepted.append(listener.accept()[0])
                await asyncio.sleep(0)
            head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
            await asyncio.sleep(0.01)
            for server in accepted:
                server.recv(65536)  # closed with unread bytes, a socket would reset the answer
                server.sendall(head)
            await asyncio.sleep(0.01)
            times_s = [await _round(accepted, loop.time) for _ in range(ROUNDS)]
            for server in accepted:
                server.sendall(b"0\r\n\r\n")
                server.close()
            await wave
        finally:
            wave.cancel()
            for server in accepted:
                server.close()
    return float(np.median(times_s)) / CONNECTIONS


async def _round(servers: list[socket.socket], clock_s: Callable[[], float]) -> float:
    for server in servers:
        server.sendall(EVENT)
    started_s = clock_s()
    # Two turns of the loop: one reads what is ready, the next one is ours only after it.
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return clock_s() - started_s
