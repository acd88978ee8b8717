"""The decision for a ServingPlan: pure, total, and a fixed point once the answer is kept.

An answer that no tier can meet is an answer: Ready=False and Stalled=True (kstatus: Failed), because only an edit or a
new anchor can change it; both wake the plan.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pydantic

from inferasim_operator import convert
from inferasim_operator.api.v1alpha1.common import ResultReference
from inferasim_operator.api.v1alpha1.configuration import PredictionMode
from inferasim_operator.api.v1alpha1.servingplan import (
    ANCHORS_RESOLVED,
    FEASIBLE,
    DiscoveredNodes,
    ServingPlanStatus,
)
from inferasim_operator.engine.actions import ApplyObject, CreateObject, DeleteObject, Plan, Reference, StartComputation
from inferasim_operator.engine.compute import Computation, Phase
from inferasim_operator.engine.conditions import Conditions
from inferasim_operator.engine.findings import first_finding
from inferasim_operator.kinds.servingplan import checks, render, search_job, searching
from inferasim_operator.kinds.servingplan.checks import Reason
from inferasim_operator.kinds.servingplan.observe import Observed
from inferasim_operator.kinds.servingplan.observe_search import SearchJob

LOOK_FOR_KEY_S = 30.0
"""Secrets are not watched, for the operator may not read those that no plan names."""
_ANCHOR_REASONS = (Reason.NO_ANCHOR, Reason.NO_ANCHOR_FOR_ACCELERATOR, Reason.ANCHOR_INVALID)


def plan(observed: Observed, now: datetime.datetime) -> Plan:
    """What to do for a plan, and what to say of it."""
    decided = _decide(observed, now)
    clean_up = tuple(DeleteObject(Reference.of(live), live["metadata"]["uid"]) for live in observed.leftovers)
    return replace(decided, actions=(*clean_up, *decided.actions))


def _decide(observed: Observed, now: datetime.datetime) -> Plan:
    generation = int(observed.raw["metadata"].get("generation", 0))
    conditions = Conditions(convert.parse_conditions(observed.raw), generation=generation, now=now)
    finding = first_finding(checks.CHAIN, observed)
    if finding is not None:
        is_key_missing = observed.agent_key is not None and bool(observed.agent_key.problem)
        wake_after_s = LOOK_FOR_KEY_S if is_key_missing else None
        return Plan(_stalled(observed, conditions, generation, finding), wake_after_s=wake_after_s)
    if observed.result is not None:
        return Plan(_answered(observed, conditions, generation, observed.result))
    spec = observed.plan.spec if observed.plan is not None else None
    if spec is not None and spec.suspend:
        conditions.idle(Reason.SUSPENDED, "suspended: no search is started")
        return Plan(_status(observed, conditions, generation), actions=searching.pause(observed.search))
    assert observed.request is not None  # noqa: S101 - the chain has found every way in which it could be missing
    request = observed.request
    if observed.search is not None:
        if len(observed.search.done) < observed.search.shards_count:
            return _search(observed, observed.search, conditions, generation)
        request = searching.merge_request(request, observed.search)
    if observed.agent_key is not None:
        request = {**request, "agentKey": observed.agent_key.value}
    kept = observed.ledger.text if observed.ledger is not None else None
    if kept is not None:
        request = {**request, "resume": kept}
    wanted = StartComputation(observed.digest, request, kept)
    computation = observed.computation
    if computation is not None and computation.phase is Phase.FAILED and computation.failure is not None:
        finding = checks.failure_finding(computation.failure)
        return Plan(_stalled(observed, conditions, generation, finding), computation=wanted)
    if computation is not None and computation.phase is Phase.DONE and computation.result is not None:
        return _keep(observed, conditions, generation, computation.result, wanted)
    conditions.working(Reason.SEARCHING, "the search for the best configurations is under way")
    status = _status(observed, conditions, generation, progress=_progress(observed, computation))
    record = computation.record if computation is not None else None
    if record is None or record == kept:
        return Plan(status, computation=wanted)
    ledger = render.ledger_config_map(observed.raw, observed.digest, record)
    return Plan(status, actions=(ApplyObject(ledger, is_announced=False),), computation=wanted)


def _search(observed: Observed, search: SearchJob, conditions: Conditions, generation: int) -> Plan:
    """The search is a Job: make it, follow it, or say how it ended without all shards."""
    assert observed.plan is not None  # noqa: S101 - the chain has found it otherwise
    assert observed.request is not None  # noqa: S101 - as above
    failure = searching.failure(search)
    if failure is not None:
        return Plan(_stalled(observed, conditions, generation, failure))
    try:
        actions = searching.actions(observed.raw, observed.plan, observed.digest, observed.request, search)
    except ValueError as error:
        return Plan(_stalled(observed, conditions, generation, checks.Finding(Reason.QUESTION_TOO_LARGE, str(error))))
    stage = searching.stage(observed.plan, search)
    conditions.working(stage.reason, stage.message)
    status = _status(observed, conditions, generation, progress=searching.progress(search))
    return Plan(status, actions=actions, wake_after_s=searching.LOOK_AGAIN_S)


def _keep(
    observed: Observed,
    conditions: Conditions,
    generation: int,
    result: Mapping[str, Any],
    wanted: StartComputation,
) -> Plan:
    """Write the answer down. It stays wanted until it is seen in its ConfigMap, so a failed write loses nothing."""
    try:
        manifest = render.result_config_map(observed.raw, observed.digest, result)
    except ValueError as error:
        finding = checks.Finding(Reason.RESULT_TOO_LARGE, str(error))
        return Plan(_stalled(observed, conditions, generation, finding), computation=wanted)
    status = _answered(observed, conditions, generation, result)
    return Plan(status, actions=(CreateObject(manifest),), computation=wanted)


def _answered(
    observed: Observed, conditions: Conditions, generation: int, result: Mapping[str, Any]
) -> ServingPlanStatus:
    try:
        answer = convert.plan_answer(result)
    except pydantic.ValidationError as error:
        finding = checks.Finding(Reason.RESULT_INVALID, convert.first_error(error))
        return _stalled(observed, conditions, generation, finding)
    simulated = any(choice.source.mode is PredictionMode.SIMULATE for choice in answer.selected)
    if simulated:
        conditions.set(
            ANCHORS_RESOLVED, False, Reason.SIMULATED, "some figures are simulated: they rank, they do not promise"
        )
    elif answer.selected:
        conditions.set(ANCHORS_RESOLVED, True, Reason.ANCHORS_APPLY, "every chosen configuration rests on an anchor")
    unmet = answer.binding  # of tiers without a configuration, and of demands that are served in part
    others = _unserved_of_others(observed, answer)
    unmet_text = "; ".join([*(f"{binding.tier}: {binding.limit}: {binding.detail}" for binding in unmet), *others])
    summary = convert.plan_summary(answer)
    if not answer.selected:
        text = unmet_text or "no configuration meets any tier"
        conditions.set(FEASIBLE, False, Reason.INFEASIBLE, text)
        conditions.stalled(Reason.INFEASIBLE, f"no configuration meets any tier: {text}")
    else:
        if unmet_text:
            conditions.set(FEASIBLE, True, Reason.PARTLY_FEASIBLE, f"not met: {unmet_text}")
        else:
            conditions.set(FEASIBLE, True, Reason.TIERS_MET, "every tier has a configuration")
        failures = (answer.search.model_failures if answer.search is not None else None) or ()
        note = f"; the language model failed, seeds and local search decided: {failures[0]}" if failures else ""
        conditions.ready(Reason.PLAN_FOUND, summary + note)
    return ServingPlanStatus(
        conditions=conditions.done(),
        observed_generation=generation,
        summary=summary,
        input_digest=observed.digest,
        discovered=_discovered(observed),
        progress=answer.progress,
        selected=answer.selected or None,
        binding=answer.binding or None,
        mix=answer.mix,
        search=answer.search,
        result=ResultReference(
            config_map=render.result_name(observed.raw["metadata"]["name"], observed.digest), digest=observed.digest
        ),
        table=_table(observed),
        recommended_harvests=answer.recommended_harvests or None,
        provenance=answer.provenance,
    )


def _unserved_of_others(observed: Observed, answer: convert.PlanAnswer) -> list[str]:
    """Demands of other models that the mix does not serve whole; those of the plan's own are among its bindings."""
    plan = observed.plan
    own = plan.spec.model.name if plan is not None else None
    allocations = answer.mix.allocations if answer.mix is not None and own is not None else ()
    return [f"{a.model} {a.tier}: {a.unserved}" for a in allocations if a.unserved and a.model != own]


