"""`python -m inferasim_harvester run`: measures one engine, writes its anchor. Contract: docs/harvest-protocol.md."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import shlex
import signal
import sys
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Final

import httpx

from inferasim_harvester import launch
from inferasim_harvester.configmap import ConfigMap
from inferasim_harvester.errors import HarvestError
from inferasim_harvester.harvest import Harvest, open_session
from inferasim_harvester.options import Options
from inferasim_harvester.probe import closed_loop
from inferasim_harvester.progress import RESULT_FILE, Progress
from inferasim_harvester.results import failure_text, result_text
from inferasim_harvester.spec import HarvestSpec, load_spec
from inferasim_harvester.store import FILE as POINTS_FILE
from inferasim_harvester.store import Points
from inferasim_harvester.wire import Address, Client
from simcore.errors import InputError

TERMINATION_LOG: Final = Path("/dev/termination-log")
EXPORTER_PORT: Final = 5000
"""Default of the AMD device metrics exporter."""
OK, FAILED, REFUSED, TERMINATED = 0, 1, 2, 143


def main(arguments: list[str] | None = None) -> int:
    """Exit code: 0 anchor written, 1 measurement failed, 2 bad input, 143 stopped."""
    given = _parser().parse_args(arguments)
    try:
        spec = load_spec(given.spec)
        if given.verb == "command":
            print(shlex.join(launch.command(spec, port=given.port)))
            return OK
        if given.verb == "probe":
            return asyncio.run(_probe(spec, given))
        if given.gpu_metrics_url is not None:
            Address.parse(given.gpu_metrics_url, "gpu-metrics-url")
        given.out.mkdir(parents=True, exist_ok=True)
        return asyncio.run(_run(spec, given))
    except InputError as error:
        _last_words(str(error))
        return REFUSED
    except OSError as error:
        _last_words(f"`--out` must be a writable folder: {error}")
        return REFUSED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="inferasim_harvester", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    run = verbs.add_parser("run", help="measure and write the anchor")
    show = verbs.add_parser("command", help="print the engine's command line, start nothing")
    load = verbs.add_parser("probe", help="closed loop against a running engine, to hold a prediction against")
    load.add_argument("--engine-url", required=True)
    load.add_argument("--concurrency", type=int, nargs="+", required=True)
    load.add_argument("--requests-each", type=int, default=8, help="counted requests of every client")
    load.add_argument("--prompt-tokens", type=int, default=1024)
    load.add_argument("--output-tokens", type=int, default=128)
    load.add_argument("--stall-timeout", type=float, default=120.0)
    for verb in (run, show, load):
        verb.add_argument("--spec", type=Path, required=True)
        verb.add_argument("--port", type=int, default=8000, help="where the engine listens when we start it")
    run.add_argument("--out", type=Path, required=True)
    run.add_argument("--engine-url", help="an engine that runs already; nothing is started")
    run.add_argument("--config-map", help="NAMESPACE/NAME to mirror into")
    run.add_argument(
        "--gpu-metrics-url", help="the AMD device metrics exporter of this node; port 5000 of HOST_IP when that is set"
    )
    run.add_argument("--start-timeout", type=float, default=3600.0, help="seconds until the first token")
    run.add_argument(
        "--max-repeats", type=int, help="bound on the repeats of a point; precision is checked all the same"
    )
    run.add_argument("--stall-timeout", type=float, default=120.0, help="seconds of silence that mean death")
    return parser


async def _run(spec: HarvestSpec, given: argparse.Namespace) -> int:
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    if task is not None:
        loop.add_signal_handler(signal.SIGTERM, task.cancel)
    mirror = ConfigMap.in_cluster(given.config_map) if given.config_map else None
    try:
        mirrored: dict[str, str] = {}
        if mirror is not None:
            with contextlib.suppress(httpx.HTTPError, ValueError, OSError):
                mirrored = await mirror.read()
        if _is_done(given.out, mirrored, spec.digest):
            print(json.dumps({"phase": "Done", "message": "this spec has its result already"}))
            return OK
        points = Points.restore(given.out, spec.digest, mirrored.get(POINTS_FILE))
        progress = Progress(given.out, loop.time, mirror=mirror)
        precision = Options()
        bound = given.max_repeats
        if bound is not None:
            if bound < 3:
                raise InputError("max-repeats", bound, "be at least 3")
            precision = Options(decode=precision.decode.bounded(bound), prefill=precision.prefill.bounded(bound))
        options = replace(
            precision,
            engine_url=given.engine_url,
            gpu_metrics_url=given.gpu_metrics_url or _exporter_here(),
            node=os.environ.get("NODE_NAME") or None,
            start_timeout_s=given.start_timeout,
            stall_s=given.stall_timeout,
            port=given.port,
            client_command=shlex.join(["python", "-m", "inferasim_harvester", *sys.argv[1:]]),
        )
        return await measure(spec, points, progress, options)
    except asyncio.CancelledError:
        _last_words("stopped by SIGTERM; the points measured so far are kept")
        return TERMINATED
    finally:
        if mirror is not None:
            await mirror.close()


def _exporter_here() -> str | None:
    """Where the AMD device metrics exporter of this node listens, if there is one; None outside of a cluster."""
    host = os.environ.get("HOST_IP", "")
    return f"http://{f'[{host}]' if ':' in host else host}:{EXPORTER_PORT}/metrics" if host else None


async def _probe(spec: HarvestSpec, given: argparse.Namespace) -> int:
    counts = (*given.concurrency, given.requests_each, given.prompt_tokens, given.output_tokens)
    if min(counts) < 1:
        raise InputError("probe", min(counts), "have counts of at least 1")
    session = await open_session(spec, Client(Address.parse(given.engine_url), given.stall_timeout))
    try:
        for clients in given.concurrency:
            found = await closed_loop(session, clients, given.requests_each, given.prompt_tokens, given.output_tokens)
            print(json.dumps(found.row()), flush=True)
    except HarvestError as error:
        _last_words(f"{error.reason}: {error}")
        return FAILED
    return OK


async def measure(spec: HarvestSpec, points: Points, progress: Progress, options: Options) -> int:
    """One harvest with its final files; the exit code."""
    harvest = Harvest(spec, points, progress, options, progress.now)
    try:
        await progress.say(f"{len(points.records)} points are known already", "Preparing", points)
        anchor, checks = await harvest.run()
    except InputError:
        raise
    except Exception as error:
        reason, text = HarvestError.reason, f"{type(error).__name__}: {error}"
        if isinstance(error, HarvestError):
            reason, text = error.reason, str(error)
        else:  # a defect of ours: the result says so, the log says where
            traceback.print_exc()
        tail = harvest.process.log_tail() if harvest.process is not None else ""
        await progress.say(text, "Failed", points)
        await progress.keep(RESULT_FILE, failure_text(spec.digest, reason, text, tail))
        _last_words(f"{reason}: {text}")
        return FAILED
    await progress.keep(RESULT_FILE, result_text(spec.digest, anchor, checks, progress.total))
    return OK


def _is_done(out: Path, mirrored: dict[str, str], digest: str) -> bool:
    texts = [mirrored.get(RESULT_FILE, "")]
    with contextlib.suppress(OSError, UnicodeDecodeError):
        texts.append((out / RESULT_FILE).read_text(encoding="utf-8"))
    for text in texts:
        with contextlib.suppress(ValueError):
            result = json.loads(text)
            if isinstance(result, dict) and result.get("specDigest") == digest and result.get("outcome") == "Succeeded":
                return True
    return False


def _last_words(line: str) -> None:
    """One line where people look: stderr, and the pod's status."""
    print(line, file=sys.stderr, flush=True)
    with contextlib.suppress(OSError):
        if TERMINATION_LOG.exists():
            TERMINATION_LOG.write_text(line[:4000] + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
