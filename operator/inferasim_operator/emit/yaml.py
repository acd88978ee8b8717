"""The canonical YAML writer: sorted keys, no aliases, no line folding, the same bytes for the same documents."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import yaml


class _CanonicalDumper(yaml.SafeDumper):
    """Block style; text of several lines as a literal block."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - the same list twice is written twice
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:  # noqa: ARG002
        super().increase_indent(flow, False)


_BREAKS = frozenset("\r\x85\u2028\u2029")
"""YAML reads these as ends of a line, and a folded end of a line as a space: only an escaped one comes back."""


# What PyYAML writes plain and other readers (Go's, YAML 1.2) take for a boolean or a number.
_WORDS = frozenset({"y", "n", "Y", "N"})
_OTHER_BASE = re.compile(r"[-+]?0[xob][0-9A-Fa-f_]+")


def _is_taken_for_another_type(value: str) -> bool:
    if value in _WORDS or _OTHER_BASE.fullmatch(value):
        return True
    try:
        float(value.replace(".inf", "inf").replace(".nan", "nan"))
    except ValueError:
        return False
    return True


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    style = '"' if _BREAKS & set(value) else "|" if "\n" in value else None
    if style is None and _is_taken_for_another_type(value):
        style = "'"
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_CanonicalDumper.add_representer(str, _text)


def dump(document: Mapping[str, Any]) -> str:
    """One document. Tuples must have become lists before."""
    text: str = yaml.dump(document, Dumper=_CanonicalDumper, sort_keys=True, allow_unicode=True, width=2**31 - 1)
    return text


def dump_all(documents: Iterable[Mapping[str, Any]]) -> str:
    """Several documents, each led by `---`."""
    return "".join(f"---\n{dump(document)}" for document in documents)
