"""A closed loop against a running engine: C clients, each sending its next request when the last one ended.

What comes out can be held against a prediction from an anchor of the same engine; nothing of it goes into an anchor.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

import numpy as np

from inferasim_harvester.session import Session
from inferasim_harvester.streams import Stream
from simcore.anchors.checks import time_per_output_token_s
from simcore.units import MILLI

WARM_UP_WAVES: Final = 1
"""Requests of each client that are dropped: the opening wave is no steady state (public case E08)."""


@dataclass(frozen=True)
class Probe:
    """Means over the requests after the warm-up; throughput over the time in which all clients were busy."""

    concurrency: int
    requests: int
    ttft_s: float
    tpot_s: float | None
    output_tokens_per_s: float

    def row(self) -> dict[str, float | int | None]:
        """For people and programs, keys with their units."""
        return {
            "concurrency": self.concurrency,
            "requests": self.requests,
            "ttftMs": round(self.ttft_s / MILLI, 3),
            "tpotMs": None if self.tpot_s is None else round(self.tpot_s / MILLI, 4),
            "throughputTokensPerSecond": round(self.output_tokens_per_s, 2),
        }


async def closed_loop(session: Session, concurrency: int, each: int, prompt_tokens: int, output_tokens: int) -> Probe:
    """`each` counted requests of every client. TPOT is (E2E - TTFT) over the tokens after the first, per request."""

    async def client(index: int) -> list[Stream]:
        streams = []
        for turn in range(WARM_UP_WAVES + each):
            label = f"probe/{concurrency}/{index}/{turn}"
            streams += await session.wave(label, 1, prompt_tokens, output_tokens)
        return streams

    clients = await asyncio.gather(*(client(index) for index in range(concurrency)))
    counted = [stream for streams in clients for stream in streams[WARM_UP_WAVES:]]
    per_token = [
        time_per_output_token_s(float(s.times_s[-1]) - s.sent_s, s.ttft_s, s.completion_tokens) for s in counted
    ]
    known = [value for value in per_token if value is not None]
    # Between the moment the last client has warmed up and the first one's end, everyone is busy.
    start_s = max(float(streams[WARM_UP_WAVES - 1].times_s[-1]) for streams in clients)
    end_s = min(float(streams[-1].times_s[-1]) for streams in clients)
    tokens = sum(_tokens_between(stream, start_s, end_s) for streams in clients for stream in streams)
    return Probe(
        concurrency,
        len(counted),
        float(np.mean([stream.ttft_s for stream in counted])),
        float(np.mean(known)) if known else None,
        tokens / (end_s - start_s) if end_s > start_s else 0.0,
    )


def _tokens_between(stream: Stream, start_s: float, end_s: float) -> float:
    """Tokens that arrived in a span of time."""
    steps = np.diff(np.concatenate(([0.0], stream.tokens)))
    inside = (stream.times_s > start_s) & (stream.times_s <= end_s)
    return float(np.sum(steps[inside]))
