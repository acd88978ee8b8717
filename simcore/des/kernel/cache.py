"""The block cache of each unit: a tree of content-addressed blocks, leaf-first LRU, and a host tier below.

A resident block is a *node* with its parent. Requests hold references along their whole path, so a block in use has its
ancestors in use. When a request ends its path is appended to the eviction line deepest block first; a block is
therefore always behind its children there, and taking the line's head is taking the least recently used *leaf*.

Prefix blocks are the workload's; a node's size is how many KV blocks of the engine end in it, for only full ones are
cached. It is 0 where the engine's blocks are the larger ones.
"""

# mypy: disable-error-code="no-any-return"
# (an element of an int64 array is Any to mypy)

from __future__ import annotations

from simcore.des.kernel import fields as f
from simcore.des.kernel.fields import Ints
from simcore.des.kernel.jit import compiled
from simcore.errors import InternalError

MIX = 0x2545F4914F6CDD1D
UNIT_MIX = 0x1F83D9ABFB41BD6B


@compiled
def bucket_of(m: Ints, unit: int, key: int) -> int:
    mixed = (key ^ (unit * UNIT_MIX)) * MIX
    return (mixed ^ (mixed >> 29)) & m[f.G_BUCKET_MASK]


@compiled
def find(m: Ints, unit: int, key: int) -> int:
    """The node that holds block `key` on `unit` in either tier, or NONE."""
    at = bucket_of(m, unit, key)
    mask = m[f.G_BUCKET_MASK]
    while True:
        node = m[m[f.G_BUCKET_AT] + at]
        if node == f.NONE:
            return f.NONE
        if m[node + f.N_KEY] == key and m[node + f.N_UNIT] == unit:
            return node
        at = (at + 1) & mask


@compiled
def insert_bucket(m: Ints, node: int) -> None:
    at = bucket_of(m, m[node + f.N_UNIT], m[node + f.N_KEY])
    mask = m[f.G_BUCKET_MASK]
    while m[m[f.G_BUCKET_AT] + at] != f.NONE:
        at = (at + 1) & mask
    m[m[f.G_BUCKET_AT] + at] = node


@compiled
def remove_bucket(m: Ints, node: int) -> None:
    """Delete with backward shift, so that no search path is broken."""
    mask = m[f.G_BUCKET_MASK]
    at = bucket_of(m, m[node + f.N_UNIT], m[node + f.N_KEY])
    while m[m[f.G_BUCKET_AT] + at] != node:
        at = (at + 1) & mask
    hole = at
    while True:
        at = (at + 1) & mask
        other = m[m[f.G_BUCKET_AT] + at]
        if other == f.NONE:
            break
        home = bucket_of(m, m[other + f.N_UNIT], m[other + f.N_KEY])
        if ((at - home) & mask) >= ((at - hole) & mask):
            m[m[f.G_BUCKET_AT] + hole] = other
            hole = at
    m[m[f.G_BUCKET_AT] + hole] = f.NONE


@compiled
def append(m: Ints, head: int, tail: int, node: int) -> None:
    """Append `node` to the line whose ends are kept at addresses `head` and `tail`."""
    last = m[tail]
    m[node + f.N_PREVIOUS] = last
    m[node + f.N_NEXT] = f.NONE
    if last == f.NONE:
        m[head] = node
    else:
        m[last + f.N_NEXT] = node
    m[tail] = node


@compiled
def unlink(m: Ints, head: int, tail: int, node: int) -> None:
    before, after = m[node + f.N_PREVIOUS], m[node + f.N_NEXT]
    if before == f.NONE:
        m[head] = after
    else:
        m[before + f.N_NEXT] = after
    if after == f.NONE:
        m[tail] = before
    else:
        m[after + f.N_PREVIOUS] = before


