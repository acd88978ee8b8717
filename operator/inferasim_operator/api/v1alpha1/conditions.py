"""The condition type of all kinds and the three generic condition names (Flux polarity, kstatus-compatible).

`Ready` is always present. `Reconciling` and `Stalled` exist only while true and exclude each other: Reconciling = work
goes on, Stalled = nothing will change until a person changes something.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from inferasim_operator.api.v1alpha1.common import ApiModel, Count, Message, Timestamp, map_list, unique_by

READY = "Ready"
RECONCILING = "Reconciling"
STALLED = "Stalled"


class ConditionStatus(StrEnum):
    """Whether a condition holds."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class Condition(ApiModel):
    """One observation about an object; the field set of Kubernetes' own `metav1.Condition`."""

    type: Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Z][A-Za-z]*$")]
    status: ConditionStatus
    reason: Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Z][A-Za-z0-9]*$")]
    message: Message
    last_transition_time: Timestamp
    observed_generation: Count


Conditions = Annotated[tuple[Condition, ...], Field(max_length=16), unique_by("type")]


class ConditionedStatus(ApiModel):
    """What the status of every kind begins with."""

    conditions: Conditions = Field(default=(), json_schema_extra=map_list("type"))
    observed_generation: Count | None = Field(
        default=None, description="Generation of the spec that this status speaks of."
    )
    summary: Message | None = Field(default=None, description="The answer in one line, for `kubectl get`.")
