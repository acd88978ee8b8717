"""A node with no more in it than a shell, where cgroups are of version 2: `python -m e2e.tests.cgroup2_node FOLDER`.

Run in a mount namespace of its own, whose cgroups it replaces by version 2's hierarchy. Prints what the shell said, the
node's log, and what is left of its cgroups.
"""

from __future__ import annotations

import json
import pathlib
import sys
import typing

from e2e import certs, node, node_init

# What runc does for a pod: controllers down to its group, then a process in it.
SCRIPT = """\
set -e
cd /sys/fs/cgroup
echo "root: $(cat cgroup.procs)"
for controller in $(cat cgroup.controllers); do echo "+$controller" > cgroup.subtree_control; done
mkdir -p k8s.io/pod
echo $$ > k8s.io/pod/cgroup.procs
echo "controllers: $(cat k8s.io/cgroup.controllers)"
echo "pod: $(cat /proc/self/cgroup)"
exit 7
"""


class ShellNode(node.Node):
    """A node whose only program is a shell."""

    def _write_files(self, server: str, pki: certs.Pki) -> pathlib.Path:  # noqa: ARG002 - it needs neither
        plan: dict[str, typing.Any] = self._plan()
        said = str(self.folder / "said.log")
        plan["programs"] = [{"name": "shell", "command": ["/bin/sh", "-c", SCRIPT], "log": said}]
        file = self.folder / "plan.json"
        file.write_text(json.dumps(plan), encoding="utf-8")
        return file


def main(folder: pathlib.Path) -> int:
    """Start the node, wait for its end, and take it away; the machine's root gives on what controllers it has."""
    node_init.command("mount", "-t", "cgroup2", "cgroup2", str(node_init.CGROUPS))
    given = node_init.CGROUPS / "cgroup.subtree_control"
    before = set(given.read_text(encoding="ascii").split())
    added = set((node_init.CGROUPS / "cgroup.controllers").read_text(encoding="ascii").split()) - before
    node_init.CONTROLLERS = frozenset()  # beside version 1 there are not those that a kubelet needs
    for name in added:
        given.write_text(f"+{name}", encoding="ascii")
    try:
        _run(folder)
    finally:
        for name in added:
            given.write_text(f"-{name}", encoding="ascii")
    print("left:", sorted(str(group) for group in node_init.CGROUPS.glob(f"{node.CGROUP_PREFIX}{folder.name}*")))
    return 0


def _run(folder: pathlib.Path) -> None:
    link = node.add_link()
    names = ("containerd", "kubelet", "kube-proxy", "containerd-shim-runc-v2")
    programs = {name: pathlib.Path("/bin/sh") for name in names}
    made = ShellNode("shell", link=link, folder=folder / "node", programs=programs, labels={})
    try:
        component = made.start(server="", pki=typing.cast(certs.Pki, None))
        component.wait_until(lambda: not component.is_running(), timeout_s=30.0)
        for log in (made.log, folder / "node" / "said.log"):
            print(log.read_text(encoding="utf-8"))
    finally:
        made.stop()


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1])))
