"""Recording of expert routing on an engine started for it, and the table that a plan takes (paper App. B.3)."""

from __future__ import annotations

import asyncio
import itertools
import shutil
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from inferasim_harvester import launch
from inferasim_harvester.engine_process import EngineProcess
from inferasim_harvester.errors import HarvestError, MeasurementFailedError
from inferasim_harvester.options import Options
from inferasim_harvester.progress import Progress
from inferasim_harvester.session import Session
from inferasim_harvester.spec import HarvestSpec
from simcore.anchors.checks import CheckResult, Verdict
from simcore.anchors.schema import ExpertLoadRow
from simcore.errors import InputError
from simcore.laws.routing_files import read_recording, read_table, write_npz, write_table
from simcore.laws.routing_replay import ExpertLoad, Phase, RoutingRecording, replay

RECORDING_FILE: Final = "routing.npz"
TABLE_FILE: Final = "expert-load.json"
SCRIPT: Final = Path(__file__).with_name("routing_to_json.py")
MAX_PROMPTS_BYTES: Final = 16 * 1024 * 1024
MAX_PROMPTS: Final = 4096
MAX_DUMP_BYTES: Final = 2 * 1024 * 1024 * 1024
WAVE: Final = 64
"""Requests at a time: decode passes of so many tokens can be replayed."""
DUMP_TIMEOUT_S: Final = 120.0
POLL_S: Final = 0.2
WIDTHS: Final = (2, 4, 8, 16, 32, 64)
SAMPLES: Final = 200
LARGEST_PREFILL_TOKENS: Final = 8192

CHECK: Final = "expert-routing"
Post = Callable[[str], Awaitable[None]]
Again = Callable[[Sequence[str], Mapping[str, str]], Awaitable[Session]]
"""Starts the engine once more, with more arguments and variables."""


@dataclass(frozen=True)
class Recorded:
    """What came of a recording."""

    recording: RoutingRecording
    table: tuple[ExpertLoad, ...]

    @property
    def npz(self) -> bytes:
        """The whole recording, for the disk."""
        return write_npz(self.recording)

    @property
    def text(self) -> str:
        """The table, small enough for a ConfigMap."""
        return write_table(self.table)


