"""`make engine-parsers`: the published packages whose own parsers read the emitted command lines, and nothing else.

A parser needs no GPU. The packages are unpacked beside the environment of `e2e.cpu_engine`, whose torch they import;
what else they would import is not there, and `engines/parse_command_lines.py` stands in for it.
"""

from __future__ import annotations

import collections.abc
import hashlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import typing

from e2e import cache, cpu_engine, errors, progress

ENGINES: typing.Final = pathlib.Path(__file__).with_name("engines")
RUNNER: typing.Final = ENGINES / "parse_command_lines.py"
PACKAGES: typing.Final[collections.abc.Mapping[tuple[str, str], str]] = {
    ("SGLang", "0.5.18"): "sglang-0.5.18.lock",
    ("SGLang", "0.5.23"): "sglang-0.5.23.lock",
    ("VLLM", cpu_engine.VERSION): "",
    ("VLLM", "0.33.0"): "vllm-0.33.0.lock",
}
"""No lock file = the environment itself. SGLang before 0.5.14 asks triton for a device while it is imported."""


def folder(engine: str, version: str) -> pathlib.Path | None:
    """Where a package is, or would be; None for the one that is the environment's own."""
    lock = PACKAGES[engine, version]
    if not lock:
        return None
    digest = hashlib.sha256((ENGINES / lock).read_bytes()).hexdigest()[:12]
    return cache.cache_root() / "engines" / f"parser-{lock.removesuffix('.lock')}-{digest}"


def missing(engine: str, version: str) -> str:
    """Why the parser cannot be asked; empty when it can."""
    for place in (cpu_engine.folder() / ".ready", folder(engine, version)):
        if place is not None and not place.exists():
            return f"{engine} {version} is not installed: run `make engine-parsers`"
    return ""


def parse(engine: str, version: str, lines: list[list[str]]) -> list[dict[str, typing.Any]]:
    """What the engine's own parser makes of each command line, or `{"refused": reason}`. Raises E2EError."""
    place = folder(engine, version)
    environment = {**os.environ, **cpu_engine.ENVIRONMENT, "PYTHONPATH": str(place or "")}
    answer = subprocess.run(
        [str(cpu_engine.folder() / "bin" / "python"), str(RUNNER), engine, version],
        input=json.dumps(lines),
        capture_output=True,
        text=True,
        env=environment,
        timeout=300,
        check=False,
    )
    if answer.returncode:
        raise errors.ToolchainError(f"the parser of {engine} {version} does not run: {answer.stderr[-2000:]}")
    found: list[dict[str, typing.Any]] = json.loads(answer.stdout.splitlines()[-1])
    return found


def ensure(shown: progress.Progress) -> None:
    """All packages, installed on first use. Raises E2EError."""
    python = cpu_engine.ensure(shown) / "bin" / "python"
    for (engine, version), lock in PACKAGES.items():
        place = folder(engine, version)
        if place is None or place.exists():
            continue
        with cache.exclusive(place.with_name(f"{place.name}.lock"), while_waiting=lambda: None):
            if not place.exists():
                shown.update(f"unpacking {engine} {version}")
                _install(python, ENGINES / lock, place)
    shown.finish("the parsers are installed")


def _install(python: pathlib.Path, lock: pathlib.Path, place: pathlib.Path) -> None:
    staging = place.with_name(f"{cache.STAGING}{place.name}")
    shutil.rmtree(staging, ignore_errors=True)
    options = ["--no-deps", "--require-hashes", "--only-binary", ":all:", "--no-compile", "--target", str(staging)]
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    answer = subprocess.run([*pip, *options, "-r", str(lock)], capture_output=True, text=True, check=False)
    if answer.returncode:
        raise errors.ToolchainError(f"{lock.stem} could not be installed: {answer.stderr[-2000:]}")
    for library in staging.rglob("*.so"):
        library.unlink()  # parsers run none of it, and it is most of the bytes
    staging.rename(place)


def main() -> int:
    """Installs; 1 with the reason when that fails."""
    try:
        ensure(progress.Progress())
    except errors.E2EError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
