"""A whole harvest of an emulated engine in virtual time: seconds instead of minutes, the same code as on a node."""

from __future__ import annotations

import asyncio
import io
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from inferasim_harvester.__main__ import measure
from inferasim_harvester.emulator import virtual
from inferasim_harvester.emulator.server import Emulator
from inferasim_harvester.options import Options
from inferasim_harvester.progress import ANCHOR_FILE, RESULT_FILE, Progress
from inferasim_harvester.spec import HarvestSpec
from inferasim_harvester.store import Points
from simcore.anchors.schema import Anchor, parse_anchor

NOW = "2026-01-01T00:00:00Z"
"""Virtual time has no date."""


@dataclass(frozen=True)
class Outcome:
    """What a trial left behind."""

    exit_code: int
    result: dict[str, Any]
    anchor: Anchor | None
    progress: tuple[dict[str, Any], ...]

    def verdict(self, check: str) -> str:
        """Verdict of a named check."""
        return next(str(c["verdict"]) for c in self.result["checks"] if c["name"] == check)

    def flagged(self) -> dict[str, str]:
        """Every check that did not pass."""
        return {c["name"]: c["verdict"] for c in self.result["checks"] if c["verdict"] != "pass"}


def harvest(emulator: Emulator, spec: HarvestSpec, out: Path, options: Options | None = None) -> Outcome:
    """Measures `emulator` as `spec` says and reads back what was written to `out`."""
    said = io.StringIO()

    async def whole() -> int:
        port = await emulator.start()
        url = f"http://127.0.0.1:{port}"
        given = options or Options()
        metrics = given.gpu_metrics_url and given.gpu_metrics_url.replace("ENGINE", url)
        points = Points.restore(out, spec.digest, None)
        progress = Progress(out, asyncio.get_running_loop().time, now=lambda: NOW, out=said)
        try:
            return await measure(spec, points, progress, replace(given, engine_url=url, gpu_metrics_url=metrics))
        finally:
            await emulator.stop()

    code = virtual.run(whole())
    result = json.loads((out / RESULT_FILE).read_text(encoding="utf-8"))
    text = (out / ANCHOR_FILE).read_text(encoding="utf-8") if (out / ANCHOR_FILE).exists() else None
    lines = tuple(json.loads(line) for line in said.getvalue().splitlines())
    return Outcome(code, result, parse_anchor(text) if text else None, lines)
