"""One engine under measurement: waves of requests, and a tally of everything that was asked and served."""

from __future__ import annotations

import asyncio
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import numpy as np

from inferasim_harvester.errors import EngineDiedError, MeasurementFailedError
from inferasim_harvester.prompts import Prompts
from inferasim_harvester.streams import Dialect, Stream
from inferasim_harvester.wire import Client

CALIBRATION_TRIES: Final = 5
LENGTH_TOLERANCE_FRAC, LENGTH_TOLERANCE_TOKENS = 0.01, 2
"""Asked against served prompt length, where prompts are text: a word may be several tokens."""
HEALTH_STALL_S: Final = 10.0


@dataclass
class Tally:
    """Sums over the measured requests of one point; the checks read them."""

    requests: int = 0
    asked_prompt_tokens: int = 0
    served_prompt_tokens: int = 0
    asked_output_tokens: int = 0
    produced_tokens: int = 0
    empty_chunks: int = 0
    stream_s: float = 0.0
    """Sum over requests of sent to last byte."""
    worst_length_deviation: float = 0.0
    """Largest relative gap between a request's asked and served prompt length."""
    missed_tokens: int = 0
    """Sum over requests of the gap between asked and produced output length, whichever is more."""
    cached_tokens: int = 0
    """Prompt tokens that answers say came from the prefix cache."""
    cut_streams: int = 0
    """Streams without their end mark."""

    def add(self, other: Tally) -> None:
        """Sums; the worst stays the worst."""
        for name, value in asdict(other).items():
            mine = getattr(self, name)
            setattr(self, name, max(mine, value) if name == "worst_length_deviation" else mine + value)


@dataclass
class Session:
    """What every measurement needs. `tally` counts since it was last taken."""

    client: Client
    dialect: Dialect
    prompts: Prompts
    model: str
    detokenize: bool = True
    tally: Tally = field(default_factory=Tally)
    words: dict[int, int] = field(default_factory=dict)
    """Words that serve as so many tokens, found by asking (engines that take text only)."""

    def take_tally(self) -> Tally:
        """The tally so far; counting starts again."""
        taken, self.tally = self.tally, Tally()
        return taken

    async def wave(self, label: str, count: int, length: int, max_tokens: int) -> list[Stream]:
        """`count` new prompts of `length` tokens at one moment, each to give `max_tokens`."""
        answers = await self._post(await self._bodies(label, count, length, max_tokens))
        return self._read(answers, length, max_tokens)

    async def texts(self, prompts: list[str], max_tokens: int) -> None:
        """Given texts at one moment; nothing of them is measured. For engines that take text beside token ids."""
        answers = await self._post([self.dialect.request(self.model, text, max_tokens) for text in prompts])
        for answer in answers:
            self.dialect.read(answer)

    async def behind(
        self, label: str, blocker: int, delay_s: float, count: int, length: int
    ) -> tuple[Stream, list[Stream]]:
        """One prompt of `blocker` tokens, and `delay_s` later `count` prompts of `length`; one token each.

        The later ones wait while the first is computed, so their step begins when its token appears: what lies between
        the two tokens is the engine's step alone, free of work on the CPU before it.
        """
        first_body = await self._bodies(f"{label}/blocker", 1, blocker, 1)
        bodies = await self._bodies(label, count, length, 1)
        first = asyncio.create_task(self._post(first_body))
        try:
            await asyncio.sleep(delay_s)
            answers = await self._post(bodies)
            (blocked,) = self._read(await first, blocker, 1)
        finally:
            first.cancel()
        return blocked, self._read(answers, length, 1)

    async def _post(self, bodies: list[bytes]) -> list[Any]:
        try:
            return await self.client.post(self.dialect.path, bodies)
        except EngineDiedError as error:
            raise EngineDiedError(f"{error}; {await self.health()}") from error

    async def health(self) -> str:
        """What /health says now: a green one does not mean that tokens come (public case A20)."""
        try:
            answer = await self.client.get("/health", HEALTH_STALL_S)
        except EngineDiedError:
            return "/health does not answer"
        return f"/health says {answer.status}"

    def _read(self, answers: list[Any], length: int, max_tokens: int) -> list[Stream]:
        streams = [self.dialect.read(answer) for answer in answers]
        for answer, stream in zip(answers, streams, strict=True):
            deviation = abs(stream.prompt_tokens / length - 1.0)
            self.tally.add(
                Tally(
                    requests=1,
                    asked_prompt_tokens=length,
                    served_prompt_tokens=stream.prompt_tokens,
                    asked_output_tokens=max_tokens,
                    produced_tokens=stream.completion_tokens,
                    empty_chunks=stream.empty_chunks,
                    stream_s=answer.ended_s - answer.sent_s,
                    worst_length_deviation=deviation,
                    missed_tokens=abs(max_tokens - stream.completion_tokens),
                    cached_tokens=stream.cached_tokens,
                    cut_streams=not stream.is_ended,
                )
            )
        return streams

    async def _bodies(self, label: str, count: int, length: int, max_tokens: int) -> list[bytes]:
        prompts: list[Any]
        if self.dialect.token_ids:
            prompts = self.prompts.token_ids(label, count, length)
        else:
            prompts = self.prompts.texts(label, count, await self._words_for(length))
        return [self.dialect.request(self.model, p, max_tokens, detokenize=self.detokenize) for p in prompts]

    async def _words_for(self, length: int) -> int:
        """How many words the engine counts as `length` tokens. Raises MeasurementFailedError."""
        if length in self.words:
            return self.words[length]
        words = length
        for attempt in range(CALIBRATION_TRIES):
            text = self.prompts.texts(f"calibrate/{length}/{attempt}", 1, words)
            body = self.dialect.request(self.model, text[0], 1)
            (answer,) = await self._post([body])
            served = self.dialect.read(answer).prompt_tokens
            if abs(served - length) <= max(LENGTH_TOLERANCE_TOKENS, LENGTH_TOLERANCE_FRAC * length):
                self.words[length] = words
                return words
            words = max(1, round(words * length / served))
        raise MeasurementFailedError(f"no text of {length} tokens was found; the last one had {served}")


def spread_s(streams: list[Stream]) -> float:
    """Seconds between the earliest and the latest first token."""
    first = np.array([stream.first_s for stream in streams])
    return float(first.max() - first.min())
