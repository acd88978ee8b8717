"""Seeds: the safe baseline, then one lever at a time, so that each gain has a clear cause (paper section 4, App. J)."""

from __future__ import annotations

from collections.abc import Iterator

from simcore.search.ledger import Session
from simcore.search.levers import Value
from simcore.search.space import Space

SEED_ORDER = (
    "layout.tensorParallel",
    "layout.attentionDataParallel",
    "kvDtype",
    "load.concurrency",
    "maxRunningRequests",
    "maxBatchedTokens",
    "chunkTokens",
    "memoryPermille",
    "blockSize",
    "speculation.method",
    "layout.expertParallel",
    "moeBackend",
    "attentionBackend",
    "fusions",
    "replicas",
    "layout.pipelineParallel",
)
"""Levers that move, in the paper's order: TP, attention DP, precision, load, scheduler, drafts, EP, MoE options."""


def seed_list(space: Space) -> Iterator[tuple[str, dict[str, Value]]]:
    """(label, partial configuration) of the baseline and of every structurally legal change of one lever, in order.

    A speculation method comes with each depth, because neither is legal without the other.
    """
    yield "baseline", {}
    baseline = space.complete({})
    for name in SEED_ORDER:
        for value in space.legal_values[name]:
            if value == baseline[name]:
                continue
            for partial in _partials(space, name, value):
                if not space.structural_reasons(space.complete(partial)):
                    yield name, partial


def _partials(space: Space, name: str, value: Value) -> Iterator[dict[str, Value]]:
    if name != "speculation.method":
        yield {name: value}
        return
    for depth in space.legal_values["speculation.draftTokens"]:
        if depth:
            yield {name: value, "speculation.draftTokens": depth}


def run_seeds(session: Session, *, most_count: int | None = None) -> None:
    """Score the first `most_count` seeds (all when None), or as many as the session allows."""
    for number, (label, partial) in enumerate(seed_list(session.space)):
        if most_count is not None and number >= most_count:
            return
        if session.try_(partial, f"seed: {label}") is None:
            return
