"""Several tiers, and models, on one GPU budget: each is swept alone, then an integer program shares the GPUs. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from inferasim_operator import plan_document
from inferasim_operator.api.v1alpha1.servingplan import Demand, ServingPlanSpec
from inferasim_operator.plan_question import Prepared
from simcore.errors import InputError
from simcore.mix.problem import Allocation, Fleet, Mix, Slot, candidates_of, option_of
from simcore.mix.solve import plan_mix
from simcore.search.plan import Answer, Candidate
from simcore.search.tiers import Tier, TierChoice, default_rule, default_tiers, headroom_frac

Sweep = Callable[[Mapping[str, Any]], tuple[Prepared, Answer]]
OWN_MODEL = "config.json"
"""How the plan's own model is named where it has no built-in card."""


@dataclass(frozen=True)
class _Swept:
    """One model under one workload: its sweep, and the choice of one tier."""

    prepared: Prepared
    answer: Answer
    choice: TierChoice
    is_own: bool


def compute(request: Mapping[str, Any], spec: ServingPlanSpec, sweep: Sweep) -> dict[str, Any]:
    """The answer to a plan with demands. Raises InputError."""
    demands = spec.demands or ()
    own = spec.model.name or OWN_MODEL
    tiers = [tier.to_dict() for tier in spec.tiers or ()] or [_stated(tier) for tier in default_tiers()]
    known = [tier["name"] for tier in tiers]
    for number, demand in enumerate(demands):
        if demand.tier not in known:
            raise InputError(f"demands[{number}].tier", demand.tier, f"be one of {', '.join(known)}")
    if all((demand.model or own) != own for demand in demands):
        raise InputError("demands", own, "hold at least one of the plan's own model")
    swept: dict[tuple[str, str], _Swept] = {}
    slots: list[Slot] = []
    for part, members in _parts(request, tiers, demands):
        prepared, answer = sweep(part)
        choices = {choice.tier.name: choice for choice in answer.choices}
        for demand in members:
            model = demand.model or own
            choice = choices[demand.tier]
            swept[model, demand.tier] = _Swept(prepared, answer, choice, model == own)
            options = tuple(option_of(candidate) for candidate in candidates_of(answer, choice))
            slots.append(Slot(model, demand.tier, float(demand.tokens_per_second), options))
    own_sweeps = [item for item in swept.values() if item.is_own]
    budget_count = own_sweeps[0].prepared.question.gpu_budget_count
    fleet = Fleet(tuple(slots), budget_count)
    return _document(fleet, plan_mix(fleet), swept, own_sweeps[0])


def _parts(
    request: Mapping[str, Any], tiers: list[dict[str, Any]], demands: tuple[Demand, ...]
) -> list[tuple[dict[str, Any], list[Demand]]]:
    """A question for each model and workload, with the tiers demanded of them alone."""
    raw = dict(request["spec"])
    groups: dict[str, list[Demand]] = {}
    for demand in demands:
        key = json.dumps([demand.model, None if demand.workload is None else demand.workload.to_dict()], sort_keys=True)
        groups.setdefault(key, []).append(demand)
    parts = []
    for members in groups.values():
        first, asked = members[0], {member.tier for member in members}
        spec = {name: value for name, value in raw.items() if name != "demands"}
        spec["tiers"] = [tier for tier in tiers if tier["name"] in asked]
        if first.model is not None:
            spec["model"] = {"name": first.model}
        if first.workload is not None:
            spec["workload"] = first.workload.to_dict()
        parts.append(({**request, "spec": spec}, members))
    return parts


def _stated(tier: Tier) -> dict[str, Any]:
    """A default tier as a spec would write it."""
    return {key: value for key, value in plan_document.tier_document(tier).items() if value is not None}


def _document(fleet: Fleet, mix: Mix, swept: Mapping[tuple[str, str], _Swept], base: _Swept) -> dict[str, Any]:
    document = plan_document.document_of(base.prepared, base.answer)
    unserved = mix.binding(fleet)
    selected, binding, allocations = [], [], []
    for allocation in mix.allocations:
        item = swept[allocation.slot.key]
        candidate = _deployed(allocation, item)
        allocations.append(_allocation(allocation, candidate, item, unserved.get(allocation.slot.key)))
        if not item.is_own:
            continue
        if candidate is not None:
            rule = item.prepared.question.rule or default_rule()
            room = headroom_frac(candidate, item.choice.tier, rule)
            found = plan_document.selection(candidate, replace(item.choice, headroom_frac=room), item.prepared)
            found["reason"] = _reason(allocation, mix)
            selected.append(found)
        if item.choice.binding is not None:
            binding.append(plan_document.binding_of(item.answer, item.choice, item.prepared))
        elif allocation.slot.key in unserved:
            limit, _, detail = unserved[allocation.slot.key].partition(": ")
            binding.append({"tier": allocation.slot.tier, "limit": limit, "detail": detail})
    demand = sum(slot.demand_tokens_per_s for slot in fleet.slots)
    return document | {
        "feasible": bool(selected),
        "selected": selected,
        "binding": binding,
        "mix": {
            "gpuBudget": fleet.gpu_budget_count,
            "gpus": mix.gpus_count,
            "demandTokensPerSecond": round(demand),
            "servedTokensPerSecond": round(mix.served_tokens_per_s),
            "boundTokensPerSecond": round(mix.bound_tokens_per_s),
            "allocations": allocations,
        },
    }


def _deployed(allocation: Allocation, item: _Swept) -> Candidate | None:
    """The replicas that a slot gets, each at the load it was predicted for."""
    if allocation.option is None:
        return None
    one = next(c for c in candidates_of(item.answer, item.choice) if option_of(c) == allocation.option)
    count = allocation.replicas_count
    return replace(
        one,
        replicas_count=count,
        concurrency=count * (one.prediction.concurrency or 1),
        throughput_tokens_per_s=count * one.prediction.throughput_tokens_per_s,
    )


def _allocation(
    allocation: Allocation, candidate: Candidate | None, item: _Swept, unserved: str | None
) -> dict[str, Any]:
    slot = allocation.slot
    document: dict[str, Any] = {
        "model": slot.model,
        "tier": slot.tier,
        "demandTokensPerSecond": round(slot.demand_tokens_per_s),
        "servedTokensPerSecond": round(allocation.served_tokens_per_s),
        "gpus": allocation.gpus_count,
    }
    if candidate is not None:
        document["configuration"] = plan_document.configuration(candidate, item.prepared)
        document["predicted"] = plan_document.predicted(candidate)
    if unserved is not None:
        binding = item.choice.binding
        document["unserved"] = unserved if binding is None else f"{binding.limit}: {binding.detail}"
    return document


def _reason(allocation: Allocation, mix: Mix) -> str:
    slot = allocation.slot
    return (
        f"serves {allocation.served_tokens_per_s:.0f} of the {slot.demand_tokens_per_s:.0f} tok/s demanded with "
        f"{allocation.gpus_count} of the mix's {mix.gpus_count} GPUs"
    )
