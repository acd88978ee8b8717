"""The event loop, and loading requests into slots."""

from __future__ import annotations

from simcore.des.kernel import fields as f
from simcore.des.kernel.compose import insert_prefill
from simcore.des.kernel.fields import Ints, Sim
from simcore.des.kernel.jit import compiled
from simcore.des.kernel.lists import pop_event, push_event
from simcore.des.kernel.members import forget, let_go
from simcore.des.kernel.route import arrive, deliver, least_loaded, wake
from simcore.des.kernel.steps import end_steps, start_steps


@compiled
def load(
    sim: Sim,
    columns: Ints,
    sessions: Ints,
    parents: Ints,
    children: Ints,
    first_index: int,
    slots: Ints,
) -> None:
    """Put a batch of requests into free slots.

    `columns`: (requests, 8): prompt, output, timestamp, delay, leaf, blocks, draw, session (position in `sessions`).
    `sessions`: (sessions,) session rows to use. `parents`, `children`: (edges,) positions in the batch. `slots`:
    (requests,) scratch.
    """
    scalars = sim.scalars
    for position in range(len(sessions)):
        session = sim.session[sessions[position]]
        session[f.SE_LEFT] = 0
        session[f.SE_END] = 0
        session[f.SE_HEAD] = f.NONE
        session[f.SE_CLIENT] = f.NONE
    for position in range(len(columns)):
        scalars[f.G_FREE_SLOTS] -= 1
        slot = sim.free_slot[scalars[f.G_FREE_SLOTS]]
        slots[position] = slot
        row, request = columns[position], sim.slot[slot]
        request[:] = 0
        request[f.S_INDEX] = first_index + position
        request[f.S_PROMPT] = row[0]
        request[f.S_OUTPUT] = row[1]
        request[f.S_TIMESTAMP] = row[2]
        request[f.S_DELAY] = row[3]
        request[f.S_LEAF] = row[4]
        request[f.S_BLOCKS] = row[5]
        request[f.S_DRAW] = row[6]
        request[f.S_SESSION] = sessions[row[7]]
        request[f.S_CHILD] = f.NONE
        request[f.S_NODE] = f.NONE
        request[f.S_STATE] = f.UNRELEASED
        sim.session[sessions[row[7]], f.SE_LEFT] += 1
    for edge in range(len(parents)):
        scalars[f.G_FREE_EDGES] -= 1
        at = sim.free_edge[scalars[f.G_FREE_EDGES]]
        parent, child = slots[parents[edge]], slots[children[edge]]
        sim.edge[at, 0] = child
        sim.edge[at, 1] = sim.slot[parent, f.S_CHILD]
        sim.slot[parent, f.S_CHILD] = at
        sim.slot[child, f.S_DEPS] += 1
    for position in range(len(columns)):
        slot = slots[position]
        request = sim.slot[slot]
        if request[f.S_DEPS] > 0:
            continue
        if scalars[f.G_OPEN] == 1:
            push_event(sim, request[f.S_TIMESTAMP], f.AT_RELEASE, request[f.S_INDEX], slot)
        else:
            session = sim.session[request[f.S_SESSION]]
            request[f.S_NEXT] = session[f.SE_HEAD]
            session[f.SE_HEAD] = slot
    if scalars[f.G_OPEN] == 0:
        for position in range(len(sessions)):
            sim.pending[scalars[f.G_PENDING_TAIL]] = sessions[position]
            scalars[f.G_PENDING_TAIL] += 1


@compiled
def start_session(sim: Sim, client: int, now: int) -> None:
    """A free client takes the next session and sends its first requests."""
    scalars = sim.scalars
    session = sim.session[sim.pending[scalars[f.G_PENDING_HEAD]]]
    scalars[f.G_PENDING_HEAD] += 1
    session[f.SE_CLIENT] = client
    slot = session[f.SE_HEAD]
    while slot != f.NONE:
        request = sim.slot[slot]
        push_event(sim, now + request[f.S_DELAY], f.AT_RELEASE, request[f.S_INDEX], slot)
        slot = request[f.S_NEXT]


@compiled
def data_arrived(sim: Sim, slot: int, now: int) -> None:
    """A host load or a hand-off is through."""
    request = sim.slot[slot]
    unit = request[f.S_UNIT]
    if request[f.S_STATE] == f.LOADING:
        insert_prefill(sim, request[f.S_LANE], slot)
        wake(sim, sim.unit[unit, f.U_REPLICA], now)
        return
    let_go(sim, unit, slot)
    forget(sim, unit, slot)
    wake(sim, sim.unit[unit, f.U_REPLICA], now)
    request[f.S_STATE] = f.HANDED
    request[f.S_LEAF] = f.NONE
    request[f.S_BLOCKS] = 0
    deliver(sim, least_loaded(sim, sim.scalars[f.G_DECODE_POOL]), slot, now)


