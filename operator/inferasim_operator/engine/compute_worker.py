"""The child process of `engine.compute`: reads a request per line, answers in JSON lines, ends with its parent.

Answers: any number of `{"progress": {…}}` and `{"keep": text}`, then `{"result": {…}}` or `{"error": {"type",
"message", "field"}}`. The function may take keywords: `progress`, a callable that gets a JSON-able mapping; `keep`, one
that gets a text and returns once the parent has answered `{"kept": true}`: the text will be found after a restart.
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
    requests: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    kept: queue.SimpleQueue[bool] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(requests, kept), daemon=True).start()
    module, _, name = function_name.partition(":")
    function: Callable[..., Any] = getattr(importlib.import_module(module), name)

    def say(message: dict[str, Any]) -> None:
        output.write(json.dumps(message, ensure_ascii=False) + "\n")

    def keep(text: str) -> None:
        say({"keep": text})
        kept.get()

    offered = {"progress": lambda progress: say({"progress": dict(progress)}), "keep": keep}
    taken = {name: offered[name] for name in inspect.signature(function).parameters if name in offered}
    while True:
        request = requests.get()
        try:
            say({"result": function(request, **taken)})
        except Exception as error:
            traceback.print_exc()
            say({"error": describe(error)})


def describe(error: Exception) -> dict[str, str]:
    """The error as the parent gets it: class names from the most special to ours, so that subclasses stay known."""
    kinds = [kind.__name__ for kind in type(error).__mro__ if kind not in (Exception, BaseException, object)]
    return {"type": "/".join(kinds), "message": str(error), "field": str(getattr(error, "field", ""))}


def _read(requests: queue.SimpleQueue[dict[str, Any]], kept: queue.SimpleQueue[bool]) -> None:
    """Pass lines on; the end of input means that the parent is gone, and then nobody waits for an answer."""
    for line in sys.stdin:
        message = json.loads(line)
        if message == {"kept": True}:
            kept.put(True)
        else:
            requests.put(message)
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1])
