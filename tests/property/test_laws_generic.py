"""What holds for every law in the register: equals its literal twin, keeps its dimensions, works element by element."""

from __future__ import annotations

import doctest
import importlib
import inspect
import math
import pkgutil
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import simcore.laws
from simcore.errors import DomainError, InputError
from simcore.laws.registry import LAWS, Quantity, law
from tests.law_docs import parse_law_doc
from tests.law_strategies import ARGUMENTS
from tests.reference.laws_literal import LITERAL

for _module in pkgutil.iter_modules(simcore.laws.__path__):
    importlib.import_module(f"simcore.laws.{_module.name}")

KEYS = sorted(LAWS)
APPROXIMATE = {"rocm-inferasim:App. B.3, I_n of a uniform router": 0.04}
"""The urn against full enumeration of routers of 4 to 6 experts; larger routers are closer (see test_laws_experts)."""
SCALES = {"s": 2.0**5, "bytes": 2.0**9, "token": 2.0**3, "request": 2.0**2, "1": 1.0}


def test_every_law_has_twin_and_arguments() -> None:
    assert set(LITERAL) == set(KEYS)
    assert set(ARGUMENTS) == set(KEYS)


def test_an_equation_has_one_home() -> None:
    with pytest.raises(ValueError, match="is claimed by"):
        law(paper="rocm-inferasim", equation="Eq. 1")(lambda: None)


def test_registering_does_not_wrap() -> None:
    def function() -> None: ...

    try:
        assert law(paper="test", equation="none")(function) is function
    finally:
        del LAWS["test:none"]


@pytest.mark.parametrize("key", KEYS)
def test_signature_is_keyword_only_without_defaults(key: str) -> None:
    for parameter in inspect.signature(LAWS[key].function).parameters.values():
        assert parameter.kind is inspect.Parameter.KEYWORD_ONLY, parameter
        assert parameter.default is inspect.Parameter.empty, parameter


@pytest.mark.parametrize("key", KEYS)
def test_docstring_is_complete(key: str) -> None:
    doc = parse_law_doc(LAWS[key].function)
    assert doc.summary.endswith((".", ":")) or "." in doc.summary
    for unit in (*doc.units.values(), doc.result_unit):
        _scale(unit)


def test_the_docstring_checker_fires() -> None:
    def bare(*, step_s: float) -> float:
        """Something without sections."""
        return step_s

    with pytest.raises(ValueError, match="sections"):
        parse_law_doc(bare)


@pytest.mark.parametrize("module", sorted({record.function.__module__ for record in LAWS.values()}))
def test_worked_examples(module: str) -> None:
    failed, tried = doctest.testmod(importlib.import_module(module))
    assert tried > 0
    assert failed == 0


@pytest.mark.parametrize("key", KEYS)
@settings(max_examples=25)
@given(data=st.data())
def test_law_equals_its_literal_twin(key: str, data: st.DataObject) -> None:
    arguments = data.draw(ARGUMENTS[key])
    tolerance = APPROXIMATE.get(key, 1e-9)
    found, expected = LAWS[key].function(**arguments), LITERAL[key](**arguments)
    assert found == pytest.approx(expected, rel=tolerance, abs=1e-12)
    for value in found if isinstance(found, tuple) else (found,):
        assert math.isfinite(value)


@pytest.mark.parametrize("key", KEYS)
@settings(max_examples=10)
@given(data=st.data())
def test_law_keeps_its_dimensions(key: str, data: st.DataObject) -> None:
    """Scaling every second, byte, token and request scales the result as its unit says."""
    function = LAWS[key].function
    doc = parse_law_doc(function)
    arguments = data.draw(ARGUMENTS[key])
    scaled = {n: v * _scale(doc.units[n]) if _has_dimension(doc.units.get(n)) else v for n, v in arguments.items()}
    before, after = function(**arguments), function(**scaled)
    pairs = zip(before, after, strict=True) if isinstance(before, tuple) else [(before, after)]
    for old, new in pairs:
        # Differences of nearly equal numbers lose digits, relative to the arguments, not to themselves.
        assert new == pytest.approx(old * _scale(doc.result_unit), rel=1e-9, abs=1e-12 * _scale(doc.result_unit))


@pytest.mark.parametrize("key", KEYS)
@settings(max_examples=10)
@given(data=st.data())
def test_array_call_equals_scalar_calls(key: str, data: st.DataObject) -> None:
    """Arguments annotated `Quantity` broadcast: the array of three draws gives the three scalar results."""
    function = LAWS[key].function
    arrays = [n for n, p in inspect.signature(function).parameters.items() if p.annotation in {"Quantity", Quantity}]
    draws = [data.draw(ARGUMENTS[key]) for _ in range(3)]
    shared = {n: v for n, v in draws[0].items() if n not in arrays}
    calls = [{n: draw[n] for n in arrays} | shared for draw in draws]
    try:
        scalars = [function(**call) for call in calls]
    except (DomainError, InputError):
        return  # the shared part of one draw may not fit the rest of another
    if not arrays or isinstance(scalars[0], tuple):
        return
    found = function(**{n: np.array([call[n] for call in calls], dtype=np.float64) for n in arrays}, **shared)
    np.testing.assert_allclose(found, scalars, rtol=1e-12)


@pytest.mark.parametrize("key", KEYS)
def test_not_a_number_is_outside_every_domain(key: str) -> None:
    function = LAWS[key].function
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.annotation not in {"Quantity", Quantity, "FloatArray", "float"}:
            continue
        arguments = _one(key)
        value = arguments[name]
        arguments[name] = np.full_like(value, np.nan) if isinstance(value, np.ndarray) else math.nan
        if isinstance(value, np.ndarray) and value.size == 0:
            continue
        with pytest.raises((DomainError, InputError)):
            function(**arguments)


def _one(key: str) -> dict[str, Any]:
    """One legal set of arguments, the same each time."""
    found: list[dict[str, Any]] = []

    @settings(max_examples=1)
    @given(ARGUMENTS[key])
    def draw(arguments: dict[str, Any]) -> None:
        found.append(arguments)

    draw()
    return dict(found[0])


def _has_dimension(unit: str | None) -> bool:
    return unit is not None and unit != "1"


def _scale(unit: str) -> float:
    """Product of the scales of a unit such as `s/token2`."""
    scale = 1.0
    for position, part in enumerate(unit.split("/")):
        base = re.fullmatch(r"(bytes|token|request|s|1)(2?)", part)
        assert base is not None, f"unknown unit {unit!r}"
        factor = SCALES[base.group(1)] ** (2 if base.group(2) else 1)
        scale = scale * factor if position == 0 else scale / factor
    return scale
