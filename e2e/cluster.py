"""A real cluster for the scenarios, from one of two providers: this machine (`LocalCluster`) or kind (`KindCluster`).

Both have one node that says it carries eight MI355X, as AMD's node labeller and device plugin would; nothing else about
it is pretended. Pods are real containers, scheduled and run by Kubernetes' own programs.
"""

from __future__ import annotations

import hashlib
import io
import json
import pathlib
import platform
import tarfile
import typing

from e2e import binaries, commands, controlplane, node, node_config

GPUS = 8
# What AMD's device plugin and node labeller say about such a node (labels v1.x: PCI device id, partition mode).
LABELS = {
    "amd.com/gpu.device-id": "75a3",
    "amd.com/gpu.compute-memory-partition": "spx_nps1",
}
READY_S = 120.0
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


class Cluster(typing.Protocol):
    """What a scenario may ask of a cluster."""

    node_name: str
    kubeconfig: pathlib.Path
    state_dir: pathlib.Path

    def kubectl(self, *arguments: str, input: str | None = None, timeout_s: float = 60.0) -> str:  # noqa: A002
        """Run kubectl as the admin and return its output; raise KubectlError when it fails."""
        ...

    def load_image(self, archive: pathlib.Path) -> None:
        """Make an image of an archive known to the node."""
        ...


class LocalCluster(controlplane.ControlPlane):
    """The control plane of this machine with a scheduler and a node of this machine's own making."""

    needs = (*binaries.CONTROL_PLANE, *binaries.NODE, *binaries.RUNTIME, *binaries.SANDBOX)
    has_kubelets = True
    node_name = "mi355x-0"
    _link: node_config.Link | None = None
    _node: node.Node | None = None

    def load_image(self, archive: pathlib.Path) -> None:
        """Import an archive into the node's containerd."""
        assert self._node is not None
        self._node.load_image(archive)

    def _start_components(self) -> None:
        self._link = node.add_link()
        self.host = self._link.host
        super()._start_components()
        identity = self._pki.clients.issue("system:kube-scheduler")
        config = self._write_kubeconfig(self._pki.file("scheduler.yaml"), identity)
        self._run("kube-scheduler", commands.scheduler(self._programs["kube-scheduler"], kubeconfig=config))
        self._node = node.Node(
            self.node_name,
            link=self._link,
            folder=self.state_dir / "node",
            programs=self._programs,
            labels=LABELS,
        )
        component = self._node.start(server=self.server, pki=self._pki)
        self._components["node"] = component
        component.wait_until(lambda: self._answers(f"/api/v1/nodes/{self.node_name}"), timeout_s=READY_S)
        pause = self.state_dir / "node" / "pause.tar"
        write_image(pause, node_config.SANDBOX_IMAGE, self._programs["pause"])
        self._node.load_image(pause)
        equip(self)
        component.wait_until(lambda: is_ready(self), timeout_s=READY_S)

    def _end_components(self) -> None:
        # The control plane first: the address that it listens on goes with the node.
        self._components.pop("node", None)
        super()._end_components()
        if self._node is not None:
            self._node.stop()
            self._node = None
        if self._link is not None:
            node.remove_link(self._link)
            self._link = None


def equip(cluster: Cluster) -> None:
    """Give the node its GPUs: an extended resource, which the scheduler counts and the kubelet admits."""
    patch = [
        {"op": "add", "path": f"/status/{which}/amd.com~1gpu", "value": str(GPUS)}
        for which in ("capacity", "allocatable")
    ]
    cluster.kubectl("patch", "node", cluster.node_name, "--subresource=status", "--type=json", "-p", json.dumps(patch))


def is_ready(cluster: Cluster) -> bool:
    """Whether the node takes pods."""
    found = json.loads(cluster.kubectl("get", "node", cluster.node_name, "-o", "json"))
    tainted = any(taint["key"].startswith("node.kubernetes.io/") for taint in found["spec"].get("taints", []))
    conditions = {item["type"]: item["status"] for item in found["status"].get("conditions", [])}
    return conditions.get("Ready") == "True" and not tainted


def write_image(archive: pathlib.Path, name: str, program: pathlib.Path) -> None:
    """Write an image, in docker's archive form, that holds and runs one static program."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        entry = tarfile.TarInfo(program.name)
        entry.size, entry.mode = program.stat().st_size, 0o755
        with program.open("rb") as binary:
            tar.addfile(entry, binary)
    digest = hashlib.sha256(layer.getvalue()).hexdigest()
    config = {
        "architecture": _ARCHITECTURES[platform.machine()],
        "os": "linux",
        "config": {"Entrypoint": [f"/{program.name}"], "User": "65535:65535"},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]
    with tarfile.open(archive, mode="w") as tar:
        for file, content in (
            ("config.json", json.dumps(config).encode()),
            ("layer.tar", layer.getvalue()),
            ("manifest.json", json.dumps(manifest).encode()),
        ):
            entry = tarfile.TarInfo(file)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
