"""What people are shown of live objects: the state of one in plain data, and the answer of a plan. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inferasim_operator.errors import OperatorError
from inferasim_operator.kinds.servingplan import render
from simcore.errors import InputError

Object = Mapping[str, Any]


class NoAnswerError(OperatorError):
    """The object has not got what was asked for, and its own words say why."""


def condition(live: Object, type_: str) -> Mapping[str, Any]:
    """A condition of a live object; empty when there is none."""
    found = (live.get("status") or {}).get("conditions") or ()
    return next((item for item in found if item["type"] == type_), {})


def ready_text(live: Object) -> str:
    """Why the object is, or is not, ready."""
    ready = condition(live, "Ready")
    return f"{ready['reason']}: {ready['message']}" if ready else "no operator has looked at it yet"


def is_outdated(live: Object) -> bool:
    """Whether the spec was changed after what the status speaks of."""
    return int((live.get("status") or {}).get("observedGeneration") or 0) < int(live["metadata"]["generation"])


def state(live: Object) -> dict[str, Any]:
    """How far the object is, how good, and why not."""
    ready, told = condition(live, "Ready"), live.get("status") or {}
    return {
        "kind": live["kind"],
        "namespace": live["metadata"]["namespace"],
        "name": live["metadata"]["name"],
        "ready": ready.get("status", "Unknown"),
        "reason": ready.get("reason"),
        "message": ready.get("message", ready_text(live)),
        "summary": told.get("summary"),
        "progress": told.get("progress"),
        "stalled": condition(live, "Stalled").get("status") == "True",
        "suspended": bool(live["spec"].get("suspend")),
        "outdated": is_outdated(live),
    }


def answer_text(state_: Mapping[str, Any]) -> str:
    """The answer of a state in one line, else how far the object is; a dash for neither."""
    progress = state_["progress"]
    if state_["summary"]:
        return str(state_["summary"])
    if not progress:
        return "–"
    if "candidatesScored" in progress:
        return f"{progress['candidatesScored']} of {progress.get('candidatesTotal') or '?'} candidates scored"
    eta = progress.get("etaSeconds")
    told = f"{progress.get('phase', '')} {progress.get('points') or ''}".strip()
    return told + (f", {eta} s to go" if eta is not None else "")


def result_name(live: Object) -> str:
    """The ConfigMap of a live plan's answer. Raises NoAnswerError when there is none yet."""
    reference = (live.get("status") or {}).get("result")
    if not reference:
        raise NoAnswerError(f"plan `{live['metadata']['name']}` has no answer: {ready_text(live)}")
    return str(reference["configMap"])


def result_of(live: Object, config_map: Object) -> dict[str, Any]:
    """The answer of a live plan in its ConfigMap. Raises InputError when it cannot be read."""
    try:
        return render.read_result(config_map, live["status"]["inputDigest"])
    except (ValueError, KeyError) as error:
        name = config_map["metadata"]["name"]
        must = f"hold the answer of plan `{live['metadata']['name']}` ({error})"
        raise InputError("ConfigMap", name, must, "ask for a new one: set spec.rerun") from error
