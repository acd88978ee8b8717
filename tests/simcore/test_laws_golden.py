"""Every law against its golden row. Companion properties: tests/property/test_laws_generic.py."""

from __future__ import annotations

import importlib
import inspect
import json
import pkgutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import simcore.laws
from simcore.data.constants import constant
from simcore.laws.registry import LAWS
from simcore.laws.speculation import Drafter
from tests.golden.tables import GoldenError, load_table
from tests.reference.laws_literal import LITERAL

for _module in pkgutil.iter_modules(simcore.laws.__path__):
    importlib.import_module(f"simcore.laws.{_module.name}")

ROWS = load_table("paper/laws.csv")


def _arguments(row: dict[str, str]) -> dict[str, Any]:
    arguments = json.loads(row["arguments"])
    parameters = inspect.signature(LAWS[row["law"]].function).parameters
    for name, value in arguments.items():
        if name == "curve":
            arguments[name] = constant(value)
        elif name == "drafter":
            arguments[name] = Drafter(value)
        elif parameters[name].annotation == "FloatArray":
            arguments[name] = np.array(value, dtype=np.float64)
    return arguments


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["law"])
def test_law_gives_its_golden_value(row: dict[str, str]) -> None:
    expected, tolerance = json.loads(row["expected"]), float(row["tolerance"])
    found = LAWS[row["law"]].function(**_arguments(row))
    found = list(found) if isinstance(found, tuple) else found
    assert found == pytest.approx(expected, rel=tolerance, abs=0.0)


# The twins of the uniform router enumerate every step: possible for small routers only (test_laws_generic).
@pytest.mark.parametrize("row", [row for row in ROWS if "uniform" not in row["law"]], ids=lambda row: row["law"])
def test_the_literal_twin_gives_it_too(row: dict[str, str]) -> None:
    found = LITERAL[row["law"]](**_arguments(row))
    found = list(found) if isinstance(found, tuple) else found
    assert found == pytest.approx(json.loads(row["expected"]), rel=float(row["tolerance"]), abs=0.0)


def test_every_law_has_a_golden_row() -> None:
    assert sorted({row["law"] for row in ROWS}) == sorted(LAWS)


def test_tables_without_sources_do_not_load(tmp_path: Path) -> None:
    (tmp_path / "some.csv").write_text("a,source\n1,\n")
    with pytest.raises(GoldenError, match="no entry"):
        load_table("some.csv", tmp_path)
    (tmp_path / "SOURCES.md").write_text("| some.csv | x |\n")
    with pytest.raises(GoldenError, match="line 2: no source"):
        load_table("some.csv", tmp_path)
    (tmp_path / "some.csv").write_text("a,source\n1\n")
    with pytest.raises(GoldenError, match="as many cells"):
        load_table("some.csv", tmp_path)
    (tmp_path / "some.csv").write_text("a,source\n1,Table 1\n")
    assert load_table("some.csv", tmp_path) == [{"a": "1", "source": "Table 1"}]


def test_every_golden_file_is_listed() -> None:
    folder = Path(__file__).resolve().parents[1] / "golden" / "paper"
    for path in sorted(folder.glob("*.csv")):
        assert load_table(f"paper/{path.name}")
