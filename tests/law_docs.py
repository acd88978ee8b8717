"""What a law's docstring says, parsed: sections, and the unit of each argument and of the result."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

SECTIONS = ("Equation", "Args", "Returns", "Domain", "Not modelled", "Source")


@dataclass(frozen=True)
class LawDoc:
    summary: str
    sections: dict[str, str]
    units: dict[str, str]
    """Argument to unit, for arguments that state one."""
    result_unit: str


def parse_law_doc(function: Callable[..., Any]) -> LawDoc:
    """Raises ValueError for a missing or misplaced section, an undocumented argument, or a result without a unit."""
    text = inspect.getdoc(function) or ""
    heads = [(match.group(1), match.start(), match.end()) for match in re.finditer(r"(?m)^([A-Z][a-z ]+):", text)]
    names = tuple(name for name, _, _ in heads if name in SECTIONS)
    if names != SECTIONS:
        raise ValueError(f"{function.__name__}: sections are {names}, must be {SECTIONS}")
    heads = [head for head in heads if head[0] in SECTIONS]
    ends = [start for _, start, _ in heads[1:]] + [len(text)]
    sections = {name: text[end:stop].strip() for (name, _, end), stop in zip(heads, ends, strict=True)}
    if ">>>" not in text:
        raise ValueError(f"{function.__name__}: no worked example")
    entries = re.findall(r"(?m)^\s{4}(\w+): (.*(?:\n\s{8}.*)*)", "\n" + text[heads[1][2] : heads[2][1]])
    units = {}
    for name, body in entries:
        unit = re.search(r"\[([^\]]+)\]", body)
        if unit:
            units[name] = unit.group(1)
    parameters = list(inspect.signature(function).parameters)
    if [name for name, _ in entries] != parameters:
        raise ValueError(f"{function.__name__}: documents {[n for n, _ in entries]}, takes {parameters}")
    result = re.search(r"\[([^\]]+)\]", sections["Returns"])
    if result is None:
        raise ValueError(f"{function.__name__}: the result has no unit")
    return LawDoc(text.splitlines()[0], sections, units, result.group(1))
