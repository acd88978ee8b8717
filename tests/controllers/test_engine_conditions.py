"""Setting conditions: polarity, order, transition times, repetition."""

from __future__ import annotations

import datetime

from hypothesis import given
from hypothesis import strategies as st

from inferasim_operator.api.v1alpha1.conditions import Condition
from inferasim_operator.engine.conditions import Conditions
from tests.conditions import problems

T0 = datetime.datetime(2026, 11, 30, 12, 0, 0, tzinfo=datetime.UTC)
STEPS = st.lists(st.sampled_from(["ready", "working", "stalled", "idle"]), min_size=1, max_size=6)


def _after(steps: list[str], live: tuple[Condition, ...] = (), *, hour: int = 0) -> tuple[Condition, ...]:
    conditions = Conditions(live, generation=3, now=T0 + datetime.timedelta(hours=hour))
    for step in steps:
        getattr(conditions, step)("Reason", f"  it is\n{step} ")
    return conditions.done()


@given(STEPS)
def test_any_order_obeys_the_rules(steps: list[str]) -> None:
    """Whatever was set before: Ready is there and first, Reconciling and Stalled are true, alone, and never with it."""
    found = _after(steps)
    status = {"conditions": [c.to_dict() for c in found], "observedGeneration": 3}
    assert problems(status, generation=3) == []


@given(STEPS)
def test_saying_the_same_again_changes_nothing(steps: list[str]) -> None:
    """An hour later the same words give the same bytes, so no write."""
    first = _after(steps)
    assert _after(steps, first, hour=1) == first


def test_transition_time_moves_with_the_status_only() -> None:
    """A new message keeps the time; a new status moves it."""
    first = _after(["working"])
    conditions = Conditions(first, generation=4, now=T0 + datetime.timedelta(hours=1))
    conditions.working("Other", "something else")
    ready, reconciling = conditions.done()
    assert ready.last_transition_time == reconciling.last_transition_time == "2026-11-30T12:00:00Z"
    assert (ready.message, ready.observed_generation) == ("something else", 4)
    conditions = Conditions(first, generation=4, now=T0 + datetime.timedelta(hours=1))
    conditions.ready("Done", "done")
    (ready,) = conditions.done()
    assert ready.last_transition_time == "2026-11-30T13:00:00Z"


def test_what_is_not_set_is_dropped_and_long_text_is_cut() -> None:
    """The list is recomputed at each pass; a message fits its field."""
    live = _after(["stalled"])
    conditions = Conditions(live, generation=3, now=T0)
    conditions.idle("Suspended", "x" * 5000)
    (ready,) = conditions.done()
    assert len(ready.message) == 4096
    assert ready.message.endswith("…")
