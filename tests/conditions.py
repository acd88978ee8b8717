"""The condition checker, run on every status that a test yields. Rules after Flux and the API conventions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def problems(status: Mapping[str, Any], *, generation: int) -> list[str]:
    """What is wrong with the conditions of a status (as JSON)."""
    conditions = list(status.get("conditions") or ())
    types = [c["type"] for c in conditions]
    by_type = {c["type"]: c for c in conditions}
    found: list[str] = []
    if "Ready" not in by_type:
        return ["Ready is missing"]
    if len(types) != len(set(types)):
        found.append("a type appears twice")
    if types[0] != "Ready":
        found.append("Ready is not first")
    ready = by_type["Ready"]["status"]
    if "Reconciling" in by_type and "Stalled" in by_type:
        found.append("Reconciling beside Stalled")
    for negative in ("Reconciling", "Stalled"):
        if negative in by_type:
            if by_type[negative]["status"] != "True":
                found.append(f"{negative} is present and not True")
            if ready == "True":
                found.append(f"{negative} beside Ready=True")
            if by_type[negative]["reason"] != by_type["Ready"]["reason"]:
                found.append(f"{negative} and Ready have different reasons")
    if status.get("observedGeneration", 0) > generation:
        found.append("observedGeneration is ahead of the object")
    for condition in conditions:
        name = condition["type"]
        if condition.get("observedGeneration", -1) > generation:
            found.append(f"{name}: observedGeneration is ahead of the object")
        if condition.get("observedGeneration") != status.get("observedGeneration"):
            found.append(f"{name}: observedGeneration is not the status's")
        if not condition.get("message", "").strip():
            found.append(f"{name}: no message")
        if condition["message"] != condition["message"].strip() or "\n" in condition["message"]:
            found.append(f"{name}: message is not one trimmed line")
        if not condition["reason"][:1].isupper() or not condition["reason"].isalnum():
            found.append(f"{name}: reason is not one CamelCase word")
        if not condition.get("lastTransitionTime", "").endswith("Z"):
            found.append(f"{name}: no transition time")
    return found


def assert_conditions(live: Mapping[str, Any]) -> None:
    """Fail with all that is wrong with a live object's conditions."""
    found = problems(live.get("status") or {}, generation=live["metadata"]["generation"])
    assert not found, f"{live['kind']} {live['metadata']['name']}: {found}"