def read_prompts(path: str) -> list[str]:
    """The prompts of a file, one a line. Raises InputError."""
    try:
        with Path(path).open("rb") as stream:
            text = stream.read(MAX_PROMPTS_BYTES + 1)
        if len(text) > MAX_PROMPTS_BYTES:
            raise InputError("expertRouting.promptsPath", path, f"be a file of at most {MAX_PROMPTS_BYTES} bytes")
        lines = [line.strip() for line in text.decode("utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            "expertRouting.promptsPath", path, f"be a readable UTF-8 file ({type(error).__name__})"
        ) from error
    prompts = [line for line in lines if line][:MAX_PROMPTS]
    if not prompts:
        raise InputError("expertRouting.promptsPath", path, "hold a prompt in each line")
    return prompts


async def phase(spec: HarvestSpec, progress: Progress, options: Options, again: Again, post: Post) -> list[CheckResult]:
    """Where the spec asks: starts the engine once more with its recorder, serves the texts, keeps what came of it."""
    wanted = spec.sweeps.expert_routing
    if wanted is None:
        return []
    if options.engine_url is not None:
        return [CheckResult(CHECK, Verdict.FLAG, "not recorded: the engine ran before us")]
    if not (progress.folder / TABLE_FILE).exists():
        await progress.say("recording expert routing", "Routing")
        dumps = empty(progress.folder / "routing")
        prompts = read_prompts(wanted.prompts_path)
        try:
            session = await again(*launch.routing_recorder(spec, str(dumps)))
            found = await record(session, prompts, wanted.output_tokens, dumps, post)
        except HarvestError as error:
            return [CheckResult(CHECK, Verdict.FLAG, f"not recorded: {error}"[:1900])]
        (progress.folder / RECORDING_FILE).write_bytes(found.npz)
        await progress.keep(TABLE_FILE, found.text)
    return [CheckResult(CHECK, Verdict.PASS, f"recorded; the anchor and {TABLE_FILE} hold the table")]


def kept(folder: Path) -> tuple[ExpertLoadRow, ...]:
    """The table that the phase left in `folder`, as an anchor holds it; empty when it was not asked for or failed."""
    path = folder / TABLE_FILE
    if not path.exists():
        return ()
    return tuple(
        ExpertLoadRow(
            expert_parallel=row.expert_parallel,
            phase="decode" if row.phase is Phase.DECODE else "prefill",
            step_tokens=row.step_tokens,
            rows_factor=row.rows_factor,
            experts_factor=row.experts_factor,
            samples=row.samples_count,
        )
        for row in read_table(path.read_text(encoding="utf-8"), TABLE_FILE)
    )


async def record(session: Session, prompts: list[str], output_tokens: int, folder: Path, post: Post) -> Recorded:
    """Serves `prompts` with the recorder on; the engine dumps into `folder`. Raises HarvestError."""
    await post("/start_expert_distribution_record")
    for start in range(0, len(prompts), WAVE):
        await session.texts(prompts[start : start + WAVE], output_tokens)
    await post("/stop_expert_distribution_record")
    await post("/dump_expert_distribution_record")
    document = folder / "routing.json"
    await _convert(await _dump_in(folder), document)
    try:
        recording = read_recording(document.read_bytes(), "the engine's dump")
    except (InputError, OSError) as error:
        raise MeasurementFailedError(f"the recording of expert routing cannot be used: {error}") from error
    finally:
        document.unlink(missing_ok=True)
    return Recorded(recording, tables(recording))


def tables(recording: RoutingRecording) -> tuple[ExpertLoad, ...]:
    """I_n and I_d for every EP width, phase and power of two of tokens that the recording can answer."""
    found = []
    seeds = itertools.count()
    for width in WIDTHS:
        if recording.experts_count % width:
            continue
        for phase in Phase:
            tokens = 1
            while tokens <= LARGEST_PREFILL_TOKENS:
                seed = np.random.SeedSequence([20261130, next(seeds)])
                try:
                    found.append(
                        replay(
                            recording,
                            expert_parallel=width,
                            phase=phase,
                            step_tokens=tokens,
                            samples_count=SAMPLES,
                            seed=seed,
                        )
                    )
                except InputError:
                    break  # no recorded step is that large, and none is larger
                tokens *= 2
    if not found:
        raise MeasurementFailedError(f"no EP width divides {recording.experts_count} experts, or no step was recorded")
    return tuple(found)


async def _dump_in(folder: Path) -> Path:
    """The dump, once it has stopped growing; that of the lowest rank where there are several."""
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + DUMP_TIMEOUT_S
    size_bytes = -1
    while loop.time() < deadline_s:
        dumps = sorted(folder.glob("*.pt"), key=lambda path: (path.stem.rsplit("_", 1)[-1].zfill(8), path.name))
        now_bytes = dumps[0].stat().st_size if dumps else -1
        if dumps and now_bytes == size_bytes > 0:
            if now_bytes > MAX_DUMP_BYTES:
                raise MeasurementFailedError(f"the dump of expert routing has {now_bytes} bytes: give fewer prompts")
            return dumps[0]
        size_bytes = now_bytes
        await asyncio.sleep(POLL_S)
    raise MeasurementFailedError(f"the engine dumped no expert routing into {folder} within {DUMP_TIMEOUT_S:g} s")


async def _convert(dump: Path, target: Path) -> None:
    """By the engine's own Python, which has torch."""
    process = EngineProcess(["python3", str(SCRIPT), str(dump), str(target)], {}, target.with_suffix(".log"))
    await process.start()
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + DUMP_TIMEOUT_S
    try:
        while process.exit_code is None and loop.time() < deadline_s:
            await asyncio.sleep(POLL_S)
    finally:
        await process.stop()
    if process.exit_code != 0:
        tail = " | ".join(process.log_tail().strip().splitlines()[-3:])
        raise MeasurementFailedError(f"the dump of expert routing cannot be read: {tail}")


def empty(folder: Path) -> Path:
    """A fresh folder for the engine to dump into."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder
