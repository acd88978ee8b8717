"""The mix over a fleet: by hand, against brute force, within its bounds."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simcore.errors import InputError
from simcore.mix.problem import Fleet, Option, Slot
from simcore.mix.solve import plan_mix

SMALL = Option("TP1", 1, 100.0)
LARGE = Option("TP4", 4, 450.0)


def slot(model: str, demand: float, *options: Option, tier: str = "bulk") -> Slot:
    return Slot(model, tier, demand, options)


def test_by_hand() -> None:
    """900 tokens/s: nine narrow replicas take 9 GPUs, two wide ones 8. 100 more for the other model: one narrow."""
    fleet = Fleet((slot("a", 900.0, SMALL, LARGE), slot("b", 100.0, SMALL, LARGE)), 16)
    mix = plan_mix(fleet)
    assert [(a.option.label, a.replicas_count) for a in mix.allocations if a.option] == [("TP4", 2), ("TP1", 1)]
    assert mix.gpus_count == 9
    assert mix.is_complete
    assert mix.binding(fleet) == {}


def test_the_budget_binds_and_is_named() -> None:
    """4 GPUs: one wide replica serves 450 of model a; narrow ones serve 400 and would leave as much undone."""
    fleet = Fleet((slot("a", 900.0, SMALL, LARGE), slot("b", 100.0, SMALL)), 4)
    mix = plan_mix(fleet)
    assert mix.served_tokens_per_s == pytest.approx(450.0)
    assert mix.gpus_count == 4
    assert "gpu-budget" in mix.binding(fleet)["a", "bulk"]


def test_a_tier_without_options_is_named_and_the_others_are_served() -> None:
    fleet = Fleet((slot("a", 10.0, tier="realtime"), slot("a", 100.0, SMALL)), 8)
    mix = plan_mix(fleet)
    assert not mix.is_complete
    assert mix.binding(fleet) == {("a", "realtime"): "tier: no configuration keeps its limits"}
    assert mix.gpus_count == 1


def test_equal_options_fall_to_the_first_in_the_list() -> None:
    first, second = Option("first", 2, 100.0), Option("second", 2, 100.0)
    for options in ((first, second), (second, first)):
        assert plan_mix(Fleet((slot("a", 150.0, *options),), 8)).allocations[0].option is options[0]


def test_bad_input_is_refused() -> None:
    for wrong in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(InputError):
            Option("x", 1, wrong)
    with pytest.raises(InputError):
        Option("x", 0, 1.0)
    with pytest.raises(InputError):
        slot("a", math.nan, SMALL)
    with pytest.raises(InputError):
        slot("a", 1.0, SMALL, SMALL)
    with pytest.raises(InputError):
        Fleet((slot("a", 1.0, SMALL), slot("a", 2.0, SMALL)), 8)
    with pytest.raises(InputError):
        Fleet((), 8)
    with pytest.raises(InputError):
        Fleet((slot("a", 1.0, SMALL),), -1)


OPTIONS = st.builds(
    lambda number, gpus, capacity: Option(f"o{number}", gpus, float(capacity)),
    st.integers(0, 99),
    st.integers(1, 5),
    st.integers(1, 60),
)
FLEETS = st.builds(
    lambda slots, budget: Fleet(
        tuple(Slot(f"m{at}", "t", float(demand), tuple(options)) for at, (demand, options) in enumerate(slots)), budget
    ),
    st.lists(
        st.tuples(st.integers(0, 120), st.lists(OPTIONS, max_size=3, unique_by=lambda option: option.label)),
        min_size=1,
        max_size=3,
    ),
    st.integers(0, 12),
)


def brute_force(fleet: Fleet) -> tuple[float, int]:
    """(most served, fewest GPUs that serve it), by trying everything."""
    choices = []
    for one in fleet.slots:
        found = [(0.0, 0)]
        for option in one.options:
            for count in range(1, fleet.gpu_budget_count // option.gpus_count + 1):
                served = min(one.demand_tokens_per_s, count * option.capacity_tokens_per_s)
                found.append((served, count * option.gpus_count))
        choices.append(found)
    best = (0.0, 0)
    for chosen in itertools.product(*choices):
        served, gpus = sum(item[0] for item in chosen), sum(item[1] for item in chosen)
        if gpus <= fleet.gpu_budget_count and (served, -gpus) > (best[0], -best[1]):
            best = (served, gpus)
    return best


@given(FLEETS)
def test_equals_brute_force(fleet: Fleet) -> None:
    mix = plan_mix(fleet)
    served, gpus = brute_force(fleet)
    assert mix.served_tokens_per_s == pytest.approx(served, abs=1e-6)
    assert mix.gpus_count == gpus


@given(FLEETS)
def test_budget_demand_and_linear_bound_hold(fleet: Fleet) -> None:
    mix = plan_mix(fleet)
    assert mix.gpus_count <= fleet.gpu_budget_count
    assert mix.served_tokens_per_s <= mix.bound_tokens_per_s * (1 + 1e-6) + 1e-6
    assert all(item.served_tokens_per_s <= item.slot.demand_tokens_per_s for item in mix.allocations)
    assert {item.slot.key for item in mix.allocations} == {one.key for one in fleet.slots}


@settings(max_examples=30)
@given(FLEETS, st.integers(2, 4))
def test_scaling_demand_and_budget_together_serves_at_least_as_much_of_it(fleet: Fleet, times: int) -> None:
    larger = Fleet(
        tuple(Slot(s.model, s.tier, times * s.demand_tokens_per_s, s.options) for s in fleet.slots),
        times * fleet.gpu_budget_count,
    )
    assert plan_mix(larger).served_tokens_per_s >= times * plan_mix(fleet).served_tokens_per_s * (1 - 1e-6) - 1e-6


@settings(max_examples=30)
@given(FLEETS, st.randoms(use_true_random=False))
def test_the_order_of_slots_is_irrelevant(fleet: Fleet, random: object) -> None:
    shuffled = list(fleet.slots)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert plan_mix(Fleet(tuple(shuffled), fleet.gpu_budget_count)) == plan_mix(fleet)


@settings(max_examples=30)
@given(FLEETS)
def test_a_larger_budget_never_serves_less(fleet: Fleet) -> None:
    larger = Fleet(fleet.slots, fleet.gpu_budget_count + 1)
    assert plan_mix(larger).served_tokens_per_s >= plan_mix(fleet).served_tokens_per_s - 1e-6
