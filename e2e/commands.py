"""The command lines of the components: pure functions, so that what a cluster is made of can be read in one place."""

from __future__ import annotations

import pathlib

from e2e import certs

HOST = "127.0.0.1"
SERVICE_RANGE = "10.96.0.0/16"
ISSUER = "https://kubernetes.default.svc.cluster.local"


def etcd(program: pathlib.Path, *, data: pathlib.Path, pki: certs.Pki, client_port: int, peer_port: int) -> list[str]:
    """etcd with one member; a crash of the machine may lose data (no fsync), which a throw-away cluster can afford."""
    client, peer = f"https://{HOST}:{client_port}", f"https://{HOST}:{peer_port}"
    certificate, key, authority = pki.file("etcd.crt"), pki.file("etcd.key"), pki.file("etcd-ca.crt")
    return [
        str(program),
        "--name=e2e",
        f"--data-dir={data}",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=e2e={peer}",
        "--client-cert-auth",
        f"--cert-file={certificate}",
        f"--key-file={key}",
        f"--trusted-ca-file={authority}",
        "--peer-client-cert-auth",
        f"--peer-cert-file={certificate}",
        f"--peer-key-file={key}",
        f"--peer-trusted-ca-file={authority}",
        "--unsafe-no-fsync",
        "--log-level=warn",
    ]


def apiserver(
    program: pathlib.Path,
    *,
    pki: certs.Pki,
    etcd_port: int,
    host: str,
    port: int,
    audit_policy: pathlib.Path | None,
    audit_log: pathlib.Path,
) -> list[str]:
    """kube-apiserver with RBAC and its default admission; nothing is switched off that a real cluster has on.

    On the loopback interface no node can reach it, and the endpoint reconciler is off because it may not publish such
    an address; elsewhere pods find it as `kubernetes.default`, and it finds kubelets by their address. With the grace
    period, a graceful stop ends open watches; left at zero, it waits up to 60 s for clients to end them. Audit writes
    block the request, so a test that has an answer finds its record in the log.
    """
    arguments = [
        str(program),
        f"--bind-address={host}",
        f"--advertise-address={host}",
        f"--secure-port={port}",
        f"--etcd-servers=https://{HOST}:{etcd_port}",
        f"--etcd-cafile={pki.file('etcd-ca.crt')}",
        f"--etcd-certfile={pki.file('etcd-client.crt')}",
        f"--etcd-keyfile={pki.file('etcd-client.key')}",
        f"--tls-cert-file={pki.file('apiserver.crt')}",
        f"--tls-private-key-file={pki.file('apiserver.key')}",
        f"--client-ca-file={pki.file('ca.crt')}",
        f"--service-account-issuer={ISSUER}",
        f"--service-account-key-file={pki.file('service-account.pub')}",
        f"--service-account-signing-key-file={pki.file('service-account.key')}",
        f"--service-cluster-ip-range={SERVICE_RANGE}",
        "--authorization-mode=Node,RBAC",
        "--allow-privileged=true",
        "--shutdown-watch-termination-grace-period=3s",
        "--profiling=false",
    ]
    if host == HOST:
        arguments += ["--endpoint-reconciler-type=none"]
    else:
        arguments += [
            "--kubelet-preferred-address-types=InternalIP",
            f"--kubelet-certificate-authority={pki.file('ca.crt')}",
            f"--kubelet-client-certificate={pki.file('kubelet-client.crt')}",
            f"--kubelet-client-key={pki.file('kubelet-client.key')}",
        ]
    if audit_policy is not None:
        arguments += [
            f"--audit-policy-file={audit_policy}",
            f"--audit-log-path={audit_log}",
            "--audit-log-mode=blocking",
            "--audit-log-maxsize=2000",
        ]
    return arguments


def controller_manager(program: pathlib.Path, *, pki: certs.Pki, kubeconfig: pathlib.Path, kubelets: bool) -> list[str]:
    """kube-controller-manager with every default controller, save one when there are no kubelets.

    Tests then make Node objects with GPUs but no kubelet behind them; the controller that marks such nodes unready
    would taint them after 40 s. There is one instance, hence no leader election, whose lease would also delay a
    restart.
    """
    return [
        str(program),
        f"--kubeconfig={kubeconfig}",
        "--secure-port=0",
        "--leader-elect=false",
        "--use-service-account-credentials=true",
        f"--service-account-private-key-file={pki.file('service-account.key')}",
        f"--root-ca-file={pki.file('ca.crt')}",
        f"--controllers={'*' if kubelets else '*,-node-lifecycle-controller'}",
        "--kube-api-qps=200",
        "--kube-api-burst=400",
        "--profiling=false",
    ]


def scheduler(program: pathlib.Path, *, kubeconfig: pathlib.Path) -> list[str]:
    """kube-scheduler with its default plugins."""
    return [str(program), f"--kubeconfig={kubeconfig}", "--leader-elect=false", "--secure-port=0", "--profiling=false"]
