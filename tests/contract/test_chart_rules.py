"""The recording rules and alerts, by Prometheus's own promtool (Debian: package prometheus)."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "charts" / "inferasim" / "monitoring" / "rules.yaml"


def test_rules_parse_and_fire_when_they_should(tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not on PATH")
    shutil.copy(RULES, tmp_path / "rules.yaml")
    shutil.copy(Path(__file__).with_name("chart_rules.yaml"), tmp_path / "rules_test.yaml")
    for arguments in (["check", "rules", "rules.yaml"], ["test", "rules", "rules_test.yaml"]):
        answer = subprocess.run([promtool, *arguments], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert answer.returncode == 0, answer.stdout + answer.stderr
