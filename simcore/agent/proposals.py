"""The planner's answer, read strictly: hypotheses and partial configurations out of whatever text came back."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

MOST_PROPOSALS: Final = 8
"""Partial configurations taken of one plan; the planner is asked for 5 to 8 (paper section 4)."""
MOST_HYPOTHESES: Final = 5
MAX_TEXT: Final = 200_000
"""Characters of an answer that are looked at."""


@dataclass(frozen=True)
class SearchPlan:
    """What the planner proposes; nothing in it is believed, only tried."""

    rationale: str
    hypotheses: tuple[str, ...]
    proposals: tuple[Any, ...]
    """Most promising first."""
    polish: str


def read_plan(*, rationale: object, hypotheses: object, configurations: object, polish: object) -> SearchPlan:
    """A plan of bounded size; parts that cannot be read are empty."""
    listed = hypotheses if isinstance(hypotheses, list | tuple) else str(hypotheses or "").splitlines()
    lines = tuple(str(item).strip()[:500] for item in listed if str(item).strip())
    return SearchPlan(
        str(rationale or "")[:2000],
        lines[:MOST_HYPOTHESES],
        tuple(_items(configurations)[:MOST_PROPOSALS]),
        str(polish or "")[:2000],
    )


def _items(value: object) -> list[Any]:
    """The objects of a JSON array that may be wrapped in prose or a code fence."""
    if isinstance(value, str):
        value = _first_array(value[:MAX_TEXT])
    if isinstance(value, dict):
        value = [value]
    if not isinstance(value, list | tuple):
        return []
    return [item for item in value if isinstance(item, dict)]


def _first_array(text: str) -> object:
    """The first JSON array in `text`; a few starts are tried, so that hostile text costs little."""
    decoder = json.JSONDecoder()
    start = -1
    for _ in range(16):
        start = text.find("[", start + 1)
        if start < 0:
            return []
        try:
            return decoder.raw_decode(text, start)[0]
        except (ValueError, RecursionError):
            continue
    return []
