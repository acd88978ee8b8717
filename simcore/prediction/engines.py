"""Scheduler settings that planned configurations run with; data in `simcore/data/engines.yaml`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from simcore.cards.layout import Engine
from simcore.data.loader import read_data


@dataclass(frozen=True)
class EngineDefaults:
    """What a configuration says where the user says nothing. Engine-wide values."""

    max_running_requests: int
    max_batched_tokens: int
    chunk_tokens: int
    block_tokens: int
    source: str


@cache
def _load() -> dict[str, EngineDefaults]:
    document = read_data("engines.yaml")
    return {name: EngineDefaults(**row) for name, row in document.items()}


def engine_defaults(engine: Engine) -> EngineDefaults:
    """The settings of `engine`."""
    return _load()[engine.value]
