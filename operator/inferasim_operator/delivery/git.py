"""Git delivery: clone, write the mix's two files, commit a real change only, push; on a moved head try again on top.

Runs the `git` command in a temporary folder with no configuration of the machine's, no hooks, no prompt and no force.
Credentials reach git through its helper variables only: never an argument, a URL or a file of the repository.
"""

from __future__ import annotations

import os
import pathlib
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

import yaml

from simcore.errors import InputError

ATTEMPTS: Final = 5
TIMEOUT_S: Final = 60.0
MANIFESTS: Final = "manifests.yaml"
KUSTOMIZATION: Final = "kustomization.yaml"
AUTHOR: Final = "inferasim-operator"
_TEXT_LENGTH: Final = 256
_ASKPASS: Final = (
    '#!/bin/sh\ncase "$1" in Username*) printf %s "$INFERASIM_USER" ;; *) printf %s "$INFERASIM_PASSWORD" ;; esac\n'
)


class GitError(Exception):
    """A git command failed; the text is its last line, without credentials."""

    def __init__(self, message: str, *, is_moved_head: bool = False) -> None:
        self.is_moved_head = is_moved_head
        super().__init__(message)


@dataclass(frozen=True)
class Credentials:
    """What the Secret named in the spec holds; all empty = none."""

    username: str = field(default="", repr=False)
    password: str = field(default="", repr=False)
    ssh_key: str = field(default="", repr=False)
    known_hosts: str = field(default="", repr=False)
    ca_certificate: str = field(default="", repr=False)
    """Of a server whose certificate no public authority has signed; PEM."""

    @classmethod
    def from_secret(cls, data: Mapping[str, str]) -> Credentials:
        """From a Secret: `username`, `password` or `token`, `ca.crt`; `sshKey`, `knownHosts`. All decoded."""
        password = data.get("password") or data.get("token", "")
        return cls(
            username=data.get("username", ""),
            password=password,
            ssh_key=data.get("sshKey", ""),
            known_hosts=data.get("knownHosts", ""),
            ca_certificate=data.get("ca.crt", ""),
        )


@dataclass(frozen=True)
class GitRequest:
    """What should stand in the repository. `message` is the commit's; it is used only when something changes."""

    url: str
    branch: str
    path: str
    manifests: str
    message: str
    credentials: Credentials = Credentials()


@dataclass(frozen=True)
class GitOutcome:
    """The commit that holds the manifests now, and whether this delivery made it."""

    commit: str
    is_new: bool


def deliver(request: GitRequest, *, allow_local: bool = False, timeout_s: float = TIMEOUT_S) -> GitOutcome:
    """Bring the branch to hold the manifests. Blocks for minutes at worst. Raises InputError, GitError."""
    _check(request, allow_local=allow_local)
    with tempfile.TemporaryDirectory(prefix="inferasim-git-") as folder:
        home = pathlib.Path(folder)
        clone = _Clone(request, home, timeout_s)
        clone.fetch_all()
        for attempt in range(1, ATTEMPTS + 1):
            outcome = clone.write()
            if not outcome.is_new:
                return outcome
            try:
                clone.push()
            except GitError as error:
                if not error.is_moved_head or attempt == ATTEMPTS:
                    raise
                clone.fetch_branch()
            else:
                return outcome
    raise GitError("the branch moved at every attempt")


def _check(request: GitRequest, *, allow_local: bool) -> None:
    scheme = urlsplit(request.url).scheme
    schemes = ("https", "ssh", "http", "file") if allow_local else ("https", "ssh")
    if scheme not in schemes:
        raise InputError("delivery.git.url", request.url, f"begin with {' or '.join(f'{s}://' for s in schemes)}")
    if "@" in (urlsplit(request.url).netloc if scheme != "ssh" else ""):
        raise InputError("delivery.git.url", "a URL with credentials", "have none in it", "name a Secret instead")
    if scheme == "http" and (request.credentials.password or request.credentials.username):
        raise InputError("delivery.git.url", request.url, "be https when there are credentials")
    parts = pathlib.PurePosixPath(request.path).parts
    if not parts or parts[0] == "/" or ".." in parts or ".git" in parts:
        raise InputError("delivery.git.path", request.path, "be a folder inside the repository")