@compiled
def probe(m: Ints, unit: int, leaf: int) -> int:
    """The arena index of the deepest block on the path to `leaf` that is resident, or NONE.

    Residency is closed under parents, so jump pointers find the border in O(log depth) look-ups.
    """
    at = leaf
    while at != f.NONE:
        if find(m, unit, m[at + f.A_KEY]) != f.NONE:
            return at
        jump = m[at + f.A_JUMP]
        if jump != f.NONE and find(m, unit, m[jump + f.A_KEY]) == f.NONE:
            at = jump
        else:
            at = m[at + f.A_PARENT]
    return f.NONE


@compiled
def border_of(m: Ints, unit: int, slot: int) -> int:
    """As `probe` for a waiting request, which keeps the answer: it holds while the border block is resident and the one
    after it is not.
    """
    border, beyond = m[slot + f.S_BORDER], m[slot + f.S_BEYOND]
    if border != f.UNKNOWN:
        is_there = border == f.NONE or find(m, unit, m[border + f.A_KEY]) != f.NONE
        if is_there and (beyond == f.NONE or find(m, unit, m[beyond + f.A_KEY]) == f.NONE):
            return border
    at, beyond = m[slot + f.S_LEAF], f.NONE
    while at != f.NONE and find(m, unit, m[at + f.A_KEY]) == f.NONE:
        beyond = at
        jump = m[at + f.A_JUMP]
        if jump != f.NONE and find(m, unit, m[jump + f.A_KEY]) == f.NONE:
            at = jump
            beyond = at
        at = m[at + f.A_PARENT]
    m[slot + f.S_BORDER] = at
    m[slot + f.S_BEYOND] = beyond
    return at


@compiled
def full_blocks(m: Ints, pool: int, slot: int, depth: int) -> int:
    """KV blocks that the first `depth` prefix blocks of the prompt fill."""
    return min(depth * m[f.G_BLOCK_TOKENS], m[slot + f.S_PROMPT]) // m[pool + f.P_BLOCK]


