"""The mix as an integer program, in three steps: serve the most, with the fewest GPUs, by the preferred options."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array

from simcore.errors import InternalError
from simcore.mix.problem import Allocation, Fleet, Mix, Slot

Floats = NDArray[np.float64]
TOLERANCE = 1e-7
"""Relative room that a step leaves below the optimum of the one before; HiGHS solves to about 1e-9."""


@dataclass(frozen=True)
class _Variables:
    """Columns of the program: y (option is chosen), n (its replicas), u (served share of a slot's demand)."""

    slots: tuple[Slot, ...]
    slot_of: tuple[int, ...]
    """Slot of each (slot, option) pair."""
    rank_of: tuple[int, ...]
    """Place of the option in its slot's list."""
    gpus: Floats
    capacity: Floats
    most: Floats
    """Replicas that are ever useful: enough for the demand, within the budget."""
    demand: Floats

    @property
    def pairs_count(self) -> int:
        return len(self.slot_of)

    @property
    def columns_count(self) -> int:
        return 2 * self.pairs_count + len(self.slots)


def plan_mix(fleet: Fleet) -> Mix:
    """The mix that serves the most demand of `fleet` within its budget, with the fewest GPUs that do.

    One option per slot. Remaining ties fall to options listed first, so the result does not depend on the order of
    slots. The budget is a hard cap. Source: paper 4.1; several models on one budget are ours.
    """
    slots = tuple(sorted(fleet.slots, key=lambda slot: slot.key))
    variables = _variables(slots, fleet.gpu_budget_count)
    if not variables.pairs_count or not variables.demand.sum():
        return Mix(tuple(Allocation(slot, None, 0) for slot in slots), 0.0)
    rules = _rules(variables, fleet.gpu_budget_count)
    size, pairs = variables.columns_count, variables.pairs_count
    served, gpus, rank = np.zeros(size), np.zeros(size), np.zeros(size)
    served[2 * pairs :] = variables.demand / variables.demand.sum()
    gpus[pairs : 2 * pairs] = variables.gpus
    rank[:pairs] = variables.rank_of
    relaxed = _solve(-served, rules, variables, integral=False)
    best = _solve(-served, rules, variables)
    most = float(served @ best)
    if most >= 1.0 - TOLERANCE:
        # All of it: then of every slot, so that no small slot is given up within the tolerance of the whole.
        whole = np.eye(size)[2 * pairs :][variables.demand > 0]
        rules.append(LinearConstraint(whole, 1.0, np.inf))
    else:
        rules.append(LinearConstraint(served[None, :], most - TOLERANCE, np.inf))
    best = _solve(gpus, rules, variables)
    fewest = round(float(gpus @ best))
    rules.append(LinearConstraint(gpus[None, :], -np.inf, fewest))
    best = _solve(rank, rules, variables)
    mix = Mix(_allocations(variables, best), float(served @ relaxed) * float(variables.demand.sum()))
    if mix.gpus_count > fleet.gpu_budget_count:
        raise InternalError(f"the mix takes {mix.gpus_count} GPUs of {fleet.gpu_budget_count}")
    return mix


def _variables(slots: tuple[Slot, ...], budget: int) -> _Variables:
    pairs = [
        (at, rank, option)
        for at, slot in enumerate(slots)
        for rank, option in enumerate(slot.options)
        if slot.demand_tokens_per_s > 0 and option.gpus_count <= budget
    ]
    most = [
        min(math.ceil(slots[at].demand_tokens_per_s / option.capacity_tokens_per_s), budget // option.gpus_count)
        for at, _, option in pairs
    ]
    return _Variables(
        slots,
        tuple(at for at, _, _ in pairs),
        tuple(rank for _, rank, _ in pairs),
        np.array([float(option.gpus_count) for _, _, option in pairs]),
        np.array([option.capacity_tokens_per_s for _, _, option in pairs]),
        np.array(most, dtype=np.float64),
        np.array([slot.demand_tokens_per_s for slot in slots]),
    )


def _rules(variables: _Variables, budget: int) -> list[LinearConstraint]:
    """At most one option per slot; replicas only of the chosen one; served by its replicas; GPUs within the budget."""
    v, pairs, size = variables, variables.pairs_count, variables.columns_count
    at, slot = np.arange(pairs), np.array(v.slot_of)
    one = coo_array((np.ones(pairs), (slot, at)), shape=(len(v.slots), size))
    linked = coo_array(
        (np.concatenate([np.ones(pairs), -v.most]), (np.concatenate([at, at]), np.concatenate([pairs + at, at]))),
        shape=(pairs, size),
    )
    slots = np.arange(len(v.slots))
    # Shares of the demand, so that slots of very different sizes are scaled alike.
    scaled = v.capacity / v.demand[slot]
    supplied = coo_array(
        (
            np.concatenate([np.ones(len(slots)), -scaled]),
            (np.concatenate([slots, slot]), np.concatenate([2 * pairs + slots, pairs + at])),
        ),
        shape=(len(slots), size),
    )
    gpus = np.zeros(size)
    gpus[pairs : 2 * pairs] = v.gpus
    return [
        LinearConstraint(one.tocsr(), -np.inf, 1.0),
        LinearConstraint(linked.tocsr(), -np.inf, 0.0),
        LinearConstraint(supplied.tocsr(), -np.inf, 0.0),
        LinearConstraint(gpus[None, :], -np.inf, float(budget)),
    ]


def _solve(cost: Floats, rules: list[LinearConstraint], variables: _Variables, *, integral: bool = True) -> Floats:
    pairs, slots = variables.pairs_count, len(variables.slots)
    kinds = np.zeros(variables.columns_count, dtype=np.int64)
    kinds[: 2 * pairs] = int(integral)
    upper = np.concatenate([np.ones(pairs), variables.most, np.ones(slots)])
    found = milp(cost, integrality=kinds, bounds=Bounds(0.0, upper), constraints=rules, options={"mip_rel_gap": 0.0})
    if found.x is None:
        raise InternalError(f"the mix has no solution: {found.message}")
    return np.asarray(found.x)


def _allocations(variables: _Variables, solution: Floats) -> tuple[Allocation, ...]:
    replicas = np.rint(solution[variables.pairs_count : 2 * variables.pairs_count]).astype(int)
    found = {}
    for pair in np.flatnonzero(replicas):
        slot = variables.slots[variables.slot_of[pair]]
        found[slot.key] = Allocation(slot, slot.options[variables.rank_of[pair]], int(replicas[pair]))
    return tuple(found.get(slot.key, Allocation(slot, None, 0)) for slot in variables.slots)
