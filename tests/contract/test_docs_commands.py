"""Every command on our pages runs as printed, or says why it does not; links lead somewhere."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import docs_blocks
from tests.docs_blocks import ROOT, Block

LANGUAGES = {"bash", "text", "yaml", "json", "python", "lua", "svg"}


PAGES = sorted({block.page for block in docs_blocks.commands("")}, key=docs_blocks.PAGES.index)


def _pages() -> list[object]:
    """The front page's commands run with the unit tests, the others with the integration tests: two minutes are few."""
    return [
        pytest.param(page, id=page.name, marks=[] if page.name == "README.md" else pytest.mark.integration)
        for page in PAGES
    ]


@pytest.mark.parametrize("page", _pages())
def test_commands_run_as_printed(page: Path, tmp_path: Path) -> None:
    """All of a page in order, in a folder with what a reader has: the examples, and what the page tells to write."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    for block in docs_blocks.blocks():
        kind, _, name = block.note.partition(": ")
        if block.page == page and kind == "file":
            assert re.fullmatch(r"[a-z-]+\.yaml", name), block.name
            (tmp_path / name).write_text(block.text, encoding="utf-8")
    for block in docs_blocks.commands(""):
        if block.page == page:
            _run(block, tmp_path)


def _run(block: Block, folder: Path) -> None:
    found = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", block.text],
        cwd=folder,
        env=os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert found.returncode == 0, f"{block.name}: {found.stderr}"


def test_what_is_not_run_says_why() -> None:
    """And there is no third way: each block has a language, each shell block one of the notes."""
    for block in docs_blocks.blocks():
        assert block.language in LANGUAGES, f"{block.name}: say the language of the block ({block.language!r})"
        if block.language == "bash":
            assert block.note in ("", "cluster") or re.match(r"skip: \w.{10,}", block.note), (
                f"{block.name}: {block.note}"
            )
    skipped = [block for block in docs_blocks.blocks() if block.note.startswith("skip")]
    run = docs_blocks.commands("") + docs_blocks.commands("cluster")
    for block in skipped:
        print(f"{block.name} is not run: {block.note.removeprefix('skip: ')}")
        named = re.findall(r"(?:tests|e2e)/[\w/.]+\.py", block.note)
        assert all((ROOT / path).exists() for path in named), f"{block.name} names a test that is not there"
    assert len(run) >= 10


@pytest.mark.parametrize("page", [*docs_blocks.PAGES, *sorted((ROOT / "docs" / "generated").glob("*.md"))], ids=str)
def test_links_lead_somewhere(page: Path) -> None:
    """Files exist, and so do the headings that links name."""
    text = page.read_text(encoding="utf-8")
    for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)]*))?\)", docs_blocks.FENCE.sub("", text)):
        if "://" in target:
            continue
        other = page.parent / target if target else page
        assert other.exists(), f"{page.name} leads to {target}"
        if anchor:
            headings = re.findall(r"^#+ (.*)$", other.read_text(encoding="utf-8"), re.MULTILINE)
            slugs = [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]
            assert anchor in slugs, f"{page.name} leads to #{anchor} of {other.name}"
