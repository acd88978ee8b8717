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


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a reader has: the examples, and the files that the pages tell to write."""
    found = tmp_path_factory.mktemp("reader")
    shutil.copytree(ROOT / "examples", found / "examples")
    for block in docs_blocks.blocks():
        kind, _, name = block.note.partition(": ")
        if kind == "file":
            assert re.fullmatch(r"[a-z-]+\.yaml", name), block.name
            (found / name).write_text(block.text, encoding="utf-8")
    return found


@pytest.mark.parametrize("block", docs_blocks.commands(""), ids=lambda block: block.name)
def test_commands_run_as_printed(block: Block, folder: Path) -> None:
    """In one folder and in the order of the pages, the front page first: later ones may use what it left."""
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
