"""Typed access to an untrusted `config.json`: every wrong value becomes one line that names the field."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from simcore.errors import InputError

LARGEST_COUNT = 10**9
LARGEST_LAYERS = 4096


class Fields:
    """A mapping with aliases. `path` is its place in the document, e.g. `config.text_config`."""

    def __init__(self, values: Mapping[str, Any], path: str = "config") -> None:
        self.values, self.path = values, path
        self.read: set[str] = set()
        """Keys that somebody looked at: the others may say something of the shape that nobody heard."""

    def __contains__(self, name: str) -> bool:
        self.read.add(name)
        return self.values.get(name) is not None

    def find(self, *names: str) -> tuple[str, Any]:
        """(path, value) of the first alias that is present and not null; value None when none is."""
        self.read.update(names)
        for name in names:
            if self.values.get(name) is not None:
                return f"{self.path}.{name}", self.values[name]
        return f"{self.path}.{names[0]}", None

    def integer(self, *names: str, default: int | None = None, minimum: int = 0, maximum: int = LARGEST_COUNT) -> int:
        """An integer in [minimum, maximum]; the default where no alias is present. Raises InputError.

        A list that repeats one value (one entry per layer) is that value.
        """
        field, value = self.find(*names)
        if isinstance(value, list) and value and all(entry == value[0] for entry in value):
            value = value[0]
        if value is None:
            if default is None:
                others = f"; other spellings: {', '.join(names[1:])}" if names[1:] else ""
                raise InputError(field, None, "be given", f"an integer of at least {minimum}{others}")
            return default
        return check_integer(field, value, minimum, maximum)

    def flag(self, *names: str, default: bool = False) -> bool:
        """A true or false. Raises InputError."""
        field, value = self.find(*names)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise InputError(field, value, "be true or false")
        return value

    def number(self, *names: str, default: float, minimum: float = 0.0) -> float:
        """A finite number of at least `minimum`. Raises InputError."""
        field, value = self.find(*names)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < minimum:
            raise InputError(field, value, f"be a finite number of at least {minimum:g}")
        return float(value)

    def text(self, *names: str, default: str = "") -> str:
        """A string. Raises InputError."""
        field, value = self.find(*names)
        if value is None:
            return default
        if not isinstance(value, str):
            raise InputError(field, value, "be text")
        return value

    def section(self, *names: str) -> Fields | None:
        """A nested mapping, or None. Raises InputError."""
        field, value = self.find(*names)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise InputError(field, value, "be a mapping")
        return Fields(value, field)

    def sequence(self, *names: str, at_least: int = 0) -> Sequence[Any] | None:
        """A list with at least `at_least` entries, or None. Raises InputError."""
        field, value = self.find(*names)
        if value is None:
            return None
        if isinstance(value, str) or not isinstance(value, Sequence):
            raise InputError(field, value, "be a list")
        if len(value) < at_least:
            raise InputError(field, f"{len(value)} entries", f"have one entry per layer, {at_least}")
        return list(value)

    def integers(self, *names: str, at_least: int = 0, minimum: int = 0) -> list[int] | None:
        """A list of integers, or None. Raises InputError."""
        field, _ = self.find(*names)
        values = self.sequence(*names, at_least=at_least)
        return None if values is None else [check_integer(f"{field}[{i}]", v, minimum) for i, v in enumerate(values)]

    def strings(self, *names: str, at_least: int = 0) -> list[str] | None:
        """A list of strings, or None. Raises InputError."""
        field, _ = self.find(*names)
        values = self.sequence(*names, at_least=at_least)
        for index, value in enumerate(values or ()):
            if not isinstance(value, str):
                raise InputError(f"{field}[{index}]", value, "be text")
        return None if values is None else list(values)


def check_integer(field: str, value: object, minimum: int = 0, maximum: int = LARGEST_COUNT) -> int:
    """`value` as an integer in [minimum, maximum]. Raises InputError."""
    if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= maximum:
        raise InputError(field, value, f"be an integer from {minimum} to {maximum}")
    return value
