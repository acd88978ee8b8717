"""An HTTP server in front of the API server: passes requests on, or answers in its place as a rule says."""

from __future__ import annotations

import base64
import contextlib
import http.client
import http.server
import ssl
import threading
import types
import typing
from dataclasses import dataclass
from urllib.parse import urlsplit

import yaml

from e2e import controlplane

CHUNK_BYTES = 1 << 16
HOP_HEADERS = frozenset({"connection", "host", "keep-alive", "transfer-encoding", "content-length"})


@dataclass(frozen=True)
class Request:
    """What a rule judges by."""

    method: str
    path: str
    token: str


@dataclass(frozen=True)
class Fault:
    """What is done instead of passing a request on and its answer back."""

    status: int = 0
    """The answer; 0 = the connection is closed without one."""
    is_done: bool = False
    """The API server gets the request and does it; only its answer is lost."""
    retry_after_s: int | None = None

    def body(self) -> bytes:
        reason = {401: "Unauthorized", 409: "Conflict", 429: "TooManyRequests"}.get(self.status, "InternalError")
        return (
            f'{{"kind":"Status","apiVersion":"v1","status":"Failure","message":"{reason}, says the fault server",'
            f'"reason":"{reason}","code":{self.status}}}'
        ).encode()


Rule = typing.Callable[[Request], Fault | None]


class FaultServer:
    """Plain HTTP on loopback, so that no certificate stands between; `rule` may be exchanged at any time."""

    def __init__(self, plane: controlplane.ControlPlane) -> None:
        parts = urlsplit(plane.server)
        assert parts.hostname is not None
        assert parts.port is not None
        self.address = (parts.hostname, parts.port)
        cluster = yaml.safe_load(plane.kubeconfig.read_text(encoding="utf-8"))["clusters"][0]["cluster"]
        self.context = ssl.create_default_context(
            cadata=base64.b64decode(cluster["certificate-authority-data"]).decode()
        )
        self.rule: Rule = lambda _: None
        self.faults_count = 0
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"owner": self}))
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> typing.Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: types.TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    owner: FaultServer

    def do_GET(self) -> None:
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        fault = self.owner.rule(Request(self.command, self.path, token))
        if fault is not None:
            self.owner.faults_count += 1
        with contextlib.suppress(OSError, http.client.HTTPException):
            if fault is None or fault.is_done:
                self._pass_on(body, is_lost=fault is not None)
            else:
                self._answer(fault)
            return
        self.close_connection = True

    do_POST = do_PUT = do_PATCH = do_DELETE = do_GET  # noqa: N815 - the names are http.server's

    def log_message(self, format: str, *args: typing.Any) -> None:  # noqa: A002 - the name is http.server's
        """Nothing: the API server's audit log says more."""

    def _answer(self, fault: Fault) -> None:
        if not fault.status:
            self.close_connection = True
            return
        body = fault.body()
        self.send_response(fault.status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if fault.retry_after_s is not None:
            self.send_header("Retry-After", str(fault.retry_after_s))
        self.end_headers()
        self.wfile.write(body)

    def _pass_on(self, body: bytes, *, is_lost: bool) -> None:
        upstream = http.client.HTTPSConnection(*self.owner.address, context=self.owner.context)
        try:
            headers = {name: value for name, value in self.headers.items() if name.lower() not in HOP_HEADERS}
            upstream.request(self.command, self.path, body=body or None, headers=headers)
            answer = upstream.getresponse()
            if is_lost:
                answer.read()
                self.close_connection = True
                return
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in HOP_HEADERS:
                    self.send_header(name, value)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            while chunk := answer.read1(CHUNK_BYTES):
                self.wfile.write(f"{len(chunk):x}\r\n".encode() + chunk + b"\r\n")
            self.wfile.write(b"0\r\n\r\n")
        except (OSError, http.client.HTTPException):
            self.close_connection = True
            raise
        finally:
            upstream.close()
