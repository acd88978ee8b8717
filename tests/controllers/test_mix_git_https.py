"""Git over real https: git's own server program behind TLS and a password, the token given by the Secret's keys."""

from __future__ import annotations

import base64
import http.server
import os
import pathlib
import ssl
import subprocess
import threading
from collections.abc import Iterator

import pytest

from inferasim_operator.delivery.git import Credentials, GitError, GitRequest, deliver

TOKEN = "t0ken-of-the-test"
FILES = {"manifests.yaml": "---\nkind: Service\n"}


class _Backend(http.server.BaseHTTPRequestHandler):
    """`git http-backend`, as any web server would run it."""

    root = ""

    def do_GET(self) -> None:
        self._serve()

    def do_POST(self) -> None:
        self._serve()

    def _serve(self) -> None:
        wanted = "Basic " + base64.b64encode(f"deployer:{TOKEN}".encode()).decode()
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
            "REMOTE_USER": "deployer",
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


@pytest.fixture
def server(tmp_path: pathlib.Path, certificate: pathlib.Path) -> Iterator[str]:
    """The URL of an empty repository, which may be pushed to."""
    bare = tmp_path / "fleet.git"
    subprocess.run(["git", "init", "--quiet", "--bare", "--initial-branch", "main", str(bare)], check=True)
    subprocess.run(["git", "config", "http.receivepack", "true"], cwd=bare, check=True)
    for port in served(type("Handler", (_Backend,), {"root": str(tmp_path)}), certificate):
        yield f"https://127.0.0.1:{port}/fleet.git"


def credentials(certificate: pathlib.Path, **changes: str) -> Credentials:
    text = certificate.read_text()
    authority = text[text.index("-----BEGIN CERTIFICATE") :]
    return Credentials.from_secret({"username": "deployer", "token": TOKEN, "ca.crt": authority, **changes})


def test_a_token_delivers_over_https(server: str, certificate: pathlib.Path, tmp_path: pathlib.Path) -> None:
    request = GitRequest(server, "main", "fleet", FILES, "Deploy chat\n", credentials(certificate))
    first = deliver(request)
    assert first.is_new
    assert not deliver(request).is_new
    head = subprocess.run(
        ["git", "rev-parse", "main"], cwd=tmp_path / "fleet.git", capture_output=True, text=True, check=True
    )
    assert head.stdout.strip() == first.commit


def test_a_wrong_token_is_one_line_without_it(server: str, certificate: pathlib.Path) -> None:
    request = GitRequest(server, "main", "fleet", FILES, "Deploy\n", credentials(certificate, token="wr0ng"))
    with pytest.raises(GitError) as caught:
        deliver(request)
    assert "wr0ng" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_server_of_unknown_authority_is_refused(server: str) -> None:
    request = GitRequest(server, "main", "fleet", FILES, "Deploy\n", Credentials("deployer", TOKEN))
    with pytest.raises(GitError, match="certificate"):
        deliver(request)


@pytest.fixture
def other(certificate: pathlib.Path) -> Iterator[tuple[str, list[str]]]:
    """The URL of a server that wants a password, and the credentials that it was given."""
    given: list[str] = []

    class Handler(_Backend):
        def _serve(self) -> None:
            given.extend(self.headers.get_all("Authorization") or [])
            self.send_response(401)
            self.send_header("WWW-Authenticate", 'Basic realm="git"')
            self.send_header("Content-Length", "0")
            self.end_headers()

    for port in served(Handler, certificate):
        yield f"https://127.0.0.1:{port}", given


def test_a_server_that_redirects_elsewhere_does_not_take_the_token_along(
    other: tuple[str, list[str]], certificate: pathlib.Path
) -> None:
    elsewhere, given = other

    class Redirecting(_Backend):
        def _serve(self) -> None:
            self.send_response(302)
            self.send_header("Location", f"{elsewhere}{self.path}")
            self.send_header("Content-Length", "0")
            self.end_headers()

    for port in served(Redirecting, certificate):
        url = f"https://127.0.0.1:{port}/fleet.git"
        request = GitRequest(url, "main", "fleet", FILES, "Deploy\n", credentials(certificate))
        with pytest.raises(GitError) as caught:
            deliver(request)
        assert TOKEN not in str(caught.value)
    assert given == []
