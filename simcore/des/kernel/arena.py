"""Prompts as paths in a tree of blocks: chained content keys and jump pointers.

Rows are relative to the batch they are built in; `State` turns them into addresses when it loads the batch.
"""

# mypy: disable-error-code="no-any-return"
# (an element of an int64 array is Any to mypy)

from __future__ import annotations

from typing import Final

from simcore.des.kernel import fields as f
from simcore.des.kernel.fields import Ints
from simcore.des.kernel.jit import compiled, entry

KEY_MIX_ONE: Final = 0x3F4A7C15B97F4A7D
KEY_MIX_TWO: Final = 0x5851F42D4C957F2D


@compiled
def chain_key(parent_key: int, block_id: int) -> int:
    """Key of a block from its content id and the key of the whole prefix before it."""
    key = (parent_key ^ (block_id * KEY_MIX_ONE)) + KEY_MIX_TWO
    key = (key ^ ((key >> 30) & 0x3FFFFFFFF)) * KEY_MIX_TWO
    return key ^ ((key >> 27) & 0x1FFFFFFFFF)


@entry
def extend(arena: Ints, at: int, parent: int, root_key: int, ids: Ints) -> int:
    """Append a row for each of `ids` below row `parent` (NONE: a new path); the row of the last one.

    `arena`: (rows, A_FIELDS) with room from row `at` on. `root_key` tells scopes apart whose ids mean different blocks.
    """
    for number in range(len(ids)):
        key, depth, jump = root_key, 0, f.NONE
        if parent != f.NONE:
            key, depth = arena[parent, f.A_KEY], arena[parent, f.A_DEPTH]
            above = arena[parent, f.A_JUMP]
            above_depth, top, top_depth = 0, f.NONE, 0
            if above != f.NONE:
                above_depth = arena[above, f.A_DEPTH]
                top = arena[above, f.A_JUMP]
                if top != f.NONE:
                    top_depth = arena[top, f.A_DEPTH]
            jump = top if depth - above_depth == above_depth - top_depth else parent
        row = at + number
        arena[row, f.A_KEY] = chain_key(key, ids[number])
        arena[row, f.A_PARENT] = parent
        arena[row, f.A_JUMP] = jump
        arena[row, f.A_DEPTH] = depth + 1
        parent = row
    return parent


@entry
def ancestor(arena: Ints, row: int, depth: int) -> int:
    """The row `depth` blocks from the root on the path to `row`; NONE for depth 0."""
    while row != f.NONE and arena[row, f.A_DEPTH] > depth:
        jump = arena[row, f.A_JUMP]
        if jump != f.NONE and arena[jump, f.A_DEPTH] >= depth:
            row = jump
        else:
            row = arena[row, f.A_PARENT]
    return row


@entry
def place(m: Ints, address: int, arena: Ints) -> None:
    """Copy a batch's rows to `address` of the kernel's memory, links made absolute."""
    for row in range(len(arena)):
        target = address + row * f.A_FIELDS
        m[target + f.A_KEY] = arena[row, f.A_KEY]
        m[target + f.A_DEPTH] = arena[row, f.A_DEPTH]
        parent, jump = arena[row, f.A_PARENT], arena[row, f.A_JUMP]
        m[target + f.A_PARENT] = f.NONE if parent == f.NONE else address + parent * f.A_FIELDS
        m[target + f.A_JUMP] = f.NONE if jump == f.NONE else address + jump * f.A_FIELDS
