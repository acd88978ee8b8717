"""Git over real https: git's own server program behind TLS and a password, the token given by the Secret's keys."""

from __future__ import annotations

import pathlib
import subprocess
from collections.abc import Iterator

import pytest

from inferasim_operator.delivery.git import Credentials, GitError, GitRequest, deliver
from tests import git_server

TOKEN = "t0ken-of-the-test"
FILES = {"manifests.yaml": "---\nkind: Service\n"}


@pytest.fixture
def server(tmp_path: pathlib.Path, certificate: pathlib.Path) -> Iterator[str]:
    """The URL of an empty repository, which may be pushed to."""
    git_server.repository(tmp_path)
    handler = type("Handler", (git_server.Backend,), {"root": str(tmp_path), "token": TOKEN})
    for port in git_server.served(handler, certificate):
        yield f"https://127.0.0.1:{port}/fleet.git"


def credentials(certificate: pathlib.Path, **changes: str) -> Credentials:
    given = {"username": git_server.USER, "token": TOKEN, "ca.crt": git_server.authority(certificate)}
    return Credentials.from_secret({**given, **changes})


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

    class Handler(git_server.Backend):
        def _serve(self) -> None:
            given.extend(self.headers.get_all("Authorization") or [])
            self.send_response(401)
            self.send_header("WWW-Authenticate", 'Basic realm="git"')
            self.send_header("Content-Length", "0")
            self.end_headers()

    for port in git_server.served(Handler, certificate):
        yield f"https://127.0.0.1:{port}", given


def test_a_server_that_redirects_elsewhere_does_not_take_the_token_along(
    other: tuple[str, list[str]], certificate: pathlib.Path
) -> None:
    elsewhere, given = other

    class Redirecting(git_server.Backend):
        def _serve(self) -> None:
            self.send_response(302)
            self.send_header("Location", f"{elsewhere}{self.path}")
            self.send_header("Content-Length", "0")
            self.end_headers()

    for port in git_server.served(Redirecting, certificate):
        url = f"https://127.0.0.1:{port}/fleet.git"
        request = GitRequest(url, "main", "fleet", FILES, "Deploy\n", credentials(certificate))
        with pytest.raises(GitError) as caught:
            deliver(request)
        assert TOKEN not in str(caught.value)
    assert given == []
