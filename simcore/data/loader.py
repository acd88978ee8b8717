"""Strict reading of the YAML records under `simcore/data`: unknown key, duplicate key or missing source is an error."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from importlib import resources
from typing import Any

import yaml

from simcore.errors import FormatError


class _StrictLoader(yaml.SafeLoader):
    """The safe loader that refuses a key written twice instead of keeping the last one."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Hashable] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable):
                raise yaml.constructor.ConstructorError(None, None, "a key is not a plain value", key_node.start_mark)
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"key {key!r} is written twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


def parse_yaml(text: str, where: str) -> Any:
    """The document in `text`; `where` names it in errors. Raises FormatError with the line."""
    try:
        return yaml.load(text, Loader=_StrictLoader)  # noqa: S506 (a SafeLoader)
    except yaml.MarkedYAMLError as error:
        line = None if error.problem_mark is None else error.problem_mark.line + 1
        raise FormatError(where, line, "document", error.problem, "be valid YAML") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise FormatError(where, None, "document", type(error).__name__, "be valid YAML") from error


def data_files(folder: str, suffix: str = ".yaml") -> Iterator[tuple[str, str]]:
    """(file name, text) of each data file in `simcore/data/<folder>`, sorted by name."""
    root = resources.files("simcore.data").joinpath(folder)
    for entry in sorted(root.iterdir(), key=lambda item: item.name):
        if entry.name.endswith(suffix):
            yield f"{folder}/{entry.name}", entry.read_text(encoding="utf-8")


def read_data(path: str) -> Any:
    """The parsed document `simcore/data/<path>`. Raises FormatError."""
    return parse_yaml(resources.files("simcore.data").joinpath(path).read_text(encoding="utf-8"), path)


def record(value: object, where: str, *, required: set[str], optional: set[str] = frozenset()) -> Mapping[str, Any]:  # type: ignore[assignment]
    """`value` as a record with exactly these keys; `source` is always required and never empty. Raises FormatError."""
    if not isinstance(value, Mapping):
        raise FormatError(where, None, "record", value, "be a mapping")
    needed = required | {"source"}
    for key in value:
        if key not in needed | optional:
            raise FormatError(where, None, str(key), value[key], f"be one of {', '.join(sorted(needed | optional))}")
    for key in sorted(needed):
        if value.get(key) in (None, "", []):
            raise FormatError(where, None, key, value.get(key), "be given")
    return value
