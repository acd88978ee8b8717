"""Run a workload through a deployment: feed the kernel, collect what it finishes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from simcore.des.config import Deployment
from simcore.des.kernel import arena, loop
from simcore.des.kernel import fields as f
from simcore.des.result import Collector, Record, SimulationResult
from simcore.des.state import State
from simcore.des.workload.batch import Batch, Workload
from simcore.errors import InputError, InternalError
from simcore.units import PS_PER_S

Progress = Callable[[int, int | None, float], None]
"""Called now and then with requests done, requests in all if known, and simulated seconds."""

MIN_NODES = 1 << 14


class _Feed:
    """Loads batches as the kernel asks for them, and reuses the room of sessions that ended."""

    def __init__(self, state: State, batches: Iterator[Batch], draws: np.random.Generator) -> None:
        self._state = state
        self._batches = batches
        self._draws = draws
        self._next = next(batches, None)
        self._index = 0
        self._free_sessions: list[int] = []
        self._free_regions: list[tuple[int, int]] = []
        self._region_of: dict[int, tuple[int, int]] = {}
        self._left: dict[tuple[int, int], int] = {}

    @property
    def is_empty(self) -> bool:
        return self._next is None

    def reclaim(self) -> None:
        """Take back the rows of sessions that ended."""
        for session in self._state.take_freed_sessions():
            self._free_sessions.append(session)
            region = self._region_of.pop(session, None)
            if region is not None:
                self._left[region] -= 1
                if self._left[region] == 0:
                    del self._left[region]
                    self._free_regions.append(region)

    def _region(self, rows: int) -> tuple[int, int]:
        fits = [region for region in self._free_regions if region[1] >= rows]
        if fits:
            best = min(fits, key=lambda region: (region[1], region[0]))
            self._free_regions.remove(best)
            return best
        size = 1 << max(10, (rows - 1).bit_length())
        return self._state.take(size * f.A_FIELDS), size

    def load(self) -> None:
        """Load the next batch, or tell the kernel that there is none."""
        state, batch = self._state, self._next
        if batch is None:
            state.m[f.G_EXHAUSTED] = 1
            return
        requests = len(batch.columns)
        missing = requests - (state.slots - int(state.m[f.G_LOADED]))
        if missing > 0:
            state.add_slots(max(missing, min(state.slots, 1 << 16)))
        missing = len(batch.parents) - (state.edges - int(state.m[f.G_EDGES]))
        if missing > 0:
            state.add_edges(max(missing, state.edges))
        columns = batch.columns.copy()
        columns[:, loop.LOAD_DRAW] = self._draws.integers(0, 1 << 62, size=requests)
        while len(self._free_sessions) < batch.sessions_count:
            self._free_sessions.extend(state.add_sessions(batch.sessions_count).tolist())
        kept = len(self._free_sessions) - batch.sessions_count
        sessions = self._free_sessions[kept:][::-1]
        del self._free_sessions[kept:]
        if len(batch.arena) > 0 and state.block_tokens > 0:
            region = self._region(len(batch.arena))
            arena.place(state.m, region[0], batch.arena)
            leaves = columns[:, loop.LOAD_LEAF]
            columns[:, loop.LOAD_LEAF] = np.where(leaves == f.NONE, f.NONE, region[0] + leaves * f.A_FIELDS)
            self._region_of.update(dict.fromkeys(sessions, region))
            self._left[region] = len(sessions)
        else:
            columns[:, loop.LOAD_LEAF] = f.NONE
            columns[:, loop.LOAD_BLOCKS] = 0
        rows = np.array(sessions, dtype=np.int64)
        scratch = np.empty(requests, np.int64)
        loop.load(state.m, columns, rows, batch.parents, batch.children, self._index, scratch)
        self._index += requests
        self._next = next(self._batches, None)
        if self._next is None:
            state.m[f.G_EXHAUSTED] = 1
        else:
            state.m[f.G_HORIZON] = self._next.first_timestamp_ps


def run_kernel(
    deployment: Deployment,
    workload: Workload,
    *,
    seed: int | np.random.SeedSequence = 0,
    record: Record = Record.REQUESTS,
    warmup_requests: int = 0,
    progress: Progress | None = None,
) -> tuple[State, Collector]:
    """Run to the end; the kernel's state and what was collected. `simulate` is this and a summary."""
    root = seed if isinstance(seed, np.random.SeedSequence) else np.random.SeedSequence(seed)
    for_workload, for_router = root.spawn(2)
    if workload.clients is not None and not 1 <= workload.clients <= 1 << 20:
        raise InputError("clients", workload.clients, "be from 1 to 1048576")
    clients = workload.clients or 0
    state = State(
        deployment,
        clients=workload.clients,
        most_running=workload.most_in_flight,
        block_tokens=workload.block_tokens,
        spans=record is Record.TIMELINE,
    )
    feed = _Feed(state, workload.batches(for_workload), np.random.default_rng(for_router))
    collector = Collector(deployment, state, record, warmup_requests)
    if feed.is_empty:
        raise InputError("workload", workload.source or "requests", "hold at least one request")
    feed.load()
    if clients:
        loop.start_clients(state.m, clients)
    while True:
        reason = loop.advance(state.m)
        collector.take()
        if not feed.is_empty:
            feed.reclaim()
        if progress is not None:
            progress(collector.requests_count, workload.requests_count, int(state.m[f.G_NOW]) / PS_PER_S)
        if reason == f.DONE:
            return state, collector
        if reason == f.NEED_SESSIONS:
            feed.load()
        elif reason == f.GROW_NODES:
            state.add_nodes(max(MIN_NODES, state.nodes, int(state.m[f.G_WAITING_BLOCKS])))
        elif reason == f.OVERTIME:
            most = f"end within {f.LATEST // PS_PER_S // 86_400} simulated days"
            raise InputError("workload", workload.source or "requests", most, "times, waits and steps add up to more")
        elif reason == f.STUCK:
            raise InternalError(f"{int(state.m[f.G_ACTIVE])} requests wait for something that never comes")


def simulate(
    deployment: Deployment,
    workload: Workload,
    *,
    seed: int | np.random.SeedSequence = 0,
    record: Record = Record.REQUESTS,
    warmup_requests: int = 0,
    progress: Progress | None = None,
) -> SimulationResult:
    """Simulate all of `workload` on `deployment`; byte-identical for equal input and seed.

    `record` says how much is kept; `warmup_requests`: the first so many to complete are left out of the statistics, not
    of the throughput. Source: paper §3.4, App. A.1. Raises InputError, FormatError from a trace, and InternalError
    where a bug would let requests wait for ever.
    """
    _, collector = run_kernel(
        deployment, workload, seed=seed, record=record, warmup_requests=warmup_requests, progress=progress
    )
    return collector.result()
