"""Flags in plain words, from `simcore/data/flags.yaml`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache

from inferasim_operator.report.html import Content, Markup, bullets, tag
from simcore.data.loader import read_data

DOUBT = "doubt"


@cache
def meanings() -> Mapping[str, Mapping[str, str]]:
    """Flag to {weight, says}."""
    found: Mapping[str, Mapping[str, str]] = read_data("flags.yaml")
    return found


def is_doubt(flag: str) -> bool:
    """Whether the flag weakens the figure; one without an entry does, until somebody says otherwise."""
    return meanings().get(flag, {}).get("weight", DOUBT) == DOUBT


def chips(flags: Iterable[str]) -> Markup | None:
    """The names of the flags that weaken the figure, and how many others there are; both lead to the explanations."""
    found = sorted(flags)
    items = [tag("li", tag("a", flag, href="#doubts"), class_="chip doubt") for flag in found if is_doubt(flag)]
    others = len(found) - len(items)
    if others:
        more = f"{others} note{'' if others == 1 else 's'}"
        items.append(tag("li", tag("a", more, href="#doubts"), class_="chip"))
    return tag("ul", items, class_="chips", aria_label="flags") if items else None


def explained(where: Mapping[str, Iterable[str]]) -> Markup | None:
    """A list of the flags with their meaning, each with the names under which it stands in `where`."""
    holders: dict[str, list[str]] = {}
    for name, flags in where.items():
        for flag in flags:
            holders.setdefault(flag, []).append(name)
    return bullets(_line(flag, holders[flag]) for flag in sorted(holders, key=lambda flag: (not is_doubt(flag), flag)))


def _line(flag: str, names: list[str]) -> list[Content]:
    says = meanings().get(flag, {}).get("says", "")
    told = f" ({', '.join(names)})" if any(names) else ""
    # Every other piece between back-quotes is code.
    pieces = [tag("code", part) if at % 2 else part for at, part in enumerate(says.split("`"))]
    return [tag("span", flag, class_="chip doubt" if is_doubt(flag) else "chip"), " ", *pieces, told]
