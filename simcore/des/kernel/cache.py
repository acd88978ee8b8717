"""The block cache of each unit: a tree of content-addressed blocks, leaf-first LRU, and a host tier below.

A resident block is a *node* with its parent. Requests hold references along their whole path, so a block in use has its
ancestors in use. When a request ends its path is appended to the eviction line deepest block first; a block is
therefore always behind its children there, and taking the line's head is taking the least recently used *leaf*.
"""

from __future__ import annotations

from simcore.des.kernel import fields as f
from simcore.des.kernel.fields import Ints, Sim
from simcore.des.kernel.jit import compiled

MIX = 0x2545F4914F6CDD1D
UNIT_MIX = 0x1F83D9ABFB41BD6B


@compiled
def bucket_of(sim: Sim, unit: int, key: int) -> int:
    mixed = (key ^ (unit * UNIT_MIX)) * MIX
    return (mixed ^ (mixed >> 29)) & sim.scalars[f.G_BUCKET_MASK]


@compiled
def find(sim: Sim, unit: int, key: int) -> int:
    """The node that holds block `key` on `unit` in either tier, or f.NONE."""
    at = bucket_of(sim, unit, key)
    mask = sim.scalars[f.G_BUCKET_MASK]
    nodes = sim.node
    while True:
        node = sim.bucket[at]
        if node == f.NONE:
            return f.NONE
        if nodes[node, f.N_KEY] == key and nodes[node, f.N_UNIT] == unit:
            return node
        at = (at + 1) & mask


@compiled
def insert_bucket(sim: Sim, node: int) -> None:
    at = bucket_of(sim, sim.node[node, f.N_UNIT], sim.node[node, f.N_KEY])
    mask = sim.scalars[f.G_BUCKET_MASK]
    while sim.bucket[at] != f.NONE:
        at = (at + 1) & mask
    sim.bucket[at] = node


@compiled
def remove_bucket(sim: Sim, node: int) -> None:
    """Delete with backward shift, so that no search path is broken."""
    mask = sim.scalars[f.G_BUCKET_MASK]
    at = bucket_of(sim, sim.node[node, f.N_UNIT], sim.node[node, f.N_KEY])
    while sim.bucket[at] != node:
        at = (at + 1) & mask
    hole = at
    while True:
        at = (at + 1) & mask
        other = sim.bucket[at]
        if other == f.NONE:
            break
        home = bucket_of(sim, sim.node[other, f.N_UNIT], sim.node[other, f.N_KEY])
        if ((at - home) & mask) >= ((at - hole) & mask):
            sim.bucket[hole] = other
            hole = at
    sim.bucket[hole] = f.NONE


@compiled
def append(sim: Sim, row: Ints, head: int, tail: int, node: int) -> None:
    """Append `node` to the line whose ends are columns `head` and `tail` of `row`."""
    nodes = sim.node
    last = row[tail]
    nodes[node, f.N_PREVIOUS] = last
    nodes[node, f.N_NEXT] = f.NONE
    if last == f.NONE:
        row[head] = node
    else:
        nodes[last, f.N_NEXT] = node
    row[tail] = node


@compiled
def unlink(sim: Sim, row: Ints, head: int, tail: int, node: int) -> None:
    nodes = sim.node
    before, after = nodes[node, f.N_PREVIOUS], nodes[node, f.N_NEXT]
    if before == f.NONE:
        row[head] = after
    else:
        nodes[before, f.N_NEXT] = after
    if after == f.NONE:
        row[tail] = before
    else:
        nodes[after, f.N_PREVIOUS] = before


@compiled
def probe(sim: Sim, unit: int, leaf: int) -> int:
    """The arena index of the deepest block on the path to `leaf` that is resident, or f.NONE.

    Residency is closed under parents, so jump pointers find the border in O(log depth) look-ups.
    """
    at = leaf
    arena = sim.arena
    while at != f.NONE:
        if find(sim, unit, arena[at, f.A_KEY]) != f.NONE:
            return at
        jump = arena[at, f.A_JUMP]
        if jump != f.NONE and find(sim, unit, arena[jump, f.A_KEY]) == f.NONE:
            at = jump
        else:
            at = arena[at, f.A_PARENT]
    return f.NONE


@compiled
def host_blocks(sim: Sim, node: int) -> int:
    """How many of the blocks from `node` up live in the host tier."""
    count = 0
    while node != f.NONE and sim.node[node, f.N_HOST] == 1:
        count += 1
        node = sim.node[node, f.N_PARENT]
    return count


@compiled
def idle_blocks(sim: Sim, node: int) -> int:
    """How many HBM blocks from `node` up are in no request's use, and so in the eviction line."""
    nodes = sim.node
    while node != f.NONE and nodes[node, f.N_HOST] == 1:
        node = nodes[node, f.N_PARENT]
    count = 0
    while node != f.NONE and nodes[node, f.N_REFERENCES] == 0:
        count += 1
        node = nodes[node, f.N_PARENT]
    return count


