"""What can be wrong with a mix, as an ordered chain of findings: the first one decides, and says so in Ready. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from inferasim_operator.api.v1alpha1.deploymentmix import DeliveryType
from inferasim_operator.kinds.deploymentmix.observe import Observed


class Reason(StrEnum):
    """Condition reasons of a DeploymentMix."""

    EMITTED = "Emitted"
    DELIVERED = "Delivered"
    DELIVERING = "Delivering"
    SUSPENDED = "Suspended"
    INVALID_SPEC = "InvalidSpec"
    PLAN_NOT_FOUND = "PlanNotFound"
    PLAN_NOT_READY = "PlanNotReady"
    PLAN_HAS_NO_ANSWER = "PlanHasNoAnswer"
    CANNOT_EMIT = "CannotEmit"
    FOREIGN_NAMESPACE = "ForeignNamespace"
    REPLICAS_ELSEWHERE = "ReplicasElsewhere"
    GIT_FAILED = "GitFailed"
    COLLECTING = "Collecting"
    COMPARABLE = "Comparable"
    NOT_COMPARABLE = "NotComparable"
    NOT_OBSERVED = "NotObserved"
    WITHIN_TOLERANCE = "WithinTolerance"
    OUT_OF_TOLERANCE = "OutOfTolerance"


@dataclass(frozen=True)
class Finding:
    """One thing that keeps the mix from being emitted."""

    reason: Reason
    message: str
    is_final: bool = True
    """Only a change of the mix, or of what it names, can cure it; else it is waited for."""


Check = Callable[[Observed], Finding | None]


def spec_is_invalid(observed: Observed) -> Finding | None:
    """The spec breaks a rule that the API server did not know (an older CRD)."""
    return Finding(Reason.INVALID_SPEC, observed.spec_problem) if observed.mix is None else None


def plan_is_missing(observed: Observed) -> Finding | None:
    """The named plan does not exist (yet)."""
    plan = observed.plan
    return Finding(Reason.PLAN_NOT_FOUND, plan.problem) if plan is not None and plan.is_missing else None


def plan_has_no_answer(observed: Observed) -> Finding | None:
    """The plan is infeasible or broken: nothing is emitted for it."""
    plan = observed.plan
    if plan is None or not plan.problem or not plan.is_final:
        return None
    return Finding(Reason.PLAN_HAS_NO_ANSWER, plan.problem)


def plan_is_not_ready(observed: Observed) -> Finding | None:
    """The plan still searches; its next status wakes the mix."""
    plan = observed.plan
    return Finding(Reason.PLAN_NOT_READY, plan.problem, is_final=False) if plan is not None and plan.problem else None


def nothing_can_be_emitted(observed: Observed) -> Finding | None:
    """No manifests come of the configurations."""
    return Finding(Reason.CANNOT_EMIT, observed.emission_problem) if observed.emission_problem else None


def namespace_is_foreign(observed: Observed) -> Finding | None:
    """Applying elsewhere would let whoever may write a mix write to any namespace."""
    mix = observed.mix
    if mix is None or mix.spec.delivery is None or mix.spec.delivery.type is not DeliveryType.APPLY:
        return None
    if mix.spec.namespace in (None, mix.metadata.namespace):
        return None
    return Finding(
        Reason.FOREIGN_NAMESPACE,
        f"`namespace` must be {mix.metadata.namespace} with delivery Apply, got {mix.spec.namespace}; "
        "put the mix there, or deliver by Git",
    )


CHAIN: tuple[Check, ...] = (
    spec_is_invalid,
    plan_is_missing,
    plan_has_no_answer,
    plan_is_not_ready,
    nothing_can_be_emitted,
    namespace_is_foreign,
)
