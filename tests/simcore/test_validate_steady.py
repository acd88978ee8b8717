"""Closed loops in closed form: hand calculations and limits."""

from __future__ import annotations

import numpy as np
import pytest

from simcore.cards.layout import Engine
from simcore.des.closed_loop import closed_loop as simulate
from simcore.des.config import SchedulerConfig
from simcore.errors import DomainError
from simcore.prediction.steady import closed_loop, first_wave_factor, two_pools
from simcore.stepcost.table import StepTable


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


@pytest.mark.parametrize("engine", list(Engine))
@pytest.mark.parametrize(("clients", "prompt"), [(4, 1024), (32, 1024), (32, 8192), (128, 8192)])
def test_agrees_with_the_simulator_on_the_means(engine: Engine, clients: int, prompt: int) -> None:
    """Drawn lengths, ten requests per client, step 10 ms + 50 us b, prefill 22 us/token: T and TPOT within 4 %."""
    requests = 10 * clients
    random = np.random.default_rng(7)
    prompts = random.integers(round(0.8 * prompt), prompt, requests, endpoint=True)
    outputs = random.integers(820, 1024, requests, endpoint=True)
    steps = np.array([0, *(round((10e-3 + 50e-6 * batch) * 1e12) for batch in range(1, clients + 1))], dtype=np.int64)
    none = np.zeros(clients + 1, np.int64)
    table = StepTable(steps, none, none, 0, 0, 22_000_000, 0, 0)
    run = simulate(
        table, SchedulerConfig(engine, 1024, 16384, 16384, 1 << 40), concurrency=clients, requests=requests,
        prompt_tokens=prompts, output_tokens=outputs,
    )  # fmt: skip
    loop = closed_loop(
        clients=clients, running_cap=1e9, output_tokens=float(outputs.mean()), step_s=10e-3 + 50e-6 * clients,
        prefill_s=22e-6 * float(prompts.mean()), host_s=0.0, wait_s=run.mean_ttft_s,
    )  # fmt: skip
    assert loop.request_s == pytest.approx(run.mean_e2e_s, rel=0.04)
    assert loop.tpot_s == pytest.approx(run.mean_tpot_s, rel=0.04)
