"""Scheduler settings that planned configurations run with; data in `simcore/data/engines.yaml`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import resources

import yaml

from simcore.cards.layout import Engine


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
    document = yaml.safe_load(resources.files("simcore.data").joinpath("engines.yaml").read_text())
    return {name: EngineDefaults(**row) for name, row in document.items()}


def engine_defaults(engine: Engine) -> EngineDefaults:
    """The settings of `engine`."""
    return _load()[engine.value]
