"""Runs every generator of the project; with --check nothing is written and a stale file is an error."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

TOOLS = Path(__file__).parent
# Order matters only where one output is another's input: CRDs before the API page.
GENERATORS = (
    "crdgen.py",
    "rbacgen.py",
    "chartgen.py",
    "imagelock.py",
    "docgen.py",
    "kinddoc.py",
    "picture.py",
    "frontpage.py",
    "metricdoc.py",
    "faultdoc.py",
    "anchors_from_table20.py",
)


def main() -> int:
    """Run the generators in order; the worst exit code wins."""
    arguments = sys.argv[1:]
    worst = 0
    for name in GENERATORS:
        print(f"{name} {' '.join(arguments)}", flush=True)
        worst = max(worst, subprocess.run([sys.executable, str(TOOLS / name), *arguments], check=False).returncode)
    return worst


if __name__ == "__main__":
    sys.exit(main())
