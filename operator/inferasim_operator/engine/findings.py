"""What is wrong with an object: an ordered chain of checks, of which the first that finds something decides. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

ObservedT = TypeVar("ObservedT")
FindingT = TypeVar("FindingT")


def first_finding(chain: Iterable[Callable[[ObservedT], FindingT | None]], observed: ObservedT) -> FindingT | None:
    """The first finding of the chain, if there is one; later checks may rely on what earlier ones ruled out."""
    return next((finding for check in chain if (finding := check(observed)) is not None), None)
