"""The traffic of a plan: the API's words as the simulator's, and where a trace lies."""

from __future__ import annotations

import base64
import binascii
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from inferasim_operator.api.v1alpha1.workload import LengthRange, Workload
from simcore.errors import InputError
from simcore.prediction.traffic import WorkloadInput

TRACE_KEY = "trace.jsonl"
PERMILLE = 1000
MILLISECONDS = 1000


def workload_of(given: Workload, trace: Path | None) -> WorkloadInput:
    """The same traffic as the simulator takes it. Without `trace` that of a trace can be named, not simulated."""
    words: dict[str, Any] = given.to_dict()
    if given.trace is not None:
        name = (given.trace.format or "Auto").lower()
        words = {"trace": {"path": str(trace or "a trace that is not here"), "format": name}}
    drawn = given.synthetic
    if drawn is not None and drawn.prefixes is not None:
        exponent = words["synthetic"]["prefixes"].pop("zipfExponentPermille", 0)
        words["synthetic"]["prefixes"]["zipfExponent"] = exponent / PERMILLE
    if drawn is not None and drawn.conversation is not None:
        think = words["synthetic"]["conversation"].pop("thinkMilliseconds", 0)
        words["synthetic"]["conversation"]["thinkSeconds"] = think / MILLISECONDS
    return WorkloadInput.model_validate(words)


def middle(length: LengthRange) -> int:
    """The mean of an even draw, rounded."""
    return round((length.minimum + length.maximum) / 2)


@contextmanager
def trace_file(request: Mapping[str, Any], given: Workload) -> Iterator[Path | None]:
    """The plan's trace as a file for as long as it is simulated; None where there is none, or it is not needed.

    It comes with the question (`"trace": {"data": base64}`) or lies under the folder `"claims"`, which holds a folder
    per claim. Raises InputError.
    """
    trace = given.trace
    if trace is None or request.get("shards"):
        yield None
    elif trace.claim is not None:
        if not request.get("claims"):
            hint = "in a cluster the search's pods mount it; here name the folder of claims with --claims"
            raise InputError("workload.trace.claim", trace.claim.claim_name, "be mounted", hint)
        yield inside(Path(request["claims"]) / trace.claim.claim_name, trace.claim.path, "workload.trace.claim.path")
    else:
        held = request.get("trace")
        if not isinstance(held, Mapping):
            raise InputError("workload.trace.configMap", None, "be resolved", "hand in the trace with the question")
        try:
            data = base64.b64decode(str(held.get("data")), validate=True)
        except binascii.Error as error:
            raise InputError("workload.trace", str(error), "be base64") from error
        with tempfile.TemporaryDirectory(prefix="inferasim-trace-") as folder:
            path = Path(folder) / TRACE_KEY
            path.write_bytes(data)
            yield path


def inside(root: Path, path: str, field: str) -> Path:
    """`path` under `root`, links followed. Raises InputError when it leads out of it, or to nothing."""
    whole, top = (root / path).resolve(), root.resolve()
    if not whole.is_relative_to(top):
        raise InputError(field, path, "stay inside its volume")
    if not whole.exists():
        raise InputError(field, path, "be there")
    return whole
