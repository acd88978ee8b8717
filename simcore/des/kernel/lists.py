"""Queues and heaps on the state arrays."""

from __future__ import annotations

from simcore.des.kernel import fields as f
from simcore.des.kernel.fields import Ints
from simcore.des.kernel.jit import compiled


@compiled
def enqueue(m: Ints, unit: int, slot: int) -> None:
    """Put `slot` into the unit's waiting line, ordered by sequence number (a preempted request goes to the front)."""
    sequence = m[slot + f.S_SEQUENCE]
    after = m[unit + f.U_TAIL]
    if after != f.NONE and sequence < m[m[unit + f.U_HEAD] + f.S_SEQUENCE]:
        after = f.NONE
    while after != f.NONE and m[after + f.S_SEQUENCE] > sequence:
        after = m[after + f.S_PREVIOUS]
    before = m[unit + f.U_HEAD] if after == f.NONE else m[after + f.S_NEXT]
    m[slot + f.S_PREVIOUS] = after
    m[slot + f.S_NEXT] = before
    if after == f.NONE:
        m[unit + f.U_HEAD] = slot
    else:
        m[after + f.S_NEXT] = slot
    if before == f.NONE:
        m[unit + f.U_TAIL] = slot
    else:
        m[before + f.S_PREVIOUS] = slot
    m[unit + f.U_WAITING] += 1
    m[f.G_WAITING_BLOCKS] += m[slot + f.S_BLOCKS]


@compiled
def dequeue(m: Ints, unit: int, slot: int) -> None:
    """Take `slot` out of the unit's waiting line."""
    after, before = m[slot + f.S_PREVIOUS], m[slot + f.S_NEXT]
    if after == f.NONE:
        m[unit + f.U_HEAD] = before
    else:
        m[after + f.S_NEXT] = before
    if before == f.NONE:
        m[unit + f.U_TAIL] = after
    else:
        m[before + f.S_PREVIOUS] = after
    m[unit + f.U_WAITING] -= 1
    m[f.G_WAITING_BLOCKS] -= m[slot + f.S_BLOCKS]


@compiled
def finishes_before(m: Ints, one: int, two: int) -> bool:
    """Order of decoders: token clock at the end, then sequence number."""
    if m[one + f.S_FINISH] != m[two + f.S_FINISH]:
        return bool(m[one + f.S_FINISH] < m[two + f.S_FINISH])
    return bool(m[one + f.S_SEQUENCE] < m[two + f.S_SEQUENCE])


@compiled
def sift_up(m: Ints, heap: int, at: int) -> None:
    item = m[heap + at]
    while at > 0:
        parent = (at - 1) >> 1
        if not finishes_before(m, item, m[heap + parent]):
            break
        m[heap + at] = m[heap + parent]
        at = parent
    m[heap + at] = item


@compiled
def sift_down(m: Ints, heap: int, count: int, at: int) -> None:
    item = m[heap + at]
    while True:
        child = 2 * at + 1
        if child >= count:
            break
        if child + 1 < count and finishes_before(m, m[heap + child + 1], m[heap + child]):
            child += 1
        if not finishes_before(m, m[heap + child], item):
            break
        m[heap + at] = m[heap + child]
        at = child
    m[heap + at] = item


@compiled
def push_decoder(m: Ints, lane: int, slot: int) -> None:
    count = m[lane + f.L_COUNT]
    m[m[lane + f.L_HEAP] + count] = slot
    sift_up(m, m[lane + f.L_HEAP], count)
    m[lane + f.L_COUNT] = count + 1


@compiled
def remove_decoder(m: Ints, lane: int, at: int) -> None:
    """Remove the heap entry at position `at`."""
    heap = m[lane + f.L_HEAP]
    count = m[lane + f.L_COUNT] - 1
    m[lane + f.L_COUNT] = count
    if at < count:
        m[heap + at] = m[heap + count]
        sift_down(m, heap, count, at)
        sift_up(m, heap, at)


@compiled
def remove_item(m: Ints, line: int, count: int, item: int) -> int:
    """Drop `item` from the `count` entries at `line`, keeping their order; the new count."""
    for at in range(count):
        if m[line + at] == item:
            for later in range(at, count - 1):
                m[line + later] = m[line + later + 1]
            return count - 1
    return count


@compiled
def is_earlier(m: Ints, one: int, two: int) -> bool:
    """Total order of events: time, then kind, then the number of the request or client."""
    if m[one + f.E_TIME] != m[two + f.E_TIME]:
        return bool(m[one + f.E_TIME] < m[two + f.E_TIME])
    if m[one + f.E_ORDER] != m[two + f.E_ORDER]:
        return bool(m[one + f.E_ORDER] < m[two + f.E_ORDER])
    return bool(m[one + f.E_KEY] < m[two + f.E_KEY])


@compiled
def move_event(m: Ints, target: int, source: int) -> None:
    for field in range(f.E_FIELDS):
        m[target + field] = m[source + field]


@compiled
def push_event(m: Ints, time_ps: int, order: int, key: int, payload: int) -> None:
    """Schedule an event; equal times go by `order`, then by `key`."""
    events = m[f.G_EVENT_AT]
    at = m[f.G_EVENTS]
    m[f.G_EVENTS] = at + 1
    while at > 0:
        parent = (at - 1) >> 1
        row = events + parent * f.E_FIELDS
        if m[row + f.E_TIME] < time_ps or (
            m[row + f.E_TIME] == time_ps
            and (m[row + f.E_ORDER] < order or (m[row + f.E_ORDER] == order and m[row + f.E_KEY] <= key))
        ):
            break
        move_event(m, events + at * f.E_FIELDS, row)
        at = parent
    row = events + at * f.E_FIELDS
    m[row + f.E_TIME] = time_ps
    m[row + f.E_ORDER] = order
    m[row + f.E_KEY] = key
    m[row + f.E_PAYLOAD] = payload


@compiled
def pop_event(m: Ints) -> None:
    """Remove the earliest event, the first row."""
    events = m[f.G_EVENT_AT]
    count = m[f.G_EVENTS] - 1
    m[f.G_EVENTS] = count
    last = events + count * f.E_FIELDS
    at = 0
    while count > 0:
        child = 2 * at + 1
        if child >= count:
            break
        row = events + child * f.E_FIELDS
        if child + 1 < count and is_earlier(m, row + f.E_FIELDS, row):
            child += 1
            row += f.E_FIELDS
        if not is_earlier(m, row, last):
            break
        move_event(m, events + at * f.E_FIELDS, row)
        at = child
    move_event(m, events + at * f.E_FIELDS, last)
