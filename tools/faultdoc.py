"""Writes the table of docs/faults.md from what the tests recorded (tests/integration/faults.json); runs no test."""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "faults.md"
ROWS = ROOT / "tests" / "integration" / "faults.json"
BEGIN, END = "<!-- faults: begin -->", "<!-- faults: end -->"


def table() -> str:
    """A row per recorded test, in the order of the files and their tests. Raises SystemExit for one that is gone."""
    rows = json.loads(ROWS.read_text(encoding="utf-8"))
    order: dict[str, int] = {}
    for file in sorted({test.partition("::")[0] for test in rows}, key=_rank):
        for node in ast.parse((ROOT / file).read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef):
                order[f"{file}::{node.name}"] = len(order)
    lost = sorted(test for test in rows if test.partition("[")[0] not in order)
    if lost:
        raise SystemExit(f"{ROWS.name}: rows of tests that are gone: {', '.join(lost)}")
    lines = ["| fault | what happens | measured | test |", "| --- | --- | --- | --- |"]
    for test, row in sorted(rows.items(), key=lambda item: (order[item[0].partition("[")[0]], item[0])):
        name = test.partition("::")[2].partition("[")[0]
        lines.append(f"| {row['fault']} | {row['outcome']} | {row['measured']} | `{name}` |")
    return "\n".join(lines)


def _rank(file: str) -> tuple[int, str]:
    """Faults of the network first, scale last."""
    return (("test_fault" not in file) + 2 * ("test_scale" in file), file)


def main() -> int:
    """Write the page, or say that it is stale."""
    text = PAGE.read_text(encoding="utf-8")
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    wanted = f"{head}{BEGIN}\n{table()}\n{END}{tail}"
    if "--check" in sys.argv[1:]:
        if text != wanted:
            print("docs/faults.md: stale; run tools/faultdoc.py", file=sys.stderr)
        return int(text != wanted)
    PAGE.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
