"""docs/invariants.md names its tests; each one exists, and the numbers run without a gap."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "invariants.md"
ROW = re.compile(r"^\| (INV-\d+) \| (.+) \| `([^`]+)::([^`]+)` \|$")


def _rows(text: str) -> list[tuple[str, str, str]]:
    """(number, file, test) of each row of the page's table."""
    found = []
    for line in text.splitlines():
        if line.startswith("| INV-"):
            row = ROW.match(line)
            assert row is not None, f"not a row: {line}"
            found.append((row.group(1), row.group(3), row.group(4)))
    return found


def _tests_in(path: Path) -> set[str]:
    """Names of the test functions a file defines at its top level: what pytest collects."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}


ROWS = _rows(PAGE.read_text(encoding="utf-8"))


def test_the_page_has_rows_in_order() -> None:
    assert [number for number, _, _ in ROWS] == [f"INV-{number}" for number in range(1, len(ROWS) + 1)]
    assert len(ROWS) >= 20


@pytest.mark.parametrize(("number", "file", "name"), ROWS, ids=[number for number, _, _ in ROWS])
def test_each_invariant_has_its_test(number: str, file: str, name: str) -> None:
    assert (ROOT / file).is_file(), f"{number}: no {file}"
    assert name in _tests_in(ROOT / file), f"{number}: {file} has no {name}"


def test_a_row_without_a_test_is_noticed() -> None:
    assert "test_not_there" not in _tests_in(Path(__file__))
    with pytest.raises(AssertionError, match="not a row"):
        _rows("| INV-1 | something | nothing |")
