"""Refusal of arguments outside the domain a law is stated for. NaN is outside every domain."""

from __future__ import annotations

import math

import numpy as np

from simcore.errors import DomainError
from simcore.laws.registry import Quantity

ROUNDING = 8.0 * float(np.finfo(np.float64).eps)
"""What float64 may lose in a few additions, relative to the largest term."""


def require(condition: bool | np.bool_, text: str) -> None:
    """Raise DomainError with `text` unless `condition`."""
    if not condition:
        raise DomainError(text)


def require_positive(**named: Quantity) -> None:
    """Raise DomainError unless every named value is finite and above 0."""
    for name, value in named.items():
        if isinstance(value, int | float):
            inside = 0.0 < value < math.inf
        else:
            inside = bool(np.all((np.asarray(value) > 0.0) & np.isfinite(value)))
        if not inside:
            raise DomainError(f"`{name}` must be finite and above 0, got {_shown(value)}")


def require_not_negative(**named: Quantity) -> None:
    """Raise DomainError unless every named value is finite and at least 0."""
    require_at_least(0.0, **named)


def require_at_least(low: Quantity, /, **named: Quantity) -> None:
    """Raise DomainError unless every named value is finite and at least `low`."""
    for name, value in named.items():
        if isinstance(value, int | float) and isinstance(low, int | float):
            inside = low <= value < math.inf
        else:
            inside = bool(np.all((np.asarray(value) >= low) & np.isfinite(value)))
        if not inside:
            raise DomainError(f"`{name}` must be finite and at least {_shown(low)}, got {_shown(value)}")


def require_frac(**named: Quantity) -> None:
    """Raise DomainError unless every named value lies in [0, 1]."""
    for name, value in named.items():
        if not np.all((np.asarray(value) >= 0.0) & (np.asarray(value) <= 1.0)):
            raise DomainError(f"`{name}` must lie in [0, 1], got {_shown(value)}")


def require_part(whole: Quantity, /, **named: Quantity) -> None:
    """Raise DomainError if a named remainder of `whole` is negative by more than rounding: the parts do not fit."""
    for name, rest in named.items():
        if not np.all(np.asarray(rest) >= -ROUNDING * np.asarray(whole)):
            raise DomainError(f"`{name}` must not be negative, got {_shown(rest)}: the parts exceed {_shown(whole)}")


def _shown(value: Quantity) -> str:
    if np.ndim(value) == 0:
        return f"{float(value):.6g}"
    array = np.asarray(value, dtype=np.float64)
    return f"array {array.shape} from {np.min(array):.6g} to {np.max(array):.6g}" if array.size else "an empty array"
