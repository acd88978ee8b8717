"""A running etcd, kube-apiserver and kube-controller-manager on loopback ports, owned by one Python object.

There is no scheduler and no kubelet: Jobs and Deployments make their pods, owner references are collected, tokens are
issued, and pods stay Pending until a test writes their status. Everything ends with the process that started it,
however that process ends (`supervise`).
"""

from __future__ import annotations

import atexit
import collections.abc
import contextlib
import os
import pathlib
import shutil
import ssl
import tempfile
import types
import typing

import httpx

from e2e import audit, binaries, certs, commands, errors, kubeconfig, kubectl, ports, processes, progress

READY_S = 90.0
GRACE_S = 20.0
ATTEMPTS = 3


class ControlPlane:
    """Start with `start()` or `with`; what it writes is in `state_dir`, the admin's kubeconfig in `kubeconfig`.

    Without a `state_dir` a temporary folder is made, and removed at the end unless `keep_state` is set or the body of
    the `with` failed. A folder that was passed in is emptied of the last run at the start, and its logs stay.
    """

    needs: tuple[str, ...] = binaries.CONTROL_PLANE
    has_kubelets = False

    def __init__(
        self,
        *,
        state_dir: pathlib.Path | None = None,
        audit: bool = False,
        keep_state: bool = False,
        shown: progress.Progress | None = None,
    ) -> None:
        self._temporary = state_dir is None
        self.state_dir = pathlib.Path(tempfile.mkdtemp(prefix="inferasim-e2e-")) if state_dir is None else state_dir
        self.kubeconfig = self.state_dir / "kubeconfig.yaml"
        self.audit_log = self.state_dir / "logs" / "audit.log"
        self.host = commands.HOST
        self.server = ""
        self._audit = audit
        self._keep_state = keep_state
        self._shown = shown
        self._owner = os.getpid()
        self._components: dict[str, processes.Component] = {}
        self._apiserver_command: list[str] = []
        self._manager_command: list[str] = []
        self._programs: dict[str, pathlib.Path] = {}

    def __enter__(self) -> typing.Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: types.TracebackType | None
    ) -> None:
        self._keep_state = self._keep_state or error is not None
        self.stop()

    def start(self) -> typing.Self:
        """Build what is missing, start all, and return when they work; on failure nothing is left running."""
        self._programs = binaries.ensure(self.needs, shown=self._shown)
        atexit.register(self.stop)
        try:
            for attempt in range(1, ATTEMPTS + 1):
                try:
                    self._start_components()
                    break
                except errors.ComponentError as error:
                    # A port was free when drawn and taken when bound: only then are new ports of use.
                    if "address already in use" not in str(error) or attempt == ATTEMPTS:
                        raise
                    self._end_components()
        except BaseException:
            self._keep_state = True
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """End all components in order and remove what they wrote; calling it again does nothing."""
        if os.getpid() != self._owner:
            return  # a forked child inherits this object and its atexit entry, but not the cluster
        atexit.unregister(self.stop)
        self._end_components()
        if self._temporary and not self._keep_state:
            shutil.rmtree(self.state_dir, ignore_errors=True)
        else:
            self._remove_state()

    def check(self) -> None:
        """Raise ComponentError if a component has ended by itself."""
        for component in self._components.values():
            if not component.is_running():
                raise component.failure("ended by itself")

    def stop_apiserver(self, *, crash: bool = False) -> None:
        """Take the API server away while everything else goes on; with `crash` it gets no time to finish requests."""
        self._take("kube-apiserver", crash=crash)

    def start_apiserver(self) -> None:
        """Bring the API server back on the same port, and return when it is ready."""
        component = self._run("kube-apiserver", self._apiserver_command)
        component.wait_until(lambda: self._answers("/readyz"), timeout_s=READY_S)

    def restart_apiserver(self, *, crash: bool = False) -> None:
        """Stop the API server and start it again: clients see refused connections and broken watches meanwhile."""
        self.stop_apiserver(crash=crash)
        self.start_apiserver()

    def compact_etcd(self) -> None:
        """Forget all history, as etcd does every five minutes: a watch from an older version then gets a 410."""
        context = ssl.create_default_context(cafile=str(self._pki.file("etcd-ca.crt")))
        context.load_cert_chain(self._pki.file("etcd-client.crt"), self._pki.file("etcd-client.key"))
        server = next(a for a in self._apiserver_command if a.startswith("--etcd-servers=")).split("=", 1)[1]
        with httpx.Client(base_url=server, verify=context, trust_env=False, timeout=30.0) as client:
            status = client.post("/v3/maintenance/status", json={}).raise_for_status().json()
            body = {"revision": status["header"]["revision"], "physical": True}
            client.post("/v3/kv/compaction", json=body).raise_for_status()

    def restart_controller_manager(self, *, crash: bool = False) -> None:
        """Stop the controller manager and start it again; it works again a moment later.

        Worth doing right after installing CRDs: its garbage collector looks for new kinds at its start and then every
        30 s, and until it has seen a kind, deleting an owner of that kind leaves the children (40 s measured).
        """
        self._take("kube-controller-manager", crash=crash)
        self._run("kube-controller-manager", self._manager_command)

    def kubeconfig_for(
        self, service_account: str, *, namespace: str = "default", valid_s: int = 24 * 3600
    ) -> pathlib.Path:
        """A kubeconfig with a token of an existing service account, so that its RBAC is what the bearer has."""
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{service_account}/token"
        request = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": valid_s},
        }
        with self.http() as client:
            answer = client.post(path, json=request)
        if answer.is_error:
            raise errors.E2EError(f"no token for {namespace}/{service_account}: {answer.text[:256]}")
        return kubeconfig.write_token(
            self.state_dir / "kubeconfigs" / f"{namespace}-{service_account}.yaml",
            server=self.server,
            authority=self._authority(),
            token=answer.json()["status"]["token"],
            namespace=namespace,
        )

    def kubeconfig_for_user(self, user: str, *, groups: collections.abc.Sequence[str] = ()) -> pathlib.Path:
        """A kubeconfig with a client certificate for any user name and groups, known to RBAC or not."""
        name = "".join(character if character.isalnum() or character in "-." else "_" for character in user)
        return kubeconfig.write_certificate(
            self.state_dir / "kubeconfigs" / f"user-{name}.yaml",
            server=self.server,
            authority=self._authority(),
            identity=self._pki.clients.issue(user, organizations=groups),
        )

    def kubectl(
        self,
        *arguments: str,
        input: str | None = None,  # noqa: A002 - the name that subprocess.run gave it
        kubeconfig: pathlib.Path | None = None,
        timeout_s: float = 60.0,
    ) -> str:
        """Run the built kubectl, as the admin unless told otherwise; return its output, or raise KubectlError."""
        environment = {
            "KUBECONFIG": str(self.kubeconfig if kubeconfig is None else kubeconfig),
            "KUBECACHEDIR": str(self.state_dir / "kubectl-cache"),
        }
        program = self._programs["kubectl"]
        return kubectl.run(program, *arguments, environment=environment, input=input, timeout_s=timeout_s)

    def http(self) -> httpx.Client:
        """An HTTP client of the API server that is the admin; paths are relative to the server."""
        return httpx.Client(base_url=self.server, verify=self._tls(), trust_env=False, timeout=30.0)

    def audit_events(self) -> list[audit.Event]:
        """All answered requests so far, without the control plane's own; needs `audit=True`."""
        events, _ = audit.read_events(self.audit_log)
        return events

    def pids(self) -> dict[str, int | None]:
        """The process id of each component, None for one that has ended."""
        return {name: component.pid for name, component in self._components.items()}

    def _start_components(self) -> None:
        self._remove_state()
        shutil.rmtree(self.state_dir / "logs", ignore_errors=True)
        self._pki = certs.write_pki(self.state_dir / "pki", host=self.host)
        client_port, peer_port, api_port = ports.free_ports(3)
        self.server = f"https://{self.host}:{api_port}"
        admin = certs.Identity(self._pki.file("admin.crt").read_bytes(), self._pki.file("admin.key").read_bytes())
        self._write_kubeconfig(self.kubeconfig, admin)
        manager_identity = self._pki.clients.issue("system:kube-controller-manager")
        manager_config = self._write_kubeconfig(self._pki.file("controller-manager.yaml"), manager_identity)

        etcd = commands.etcd(
            self._programs["etcd"],
            data=self.state_dir / "etcd",
            pki=self._pki,
            client_port=client_port,
            peer_port=peer_port,
        )
        self._apiserver_command = commands.apiserver(
            self._programs["kube-apiserver"],
            pki=self._pki,
            etcd_port=client_port,
            host=self.host,
            port=api_port,
            audit_policy=self._write_audit_policy() if self._audit else None,
            audit_log=self.audit_log,
        )
        self._run("etcd", etcd)
        self.start_apiserver()
        self._manager_command = commands.controller_manager(
            self._programs["kube-controller-manager"],
            pki=self._pki,
            kubeconfig=manager_config,
            kubelets=self.has_kubelets,
        )
        # The first thing a pod needs is its namespace's service account, which the controller manager makes.
        account = "/api/v1/namespaces/default/serviceaccounts/default"
        manager = self._run("kube-controller-manager", self._manager_command)
        manager.wait_until(lambda: self._answers(account), timeout_s=READY_S)

    def _run(self, name: str, command: list[str]) -> processes.Component:
        component = processes.Component(name, command, log=self.state_dir / "logs" / f"{name}.log")
        self._components[name] = component
        return component

    def _take(self, name: str, *, crash: bool) -> None:
        component = self._components.pop(name)
        if crash:
            component.kill()
        else:
            component.end(grace_s=GRACE_S)

    def _end_components(self) -> None:
        """End each component before those that it needs to end well; without etcd none of them would, in 20 s."""
        orphaned = "etcd" in self._components and not self._components["etcd"].is_running()
        for name in ("kube-scheduler", "kube-controller-manager", "kube-apiserver", "etcd"):
            if name in self._components:
                self._take(name, crash=orphaned)

    def _remove_state(self) -> None:
        for name in ("etcd", "pki", "kubeconfigs", "kubectl-cache", "node"):
            shutil.rmtree(self.state_dir / name, ignore_errors=True)
        self.kubeconfig.unlink(missing_ok=True)

    def _answers(self, path: str) -> bool:
        """Whether the API server answers a path with success; raise when another component is gone meanwhile."""
        self.check()
        with contextlib.suppress(httpx.TransportError), self.http() as client:
            return client.get(path, timeout=2.0).is_success
        return False

    def _tls(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self._pki.file("ca.crt")))
        context.load_cert_chain(self._pki.file("admin.crt"), self._pki.file("admin.key"))
        return context

    def _authority(self) -> bytes:
        return self._pki.clients.pem

    def _write_kubeconfig(self, path: pathlib.Path, identity: certs.Identity) -> pathlib.Path:
        return kubeconfig.write_certificate(path, server=self.server, authority=self._authority(), identity=identity)

    def _write_audit_policy(self) -> pathlib.Path:
        path = self._pki.file("audit-policy.yaml")
        path.write_text(audit.POLICY, encoding="utf-8")
        return path
