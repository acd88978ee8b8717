"""Levers: a configuration as a flat record of named values, the common tongue between configurations and flag maps.

A lever name is the field's path in the API (`layout.tensorParallel`, `speculation.method`). A lever that is absent has
its neutral value: 1 for a width, nothing for the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from inferasim_operator.emit.configuration import Configuration, Role

Lever = int | str | bool | tuple[int, ...]
Levers = dict[str, Lever]

WIDTHS: Final = (
    "tensorParallel",
    "pipelineParallel",
    "dataParallel",
    "expertParallel",
    "attentionDataParallel",
    "prefillContextParallel",
    "decodeContextParallel",
)
POOL_LIMITS: Final = ("maxRunningRequests", "maxBatchedTokens")
PLAIN: Final = (
    "kvDtype",
    "blockSize",
    "memoryPermille",
    "chunkTokens",
    "maxGraphBatch",
    "graphCaptureSizes",
    "attentionBackend",
    "moeBackend",
    "allToAll",
    "redundantExperts",
)
GROUPS: Final = {"speculation": ("method", "draftTokens", "draftModel"), "kvOffload": ("hostGibibytes",)}


def levers_of(configuration: Configuration, role: Role) -> Levers:
    """The levers that the engine process of `role` is started with. Raises InputError."""
    record = configuration.to_dict()
    layout = configuration.canonical_layout(role)
    widths = dict(zip(WIDTHS, layout.__dict__.values(), strict=True))
    levers: Levers = {f"layout.{name}": width for name, width in widths.items() if width != 1}
    pool = configuration.pool(role).to_dict()
    levers |= {name: pool[name] for name in POOL_LIMITS}
    for name in PLAIN:
        if name in record:
            value = record[name]
            levers[name] = tuple(value) if isinstance(value, list) else value
    for group, names in GROUPS.items():
        levers |= {f"{group}.{name}": record[group][name] for name in names if name in record.get(group, {})}
    levers["maxModelLengthTokens"] = configuration.effective_max_model_length()
    levers["prefixCaching"] = record["prefixCaching"] == "Enabled"
    if levers.get("redundantExperts") == 0:
        del levers["redundantExperts"]
    if configuration.disaggregation is not None:
        levers["disaggregation.role"] = role.value
        levers["disaggregation.backend"] = configuration.disaggregation.backend.value
    return levers


def with_levers(base: Configuration, role: Role, levers: Mapping[str, Lever]) -> Configuration:
    """`base` with every value that a flag can state taken from `levers`. Inverse of `levers_of`."""
    record: dict[str, Any] = base.to_dict()
    for name in (*PLAIN, *GROUPS, *POOL_LIMITS, "maxModelLengthTokens"):
        record.pop(name, None)
    widths = {name: levers[f"layout.{name}"] for name in WIDTHS if f"layout.{name}" in levers}
    widths.setdefault("tensorParallel", 1)
    for name in (*PLAIN, "maxModelLengthTokens"):
        if name in levers:
            value = levers[name]
            record[name] = list(value) if isinstance(value, tuple) else value
    for group, names in GROUPS.items():
        stated = {name: levers[f"{group}.{name}"] for name in names if f"{group}.{name}" in levers}
        if stated:
            record[group] = stated
    record["prefixCaching"] = "Enabled" if levers["prefixCaching"] else "Disabled"
    limits = {name: levers[name] for name in POOL_LIMITS}
    if role is Role.COLOCATED:
        record |= limits
        record["layout"] = widths
    else:
        record |= {
            name: getattr(base, snake)
            for name, snake in zip(POOL_LIMITS, ("max_running_requests", "max_batched_tokens"), strict=True)
        }
        record["disaggregation"]["backend"] = levers["disaggregation.backend"]
        record["disaggregation"][role.value] |= {"layout": widths, **limits}
    return Configuration.model_validate(record)
