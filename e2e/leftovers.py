"""What a cluster must not leave on a machine: processes, mounts, links, routes, cgroups, netfilter tables, settings."""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
import shutil
import subprocess

from e2e import node, node_init

_SYSCTL = pathlib.Path("/proc/sys")


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """The state of a machine that starting and ending a cluster must not change."""

    links: frozenset[str]
    routes: frozenset[str]
    namespaces: frozenset[str]
    tables: frozenset[str]
    settings: frozenset[str]


def snapshot() -> Snapshot:
    """Take one, before the first cluster starts."""
    settings = (*node_init.KERNEL, "net/ipv4/ip_forward")
    named = pathlib.Path("/run/netns")
    return Snapshot(
        links=frozenset(folder.name for folder in pathlib.Path("/sys/class/net").iterdir()),
        routes=frozenset(_said("ip", "route", "show", "table", "all")),
        namespaces=frozenset(file.name for file in named.iterdir()) if named.exists() else frozenset(),
        tables=frozenset(_said("nft", "list", "tables")) if shutil.which("nft") else frozenset(),
        settings=frozenset(f"{name}={(_SYSCTL / name).read_text(encoding='ascii').strip()}" for name in settings),
    )


def find(before: Snapshot, state_dir: pathlib.Path) -> list[str]:
    """Everything that is there now, was not before, or names the cluster in `state_dir`; empty when all is clean."""
    found = differences(before, snapshot())
    group = f"{node.CGROUP_PREFIX}{state_dir.name}"
    found += [f"cgroup: {folder / group}" for folder in node_init.hierarchies() if (folder / group).exists()]
    mounts = pathlib.Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines()
    found += [f"mount: {line}" for line in mounts if str(state_dir) in line]
    for folder in pathlib.Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
                if f"/{group}" in (folder / "cgroup").read_text(encoding="utf-8") or f"{state_dir}/" in command:
                    found.append(f"process: {folder.name} {command[:200]}")
    return found


def differences(before: Snapshot, after: Snapshot) -> list[str]:
    """What one snapshot has and the other has not, a line each."""
    found = []
    for field in dataclasses.fields(Snapshot):
        old, new = getattr(before, field.name), getattr(after, field.name)
        found += [f"{field.name}: {item} is new" for item in sorted(new - old)]
        found += [f"{field.name}: {item} is gone" for item in sorted(old - new)]
    return found


def _said(*command: str) -> list[str]:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
