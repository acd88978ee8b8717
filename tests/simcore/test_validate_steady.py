"""Closed loops in closed form: hand calculations and limits."""

from __future__ import annotations

import pytest

from simcore.errors import DomainError
from simcore.predict.steady import closed_loop, first_wave_factor, two_pools


def test_one_client_is_prefill_then_decode() -> None:
    loop = closed_loop(clients=1, running_cap=8, output_tokens=101, step_s=0.01, prefill_s=0.1, host_s=0.0, wait_s=0.1)
    assert (loop.ttft_s, loop.tpot_s, loop.request_s) == pytest.approx((0.1, 0.01, 1.1))
    assert loop.requests_per_s == pytest.approx(1 / 1.1)


def test_every_client_is_prefilled_once_per_request() -> None:
    # 4 clients, P = 0.1 s, 100 gaps of 10 ms: T = 4 * 0.1 + 1.0; own prefill is TTFT, the other three stall decode.
    loop = closed_loop(clients=4, running_cap=8, output_tokens=101, step_s=0.01, prefill_s=0.1, host_s=0.0, wait_s=0.1)
    assert loop.request_s == pytest.approx(1.4)
    assert loop.tpot_s == pytest.approx(0.013)


def test_above_the_cap_the_rest_waits() -> None:
    # cap 4 of 8: service 1.4 s for four, so a request takes 2.8 s, half of it waiting; the step stays that of four.
    loop = closed_loop(clients=8, running_cap=4, output_tokens=101, step_s=0.01, prefill_s=0.1, host_s=0.0, wait_s=0.1)
    assert (loop.ttft_s, loop.tpot_s, loop.running) == pytest.approx((1.5, 0.013, 4))
    assert loop.requests_per_s == pytest.approx(4 / 1.4)


def test_first_wave() -> None:
    assert first_wave_factor(1) == 0.0
    assert first_wave_factor(101, rounds=10) == 5.0
    with pytest.raises(DomainError):
        first_wave_factor(0)


def test_two_pools_without_load_and_at_saturation() -> None:
    def step_s(_: float) -> float:
        return 0.01

    alone = two_pools(
        clients=1, decode_cap=64, output_tokens=101, step_s=step_s, prefill_s=0.2, prefill_replicas=1,
        host_s=0.05, first_wave=0.0,
    )  # fmt: skip
    assert (alone.ttft_s, alone.tpot_s) == pytest.approx((0.25, 0.01), rel=1e-3)
    full = two_pools(
        clients=64, decode_cap=64, output_tokens=101, step_s=step_s, prefill_s=0.2, prefill_replicas=1,
        host_s=0.05, first_wave=0.0,
    )  # fmt: skip
    assert full.requests_per_s == pytest.approx(1 / 0.2, rel=0.02)  # the prefill pool binds
    assert full.tpot_s == pytest.approx(0.01)
    double = two_pools(
        clients=64, decode_cap=64, output_tokens=101, step_s=step_s, prefill_s=0.2, prefill_replicas=2,
        host_s=0.05, first_wave=0.0,
    )  # fmt: skip
    assert double.requests_per_s == pytest.approx(2 / 0.2, rel=0.02)
