"""Predict and search LLM serving configurations: pure functions, no clock, no network, no cluster.

The public names are imported when first used, so that `import simcore` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simcore.des.replay import replay_document as replay
    from simcore.prediction.one import predict
    from simcore.prediction.scenario import load_scenario
    from simcore.search.plan import answer as sweep

__all__ = ["load_scenario", "predict", "replay", "sweep"]

_HOMES = {
    "load_scenario": ("simcore.prediction.scenario", "load_scenario"),
    "predict": ("simcore.prediction.one", "predict"),
    "replay": ("simcore.des.replay", "replay_document"),
    "sweep": ("simcore.search.plan", "answer"),
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'simcore' has no attribute {name!r}")
    module, attribute = _HOMES[name]
    return getattr(importlib.import_module(module), attribute)
