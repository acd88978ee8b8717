"""`python -m inferasim_harvester.emulator`: an engine to try the harvester on, without a GPU."""

from __future__ import annotations

import argparse
import asyncio
import sys

from inferasim_harvester.emulator.law import Faults, StepLaw
from inferasim_harvester.emulator.server import Emulator
from simcore.cards.layout import Engine


def main(arguments: list[str] | None = None) -> int:
    """Serves until interrupted."""
    parser = argparse.ArgumentParser(prog="inferasim_harvester.emulator", description=__doc__)
    parser.add_argument("--engine", default="VLLM", choices=[engine.value for engine in Engine])
    parser.add_argument("--version", default="0.33.0")
    parser.add_argument("--model", default="emulated/model")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--speed", type=float, default=1.0, help="how much faster than its law it runs")
    parser.add_argument("--jitter", type=float, default=0.01, help="standard deviation of a step, as a fraction")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    emulator = Emulator(
        engine=Engine.parse(given.engine),
        version=given.version,
        model=given.model,
        law=StepLaw(),
        faults=Faults(jitter_frac=given.jitter),
        speed=given.speed,
        seed=given.seed,
    )

    async def serve() -> None:
        port = await emulator.start(given.host, given.port)
        print(f"{given.engine} emulated on http://{given.host}:{port}", flush=True)
        await asyncio.Event().wait()

    try:
        asyncio.run(serve())
    except KeyboardInterrupt:
        return 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
