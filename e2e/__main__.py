"""`python -m e2e`: build the local cluster, start it, see it, end it."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys

from e2e import binaries, cluster, controlplane, errors, images, named, node, processes, progress


def main(arguments: list[str] | None = None) -> int:
    """Run one command; 0 is success, 1 a failure or a cluster that is not there, 2 a wrong command line."""
    options = _parser().parse_args(arguments)
    try:
        return _run(options)
    except errors.E2EError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _run(options: argparse.Namespace) -> int:
    shown = progress.Progress()
    if options.command == "build":
        for name, path in binaries.ensure(options.programs or binaries.CONTROL_PLANE, shown=shown).items():
            print(f"{name}\t{path}")
        return 0
    if options.command == "packages":
        return _packages(install=options.install)
    if options.command == "images":
        for reference, archive in images.ensure(shown=shown).items():
            print(f"{reference}\t{archive}")
        return 0
    if options.command == "up":
        return _up(options, shown)
    if options.command == "down":
        print("stopped" if named.down(options.name) else f"no cluster {options.name!r} is running")
        return 0
    return _status(options.name)


def _packages(*, install: bool) -> int:
    missing = [] if os.environ.get("CLUSTER") == "kind" else [*node.missing_packages(), *images.missing_packages()]
    if not missing:
        return 0
    if not install:
        print(" ".join(missing))
        return 1
    apt = shutil.which("apt-get")
    if apt is None or os.geteuid() != 0:
        raise errors.E2EError(f"install as root: {' '.join(missing)} (names as in Debian 12)")
    for command in (["update"], ["install", "--yes", "--no-install-recommends", *missing]):
        environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
        answer = subprocess.run([apt, "--quiet", *command], env=environment, stdout=sys.stderr, check=False)
        if answer.returncode != 0:
            raise errors.E2EError(f"apt-get {' '.join(command)} failed")
    return 0


def _up(options: argparse.Namespace, shown: progress.Progress) -> int:
    if options.detach:
        kind = cluster.LocalCluster if options.node else controlplane.ControlPlane
        binaries.ensure(kind.needs, shown=shown)  # here, so that the progress line is seen
        record = named.detach(options.name, audit=options.audit, with_node=options.node)
        print(named.export_line(record.kubeconfig))
    else:
        named.run(options.name, audit=options.audit, shown=shown, with_node=options.node)
    return 0


def _status(name: str) -> int:
    record = named.find(name)
    if record is None:
        print(f"no cluster {name!r} is running")
        return 1
    print(f"{name}\t{record.server}\tpid {record.pid}")
    for component, pid in record.components.items():
        running = pid is not None and processes.started_at(pid) != ""
        print(f"  {component}\t{f'pid {pid}' if running else 'not running'}")
    print(named.export_line(record.kubeconfig))
    return 0


def _program(name: str) -> str:
    if name not in binaries.PROGRAMS:
        raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(binaries.PROGRAMS)}")
    return name


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m e2e", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    build = commands.add_parser("build", help="build programs into the cache")
    build.add_argument("programs", nargs="*", type=_program, metavar="PROGRAM", help="default: what `up` needs")
    packages = commands.add_parser("packages", help="the Debian packages that a node and its images need and that lack")
    packages.add_argument("--install", action="store_true", help="install them")
    commands.add_parser("images", help="build the project's images into the cache")
    up = commands.add_parser("up", help="start a control plane, in the foreground unless told otherwise")
    up.add_argument("--node", action="store_true", help="with a scheduler and a node that runs pods (as root)")
    up.add_argument("--detach", action="store_true", help="return once it is ready")
    up.add_argument("--audit", action="store_true", help="write an audit log")
    down = commands.add_parser("down", help="end a control plane")
    status = commands.add_parser("status", help="show a control plane; exit code 1 when there is none")
    for command in (up, down, status):
        command.add_argument("--name", default="default", help="several may run side by side")
    return parser


if __name__ == "__main__":
    sys.exit(main())
