"""Measured acceptance of drafters: accepted length by depth, per model and head, each with its source.

Nothing is assumed silently: `find_acceptance` refuses a model nobody measured; `borrow_acceptance` is the paper's
fallback, which a plan has to ask for and to report.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from statistics import median
from typing import Any, Final

from simcore.data.loader import parse_yaml
from simcore.errors import FormatError, UnknownNameError

_KEYS: Final = frozenset({"model", "checkpoint", "drafter", "thinking", "variant", "accepted_length_tokens", "source"})
_STORAGE: Final = re.compile(r"-(bf16|fp8(-ptpc)?|mxfp4|nvfp4|fp4|int4)$")
_SIBLING: Final = {"mtp": "eagle3", "eagle3": "mtp"}


@dataclass(frozen=True)
class AcceptanceCurve:
    """L(1..K) of one drafter on one model: mean tokens that a verify step commits, the verified one included."""

    model: str
    checkpoint: str
    drafter: str
    thinking: bool
    variant: str
    accepted_length_tokens: tuple[float, ...]
    source: str
    borrowed: str = ""
    """Why the curve is not the model's own; empty when it is. Shown in outputs."""


def parse_acceptance(text: str, where: str) -> tuple[AcceptanceCurve, ...]:
    """The curves of one YAML file. Raises FormatError for unknown keys, a missing source or impossible lengths."""
    raw = parse_yaml(text, where)
    if not isinstance(raw, list):
        raise FormatError(where, None, "file", type(raw).__name__, "be a list of curves")
    return tuple(_curve(item, where, number) for number, item in enumerate(raw, start=1))


def _curve(item: Any, where: str, number: int) -> AcceptanceCurve:
    if not isinstance(item, dict) or set(item) != _KEYS:
        raise FormatError(where, number, "curve", item, "have exactly the keys " + ", ".join(sorted(_KEYS)))
    if not str(item["source"]).strip():
        raise FormatError(where, number, "source", item["source"], "not be empty")
    lengths = tuple(float(value) for value in item["accepted_length_tokens"])
    if not lengths or not all(1.0 <= tokens <= depth + 1 for depth, tokens in enumerate(lengths, start=1)):
        raise FormatError(where, number, "accepted_length_tokens", lengths, "lie in [1, depth + 1] at every depth")
    return AcceptanceCurve(
        str(item["model"]),
        str(item["checkpoint"]),
        str(item["drafter"]),
        bool(item["thinking"]),
        str(item["variant"]),
        lengths,
        str(item["source"]),
    )


@cache
def load_acceptance() -> tuple[AcceptanceCurve, ...]:
    """All curves that ship with simcore."""
    folder = resources.files("simcore.data").joinpath("acceptance")
    files = sorted((entry for entry in folder.iterdir() if entry.name.endswith(".yaml")), key=lambda entry: entry.name)
    return tuple(curve for entry in files for curve in parse_acceptance(entry.read_text(encoding="utf-8"), entry.name))


def find_acceptance(*, model: str, drafter: str, thinking: bool = True, variant: str = "") -> AcceptanceCurve:
    """The curve measured for `model` with `drafter`, by model or checkpoint name. Raises UnknownNameError if none."""
    wanted = {model.strip().lower(), _STORAGE.sub("", model.strip().lower())}  # a checkpoint in another format fits
    for curve in load_acceptance():
        named = not wanted.isdisjoint({curve.model.lower(), curve.checkpoint.lower()})
        if named and (curve.drafter, curve.thinking, curve.variant) == (drafter, thinking, variant):
            return curve
    known = {f"{curve.model}/{curve.drafter}" for curve in load_acceptance()}
    raise UnknownNameError("speculation.acceptance", f"{model}/{drafter}", known)


def borrow_acceptance(*, model: str, drafter: str, thinking: bool = True) -> AcceptanceCurve:
    """The model's own curve, else its sibling head's, else the drafter's per-depth median over models (App. A.2).

    The result says in `borrowed` which it is. Raises UnknownNameError for a drafter that nobody measured (n-gram).
    """
    try:
        return find_acceptance(model=model, drafter=drafter, thinking=thinking)
    except UnknownNameError as refusal:
        sibling = _SIBLING.get(drafter)
        if sibling is not None:
            try:
                own = find_acceptance(model=model, drafter=sibling, thinking=thinking)
            except UnknownNameError:
                pass
            else:
                reason = f"curve of the sibling head {sibling}"
                return AcceptanceCurve(
                    own.model, own.checkpoint, drafter, thinking, "", own.accepted_length_tokens, own.source, reason
                )
        curves = [c for c in load_acceptance() if (c.drafter, c.thinking, c.variant) == (drafter, thinking, "")]
        if not curves:
            raise refusal
        reason = f"median of {drafter} over " + ", ".join(sorted(curve.model for curve in curves))
        return AcceptanceCurve(model, "", drafter, thinking, "", _median(curves), "see `borrowed`", reason)


def _median(curves: Sequence[AcceptanceCurve]) -> tuple[float, ...]:
    columns = zip(*(curve.accepted_length_tokens for curve in curves), strict=False)
    return tuple(float(median(column)) for column in columns)
