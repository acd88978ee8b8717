"""The function that the children of test_engine_compute.py run; the request says how to behave."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import Any

from simcore.errors import UnknownNameError


def double(
    request: Mapping[str, Any], progress: Callable[[Mapping[str, Any]], None], keep: Callable[[str], None]
) -> dict[str, Any]:
    """Twice the value, a refusal, a death, a minute of nothing, or two records to be kept."""
    progress({"scored": 1, "total": 2})
    if request.get("how") == "keep":
        keep("one")
        keep("one two")
        return {"value": 0}
    if request.get("how") == "die after the first record":
        if "resume" not in request:
            keep("one")
            os._exit(9)
        return {"value": request["resume"]}
    print("a library that prints must not break the protocol")
    if request.get("how") == "refuse":
        raise UnknownNameError("model.name", "Llma", ["Llama-3.1-8B"])
    if request.get("how") == "die":
        os._exit(9)
    if request.get("how") == "hang":
        time.sleep(60)
    return {"value": 2 * request["value"], "process": os.getpid()}