@compiled
def drop(sim: Sim, node: int) -> None:
    remove_bucket(sim, node)
    sim.free_node[sim.scalars[f.G_FREE_NODES]] = node
    sim.scalars[f.G_FREE_NODES] += 1


@compiled
def evict(sim: Sim, unit: int) -> None:
    """Take the least recently used leaf out of HBM: one tier down, or away."""
    row = sim.unit[unit]
    node = row[f.U_LRU_HEAD]
    unlink(sim, row, f.U_LRU_HEAD, f.U_LRU_TAIL, node)
    row[f.U_EVICTABLE] -= 1
    row[f.U_RESIDENT] -= 1
    row[f.U_EVICTIONS] += 1
    row[f.U_FREE] += sim.pool[row[f.U_POOL], f.P_NODE_BLOCKS]
    if row[f.U_HOST_CAPACITY] == 0:
        drop(sim, node)
        return
    if row[f.U_HOST_COUNT] == row[f.U_HOST_CAPACITY]:
        oldest = row[f.U_HOST_HEAD]
        unlink(sim, row, f.U_HOST_HEAD, f.U_HOST_TAIL, oldest)
        row[f.U_HOST_COUNT] -= 1
        drop(sim, oldest)
    sim.node[node, f.N_HOST] = 1
    append(sim, row, f.U_HOST_HEAD, f.U_HOST_TAIL, node)
    row[f.U_HOST_COUNT] += 1


@compiled
def reclaim(sim: Sim, unit: int, blocks: int) -> None:
    """Evict until `blocks` KV blocks are free. The caller has checked that enough can be evicted."""
    row = sim.unit[unit]
    while row[f.U_FREE] < blocks:
        evict(sim, unit)


@compiled
def acquire(sim: Sim, unit: int, leaf: int, border: int) -> int:
    """Hold the whole path to `leaf`, whose deepest resident block is `border`; insert what is missing.

    Host blocks on the path come back to HBM. Returns the leaf's node.
    """
    nodes, arena, row = sim.node, sim.arena, sim.unit[unit]
    deepest = f.NONE
    if border != f.NONE:
        deepest = find(sim, unit, arena[border, f.A_KEY])
    promoted = 0
    node = deepest
    while node != f.NONE:
        if nodes[node, f.N_HOST] == 1:
            unlink(sim, row, f.U_HOST_HEAD, f.U_HOST_TAIL, node)
            row[f.U_HOST_COUNT] -= 1
            nodes[node, f.N_HOST] = 0
            promoted += 1
        elif nodes[node, f.N_REFERENCES] == 0:
            unlink(sim, row, f.U_LRU_HEAD, f.U_LRU_TAIL, node)
            row[f.U_EVICTABLE] -= 1
        nodes[node, f.N_REFERENCES] += 1
        node = nodes[node, f.N_PARENT]
    missing = arena[leaf, f.A_DEPTH] - (0 if border == f.NONE else arena[border, f.A_DEPTH])
    blocks = (promoted + missing) * sim.pool[row[f.U_POOL], f.P_NODE_BLOCKS]
    reclaim(sim, unit, blocks)
    row[f.U_FREE] -= blocks
    row[f.U_RESIDENT] += promoted + missing
    # New nodes are made from the leaf up; each one's parent is filled in when the parent is made.
    at = leaf
    child = f.NONE
    bottom = deepest
    while at != border:
        sim.scalars[f.G_FREE_NODES] -= 1
        node = sim.free_node[sim.scalars[f.G_FREE_NODES]]
        nodes[node, f.N_KEY] = arena[at, f.A_KEY]
        nodes[node, f.N_UNIT] = unit
        nodes[node, f.N_REFERENCES] = 1
        nodes[node, f.N_DEPTH] = arena[at, f.A_DEPTH]
        nodes[node, f.N_HOST] = 0
        nodes[node, f.N_PARENT] = deepest
        insert_bucket(sim, node)
        if child == f.NONE:
            bottom = node
        else:
            nodes[child, f.N_PARENT] = node
        child = node
        at = arena[at, f.A_PARENT]
    return bottom


@compiled
def release(sim: Sim, unit: int, node: int) -> None:
    """Let go of the path that ends in `node`; blocks nobody uses join the eviction line, deepest first."""
    nodes, row = sim.node, sim.unit[unit]
    while node != f.NONE:
        nodes[node, f.N_REFERENCES] -= 1
        if nodes[node, f.N_REFERENCES] == 0:
            append(sim, row, f.U_LRU_HEAD, f.U_LRU_TAIL, node)
            row[f.U_EVICTABLE] += 1
        node = nodes[node, f.N_PARENT]
