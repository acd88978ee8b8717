"""Typed access to a foreign JSON document: every refusal names the file and the path inside it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from simcore.errors import FormatError


@dataclass(frozen=True)
class Node:
    """One value of a document and where it stands."""

    value: Any
    where: str
    path: str = ""

    def refuse(self, must: str, hint: str = "") -> FormatError:
        return FormatError(self.where, None, self.path or "document", _short(self.value), must, hint)

    def get(self, name: str) -> Node:
        """The member `name`; a Node of None when absent."""
        if not isinstance(self.value, dict):
            raise self.refuse("be an object")
        return Node(self.value.get(name), self.where, f"{self.path}.{name}".lstrip("."))

    def has(self, name: str) -> bool:
        return isinstance(self.value, dict) and self.value.get(name) is not None

    def number(self, *, least_count: float = 0.0) -> float:
        """A finite number of at least `least_count`."""
        value = self.value
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not math.isfinite(value)
            or value < least_count
        ):
            raise self.refuse(f"be a number of at least {least_count:g}")
        return float(value)

    def mean(self) -> float:
        """A number; says that percentiles do not do where it is missing."""
        if self.value is None:
            raise self.refuse("be given", "corpus rows hold means: a median or another percentile does not convert")
        return self.number()

    def positive(self) -> float:
        """A finite number above 0."""
        value = self.number()
        if value <= 0:
            raise self.refuse("be above 0")
        return value

    def count(self) -> int:
        """A positive whole number."""
        value = self.positive()
        if value != int(value):
            raise self.refuse("be a whole number")
        return int(value)

    def optional(self) -> float | None:
        """A number, or None when absent."""
        return None if self.value is None else self.number()

    def text(self) -> str | None:
        """Text, or None when absent or empty."""
        if self.value in (None, ""):
            return None
        if not isinstance(self.value, str):
            raise self.refuse("be text")
        return self.value

    def items(self) -> list[Node]:
        """Members of a list."""
        if not isinstance(self.value, list):
            raise self.refuse("be a list")
        return [Node(item, self.where, f"{self.path}[{index}]") for index, item in enumerate(self.value)]


def _short(value: Any) -> Any:
    return type(value).__name__ if isinstance(value, dict | list) else value
