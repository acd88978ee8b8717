"""The operator as a process with exactly its generated rights, and one namespace of the control plane."""

from __future__ import annotations

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import typing

import httpx
import yaml
from prometheus_client.parser import text_string_to_metric_families

from e2e import audit, controlplane
from tools import rbacgen

ROOT = pathlib.Path(__file__).resolve().parents[2]
PATIENCE_S = 90.0
STAND_IN = "stand_in_planning:compute_plan"
Object = dict[str, typing.Any]
OPERATOR_USER = "system:serviceaccount:{}:inferasim-operator"


def until(holds: typing.Callable[[], bool], what: str, *, timeout_s: float = PATIENCE_S) -> None:
    """Wait for something that the API server cannot be asked to watch for."""
    deadline_s = time.monotonic() + timeout_s
    pause = threading.Event()
    while not holds():
        if time.monotonic() > deadline_s:
            raise AssertionError(f"not within {timeout_s:.0f} s: {what}")
        pause.wait(0.1)


class Cluster:
    """One namespace of the control plane, as a test uses it."""

    def __init__(self, plane: controlplane.ControlPlane, namespace: str) -> None:
        self.plane, self.namespace = plane, namespace

    def kubectl(self, *arguments: str, stdin: str | None = None, timeout_s: float = 60.0) -> str:
        return self.plane.kubectl("-n", self.namespace, *arguments, input=stdin, timeout_s=timeout_s)

    def apply(self, *manifests: Object) -> None:
        """`kubectl apply` with its default, strict validation."""
        text = yaml.safe_dump_all(
            [{**m, "metadata": {**m["metadata"], "namespace": self.namespace}} for m in manifests]
        )
        self.kubectl("apply", "-f", "-", stdin=text, timeout_s=180.0)

    def get(self, kind: str, name: str) -> Object:
        found: Object = json.loads(self.kubectl("get", kind, name, "-o", "json"))
        return found

    def list(self, kind: str, *arguments: str) -> list[Object]:
        items: list[Object] = json.loads(self.kubectl("get", kind, *arguments, "-o", "json"))["items"]
        return items

    def wait(self, kind: str, name: str, condition: str, *, timeout_s: float = PATIENCE_S) -> Object:
        """Until the server says that a condition holds (`Ready=False` for the opposite); a watch, no polling."""
        arguments = (f"--for=condition={condition}", f"--timeout={timeout_s:.0f}s")
        self.kubectl("wait", kind, name, *arguments, timeout_s=timeout_s + 10)
        return self.get(kind, name)

    def wait_for(self, kind: str, name: str, path: str, value: str, *, timeout_s: float = PATIENCE_S) -> Object:
        """Until a field (JSON path) has a value."""
        arguments = (f"--for=jsonpath={{{path}}}={value}", f"--timeout={timeout_s:.0f}s")
        self.kubectl("wait", kind, name, *arguments, timeout_s=timeout_s + 10)
        return self.get(kind, name)

    def operator_requests(self) -> list[audit.Event]:
        """All requests that this namespace's operator has made so far."""
        user = OPERATOR_USER.format(self.namespace)
        return [event for event in self.plane.audit_events() if event.user == user]

    def operator_writes(self) -> list[audit.Event]:
        """Those that could change something, but for the renewal of its lease and dry runs."""
        return [
            event
            for event in self.operator_requests()
            if event.is_write and not event.resource.startswith("leases") and "dryRun" not in event.uri
        ]

    def versions(self) -> dict[str, str]:
        """resourceVersion of everything that the operator writes in this namespace."""
        kinds = "servingplans,anchorharvests,configmaps,jobs,serviceaccounts,roles,rolebindings"
        return {f"{o['kind']}/{o['metadata']['name']}": o["metadata"]["resourceVersion"] for o in self.list(kinds)}


