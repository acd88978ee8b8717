"""Builds the cluster's programs from their Go modules, once for each content, into the cache.

A program's folder is named by a hash of all that decides its bytes: go.mod, go.sum, build flags, Go's version. So a
changed pin never meets an old binary, and an unchanged one costs nothing.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import functools
import hashlib
import pathlib
import shutil
import subprocess

from e2e import cache, errors, processes, progress, toolchain

KUBERNETES_VERSION = "v1.36.3"
HELM_VERSION = "v4.3.1"
CONTAINERD_VERSION = "v2.2.9"
_KUBERNETES_LDFLAGS = f"-s -w -X k8s.io/component-base/version.gitVersion={KUBERNETES_VERSION}"
_BUILD = ("build", "-v", "-mod=readonly", "-trimpath", "-buildvcs=false")


@dataclasses.dataclass(frozen=True)
class Program:
    """One command: the folder of its module under `modules/`, its package, and the file name `go build` gives it."""

    name: str
    module: str
    package: str
    built_as: str
    ldflags: str = "-s -w"
    tags: str = ""


def _kubernetes(name: str) -> Program:
    return Program(name, "kubernetes", f"k8s.io/kubernetes/cmd/{name}", built_as=name, ldflags=_KUBERNETES_LDFLAGS)


def _containerd(name: str) -> Program:
    """Without the snapshotters that would need C libraries; overlayfs is the one that the node uses."""
    return Program(
        name,
        "containerd",
        f"github.com/containerd/containerd/v2/cmd/{name}",
        built_as=name,
        ldflags=f"-s -w -X github.com/containerd/containerd/v2/version.Version={CONTAINERD_VERSION}",
        tags="no_btrfs,no_devmapper,no_zfs",
    )


CONTROL_PLANE = ("etcd", "kube-apiserver", "kube-controller-manager", "kubectl")
NODE = ("kube-scheduler", "kubelet", "kube-proxy")
RUNTIME = ("containerd", "containerd-shim-runc-v2", "ctr")
SANDBOX = ("pause",)
CHART = ("helm", "health")
PROGRAMS: dict[str, Program] = {
    "etcd": Program("etcd", "etcd", "go.etcd.io/etcd/server/v3", built_as="server"),
    **{name: _kubernetes(name) for name in (*CONTROL_PLANE[1:], *NODE)},
    **{name: _containerd(name) for name in RUNTIME},
    "helm": Program(
        "helm",
        "helm",
        "helm.sh/helm/v4/cmd/helm",
        built_as="helm",
        ldflags=f"-s -w -X helm.sh/helm/v4/internal/version.version={HELM_VERSION}",
    ),
    "pause": Program("pause", "pause", "inferasim.dev/e2e/pause", built_as="pause"),
    "health": Program("health", "gitops", "inferasim.dev/e2e/gitops/health", built_as="health"),
}


def ensure(
    names: collections.abc.Sequence[str] = CONTROL_PLANE, *, shown: progress.Progress | None = None
) -> dict[str, pathlib.Path]:
    """Return where each named program is, building those that the cache lacks, one module after the other."""
    line = progress.Progress() if shown is None else shown
    go = toolchain.ensure_go(line)
    for module in dict.fromkeys(PROGRAMS[name].module for name in names):
        wanted = [PROGRAMS[name] for name in names if PROGRAMS[name].module == module]
        if _missing(wanted, go):
            lock = folder(wanted[0], go).with_suffix(".lock")
            waiting = functools.partial(line.update, f"waiting for another build of {module}")
            with cache.exclusive(lock, while_waiting=waiting):
                _build(_missing(wanted, go), go, line)
    return {name: path(PROGRAMS[name], go) for name in names}


def path(program: Program, go: toolchain.Go) -> pathlib.Path:
    """Where a program is, or will be once built."""
    return folder(program, go) / program.name


def folder(program: Program, go: toolchain.Go) -> pathlib.Path:
    """The cache folder of all programs that share this one's module, flags and Go."""
    source = toolchain.MODULES / program.module
    return cache.cache_root() / "bin" / digest(source, _flags(program), go.identity)


