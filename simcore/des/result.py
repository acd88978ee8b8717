"""What a simulation says: per-request records, distributions, rates, and where time and memory went."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import numpy as np
from numpy.typing import NDArray

from simcore.des.config import Deployment
from simcore.des.kernel import fields as f
from simcore.des.kernel.clock import GAP_BINS, gap_floor_ns
from simcore.des.kernel.fields import Ints
from simcore.des.state import State
from simcore.errors import InputError
from simcore.units import NS_PER_S, PS_PER_NS, PS_PER_S

SAMPLES_FOR: Final = {"p90_s": 10, "p99_s": 100, "p999_s": 1000}
"""A tail is stated only when the sample holds it (public case E08: no p99 from fewer than 100 requests)."""


class Record(StrEnum):
    """How much of a run is kept."""

    SUMMARY = "summary"
    """Histograms only: memory does not grow with the number of requests; quantiles to 0.2 %."""
    REQUESTS = "requests"
    """One record per request; quantiles exact."""
    TIMELINE = "timeline"
    """And one row per run of steps."""


_LEVELS: Final = {"p90_s": 0.9, "p99_s": 0.99, "p999_s": 0.999}


def _quantile(ordered: NDArray[np.float64], level: float) -> float:
    """As `np.quantile` to the last bit, without its half a millisecond for the kinds of arrays it knows."""
    place = level * (len(ordered) - 1)
    below = int(place)
    low, high, share = float(ordered[below]), float(ordered[min(below + 1, len(ordered) - 1)]), place - below
    return low + (high - low) * share if share < 0.5 else high - (high - low) * (1.0 - share)


@dataclass(frozen=True)
class Distribution:
    """A latency over the sample; None where the sample is too small to say."""

    count: int
    mean_s: float | None
    median_s: float | None
    p90_s: float | None
    p99_s: float | None
    p999_s: float | None

    @classmethod
    def of(cls, values_s: NDArray[np.float64]) -> Distribution:
        """Exact distribution of `values_s` (samples,); quantiles by linear interpolation, as benchmark clients do."""
        count = len(values_s)
        if count == 0:
            return cls(0, None, None, None, None, None)
        ordered = np.sort(values_s)
        half = (count - 1) // 2
        median_s = float((ordered[half] + ordered[count // 2]) / 2)
        tails = {
            name: _quantile(ordered, level) if count >= SAMPLES_FOR[name] else None for name, level in _LEVELS.items()
        }
        return cls(count, float(values_s.mean()), median_s, **tails)

    @classmethod
    def of_histogram(cls, counts: Ints, total_ps: int) -> Distribution:
        """Distribution of a kernel histogram of nanoseconds: exact mean, quantiles to 0.2 %."""
        count = int(counts.sum())
        if count == 0:
            return cls(0, None, None, None, None, None)
        cumulative = np.cumsum(counts)

        def quantile(level: float) -> float:
            at = int(np.searchsorted(cumulative, level * (count - 1), side="right"))
            low = gap_floor_ns_python(at)
            return (low + gap_floor_ns_python(at + 1) - 1) / 2 / NS_PER_S

        tails = {name: quantile(level) if count >= SAMPLES_FOR[name] else None for name, level in _LEVELS.items()}
        return cls(count, total_ps / count / PS_PER_S, quantile(0.5), **tails)


def gap_floor_ns_python(index: int) -> int:
    """`gap_floor_ns` for callers outside the kernel."""
    function = getattr(gap_floor_ns, "py_func", gap_floor_ns)
    return int(function(index))


def _bins(values_ns: Ints) -> Ints:
    """Histogram bins of nanoseconds, as `kernel.clock.gap_bin` gives them. (samples,) to (samples,)."""
    bits = 9
    shift = np.maximum(np.frexp(values_ns.astype(np.float64))[1] - bits - 1, 0).astype(np.int64)
    bins: Ints = (shift << bits) + (values_ns >> shift)
    return bins


@dataclass(frozen=True, eq=False)
class Records:
    """One row per request in order of completion; times in nanoseconds of the simulated clock."""

    index: Ints
    rejected: NDArray[np.bool_]
    arrival_ns: Ints
    admitted_ns: Ints
    first_token_ns: Ints
    finish_ns: Ints
    host_ns: Ints
    """Host time that adds to TTFT and end-to-end latency."""
    prompt_tokens: Ints
    output_tokens: Ints
    hit_tokens: Ints
    """Prompt tokens found in the prefix cache, host tier included."""
    host_hit_tokens: Ints
    blocks: Ints
    hit_blocks: Ints
    host_hit_blocks: Ints
    unit: Ints
    """Attention-DP rank that decoded, counted over all replicas and pools; -1 if rejected."""
    prefill_unit: Ints
    preemptions: Ints

    def __len__(self) -> int:
        return len(self.index)


@dataclass(frozen=True)
class UnitResult:
    """One attention-DP rank."""

    pool: str
    replica: int
    rank: int
    requests_count: int
    hit_rate: float | None
    """Prompt tokens found in either tier over all prompt tokens."""
    host_hit_rate: float | None
    preemptions_count: int
    evictions_count: int
    kv_blocks: int
    peak_kv_blocks: int
    mean_kv_blocks: float
    """In use by requests, averaged over the time of the run; cached blocks that nobody uses are free."""


@dataclass(frozen=True)
class ReplicaResult:
    """One engine replica."""

    pool: str
    replica: int
    busy_frac: float
    """Share of the run in which a step was under way (mean over pipeline lanes)."""
    steps_count: int
    prefill_steps_count: int
    mean_batch: float


@dataclass(frozen=True, eq=False)
class SimulationResult:
    """The outcome of one run. Latencies include host time; TPOT = (E2E - TTFT)/(output tokens - 1), per request."""

    completed_count: int
    rejected_count: int
    duration_s: float
    """First arrival to last token, host time included."""
    prompt_tokens: int
    output_tokens: int
    gpus_count: int
    ttft: Distribution
    """From arrival, as users see it."""
    ttft_from_admission: Distribution
    """From admission, as an engine's own benchmark states it."""
    tpot: Distribution
    itl: Distribution
    """Gap between two visible chunks; a speculative step is one chunk of several tokens. Warm-up included."""
    e2e: Distribution
    queue: Distribution
    """Arrival to admission."""
    prefill: Distribution
    """Admission to first token: loads, prefill, hand-off."""
    decode: Distribution
    """First token to last."""
    hit_rate: float | None
    hbm_hit_rate: float | None
    host_hit_rate: float | None
    block_hit_rate: float | None
    """Prompt blocks found over prompt blocks asked; None when prompts have no blocks."""
    preemptions_count: int
    peak_active_requests: int
    units: tuple[UnitResult, ...]
    replicas: tuple[ReplicaResult, ...]
    records: Records | None
    timeline: Ints | None
    """(runs, 7): executor, start ps, end ps, steps, decoding requests, new prompt tokens, KV blocks in use."""
    gap_counts: Ints
    """Histogram behind `itl`."""

    @property
    def peak_kv_frac(self) -> float:
        """Of the rank that filled its pool most."""
        return max(unit.peak_kv_blocks / unit.kv_blocks for unit in self.units)

    @property
    def mean_kv_frac(self) -> float:
        """KV blocks in use, averaged over time and over the blocks of all ranks."""
        return sum(unit.mean_kv_blocks for unit in self.units) / sum(unit.kv_blocks for unit in self.units)

    @property
    def requests_per_s(self) -> float:
        return self.completed_count / self.duration_s if self.duration_s > 0 else 0.0

    @property
    def output_tokens_per_s(self) -> float:
        return self.output_tokens / self.duration_s if self.duration_s > 0 else 0.0

    @property
    def output_tokens_per_s_per_gpu(self) -> float:
        return self.output_tokens_per_s / self.gpus_count

    @property
    def total_tokens_per_s_per_gpu(self) -> float:
        """Prompt and output tokens, as InferenceX states throughput per GPU."""
        whole = self.output_tokens + self.prompt_tokens
        return whole / self.duration_s / self.gpus_count if self.duration_s > 0 else 0.0


