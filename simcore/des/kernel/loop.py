"""The event loop, and loading requests into slots."""

from __future__ import annotations

from simcore.des.kernel import fields as f
from simcore.des.kernel.cache import insert_bucket
from simcore.des.kernel.compose import insert_prefill
from simcore.des.kernel.fields import Ints
from simcore.des.kernel.jit import compiled, entry
from simcore.des.kernel.lists import pop_event, push_event
from simcore.des.kernel.members import forget, let_go
from simcore.des.kernel.route import arrive, deliver, least_loaded, wake
from simcore.des.kernel.steps import end_steps, start_steps

(
    LOAD_PROMPT,
    LOAD_OUTPUT,
    LOAD_TIMESTAMP,
    LOAD_DELAY,
    LOAD_LEAF,
    LOAD_BLOCKS,
    LOAD_DRAW,
    LOAD_SESSION,
    LOAD_COLUMNS,
) = range(9)


@compiled
def cached_leaf(m: Ints, leaf: int, prompt: int) -> int:
    """The last block on the path to `leaf` in which a KV block of the engine ends; without a cache, `leaf`."""
    pool = m[f.G_FIRST_POOL]
    if leaf == f.NONE or m[pool + f.P_CACHING] == 0:
        return leaf
    tokens = min(m[leaf + f.A_DEPTH] * m[f.G_BLOCK_TOKENS], prompt)
    tokens -= tokens % m[pool + f.P_BLOCK]
    while leaf != f.NONE and (m[leaf + f.A_DEPTH] - 1) * m[f.G_BLOCK_TOKENS] >= tokens:
        leaf = m[leaf + f.A_PARENT]
    return leaf


@entry
def load(
    m: Ints,
    columns: Ints,
    sessions: Ints,
    parents: Ints,
    children: Ints,
    first_index: int,
    slots: Ints,
) -> None:
    """Put a batch of requests into free slots.

    `columns`: (requests, LOAD_COLUMNS), LOAD_SESSION being a position in `sessions`, LOAD_LEAF an address or NONE.
    `sessions`: (sessions,) addresses. `parents`, `children`: (edges,) positions in the batch. `slots`: (requests,)
    scratch.
    """
    for position in range(len(sessions)):
        session = sessions[position]
        m[session + f.SE_LEFT] = 0
        m[session + f.SE_END] = 0
        m[session + f.SE_HEAD] = f.NONE
        m[session + f.SE_CLIENT] = f.NONE
        m[session + f.SE_NEXT] = f.NONE
    for position in range(len(columns)):
        slot = m[f.G_FREE_SLOT]
        m[f.G_FREE_SLOT] = m[slot + f.S_NEXT]
        slots[position] = slot
        row = columns[position]
        for field in range(f.S_FIELDS):
            m[slot + field] = 0
        m[slot + f.S_INDEX] = first_index + position
        m[slot + f.S_PROMPT] = row[LOAD_PROMPT]
        m[slot + f.S_OUTPUT] = row[LOAD_OUTPUT]
        m[slot + f.S_TIMESTAMP] = row[LOAD_TIMESTAMP]
        m[slot + f.S_DELAY] = row[LOAD_DELAY]
        m[slot + f.S_LEAF] = cached_leaf(m, row[LOAD_LEAF], row[LOAD_PROMPT])
        m[slot + f.S_BLOCKS] = row[LOAD_BLOCKS]
        m[slot + f.S_DRAW] = row[LOAD_DRAW]
        m[slot + f.S_SESSION] = sessions[row[LOAD_SESSION]]
        m[slot + f.S_CHILD] = f.NONE
        m[slot + f.S_NODE] = f.NONE
        m[slot + f.S_STATE] = f.UNRELEASED
        m[sessions[row[LOAD_SESSION]] + f.SE_LEFT] += 1
    m[f.G_LOADED] += len(columns)
    m[f.G_EDGES] += len(parents)
    for edge in range(len(parents)):
        at = m[f.G_FREE_EDGE]
        m[f.G_FREE_EDGE] = m[at + f.D_NEXT]
        parent, child = slots[parents[edge]], slots[children[edge]]
        m[at + f.D_CHILD] = child
        m[at + f.D_NEXT] = m[parent + f.S_CHILD]
        m[parent + f.S_CHILD] = at
        m[child + f.S_DEPS] += 1
    for position in range(len(columns)):
        slot = slots[position]
        if m[slot + f.S_DEPS] > 0:
            continue
        if m[f.G_OPEN] == 1:
            push_event(m, m[slot + f.S_TIMESTAMP], f.AT_RELEASE, m[slot + f.S_INDEX], slot)
        else:
            session = m[slot + f.S_SESSION]
            m[slot + f.S_NEXT] = m[session + f.SE_HEAD]
            m[session + f.SE_HEAD] = slot
    if m[f.G_OPEN] == 0:
        for position in range(len(sessions)):
            if m[f.G_PENDING_HEAD] == f.NONE:
                m[f.G_PENDING_HEAD] = sessions[position]
            else:
                m[m[f.G_PENDING_TAIL] + f.SE_NEXT] = sessions[position]
            m[f.G_PENDING_TAIL] = sessions[position]


