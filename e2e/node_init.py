"""The first process of a local node: namespaces of its own, a few mounts, then the node's programs, until one ends.

Started as a script, `python -I -S node_init.py PLAN`, twice: at first on the host, where it only enters the node's
cgroups and becomes `unshare`, then as process 1 of what `unshare` made. Whatever the node's programs leave (shims,
pods, mounts, links, netfilter rules) lives in these namespaces and ends with this process; only the cgroups stay, for
whoever started the node to remove.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import time
import typing

CGROUPS = pathlib.Path("/sys/fs/cgroup")
LEAF = "init"
CONTROLLERS = frozenset({"cpu", "cpuset", "memory", "pids"})
NAMESPACES = ("--mount", "--net", "--pid", "--uts", "--ipc", "--cgroup")
LINK_S = 60.0
POLL_S = 0.05
# What the kubelet would write to the host's kernel, shown to it as done: these are not the node's to change.
KERNEL = {
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}


def main(arguments: list[str]) -> int:
    """Enter the namespaces, or, once inside, run the node; the exit code is that of the program that ended first."""
    plan = json.loads(pathlib.Path(arguments[0]).read_text(encoding="utf-8"))
    if os.getpid() != 1:
        enter_cgroups(plan["cgroup"])
        again = [sys.executable, "-I", "-S", __file__, arguments[0]]
        # The child gets no signal when its parent is killed unless it asks for one.
        os.execvp("unshare", ["unshare", *NAMESPACES, "--mount-proc", "--fork", "--kill-child", *again])
    mount(plan)
    network(plan)
    return run(plan)


def enter_cgroups(name: str) -> None:
    """Move this process into a cgroup of the given name in every hierarchy, as the root of the node's own view."""
    for hierarchy in hierarchies():
        group = hierarchy / name
        group.mkdir(exist_ok=True)
        for file in () if is_version_2(hierarchy) else ("cpuset.cpus", "cpuset.mems"):
            # An empty set, as a new group has in version 1, takes no process; in version 2 it means all.
            if (group / file).exists() and not (group / file).read_text(encoding="ascii").strip():
                (group / file).write_text((hierarchy / file).read_text(encoding="ascii"), encoding="ascii")
        (group / "cgroup.procs").write_text(str(os.getpid()), encoding="ascii")


def make_room(name: str, pid: int) -> None:
    """On the host: move `unshare`, which waits there for the node's end, out of the root of the node's own view.

    Version 2 gives controllers to the groups below only where a group has no process of its own.
    """
    for hierarchy in filter(is_version_2, hierarchies()):
        leaf = hierarchy / name / LEAF
        leaf.mkdir(exist_ok=True)
        (leaf / "cgroup.procs").write_text(str(pid), encoding="ascii")


def hierarchies() -> list[pathlib.Path]:
    """The roots of the cgroup hierarchies: the one of version 2, or one for each controller of version 1."""
    if is_version_2(CGROUPS):
        return [CGROUPS]
    return sorted(folder for folder in CGROUPS.iterdir() if (folder / "cgroup.procs").exists())


def lacking_controllers() -> list[str]:
    """On the host: what version 2's root does not give to the groups below it and the kubelet insists on."""
    given = CGROUPS / "cgroup.subtree_control"
    return sorted(CONTROLLERS - set(given.read_text(encoding="ascii").split())) if is_version_2(CGROUPS) else []


def is_version_2(hierarchy: pathlib.Path) -> bool:
    """Whether a hierarchy is that of version 2, which may lie beside those of version 1."""
    return (hierarchy / "cgroup.controllers").exists()


