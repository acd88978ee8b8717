"""One node of a local cluster: containerd, kubelet and kube-proxy, in namespaces of their own on this machine.

The node is a container of its own making (`node_init`): its processes, mounts, links and netfilter rules are in its
namespaces and end with them. On the host there is one end of a link, which goes with the other end, and a cgroup,
which `stop` removes. Needs root on Linux and what `requirements` names.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time
import typing

import yaml

from e2e import certs, errors, kubeconfig, node_config, node_init, processes

CGROUP_PREFIX = "inferasim-e2e-"
_LINK_FOLDER = pathlib.Path("/sys/class/net")
GONE_S = 30.0
# Debian 12 packages by the file that shows they are there.
_REQUIREMENTS = {
    "/usr/sbin/runc": "runc",
    "/usr/lib/cni/bridge": "containernetworking-plugins",
    "/usr/sbin/nft": "nftables",
    "/usr/sbin/iptables": "iptables",
    "/usr/bin/unshare": "util-linux",
    "/usr/sbin/ip": "iproute2",
}


def missing_packages() -> list[str]:
    """The Debian packages that a node needs and this machine lacks."""
    return [
        package
        for file, package in _REQUIREMENTS.items()
        if not pathlib.Path(file).exists() and shutil.which(pathlib.Path(file).name) is None
    ]


def add_link() -> node_config.Link:
    """Make a pair of links on the host, with the host's address up, so that a server can listen on it."""
    missing = missing_packages()
    if os.geteuid() != 0 or missing:
        install = f"; apt-get install {' '.join(missing)}" if missing else ""
        raise errors.E2EError(f"a local node needs root on Linux with Debian's container tools{install}")
    lacking = " ".join(f"+{name}" for name in node_init.lacking_controllers())
    if lacking:
        file = node_init.CGROUPS / "cgroup.subtree_control"
        raise errors.E2EError(f"the kubelet needs cgroup controllers that are not given on; echo {lacking} > {file}")
    sweep()
    used = {name.name for name in _LINK_FOLDER.iterdir()}
    link = next(link for link in map(node_config.Link, range(256)) if link.host_name not in used)
    _ip("link", "add", link.host_name, "type", "veth", "peer", "name", link.node_name)
    owner = os.getpid()
    _ip("link", "set", link.host_name, "alias", f"{owner} {processes.started_at(owner)}")
    _ip("address", "add", f"{link.host}/30", "dev", link.host_name)
    _ip("link", "set", link.host_name, "up")
    return link


def remove_link(link: node_config.Link) -> None:
    """Remove both ends if they are still there."""
    _delete_link(link.host_name)


def sweep() -> None:
    """Remove what clusters left whose processes were killed: cgroups without a process, links without an owner."""
    for hierarchy in node_init.hierarchies():
        for group in hierarchy.glob(f"{CGROUP_PREFIX}*"):
            if not any(file.read_text(encoding="ascii") for file in group.rglob("cgroup.procs")):
                remove_cgroup(group.name)
    for folder in _LINK_FOLDER.glob(f"{node_config.LINK_PREFIX}*"):
        try:
            pid, _, started = (folder / "ifalias").read_text(encoding="ascii").strip().partition(" ")
        except OSError:
            continue  # it went by itself meanwhile
        if pid and processes.started_at(int(pid)) != started:
            _delete_link(folder.name)


