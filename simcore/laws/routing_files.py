"""Files of recorded routing: our npz and JSON forms, SGLang's expert-distribution dump, and the table of a replay.

Formats: `docs/formats/expert-routing.md`. Files are hostile until read: no pickles, sizes bounded, every field checked.
"""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final
from zipfile import BadZipFile, ZipFile

import numpy as np
from numpy.typing import NDArray

from simcore.errors import FormatError, InputError
from simcore.laws.routing_replay import ExpertLoad, Phase, RoutingRecording
from simcore.units import GIB

UNPACKED_LIMIT_BYTES: Final = 4 * GIB
CHOICES_LIMIT: Final = GIB
"""Most expert ids that one recording may hold."""
_REASON_CHARACTERS: Final = 200
_DECODE_MODE: Final = 2
_EXTEND_MODE: Final = 1
"""SGLang's forward modes; others (mixed, idle, verify) are left out."""


def read_recording(data: bytes, where: str) -> RoutingRecording:
    """A recording from the bytes of our npz form, our JSON form or SGLang's dump as JSON. Raises FormatError."""
    try:
        if data[:2] == b"PK":
            return _from_npz(data, where)
        document = json.loads(data)
        if isinstance(document, dict) and "records" in document:
            return _from_sglang(document, where)
        if isinstance(document, dict) and "steps" in document:
            return _from_json(document, where)
    except (ValueError, UnicodeDecodeError, BadZipFile, LookupError, TypeError, OverflowError, RecursionError) as error:
        raise FormatError(
            where, None, "file", str(error)[:_REASON_CHARACTERS], "be a routing recording in a documented form"
        ) from error
    except InputError as error:
        if isinstance(error, FormatError):
            raise
        raise FormatError(where, None, error.field, error.value, "be a valid recording", str(error)) from error
    raise FormatError(
        where, None, "file", "neither `steps` nor `records`", "be a routing recording", "see docs/formats"
    )


def write_npz(recording: RoutingRecording) -> bytes:
    """The npz form of a recording."""
    buffer = io.BytesIO()
    np.savez_compressed(
        buffer,
        experts_count=np.int64(recording.experts_count),
        choices=recording.choices.astype(np.int16),
        step=recording.step,
        is_decode=recording.is_decode,
        source=np.array(recording.source),
    )
    return buffer.getvalue()


def write_table(table: Sequence[ExpertLoad]) -> str:
    """The JSON form of a replay's table, one row per line, sorted."""
    rows = [json.dumps(asdict(row), sort_keys=True) for row in sorted(table)]
    return '{"expertLoad": [\n' + ",\n".join(rows) + "\n]}\n"


def read_table(text: str, where: str) -> tuple[ExpertLoad, ...]:
    """A table written by `write_table`. Raises FormatError."""
    try:
        rows = json.loads(text)["expertLoad"]
        table = tuple(sorted(ExpertLoad(**{**row, "phase": Phase(row["phase"])}) for row in rows))
        small = [
            row
            for row in table
            if not all(n >= 1 for n in (row.rows_factor, row.experts_factor, row.step_tokens, row.expert_parallel))
        ]
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise FormatError(
            where, None, "expertLoad", str(error)[:_REASON_CHARACTERS], "be a table of expert load"
        ) from error
    if small:
        raise FormatError(where, None, "expertLoad", small[0], "hold factors and counts of at least 1")
    return table


def _from_npz(data: bytes, where: str) -> RoutingRecording:
    with ZipFile(io.BytesIO(data)) as archive:
        unpacked = sum(entry.file_size for entry in archive.infolist())
    if unpacked > UNPACKED_LIMIT_BYTES:
        raise FormatError(where, None, "file", unpacked, f"unpack to at most {UNPACKED_LIMIT_BYTES} bytes")
    with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
        missing = {"experts_count", "choices", "step", "is_decode"} - set(arrays.files)
        if missing:
            raise FormatError(where, None, "arrays", sorted(missing), "all be present")
        source = str(arrays["source"]) if "source" in arrays.files else where
        return _recording(
            int(arrays["experts_count"]), arrays["choices"], arrays["step"], arrays["is_decode"], source, where
        )


def _from_json(document: dict[str, Any], where: str) -> RoutingRecording:
    parts, step, is_decode = [], [], []
    for number, item in enumerate(document["steps"]):
        choices = np.asarray(item["choices"])
        parts.append(choices)
        step += [number] * len(choices)
        is_decode += [Phase(item["phase"]) is Phase.DECODE] * len(choices)
    return _recording(
        int(document["experts_count"]),
        np.concatenate(parts),
        np.array(step),
        np.array(is_decode),
        str(document.get("source", where)),
        where,
    )


def _from_sglang(document: dict[str, Any], where: str) -> RoutingRecording:
    """Per-token records, each `topk_ids_of_layer` (layers, tokens, k) padded with -1; physical ids are mapped back."""
    records = document["records"]
    rank = min(int(record.get("rank", 0)) for record in records)
    logical = document.get("last_physical_to_logical_map")
    parts, step, is_decode = [], [], []
    for record in records:
        mode = int(record["forward_mode"])
        if int(record.get("rank", 0)) != rank or mode not in {_DECODE_MODE, _EXTEND_MODE}:
            continue
        choices = np.asarray(record["topk_ids_of_layer"])
        if choices.ndim != 3 or choices.shape[1] == 0:
            continue
        parts.append(np.moveaxis(choices, 0, 1))
        step += [int(record["forward_pass_id"])] * choices.shape[1]
        is_decode += [mode == _DECODE_MODE] * choices.shape[1]
    if not parts:
        raise FormatError(where, None, "records", len(records), "hold a decode or extend pass of the lowest rank")
    whole = np.concatenate(parts)
    present = whole >= 0
    layers = np.flatnonzero(present.any(axis=(0, 2)))
    width = int(present.any(axis=(0, 1)).sum())
    whole = whole[:, layers, :width]
    if whole.size == 0 or np.any(whole < 0):
        raise FormatError(where, None, "topk_ids_of_layer", "-1 inside", "be filled for every token of a MoE layer")
    if logical is not None:
        mapping = np.asarray(logical)[layers]
        whole = np.take_along_axis(mapping[None, :, :], whole.astype(np.int64), axis=2)
        experts = int(mapping.max()) + 1
    else:
        experts = int(document["experts_count"])
    return _recording(experts, whole, np.array(step), np.array(is_decode), str(document.get("source", where)), where)


def _recording(
    experts_count: int,
    choices: NDArray[Any],
    step: NDArray[Any],
    is_decode: NDArray[Any],
    source: str,
    where: str,
) -> RoutingRecording:
    if choices.size > CHOICES_LIMIT:
        raise FormatError(where, None, "choices", choices.size, f"hold at most {CHOICES_LIMIT} expert ids")
    if not (np.issubdtype(choices.dtype, np.integer) and np.issubdtype(step.dtype, np.integer)):
        raise FormatError(where, None, "choices", str(choices.dtype), "be integers, as `step`")
    if choices.size and (choices.max() > np.iinfo(np.int32).max or choices.min() < np.iinfo(np.int32).min):
        raise FormatError(where, None, "choices", "too large", "be expert ids")
    return RoutingRecording(
        experts_count, choices.astype(np.int32), step.astype(np.int64), is_decode.astype(np.bool_), source
    )
