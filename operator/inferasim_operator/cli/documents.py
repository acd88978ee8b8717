"""Reading what the user hands in: YAML or JSON files, bounded, strict about duplicates, one clear error."""

from __future__ import annotations

import sys
from collections.abc import Hashable, Iterator
from pathlib import Path
from typing import Any

import yaml

from simcore.errors import FormatError, InputError

MAX_DOCUMENT_BYTES = 16 << 20
"""Larger inputs (traces, tables) are read by streaming readers, never through here."""

COMMAND_OF_KIND = {
    "ServingPlan": "`inferasim plan` takes it",
    "DeploymentMix": "`inferasim render` takes it",
    "AnchorHarvest": "it needs a cluster: `kubectl apply`",
}


class _StrictLoader(yaml.CSafeLoader if hasattr(yaml, "CSafeLoader") else yaml.SafeLoader):  # type: ignore[misc]
    """Safe YAML that refuses duplicate keys."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key_node, _ in node.value:
            key = str(key_node.value)
            if key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"duplicate key `{key}`", key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep=deep)  # type: ignore[no-any-return]


def read_text(path: str) -> str:
    """The text of `path` (`-` = standard input). Raises InputError."""
    try:
        data = sys.stdin.buffer.read(MAX_DOCUMENT_BYTES + 1) if path == "-" else _read_file(Path(path))
    except OSError as error:
        raise InputError("file", path, f"be readable ({error.strerror or error})") from error
    if len(data) > MAX_DOCUMENT_BYTES:
        raise InputError("file", path, f"be at most {MAX_DOCUMENT_BYTES >> 20} MiB", "pass traces by path instead")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError("file", path, f"be UTF-8 text (byte {error.start})") from error


def _read_file(path: Path) -> bytes:
    with path.open("rb") as handle:
        return handle.read(MAX_DOCUMENT_BYTES + 1)


def load_documents(path: str) -> list[dict[str, Any]]:
    """All YAML or JSON documents in `path`, each a mapping. Raises FormatError, InputError."""
    try:
        text = read_text(path)
        _refuse_aliases(text, path)
        documents = [document for document in yaml.load_all(text, _StrictLoader) if document is not None]
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark else None
        raise FormatError(
            path, line, "document", getattr(error, "problem", "") or str(error), "be YAML or JSON"
        ) from error
    except RecursionError as error:
        raise FormatError(path, None, "document", "nesting", "not be nested without end") from error
    except ValueError as error:  # a thirteenth month, a number of 5,000 digits
        raise FormatError(path, None, "document", str(error), "hold values that there are") from error
    for document in documents:
        if not isinstance(document, dict):
            raise FormatError(path, None, "document", type(document).__name__, "be a mapping")
    if not documents:
        raise FormatError(path, None, "document", "", "not be empty")
    return documents


def _refuse_aliases(text: str, path: str) -> None:
    """A bomb of aliases is a few hundred bytes. Events, because the C loader composes nodes where nothing can look."""
    for event in yaml.parse(text, _StrictLoader) if "*" in text else ():
        if isinstance(event, yaml.events.AliasEvent):
            line = event.start_mark.line + 1 if event.start_mark else None
            raise FormatError(path, line, "document", "an alias", "hold no YAML aliases")


def load_document(path: str) -> dict[str, Any]:
    """The one document in `path`, which is not one of our Kubernetes objects. Raises FormatError, InputError."""
    documents = load_documents(path)
    if len(documents) != 1:
        raise FormatError(path, None, "document", f"{len(documents)} documents", "hold exactly one document")
    kind = documents[0].get("kind")
    if kind in COMMAND_OF_KIND:
        raise FormatError(path, None, "kind", kind, "be absent: this is a Kubernetes object", COMMAND_OF_KIND[kind])
    return documents[0]


def expand(paths: list[str]) -> Iterator[str]:
    """Files of `paths`; a folder stands for its .yaml, .yml and .json files, sorted."""
    for path in paths:
        folder = Path(path)
        if path != "-" and folder.is_dir():
            yield from sorted(str(f) for f in folder.iterdir() if f.suffix in {".yaml", ".yml", ".json"})
        else:
            yield path
