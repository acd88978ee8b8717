"""The child process of `engine.compute`: reads a request per line, answers in JSON lines, ends with its parent.

Answers: any number of `{"progress": {…}}`, then `{"result": {…}}` or `{"error": {"type", "message", "field"}}`.
The function may take a keyword `progress`, a callable that gets a JSON-able mapping.
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
import queue
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any

NICE = 5


def main(function_name: str) -> None:
    """Serve requests from stdin until it closes."""
    # What a library prints must not get between our lines: the real stdout is kept aside.
    output = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
    os.dup2(2, 1)
    os.nice(NICE)  # the operator's own watches and probes come first
    requests: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(requests,), daemon=True).start()
    module, _, name = function_name.partition(":")
    function: Callable[..., Any] = getattr(importlib.import_module(module), name)
    takes_progress = "progress" in inspect.signature(function).parameters

    def say(message: dict[str, Any]) -> None:
        output.write(json.dumps(message, ensure_ascii=False) + "\n")

    while True:
        request = json.loads(requests.get())
        try:
            if takes_progress:
                answer = function(request, progress=lambda progress: say({"progress": dict(progress)}))
            else:
                answer = function(request)
            say({"result": answer})
        except Exception as error:
            traceback.print_exc()
            say({"error": describe(error)})


def describe(error: Exception) -> dict[str, str]:
    """The error as the parent gets it: class names from the most special to ours, so that subclasses stay known."""
    kinds = [kind.__name__ for kind in type(error).__mro__ if kind not in (Exception, BaseException, object)]
    return {"type": "/".join(kinds), "message": str(error), "field": str(getattr(error, "field", ""))}


def _read(requests: queue.SimpleQueue[str]) -> None:
    """Pass lines on; the end of input means that the parent is gone, and then nobody waits for an answer."""
    for line in sys.stdin:
        requests.put(line)
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1])
