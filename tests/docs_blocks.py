"""The fenced blocks of our pages, by what their info string says is to be done with them.

`bash` runs in a folder that holds the examples; `bash cluster` runs against the control plane with an operator at
work; `bash skip: REASON` is not run; `yaml file: NAME` is a file that the page's commands read. Other languages are not
commands, and a block without one is refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs" / "formats").glob("*.md")),
    ROOT / "charts" / "inferasim" / "README.md",
]
FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """One fenced block."""

    page: Path
    line: int
    language: str
    note: str
    """What follows the language: `cluster`, `skip: …`, `file: …` or nothing."""
    text: str

    @property
    def name(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks() -> list[Block]:
    """All of them, in the order of the pages and lines."""
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for match in FENCE.finditer(text):
            language, _, note = match[1].strip().partition(" ")
            found.append(Block(page, text[: match.start()].count("\n") + 1, language, note.strip(), match[2]))
    return found


def commands(note: str) -> list[Block]:
    """The shell blocks with this note."""
    return [block for block in blocks() if block.language == "bash" and block.note == note]
