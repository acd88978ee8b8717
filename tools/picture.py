"""Writes docs/generated/front.svg, the front page's picture: what `inferasim plan` answers to examples/plan.yaml.

With --check nothing is written; a missing or stale picture is an error.
"""

from __future__ import annotations

import sys
from pathlib import Path

from inferasim_operator.cli.plan import gather
from inferasim_operator.planning import compute_plan
from inferasim_operator.report import plan

ROOT = Path(__file__).resolve().parents[1]
OUTPUT = ROOT / "docs" / "generated" / "front.svg"
EXAMPLES = ROOT / "examples"


def main(arguments: list[str]) -> int:
    """0 when the picture was written or is up to date, 1 when `--check` finds it stale."""
    result = compute_plan(gather([str(EXAMPLES / "plan.yaml"), str(EXAMPLES / "anchors")]))
    text = plan.picture(result)
    is_stale = not OUTPUT.exists() or OUTPUT.read_text(encoding="utf-8") != text
    if "--check" in arguments:
        if is_stale:
            print("docs/generated/front.svg is stale: run tools/picture.py", file=sys.stderr)
        return int(is_stale)
    OUTPUT.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
