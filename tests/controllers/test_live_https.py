"""A Prometheus behind https: the Secret's authority and token are used, and nothing else is trusted."""

from __future__ import annotations

import http.server
import json
import pathlib
import ssl
import threading
from collections.abc import Iterator

import pytest

from inferasim_operator.live.page import PageError
from inferasim_operator.live.prometheus import PrometheusApi
from inferasim_operator.live.request import Prometheus

MATRIX = {"status": "success", "data": {"resultType": "matrix", "result": [{"metric": {}, "values": [[1, "2"]]}]}}
ALLOWED = ("Bearer hush", "Basic dXNlcjpwdw==")


class _Prometheus(http.server.BaseHTTPRequestHandler):
    """Answers range queries of those who may ask."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", "0")))
        allowed = self.headers.get("Authorization") in ALLOWED and self.path == "/team/api/v1/query_range"
        body = json.dumps(MATRIX).encode()
        self.send_response(200 if allowed else 401)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Quiet."""


@pytest.fixture(scope="module")
def url(certificate: pathlib.Path) -> Iterator[str]:
    """The server's address, with a path prefix as behind an ingress."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Prometheus)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    yield f"https://127.0.0.1:{server.server_port}/team/"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def authority(certificate: pathlib.Path) -> str:
    text = certificate.read_text()
    return text[text.index("-----BEGIN CERTIFICATE") :]


@pytest.mark.parametrize("secret", [{"token": "hush"}, {"user": "user", "password": "pw"}])
def test_a_secret_opens_the_door(url: str, authority: str, secret: dict[str, str]) -> None:
    api = PrometheusApi(Prometheus(url, authority=authority, **secret))
    assert api.query_range("up", 0.0, 1.0, 1.0) == [{"metric": {}, "values": [[1, "2"]]}]
    api.close()


def test_a_wrong_token_is_one_line_without_it(url: str, authority: str) -> None:
    api = PrometheusApi(Prometheus(url, authority=authority, token="wrong-hush"))
    with pytest.raises(PageError, match=r"^HTTP 401$"):
        api.query_range("up", 0.0, 1.0, 1.0)
    api.close()


def test_a_server_of_unknown_authority_gets_no_token(url: str) -> None:
    api = PrometheusApi(Prometheus(url, token="hush"))
    with pytest.raises(PageError, match="ConnectError"):
        api.query_range("up", 0.0, 1.0, 1.0)
    api.close()
