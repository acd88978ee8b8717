"""A TCP proxy on loopback that can go dead in the ways of networks: silent, or with a reset."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import types
import typing

CHUNK_BYTES = 1 << 16


class Proxy:
    """Forwards to one server. `black_hole` keeps all sockets open and drops every byte; `reset` cuts them with a RST.

    Connections of a black hole stay dead for ever, as after a firewall has lost its table; `restore` lets new ones by.
    """

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._dead: set[socket.socket] = set()
        self._is_hole = False
        self._is_cut = False
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> typing.Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: types.TracebackType | None
    ) -> None:
        self._listener.close()
        self.reset()

    def black_hole(self) -> None:
        """From now on nothing arrives, in either direction, and nobody is told."""
        with self._lock:
            self._is_hole = True
            self._dead |= self._open

    def cut(self) -> None:
        """Reset what is open and whatever comes, until `restore`."""
        self._is_cut = True
        self.reset()

    def restore(self) -> None:
        """New connections work again."""
        self._is_hole = self._is_cut = False

    def reset(self) -> None:
        """Cut all connections with a RST; new ones work unless told otherwise."""
        with self._lock:
            sockets, self._open = self._open, set()
            self._dead -= sockets
        for one in sockets:
            _abort(one)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self._is_cut:
                _abort(client)
                continue
            try:
                server = socket.create_connection(self._target, timeout=5)
            except OSError:
                _abort(client)
                continue
            server.settimeout(None)
            with self._lock:
                self._open |= {client, server}
                if self._is_hole:
                    self._dead |= {client, server}
            for source, sink in ((client, server), (server, client)):
                threading.Thread(target=self._pump, args=(source, sink), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(CHUNK_BYTES):
                if source not in self._dead:
                    sink.sendall(data)
            if source in self._dead:
                return  # not even the end of the other side gets through
        with self._lock:
            known = {source, sink} & self._open
            self._open -= known
        for one in known:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()


def _abort(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        # A thread that reads from it holds the descriptor; this wakes the thread.
        one.shutdown(socket.SHUT_RD)
    one.close()
