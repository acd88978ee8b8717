"""From a result file to measured runs: bounded, strict JSON, one clear line on anything else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from simcore.errors import FormatError, InputError, unreadable
from simcore.validate.importers.fields import Node
from simcore.validate.importers.rows import Measured, refuse_mixed_units
from simcore.validate.importers.tools import READERS, detect, read_aiperf_records

MAX_RESULT_BYTES = 256 << 20
MAX_RECORDS = 1_000_000


def read_results(path: str | Path, tool: str | None = None) -> tuple[str, list[Measured]]:
    """(tool, runs) of one result file; the tool is told by the document unless given.

    Raises FormatError for what is not a known result, InputError for an unknown tool.
    """
    place = Path(path)
    if tool is not None and tool not in READERS:
        raise InputError("tool", tool, "be one of " + ", ".join(READERS))
    try:
        size = place.stat().st_size
        text = place.read_text(encoding="utf-8-sig") if size <= MAX_RESULT_BYTES else ""
    except (OSError, UnicodeDecodeError) as error:
        raise unreadable(path, error) from error
    if size > MAX_RESULT_BYTES:
        raise FormatError(place.name, None, "file", f"{size} bytes", "be at most 256 MiB")
    if place.suffix == ".jsonl":
        return _lines(text, place.name)
    try:
        parsed = _parse(text, place.name, None)
    except FormatError:
        if not _is_appended(text):
            raise
        return _lines(text, place.name)  # `vllm bench serve --append-result`
    document = Node(parsed, place.name)
    name = tool or detect(document)
    if name is None:
        raise FormatError(place.name, None, "document", _keys(document), "be a known result", ", ".join(READERS))
    parts = document.items() if isinstance(parsed, list) and name != "inferencex" else [document]
    runs = [run for part in parts for run in READERS[name](part)]
    if not runs:
        raise FormatError(place.name, None, "runs", 0, "be at least 1")
    return name, _plausible(runs, place.name)


def _plausible(runs: list[Measured], where: str) -> list[Measured]:
    for run in runs:
        refuse_mixed_units(run, where)
    return runs


def _is_appended(text: str) -> bool:
    """Whole JSON objects, one per line."""
    lines = [line for line in text.splitlines() if line.strip()]
    return len(lines) > 1 and all(line.startswith("{") and line.rstrip().endswith("}") for line in lines)


def _lines(text: str, where: str) -> tuple[str, list[Measured]]:
    """One JSON object per line: AIPerf's request records, or results appended by `vllm bench serve`/SGLang."""
    nodes: list[Node] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip():
            if len(nodes) >= MAX_RECORDS:
                raise FormatError(where, number, "records", number, f"be at most {MAX_RECORDS}")
            nodes.append(Node(_parse(line, where, number), f"{where}, line {number}"))
    if not nodes:
        raise FormatError(where, None, "records", 0, "be at least 1")
    if nodes[0].has("metadata") and nodes[0].has("metrics"):
        return "aiperf", _plausible(read_aiperf_records(nodes), where)
    runs: list[Measured] = []
    name = detect(nodes[0])
    if name is None:
        raise FormatError(where, 1, "document", _keys(nodes[0]), "be a known result", ", ".join(READERS))
    for node in nodes:
        runs += _plausible(READERS[name](node), node.where)
    return name, runs


def _parse(text: str, where: str, line: int | None) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise FormatError(where, line or error.lineno, "document", error.msg, "be JSON") from error
    except RecursionError as error:
        raise FormatError(where, line, "document", "nesting", "not be nested without end") from error
    except ValueError as error:  # a number of 5,000 digits
        raise FormatError(where, line, "document", str(error), "be JSON") from error


def _keys(document: Node) -> str:
    return ", ".join(sorted(document.value)[:6]) if isinstance(document.value, dict) else type(document.value).__name__
