"""Guards of the house: packaging, shadowing, import layers, module size. Each one fails when its rule is broken."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("operator/inferasim_operator", "simcore", "harvester-image/inferasim_harvester", "e2e", "tools")
LINES_CEILING = 600


def _shadowing_folder(root: Path) -> list[str]:
    """Folders of `root` that would shadow a standard module if they became packages."""
    return [name for name in ("operator", "tests/operator") if (root / name / "__init__.py").exists()]


def test_operator_is_not_a_package() -> None:
    """`operator/__init__.py` would break `import collections` for everyone who runs Python from the root."""
    assert _shadowing_folder(ROOT) == []


def test_the_shadowing_guard_fires(tmp_path: Path) -> None:
    (tmp_path / "operator").mkdir()
    assert _shadowing_folder(tmp_path) == []
    (tmp_path / "operator" / "__init__.py").touch()
    assert _shadowing_folder(tmp_path) == ["operator"]


def test_standard_modules_win_from_the_root() -> None:
    """From the root, `operator` is the standard module, and our packages are installed, not namespaces."""
    code = (
        "import operator, collections, simcore, inferasim_operator, inferasim_harvester, sysconfig;"
        "assert operator.__file__.startswith(sysconfig.get_paths()['stdlib']), operator.__file__;"
        "assert simcore.__file__ and inferasim_operator.__file__ and inferasim_harvester.__file__"
    )
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr


def _source_files() -> list[Path]:
    return sorted(
        path for folder in SOURCES for path in (ROOT / folder).rglob("*.py") if "__pycache__" not in path.parts
    )


@pytest.mark.parametrize("path", _source_files(), ids=lambda path: str(path.relative_to(ROOT)))
def test_module_size(path: Path) -> None:
    """Source modules stay under the ceiling; split by concept, not by number."""
    count = len(path.read_text(encoding="utf-8").splitlines())
    assert count <= LINES_CEILING, f"{count} lines"


def test_import_layers_hold() -> None:
    found = subprocess.run(
        [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stdout[-3000:]
    assert "contracts kept" in found.stdout.lower() or "kept" in found.stdout.lower()


def test_there_are_layers_to_hold() -> None:
    """An empty list of contracts would pass for ever."""
    import tomllib

    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    assert len(contracts) >= 4
    assert {"simcore-layers", "simcore-pure", "kubernetes-client", "pure-planning"} <= {c["id"] for c in contracts}


FORBIDDEN_TEXT = ("/work/", "/root/", "/home/")


def test_no_machine_paths_in_tracked_files() -> None:
    """Nobody else has our folders."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout.split(b"\0")
    hits = []
    for name in filter(None, listed):
        path = ROOT / name.decode()
        if path == Path(__file__) or not path.is_file():
            continue
        text = path.read_bytes().decode("utf-8", errors="ignore")
        hits += [f"{path.relative_to(ROOT)}: {word}" for word in FORBIDDEN_TEXT if word in text]
    assert hits == []
