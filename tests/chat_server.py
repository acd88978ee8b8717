"""A chat model that speaks the OpenAI protocol from a script: in a test's own process, or as a program in a pod.

Only the standard library, so that the file alone is the program: `python chat_server.py PORT`.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Reply = Callable[[str], "str | tuple[int, str] | None"]
"""From the request's messages as text to the assistant's message, a status with a body, or None for no answer."""


def fields(**values: str) -> str:
    """An answer in the form that DSPy's chat adapter reads."""
    return "".join(f"[[ ## {name} ## ]]\n{value}\n\n" for name, value in values.items()) + "[[ ## completed ## ]]\n"


def planned(configurations: str) -> str:
    """The planner's answer."""
    return fields(rationale="r", hypotheses="h1\nh2", configurations_json=configurations, polish_plan="p")


def called(tool: str, **arguments: Any) -> str:
    """The investigation's choice of a tool."""
    return fields(next_thought="t", next_tool_name=tool, next_tool_args=json.dumps(arguments))


def is_plan(text: str) -> bool:
    """Whether the planner is asked."""
    return "configurations_json" in text and "next_tool_name" not in text


def helpful(text: str) -> str:
    """A model that proposes two configurations, investigates nothing and sums up."""
    if is_plan(text):
        return planned('[{"layout.tensorParallel": 1, "load.concurrency": 8}, {"maxBatchedTokens": 4096}]')
    if "next_tool_name" in text:
        return called("finish")
    return fields(reasoning="x", summary="narrow layouts win", follow_ups="none")


def greedy(text: str) -> str:
    """A model that reads on for ever."""
    return planned("[]") if is_plan(text) else called("read_history")


def listen(reply: Reply, seen: list[dict[str, Any]], stop: threading.Event, address: tuple[str, int]) -> Any:
    """The server, not yet serving; `seen` takes the requests, `stop` ends those that get no answer."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            seen.append({"path": self.path, "authorization": self.headers.get("Authorization"), "body": request})
            answer = reply(json.dumps(request["messages"]))
            if answer is None:
                stop.wait(10)
                return
            status, text = (200, _completion(answer)) if isinstance(answer, str) else answer
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text.encode())))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(address, Handler)
    server.daemon_threads = True
    return server


@contextmanager
def serving(reply: Reply) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Its base address and the requests so far, for as long as the block runs."""
    seen: list[dict[str, Any]] = []
    stop = threading.Event()
    server = listen(reply, seen, stop, ("127.0.0.1", 0))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1", seen
    finally:
        stop.set()
        server.shutdown()
        server.server_close()
        thread.join()


def _completion(text: str) -> str:
    return json.dumps(
        {
            "id": "x",
            "object": "chat.completion",
            "created": 0,
            "model": "m",
            "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}],
            "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
        }
    )


def main() -> None:
    """Serve the helpful model to everyone, with a line per request on stdout."""

    class Told(list[dict[str, Any]]):
        def append(self, request: dict[str, Any]) -> None:
            print(json.dumps({"path": request["path"], "authorization": request["authorization"]}), flush=True)

    listen(helpful, Told(), threading.Event(), ("0.0.0.0", int(sys.argv[1]))).serve_forever()


if __name__ == "__main__":
    main()
