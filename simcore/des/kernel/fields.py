"""Names of the fields of the simulator's state.

The whole state is one flat int64 array `m`. A thing (a request's *slot*, a unit, a lane, a cache node) is known by its
address, and `m[slot + S_PROMPT]` is its field: one array argument keeps calls cheap, links are addresses, and growing
means appending. The scalars start at address 0, so `m[G_NOW]` reads one.

Times are picoseconds. A *unit* is one attention-DP rank of one replica: it owns a queue, a KV pool and a cache. A
*lane* is one micro-batch of a unit (one lane without pipeline stages). An *executor* runs one lane index of a replica
on all its ranks in lockstep. A *slot* holds one request from load to record.

Token clock: a lane's decoders all commit the same tokens per step, so each request's context is `base + clock`, and a
step needs no loop over requests.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

NEVER: Final = 1 << 62
LATEST: Final = 45 * 86_400 * 10**12
"""A run ends before this; sums of two times stay below `NEVER` and inside 63 bits."""
GAP_TURN: Final = 1 << 61
"""G_GAP_SUM starts anew here, and G_GAP_TURNS counts how often."""
NONE: Final = -1
UNKNOWN: Final = -2

# Why the kernel came back to Python.
DONE: Final = 0
NEED_SESSIONS: Final = 1
FLUSH_RECORDS: Final = 2
GROW_NODES: Final = 3
STUCK: Final = 4
OVERTIME: Final = 5

MOST_STALLED: Final = 1 << 22
"""Turns of the event loop at one instant in which no request ends. Free steps are legal (a price may be 0), so some are
normal; this many is a bug, and better said than waited for."""

# Order of what happens at one instant. A step's end comes first, so tokens and memory are there for everyone; then data
# that arrived; then clients that became free; then requests; steps start last and see all of it.
AT_DATA: Final = 1
AT_CLIENT: Final = 2
AT_RELEASE: Final = 3

# Request states.
WAITING: Final = 0
LOADING: Final = 1
PREFILLING: Final = 2
DECODING: Final = 3
TRANSFERRING: Final = 4
HANDED: Final = 5
UNRELEASED: Final = 6

# Engines' habits.
MIXED: Final = 0
PREFILL_FIRST: Final = 1
PREFILL_WHOLE: Final = 2

(
    G_NOW,
    G_OPEN,
    G_HORIZON,
    G_EXHAUSTED,
    G_PENDING_HEAD,
    G_PENDING_TAIL,
    G_EVENTS,
    G_EVENT_AT,
    G_SEQUENCE,
    G_ROUND_ROBIN,
    G_ROUTING,
    G_OUT,
    G_OUT_AT,
    G_OUT_ROWS,
    G_SPANS,
    G_SPAN_AT,
    G_SPAN_ROWS,
    G_LOADED,
    G_FREE_SLOT,
    G_FREE_EDGE,
    G_EDGES,
    G_FREE_NODE,
    G_FREE_NODES,
    G_FREED_SESSION,
    G_WAITING_BLOCKS,
    G_GAPS_AT,
    G_GAP_COUNT,
    G_GAP_SUM,
    G_GAP_TURNS,
    G_FIRST_POOL,
    G_DECODE_POOL,
    G_EXECUTOR_AT,
    G_EXECUTORS,
    G_REPLICA_AT,
    G_REPLICAS,
    G_REPLICA_FIELDS,
    G_HANDOFF_FLOOR,
    G_HANDOFF_PS_PER_KTOKEN,
    G_BLOCK_TOKENS,
    G_ACTIVE,
    G_ACTIVE_PEAK,
    G_BUCKET_AT,
    G_BUCKET_MASK,
    G_STALLED,
    G_FIELDS,
) = range(45)

(
    P_BASE_AT,
    P_CONTEXT_AT,
    P_WINDOW_AT,
    P_HOST_AT,
    P_BATCHES,
    P_UNIT0,
    P_UNITS,
    P_REPLICA0,
    P_REPLICAS,
    P_RANKS,
    P_STAGES,
    P_HABIT,
    P_CAP,
    P_BUDGET,
    P_CHUNK,
    P_BLOCK,
    P_CACHING,
    P_LONGEST,
    P_RESERVE,
    P_RESERVE_PERMILLE,
    P_RESERVE_CLIP,
    P_LOAD_PS,
    P_WINDOW,
    P_PREFILL_FIXED,
    P_PREFILL_TOKEN,
    P_PREFILL_SQUARE,
    P_SHARED,
    P_HOST,
    P_HOST_TOKEN,
    P_HOP,
    P_BURST,
    P_FEWEST,
    P_FIELDS,
) = range(33)

(
    S_INDEX,
    S_PROMPT,
    S_OUTPUT,
    S_LEAF,
    S_BLOCKS,
    S_TIMESTAMP,
    S_DELAY,
    S_DEPS,
    S_READY,
    S_CHILD,
    S_SESSION,
    S_DRAW,
    S_STATE,
    S_SEQUENCE,
    S_UNIT,
    S_LANE,
    S_ARRIVAL,
    S_ADMITTED,
    S_FIRST,
    S_EMITTED,
    S_COMPUTED,
    S_TARGET,
    S_NODE,
    S_COVERED,
    S_PRIVATE,
    S_FINISH,
    S_BASE,
    S_JOINED,
    S_LAST,
    S_HIT,
    S_HOST_HIT,
    S_HIT_BLOCKS,
    S_HOST_BLOCKS,
    S_PREEMPTIONS,
    S_HOST,
    S_BILL,
    S_NEXT,
    S_PREVIOUS,
    S_PREFILL_UNIT,
    S_ESTIMATE,
    S_BORDER,
    S_BEYOND,
    S_FIELDS,
) = range(43)

(
    U_POOL,
    U_REPLICA,
    U_LANE0,
    U_BLOCKS,
    U_FREE,
    U_EVICTABLE,
    U_HEAD,
    U_TAIL,
    U_WAITING,
    U_BLOCKED,
    U_RUNNING,
    U_OUTSTANDING,
    U_TOKENS,
    U_PENDING,
    U_RESERVED,
    U_LRU_HEAD,
    U_LRU_TAIL,
    U_HOST_HEAD,
    U_HOST_TAIL,
    U_HOST_COUNT,
    U_HOST_CAPACITY,
    U_LINK_FREE,
    U_PEAK,
    U_PREEMPTIONS,
    U_EVICTIONS,
    U_RESIDENT,
    U_HELD,
    U_SINCE,
    U_FIELDS,
) = range(29)
"""U_HELD holds the bits of a float64: KV blocks in use times picoseconds, up to U_SINCE."""

(
    L_HEAP,
    L_LINE,
    L_CHUNK,
    L_FRESH_AT,
    L_SHORT_AT,
    L_RESIDUE,
    L_COUNT,
    L_BASE,
    L_PRIVATE,
    L_FINISH,
    L_CLOCK,
    L_ALLOC,
    L_ALLOC_CLOCK,
    L_LAST,
    L_PREFILLS,
    L_FRESH,
    L_SHORT,
    L_SHORT_BASE,
    L_DECODES,
    L_NEW,
    L_SQUARE,
    L_BILL,
    L_ADMITTED,
    L_FIELDS,
) = range(24)
"""L_HEAP: decoding slots, the next to finish on top. L_LINE: slots still prefilling, by sequence number; L_CHUNK: their
prompt tokens in the step under way. L_FRESH_AT: decoders that have not decoded yet. L_SHORT_AT: decoders whose context
is below the window. L_RESIDUE: how many decoders have (-private base) mod block equal to the column."""

(
    X_REPLICA,
    X_LANE,
    X_START,
    X_END,
    X_STEPS,
    X_PRICE,
    X_SLOPE,
    X_DECODES,
    X_READY,
    X_COUNTER,
    X_BUSY,
    X_STEPS_TOTAL,
    X_PREFILL_STEPS,
    X_BATCH_STEPS,
    X_SPAN_BATCH,
    X_SPAN_NEW,
    X_SPAN_USED,
    X_FIELDS,
) = range(18)

R_POOL, R_UNIT0, R_EXECUTOR0, R_LINK_FREE, R_WAKE, R_BUSY, R_STAGE0 = range(7)

N_KEY, N_PARENT, N_REFERENCES, N_DEPTH, N_PREVIOUS, N_NEXT, N_HOST, N_UNIT, N_SIZE, N_FIELDS = range(10)

A_KEY, A_PARENT, A_JUMP, A_DEPTH, A_FIELDS = range(5)

E_TIME, E_ORDER, E_KEY, E_PAYLOAD, E_FIELDS = range(5)

SE_LEFT, SE_END, SE_HEAD, SE_CLIENT, SE_NEXT, SE_FIELDS = range(6)

D_CHILD, D_NEXT, D_FIELDS = range(3)

(
    O_INDEX,
    O_STATUS,
    O_ARRIVAL,
    O_ADMITTED,
    O_FIRST,
    O_FINISH,
    O_HOST,
    O_PROMPT,
    O_OUTPUT,
    O_HIT,
    O_HOST_HIT,
    O_BLOCKS,
    O_HIT_BLOCKS,
    O_HOST_BLOCKS,
    O_UNIT,
    O_PREFILL_UNIT,
    O_PREEMPTIONS,
    O_FIELDS,
) = range(18)

COMPLETED: Final = 0
REJECTED: Final = 1

V_EXECUTOR, V_START, V_END, V_STEPS, V_BATCH, V_NEW, V_USED, V_FIELDS = range(8)
