"""The operator's command: bad settings are one clear line and exit code 2."""

from __future__ import annotations

from pathlib import Path

import pytest

from inferasim_operator.__main__ import main


def test_without_a_cluster_it_says_so_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    assert main(["run", "--namespace", "x", "--kubeconfig", str(tmp_path / "none.yaml")]) == 2
    error = capsys.readouterr().err
    assert len(error.strip().splitlines()) == 1
    assert "--kubeconfig" in error
