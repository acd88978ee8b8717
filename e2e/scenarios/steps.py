"""Steps that scenarios share: the chart installed, a namespace made, a step timed, the operator's pods found."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
import time
from collections.abc import Callable
from typing import TypeVar, cast

import yaml

from e2e import cluster, controlplane, images
from tests.integration import chart
from tests.integration.harness import Cluster, Object

OPERATOR_NAMESPACE = "inferasim"
VALUES = ("--set", f"image.repository={images.OPERATOR.name}", "--set", f"image.tag={images.TAG}")
ROLLOUT_S = 240.0
RESTRICTED: Object = {
    "apiVersion": "v1",
    "kind": "Namespace",
    "metadata": {"name": OPERATOR_NAMESPACE, "labels": {"pod-security.kubernetes.io/enforce": "restricted"}},
}
T = TypeVar("T")


def timed(found: dict[str, float], name: str, step: Callable[[], T]) -> T:
    """Run a step and note how long it took."""
    started_s = time.monotonic()
    result = step()
    found[name] = time.monotonic() - started_s
    return result


def namespace(running: cluster.Cluster, name: str) -> Cluster:
    """Make a namespace named after a scenario."""
    name = name.removeprefix("test_").replace("_", "-")[:40].strip("-")
    running.kubectl("create", "namespace", name)
    return Cluster(cast(controlplane.ControlPlane, running), name)


def install(running: cluster.Cluster, folder: pathlib.Path) -> None:
    """`helm upgrade --install` with the built image, where only `restricted` pods may run, until it is ready."""
    running.kubectl("apply", "-f", "-", input=yaml.safe_dump(RESTRICTED))
    own = ("--namespace", OPERATOR_NAMESPACE, *VALUES)
    chart.helm("upgrade", "--install", chart.RELEASE, str(folder), *own, kubeconfig=running.kubeconfig)
    rollout = ("rollout", "status", "deployment/inferasim", f"--timeout={ROLLOUT_S:.0f}s")
    running.kubectl("-n", OPERATOR_NAMESPACE, *rollout, timeout_s=ROLLOUT_S + 10)


def inferasim(team: Cluster, *arguments: str) -> str:
    """What the command line prints of a scenario's namespace, as `kubectl inferasim` would."""
    where = ("--namespace", team.namespace, "--kubeconfig", str(team.plane.kubeconfig))
    command = [sys.executable, "-m", "inferasim_operator.cli.app", *arguments, *where]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=900).stdout


def operator_pods(running: cluster.Cluster) -> list[Object]:
    """The operator's pods that are not being deleted."""
    selector = ("-l", "app.kubernetes.io/name=inferasim")
    answer = running.kubectl("-n", OPERATOR_NAMESPACE, "get", "pods", *selector, "-o", "json")
    found: list[Object] = json.loads(answer)["items"]
    return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]


def metrics(running: cluster.Cluster) -> str:
    """The page of the operator's only pod, through the API server."""
    (pod,) = operator_pods(running)
    name = f"{pod['metadata']['name']}:8080"
    return running.kubectl("get", "--raw", f"/api/v1/namespaces/{OPERATOR_NAMESPACE}/pods/{name}/proxy/metrics")