@compiled
def start_session(m: Ints, client: int, now: int) -> None:
    """A free client takes the next session and sends its first requests."""
    session = m[f.G_PENDING_HEAD]
    m[f.G_PENDING_HEAD] = m[session + f.SE_NEXT]
    m[session + f.SE_CLIENT] = client
    slot = m[session + f.SE_HEAD]
    while slot != f.NONE:
        push_event(m, now + m[slot + f.S_DELAY], f.AT_RELEASE, m[slot + f.S_INDEX], slot)
        slot = m[slot + f.S_NEXT]


@compiled
def data_arrived(m: Ints, slot: int, now: int) -> None:
    """A host load or a hand-off is through."""
    unit = m[slot + f.S_UNIT]
    if m[slot + f.S_STATE] == f.LOADING:
        insert_prefill(m, m[slot + f.S_LANE], slot)
        wake(m, m[unit + f.U_REPLICA], now)
        return
    let_go(m, unit, slot)
    forget(m, unit, slot)
    wake(m, m[unit + f.U_REPLICA], now)
    m[slot + f.S_STATE] = f.HANDED
    m[slot + f.S_LEAF] = f.NONE
    deliver(m, least_loaded(m, m[f.G_DECODE_POOL]), slot, now)


@compiled
def start_replica(m: Ints, replica: int, now: int) -> None:
    """Start steps on the replica's idle executors, the longest idle first, while the first stage is free."""
    stages = m[m[replica + f.R_POOL] + f.P_STAGES]
    if stages == 1:
        m[replica + f.R_WAKE] = 0
        if m[m[replica + f.R_EXECUTOR0] + f.X_END] == f.NEVER:
            start_steps(m, m[replica + f.R_EXECUTOR0], now)
        return
    after_ready, after = -1, f.NONE
    while m[replica + f.R_STAGE0] <= now:
        best, best_ready = f.NONE, f.NEVER
        for stage in range(stages):
            executor = m[replica + f.R_EXECUTOR0] + stage * f.X_FIELDS
            ready = m[executor + f.X_READY]
            if m[executor + f.X_END] != f.NEVER or ready < after_ready or (ready == after_ready and executor <= after):
                continue
            if ready < best_ready:
                best, best_ready = executor, ready
        if best == f.NONE:
            m[replica + f.R_WAKE] = 0
            return
        start_steps(m, best, now)
        after_ready, after = best_ready, best


@compiled
def next_time(m: Ints) -> int:
    """When something happens next, or NEVER."""
    soonest = f.NEVER
    for number in range(m[f.G_EXECUTORS]):
        executor = m[f.G_EXECUTOR_AT] + number * f.X_FIELDS
        soonest = min(soonest, m[executor + f.X_END])
    if m[f.G_EVENTS] > 0:
        soonest = min(soonest, m[m[f.G_EVENT_AT] + f.E_TIME])
    for number in range(m[f.G_REPLICAS]):
        replica = m[f.G_REPLICA_AT] + number * m[f.G_REPLICA_FIELDS]
        if m[replica + f.R_WAKE] == 1:
            at = m[f.G_NOW]
            if m[m[replica + f.R_POOL] + f.P_STAGES] > 1:
                at = max(at, m[replica + f.R_STAGE0])
            soonest = min(soonest, at)
    return soonest