def mount(plan: dict[str, typing.Any]) -> None:
    """Cover what the node's programs write at fixed places, so that the host's folders stay as they are."""
    command("mount", "--make-rshared", "/")
    groups = [(folder.name, None if is_version_2(folder) else _options(folder)) for folder in hierarchies()]
    command("mount", "-t", "sysfs", "sysfs", "/sys")
    if groups == [(CGROUPS.name, None)]:
        command("mount", "-t", "cgroup2", "cgroup2", str(CGROUPS))
        (CGROUPS / LEAF).mkdir(exist_ok=True)
        (CGROUPS / LEAF / "cgroup.procs").write_text("1", encoding="ascii")
    else:
        command("mount", "-t", "tmpfs", "cgroups", str(CGROUPS))
        for name, options in groups:
            (CGROUPS / name).mkdir()
            kind = "cgroup2" if options is None else "cgroup"
            command("mount", "-t", kind, *(["-o", options] if options else []), "cgroup", str(CGROUPS / name))
    for folder in ("/run", "/var/log", "/var/lib"):
        command("mount", "-t", "tmpfs", "node", folder)
    for source, target in plan["binds"].items():
        pathlib.Path(source).mkdir(parents=True, exist_ok=True)
        pathlib.Path(target).mkdir(parents=True, exist_ok=True)
        command("mount", "--bind", source, target)
    for name, value in KERNEL.items():
        shown = pathlib.Path("/run/kernel") / name.replace("/", "-")
        shown.parent.mkdir(exist_ok=True)
        shown.write_text(value + "\n", encoding="ascii")
        command("mount", "--bind", str(shown), f"/proc/sys/{name}")


def _options(folder: pathlib.Path) -> str:
    """The mount options that name a hierarchy of version 1: its controllers or its name."""
    controllers = {line.split()[0] for line in pathlib.Path("/proc/cgroups").read_text(encoding="ascii").splitlines()}
    for line in pathlib.Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines():
        _, where, _, options, *_ = line.split()
        if where == str(folder):
            return ",".join(word for word in options.split(",") if word in controllers or word.startswith("name="))
    raise RuntimeError(f"{folder} is no mount")


def network(plan: dict[str, typing.Any]) -> None:
    """Take the link that the host moves in here, and let pods be routed through it."""
    command("hostname", plan["name"])
    command("ip", "link", "set", "lo", "up")
    deadline_s = time.monotonic() + LINK_S
    while not pathlib.Path("/sys/class/net", plan["link"]).exists():
        if time.monotonic() > deadline_s:
            raise RuntimeError(f"no link {plan['link']} after {LINK_S:.0f} s")
        time.sleep(POLL_S)
    command("ip", "address", "add", plan["address"], "dev", plan["link"])
    command("ip", "link", "set", plan["link"], "up")
    command("ip", "route", "add", "default", "via", plan["gateway"])
    pathlib.Path("/proc/sys/net/ipv4/ip_forward").write_text("1", encoding="ascii")


def run(plan: dict[str, typing.Any]) -> int:
    """Start the programs in turn and collect orphans until a program ends or this process is told to."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _frame: sys.exit(128 + number))
    started: dict[int, str] = {}
    for program in plan["programs"]:
        with pathlib.Path(program["log"]).open("ab") as log:
            process = subprocess.Popen(
                program["command"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=os.environ | {"PATH": plan["path"]},
            )
        started[process.pid] = program["name"]
        wait_for_socket(program.get("socket"))
    while True:
        pid, status = os.wait()
        if pid in started:
            code = os.waitstatus_to_exitcode(status)
            print(f"{started[pid]} ended with exit code {code}", flush=True)
            return code if code > 0 else 1


def wait_for_socket(path: str | None) -> None:
    """Wait until a program listens, where the next one needs it from its first moment on."""
    deadline_s = time.monotonic() + LINK_S
    while path is not None and not pathlib.Path(path).exists():
        if time.monotonic() > deadline_s:
            raise RuntimeError(f"no socket {path} after {LINK_S:.0f} s")
        time.sleep(POLL_S)


def command(*words: str) -> None:
    """Run a system tool; what it says is in this process's log."""
    print("+", *words, flush=True)
    subprocess.run(words, check=True, stdin=subprocess.DEVNULL)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main(sys.argv[1:]))
