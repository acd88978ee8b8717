"""Every flag that a prediction can carry is explained in `simcore/data/flags.yaml`, and nothing else is."""

from __future__ import annotations

import re
from pathlib import Path

from simcore.anchors.select import Flag
from simcore.data.loader import read_data

ROOT = Path(__file__).resolve().parents[2]
SOURCES = {path: path.read_text(encoding="utf-8") for path in sorted((ROOT / "simcore").rglob("*.py"))}


def flags_in_code() -> set[str]:
    """Kebab-case words on the lines that speak of flags, and the members of `Flag`."""
    found = {flag.value for flag in Flag}
    for text in SOURCES.values():
        for line in text.splitlines():
            if re.search(r"\bflags?\b", line):
                found |= set(re.findall(r'"([a-z]+(?:-[a-z]+)+)"', line))
    return found


def test_every_flag_is_explained() -> None:
    explained = read_data("flags.yaml")
    missing = sorted(flags_in_code() - set(explained))
    assert missing == [], "say in simcore/data/flags.yaml what they mean"


def test_every_explanation_is_of_a_flag_and_whole() -> None:
    code = "".join(SOURCES.values())
    for name, entry in read_data("flags.yaml").items():
        assert f'"{name}"' in code, f"no code sets {name}"
        assert set(entry) == {"weight", "says"}, name
        assert entry["weight"] in {"doubt", "note"}, name
        assert entry["says"].endswith("."), name
