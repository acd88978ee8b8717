"""Measured and assumed constants, each with unit, kind, source and uncertainty; nothing loads without a source.

A set is a directory of YAML files named by its date. Values in a set are never edited: a new set is added beside it,
and `CURRENT_SET` selects it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib import resources
from math import isfinite
from types import MappingProxyType
from typing import Any, Final

from simcore.data.loader import parse_yaml
from simcore.errors import FormatError, UnknownNameError
from simcore.units import SUFFIXES

CURRENT_SET: Final = "2026-11"

UNIT_OF_SUFFIX: Final[Mapping[str, str]] = MappingProxyType(
    {
        "_s": "s",
        "_bytes": "B",
        "_bytes_per_s": "B/s",
        "_s_per_token": "s/token",
        "_s_per_request": "s/request",
        "_frac": "1",
        "_factor": "1",
        "_ratio": "1",
        "_count": "1",
        "_tokens": "token",
    }
)


class Kind(StrEnum):
    """How a value came to be known."""

    DATASHEET = "datasheet"
    MEASURED = "measured"
    FITTED = "fitted"
    PAPER = "paper"
    """Printed in the paper's text without saying how it was obtained."""
    ASSUMED = "assumed"
    """Ours, not measured by anyone we can cite; shows up in outputs."""


@dataclass(frozen=True)
class Constant:
    """One record; `value` is in `unit`, `points` holds (x, value) pairs where the record is a curve."""

    name: str
    value: float
    unit: str
    kind: Kind
    source: str
    uncertainty: str
    applies_to: str
    note: str
    points: tuple[tuple[float, float], ...] = ()
    x_unit: str = ""

    @property
    def is_assumed(self) -> bool:
        return self.kind is Kind.ASSUMED

    def is_measured_on(self, accelerator: str) -> bool:
        """Whether the record was taken on `accelerator`; elsewhere it is borrowed, and outputs say so."""
        return self.applies_to == "any" or accelerator in self.applies_to.split(", ")


_REQUIRED: Final = frozenset({"name", "unit", "kind", "source", "uncertainty", "applies_to"})
_OPTIONAL: Final = frozenset({"value", "points", "x_unit", "note"})


def parse_constants(text: str, where: str) -> tuple[Constant, ...]:
    """The records of one YAML file. Raises FormatError for anything missing, unknown or inconsistent."""
    raw = parse_yaml(text, where)
    if not isinstance(raw, list):
        raise FormatError(where, None, "file", type(raw).__name__, "be a list of records")
    return tuple(_record(item, where, number) for number, item in enumerate(raw, start=1))


def _record(item: Any, where: str, number: int) -> Constant:
    if not isinstance(item, dict):
        raise FormatError(where, number, "record", item, "be a mapping", "the line is the record's number")
    missing, unknown = _REQUIRED - item.keys(), item.keys() - _REQUIRED - _OPTIONAL
    name = str(item.get("name", f"record {number}"))
    if missing or unknown:
        raise FormatError(where, number, name, sorted(missing | unknown), "have exactly the known keys")
    if ("value" in item) == ("points" in item):
        raise FormatError(where, number, name, sorted(item), "have either `value` or `points`")
    for key in ("source", "uncertainty", "applies_to"):
        if not str(item[key]).strip():
            raise FormatError(where, number, f"{name}.{key}", item[key], "not be empty")
    if item["kind"] not in set(Kind):
        raise FormatError(where, number, f"{name}.kind", item["kind"], "be one of " + ", ".join(Kind))
    suffix = max((s for s in UNIT_OF_SUFFIX if name.endswith(s)), key=len, default="")
    if UNIT_OF_SUFFIX.get(suffix) != item["unit"]:
        raise FormatError(where, number, f"{name}.unit", item["unit"], "match the unit that the name's suffix says")
    try:
        points = tuple((float(x), float(y)) for x, y in item.get("points", ()))
        value = float(item.get("value", 0.0))
    except (TypeError, ValueError) as error:
        raise FormatError(where, number, name, item.get("value", item.get("points")), "be a number or pairs") from error
    if "points" in item and not points:
        raise FormatError(where, number, f"{name}.points", points, "hold at least one pair")
    if not all(isfinite(v) for v in (value, *(v for point in points for v in point))):
        raise FormatError(where, number, name, item.get("value", points), "be finite")
    if list(points) != sorted(points):
        raise FormatError(where, number, f"{name}.points", points, "be sorted by x")
    return Constant(
        name=name,
        value=value,
        unit=str(item["unit"]),
        kind=Kind(item["kind"]),
        source=str(item["source"]).strip(),
        uncertainty=str(item["uncertainty"]).strip(),
        applies_to=str(item["applies_to"]).strip(),
        note=str(item.get("note", "")).strip(),
        points=points,
        x_unit=str(item.get("x_unit", "")),
    )


@cache
def load_constants(set_name: str = CURRENT_SET) -> Mapping[str, Constant]:
    """All records of one set by name. Raises FormatError when a name occurs twice."""
    records: dict[str, Constant] = {}
    folder = resources.files("simcore.data").joinpath("constants", set_name)
    for entry in sorted(folder.iterdir(), key=lambda item: item.name):
        if not entry.name.endswith(".yaml"):
            continue
        for record in parse_constants(entry.read_text(encoding="utf-8"), f"{set_name}/{entry.name}"):
            if record.name in records:
                raise FormatError(entry.name, None, record.name, record.name, "occur once in the set")
            records[record.name] = record
    return MappingProxyType(records)


def constant(name: str) -> Constant:
    """The record called `name` in the current set, e.g. `pipeline.hop_overhead_s`. Raises UnknownNameError."""
    records = load_constants()
    if name not in records:
        raise UnknownNameError("constant", name, records)
    return records[name]


def _check_suffixes() -> None:
    unknown = set(UNIT_OF_SUFFIX) - set(SUFFIXES)
    if unknown:
        raise AssertionError(f"suffixes {sorted(unknown)} are not in simcore.units.SUFFIXES")


_check_suffixes()
