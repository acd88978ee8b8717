"""What a Job's status says, and the one field of a live Job that is ever changed. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def job_condition(job: Mapping[str, Any], type_: str) -> Mapping[str, Any] | None:
    """The Job's condition of a type, if it is true."""
    for condition in (job.get("status") or {}).get("conditions") or ():
        if condition.get("type") == type_ and condition.get("status") == "True":
            return dict(condition)
    return None


def is_active(job: Mapping[str, Any]) -> bool:
    """Whether a Job may still do something."""
    return job_condition(job, "Complete") is None and job_condition(job, "Failed") is None


def suspension(job: Mapping[str, Any], *, is_suspended: bool) -> dict[str, Any]:
    """What to apply to a live Job so that it pauses or goes on."""
    metadata = job["metadata"]
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": metadata["name"], "namespace": metadata["namespace"]},
        "spec": {"suspend": is_suspended},
    }


def last_words(pods: list[Mapping[str, Any]] | tuple[Mapping[str, Any], ...], *, lines_count: int) -> str:
    """How the last container that failed ended, with the end of its log; empty when none did."""
    for pod in reversed(pods):
        for container in (pod.get("status") or {}).get("containerStatuses") or ():
            ended = (container.get("state") or {}).get("terminated") or {}
            if ended.get("exitCode", 0) != 0:
                lines = [line.strip() for line in str(ended.get("message") or "").splitlines() if line.strip()]
                tail = " | ".join(lines[-lines_count:])
                return f"exit code {ended['exitCode']}" + (f": {tail}" if tail else "")
    return ""