def _table(observed: Observed) -> str | None:
    plan = observed.plan
    if plan is None or plan.spec.results is None:
        return None
    return f"{plan.spec.results.claim.claim_name}/{search_job.table_folder(plan, observed.digest)}"


def _stalled(observed: Observed, conditions: Conditions, generation: int, finding: checks.Finding) -> ServingPlanStatus:
    if finding.reason in _ANCHOR_REASONS:
        conditions.set(ANCHORS_RESOLVED, False, finding.reason, finding.message)
    if finding.reason is Reason.INFEASIBLE:
        conditions.set(FEASIBLE, False, finding.reason, finding.message)
    if finding.reason in _ANCHOR_REASONS and observed.harvests:
        # Not stalled: the anchor comes by itself, and wakes the plan; so does the end of a harvest that fails.
        harvests = ", ".join(observed.harvests)
        conditions.working(Reason.WAITING_FOR_HARVEST, f"no anchor yet; waiting for AnchorHarvest {harvests}")
    else:
        conditions.stalled(finding.reason, finding.message)
    return _status(observed, conditions, generation)


def _status(observed: Observed, conditions: Conditions, generation: int, *, progress: Any = None) -> ServingPlanStatus:
    return ServingPlanStatus(
        conditions=conditions.done(),
        observed_generation=generation,
        input_digest=observed.digest or None,
        discovered=_discovered(observed),
        progress=progress,
    )


def _discovered(observed: Observed) -> DiscoveredNodes | None:
    nodes = observed.nodes
    return DiscoveredNodes(nodes=nodes.nodes_count, gpus_per_node=nodes.gpus_per_node) if nodes is not None else None


def _progress(observed: Observed, computation: Computation | None) -> Any:
    if observed.search is not None:
        return searching.progress(observed.search)
    return convert.plan_progress(computation.progress) if computation is not None and computation.progress else None
