"""Free loopback ports for servers that cannot be handed an open socket.

They are drawn below the kernel's ephemeral range, unlike what binding to port 0 gives. While a server restarts, clients
keep dialling its port; if that port were ephemeral, the kernel could choose it as the *source* port of such a dial,
which then connects to itself and keeps the server from binding.
"""

from __future__ import annotations

import pathlib
import random
import socket

from e2e import errors

LOWEST = 15_000
HIGHEST = 29_999  # NodePorts begin at 30000
ATTEMPTS = 200
_EPHEMERAL = pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_ports(count: int) -> list[int]:
    """Return `count` different ports that nobody listens on now; another process may still be faster to take one."""
    first, last = _range()
    chosen: list[int] = []
    for _ in range(ATTEMPTS):
        if len(chosen) == count:
            return chosen
        port = random.randint(first, last)
        if port not in chosen and is_free(port):
            chosen.append(port)
    raise errors.E2EError(f"found no {count} free ports between {first} and {last} on 127.0.0.1")


def is_free(port: int) -> bool:
    """Whether a server could listen on this loopback port now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _range() -> tuple[int, int]:
    """The span to draw from: below the ephemeral ports where there is room, else the usual span regardless."""
    try:
        ephemeral = int(_EPHEMERAL.read_text(encoding="ascii").split()[0])
    except (OSError, ValueError, IndexError):
        return LOWEST, HIGHEST
    highest = min(HIGHEST, ephemeral - 1)
    return (LOWEST, highest) if highest - LOWEST >= 1000 else (LOWEST, HIGHEST)
