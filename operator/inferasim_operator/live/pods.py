"""Which pods serve a pool now, and whether they run what was predicted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from inferasim_operator.live.request import Pool

MAX_PODS: Final = 256
"""Replicas of one pool; more are refused rather than sampled."""


@dataclass(frozen=True)
class Target:
    """One replica to scrape."""

    uid: str
    name: str
    url: str


def targets(pool: Pool, pods: Sequence[Mapping[str, Any]]) -> tuple[tuple[Target, ...], str]:
    """The replicas that serve, and why they cannot be taken for the predicted ones (empty when they can). Pure."""
    serving = [pod for pod in pods if _is_serving(pod)]
    if len(serving) > MAX_PODS:
        return (), f"{len(serving)} pods of {_name(pool)}, at most {MAX_PODS} are observed"
    if not serving:
        return (), f"no pod of {_name(pool)} is ready"
    other = [pod for pod in serving if not _is_as_predicted(pod, pool)]
    if other:
        return (), (
            f"{len(other)} of {len(serving)} pods of {_name(pool)} run another image or other arguments than predicted"
        )
    found = []
    for pod in serving:
        port = _port(pod, pool.port_name)
        if port is None:
            return (), f"pod {pod['metadata']['name']} has no port named {pool.port_name}"
        address = str(pod["status"]["podIP"])
        host = f"[{address}]" if ":" in address else address
        metadata = pod["metadata"]
        found.append(Target(str(metadata["uid"]), str(metadata["name"]), f"http://{host}:{port}{pool.path}"))
    return tuple(found), ""


def _name(pool: Pool) -> str:
    labels = dict(pool.labels)
    return "/".join(labels[name] for name in sorted(labels) if name.startswith("inferasim.dev/"))


def _is_serving(pod: Mapping[str, Any]) -> bool:
    status = pod.get("status") or {}
    ready = any(c.get("type") == "Ready" and c.get("status") == "True" for c in status.get("conditions") or ())
    return bool(ready and status.get("podIP") and not pod["metadata"].get("deletionTimestamp"))


def _is_as_predicted(pod: Mapping[str, Any], pool: Pool) -> bool:
    if not pool.container:
        return True
    for container in pod["spec"].get("containers") or ():
        if container.get("name") == pool.container:
            # A mirror may have another registry and path; the last part says which build it is.
            image = str(container.get("image", "")).rsplit("/", 1)[-1]
            wanted = pool.image.rsplit("/", 1)[-1]
            return image == wanted and tuple(container.get("args") or ()) == pool.arguments
    return False


def _port(pod: Mapping[str, Any], name: str) -> int | None:
    for container in pod["spec"].get("containers") or ():
        for port in container.get("ports") or ():
            if port.get("name") == name:
                return int(port["containerPort"])
    return None
