"""The legality table: which rule holds for which engine, version and backend. Data in `simcore/data/legality`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from types import MappingProxyType
from typing import Any

from simcore.cards.layout import Engine
from simcore.data import loader
from simcore.errors import FormatError


class Verdict(StrEnum):
    """What is known of a layout on an engine."""

    LEGAL = "legal"
    UNVERIFIED = "unverified"
    ILLEGAL = "illegal"


Version = tuple[int, ...]


def parse_version(text: str | None) -> Version | None:
    """Leading numbers of a version or date: `v0.5.13.post1-rocm720` is (0, 5, 13); None where there are none."""
    match = re.match(r"\s*v?(\d+(?:[.-]\d+)*)", str(text)) if text else None
    return None if match is None else tuple(int(part) for part in re.split(r"[.-]", match.group(1))[:4])


class Match(StrEnum):
    """Whether an entry's version range covers an engine version."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Entry:
    """One line of the table."""

    rule: str
    engines: tuple[Engine, ...]
    verdict: Verdict
    source: str
    lowest: Version | None
    below: Version | None
    backends: tuple[str, ...]
    moe_backends: tuple[str, ...]
    vendor: str
    parameters: Mapping[str, Any]

    def match_version(self, version: Version | None) -> Match:
        """Does the range cover `version`? Unknown without one, or where a date meets a release number."""
        if self.lowest is None and self.below is None:
            return Match.YES
        bounds = [bound for bound in (self.lowest, self.below) if bound is not None]
        if version is None or any((version[0] >= _FIRST_YEAR) != (bound[0] >= _FIRST_YEAR) for bound in bounds):
            return Match.UNKNOWN
        inside = (self.lowest is None or version >= self.lowest) and (self.below is None or version < self.below)
        return Match.YES if inside else Match.NO


_FIRST_YEAR = 2000
"""Versions that start with a year are snapshot dates."""


@cache
def legality_table() -> tuple[Entry, ...]:
    """All entries, in file order. Raises FormatError for a record that is not in order."""
    entries = []
    for where, text in loader.data_files("legality"):
        for item in loader.parse_yaml(text, where):
            fields = loader.record(
                item,
                where,
                required={"rule", "engines", "verdict"},
                optional={"from", "below", "backends", "moe_backends", "vendor", "parameters"},
            )
            lowest, below = (parse_version(fields.get(key)) for key in ("from", "below"))
            if lowest is not None and below is not None and lowest >= below:
                raise FormatError(where, None, "below", fields["below"], f"be above {fields['from']}")
            entries.append(
                Entry(
                    rule=fields["rule"],
                    engines=tuple(Engine.parse(name) for name in fields["engines"]),
                    verdict=Verdict(fields["verdict"]),
                    source=fields["source"],
                    lowest=lowest,
                    below=below,
                    backends=tuple(fields.get("backends", ())),
                    moe_backends=tuple(fields.get("moe_backends", ())),
                    vendor=fields.get("vendor", ""),
                    parameters=MappingProxyType(dict(fields.get("parameters", {}))),
                )
            )
    return tuple(entries)


@cache
def entries_for(engine: Engine) -> Mapping[str, tuple[Entry, ...]]:
    """The entries of one engine by rule, in file order."""
    found: dict[str, list[Entry]] = {}
    for entry in legality_table():
        if engine in entry.engines:
            found.setdefault(entry.rule, []).append(entry)
    return MappingProxyType({rule: tuple(entries) for rule, entries in found.items()})
