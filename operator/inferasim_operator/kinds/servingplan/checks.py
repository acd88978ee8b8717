"""What can be wrong with a plan, as an ordered chain of findings: the first one decides, and says so in Ready. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from inferasim_operator.api.v1alpha1.servingplan import AnchorMode, SearchMethod
from inferasim_operator.engine.compute import Failure
from inferasim_operator.kinds.servingplan.observe import Observed


class Reason(StrEnum):
    """Condition reasons of a ServingPlan."""

    PLAN_FOUND = "PlanFound"
    SEARCHING = "Searching"
    SUSPENDED = "Suspended"
    INVALID_SPEC = "InvalidSpec"
    MODEL_CONFIG_NOT_FOUND = "ModelConfigNotFound"
    MODEL_CONFIG_INVALID = "ModelConfigInvalid"
    TRACE_NOT_FOUND = "TraceNotFound"
    UNKNOWN_MODEL = "UnknownModel"
    UNKNOWN_NAME = "UnknownName"
    BAD_LAYOUT = "BadLayout"
    INVALID_INPUT = "InvalidInput"
    AGENT_NOT_CONFIGURED = "AgentNotConfigured"
    AGENT_NOT_INSTALLED = "AgentNotInstalled"
    NO_ANCHOR = "NoAnchor"
    NO_ANCHOR_FOR_ACCELERATOR = "NoAnchorForAccelerator"
    ANCHOR_INVALID = "AnchorInvalid"
    WAITING_FOR_HARVEST = "WaitingForHarvest"
    ANCHORS_APPLY = "AnchorsApply"
    SIMULATED = "Simulated"
    INFEASIBLE = "Infeasible"
    PARTLY_FEASIBLE = "PartlyFeasible"
    TIERS_MET = "TiersMet"
    RESULT_INVALID = "ResultInvalid"
    RESULT_TOO_LARGE = "ResultTooLarge"
    COMPUTATION_FAILED = "ComputationFailed"
    COMPUTATION_TIMED_OUT = "ComputationTimedOut"
    DISCOVERY_NOT_ALLOWED = "DiscoveryNotAllowed"
    NO_NODES_FOUND = "NoNodesFound"
    NO_WORKER_IMAGE = "NoWorkerImage"
    QUEUED = "Queued"
    QUESTION_TOO_LARGE = "QuestionTooLarge"
    JOB_FAILED = "JobFailed"
    SHARDS_MISSING = "ShardsMissing"


@dataclass(frozen=True)
class Finding:
    """One thing that keeps the plan from an answer."""

    reason: Reason
    message: str


Check = Callable[[Observed], Finding | None]


def spec_is_invalid(observed: Observed) -> Finding | None:
    """The spec breaks a rule that the API server did not know (an older CRD)."""
    return Finding(Reason.INVALID_SPEC, observed.spec_problem) if observed.plan is None else None


def model_config_is_missing(observed: Observed) -> Finding | None:
    """The ConfigMap of the model does not exist (yet)."""
    config = observed.model_config
    return Finding(Reason.MODEL_CONFIG_NOT_FOUND, config.problem) if config is not None and config.is_missing else None


def model_config_is_invalid(observed: Observed) -> Finding | None:
    """The ConfigMap of the model holds no JSON object."""
    config = observed.model_config
    return Finding(Reason.MODEL_CONFIG_INVALID, config.problem) if config is not None and config.problem else None


def trace_is_missing(observed: Observed) -> Finding | None:
    """The ConfigMap of the trace does not exist (yet), or lacks the key."""
    trace = observed.trace
    return Finding(Reason.TRACE_NOT_FOUND, trace.problem) if trace is not None and trace.problem else None


def no_anchor_is_usable(observed: Observed) -> Finding | None:
    """Measurements are demanded and the namespace has none that can be read."""
    if not _is_anchored(observed) or any(anchor.content is not None for anchor in observed.anchors):
        return None
    if observed.anchors:
        broken = "; ".join(f"{anchor.name}: {anchor.problem}" for anchor in observed.anchors)
        return Finding(Reason.ANCHOR_INVALID, f"no anchor can be read ({broken})")
    return Finding(
        Reason.NO_ANCHOR,
        "no anchor in this namespace matches; run an AnchorHarvest, or set anchors.mode to Simulate to rank only",
    )


def no_anchor_for_accelerator(observed: Observed) -> Finding | None:
    """All anchors are of other accelerators."""
    if not _is_anchored(observed) or observed.plan is None:
        return None
    wanted = observed.plan.spec.cluster.accelerator
    found = sorted({anchor.accelerator for anchor in observed.anchors if anchor.content is not None})
    if not found or any(name.lower() == wanted.lower() for name in found):
        return None
    return Finding(
        Reason.NO_ANCHOR_FOR_ACCELERATOR,
        f"no anchor for {wanted}: the namespace has anchors for {', '.join(found)} only; "
        f"run an AnchorHarvest on {wanted}, or set anchors.mode to Simulate to rank only",
    )


def nodes_are_not_found(observed: Observed) -> Finding | None:
    """The cluster's nodes are to be counted, and cannot be or are none."""
    nodes = observed.nodes
    if nodes is None or not nodes.problem:
        return None
    return Finding(Reason.NO_NODES_FOUND if nodes.may_list else Reason.DISCOVERY_NOT_ALLOWED, nodes.problem)