class Node:
    """A running node; `start` returns when the API server has it as Ready."""

    def __init__(
        self,
        name: str,
        *,
        link: node_config.Link,
        folder: pathlib.Path,
        programs: dict[str, pathlib.Path],
        labels: dict[str, str],
    ) -> None:
        self.name = name
        self.link = link
        self.folder = folder
        self.log = folder.parent / "logs" / "node.log"
        self._programs = programs
        self._labels = labels
        self._cgroup = f"{CGROUP_PREFIX}{folder.parent.name}"
        self._component: processes.Component | None = None

    def start(self, *, server: str, pki: certs.Pki) -> processes.Component:
        """Start the node's programs; they work when the API server says so."""
        self.folder.mkdir(parents=True)
        plan = self._write_files(server, pki)
        script = [sys.executable, "-I", "-S", node_init.__file__, str(plan)]
        self._component = processes.Component(f"node {self.name}", script, log=self.log)
        self._component.wait_until(lambda: self.init_pid() is not None, timeout_s=30.0)
        node_init.make_room(self._cgroup, self._component.pid or 0)
        _ip("link", "set", self.link.node_name, "netns", str(self.init_pid()))
        _ip("route", "add", str(self.link.pods), "via", self.link.node)
        return self._component

    def init_pid(self) -> int | None:
        """The host's id of the node's process 1; None when it is not, or not yet, there."""
        outer = None if self._component is None else self._component.pid
        for child in processes.children(outer) if outer is not None else []:
            # Between fork and exec the child is still another `unshare`.
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                if b"node_init" in pathlib.Path(f"/proc/{child}/cmdline").read_bytes():
                    return child
        return None

    def run(self, *command: str, timeout_s: float = 300.0) -> str:
        """Run a command inside the node's namespaces and return its output."""
        pid = self.init_pid()
        if pid is None:
            raise errors.E2EError(f"node {self.name} does not run")
        enter = ["nsenter", f"--target={pid}", "--mount", "--net", "--pid", "--uts", "--ipc", "--cgroup", "--"]
        answer = subprocess.run(
            [*enter, *command], capture_output=True, text=True, timeout=timeout_s, check=False, stdin=subprocess.DEVNULL
        )
        if answer.returncode != 0:
            raise errors.E2EError(f"on node {self.name}: {' '.join(command)}: {answer.stderr.strip()[-2000:]}")
        return answer.stdout

    def load_image(self, archive: pathlib.Path) -> None:
        """Make the images of an archive (docker's or OCI's form) known to the kubelet."""
        ctr = [str(self._programs["ctr"]), "--address", f"{node_config.RUN}/containerd.sock", "--namespace=k8s.io"]
        self.run(*ctr, "images", "import", "--all-platforms", str(archive))

    def stop(self) -> None:
        """End everything in the node at once, as a power cut does, and remove what it had on the host."""
        if self._component is not None:
            self._component.kill()
            self._component = None
        remove_cgroup(self._cgroup)
        remove_link(self.link)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _write_files(self, server: str, pki: certs.Pki) -> pathlib.Path:
        kubelet = pki.clients.issue(f"system:node:{self.name}", organizations=("system:nodes",))
        serving = pki.clients.issue(self.name, hosts=(self.name, self.link.node))
        proxy = pki.clients.issue("system:kube-proxy")
        for name, identity in (("kubelet", kubelet), ("kube-proxy", proxy)):
            kubeconfig.write_certificate(
                self.folder / f"{name}.kubeconfig", server=server, authority=pki.clients.pem, identity=identity
            )
        certs.write_private(self.folder / "kubelet.crt", serving.certificate)
        certs.write_private(self.folder / "kubelet.key", serving.key)
        certs.write_private(self.folder / "ca.crt", pki.clients.pem)
        files: dict[str, str] = {
            "containerd.toml": node_config.containerd_config(cni=self.folder / "cni"),
            "cni/10-bridge.conflist": json.dumps(node_config.cni_config(self.link), indent=2),
            "kubelet.yaml": yaml.safe_dump(node_config.kubelet_config(self.folder)),
            "kube-proxy.yaml": yaml.safe_dump(
                node_config.proxy_config(self.name, self.folder / "kube-proxy.kubeconfig")
            ),
            "resolv.conf": "",
        }
        for name, text in files.items():
            (self.folder / name).parent.mkdir(exist_ok=True)
            (self.folder / name).write_text(text, encoding="utf-8")
        plan = self.folder / "plan.json"
        plan.write_text(json.dumps(self._plan(), indent=2), encoding="utf-8")
        return plan

    def _plan(self) -> dict[str, typing.Any]:
        labels = ",".join(f"{key}={value}" for key, value in sorted(self._labels.items()))
        programs = {
            "containerd": ["--config", str(self.folder / "containerd.toml")],
            "kubelet": [
                f"--config={self.folder / 'kubelet.yaml'}",
                f"--kubeconfig={self.folder / 'kubelet.kubeconfig'}",
                f"--hostname-override={self.name}",
                f"--node-ip={self.link.node}",
                f"--node-labels={labels}",
            ],
            "kube-proxy": [f"--config={self.folder / 'kube-proxy.yaml'}"],
        }
        return {
            "name": self.name,
            "cgroup": self._cgroup,
            "link": self.link.node_name,
            "address": f"{self.link.node}/30",
            "gateway": self.link.host,
            # On the disk, since images may be larger than the memory that is left for a tmpfs.
            "binds": {
                str(self.folder / "containerd"): "/var/lib/containerd",
                str(self.folder / "kubelet"): "/var/lib/kubelet",
            },
            "path": f"{self._programs['containerd-shim-runc-v2'].parent}:/usr/sbin:/usr/bin:/sbin:/bin",
            "programs": [
                {
                    "name": name,
                    "command": [str(self._programs[name]), *arguments],
                    "log": str(self.log.with_name(f"{name}.log")),
                    **({"socket": f"{node_config.RUN}/containerd.sock"} if name == "containerd" else {}),
                }
                for name, arguments in programs.items()
            ],
        }


def remove_cgroup(name: str) -> None:
    """Remove a cgroup and those below it from every hierarchy, waiting until the processes in them are gone."""
    deadline_s = time.monotonic() + GONE_S
    for group in [hierarchy / name for hierarchy in node_init.hierarchies() if (hierarchy / name).exists()]:
        while True:
            for folder, _, _ in os.walk(group, topdown=False):
                with contextlib.suppress(OSError):
                    pathlib.Path(folder).rmdir()
            if not group.exists():
                break
            if time.monotonic() > deadline_s:
                raise errors.E2EError(f"cgroup {group} still has processes after {GONE_S:.0f} s")
            time.sleep(processes.POLL_S)


def _delete_link(name: str) -> None:
    """Delete a link that may go by itself meanwhile: the kernel takes both ends when the node's namespace ends."""
    try:
        if (_LINK_FOLDER / name).exists():
            _ip("link", "delete", name)
    except errors.E2EError:
        if (_LINK_FOLDER / name).exists():
            raise


def _ip(*words: str) -> None:
    answer = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if answer.returncode != 0:
        raise errors.E2EError(f"ip {' '.join(words)}: {answer.stderr.strip()}")
