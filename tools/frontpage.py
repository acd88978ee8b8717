"""Writes into README.md how right predictions are: the rows of docs/generated/accuracy.md that say it of plans.

With --check nothing is written; a stale README is an error.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
FIGURES = ROOT / "docs" / "generated" / "accuracy.md"
SECTION = "## mi355x_open, as plans predict it"
KINDS = {"tp": "on other numbers of GPUs", "length": "at other prompt lengths"}
"""Kind of a series in the page of figures to the words for it."""
PLACE = re.compile(r"(?<=<!-- accuracy: tools/frontpage.py -->\n)(.*?)(?=<!-- end -->)", re.DOTALL)


def table(figures: str) -> str:
    """The two rows, from the page of all figures. Raises ValueError where it does not hold them."""
    section = figures.partition(SECTION)[2].partition("\n## ")[0]
    found: dict[str, list[str]] = {}
    for line in section.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 8:
            found[cells[0]] = cells[1:]
    lines = [
        "| predicted | rows | TPOT | TTFT | throughput | inside the 80 % interval |\n",
        "| --- | ---: | ---: | ---: | ---: | ---: |\n",
    ]
    for kind, words in KINDS.items():
        if kind not in found:
            raise ValueError(f"{FIGURES.name}: no row `{kind}` under {SECTION!r}")
        rows, tpot, ttft, throughput, *covered = found[kind]
        inside = sorted(round(float(share)) for share in covered)
        lines.append(f"| {words} | {rows} | {tpot} % | {ttft} % | {throughput} % | {inside[0]} to {inside[-1]} % |\n")
    return "".join(lines)


def main(arguments: list[str]) -> int:
    """0 when README.md was written or is up to date, 1 when `--check` finds it stale."""
    old = README.read_text(encoding="utf-8")
    if PLACE.search(old) is None:
        raise ValueError(f"{README.name} has no place for the figures ({PLACE.pattern})")
    new = PLACE.sub(lambda _: table(FIGURES.read_text(encoding="utf-8")), old)
    if new == old:
        return 0
    if "--check" in arguments:
        print("README.md is stale: run tools/frontpage.py", file=sys.stderr)
        return 1
    README.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