def worker_image_is_unknown(observed: Observed) -> Finding | None:
    """A Job is asked for, and the operator does not know which image it is to run."""
    search = observed.search
    if search is None or search.image or observed.result is not None:
        return None
    return Finding(
        Reason.NO_WORKER_IMAGE,
        "the search is to run as a Job (spec.search.shards, spec.results or a trace on a volume) and the operator does "
        "not know its own image (INFERASIM_WORKER_IMAGE, set by the chart)",
    )


def agent_is_not_configured(observed: Observed) -> Finding | None:
    """A language model is asked for, and it is not named or its key is not there."""
    if observed.plan is None or observed.result is not None:
        return None
    search = observed.plan.spec.search
    if search is None or search.method is not SearchMethod.AGENT:
        return None
    if search.agent is None:
        text = "spec.search.agent: names no chat model; method Seeds searches without one"
        return Finding(Reason.AGENT_NOT_CONFIGURED, text)
    if observed.agent_key is not None and observed.agent_key.problem:
        return Finding(Reason.AGENT_NOT_CONFIGURED, f"spec.search.agent.secret: {observed.agent_key.problem}")
    return None


def result_is_broken(observed: Observed) -> Finding | None:
    """The object that should be the answer, or the ledger on the way to it, is something else."""
    problem = observed.result_problem or (observed.ledger.problem if observed.ledger is not None else "")
    return Finding(Reason.RESULT_INVALID, problem) if problem else None


CHAIN: tuple[Check, ...] = (
    spec_is_invalid,
    model_config_is_missing,
    model_config_is_invalid,
    trace_is_missing,
    no_anchor_is_usable,
    no_anchor_for_accelerator,
    nodes_are_not_found,
    worker_image_is_unknown,
    agent_is_not_configured,
    result_is_broken,
)


def failure_finding(failure: Failure) -> Finding:
    """What a failed computation says about the plan; the classes are those of `simcore.errors`."""
    kinds = failure.error.split("/")
    field = failure.field.lower()
    if "NoAnchorError" in kinds:
        return Finding(Reason.NO_ANCHOR, failure.message)
    if "InfeasibleError" in kinds:
        return Finding(Reason.INFEASIBLE, failure.message)
    if "UnknownNameError" in kinds:
        return Finding(Reason.UNKNOWN_MODEL if "model" in field else Reason.UNKNOWN_NAME, failure.message)
    if "InputError" in kinds and field == "search.agent":
        return Finding(Reason.AGENT_NOT_INSTALLED, failure.message)
    if "InputError" in kinds:
        is_layout = "layout" in field or "parallel" in field
        return Finding(Reason.BAD_LAYOUT if is_layout else Reason.INVALID_INPUT, failure.message)
    if "ComputationTimeout" in kinds:
        return Finding(Reason.COMPUTATION_TIMED_OUT, failure.message)
    return Finding(Reason.COMPUTATION_FAILED, f"{kinds[0]}: {failure.message}")


def _is_anchored(observed: Observed) -> bool:
    if observed.plan is None:
        return False
    choice = observed.plan.spec.anchors
    return choice is None or choice.mode in (None, AnchorMode.ANCHORED)
