"""What is generated is what is committed, and the generator refuses what it cannot stand behind."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from simcore.data.loader import read_data
from simcore.laws.registry import LAWS

ROOT = Path(__file__).resolve().parents[2]


def _docgen() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docgen", ROOT / "tools" / "docgen.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_pages_are_up_to_date() -> None:
    found = subprocess.run(
        [sys.executable, "tools/docgen.py", "--check"], cwd=ROOT, capture_output=True, text=True, check=False
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
