"""Headless Chromium over its debugging pipe: load a page, type, look. No driver, no port, no network."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PATIENCE_S = 120.0
FLAGS = (
    "--headless",
    "--remote-debugging-pipe",
    "--no-sandbox",  # the tests' page is our own, and containers offer Chromium no sandbox
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)

LOADED = """new Promise(done => {
  if (document.readyState === 'complete') done(1); else addEventListener('load', () => done(1));
})"""


def program() -> str | None:
    """Where Chromium is, if it is."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Page:
    """One tab. Messages are JSON ended by NUL on two pipes, which the browser finds as descriptors 3 and 4."""

    def __init__(self, folder: Path) -> None:
        path = program()
        assert path is not None
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        self.requests: list[str] = []
        self.problems: list[str] = []
        self._held, self._last = b"", 0
        self._process = subprocess.Popen(
            ["bash", "-c", f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}', "chromium", path, *FLAGS,
             f"--user-data-dir={folder / 'profile'}", "about:blank"],
            pass_fds=(theirs_in, theirs_out),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=os.environ | {"HOME": str(folder)},
        )  # fmt: skip
        os.close(theirs_in)
        os.close(theirs_out)
        self._session = ""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log", "Accessibility"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait(timeout=PATIENCE_S)
        os.close(self._in)
        os.close(self._out)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command of the DevTools protocol and its result."""
        self._last += 1
        message: dict[str, Any] = {"id": self._last, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._last:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result

    def load(self, path: Path, *, width: int, height: int, is_dark: bool) -> None:
        """The page in a window of this size, all of it rendered."""
        mobile = width < 600
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=mobile)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.requests.clear()
        self.call("Page.navigate", url=path.as_uri())
        self.value(LOADED)

    def value(self, expression: str) -> Any:
        """What a JavaScript expression is in the page."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def press(self, key: str) -> None:
        """A key, pressed and let go."""
        codes = {"Tab": 9, "Enter": 13, "ArrowRight": 39, "ArrowLeft": 37, "Home": 36, "End": 35}
        text = {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            extra = text if kind == "keyDown" else {}
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=codes[key], **extra)

    def screenshot(self, path: Path) -> None:
        """The window as a PNG."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def _read(self) -> dict[str, Any]:
        deadline_s = time.monotonic() + PATIENCE_S
        while b"\0" not in self._held:
            ready, _, _ = select.select([self._in], [], [], max(deadline_s - time.monotonic(), 0.0))
            assert ready, f"the browser said nothing for {PATIENCE_S:.0f} s"
            piece = os.read(self._in, 1 << 20)
            assert piece, "the browser has ended"
            self._held += piece
        raw, _, self._held = self._held.partition(b"\0")
        message: dict[str, Any] = json.loads(raw)
        method, told = message.get("method"), message.get("params", {})
        if method == "Network.requestWillBeSent":
            self.requests.append(told["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.problems.append(str(told["exceptionDetails"]))
        elif method == "Log.entryAdded" and told["entry"]["level"] in ("error", "warning"):
            self.problems.append(told["entry"]["text"])
        return message
