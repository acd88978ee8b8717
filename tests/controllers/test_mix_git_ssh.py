"""Git over real ssh: the key of the Secret, and no server but the one whose host key is known."""

from __future__ import annotations

import getpass
import os
import pathlib
import shutil
import socket
import subprocess
from collections.abc import Iterator

import pytest

from inferasim_operator.delivery.git import Credentials, GitError, GitRequest, deliver

FILES = {"manifests.yaml": "---\nkind: Service\n"}


def keypair(path: pathlib.Path) -> pathlib.Path:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "test", "-f", str(path)], check=True)
    return path


@pytest.fixture
def server(tmp_path: pathlib.Path) -> Iterator[int]:
    """The port of an ssh server of this user's, which lets `key` in."""
    program = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if program is None or shutil.which("ssh-keygen") is None:
        pytest.skip("needs the program `sshd` (Debian package openssh-server)")
    host = keypair(tmp_path / "host")
    shutil.copy(keypair(tmp_path / "key").with_suffix(".pub"), tmp_path / "authorized")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    config = tmp_path / "sshd_config"
    config.write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {host}\nAuthorizedKeysFile {tmp_path}/authorized\n"
        f"StrictModes no\nUsePAM no\nPasswordAuthentication no\nPermitRootLogin prohibit-password\n"
        f"PidFile {tmp_path}/pid\n"
    )
    pathlib.Path("/run/sshd").mkdir(exist_ok=True)
    with subprocess.Popen([program, "-D", "-e", "-f", str(config)], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        line = process.stderr.readline()
        if "Server listening" not in line:
            process.kill()
            pytest.skip(f"sshd does not run here: {line.strip()}")
        yield port
        process.terminate()


def request(port: int, tmp_path: pathlib.Path, host_key: pathlib.Path) -> GitRequest:
    known = f"[127.0.0.1]:{port} {host_key.read_text()}"
    secret = Credentials.from_secret({"sshKey": (tmp_path / "key").read_text().strip(), "knownHosts": known})
    url = f"ssh://{getpass.getuser()}@127.0.0.1:{port}{tmp_path}/fleet.git"
    return GitRequest(url, "main", "fleet", FILES, "Deploy chat\n", secret)


def test_a_key_delivers_to_the_host_that_is_known_and_to_no_other(server: int, tmp_path: pathlib.Path) -> None:
    subprocess.run(
        ["git", "init", "--quiet", "--bare", "--initial-branch", "main", str(tmp_path / "fleet.git")], check=True
    )
    stranger = keypair(tmp_path / "stranger").with_suffix(".pub")
    with pytest.raises(GitError, match="Host key verification failed"):
        deliver(request(server, tmp_path, stranger))
    first = deliver(request(server, tmp_path, tmp_path / "host.pub"))
    assert first.is_new
    assert not deliver(request(server, tmp_path, tmp_path / "host.pub")).is_new
