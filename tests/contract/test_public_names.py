"""The public names of simcore are these four, and nothing else is promised."""

from __future__ import annotations

import pytest

import simcore


def test_the_public_surface() -> None:
    assert simcore.__all__ == ["load_scenario", "predict", "replay", "sweep"]
    assert all(callable(getattr(simcore, name)) for name in simcore.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nonsense"):
        simcore.nonsense  # noqa: B018