@compiled
def hit_tokens(m: Ints, pool: int, slot: int, depth: int, target: int) -> int:
    """Of `target` tokens to compute, those that `depth` resident prefix blocks save: full KV blocks, and not all."""
    block = m[pool + f.P_BLOCK]
    return min(full_blocks(m, pool, slot, depth), (target - 1) // block) * block


@compiled
def host_nodes(m: Ints, node: int) -> tuple[int, int]:
    """How many of the prefix blocks from `node` up live in the host tier, and their KV blocks."""
    count, size = 0, 0
    while node != f.NONE and m[node + f.N_HOST] == 1:
        count += 1
        size += m[node + f.N_SIZE]
        node = m[node + f.N_PARENT]
    return count, size


@compiled
def idle_blocks(m: Ints, node: int) -> int:
    """KV blocks in HBM from `node` up that are in no request's use, and so in the eviction line."""
    while node != f.NONE and m[node + f.N_HOST] == 1:
        node = m[node + f.N_PARENT]
    size = 0
    while node != f.NONE and m[node + f.N_REFERENCES] == 0:
        size += m[node + f.N_SIZE]
        node = m[node + f.N_PARENT]
    return size


@compiled
def drop(m: Ints, node: int) -> None:
    remove_bucket(m, node)
    m[node + f.N_REFERENCES] = f.NONE  # marks a free node
    m[node + f.N_NEXT] = m[f.G_FREE_NODE]
    m[f.G_FREE_NODE] = node
    m[f.G_FREE_NODES] += 1


@compiled
def evict(m: Ints, unit: int) -> None:
    """Take the least recently used leaf out of HBM: one tier down, or away."""
    node = m[unit + f.U_LRU_HEAD]
    if node == f.NONE:
        raise InternalError("KV blocks are needed that are neither free nor in an unused cached block")
    unlink(m, unit + f.U_LRU_HEAD, unit + f.U_LRU_TAIL, node)
    m[unit + f.U_EVICTABLE] -= m[node + f.N_SIZE]
    m[unit + f.U_RESIDENT] -= 1
    m[unit + f.U_EVICTIONS] += 1
    m[unit + f.U_FREE] += m[node + f.N_SIZE]
    if m[unit + f.U_HOST_CAPACITY] == 0:
        drop(m, node)
        return
    if m[unit + f.U_HOST_COUNT] == m[unit + f.U_HOST_CAPACITY]:
        oldest = m[unit + f.U_HOST_HEAD]
        unlink(m, unit + f.U_HOST_HEAD, unit + f.U_HOST_TAIL, oldest)
        m[unit + f.U_HOST_COUNT] -= 1
        drop(m, oldest)
    m[node + f.N_HOST] = 1
    append(m, unit + f.U_HOST_HEAD, unit + f.U_HOST_TAIL, node)
    m[unit + f.U_HOST_COUNT] += 1


@compiled
def reclaim(m: Ints, unit: int, blocks: int) -> None:
    """Evict until `blocks` KV blocks are free. The caller has checked that enough can be evicted."""
    while m[unit + f.U_FREE] < blocks:
        evict(m, unit)


@compiled
def acquire(m: Ints, unit: int, slot: int, border: int) -> int:
    """Hold the prompt's whole path, whose deepest resident block is `border`; insert what is missing.

    Host blocks on the path come back to HBM. Returns the leaf's node.
    """
    pool, leaf = m[unit + f.U_POOL], m[slot + f.S_LEAF]
    deepest, depth = f.NONE, 0
    if border != f.NONE:
        deepest, depth = find(m, unit, m[border + f.A_KEY]), m[border + f.A_DEPTH]
    promoted, blocks = 0, full_blocks(m, pool, slot, m[leaf + f.A_DEPTH]) - full_blocks(m, pool, slot, depth)
    node = deepest
    while node != f.NONE:
        if m[node + f.N_HOST] == 1:
            unlink(m, unit + f.U_HOST_HEAD, unit + f.U_HOST_TAIL, node)
            m[unit + f.U_HOST_COUNT] -= 1
            m[node + f.N_HOST] = 0
            promoted += 1
            blocks += m[node + f.N_SIZE]
        elif m[node + f.N_REFERENCES] == 0:
            unlink(m, unit + f.U_LRU_HEAD, unit + f.U_LRU_TAIL, node)
            m[unit + f.U_EVICTABLE] -= m[node + f.N_SIZE]
        m[node + f.N_REFERENCES] += 1
        node = m[node + f.N_PARENT]
    reclaim(m, unit, blocks)
    m[unit + f.U_FREE] -= blocks
    m[unit + f.U_RESIDENT] += promoted + m[leaf + f.A_DEPTH] - depth
    # New nodes are made from the leaf up; each one's parent is filled in when the parent is made.
    at = leaf
    child = f.NONE
    bottom = deepest
    while at != border:
        m[f.G_FREE_NODES] -= 1
        node = m[f.G_FREE_NODE]
        m[f.G_FREE_NODE] = m[node + f.N_NEXT]
        m[node + f.N_KEY] = m[at + f.A_KEY]
        m[node + f.N_UNIT] = unit
        m[node + f.N_REFERENCES] = 1
        m[node + f.N_DEPTH] = m[at + f.A_DEPTH]
        m[node + f.N_HOST] = 0
        m[node + f.N_SIZE] = full_blocks(m, pool, slot, m[at + f.A_DEPTH])
        m[node + f.N_SIZE] -= full_blocks(m, pool, slot, m[at + f.A_DEPTH] - 1)
        m[node + f.N_PARENT] = deepest
        insert_bucket(m, node)
        if child == f.NONE:
            bottom = node
        else:
            m[child + f.N_PARENT] = node
        child = node
        at = m[at + f.A_PARENT]
    return bottom


@compiled
def release(m: Ints, unit: int, node: int) -> None:
    """Let go of the path that ends in `node`; blocks nobody uses join the eviction line, deepest first."""
    while node != f.NONE:
        m[node + f.N_REFERENCES] -= 1
        if m[node + f.N_REFERENCES] == 0:
            append(m, unit + f.U_LRU_HEAD, unit + f.U_LRU_TAIL, node)
            m[unit + f.U_EVICTABLE] += m[node + f.N_SIZE]
        node = m[node + f.N_PARENT]
