"""The register of laws: what each function claims to implement, for tests and for `docs/generated/equations.md`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

FloatArray: TypeAlias = NDArray[np.float64]
Quantity: TypeAlias = float | FloatArray
"""A scalar or a broadcastable array in the unit its name says."""

PAPER: Final = "rocm-inferasim"
OURS: Final = "inferasim"
"""Key of the laws that go beyond the paper."""

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class LawRecord:
    """One law: where it comes from and the function that is its only home."""

    paper: str
    equation: str
    function: Callable[..., Any]

    @property
    def key(self) -> str:
        return f"{self.paper}:{self.equation}"

    @property
    def dotted_name(self) -> str:
        return f"{self.function.__module__}.{self.function.__name__}"


LAWS: Final[dict[str, LawRecord]] = {}


def law(*, paper: str, equation: str) -> Callable[[F], F]:
    """Register the decorated function under (`paper`, `equation`) and return it as it is, not wrapped.

    Raises ValueError when the equation is claimed twice: one formula has one home.
    """

    def register(function: F) -> F:
        record = LawRecord(paper, equation, function)
        if record.key in LAWS:
            raise ValueError(f"{record.key} is claimed by {LAWS[record.key].dotted_name} and {record.dotted_name}")
        LAWS[record.key] = record
        return function

    return register
