"""The emulator's HTTP face: OpenAI completions (vLLM, ATOM), SGLang's /generate, and their information pages."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from email.utils import formatdate
from typing import Any

from inferasim_harvester.emulator import pages
from inferasim_harvester.emulator.law import Faults, StepLaw
from inferasim_harvester.emulator.recorder import Recorder
from inferasim_harvester.emulator.scheduler import Scheduler, Sequence, Totals
from simcore.cards.layout import Engine

MAX_BODY_BYTES = 16 * 1024 * 1024
KEEP_ALIVE = b": still here, data: none yet\n\n"
"""A comment of the event stream; it is no event, whatever words it holds."""


@dataclass
class Emulator:
    """One engine on one port. `settings` is what the information pages say it runs with."""

    engine: Engine = Engine.VLLM
    version: str = "0.33.0"
    model: str = "emulated/model"
    law: StepLaw = field(default_factory=StepLaw)
    faults: Faults = field(default_factory=Faults)
    settings: Mapping[str, object] = field(default_factory=dict)
    token_budget: int = 8192
    max_sequences: int = 256
    kv_pool_tokens: int = 2_000_000
    speed: float = 1.0
    tokens_per_step: int = 1
    seed: int = 0
    recorder: Recorder | None = None
    """Only SGLang has one."""

    def __post_init__(self) -> None:
        self.scheduler = Scheduler(
            law=self.law,
            faults=self.faults,
            token_budget=self.token_budget,
            max_sequences=self.max_sequences,
            kv_pool_tokens=self.kv_pool_tokens,
            mixed=self.engine is Engine.VLLM,
            speed=self.speed,
            tokens_per_step=self.tokens_per_step,
            seed=self.seed,
            recorder=self.recorder,
        )
        self.port = 0
        self.accepted = self.shown = 0
        self.restarted = False
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> int:
        """Listens and steps; returns the port."""
        self._tasks.add(asyncio.create_task(self.scheduler.run()))
        self._server = await asyncio.start_server(self._serve, host, port, backlog=4096)
        self.port = int(self._server.sockets[0].getsockname()[1])
        return self.port

    async def stop(self) -> None:
        """Closes the port and ends every task."""
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is not None:
            self._tasks.add(task)
        try:
            # Cancelled only by `stop`, when nobody waits for the answer any more.
            with contextlib.suppress(
                ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, asyncio.CancelledError
            ):
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
                method, path, _ = head[0].split(" ", 2)
                length = next((int(h.split(":")[1]) for h in head if h.lower().startswith("content-length:")), 0)
                if length > MAX_BODY_BYTES:
                    await self._plain(writer, 413, "application/json", b'{"error": "too large"}')
                    return
                body = await reader.readexactly(length)
                await self._route(method, path.split("?")[0], body, writer)
        finally:
            if task is not None:
                self._tasks.discard(task)
            writer.close()

    async def _route(self, method: str, path: str, body: bytes, writer: asyncio.StreamWriter) -> None:
        if self.faults.redirects:
            await self._plain(writer, 307, "text/html", b"<a href='https://engine/'>here</a>")
            return
        if self.faults.html_after_requests is not None and self.accepted >= self.faults.html_after_requests:
            await self._plain(writer, 200, "text/html", b"<html><body>We will be back soon.</body></html>")
            return
        if method == "POST" and path in ("/v1/completions", "/generate"):
            try:
                request = json.loads(body)
                if not isinstance(request, dict):
                    raise ValueError("not an object")
            except ValueError as error:
                await self._plain(writer, 400, "application/json", json.dumps({"error": str(error)}).encode())
                return
            await self._generate(request, path == "/generate", writer)
            return
        if method == "POST" and self.recorder is not None and path.endswith("_expert_distribution_record"):
            if path.startswith("/dump"):
                self.recorder.dump()
            else:
                self.recorder.is_on = path.startswith("/start")
            await self._plain(writer, 200, pages.TEXT, b"")
            return
        if path == "/metrics":
            self._maybe_restart()
        page = pages.page(self, path)
        if page is None:
            await self._plain(writer, 404, "application/json", b'{"detail": "Not Found"}')
        else:
            await self._plain(writer, 200, *page)

    def _maybe_restart(self) -> None:
        """The fault's restart happens where nobody would notice: when nothing was asked since the last look."""
        after = self.faults.restart_after_requests
        if after is not None and not self.restarted and after <= self.accepted == self.shown:
            self.restarted, self.scheduler.totals = True, Totals()
        self.shown = self.accepted

    async def _plain(self, writer: asyncio.StreamWriter, status: int, kind: str, body: bytes) -> None:
        head = (
            f"HTTP/1.1 {status} X\r\nDate: {self._date()}\r\nContent-Type: {kind}\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        writer.write(head.encode() + body)
        await writer.drain()

    def _date(self) -> str:
        """By the loop's clock, so that virtual time has dates too; a skewed clock runs at its own rate, or jumps."""
        jump_s = self.faults.clock_step_s if self.accepted > self.faults.clock_step_after else 0.0
        return formatdate(asyncio.get_running_loop().time() * self.faults.clock_factor + jump_s, usegmt=True)

    async def _generate(self, request: dict[str, Any], native: bool, writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        arrived_s = loop.time()
        order = self.accepted
        self.accepted += 1
        stranger = self.faults.stranger_every
        if stranger is not None and order % stranger == stranger - 1:
            self.scheduler.submit(Sequence(64, 24, lambda *_: None, arrived_s))
        every = self.faults.refused_every
        if every is not None and order % every == every - 1:
            await self._plain(writer, 429, "application/json", b'{"error": "too many requests"}')
            return
        sampling = request.get("sampling_params", {}) if native else request
        max_tokens = int(sampling.get("max_new_tokens" if native else "max_tokens", 16))
        prompt = request.get("input_ids") if native else request.get("prompt")
        if prompt is None:
            prompt = request.get("text", "")
        # Without a tokenizer a word is 1.3 tokens: close to English, and not what a client would assume.
        sent_tokens = len(prompt) if isinstance(prompt, list) else round(1.3 * len(str(prompt).split()))
        prompt_tokens = max(1, round(sent_tokens * self.faults.prompt_factor))
        stream = pages.EventStream(
            self.model,
            prompt_tokens,
            native,
            usage=self.engine is not Engine.ATOM,
            count_factor=self.faults.usage_factor,
        )
        streamed = Streamed(writer, stream, self.faults, loop.create_future(), order) if request.get("stream") else None
        if streamed is not None:
            streamed.open(self._date())
        delay_s = self.law.host_s(prompt_tokens)
        if order < self.faults.cold_requests:
            delay_s += self.faults.cold_s
        await asyncio.sleep(delay_s / self.speed)
        if streamed is not None:
            self.scheduler.submit(Sequence(prompt_tokens, max_tokens, streamed.deliver, arrived_s, order))
            await streamed.ended
            await writer.drain()
            return
        done: asyncio.Future[Sequence] = loop.create_future()

        def finish(sequence: Sequence, _count: int) -> None:
            if sequence.finished and not done.done():
                done.set_result(sequence)

        self.scheduler.submit(Sequence(prompt_tokens, max_tokens, finish, arrived_s, order))
        sequence = await done
        answer = pages.whole(stream, sequence, self._continued(prompt, sequence.produced_tokens))
        await self._plain(writer, 200, pages.JSON, answer)

    def _continued(self, prompt: list[int] | str, count: int) -> list[int] | str:
        """What a language model would say greedily after a sequence that repeats itself."""
        parts: list[Any] = prompt if isinstance(prompt, list) else prompt.split()
        key = parts[-4:]
        # Nearest earlier place where the last four stood.
        found = next((i for i in range(len(parts) - 5, -1, -1) if parts[i : i + 4] == key), None)
        if found is None or self.faults.garbage:
            produced = [parts[0]] * count
        else:
            cycle = parts[found + 4 :]
            produced = [cycle[i % len(cycle)] for i in range(count)]
        return produced if isinstance(prompt, list) else " " + " ".join(produced)


@dataclass
class Streamed:
    """One answer that is streamed, with the faults that a stream can have."""

    writer: asyncio.StreamWriter
    stream: pages.EventStream
    faults: Faults
    ended: asyncio.Future[None]
    order: int
    gathered: int = 0
    held: list[bytes] = field(default_factory=list)
    """What a proxy has not passed on yet."""
    flush: asyncio.TimerHandle | None = None

    def open(self, date: str) -> None:
        """The head, and the chunk without a token that some front ends begin with."""
        self.writer.write(
            f"HTTP/1.1 200 OK\r\nDate: {date}\r\nContent-Type: text/event-stream\r\n"
            "Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n".encode()
        )
        if self.faults.empty_first_chunk:
            self.writer.write(_chunk(self.stream.empty()))
        if self.faults.keep_alives:
            self.writer.write(_chunk(KEEP_ALIVE))

    def deliver(self, sequence: Sequence, count: int) -> None:
        """The tokens of one step."""
        if self.ended.done():
            return
        if self.writer.is_closing():
            self.ended.set_result(None)
            return
        every = self.faults.cut_every
        is_cut = every is not None and self.order % every == every - 1
        self.gathered += count
        if self.gathered >= self.faults.tokens_per_chunk or sequence.finished:
            chunk = _chunk(self.stream.tokens(sequence, self.gathered))
            if not (is_cut and sequence.finished):
                self._pass_on(chunk * (2 if self.faults.doubled_chunks else 1))
            self.gathered = 0
        if sequence.finished:
            self._flush()
            if not is_cut:
                tail = self.stream.end(sequence, marked=not self.faults.unmarked_ends)
                self.writer.write(_chunk(tail) if tail else b"")
            self.writer.write(b"0\r\n\r\n")
            self.ended.set_result(None)

    def _pass_on(self, data: bytes) -> None:
        """One chunk, through a proxy that may hold it back."""
        self.held.append(_chunk(KEEP_ALIVE) + data if self.faults.keep_alives else data)
        if self.faults.flush_s:
            if self.flush is None:
                self.flush = self.ended.get_loop().call_later(self.faults.flush_s, self._flush)
        elif len(self.held) >= self.faults.buffered_chunks:
            self._flush()

    def _flush(self) -> None:
        if self.flush is not None:
            self.flush.cancel()
            self.flush = None
        if self.held and not self.writer.is_closing():
            self.writer.write(b"".join(self.held))
        self.held.clear()


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)
