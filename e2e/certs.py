"""The keys and certificates of one control plane, made anew at each start and valid for nothing else.

etcd has an authority of its own: with a shared one, every client certificate of the API server would open etcd too.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import datetime
import ipaddress
import os
import pathlib

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509 import oid

VALID_FOR = datetime.timedelta(days=365)
CLOCK_SKEW = datetime.timedelta(hours=1)
SERVICE_ADDRESS = "10.96.0.1"  # first address of the Service range: what `kubernetes.default` resolves to
_NAMES = (
    "localhost",
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
)


@dataclasses.dataclass(frozen=True)
class Identity:
    """A certificate with its key, both as PEM."""

    certificate: bytes
    key: bytes


@dataclasses.dataclass(frozen=True)
class Authority:
    """Issues certificates; its key stays in memory."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def pem(self) -> bytes:
        """The authority's own certificate."""
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    def issue(
        self,
        common_name: str,
        *,
        organizations: collections.abc.Sequence[str] = (),
        hosts: collections.abc.Sequence[str] = (),
    ) -> Identity:
        """A certificate for a client or, with `hosts` (names or addresses), for a server that is also a client.

        Kubernetes reads the common name as the user and the organizations as its groups.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        usages = [oid.ExtendedKeyUsageOID.CLIENT_AUTH]
        if hosts:
            usages.append(oid.ExtendedKeyUsageOID.SERVER_AUTH)
        builder = (
            _builder(_name(common_name, organizations), self.certificate.subject, key.public_key())
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(authority=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()), critical=False)
        )
        if hosts:
            builder = builder.add_extension(
                x509.SubjectAlternativeName([_general_name(host) for host in hosts]), critical=False
            )
        certificate = builder.sign(self.key, hashes.SHA256())
        return Identity(certificate.public_bytes(serialization.Encoding.PEM), private_pem(key))


@dataclasses.dataclass(frozen=True)
class Pki:
    """Everything the components need: files by name in `folder`, and the authority that issues client identities."""

    folder: pathlib.Path
    clients: Authority

    def file(self, name: str) -> pathlib.Path:
        """The path of one file, for instance `apiserver.crt`."""
        return self.folder / name


def new_authority(common_name: str) -> Authority:
    """A self-signed authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name(common_name, ())
    certificate = (
        _builder(name, name, key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(authority=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return Authority(certificate, key)


def write_pki(folder: pathlib.Path, *, host: str = "127.0.0.1") -> Pki:
    """Make all identities of a control plane whose API server listens on `host` and write them into `folder`."""
    folder.mkdir(parents=True, mode=0o700, exist_ok=True)
    clients, etcd = new_authority("inferasim-e2e"), new_authority("inferasim-e2e-etcd")
    signer = ec.generate_private_key(ec.SECP256R1())
    public = signer.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    pki = Pki(folder, clients)
    write_private(pki.file("ca.crt"), clients.pem)
    write_private(pki.file("etcd-ca.crt"), etcd.pem)
    write_private(pki.file("service-account.key"), private_pem(signer))
    write_private(pki.file("service-account.pub"), public)
    identities = {
        "apiserver": clients.issue("kube-apiserver", hosts=(host, SERVICE_ADDRESS, *_NAMES)),
        "admin": clients.issue("inferasim-e2e-admin", organizations=("system:masters",)),
        # `system:masters` may do all that a kubelet offers: logs, exec, port-forward.
        "kubelet-client": clients.issue("kube-apiserver-kubelet-client", organizations=("system:masters",)),
        "etcd": etcd.issue("etcd", hosts=("127.0.0.1", "localhost")),
        "etcd-client": etcd.issue("kube-apiserver"),
    }
    for name, identity in identities.items():
        write_private(pki.file(f"{name}.crt"), identity.certificate)
        write_private(pki.file(f"{name}.key"), identity.key)
    return pki


def write_private(path: pathlib.Path, content: bytes) -> None:
    """Write a file that only its owner may read, from its first byte on."""
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)


def private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """A key in the PEM form that both Go and Python read."""
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _builder(subject: x509.Name, issuer: x509.Name, public: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + VALID_FOR)
    )


def _name(common_name: str, organizations: collections.abc.Sequence[str]) -> x509.Name:
    groups = [x509.NameAttribute(oid.NameOID.ORGANIZATION_NAME, group) for group in organizations]
    return x509.Name([*groups, x509.NameAttribute(oid.NameOID.COMMON_NAME, common_name)])


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _key_usage(*, authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=authority,
        crl_sign=authority,
        encipher_only=False,
        decipher_only=False,
    )