class Operator:
    """The operator process of one namespace."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        function: str,
        lease_s: int = 2,
        environment: typing.Mapping[str, str] | None = None,
        server: str | None = None,
    ) -> None:
        """`environment` adds to the process's; `server` is where it finds the API server, if not at its own address."""
        objects = rbacgen.namespaced_objects(
            role="inferasim-operator", namespace=cluster.namespace, service_account="inferasim-operator"
        )
        cluster.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(objects))
        self.kubeconfig = cluster.plane.kubeconfig_for("inferasim-operator", namespace=cluster.namespace)
        if server is not None:
            text = self.kubeconfig.read_text(encoding="utf-8").replace(cluster.plane.server, server)
            self.kubeconfig = pathlib.Path(tempfile.mkdtemp(prefix="inferasim-op-")) / "kubeconfig.yaml"
            self.kubeconfig.write_text(text, encoding="utf-8")
        self._environment = dict(environment or {})
        self.cluster, self._function, self._lease_s = cluster, function, lease_s
        self.log = pathlib.Path(tempfile.mkdtemp(prefix="inferasim-op-")) / "operator.log"
        self.process: subprocess.Popen[bytes] | None = None
        self._begins = 0

    def start(self) -> None:
        environment = os.environ | {
            "INFERASIM_COMPUTE_FUNCTION": self._function,
            "PYTHONPATH": str(ROOT / "tests" / "integration"),
            **self._environment,
        }
        command = [sys.executable, "-m", "inferasim_operator", "run", "--namespace", self.cluster.namespace]
        command += ["--kubeconfig", str(self.kubeconfig), "--health-port", "0", "--lease-seconds", str(self._lease_s)]
        self._begins = len(self.text) if self.log.exists() else 0
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)

    def stop(self) -> int:
        """As Kubernetes does it; returns the exit code."""
        process = self.process
        assert process is not None
        # Before it serves, Python is still importing, and the signal ends it in its own way.
        until(lambda: "health and metrics" in self.text[self._begins :] or process.poll() is not None, "it serves")
        process.send_signal(signal.SIGTERM)
        return process.wait(timeout=40)

    def kill(self) -> None:
        """As the kernel does it."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(timeout=10)

    def health(self, path: str = "/healthz") -> tuple[int, str]:
        """The answer of a probe; 0 while the process does not answer."""
        port = re.search(r"health and metrics on port (\d+)", self.text[self._begins :])
        if port is None:
            return 0, ""
        try:
            answer = httpx.get(f"http://127.0.0.1:{port[1]}{path}", timeout=5.0, trust_env=False)
        except httpx.TransportError:
            return 0, ""
        return answer.status_code, answer.text

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's samples that have these labels; 0 while the process does not answer yet."""
        port = re.search(r"health and metrics on port (\d+)", self.text[self._begins :])
        if port is None:
            return 0.0
        try:
            answer = httpx.get(f"http://127.0.0.1:{port[1]}/metrics", timeout=5.0, trust_env=False)
        except httpx.TransportError:
            return 0.0
        total = 0.0
        for family in text_string_to_metric_families(answer.text):
            for sample in family.samples:
                if sample.name == name and labels.items() <= sample.labels.items():
                    total += sample.value
        return total

    def until_passes(self, kind: str, count: int) -> None:
        """Until this process has made so many successful passes over objects of a kind."""
        until(
            lambda: self.metric("inferasim_reconciles_total", kind=kind, result="success") >= count,
            f"{count} passes over {kind}",
        )

    def until_settled(self, kind: str) -> None:
        """Until this process has looked at objects of a kind and none of them is due for another look.

        How many passes that takes depends on what had been written before the process began, so none is counted.
        """
        until(
            lambda: (
                self.metric("inferasim_reconciles_total", kind=kind, result="success") >= 1
                and self.metric("inferasim_objects_due", kind=kind) == 0
            ),
            f"{kind} is settled",
        )

    @property
    def text(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")
