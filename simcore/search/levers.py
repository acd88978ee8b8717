"""The 36 levers: what the search may change, with legal values per engine and version; data in `data/search`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache

from simcore.cards.layout import Engine
from simcore.data.loader import read_data, record
from simcore.errors import FormatError, UnknownNameError
from simcore.legality.table import Version, parse_version

LEVERS_FILE = "search/levers.yaml"
Value = int | str
"""A lever's value; switches are `on` and `off`."""


class LeverKind(StrEnum):
    """Whether a lever changes the kernels of a step (paper 3.1)."""

    ANCHOR_DEFINING = "anchorDefining"
    TRANSFERABLE = "transferable"


class Source(StrEnum):
    """Where a lever's values come from."""

    TABLE = "table"
    """The table below, by engine and version."""
    LAYOUT = "layout"
    """The widths that the legality table allows, judged together."""
    CLUSTER = "cluster"
    ANCHORS = "anchors"
    """What the anchors at hand were measured with."""
    FIXED = "fixed"
    """One value: the checkpoint's or the anchor's."""
    LOAD = "load"
    FUSIONS = "fusions"


@dataclass(frozen=True)
class Allowed:
    """Values that engines of a version range can be told."""

    engines: tuple[Engine, ...]
    lowest: Version | None
    below: Version | None
    values: tuple[Value, ...]
    source: str

    def holds(self, engine: Engine, version: Version | None) -> bool:
        """Whether the range covers `version`; an unknown version is covered by ranges without bounds only."""
        if engine not in self.engines:
            return False
        if version is None:
            return self.lowest is None and self.below is None
        return (self.lowest is None or version >= self.lowest) and (self.below is None or version < self.below)


@dataclass(frozen=True)
class Lever:
    """One setting that the search may change."""

    name: str
    group: str
    kind: LeverKind
    rule: Source
    neutral: Value
    """The value where nothing is said; `engine`, `anchor`, `checkpoint` and `default` stand for theirs."""
    priced: str
    held: str
    """Why the search keeps the lever at its neutral value; empty where it moves."""
    allowed: tuple[Allowed, ...]
    source: str

    def values(self, engine: Engine, version: str | None) -> tuple[Value, ...]:
        """The table's values for `engine` at `version`, the neutral value first; only that where no range is known.

        Of levers with another rule the space knows the values. A version of a range that was never read gives nothing
        but the neutral value: flags are not guessed.
        """
        parsed = parse_version(version)
        found = [entry for entry in self.allowed if entry.holds(engine, parsed)]
        return tuple(dict.fromkeys((self.neutral, *(value for entry in found for value in entry.values))))


@cache
def levers() -> Mapping[str, Lever]:
    """All levers by name, in the order of the seed list. Raises FormatError for a record that is not in order."""
    found: dict[str, Lever] = {}
    for item in read_data(LEVERS_FILE):
        fields = record(
            item,
            LEVERS_FILE,
            required={"name", "group", "kind", "rule", "neutral", "priced"},
            optional={"held", "values"},
        )
        name = fields["name"]
        if name in found:
            raise FormatError(LEVERS_FILE, None, "name", name, "be used once")
        rule = Source(fields["rule"])
        if (rule is Source.TABLE) != bool(fields.get("values")):
            raise FormatError(LEVERS_FILE, None, "values", name, "be given with the rule `table` and no other")
        found[name] = Lever(
            name,
            fields["group"],
            LeverKind(fields["kind"]),
            rule,
            fields["neutral"],
            fields["priced"],
            fields.get("held", ""),
            tuple(_allowed(entry, name) for entry in fields.get("values", ())),
            fields["source"],
        )
    return found


def lever(name: str) -> Lever:
    """The lever `name`. Raises UnknownNameError with the nearest names."""
    if name not in levers():
        raise UnknownNameError("lever", name, levers())
    return levers()[name]


def _allowed(item: object, name: str) -> Allowed:
    fields = record(item, f"{LEVERS_FILE}: {name}", required={"engines", "values"}, optional={"from", "below"})
    for value in fields["values"]:
        if isinstance(value, bool) or not isinstance(value, int | str):
            raise FormatError(LEVERS_FILE, None, name, value, "be a whole number or a word")
    return Allowed(
        tuple(Engine.parse(engine) for engine in fields["engines"]),
        parse_version(fields.get("from")),
        parse_version(fields.get("below")),
        tuple(fields["values"]),
        fields["source"],
    )
