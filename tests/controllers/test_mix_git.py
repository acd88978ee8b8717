"""Git delivery against real bare repositories: one commit per change, on top of a moved head, never by force."""

from __future__ import annotations

import pathlib
import subprocess
import threading
from collections.abc import Callable
from dataclasses import replace

import pytest

from inferasim_operator.delivery import git
from inferasim_operator.delivery.background import Deliveries
from inferasim_operator.delivery.git import Credentials, GitError, GitOutcome, GitRequest, deliver
from simcore.errors import InputError

TEXT = "---\nkind: Service\n"
FILES = {"manifests.yaml": TEXT, "kustomization.yaml": "resources: [manifests.yaml]\n"}


def run(folder: pathlib.Path, *arguments: str) -> str:
    identity = ["-c", "user.name=somebody", "-c", "user.email=somebody@localhost"]
    answer = subprocess.run(["git", *identity, *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return answer.stdout.strip()


@pytest.fixture
def remote(tmp_path: pathlib.Path) -> pathlib.Path:
    """A bare repository with one commit on `main`."""
    bare, work = tmp_path / "remote.git", tmp_path / "work"
    work.mkdir()
    run(tmp_path, "init", "--quiet", "--bare", "--initial-branch", "main", str(bare))
    run(work, "init", "--quiet", "--initial-branch", "main")
    (work / "README").write_text("ours\n")
    run(work, "add", ".")
    run(work, "commit", "--quiet", "-m", "first")
    run(work, "push", "--quiet", str(bare), "main")
    return bare


def request(remote: pathlib.Path, **changes: object) -> GitRequest:
    wanted = GitRequest(f"file://{remote}", "main", "clusters/a", FILES, "Deploy chat\n\nManifests: abc\n")
    return replace(wanted, **changes)  # type: ignore[arg-type]


def log(remote: pathlib.Path, branch: str = "main") -> list[str]:
    return run(remote, "log", "--format=%s", branch).splitlines()


def test_deliveries_of_the_same_make_one_commit(remote: pathlib.Path) -> None:
    outcomes = [deliver(request(remote), allow_local=True) for _ in range(4)]
    assert [outcome.is_new for outcome in outcomes] == [True] + [False] * 3
    assert {outcome.commit for outcome in outcomes} == {run(remote, "rev-parse", "main")}
    assert log(remote) == ["Deploy chat", "first"]
    assert run(remote, "show", "main:clusters/a/manifests.yaml") == TEXT.strip()
    assert "manifests.yaml" in run(remote, "show", "main:clusters/a/kustomization.yaml")
    assert run(remote, "show", "main:README") == "ours"


def test_a_change_is_a_second_commit_and_touches_nothing_else(remote: pathlib.Path) -> None:
    deliver(request(remote), allow_local=True)
    deliver(
        request(remote, files={**FILES, "manifests.yaml": TEXT + "a: 1\n"}, message="Deploy more"), allow_local=True
    )
    assert log(remote) == ["Deploy more", "Deploy chat", "first"]
    assert run(remote, "diff", "--name-only", "main~1", "main") == "clusters/a/manifests.yaml"


@pytest.mark.parametrize("branch", ["main", "deploy/prod"])
def test_a_branch_that_does_not_exist_begins_at_the_default_one(remote: pathlib.Path, branch: str) -> None:
    deliver(request(remote, branch=branch), allow_local=True)
    assert log(remote, branch) == ["Deploy chat", "first"]


def test_an_empty_repository_gets_its_first_commit(tmp_path: pathlib.Path) -> None:
    bare = tmp_path / "empty.git"
    run(tmp_path, "init", "--quiet", "--bare", "--initial-branch", "main", str(bare))
    deliver(request(bare), allow_local=True)
    assert log(bare) == ["Deploy chat"]


def test_a_head_that_moves_between_is_built_upon(remote: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody pushes after our fetch, twice: both their commits stay, ours is on top."""
    push = git._Clone.push
    others: list[str] = []

    def pushed_first(self: git._Clone) -> None:
        if len(others) < 2:
            others.append(f"theirs {len(others)}")
            clone = self._home / f"other{len(others)}"
            run(self._home, "clone", "--quiet", str(remote), str(clone))
            (clone / f"file{len(others)}").write_text("theirs\n")
            run(clone, "add", ".")
            run(clone, "commit", "--quiet", "-m", others[-1])
            run(clone, "push", "--quiet", "origin", "main")
        push(self)

    monkeypatch.setattr(git._Clone, "push", pushed_first)
    deliver(request(remote), allow_local=True)
    assert log(remote) == ["Deploy chat", "theirs 1", "theirs 0", "first"]


def test_a_detached_head_is_no_obstacle(remote: pathlib.Path) -> None:
    (remote / "HEAD").write_text(run(remote, "rev-parse", "main") + "\n")
    deliver(request(remote, branch="deploy"), allow_local=True)
    assert log(remote, "deploy") == ["Deploy chat", "first"]


def test_a_protected_branch_says_why_and_is_tried_once(remote: pathlib.Path) -> None:
    """The server's own words, not git's `failed to push some refs`; and without the token that they repeat."""
    hook = remote / "hooks/pre-receive"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text('#!/bin/sh\necho tried >> "$GIT_DIR/tries"\necho "error: s3cr/t of git may not push"\nexit 1\n')
    hook.chmod(0o755)
    token = Credentials.from_secret({"token": "s3cr/t"})
    with pytest.raises(GitError, match="pre-receive hook declined") as caught:
        deliver(request(remote, credentials=token), allow_local=True)
    assert not caught.value.is_moved_head
    assert (remote / "tries").read_text() == "tried\n"
    hook.write_text(hook.read_text().replace("exit 1", 'echo "fatal: Basic $(printf git:s3cr/t | base64)" >&2; exit 1'))
    with pytest.raises(GitError) as caught:
        deliver(request(remote, credentials=token), allow_local=True)
    assert "s3cr/t" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_stands_in_the_way_is_one_line(remote: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """A file where a folder must be; a submodule, which is another repository."""
    clone = tmp_path / "clone"
    run(tmp_path, "clone", "--quiet", str(remote), str(clone))
    (clone / "clusters").write_text("a file\n")
    run(clone, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", f"file://{remote}", "sub")
    run(clone, "add", ".")
    run(clone, "commit", "--quiet", "-m", "obstacles")
    run(clone, "push", "--quiet", "origin", "main")
    for path, told in (("clusters/a", "cannot be written"), ("sub/a", "submodule")):
        with pytest.raises(GitError, match=told) as caught:
            deliver(request(remote, path=path), allow_local=True)
        assert "\n" not in str(caught.value)
    assert log(remote) == ["obstacles", "first"]


def test_another_package_takes_the_place_of_the_former(remote: pathlib.Path) -> None:
    """What was delivered and is not wanted any more goes; what somebody else put beside it stays."""
    former = {**FILES, "base/a.yaml": "a: 1\n", "router/b.values.yaml": "b: 1\n", "mine.txt": "kept\n"}
    owned = ("manifests.yaml", "kustomization.yaml", "base/", "router/")
    deliver(request(remote, path="clusters/a/", files=former, owned=owned), allow_local=True)
    wanted = {"kustomization.yaml": "resources: [base]\n", "base/c.yaml": "c: 1\n"}
    deliver(request(remote, path="./clusters//a", files=wanted, owned=owned), allow_local=True)
    left = run(remote, "ls-tree", "-r", "--name-only", "main", "clusters/a/").splitlines()
    assert left == [f"clusters/a/{name}" for name in ("base/c.yaml", "kustomization.yaml", "mine.txt")]
    assert not deliver(request(remote, files=wanted, owned=owned), allow_local=True).is_new


def test_a_dead_remote_is_one_line(tmp_path: pathlib.Path) -> None:
    with pytest.raises(GitError, match="ls-remote") as caught:
        deliver(request(tmp_path / "none.git"), allow_local=True)
    assert "\n" not in str(caught.value)


def test_a_link_in_the_repository_is_not_followed(remote: pathlib.Path, tmp_path: pathlib.Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    clone = tmp_path / "clone"
    run(tmp_path, "clone", "--quiet", str(remote), str(clone))
    (clone / "clusters").symlink_to(outside)
    run(clone, "add", ".")
    run(clone, "commit", "--quiet", "-m", "link")
    run(clone, "push", "--quiet", "origin", "main")
    with pytest.raises(GitError, match="link"):
        deliver(request(remote), allow_local=True)
    assert list(outside.iterdir()) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"url": "file:///etc"},
        {"url": "ext::sh -c id"},
        {"url": "http://example.test/a.git"},
        {"url": "https://user:s3cret@example.test/a.git"},
        {"path": "../x"},
        {"path": "/etc"},
        {"path": "a/.git/hooks"},
        {"path": "a/.GIT/hooks"},
        {"branch": "a..b"},
        {"branch": "main.lock"},
        {"branch": "a//b"},
        {"branch": "a/"},
        {"branch": "a/.b"},
        {"url": "ssh://git@example.test/a.git"},
    ],
)
def test_what_is_not_safe_is_refused_before_git_runs(remote: pathlib.Path, changes: dict[str, str]) -> None:
    wanted = {"url": "https://example.test/a.git", **changes}
    with pytest.raises(InputError) as caught:
        deliver(request(remote, **wanted))
    assert "s3cret" not in str(caught.value)


def test_the_token_is_nowhere_but_in_the_helper(remote: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []
    original = subprocess.run

    def spy(command: list[str], **options: object) -> object:
        environment = options.get("env") or {}
        seen.append([*command, *(k for k, v in environment.items() if "s3cret" in v)])  # type: ignore[attr-defined]
        return original(command, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(subprocess, "run", spy)
    token = Credentials.from_secret({"token": "s3cret"})
    deliver(request(remote, credentials=token), allow_local=True)
    assert all("s3cret" not in part for command in seen for part in command)
    assert {part for command in seen for part in command if part.startswith("INFERASIM_")} == {"INFERASIM_PASSWORD"}
    assert "s3cret" not in repr(token)
    assert "s3cret" not in run(remote, "log", "-p", "main")


class Remote:
    """A stand-in for `deliver` that fails until it is told not to."""

    def __init__(self) -> None:
        self.calls = 0
        self.is_dead = True
        self.done = threading.Event()

    def __call__(self, _: GitRequest) -> GitOutcome:
        self.calls += 1
        self.done.set()
        if self.is_dead:
            raise GitError("git ls-remote: fatal: could not connect")
        return GitOutcome("abc123", is_new=True)


def wait(deliveries: Deliveries, until: Callable[[], bool], ask: Callable[[], object]) -> None:
    deadline = threading.Event()
    for _ in range(500):
        ask()
        if until():
            return
        deadline.wait(0.01)
    raise AssertionError("nothing came of it")


def test_a_dead_remote_is_retried_with_back_off_and_recovers(remote: pathlib.Path) -> None:
    now = [0.0]
    server = Remote()
    deliveries = Deliveries(server, monotonic_s=lambda: now[0])
    states = []

    def ask() -> object:
        states.append(deliveries.want("mix", "d1", request(remote)))
        return states[-1]

    wait(deliveries, lambda: states[-1].problem != "", ask)
    assert states[-1].retry_at_s == 5.0
    for _ in range(20):
        ask()
    assert server.calls == 1  # not before its time
    now[0] = 5.0
    wait(deliveries, lambda: states[-1].attempts == 2, ask)
    assert states[-1].retry_at_s == 15.0
    server.is_dead = False
    now[0] = 15.0
    wait(deliveries, lambda: states[-1].outcome is not None, ask)
    assert server.calls == 3
    for _ in range(50):
        ask()
    assert server.calls == 3
    deliveries.close()
