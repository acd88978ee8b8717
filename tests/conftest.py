"""Marks by folder, property profiles, the wall between unit tests and the network, and a certificate for loopback."""

from __future__ import annotations

import datetime
import ipaddress
import os
import socket
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from hypothesis import HealthCheck, settings

TESTS = Path(__file__).parent

# `fast` is what everyone runs; `thorough` is for a night. Derandomised: a red run is red for everybody.
settings.register_profile("fast", max_examples=60, deadline=None, derandomize=True, database=None)
settings.register_profile(
    "thorough", max_examples=2000, deadline=None, suppress_health_check=[HealthCheck.too_slow], database=None
)
settings.load_profile(os.environ.get("INFERASIM_PROPERTY_PROFILE", "fast"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything under tests/integration needs the real control plane."""
    for item in items:
        if TESTS / "integration" in item.path.parents:
            item.add_marker(pytest.mark.integration)


@pytest.fixture(autouse=True)
def _no_network(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unit tests reach loopback at most."""
    if "integration" not in request.keywords:
        connect = socket.socket.connect

        def guarded(self: socket.socket, address: object) -> None:
            if self.family == socket.AF_UNIX or str(address[0]) in {"127.0.0.1", "::1", "localhost"}:  # type: ignore[index]
                return connect(self, address)  # type: ignore[arg-type]
            raise RuntimeError(f"a unit test tried to reach {address}")

        monkeypatch.setattr(socket.socket, "connect", guarded)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A self-signed certificate for the loopback address, key and certificate in one file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "loopback.test")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = tmp_path_factory.mktemp("tls") / "server.pem"
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path.write_bytes(private + made.public_bytes(serialization.Encoding.PEM))
    return path
