"""Transfer over width: the same width changes nothing, the path is irrelevant, the limits are Eq. 1 and halving."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simcore.errors import DomainError
from simcore.laws.batch import padded_batch
from simcore.laws.width import (
    decode_transfer,
    decode_transfer_split,
    ideal_shrink,
    measured_shrink,
    prefill_transfer,
    prefill_transfer_communicating,
    serial_from_two_widths,
    serial_parallel,
    shrink_at,
)
from tests.law_strategies import TIME, WIDTH, decode, rising, split_decode

CLOSE = {"rel": 1e-12, "abs": 1e-15}


@given(decode())
def test_same_width_changes_nothing(drawn: dict[str, float]) -> None:
    assert decode_transfer(**{**drawn, "shrink_factor": 1.0}) == pytest.approx(drawn["step_s"], **CLOSE)
    assert prefill_transfer(step_s=drawn["step_s"], fixed_s=drawn["floor_s"], shrink_factor=1.0) == pytest.approx(
        drawn["step_s"], **CLOSE
    )


@given(split_decode())
def test_same_width_changes_nothing_in_the_split(drawn: dict[str, float]) -> None:
    same = {
        **drawn,
        "weight_shrink_factor": 1.0,
        "excess_shrink_factor": 1.0,
        "collective_to_s": drawn["collective_from_s"],
    }
    assert decode_transfer_split(**same) == pytest.approx(drawn["step_s"], **CLOSE)


@given(decode())
def test_split_without_weights_and_collectives_is_equation_1(drawn: dict[str, float]) -> None:
    nothing = {"weight_s": 0.0, "collective_from_s": 0.0, "collective_floor_from_s": 0.0, "collective_to_s": 0.0}
    split = decode_transfer_split(
        step_s=drawn["step_s"],
        floor_s=drawn["floor_s"],
        weight_shrink_factor=0.5,
        excess_shrink_factor=drawn["shrink_factor"],
        **nothing,
    )
    assert split == pytest.approx(decode_transfer(**drawn), **CLOSE)


@given(st.tuples(TIME, TIME))
def test_split_of_pure_weight_reading_is_plain_division(parts: tuple[float, float]) -> None:
    weight, excess = parts
    step = weight + excess
    halved = decode_transfer_split(
        step_s=step,
        floor_s=weight,
        weight_s=weight,
        collective_from_s=0.0,
        collective_floor_from_s=0.0,
        collective_to_s=0.0,
        weight_shrink_factor=0.5,
        excess_shrink_factor=0.5,
    )
    assert halved == pytest.approx(step / 2, **CLOSE)


@given(decode(), WIDTH, WIDTH, WIDTH)
def test_an_intermediate_width_does_not_matter(drawn: dict[str, float], start: int, middle: int, end: int) -> None:
    def move(step_s: float, width_from: int, width_to: int) -> Any:
        rho = ideal_shrink(width_from=width_from, width_to=width_to)
        return decode_transfer(step_s=step_s, floor_s=drawn["floor_s"], shrink_factor=rho)

    direct = move(drawn["step_s"], start, end)
    # One rounding may put a step of (almost) no excess below its floor; the law would refuse it.
    via = move(max(move(drawn["step_s"], start, middle), drawn["floor_s"]), middle, end)
    assert via == pytest.approx(direct, rel=1e-9)


@given(split_decode(), st.tuples(TIME, TIME))
def test_an_intermediate_width_does_not_matter_in_the_split(
    drawn: dict[str, float], middle: tuple[float, float]
) -> None:
    """Half, then half again, with other collectives in between, equals a quarter at once."""
    at_floor, beyond = middle
    half = {"weight_shrink_factor": 0.5, "excess_shrink_factor": 0.5}
    quarter = {"weight_shrink_factor": 0.25, "excess_shrink_factor": 0.25}
    collectives = {"collective_from_s": at_floor + beyond, "collective_floor_from_s": at_floor}
    first = decode_transfer_split(**{**drawn, **half, "collective_to_s": at_floor + beyond})
    first_floor = decode_transfer_split(
        **{
            **drawn,
            **half,
            "step_s": drawn["floor_s"],
            "collective_from_s": drawn["collective_floor_from_s"],
            "collective_to_s": at_floor,
        }
    )
    via = decode_transfer_split(
        **{
            **drawn,
            **half,
            **collectives,
            "step_s": first,
            "floor_s": first_floor,
            "weight_s": drawn["weight_s"] / 2,
        }
    )
    assert via == pytest.approx(decode_transfer_split(**{**drawn, **quarter}), rel=1e-9)


@given(decode(), st.tuples(st.floats(0.1, 1.0), st.floats(0.1, 1.0)))
def test_wider_is_never_slower_and_never_below_the_floor(drawn: dict[str, float], pair: tuple[float, float]) -> None:
    small, large = sorted(pair)
    fast = decode_transfer(**{**drawn, "shrink_factor": small})
    slow = decode_transfer(**{**drawn, "shrink_factor": large})
    assert drawn["floor_s"] <= fast <= slow <= drawn["step_s"] * (1 + 1e-12)


@given(TIME, TIME, TIME, TIME)
def test_prefill_communication_alone_stays(fixed: float, work: float, before: float, after: float) -> None:
    step = fixed + work + before
    moved = prefill_transfer_communicating(
        step_s=step, fixed_s=fixed, communication_from_s=before, communication_to_s=after, shrink_factor=0.5
    )
    assert moved == pytest.approx(fixed + work / 2 + after, rel=1e-9)


@given(TIME, TIME)
def test_serial_part_is_found_again(serial: float, parallel: float) -> None:
    narrow = serial_parallel(serial_s=serial, parallel_s=parallel, width=4)
    wide = serial_parallel(serial_s=serial, parallel_s=parallel, width=8)
    found = serial_from_two_widths(narrow_step_s=narrow, wide_step_s=wide, narrow_width=4, wide_width=8)
    assert found == pytest.approx(serial, rel=1e-6, abs=1e-12)


@given(rising(1e-3, 1.0, 5), st.floats(0.5, 1.0))
def test_a_measured_shrink_reproduces_the_wider_sweep(steps: tuple[float, ...], rho: float) -> None:
    """Two sweeps that obey Eq. 1 with one rho give that rho back wherever the excess counts."""
    batches = np.array([1.0, 4.0, 16.0, 64.0, 256.0])
    half = np.array(steps)
    wide = half[0] + (half - half[0]) * rho
    at, curve = measured_shrink(
        batches=batches,
        half_width_step_s=half,
        width_step_s=wide,
        excess_floor_s=1e-3,
        low_factor=0.5,
        high_factor=1.0,
    )
    np.testing.assert_allclose(curve, rho, rtol=1e-6)
    assert np.all(half[np.isin(batches, at)] - half[0] >= 1e-3)
    if len(at):
        for batch in (1.0, 3.0, 1000.0):
            found = shrink_at(batch_requests=batch, curve_batch_requests=at, curve_factor=curve, doublings_count=2)
            assert found == pytest.approx(rho**2, rel=1e-6)


@given(st.integers(1, 600))
def test_padding_is_a_staircase(batch: int) -> None:
    sizes = np.array([1, 2, 4, *range(8, 513, 8)], dtype=np.float64)
    padded = float(padded_batch(batch_requests=float(batch), captured_requests=sizes))
    assert padded >= batch
    assert padded in sizes or batch > sizes[-1]
    assert padded_batch(batch_requests=padded, captured_requests=sizes) == padded
    assert padded_batch(batch_requests=float(batch), captured_requests=np.array([])) == batch


def test_steps_below_their_floor_are_refused() -> None:
    with pytest.raises(DomainError, match=r"`step_s` must be finite and at least 0\.01"):
        decode_transfer(step_s=0.009, floor_s=0.010, shrink_factor=0.5)


def test_weights_that_do_not_fit_the_floor_are_refused() -> None:
    with pytest.raises(DomainError, match="`constant_s`"):
        decode_transfer_split(
            step_s=0.02,
            floor_s=0.01,
            weight_s=0.011,
            collective_from_s=0.0,
            collective_floor_from_s=0.0,
            collective_to_s=0.0,
            weight_shrink_factor=0.5,
            excess_shrink_factor=0.5,
        )
