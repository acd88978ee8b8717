"""Kubeconfig files that hold all they need, so that they can be copied anywhere."""

from __future__ import annotations

import base64
import pathlib
import typing

import yaml

from e2e import certs

NAME = "inferasim-e2e"


def write_certificate(
    path: pathlib.Path, *, server: str, authority: bytes, identity: certs.Identity, namespace: str = "default"
) -> pathlib.Path:
    """A kubeconfig whose user proves itself by a client certificate."""
    user = {
        "client-certificate-data": _encoded(identity.certificate),
        "client-key-data": _encoded(identity.key),
    }
    return _write(path, server=server, authority=authority, user=user, namespace=namespace)


def write_token(
    path: pathlib.Path, *, server: str, authority: bytes, token: str, namespace: str = "default"
) -> pathlib.Path:
    """A kubeconfig whose user proves itself by a bearer token, as a pod does."""
    return _write(path, server=server, authority=authority, user={"token": token}, namespace=namespace)


def _write(path: pathlib.Path, *, server: str, authority: bytes, user: dict[str, str], namespace: str) -> pathlib.Path:
    document: dict[str, typing.Any] = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": NAME, "cluster": {"server": server, "certificate-authority-data": _encoded(authority)}}],
        "users": [{"name": NAME, "user": user}],
        "contexts": [{"name": NAME, "context": {"cluster": NAME, "user": NAME, "namespace": namespace}}],
        "current-context": NAME,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    certs.write_private(path, yaml.safe_dump(document, sort_keys=False).encode())
    return path


def _encoded(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")
