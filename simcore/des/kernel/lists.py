"""Queues and heaps on the state arrays."""

from __future__ import annotations

from simcore.des.kernel import fields as f
from simcore.des.kernel.fields import Ints, Sim
from simcore.des.kernel.jit import compiled


@compiled
def enqueue(sim: Sim, unit: int, slot: int) -> None:
    """Put `slot` into the unit's waiting line, ordered by sequence number (a preempted request goes to the front)."""
    slots, row = sim.slot, sim.unit[unit]
    sequence = slots[slot, f.S_SEQUENCE]
    after = row[f.U_TAIL]
    if after != f.NONE and sequence < slots[row[f.U_HEAD], f.S_SEQUENCE]:
        after = f.NONE
    while after != f.NONE and slots[after, f.S_SEQUENCE] > sequence:
        after = slots[after, f.S_PREVIOUS]
    before = row[f.U_HEAD] if after == f.NONE else slots[after, f.S_NEXT]
    slots[slot, f.S_PREVIOUS] = after
    slots[slot, f.S_NEXT] = before
    if after == f.NONE:
        row[f.U_HEAD] = slot
    else:
        slots[after, f.S_NEXT] = slot
    if before == f.NONE:
        row[f.U_TAIL] = slot
    else:
        slots[before, f.S_PREVIOUS] = slot
    row[f.U_WAITING] += 1
    sim.scalars[f.G_WAITING_BLOCKS] += slots[slot, f.S_BLOCKS]


@compiled
def dequeue(sim: Sim, unit: int, slot: int) -> None:
    """Take `slot` out of the unit's waiting line."""
    slots, row = sim.slot, sim.unit[unit]
    after, before = slots[slot, f.S_PREVIOUS], slots[slot, f.S_NEXT]
    if after == f.NONE:
        row[f.U_HEAD] = before
    else:
        slots[after, f.S_NEXT] = before
    if before == f.NONE:
        row[f.U_TAIL] = after
    else:
        slots[before, f.S_PREVIOUS] = after
    row[f.U_WAITING] -= 1
    sim.scalars[f.G_WAITING_BLOCKS] -= slots[slot, f.S_BLOCKS]


@compiled
def finishes_before(slots: Ints, one: int, two: int) -> bool:
    """Order of decoders: token clock at the end, then sequence number."""
    if slots[one, f.S_FINISH] != slots[two, f.S_FINISH]:
        return bool(slots[one, f.S_FINISH] < slots[two, f.S_FINISH])
    return bool(slots[one, f.S_SEQUENCE] < slots[two, f.S_SEQUENCE])


@compiled
def sift_up(slots: Ints, heap: Ints, at: int) -> None:
    item = heap[at]
    while at > 0:
        parent = (at - 1) >> 1
        if not finishes_before(slots, item, heap[parent]):
            break
        heap[at] = heap[parent]
        at = parent
    heap[at] = item


@compiled
def sift_down(slots: Ints, heap: Ints, count: int, at: int) -> None:
    item = heap[at]
    while True:
        child = 2 * at + 1
        if child >= count:
            break
        if child + 1 < count and finishes_before(slots, heap[child + 1], heap[child]):
            child += 1
        if not finishes_before(slots, heap[child], item):
            break
        heap[at] = heap[child]
        at = child
    heap[at] = item


@compiled
def push_decoder(sim: Sim, lane: int, slot: int) -> None:
    count = sim.lane[lane, f.L_COUNT]
    sim.heap[lane, count] = slot
    sift_up(sim.slot, sim.heap[lane], count)
    sim.lane[lane, f.L_COUNT] = count + 1


@compiled
def remove_decoder(sim: Sim, lane: int, at: int) -> None:
    """Remove the heap entry at position `at`."""
    heap = sim.heap[lane]
    count = sim.lane[lane, f.L_COUNT] - 1
    sim.lane[lane, f.L_COUNT] = count
    if at < count:
        heap[at] = heap[count]
        sift_down(sim.slot, heap, count, at)
        sift_up(sim.slot, heap, at)


@compiled
def remove_item(row: Ints, count: int, item: int) -> int:
    """Drop `item` from the first `count` entries, keeping their order; the new count."""
    for at in range(count):
        if row[at] == item:
            for later in range(at, count - 1):
                row[later] = row[later + 1]
            return count - 1
    return count


@compiled
def is_earlier(one: Ints, two: Ints) -> bool:
    if one[f.E_TIME] != two[f.E_TIME]:
        return bool(one[f.E_TIME] < two[f.E_TIME])
    if one[f.E_ORDER] != two[f.E_ORDER]:
        return bool(one[f.E_ORDER] < two[f.E_ORDER])
    return bool(one[f.E_KEY] < two[f.E_KEY])


@compiled
def push_event(sim: Sim, time_ps: int, order: int, key: int, payload: int) -> None:
    """Schedule an event; equal times go by `order`, then by `key`."""
    events = sim.event
    at = sim.scalars[f.G_EVENTS]
    sim.scalars[f.G_EVENTS] = at + 1
    while at > 0:
        parent = (at - 1) >> 1
        row = events[parent]
        if row[f.E_TIME] < time_ps or (
            row[f.E_TIME] == time_ps and (row[f.E_ORDER] < order or (row[f.E_ORDER] == order and row[f.E_KEY] <= key))
        ):
            break
        events[at] = row
        at = parent
    events[at, f.E_TIME] = time_ps
    events[at, f.E_ORDER] = order
    events[at, f.E_KEY] = key
    events[at, f.E_PAYLOAD] = payload


@compiled
def pop_event(sim: Sim) -> None:
    """Remove the earliest event, which is at row 0."""
    events = sim.event
    count = sim.scalars[f.G_EVENTS] - 1
    sim.scalars[f.G_EVENTS] = count
    if count == 0:
        return
    last = events[count]
    at = 0
    while True:
        child = 2 * at + 1
        if child >= count:
            break
        if child + 1 < count and is_earlier(events[child + 1], events[child]):
            child += 1
        if not is_earlier(events[child], last):
            break
        events[at] = events[child]
        at = child
    events[at] = last
