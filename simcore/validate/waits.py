"""How many prefills a mean TTFT holds: the simulator's answer for one layout's steps, scheduler and traffic.

Who waits for whom depends on the scheduler and on how lengths are drawn, and no closed form knows it well: equal
lengths keep clumps together under SGLang and ATOM, and spread them under vLLM. The light simulator runs the benchmark:
ten requests per client, all starting at once, lengths drawn as the client drew them, a fixed seed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from simcore.cards.layout import Engine
from simcore.des.closed_loop import closed_loop
from simcore.des.config import SchedulerConfig
from simcore.errors import UnknownNameError
from simcore.prediction.engines import engine_defaults
from simcore.prediction.steady import ROUNDS
from simcore.stepcost.table import StepTable
from simcore.units import PS_PER_S
from simcore.validate.layout_fit import Prefill

SEED = 20261130
MAX_CLIENTS = 1024
"""More clients wait in the same proportions; the run is scaled from here."""
ROOM_TOKENS = 1 << 40
"""Capacity is priced apart (`Capacity`); here nobody waits for a place."""


@dataclass(frozen=True)
class Traffic:
    """A closed loop as a benchmark client drives it."""

    clients: int
    prompt_tokens: int
    """Nominal."""
    output_tokens: int
    range_ratio: float
    """Lengths are drawn from [r L, L]; 1 = all equal."""


def simulated_waits(
    engine: str, traffic: Traffic, *, step_s: Callable[[float], float], prefill: Prefill, shared_frac: float
) -> float:
    """Mean TTFT of the run over the prefill of one mean prompt; the host's part is not in it.

    `step_s(b)` is the decode step of b requests at the run's mean context; `shared_frac` of F is not paid again when a
    prefill rides in a decode step.
    """
    clients = min(traffic.clients, MAX_CLIENTS)
    requests = ROUNDS * clients
    random = np.random.default_rng([SEED, clients, traffic.prompt_tokens, traffic.output_tokens])
    prompts, outputs = (
        random.integers(max(round(traffic.range_ratio * length), 1), length, requests, endpoint=True)
        for length in (traffic.prompt_tokens, traffic.output_tokens)
    )
    run = closed_loop(
        _table(clients, step_s, prefill, shared_frac),
        _scheduler(engine),
        concurrency=clients,
        requests=requests,
        prompt_tokens=prompts,
        output_tokens=outputs,
    )
    waits = run.mean_ttft_s / prefill.seconds(float(prompts.mean()))
    return max(waits, 0.5) * (traffic.clients / clients)


def _table(clients: int, step_s: Callable[[float], float], prefill: Prefill, shared_frac: float) -> StepTable:
    marks = np.unique(np.round(np.geomspace(1, clients, 12)).astype(np.int64))
    steps = np.interp(np.arange(clients + 1), marks, [step_s(float(batch)) for batch in marks])
    steps[0] = 0.0
    none = np.zeros(clients + 1, np.int64)
    return StepTable(
        decode_base_ps=np.rint(steps * PS_PER_S).astype(np.int64),
        decode_context_ps_per_token=none,
        decode_window_ps_per_token=none,
        window_tokens=0,
        prefill_fixed_ps=round(prefill.fixed_s * PS_PER_S),
        prefill_ps_per_token=round(prefill.s_per_token * PS_PER_S),
        prefill_ps_per_token2=round(prefill.s_per_token2 * PS_PER_S),
        mixed_shared_ps=round(shared_frac * prefill.fixed_s * PS_PER_S),
    )


def known_engine(name: str) -> Engine | None:
    """The engine called `name`, or None: tables hold engines that are not planned for."""
    try:
        return Engine.parse(name)
    except UnknownNameError:
        return None


def _scheduler(engine: str) -> SchedulerConfig:
    """The engine's defaults without its caps. An unknown engine schedules as vLLM."""
    known = known_engine(engine) or Engine.VLLM
    defaults = engine_defaults(known)
    return SchedulerConfig(
        known, MAX_CLIENTS, defaults.max_batched_tokens, defaults.chunk_tokens, ROOM_TOKENS, defaults.block_tokens
    )
