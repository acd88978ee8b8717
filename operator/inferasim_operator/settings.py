"""Settings of the operator process: from the environment (the chart sets them), overridden by the command line."""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from simcore.errors import InputError

_NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


def _identity() -> str:
    return f"{socket.gethostname()}-{uuid.uuid4().hex[:8]}"


@dataclass(frozen=True)
class Settings:
    """How one operator process runs."""

    namespaces: tuple[str, ...] = ()
    """The namespaces to serve; empty = all of them (needs a ClusterRole)."""
    lease_namespace: str = "default"
    lease_name: str = "inferasim-operator"
    lease_duration_s: int = 15
    identity: str = field(default_factory=_identity)
    kubeconfig: str | None = None
    context: str | None = None
    health_host: str = "0.0.0.0"  # noqa: S104 - probes and scrapes come from outside the pod
    health_port: int = 8080
    page_port: int | None = None
    """Port of the read-only page on the pod's loopback; None = no page."""
    compute_function: str = "inferasim_operator.planning:compute_plan"
    compute_workers_count: int = 1
    compute_timeout_s: float = 900.0
    watch_inactivity_s: float = 70.0
    """A watch that is silent for so long is taken for dead and begun anew; the server sends a bookmark each minute."""
    worker_image: str = ""
    """The operator's own image: what the Jobs of large searches run. Empty = every search runs in this process."""
    log_level: str = "INFO"

    def __post_init__(self) -> None:
        if not 0 <= self.health_port <= 65535:
            raise InputError("health port", self.health_port, "be from 0 (any free one) to 65535")
        if self.page_port is not None and not 0 <= self.page_port <= 65535:
            raise InputError("page port", self.page_port, "be from 0 (any free one) to 65535")
        if self.page_port and self.page_port == self.health_port:
            raise InputError("page port", self.page_port, "be another than the health port")
        if not 1 <= self.compute_workers_count <= 64:
            raise InputError("compute workers", self.compute_workers_count, "be from 1 to 64")
        if not 2 <= self.lease_duration_s <= 3600:
            raise InputError("lease seconds", self.lease_duration_s, "be from 2 to 3600")
        if not 1 <= self.watch_inactivity_s <= 3600:
            raise InputError("watch inactivity seconds", self.watch_inactivity_s, "be from 1 to 3600")
        if self.compute_timeout_s <= 0:
            raise InputError("compute timeout seconds", self.compute_timeout_s, "be positive")


def from_environment(environment: Mapping[str, str] | None = None) -> Settings:
    """Settings from `INFERASIM_…` variables. Raises InputError naming the variable."""
    values = os.environ if environment is None else environment

    def number(name: str, default: float) -> float:
        text = values.get(name, "")
        try:
            return float(text) if text else default
        except ValueError as error:
            raise InputError(name, text, "be a number") from error

    namespaces = tuple(name for name in values.get("INFERASIM_NAMESPACES", "").split(",") if name)
    own = _NAMESPACE_FILE.read_text(encoding="utf-8").strip() if _NAMESPACE_FILE.exists() else ""
    fallback = namespaces[0] if namespaces else "default"
    return Settings(
        namespaces=namespaces,
        lease_namespace=values.get("INFERASIM_LEASE_NAMESPACE") or own or fallback,
        lease_name=values.get("INFERASIM_LEASE_NAME") or Settings.lease_name,
        lease_duration_s=int(number("INFERASIM_LEASE_SECONDS", 15)),
        health_port=int(number("INFERASIM_HEALTH_PORT", 8080)),
        page_port=int(number("INFERASIM_PAGE_PORT", 0)) if values.get("INFERASIM_PAGE_PORT") else None,
        compute_function=values.get("INFERASIM_COMPUTE_FUNCTION") or Settings.compute_function,
        compute_workers_count=int(number("INFERASIM_COMPUTE_WORKERS", 1)),
        compute_timeout_s=number("INFERASIM_COMPUTE_TIMEOUT_SECONDS", 900.0),
        watch_inactivity_s=number("INFERASIM_WATCH_INACTIVITY_SECONDS", Settings.watch_inactivity_s),
        worker_image=values.get("INFERASIM_WORKER_IMAGE", ""),
        log_level=values.get("INFERASIM_LOG_LEVEL") or "INFO",
    )
