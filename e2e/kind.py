"""The same cluster from kind, on a machine with docker: `kind` and `docker` on PATH, a node image from a registry."""

from __future__ import annotations

import pathlib
import shutil
import subprocess
import tempfile
import types
import typing

from e2e import binaries, cluster, errors, images, kubectl

NAME = "inferasim-e2e"
CREATE_S = 600.0


class KindCluster:
    """A kind cluster of one node; `with` makes and deletes it."""

    node_name = f"{NAME}-control-plane"

    def __init__(self) -> None:
        self.state_dir = pathlib.Path(tempfile.mkdtemp(prefix="inferasim-kind-"))
        self.kubeconfig = self.state_dir / "kubeconfig.yaml"
        self._kubectl = shutil.which("kubectl")

    def __enter__(self) -> typing.Self:
        try:
            self._require()
            _run("kind", "create", "cluster", "--name", NAME, "--kubeconfig", str(self.kubeconfig), "--wait", "120s")
        except BaseException:
            # kind has taken back what it made; what has this name now is another's.
            shutil.rmtree(self.state_dir, ignore_errors=True)
            raise
        try:
            labels = (f"{key}={value}" for key, value in cluster.LABELS.items())
            self.kubectl("label", "node", self.node_name, "--overwrite", *labels)
            cluster.equip(self)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: types.TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Delete the cluster."""
        try:
            _run("kind", "delete", "cluster", "--name", NAME, "--kubeconfig", str(self.kubeconfig))
        finally:
            shutil.rmtree(self.state_dir, ignore_errors=True)

    def _require(self) -> None:
        missing = missing_programs()
        if missing:
            raise errors.E2EError(f"CLUSTER=kind needs {', '.join(missing)}")
        if self._kubectl is None:
            self._kubectl = str(binaries.ensure(["kubectl"])["kubectl"])
        if NAME in _run("kind", "get", "clusters").split():
            # Of another run, perhaps one at work: neither to be used nor to be deleted by this one.
            raise errors.E2EError(f"there is a kind cluster {NAME} already; kind delete cluster --name {NAME}")

    def kubectl(self, *arguments: str, input: str | None = None, timeout_s: float = 60.0) -> str:  # noqa: A002
        """Run kubectl as the admin."""
        environment = {"KUBECONFIG": str(self.kubeconfig)}
        return kubectl.run(str(self._kubectl), *arguments, environment=environment, input=input, timeout_s=timeout_s)

    def load_image(self, archive: pathlib.Path) -> None:
        """Copy an archive's image into the node."""
        _run("kind", "load", "image-archive", "--name", NAME, str(archive))


def missing_programs() -> list[str]:
    """What kind needs and this machine lacks; a docker command without a daemon is none."""
    missing = [name for name in ("kind", "docker") if shutil.which(name) is None]
    if "docker" not in missing and not images.docker_answers():
        missing.append("a docker daemon")
    return missing


def _run(*command: str) -> str:
    answer = subprocess.run(
        command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, timeout=CREATE_S
    )
    if answer.returncode != 0:
        raise errors.E2EError(f"{' '.join(command)}: {answer.stderr.strip()[-2000:]}")
    return answer.stdout
