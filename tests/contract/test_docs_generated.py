"""What is generated is what is committed, and the generator refuses what it cannot stand behind."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from simcore.data.loader import read_data
from simcore.laws.registry import LAWS

ROOT = Path(__file__).resolve().parents[2]


def _docgen(name: str = "docgen") -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("tool", ["docgen", "kinddoc", "faultdoc", "frontpage"])
def test_pages_are_up_to_date(tool: str) -> None:
    found = subprocess.run(
        [sys.executable, f"tools/{tool}.py", "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stderr


def test_check_finds_a_stale_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    docgen = _docgen()
    monkeypatch.setattr(docgen, "OUTPUT", tmp_path)
    assert docgen.main(["--check"]) == 1
    assert docgen.main([]) == 0
    assert docgen.main(["--check"]) == 0
    (tmp_path / "constants.md").write_text("edited")
    assert docgen.main(["--check"]) == 1


def test_every_law_is_on_the_page() -> None:
    text = (ROOT / "docs" / "generated" / "equations.md").read_text(encoding="utf-8")
    assert text.count("\n### ") == len(LAWS) > 40
    for record in LAWS.values():
        assert f"`{record.function.__name__}`: " in text
        assert record.equation in text


def test_a_deviation_must_be_about_something() -> None:
    docgen = _docgen()
    entry = {"about": "Eq. 99", "paper": "x", "ours": "y", "reason": "z"}
    with pytest.raises(ValueError, match="no law claims"):
        docgen.equations_page(LAWS.values(), [entry])
    with pytest.raises(ValueError, match="must have"):
        docgen.equations_page(LAWS.values(), [{"about": "Eq. 1"}])
    assert len(read_data("deviations.yaml")) >= 15


def test_every_field_of_a_kind_is_on_its_page() -> None:
    """Counted on the CRD itself: each property below spec and status is one row."""

    def count(schema: dict[str, Any]) -> int:
        below = schema.get("items") or schema
        return sum(1 + count(field) for field in below.get("properties", {}).values())

    pages = _docgen("kinddoc").pages()
    for path in sorted((ROOT / "crds").glob("*.yaml")):
        crd = yaml.safe_load(path.read_text(encoding="utf-8"))
        schema = crd["spec"]["versions"][-1]["schema"]["openAPIV3Schema"]["properties"]
        page = pages[f"{crd['spec']['names']['kind'].lower()}.md"]
        rows = [line for line in page.splitlines() if line.startswith("| `")]
        assert len(rows) == count(schema["spec"]) + count(schema["status"])


def test_every_command_is_on_the_page_with_its_options() -> None:
    page = _docgen("kinddoc").commands_page()
    for words in ("plan", "predict", "anchors select", "harvest logs", "status", "report"):
        assert f"\n## {words}\n" in page
    assert page.count("--report FILE") == 4
    assert "default: 200" in page
