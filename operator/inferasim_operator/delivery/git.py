"""Git delivery: clone, write the mix's files, commit a real change only, push; on a moved head try again on top.

Runs the `git` command in a temporary folder with no configuration of the machine's, no hooks, no prompt and no force.
Credentials reach git through its helper variables only: never an argument, a URL or a file of the repository.
"""

from __future__ import annotations

import base64
import os
import pathlib
import re
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import quote, urlsplit

from simcore.errors import InputError

ATTEMPTS: Final = 5
TIMEOUT_S: Final = 60.0
AUTHOR: Final = "inferasim-operator"
_TEXT_LENGTH: Final = 256
# What `git check-ref-format` takes, of the characters that the API lets through.
_BRANCH: Final = re.compile(r"(?!.*(\.\.|//|/\.|\.lock(/|$)|[/.]$))[A-Za-z0-9][-A-Za-z0-9_./]*")
# The prompt names the server that asks: one that ours redirects to gets nothing.
_ASKPASS: Final = """#!/bin/sh
case "$1" in *"://$INFERASIM_HOST'"* | *"@$INFERASIM_HOST'"*) ;; *) exit 1 ;; esac
case "$1" in Username*) printf %s "$INFERASIM_USER" ;; *) printf %s "$INFERASIM_PASSWORD" ;; esac
"""


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
    files: Mapping[str, str]
    """Path below `path` to text."""
    message: str
    credentials: Credentials = Credentials()
    owned: tuple[str, ...] = ()
    """Files and folders (with a slash) below `path` that go when they are not in `files`: an earlier delivery's."""


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
    if scheme == "ssh" and not (request.credentials.ssh_key and request.credentials.known_hosts):
        raise InputError("delivery.git.secret", None, "hold `sshKey` and `knownHosts` for ssh")
    parts = pathlib.PurePosixPath(request.path).parts
    if not parts or parts[0] == "/" or ".." in parts or ".git" in (part.lower() for part in parts):
        raise InputError("delivery.git.path", request.path, "be a folder inside the repository")
    if not _BRANCH.fullmatch(request.branch):
        raise InputError("delivery.git.branch", request.branch, "be a branch name that Git takes")


class _Clone:
    """One working copy; every command runs in it with the same bare environment."""

    def __init__(self, request: GitRequest, home: pathlib.Path, timeout_s: float) -> None:
        self._request, self._home, self._timeout_s = request, home, timeout_s
        self._tree = home / "tree"
        self._root = str(pathlib.PurePosixPath(request.path))
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
        """Write the files, remove what an earlier delivery left, and commit when that differs from the head."""
        root, wanted = self._root, self._request.files
        for name, text in wanted.items():
            file = self._tree / root / name
            self._refuse_links(file)
            try:
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text, encoding="utf-8")
            except OSError as error:
                raise GitError(f"{root}/{name} cannot be written: {error.strerror}") from error
        self._git("add", "--force", "--", *(f"{root}/{name}" for name in wanted))
        stale = [name for name in self._tracked() if name.startswith(self._request.owned) and name not in wanted]
        if stale:
            self._git("rm", "--quiet", "--cached", "--", *(f"{root}/{name}" for name in stale))
        if not self._git("diff", "--cached", "--name-only"):
            return GitOutcome(self._git("rev-parse", "HEAD"), is_new=False)
        self._git("commit", "--quiet", "--message", self._request.message)
        return GitOutcome(self._git("rev-parse", "HEAD"), is_new=True)

    def _tracked(self) -> list[str]:
        listed = self._git("ls-files", "-z", "--", self._root)
        return [name.removeprefix(f"{self._root}/") for name in listed.split("\0") if name]

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
            "GIT_LITERAL_PATHSPECS": "1",
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
                "INFERASIM_HOST": urlsplit(self._request.url).netloc,
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
                encoding="utf-8",
                errors="replace",  # a server says what it likes
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
        # The reason is in the lines of the server or of ssh; git's own last one says only that it failed.
        marks = (
            "! [",
            "remote: error:",
            "remote: fatal:",
            "verification failed",
            "Permission denied",
            "fatal:",
            "error:",
        )
        found = next((line for mark in marks for line in lines if mark in line), lines[-1] if lines else "failed")
        told = " ".join(found.split())
        credentials = self._request.credentials
        pair = f"{credentials.username or 'git'}:{credentials.password}".encode()
        secrets = (credentials.password, quote(credentials.password, safe=""), base64.b64encode(pair).decode())
        for secret in secrets if credentials.password else ():
            told = told.replace(secret, "***")
        return told[:_TEXT_LENGTH]
