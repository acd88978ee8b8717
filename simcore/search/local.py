"""Deterministic local search from the best trial so far: what runs where no language model is configured."""

from __future__ import annotations

from collections.abc import Iterator

from simcore.search.ledger import Session
from simcore.search.levers import Value
from simcore.search.seeds import SEED_ORDER
from simcore.search.space import WIDTHS, Configuration, Space

Move = tuple[str, dict[str, Value]]


def moves(space: Space, at: Configuration) -> Iterator[list[Move]]:
    """Groups of changes from the completed configuration `at`, in a fixed order.

    Widths move together, because they are legal only together, and with them the replicas that the budget then holds.
    Levers with an order move to their neighbours and ends, words to every other value.
    """
    yield list(_layout_moves(space, at))
    for name in SEED_ORDER:
        if name in WIDTHS:
            continue
        if name == "speculation.method":
            yield list(_speculation_moves(space, at))
        elif name == "load.concurrency":
            yield list(_load_moves(space, at))
        else:
            yield [(name, {name: value}) for value in _others(space.legal_values[name], at[name])]


def _layout_moves(space: Space, at: Configuration) -> Iterator[Move]:
    budget, clients = space.cluster.gpu_budget_count, int(at["load.concurrency"])
    for layout in space.layouts:
        widths = space.widths(layout)
        most = max(1, min(budget // space.gpus_count(layout), clients))
        for replicas in sorted({1, most, min(int(at["replicas"]), most)}):
            if replicas in space.legal_values["replicas"]:
                yield "layout", {**widths, "replicas": replicas}


def _load_moves(space: Space, at: Configuration) -> Iterator[Move]:
    """With fewer clients than replicas some would be idle: then as many replicas as there are offered for so few."""
    for clients in _others(space.legal_values["load.concurrency"], at["load.concurrency"]):
        fit = [value for value in space.legal_values["replicas"] if int(value) <= int(clients)]
        replicas = at["replicas"] if at["replicas"] in fit else fit[-1]
        yield "load.concurrency", {"load.concurrency": clients, "replicas": replicas}


def _speculation_moves(space: Space, at: Configuration) -> Iterator[Move]:
    method, depth = at["speculation.method"], at["speculation.draftTokens"]
    for other in space.legal_values["speculation.method"]:
        for tokens in space.legal_values["speculation.draftTokens"]:
            if (other == "none") == (tokens == 0) and (other, tokens) != (method, depth):
                yield "speculation", {"speculation.method": other, "speculation.draftTokens": tokens}


def _others(values: tuple[Value, ...], current: Value) -> list[Value]:
    numbers = sorted(value for value in values if isinstance(value, int))
    words = [value for value in values if isinstance(value, str) and value != current]
    if not isinstance(current, int) or len(numbers) <= 3:
        return [*words, *(value for value in numbers if value != current)]
    at = numbers.index(current)
    chosen = {numbers[0], numbers[max(at - 1, 0)], numbers[min(at + 1, len(numbers) - 1)], numbers[-1]}
    return [*words, *sorted(chosen - {current})]


def run_local(session: Session) -> None:
    """From the best trial, or the nearest to being legal, take the best change of each group in turn, until a whole
    round changes nothing."""
    space = session.space
    while (before := session.leader) is not None:
        at = space.complete(before.trial.configuration)
        for group in moves(space, at):
            for label, change in group:
                configuration = {**at, **change}
                if space.structural_reasons(configuration):
                    continue
                if session.try_(configuration, f"local: {label}") is None:
                    return
            leader = session.leader
            assert leader is not None  # noqa: S101 - there was one, and one never goes
            at = space.complete(leader.trial.configuration)
        if session.leader is before:
            return
