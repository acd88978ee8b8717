"""Anchors that ship with the package: from the paper's Table 20, for trying things out and for tests."""

from __future__ import annotations

from functools import cache
from importlib import resources

from simcore.anchors.schema import Anchor, parse_anchor
from simcore.errors import UnknownNameError


@cache
def builtin_anchors() -> dict[str, Anchor]:
    """All built-in anchors by name."""
    folder = resources.files("simcore.data").joinpath("anchors")
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".json")), key=lambda file: file.name)
    return {
        file.name.removesuffix(".json"): parse_anchor(file.read_text(encoding="utf-8"), file.name) for file in files
    }


def builtin_anchor(name: str) -> Anchor:
    """The built-in anchor called `name`. Raises UnknownNameError."""
    found = builtin_anchors()
    if name not in found:
        raise UnknownNameError("anchors", name, found)
    return found[name]
