"""Units live in names: every float or array in a signature or a dataclass of simcore ends with a registered suffix.

Also: no bare number above 10 in a law; such numbers are constants with a source.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from simcore.units import SUFFIXES

ROOT = Path(__file__).resolve().parents[2]
SIMCORE = ROOT / "simcore"
NUMBERS = {"float", "Quantity", "FloatArray", "Floats", "NDArray[np.float64]"}
PURE = frozenset(
    [
        "batch",
        "batches",
        "cap",
        "captured",
        "clients",
        "columns",
        "default",
        "doublings",
        "exponent",
        "gaps",
        "hidden",
        "inner",
        "intermediate",
        "low",
        "minimum",
        "points",
        "prompts",
        "rows",
        "running",
        "scale",
        "share",
        "spread",
        "value",
        "values",
        "waits",
        "wave",
        "weights",
        "whole",
        "width",
    ]
)
"""Words that name a pure number: counts, widths of matrices and layouts, statistics. The last word decides."""
MIRRORED = frozenset(
    [
        "concurrency_at_model_length",
        "minimum_fraction",
        "pairs_ordered_percent",
        "regret_percent",
        "width_from",
        "width_to",
        "at",
    ]
)
"""Names that repeat a documented output key, and the two ends of a transfer."""
LITERAL_LIMIT = 10


def _is_number(annotation: ast.expr | None) -> bool:
    if annotation is None:
        return False
    parts = {part.strip() for part in ast.unparse(annotation).split("|")} - {"None", "int"}
    return bool(parts) and parts <= NUMBERS


def _is_dataclass(node: ast.ClassDef) -> bool:
    return any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list)


def _public(body: list[ast.stmt]) -> Iterator[ast.ClassDef | ast.FunctionDef]:
    """Public functions, classes and their methods; what is private or nested is its author's business."""
    for node in body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_"):
            yield node
            if isinstance(node, ast.ClassDef):
                yield from _public(node.body)


def _has_unit(name: str) -> bool:
    return f"_{name}".endswith(tuple(SUFFIXES)) or name.split("_")[-1] in PURE or name in MIRRORED


def unsuffixed(source: str) -> list[str]:
    """`line: owner.name` of each public number without a registered suffix."""
    found = []
    for node in _public(ast.parse(source).body):
        pairs: list[tuple[str, ast.expr | None]] = []
        if isinstance(node, ast.FunctionDef):
            every = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
            pairs = [(argument.arg, argument.annotation) for argument in every]
        elif isinstance(node, ast.ClassDef) and _is_dataclass(node):
            pairs = [
                (item.target.id, item.annotation)
                for item in node.body
                if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
            ]
        else:
            continue
        for name, annotation in pairs:
            if _is_number(annotation) and not _has_unit(name):
                found.append(f"{node.lineno}: {node.name}.{name}")
    return found


def bare_numbers(source: str) -> list[str]:
    """`line: value` of each numeric literal above the limit that is not a named module constant."""
    tree = ast.parse(source)
    named = {
        id(inner)
        for node in tree.body
        if isinstance(node, ast.Assign | ast.AnnAssign)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name) and target.id.isupper()
        for inner in ast.walk(node)
    }
    return [
        f"{node.lineno}: {node.value!r}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant)
        and id(node) not in named
        and isinstance(node.value, int | float)
        and not isinstance(node.value, bool)
        and abs(node.value) > LITERAL_LIMIT
    ]


def _modules(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*.py") if "__pycache__" not in path.parts)


@pytest.mark.parametrize("path", _modules(SIMCORE), ids=lambda path: str(path.relative_to(SIMCORE)))
def test_numbers_say_their_unit(path: Path) -> None:
    assert unsuffixed(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("path", _modules(SIMCORE / "laws"), ids=lambda path: path.name)
def test_laws_hold_no_bare_numbers(path: Path) -> None:
    assert bare_numbers(path.read_text(encoding="utf-8")) == []


def test_the_lints_fire() -> None:
    code = (
        "@dataclass\nclass A:\n    delay: float\n    delay_s: float\ndef f(*, time: float | None, n: int) -> float: ..."
    )
    assert unsuffixed(code) == ["2: A.delay", "5: f.time"]
    assert bare_numbers("x = 4.98 + 600\ny = -12\nz = True\nLIMIT = 64") == ["1: 600", "2: 12"]


def test_the_allow_list_stays_small() -> None:
    assert len(PURE) <= 30
    assert len(MIRRORED) <= 8
