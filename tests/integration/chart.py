"""The chart as tests use it: the built helm without the user's settings, renderings, and operators as rendered."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import tempfile
from typing import Any

import yaml

from e2e import binaries, controlplane
from tests.integration.harness import ROOT, STAND_IN, Cluster, Object, Operator

CHART = ROOT / "charts" / "inferasim"
RELEASE = "inferasim"


class HelmError(AssertionError):
    """Helm refused; the text is what it said."""


def helm(*arguments: str, kubeconfig: pathlib.Path | None = None, timeout_s: float = 120.0) -> str:
    """Run helm; its output. Without a kubeconfig no cluster can be reached. Raises HelmError."""
    program = binaries.ensure(["helm"])["helm"]
    with tempfile.TemporaryDirectory(prefix="inferasim-helm-") as home:
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("HELM_", "KUBE"))},
            "HELM_CACHE_HOME": f"{home}/cache",
            "HELM_CONFIG_HOME": f"{home}/config",
            "HELM_DATA_HOME": f"{home}/data",
            "KUBECONFIG": str(kubeconfig or f"{home}/none"),
        }
        answer = subprocess.run(
            [str(program), *arguments], capture_output=True, text=True, env=environment, timeout=timeout_s, check=False
        )
    if answer.returncode:
        raise HelmError(answer.stderr + answer.stdout)
    return answer.stdout


def render(values: Object | None = None, *, namespace: str = "serving", chart: pathlib.Path = CHART) -> list[Object]:
    """`helm template`, as objects."""
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        yaml.safe_dump(values or {}, file)
        file.flush()
        text = helm("template", RELEASE, str(chart), "--namespace", namespace, "--values", file.name)
    return [found for found in yaml.load_all(text, yaml.CSafeLoader) if found]


def of_kind(objects: list[Object], kind: str) -> list[Object]:
    """Those of one kind."""
    return [found for found in objects if found["kind"] == kind]


def the(objects: list[Object], kind: str) -> Object:
    """The only one of a kind."""
    (found,) = of_kind(objects, kind)
    return found


def container(objects: list[Object]) -> Object:
    """The operator's container in a rendering."""
    found: Object = the(objects, "Deployment")["spec"]["template"]["spec"]["containers"][0]
    return found


def mix(**spec: Any) -> Object:
    """A DeploymentMix of the plan `plan`, with all that the stand-in's answer does not say."""
    fields = {
        "planRef": {"name": "plan"},
        "format": "SGLang",
        "model": {"source": {"claim": {"claimName": "weights"}}},
        "images": {"engine": "lmsysorg/sglang:v0.5.16-rocm720-mi35x"},
        "serving": {
            "engineVersion": "0.5.16",
            "kvDtype": "bf16",
            "memoryPermille": 900,
            "maxBatchedTokens": 16384,
            "prefixCaching": "Disabled",
        },
        **spec,
    }
    return {
        "apiVersion": "inferasim.dev/v1alpha1",
        "kind": "DeploymentMix",
        "metadata": {"name": "mix"},
        "spec": fields,
    }


class ChartOperator(Operator):
    """The operator as a process with the arguments, the environment and the account of a rendering."""

    def __init__(self, plane: controlplane.ControlPlane, objects: list[Object]) -> None:
        deployment = the(objects, "Deployment")
        namespace = deployment["metadata"]["namespace"]
        account = deployment["spec"]["template"]["spec"]["serviceAccountName"]
        self.cluster = Cluster(plane, namespace)
        self.user = f"system:serviceaccount:{namespace}:{account}"
        self.kubeconfig = plane.kubeconfig_for(account, namespace=namespace)
        self.log = pathlib.Path(tempfile.mkdtemp(prefix="inferasim-op-")) / "operator.log"
        self.process: subprocess.Popen[bytes] | None = None
        self._begins = 0
        self._container = container(objects)

    def start(self) -> None:
        given: dict[str, Any] = {entry["name"]: entry["value"] for entry in self._container["env"]}
        own = {"INFERASIM_COMPUTE_FUNCTION": STAND_IN, "PYTHONPATH": str(ROOT / "tests" / "integration")}
        command = [sys.executable, "-m", "inferasim_operator", *self._container["args"]]
        command += ["--kubeconfig", str(self.kubeconfig), "--health-port", "0"]
        self._begins = len(self.text) if self.log.exists() else 0
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=os.environ | given | own)

    def refusals(self) -> list[str]:
        """What RBAC has refused this operator's account so far."""
        return [
            f"{event.verb} {event.resource}/{event.subresource} {event.namespace}/{event.name}"
            for event in self.cluster.plane.audit_events()
            if event.user == self.user and event.is_forbidden
        ]

    def end(self) -> None:
        """Stop it if it runs."""
        if self.process is not None and self.process.poll() is None:
            assert self.stop() == 0, self.text
