"""Mirrors files into one ConfigMap with the pod's service account, over plain HTTPS; needs `patch` on that one name."""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import httpx

from simcore.errors import InputError

ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
TIMEOUT_S: Final = 10.0
MERGE_PATCH: Final = "application/merge-patch+json"
_NAME: Final = re.compile(r"([a-z0-9][a-z0-9.-]{0,252})/([a-z0-9][a-z0-9.-]{0,252})")


class ConfigMap:
    """One existing ConfigMap. A failed write is reported and forgotten: the files in the folder are the truth."""

    def __init__(self, name: str, client: httpx.AsyncClient, account: Path = ACCOUNT) -> None:
        match = _NAME.fullmatch(name)
        if match is None:
            raise InputError("config-map", name, "be NAMESPACE/NAME")
        self.path = f"/api/v1/namespaces/{match[1]}/configmaps/{match[2]}"
        self.client, self.account = client, account

    @classmethod
    def in_cluster(cls, name: str, account: Path = ACCOUNT) -> ConfigMap:
        """With the pod's own account. Raises InputError outside a pod."""
        host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
        if not host or not (account / "token").exists():
            raise InputError("config-map", name, "be given only inside a pod with a service account")
        host = f"[{host}]" if ":" in host else host
        verify = ssl.create_default_context(cafile=str(account / "ca.crt"))
        client = httpx.AsyncClient(base_url=f"https://{host}:{port}", verify=verify, timeout=TIMEOUT_S)
        return cls(name, client, account)

    async def read(self) -> dict[str, str]:
        """Its data: the answer to an empty patch, which changes nothing and needs no `get`."""
        return await self._patch({})

    async def write(self, data: Mapping[str, str]) -> bool:
        """Sets keys; whether it worked."""
        try:
            await self._patch({"data": dict(data)})
        except (httpx.HTTPError, ValueError, OSError):
            return False
        return True

    async def close(self) -> None:
        """Closes the connection."""
        await self.client.aclose()

    async def _patch(self, body: Mapping[str, object]) -> dict[str, str]:
        # Bound tokens are rotated on disk, so the file is read each time.
        token = (self.account / "token").read_text(encoding="ascii").strip()
        headers = {"Authorization": f"Bearer {token}", "Content-Type": MERGE_PATCH}
        answer = await self.client.patch(self.path, json=body, headers=headers)
        answer.raise_for_status()
        found = answer.json().get("data") or {}
        return {str(key): str(value) for key, value in found.items()}