@compiled
def start_replica(sim: Sim, replica: int, now: int) -> None:
    """Start steps on the replica's idle executors, the longest idle first, while the first stage is free."""
    row = sim.replica[replica]
    stages = sim.pool[row[f.R_POOL], f.P_STAGES]
    if stages == 1:
        row[f.R_WAKE] = 0
        if sim.executor[row[f.R_EXECUTOR0], f.X_END] == f.NEVER:
            start_steps(sim, row[f.R_EXECUTOR0], now)
        return
    after_ready, after = -1, f.NONE
    while row[f.R_STAGE0] <= now:
        best, best_ready = f.NONE, f.NEVER
        for stage in range(stages):
            executor = row[f.R_EXECUTOR0] + stage
            run = sim.executor[executor]
            ready = run[f.X_READY]
            if run[f.X_END] != f.NEVER or ready < after_ready or (ready == after_ready and executor <= after):
                continue
            if ready < best_ready:
                best, best_ready = executor, ready
        if best == f.NONE:
            row[f.R_WAKE] = 0
            return
        start_steps(sim, best, now)
        after_ready, after = best_ready, best


@compiled
def next_time(sim: Sim) -> int:
    """When something happens next, or NEVER."""
    scalars = sim.scalars
    soonest = f.NEVER
    for executor in range(len(sim.executor)):
        soonest = min(soonest, sim.executor[executor, f.X_END])
    if scalars[f.G_EVENTS] > 0:
        soonest = min(soonest, sim.event[0, f.E_TIME])
    for replica in range(len(sim.replica)):
        row = sim.replica[replica]
        if row[f.R_WAKE] == 1:
            at = scalars[f.G_NOW]
            if sim.pool[row[f.R_POOL], f.P_STAGES] > 1:
                at = max(at, row[f.R_STAGE0])
            soonest = min(soonest, at)
    return soonest


@compiled
def run_events(sim: Sim, now: int) -> bool:
    """All data, clients and requests of this instant. False if a client is free and no session is loaded."""
    scalars = sim.scalars
    while scalars[f.G_EVENTS] > 0 and sim.event[0, f.E_TIME] == now:
        order, payload = sim.event[0, f.E_ORDER], sim.event[0, f.E_PAYLOAD]
        if order == f.AT_CLIENT:
            if scalars[f.G_PENDING_HEAD] == scalars[f.G_PENDING_TAIL]:
                if scalars[f.G_EXHAUSTED] == 0:
                    return False
                pop_event(sim)
                continue
            pop_event(sim)
            start_session(sim, payload, now)
        elif order == f.AT_RELEASE:
            pop_event(sim)
            arrive(sim, payload, now)
        else:
            pop_event(sim)
            data_arrived(sim, payload, now)
    return True


@compiled
def advance(sim: Sim) -> int:
    """Simulate until Python is needed; the reason why (DONE, NEED_SESSIONS, ...)."""
    scalars = sim.scalars
    slots = len(sim.slot)
    while True:
        if scalars[f.G_OUT] + slots - scalars[f.G_FREE_SLOTS] > len(sim.out):
            return f.FLUSH_RECORDS
        if scalars[f.G_SPANS_ON] == 1 and scalars[f.G_SPANS] + len(sim.executor) > len(sim.span):
            return f.FLUSH_RECORDS
        now = next_time(sim)
        if scalars[f.G_EXHAUSTED] == 0 and scalars[f.G_OPEN] == 1 and now >= scalars[f.G_HORIZON]:
            return f.NEED_SESSIONS
        if now == f.NEVER:
            return f.DONE if scalars[f.G_ACTIVE] == 0 else f.STUCK
        scalars[f.G_NOW] = now
        for executor in range(len(sim.executor)):
            if sim.executor[executor, f.X_END] == now:
                end_steps(sim, executor)
                sim.replica[sim.executor[executor, f.X_REPLICA], f.R_WAKE] = 1
        if not run_events(sim, now):
            return f.NEED_SESSIONS
        if scalars[f.G_WAITING_BLOCKS] > scalars[f.G_FREE_NODES]:
            return f.GROW_NODES
        for replica in range(len(sim.replica)):
            if sim.replica[replica, f.R_WAKE] == 1:
                start_replica(sim, replica, now)
