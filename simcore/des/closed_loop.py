"""The light path: one engine replica, C clients, known lengths. Search and fitting call it thousands of times."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simcore.des.config import Deployment, Pool, SchedulerConfig
from simcore.des.kernel import fields as f
from simcore.des.kernel import loop
from simcore.des.kernel.fields import Ints
from simcore.des.state import MAX_TOKENS, State
from simcore.errors import InfeasibleError, InputError, InternalError
from simcore.stepcost.table import StepTable
from simcore.units import PS_PER_S

NO_EDGES: Ints = np.zeros(0, np.int64)


@dataclass(frozen=True, eq=False)
class ClosedLoopRun:
    """What a closed-loop run measured: arrays in order of completion, host time of requests included."""

    ttft_s: NDArray[np.float64]
    """(requests,) from the moment the client sends."""
    queue_s: NDArray[np.float64]
    """(requests,) the part of TTFT before admission."""
    e2e_s: NDArray[np.float64]
    tpot_s: NDArray[np.float64]
    """(requests with more than one output token,)"""
    output_tokens: int
    duration_s: float
    """First send to last token."""
    mean_itl_s: float
    preemptions_count: int
    mean_batch: float
    """Decoding requests, averaged over decode steps."""
    peak_kv_frac: float
    """Of the rank that filled its pool most."""
    mean_kv_frac: float
    """Blocks in use, averaged over the run and all ranks."""
    decode_steps_count: int = 0
    """Steps in which a rank decoded."""
    mixed_steps_count: int = 0
    """Of these, steps in which a rank also prefilled: the same rank where the engine mixes, else another one."""

    @property
    def mean_ttft_s(self) -> float:
        return float(self.ttft_s.mean())

    @property
    def mean_e2e_s(self) -> float:
        return float(self.e2e_s.mean())

    @property
    def mean_tpot_s(self) -> float:
        """Mean over requests, each request equal; NaN when every request has one token."""
        return float(self.tpot_s.mean()) if len(self.tpot_s) else float("nan")

    @property
    def median_tpot_s(self) -> float:
        return float(np.median(self.tpot_s)) if len(self.tpot_s) else float("nan")

    @property
    def output_tokens_per_s(self) -> float:
        """Output tokens of the whole run over its duration, as benchmark clients state throughput."""
        return self.output_tokens / self.duration_s if self.duration_s > 0 else float("inf")


def _lengths(field: str, value: int | Ints, requests: int) -> Ints:
    lengths = np.asarray(value, dtype=np.int64)
    if lengths.ndim > 1 or (lengths.ndim == 1 and len(lengths) != requests):
        raise InputError(field, lengths.shape, f"be one length or {requests} of them")
    if lengths.min(initial=1) < 1 or lengths.max(initial=1) > MAX_TOKENS:
        raise InputError(field, int(lengths.min()), f"be from 1 to {MAX_TOKENS}")
    return lengths


def closed_loop(
    table: StepTable,
    scheduler: SchedulerConfig,
    *,
    concurrency: int,
    requests: int,
    prompt_tokens: int | Ints,
    output_tokens: int | Ints,
    attention_dp: int = 1,
    warmup_requests: int = 0,
) -> ClosedLoopRun:
    """`concurrency` clients send `requests` in all, each the next one when its last is answered; all start at once.

    Lengths are one number or one per request in sending order. The first `warmup_requests` to complete are left out of
    the latency arrays, not out of the throughput. No prefix cache, router or pools: those need `simulate`. Source:
    paper §3.4, App. A.1. Raises InputError, and InfeasibleError when a request does not fit the KV pool.
    """
    if not 1 <= concurrency <= 1 << 20:
        raise InputError("concurrency", concurrency, "be from 1 to 1048576")
    if not 1 <= requests <= 1 << 24:
        raise InputError("requests", requests, "be from 1 to 16777216")
    if not 0 <= warmup_requests < requests:
        raise InputError("warmup_requests", warmup_requests, "be less than `requests`")
    columns = np.zeros((requests, loop.LOAD_COLUMNS), np.int64)
    columns[:, loop.LOAD_PROMPT] = _lengths("prompt_tokens", prompt_tokens, requests)
    columns[:, loop.LOAD_OUTPUT] = _lengths("output_tokens", output_tokens, requests)
    columns[:, loop.LOAD_LEAF] = f.NONE
    columns[:, loop.LOAD_SESSION] = np.arange(requests)
    clients = min(concurrency, requests)
    state = State(Deployment(Pool(table, scheduler, attention_dp=attention_dp)), clients=clients, most_running=clients)
    state.add_slots(requests)
    sessions = state.add_sessions(requests)
    loop.load(state.m, columns, sessions, NO_EDGES, NO_EDGES, 0, np.empty(requests, np.int64))
    state.m[f.G_EXHAUSTED] = 1
    loop.start_clients(state.m, clients)
    reason = loop.advance(state.m)
    if reason == f.OVERTIME:
        raise InputError("requests", requests, f"end within {f.LATEST // PS_PER_S // 86_400} simulated days")
    if reason != f.DONE:
        raise InternalError(f"the simulator stopped for reason {reason} with {state.m[f.G_ACTIVE]} requests active")
    records = state.take_records()
    if np.any(records[:, f.O_STATUS] == f.REJECTED):
        raise InfeasibleError(
            "kv-pool",
            f"a request of {columns[:, loop.LOAD_PROMPT].max()}+{columns[:, loop.LOAD_OUTPUT].max()} tokens exceeds "
            f"the pool of {scheduler.kv_pool_tokens} tokens",
        )
    return _measure(state, records, warmup_requests)


def _measure(state: State, records: Ints, warmup: int) -> ClosedLoopRun:
    m = state.m
    kept = records[warmup:]
    host, arrival = kept[:, f.O_HOST], kept[:, f.O_ARRIVAL]
    first, finish = kept[:, f.O_FIRST], kept[:, f.O_FINISH]
    several = kept[:, f.O_OUTPUT] > 1
    tpot = (finish - first)[several] / (kept[several, f.O_OUTPUT] - 1)
    runs = state.rows(state.executor_at, state.executors, f.X_FIELDS)
    units = state.rows(state.units[0], len(state.units), f.U_FIELDS)
    duration_ps = int((records[:, f.O_FINISH] + records[:, f.O_HOST]).max())
    decode_steps = int(runs[:, f.X_COUNTER].sum())
    gaps = int(m[f.G_GAP_COUNT])
    return ClosedLoopRun(
        ttft_s=(first - arrival + host) / PS_PER_S,
        queue_s=(kept[:, f.O_ADMITTED] - arrival) / PS_PER_S,
        e2e_s=(finish - arrival + host) / PS_PER_S,
        tpot_s=tpot / PS_PER_S,
        output_tokens=int(records[:, f.O_OUTPUT].sum()),
        duration_s=duration_ps / PS_PER_S,
        mean_itl_s=state.gap_sum_ps / gaps / PS_PER_S if gaps else float("nan"),
        preemptions_count=int(records[:, f.O_PREEMPTIONS].sum()),
        mean_batch=int(runs[:, f.X_BATCH_STEPS].sum()) / decode_steps if decode_steps else 0.0,
        mean_kv_frac=_mean_kv_frac(units, duration_ps),
        peak_kv_frac=float((units[:, f.U_PEAK] / units[:, f.U_BLOCKS]).max()),
        decode_steps_count=decode_steps,
        # A step decodes, prefills or does both.
        mixed_steps_count=decode_steps + int((runs[:, f.X_PREFILL_STEPS] - runs[:, f.X_STEPS_TOTAL]).sum()),
    )


def _mean_kv_frac(units: Ints, duration_ps: int) -> float:
    held = units[:, f.U_HELD].copy().view(np.float64).sum()
    return float(held) / duration_ps / int(units[:, f.U_BLOCKS].sum()) if duration_ps else 0.0
