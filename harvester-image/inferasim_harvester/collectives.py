"""The collective micro-benchmark: before the engine starts, on idle GPUs, in the engine's own Python (paper G.2)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from inferasim_harvester.engine_process import EngineProcess
from inferasim_harvester.errors import HarvestError, MeasurementFailedError
from inferasim_harvester.estimates import fit_line
from inferasim_harvester.options import Options
from inferasim_harvester.plan import COLLECTIVES
from inferasim_harvester.progress import Progress
from inferasim_harvester.spec import HarvestSpec
from inferasim_harvester.store import Points
from simcore.anchors.checks import CheckResult, Verdict
from simcore.errors import DomainError
from simcore.laws.collectives import Collective, Tier, link, message_time
from simcore.units import MIB

FILE: Final = "collectives.json"
SCRIPT: Final = Path(__file__).with_name("collective_bench.py")
TIMEOUT_S: Final = 900.0
POLL_S: Final = 0.2
REFERENCE: Final = "MI355X"
"""The GPU whose collectives the paper measured (Table 19)."""
DEVIATION_FLAG: Final = 0.25
"""Median deviation from Table 19 (ours: its own mean errors are up to 10 %)."""
SMALL_BYTES: Final = 8 * MIB
_LAWS: Final = {"all_reduce": Collective.ALL_REDUCE, "all_to_all": Collective.ALL_TO_ALL}


@dataclass(frozen=True)
class Point:
    """One collective: seconds of the slowest rank, median of the windows."""

    collective: str
    gpus: int
    message_bytes: int
    seconds: float


async def measure(ranks: int, folder: Path, port: int, *, largest_bytes: int | None = None) -> dict[str, Any]:
    """The benchmark's record, by a process per rank. Raises MeasurementFailedError with the log's end."""
    made = folder / "collectives.raw.json"
    made.unlink(missing_ok=True)
    argv = ["python3", str(SCRIPT), f"--ranks={ranks}", f"--port={port}", f"--out={made}"]
    if largest_bytes is not None:
        argv.append(f"--largest-bytes={largest_bytes}")
    process = EngineProcess(argv, {}, folder / "collectives.log")
    await process.start()
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + TIMEOUT_S
    try:
        while process.exit_code is None:
            if loop.time() > deadline_s:
                raise MeasurementFailedError(f"the collectives were not measured within {TIMEOUT_S:g} s")
            await asyncio.sleep(POLL_S)
    finally:
        await process.stop()
    if process.exit_code != 0:
        tail = " | ".join(process.log_tail().strip().splitlines()[-3:])
        raise MeasurementFailedError(f"the collective benchmark ended with code {process.exit_code}: {tail}")
    try:
        record: dict[str, Any] = json.loads(made.read_text(encoding="utf-8"))
        points_of(record)
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise MeasurementFailedError(f"the collective benchmark wrote no points: {error}") from error
    made.unlink()
    return {**record, "fits": fits(points_of(record))}


async def phase(spec: HarvestSpec, points: Points, progress: Progress, options: Options) -> list[CheckResult]:
    """Where the spec asks: measures, keeps, judges. A record among the points is not made again by another pod."""
    if spec.sweeps.collectives != "Enabled":
        return []
    if options.engine_url is not None:
        return [CheckResult("collectives", Verdict.FLAG, "not measured: the engine ran before us")]
    record = points.records.get(COLLECTIVES)
    if record is None:
        await progress.say("measuring collectives", "Collectives")
        try:
            ranks = spec.layout.tensor_parallel * spec.layout.data_parallel
            record = await measure(ranks, progress.folder, options.port)
        except HarvestError as error:
            return [CheckResult("collectives", Verdict.FLAG, f"not measured: {error}"[:1900])]
        points.add(COLLECTIVES, record)
    await progress.keep(FILE, json.dumps(record, sort_keys=True))
    return [check(record, spec.accelerator.product)]


def points_of(record: dict[str, Any]) -> list[Point]:
    """The points of a record. Raises LookupError, TypeError, ValueError."""
    return [
        Point(str(row["collective"]), int(row["gpus"]), int(row["bytes"]), float(row["seconds"]))
        for row in record["points"]
    ]


def fits(points: Sequence[Point]) -> list[dict[str, Any]]:
    """alpha + m/B of every collective and group, small and large messages apart, by relative least squares."""
    found = []
    for name, gpus in sorted({(point.collective, point.gpus) for point in points}):
        mine = [point for point in points if (point.collective, point.gpus) == (name, gpus)]
        for part in ("small", "large"):
            these = [point for point in mine if (point.message_bytes <= SMALL_BYTES) is (part == "small")]
            if len(these) < 2:
                continue
            weights = [1.0 / point.seconds**2 for point in these]
            alpha_s, s_per_byte = fit_line(
                [point.message_bytes for point in these], [point.seconds for point in these], weights
            )
            found.append(
                {
                    "collective": name,
                    "gpus": gpus,
                    "messages": part,
                    "alphaMicroseconds": round(alpha_s * 1e6, 3),
                    "bytesPerSecond": round(1.0 / s_per_byte) if s_per_byte else None,
                }
            )
    return found


def check(record: dict[str, Any], product: str) -> CheckResult:
    """The node's links are what Table 19 found, where it says anything; a slow link shows before any step does."""
    points = points_of(record)
    failed = ", ".join(f"{name}: {why}" for name, why in sorted(record.get("failures", {}).items()))
    if failed or not points:
        detail = f"not all were measured: {failed or 'one GPU has none'}"
        return CheckResult("collectives", Verdict.FLAG, detail[:1900], {"points": float(len(points))})
    if product.upper() != REFERENCE:
        detail = f"{len(points)} points; there is no reference for {product} to hold them against"
        return CheckResult("collectives", Verdict.PASS, detail, {"points": float(len(points))})
    deviations = [deviation for point in points if (deviation := _deviation(point)) is not None]
    if not deviations:
        return CheckResult("collectives", Verdict.FLAG, "no point has a reference", {"points": float(len(points))})
    middle = float(np.median(deviations))
    numbers = {"points": float(len(points)), "medianDeviation": middle, "worstDeviation": max(deviations)}
    verdict = Verdict.FLAG if middle > DEVIATION_FLAG else Verdict.PASS
    detail = f"half of {len(deviations)} points are within {middle:.0%} of the published ones for {REFERENCE}"
    return CheckResult("collectives", verdict, detail, numbers)


def _deviation(point: Point) -> float | None:
    """Relative deviation from Table 19's model of what torch.distributed runs; None where it has none.

    Small all-reduces are left out: the table's are vLLM's own kernel, not RCCL's.
    """
    collective = _LAWS.get(point.collective)
    if collective is None or (collective is Collective.ALL_REDUCE and point.message_bytes <= SMALL_BYTES):
        return None
    try:
        found = link(collective=collective, message_bytes=point.message_bytes, gpus_count=point.gpus, tier=Tier.NODE)
    except DomainError:
        return None
    expected_s = message_time(message_bytes=point.message_bytes, alpha_s=found.alpha_s, bytes_per_s=found.bytes_per_s)
    return abs(point.seconds / float(expected_s) - 1.0)
