"""Other programs, each in a virtual environment of its own under the user's cache: nothing of them is in this tree."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

INSTALL_LIMIT_S = 900
ANSWER_LIMIT_S = 900


def interpreter(*packages: str) -> Path | str:
    """The Python that has them, installed on first use; or why there is none."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "inferasim-bench" / packages[0].replace("==", "-")
    done_mark = folder / ".installed"
    if done_mark.exists():
        return folder / "bin" / "python"
    for step in (
        [sys.executable, "-m", "venv", "--clear", str(folder)],
        [str(folder / "bin" / "pip"), "install", "-q", "--disable-pip-version-check", *packages],
    ):
        try:
            done = subprocess.run(step, check=False, capture_output=True, text=True, timeout=INSTALL_LIMIT_S)
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"{packages[0]} cannot be installed: {error}"
        if done.returncode:
            return f"{packages[0]} cannot be installed: {last_line(done.stderr)}"
    done_mark.touch()
    return folder / "bin" / "python"


def ask(python: Path, arguments: list[str], question: object) -> Any | str:
    """The last line that `python ARGUMENTS` prints, read as JSON; or why there is none. The question is its input."""
    try:
        done = subprocess.run(
            [str(python), *arguments],
            check=False,
            capture_output=True,
            text=True,
            timeout=ANSWER_LIMIT_S,
            input=json.dumps(question),
        )
    except subprocess.TimeoutExpired:
        return f"no answer in {ANSWER_LIMIT_S} s"
    if done.returncode or not done.stdout.strip():
        return f"exit code {done.returncode}: {last_line(done.stderr)}"
    return json.loads(done.stdout.strip().splitlines()[-1])


def last_line(text: str) -> str:
    """Of what a command said before it failed."""
    return (text.strip().splitlines() or ["no reason given"])[-1][:200]