_LATENCIES: Final = ("ttft", "ttft_from_admission", "tpot", "e2e", "queue", "prefill", "decode")


class Collector:
    """Takes finished requests out of the kernel and sums them up."""

    def __init__(self, deployment: Deployment, state: State, record: Record, warmup_requests: int) -> None:
        if warmup_requests < 0:
            raise InputError("warmup_requests", warmup_requests, "not be negative")
        self._deployment, self._state, self._record = deployment, state, record
        self._skip = warmup_requests
        self._rows: list[Ints] = []
        self._spans: list[Ints] = []
        self._counts = {name: np.zeros(GAP_BINS, np.int64) for name in _LATENCIES}
        self._sums = dict.fromkeys(_LATENCIES, 0)
        self._totals = np.zeros(f.O_FIELDS, np.int64)
        self._first_arrival, self._last_seen = f.NEVER, 0
        self._per_unit = np.zeros((len(state.units), 4), np.int64)
        self.requests_count = 0

    def take(self) -> None:
        """Collect what has finished since the last call."""
        if self._record is Record.TIMELINE:
            self._spans.append(self._state.take_spans())
        rows = self._state.take_records()
        if len(rows) == 0:
            return
        self.requests_count += len(rows)
        self._totals += rows.sum(axis=0)
        self._first_arrival = min(self._first_arrival, int(rows[:, f.O_ARRIVAL].min()))
        self._last_seen = max(self._last_seen, int((rows[:, f.O_FINISH] + rows[:, f.O_HOST]).max()))
        served = rows[rows[:, f.O_STATUS] == f.COMPLETED]
        units = np.searchsorted(self._state.units, served[:, f.O_PREFILL_UNIT])
        for column, field in enumerate((None, f.O_PROMPT, f.O_HIT, f.O_HOST_HIT)):
            np.add.at(self._per_unit[:, column], units, 1 if field is None else served[:, field])
        if self._deployment.decode_pool is not None:
            np.add.at(self._per_unit[:, 0], np.searchsorted(self._state.units, served[:, f.O_UNIT]), 1)
        if self._record is not Record.SUMMARY:
            self._rows.append(rows)
            return
        skipped = min(self._skip, len(rows))
        self._skip -= skipped
        for name, values in _latencies_ps(rows[skipped:]).items():
            self._counts[name] += np.bincount(_bins(values // PS_PER_NS), minlength=GAP_BINS)
            self._sums[name] += exact_sum(values)

    def result(self) -> SimulationResult:
        """The summary of everything taken."""
        state, m = self._state, self._state.m
        records = None
        if self._record is Record.SUMMARY:
            latencies = {name: Distribution.of_histogram(self._counts[name], self._sums[name]) for name in _LATENCIES}
        else:
            rows = np.concatenate(self._rows) if self._rows else np.zeros((0, f.O_FIELDS), np.int64)
            latencies = {
                name: Distribution.of(values / PS_PER_S) for name, values in _latencies_ps(rows[self._skip :]).items()
            }
            records = _records(rows, state)
        totals = self._totals
        rejected = int(totals[f.O_STATUS])
        asked, hit, host_hit = int(totals[f.O_PROMPT]), int(totals[f.O_HIT]), int(totals[f.O_HOST_HIT])
        blocks = int(totals[f.O_BLOCKS])
        cached = bool(m[m[f.G_FIRST_POOL] + f.P_CACHING]) and asked > 0
        gap_counts = m[m[f.G_GAPS_AT] : m[f.G_GAPS_AT] + GAP_BINS].copy()
        pools = [self._deployment.pool]
        if self._deployment.decode_pool is not None:
            pools.append(self._deployment.decode_pool)
        duration_ps = max(0, self._last_seen - self._first_arrival) if self.requests_count else 0
        return SimulationResult(
            completed_count=self.requests_count - rejected,
            rejected_count=rejected,
            duration_s=duration_ps / PS_PER_S,
            prompt_tokens=asked,
            output_tokens=int(totals[f.O_OUTPUT]),
            gpus_count=sum(pool.replicas_count * pool.gpus_per_replica_count for pool in pools),
            itl=Distribution.of_histogram(gap_counts, state.gap_sum_ps),
            hit_rate=hit / asked if cached else None,
            hbm_hit_rate=(hit - host_hit) / asked if cached else None,
            host_hit_rate=host_hit / asked if cached else None,
            block_hit_rate=int(totals[f.O_HIT_BLOCKS]) / blocks if cached and blocks > 0 else None,
            preemptions_count=int(totals[f.O_PREEMPTIONS]),
            peak_active_requests=int(m[f.G_ACTIVE_PEAK]),
            units=self._units(duration_ps),
            replicas=self._replicas(),
            records=records,
            timeline=np.concatenate(self._spans) if self._spans else None,
            gap_counts=gap_counts,
            **latencies,
        )

    def _pool_name(self, address: int) -> str:
        m = self._state.m
        if m[f.G_DECODE_POOL] == f.NONE:
            return "colocated"
        return "prefill" if address == m[f.G_FIRST_POOL] else "decode"

    def _units(self, duration_ps: int) -> tuple[UnitResult, ...]:
        m, found = self._state.m, []
        for number, unit in enumerate(self._state.units):
            served, asked, hit, host_hit = self._per_unit[number].tolist()
            pool, replica = int(m[unit + f.U_POOL]), int(m[unit + f.U_REPLICA])
            cached = asked > 0 and bool(m[pool + f.P_CACHING])
            found.append(
                UnitResult(
                    pool=self._pool_name(pool),
                    replica=(replica - int(m[f.G_REPLICA_AT])) // int(m[f.G_REPLICA_FIELDS]),
                    rank=(unit - int(m[replica + f.R_UNIT0])) // f.U_FIELDS,
                    requests_count=served,
                    hit_rate=hit / asked if cached else None,
                    host_hit_rate=host_hit / asked if cached else None,
                    preemptions_count=int(m[unit + f.U_PREEMPTIONS]),
                    evictions_count=int(m[unit + f.U_EVICTIONS]),
                    kv_blocks=int(m[unit + f.U_BLOCKS]),
                    peak_kv_blocks=int(m[unit + f.U_PEAK]),
                    mean_kv_blocks=float(m.view(np.float64)[unit + f.U_HELD]) / duration_ps if duration_ps else 0.0,
                )
            )
        return tuple(found)

    def _replicas(self) -> tuple[ReplicaResult, ...]:
        m, found = self._state.m, []
        runs = self._state.rows(self._state.executor_at, self._state.executors, f.X_FIELDS)
        for number in range(int(m[f.G_REPLICAS])):
            address = int(m[f.G_REPLICA_AT]) + number * int(m[f.G_REPLICA_FIELDS])
            mine = runs[runs[:, f.X_REPLICA] == address]
            decodes = int(mine[:, f.X_COUNTER].sum())
            now = int(m[f.G_NOW])
            found.append(
                ReplicaResult(
                    pool=self._pool_name(int(m[address + f.R_POOL])),
                    replica=number,
                    busy_frac=float(mine[:, f.X_BUSY].mean()) / now if now else 0.0,
                    steps_count=int(mine[:, f.X_STEPS_TOTAL].sum()),
                    prefill_steps_count=int(mine[:, f.X_PREFILL_STEPS].sum()),
                    mean_batch=int(mine[:, f.X_BATCH_STEPS].sum()) / decodes if decodes else 0.0,
                )
            )
        return tuple(found)


def exact_sum(values: Ints) -> int:
    """The sum, beyond 63 bits too: waits of an hour overflow them after 2,500 requests."""
    low = int(np.bitwise_and(values, (1 << 32) - 1).sum())
    return (int((values >> 32).sum()) << 32) + low


def _latencies_ps(rows: Ints) -> dict[str, Ints]:
    """Latencies of the requests that were served, host time included where clients see it. Values (requests,)."""
    rows = rows[rows[:, f.O_STATUS] == f.COMPLETED]
    arrival, admitted, first = rows[:, f.O_ARRIVAL], rows[:, f.O_ADMITTED], rows[:, f.O_FIRST]
    finish, host, output = rows[:, f.O_FINISH], rows[:, f.O_HOST], rows[:, f.O_OUTPUT]
    several = output > 1
    return {
        "ttft": first - arrival + host,
        "ttft_from_admission": first - admitted + host,
        "tpot": (finish - first)[several] // (output[several] - 1),
        "e2e": finish - arrival + host,
        "queue": admitted - arrival,
        "prefill": first - admitted,
        "decode": finish - first,
    }


def _records(rows: Ints, state: State) -> Records:
    def unit(column: int) -> Ints:
        return np.where(rows[:, column] == 0, -1, np.searchsorted(state.units, rows[:, column]))

    return Records(
        index=rows[:, f.O_INDEX],
        rejected=rows[:, f.O_STATUS] == f.REJECTED,
        arrival_ns=rows[:, f.O_ARRIVAL] // PS_PER_NS,
        admitted_ns=rows[:, f.O_ADMITTED] // PS_PER_NS,
        first_token_ns=rows[:, f.O_FIRST] // PS_PER_NS,
        finish_ns=rows[:, f.O_FINISH] // PS_PER_NS,
        host_ns=rows[:, f.O_HOST] // PS_PER_NS,
        prompt_tokens=rows[:, f.O_PROMPT],
        output_tokens=rows[:, f.O_OUTPUT],
        hit_tokens=rows[:, f.O_HIT],
        host_hit_tokens=rows[:, f.O_HOST_HIT],
        blocks=rows[:, f.O_BLOCKS],
        hit_blocks=rows[:, f.O_HIT_BLOCKS],
        host_hit_blocks=rows[:, f.O_HOST_BLOCKS],
        unit=unit(f.O_UNIT),
        prefill_unit=unit(f.O_PREFILL_UNIT),
        preemptions=rows[:, f.O_PREEMPTIONS],
    )
