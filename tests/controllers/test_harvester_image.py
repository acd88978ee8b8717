"""The image: small, layered on the engine's, not root, and no text of a spec near a shell."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
IMAGE = ROOT / "harvester-image"
FILES = ("Dockerfile", "Dockerfile.slim")


def packages() -> list[str]:
    lines = (IMAGE / "requirements.in").read_text().splitlines()
    return [line.strip().lower() for line in lines if line.strip() and not line.startswith("#")]


@pytest.mark.parametrize("name", FILES)
def test_not_root_and_no_shell_form(name: str) -> None:
    """The last USER is a number that is not root's; every RUN, ENTRYPOINT and CMD is a list."""
    text = (IMAGE / name).read_text()
    assert re.findall(r"^USER (\S+)", text, re.MULTILINE)[-1] == "1000:1000"
    for word, rest in re.findall(r"^(RUN|ENTRYPOINT|CMD) (.*)$", text, re.MULTILINE):
        assert rest.startswith("["), f"{word} {rest}"


def test_the_engine_is_a_build_argument() -> None:
    """No engine is named in the file: the harvested image is the one that is deployed."""
    text = (IMAGE / "Dockerfile").read_text()
    assert text.index("ARG ENGINE_IMAGE") < text.index("FROM ${ENGINE_IMAGE}")
    assert re.findall(r"^FROM (.*)$", text, re.MULTILINE) == ["${ENGINE_IMAGE}"]


def test_what_it_needs_is_in_the_lock() -> None:
    locked = {
        line.split("==")[0].lower() for line in (ROOT / "requirements.lock").read_text().splitlines() if "==" in line
    }
    assert set(packages()) <= locked


def test_the_harvester_imports_nothing_else() -> None:
    """Beside an engine there is no room for the operator's packages, nor for the simulator's compiler."""
    code = (
        "import sys, inferasim_harvester.__main__, inferasim_harvester.emulator.trial\n"
        "print(*sorted({name.split('.')[0] for name in sys.modules}))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    heavy = {"numba", "scipy", "pyarrow", "kubernetes", "kopf", "plotly", "inferasim_operator", "litellm", "dspy"}
    assert not heavy & set(found)


def test_no_shell_in_the_package() -> None:
    for path in (IMAGE / "inferasim_harvester").rglob("*.py"):
        text = path.read_text()
        assert "shell=True" not in text
        assert "os.system" not in text
        assert "create_subprocess_shell" not in text