@compiled
def is_pending(m: Ints) -> bool:
    """Whether anything is still to happen, however late."""
    for number in range(m[f.G_EXECUTORS]):
        if m[m[f.G_EXECUTOR_AT] + number * f.X_FIELDS + f.X_END] != f.NEVER:
            return True
    return bool(m[f.G_EVENTS] > 0)


@compiled
def run_events(m: Ints, now: int) -> bool:
    """All data, clients and requests of this instant. False if a client is free and no session is loaded."""
    while m[f.G_EVENTS] > 0 and m[m[f.G_EVENT_AT] + f.E_TIME] == now:
        order = m[m[f.G_EVENT_AT] + f.E_ORDER]
        payload = m[m[f.G_EVENT_AT] + f.E_PAYLOAD]
        if order == f.AT_CLIENT:
            if m[f.G_PENDING_HEAD] == f.NONE:
                if m[f.G_EXHAUSTED] == 0:
                    return False
                pop_event(m)
                continue
            pop_event(m)
            start_session(m, payload, now)
        elif order == f.AT_RELEASE:
            pop_event(m)
            arrive(m, payload, now)
        else:
            pop_event(m)
            data_arrived(m, payload, now)
    return True


@entry
def start_clients(m: Ints, clients: int) -> None:
    """All clients of a closed loop are free at time zero."""
    for client in range(clients):
        push_event(m, 0, f.AT_CLIENT, client, client)


@entry
def advance(m: Ints) -> int:
    """Simulate until Python is needed; the reason why (DONE, NEED_SESSIONS, ...).

    STUCK: requests wait and nothing will happen, or all happens at one instant and no request ends (MOST_STALLED).
    OVERTIME: what happens next is beyond LATEST.
    Raises InternalError where the books of KV blocks do not balance.
    """
    while True:
        if m[f.G_OUT] + m[f.G_LOADED] > m[f.G_OUT_ROWS]:
            return f.FLUSH_RECORDS
        if m[f.G_SPAN_ROWS] > 0 and m[f.G_SPANS] + m[f.G_EXECUTORS] > m[f.G_SPAN_ROWS]:
            return f.FLUSH_RECORDS
        now = next_time(m)
        if m[f.G_EXHAUSTED] == 0 and m[f.G_OPEN] == 1 and now >= m[f.G_HORIZON]:
            return f.NEED_SESSIONS
        if now >= f.LATEST:
            if is_pending(m):
                return f.OVERTIME
            return f.DONE if m[f.G_ACTIVE] == 0 else f.STUCK
        m[f.G_STALLED] = m[f.G_STALLED] + 1 if now == m[f.G_NOW] else 0
        if m[f.G_STALLED] > f.MOST_STALLED:
            return f.STUCK
        m[f.G_NOW] = now
        for number in range(m[f.G_EXECUTORS]):
            executor = m[f.G_EXECUTOR_AT] + number * f.X_FIELDS
            if m[executor + f.X_END] == now:
                end_steps(m, executor)
                m[m[executor + f.X_REPLICA] + f.R_WAKE] = 1
        if not run_events(m, now):
            return f.NEED_SESSIONS
        if m[m[f.G_FIRST_POOL] + f.P_CACHING] == 1 and m[f.G_WAITING_BLOCKS] > m[f.G_FREE_NODES]:
            return f.GROW_NODES
        for number in range(m[f.G_REPLICAS]):
            replica = m[f.G_REPLICA_AT] + number * m[f.G_REPLICA_FIELDS]
            if m[replica + f.R_WAKE] == 1:
                start_replica(m, replica, now)


@entry
def fill_buckets(m: Ints, first: int, count: int) -> None:
    """Put the cache's used nodes among `count` rows from `first` back into an emptied bucket table."""
    for number in range(count):
        node = first + number * f.N_FIELDS
        if m[node + f.N_REFERENCES] != f.NONE:
            insert_bucket(m, node)
