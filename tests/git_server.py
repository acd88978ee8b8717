"""Git over real https for tests: git's own server program behind TLS and a password."""

from __future__ import annotations

import base64
import http.server
import os
import pathlib
import ssl
import subprocess
import threading
import typing
from collections.abc import Iterator

USER = "deployer"


class Backend(http.server.BaseHTTPRequestHandler):
    """`git http-backend`, as any web server would run it; subclasses say for which folder and which token."""

    root: typing.ClassVar[str] = ""
    token: typing.ClassVar[str] = ""

    def do_GET(self) -> None:
        self._serve()

    def do_POST(self) -> None:
        self._serve()

    def _serve(self) -> None:
        wanted = "Basic " + base64.b64encode(f"{USER}:{self.token}".encode()).decode()
        if self.headers.get("Authorization") != wanted:
            self.send_response(401)
            self.send_header("WWW-Authenticate", 'Basic realm="git"')
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        path, _, query = self.path.partition("?")
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        environment = {
            "PATH": os.environ["PATH"],
            "GIT_PROJECT_ROOT": self.root,
            "GIT_HTTP_EXPORT_ALL": "1",
            "REMOTE_USER": USER,
            "REQUEST_METHOD": self.command,
            "PATH_INFO": path,
            "QUERY_STRING": query,
            "CONTENT_TYPE": self.headers.get("Content-Type", ""),
            "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
            "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
        }
        answer = subprocess.run(["git", "http-backend"], input=body, capture_output=True, env=environment, check=True)
        head, _, content = answer.stdout.partition(b"\r\n\r\n")
        headers = dict(line.split(": ", 1) for line in head.decode().split("\r\n"))
        self.send_response(int(headers.pop("Status", "200").split()[0]))
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Quiet."""


def served(handler: type[http.server.BaseHTTPRequestHandler], certificate: pathlib.Path) -> Iterator[int]:
    """The port of a TLS server."""
    listening = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    listening.socket = context.wrap_socket(listening.socket, server_side=True)
    thread = threading.Thread(target=listening.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    yield listening.server_port
    listening.shutdown()
    listening.server_close()
    thread.join()


def repository(folder: pathlib.Path) -> pathlib.Path:
    """An empty repository `fleet.git` in a folder, which may be pushed to."""
    bare = folder / "fleet.git"
    subprocess.run(["git", "init", "--quiet", "--bare", "--initial-branch", "main", str(bare)], check=True)
    subprocess.run(["git", "config", "http.receivepack", "true"], cwd=bare, check=True)
    return bare


def authority(certificate: pathlib.Path) -> str:
    """The certificate alone, without the key beside it: what a client trusts."""
    text = certificate.read_text(encoding="utf-8")
    return text[text.index("-----BEGIN CERTIFICATE") :]