class _Clone:
    """One working copy; every command runs in it with the same bare environment."""

    def __init__(self, request: GitRequest, home: pathlib.Path, timeout_s: float) -> None:
        self._request, self._home, self._timeout_s = request, home, timeout_s
        self._tree = home / "tree"
        self._environment = self._make_environment()
        self._branch_ref = f"refs/heads/{request.branch}"

    def fetch_all(self) -> None:
        """An empty copy, then the branch if it exists, else the default branch to start from, else nothing."""
        self._tree.mkdir()
        self._git("init", "--quiet", "--initial-branch", "inferasim")
        self._git("remote", "add", "origin", self._request.url)
        heads = self._git("ls-remote", "--symref", "origin", "HEAD", self._branch_ref)
        names = {line.split("\t")[1] for line in heads.splitlines() if "\t" in line and not line.startswith("ref:")}
        if self._branch_ref in names:
            self.fetch_branch()
        elif "HEAD" in names:
            self._reset_to("HEAD")

    def fetch_branch(self) -> None:
        """The branch as it is now; what was committed here on an older head is dropped."""
        self._reset_to(self._branch_ref)

    def _reset_to(self, ref: str) -> None:
        self._git("fetch", "--quiet", "--depth", "1", "origin", ref)
        self._git("checkout", "--quiet", "--detach", "--force", "FETCH_HEAD")

    def write(self) -> GitOutcome:
        """Write both files and commit when they differ from the head."""
        folder = self._tree / self._request.path
        self._refuse_links(folder)
        folder.mkdir(parents=True, exist_ok=True)
        kustomization = {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization"}
        files = {
            MANIFESTS: self._request.manifests,
            KUSTOMIZATION: yaml.safe_dump({**kustomization, "resources": [MANIFESTS]}),
        }
        for name, text in files.items():
            self._refuse_links(folder / name)
            (folder / name).write_text(text, encoding="utf-8")
        self._git("add", "--force", "--", *(f"{self._request.path}/{name}" for name in files))
        if not self._git("status", "--porcelain", "--untracked-files=no"):
            return GitOutcome(self._git("rev-parse", "HEAD"), is_new=False)
        self._git("commit", "--quiet", "--message", self._request.message)
        return GitOutcome(self._git("rev-parse", "HEAD"), is_new=True)

    def push(self) -> None:
        """Push the commit; a moved head is refused by the server and raised as such."""
        self._git("push", "--quiet", "origin", f"HEAD:{self._branch_ref}")

    def _refuse_links(self, path: pathlib.Path) -> None:
        # A link in the repository must not make us write outside of it.
        if not path.resolve().is_relative_to(self._tree.resolve()) or path.is_symlink():
            raise GitError(f"{path.relative_to(self._tree)} is a link")

    def _make_environment(self) -> dict[str, str]:
        credentials, home = self._request.credentials, self._home
        environment = {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": str(home),
            "LC_ALL": "C",
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_AUTHOR_NAME": AUTHOR,
            "GIT_AUTHOR_EMAIL": f"{AUTHOR}@localhost",
            "GIT_COMMITTER_NAME": AUTHOR,
            "GIT_COMMITTER_EMAIL": f"{AUTHOR}@localhost",
        }
        if credentials.password:
            helper = home / "askpass"
            helper.write_text(_ASKPASS)
            helper.chmod(0o700)
            environment |= {
                "GIT_ASKPASS": str(helper),
                "INFERASIM_USER": credentials.username or "git",
                "INFERASIM_PASSWORD": credentials.password,
            }
        if credentials.ca_certificate:
            authority = home / "ca.crt"
            authority.write_text(credentials.ca_certificate)
            environment["GIT_SSL_CAINFO"] = str(authority)
        if credentials.ssh_key:
            key, hosts = home / "key", home / "known_hosts"
            for file, text in ((key, credentials.ssh_key), (hosts, credentials.known_hosts)):
                file.touch(mode=0o600)
                file.write_text(text if text.endswith("\n") else f"{text}\n")
            environment["GIT_SSH_COMMAND"] = (
                f"ssh -i {key} -F none -o IdentitiesOnly=yes -o BatchMode=yes"
                f" -o StrictHostKeyChecking=yes -o UserKnownHostsFile={hosts}"
            )
        return environment

    def _git(self, *arguments: str) -> str:
        command = ["git", "-c", "core.hooksPath=/dev/null", "-c", "protocol.ext.allow=never", *arguments]
        try:
            answer = subprocess.run(  # noqa: S603 - no shell; every argument is checked or ours
                command,
                cwd=self._tree,
                env=self._environment,
                capture_output=True,
                text=True,
                timeout=self._timeout_s,
                check=False,
                stdin=subprocess.DEVNULL,
            )
        except subprocess.TimeoutExpired as error:
            raise GitError(f"git {arguments[0]} took longer than {self._timeout_s:.0f} s") from error
        except OSError as error:
            raise GitError(f"git cannot be run: {error.strerror}") from error
        if answer.returncode:
            is_moved = arguments[0] == "push" and any(
                word in answer.stderr for word in ("non-fast-forward", "fetch first", "cannot lock ref", "stale info")
            )
            raise GitError(f"git {arguments[0]}: {self._told(answer.stderr)}", is_moved_head=is_moved)
        return answer.stdout.strip()

    def _told(self, text: str) -> str:
        lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("hint:")]
        told = next((line for line in lines if line.startswith(("fatal:", "error:"))), lines[-1] if lines else "failed")
        for secret in (self._request.credentials.password, self._request.credentials.username):
            told = told.replace(secret, "***") if secret else told
        return told[:_TEXT_LENGTH]