def _flags(program: Program) -> tuple[str, ...]:
    """What decides a build beside `_BUILD`; no tags at all when a program wants none."""
    return (program.ldflags, program.tags) if program.tags else (program.ldflags,)


def digest(source: pathlib.Path, flags: collections.abc.Sequence[str], go_identity: str) -> str:
    """A hash of everything that decides the bytes of what is built from the module in `source`."""
    hashed = hashlib.sha256()
    parts = [(source / name).read_bytes() for name in ("go.mod", "go.sum")]
    parts += [file.read_bytes() for file in sorted(source.rglob("*.go"))]  # of the one module with code of its own
    parts += [text.encode() for text in (*_BUILD, *flags, go_identity)]
    for part in parts:
        hashed.update(len(part).to_bytes(8, "big"))
        hashed.update(part)
    return hashed.hexdigest()[:16]


def _missing(programs: list[Program], go: toolchain.Go) -> list[Program]:
    return [program for program in programs if not path(program, go).exists()]


def _build(programs: list[Program], go: toolchain.Go, shown: progress.Progress) -> None:
    """Build programs of one module in a single `go build`, then rename each into place.

    One call for all lets Go link one program while it compiles for the next, which two cores feel.
    """
    if not programs:
        return
    target = folder(programs[0], go)
    target.mkdir(parents=True, exist_ok=True)
    staging = cache.staging_folder(target)
    log = target / "build.log"
    log.unlink(missing_ok=True)
    try:
        process = processes.spawn(
            [
                str(go.command),
                *_BUILD,
                "-ldflags",
                programs[0].ldflags,
                *(["-tags", programs[0].tags] if programs[0].tags else []),
                "-o",
                f"{staging}/",
                *(program.package for program in programs),
            ],
            log=log,
            cwd=toolchain.MODULES / programs[0].module,
            environment=toolchain.go_environment(),
        )
        what = ", ".join(program.name for program in programs)
        try:
            _watch(process, log, what, shown)
        finally:
            processes.end(process, grace_s=5.0)
        if process.returncode != 0:
            raise errors.BuildError(_failure(what, process.returncode, log))
        for program in programs:
            (staging / program.built_as).replace(path(program, go))
        shown.finish(f"built {what}")
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _watch(process: subprocess.Popen[bytes], log: pathlib.Path, what: str, shown: progress.Progress) -> None:
    """Show how far a build is until it ends."""
    shown.update(f"building {what} (the first time takes minutes)")
    while True:
        try:
            process.wait(timeout=progress.TERMINAL_EVERY_S)
            return
        except subprocess.TimeoutExpired:
            fetched, compiled = count(log.read_text(encoding="utf-8", errors="replace"))
            shown.update(f"building {what}: {fetched} modules fetched, {compiled} packages compiled")


def count(log: str) -> tuple[int, int]:
    """How many modules and how many packages the log of `go build -v` names so far."""
    lines = log.splitlines()
    fetched = sum(line.startswith("go: downloading ") for line in lines)
    compiled = sum(is_package(line) for line in lines)
    return fetched, compiled


def is_package(line: str) -> bool:
    """Whether a line is nothing but an import path, as `go build -v` prints for each package that it compiles."""
    return bool(line) and not any(character in line for character in " \t:#")


def _failure(what: str, returncode: int, log: pathlib.Path) -> str:
    """What to tell about a failed build: the log's end without the package names, which say nothing."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    said = [line[:400] for line in lines if not is_package(line) and not line.startswith("go: downloading ")]
    killed = " (killed, often for lack of memory)" if returncode == 128 + 9 else ""
    end = "\n".join(said[-processes.TAIL_LINES :])
    return f"building {what} failed with exit code {returncode}{killed}; end of {log}:\n{end}"
