"""Continuous batching with a token budget: the sequences of one wave step together, as in a real engine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from inferasim_harvester.emulator.law import Faults, Noise, StepLaw
from inferasim_harvester.emulator.recorder import Recorder

Deliver = Callable[["Sequence", int], None]


@dataclass(eq=False)
class Sequence:
    """One request inside the engine."""

    prompt_tokens: int
    max_tokens: int
    deliver: Deliver
    """Called with the tokens committed by a step."""
    arrived_s: float
    order: int = 0
    """Place among all requests."""
    computed_tokens: int = 0
    cached_tokens: int = 0
    produced_tokens: int = 0
    scheduled_s: float | None = None
    first_token_s: float | None = None
    finished_s: float | None = None

    @property
    def finished(self) -> bool:
        return self.produced_tokens >= self.max_tokens


@dataclass
class Totals:
    """What /metrics counts."""

    prompt_tokens: int = 0
    generation_tokens: int = 0
    queried_tokens: int = 0
    hit_tokens: int = 0
    requests: int = 0
    prefill_s: float = 0.0
    queue_s: float = 0.0
    e2e_s: float = 0.0
    ttft_s: float = 0.0
    tpot_s: float = 0.0
    """Sum over requests of the mean time per token after the first one."""
    finished_tokens: int = 0
    """Output of the requests that ended."""
    steps: int = 0


@dataclass
class Scheduler:
    """Runs steps for as long as there is work. `mixed`: decode and prefill share a step (vLLM); else prefill first."""

    law: StepLaw
    faults: Faults = field(default_factory=Faults)
    token_budget: int = 8192
    max_sequences: int = 256
    kv_pool_tokens: int = 2_000_000
    mixed: bool = True
    speed: float = 1.0
    tokens_per_step: int = 1
    """Tokens a decode step commits per sequence (speculation)."""
    seed: int = 0
    recorder: Recorder | None = None
    waiting: list[Sequence] = field(default_factory=list)
    running: list[Sequence] = field(default_factory=list)
    totals: Totals = field(default_factory=Totals)
    steps: int = 0
    """Of the machine: a restart of the engine does not begin them anew, as it does the totals."""

    def __post_init__(self) -> None:
        self.noise = Noise(self.faults.jitter_frac, self.seed, heavy_tail=self.faults.heavy_tail)
        self.wake = asyncio.Event()

    def submit(self, sequence: Sequence) -> None:
        """Queues a request whose host work is done."""
        sequence.cached_tokens = int(sequence.prompt_tokens * self.faults.cached_frac)
        sequence.computed_tokens = min(sequence.cached_tokens, sequence.prompt_tokens - 1)
        self.totals.queried_tokens += sequence.prompt_tokens
        self.totals.hit_tokens += 0 if self.faults.hides_hits else sequence.cached_tokens
        self.waiting.append(sequence)
        self.wake.set()

    async def run(self) -> None:
        """Steps for ever; a dead worker steps no more."""
        loop = asyncio.get_running_loop()
        clock_s = loop.time()
        while True:
            if self.faults.dead_after_steps is not None and self.totals.steps >= self.faults.dead_after_steps:
                return
            chunks, decodes = self._schedule(loop.time())
            if not chunks and not decodes:
                self.wake.clear()
                await self.wake.wait()
                clock_s = loop.time()
                continue
            clock_s = max(clock_s, loop.time() - 0.005) + self._step_s(chunks, decodes) / self.speed
            await asyncio.sleep(max(0.0, clock_s - loop.time()))
            if self.recorder is not None:
                self.recorder.step(self.totals.steps, sum(count for _, count in chunks), len(decodes))
            self._commit(chunks, decodes, loop.time())

    def _step_s(self, chunks: list[tuple[Sequence, int]], decodes: list[Sequence]) -> float:
        step_s = self.law.step_s(
            [(sequence.computed_tokens, count) for sequence, count in chunks],
            [sequence.prompt_tokens + sequence.produced_tokens for sequence in decodes],
        )
        after = self.faults.throttled_after_steps
        slow = self.faults.throttle_factor if after is not None and self.totals.steps >= after else 1.0
        slow *= 1.0 + self.faults.slower_frac_per_step * self.steps
        if self.faults.slow_steps is not None and self.faults.slow_steps[0] <= self.steps < self.faults.slow_steps[1]:
            slow *= self.faults.slow_factor
        if not chunks and len(decodes) in self.faults.uncaptured:
            slow *= self.faults.eager_factor
        return step_s * slow * self.noise.factor()

    def _schedule(self, now_s: float) -> tuple[list[tuple[Sequence, int]], list[Sequence]]:
        decodes = [sequence for sequence in self.running if sequence.produced_tokens > 0]
        used_tokens = sum(s.prompt_tokens + s.max_tokens for s in self.running)
        budget = self.token_budget - (len(decodes) if self.mixed else 0)
        chunks: list[tuple[Sequence, int]] = []
        for sequence in [s for s in self.running if s.produced_tokens == 0] + self.waiting:
            if budget <= 0:
                break
            if sequence.scheduled_s is None:
                need = sequence.prompt_tokens + sequence.max_tokens
                if len(self.running) >= self.max_sequences or used_tokens + need > self.kv_pool_tokens:
                    break
                used_tokens += need
                sequence.scheduled_s = now_s
                self.waiting.remove(sequence)
                self.running.append(sequence)
            count = min(budget, sequence.prompt_tokens - sequence.computed_tokens)
            budget -= count
            chunks.append((sequence, count))
        if chunks and not self.mixed:
            decodes = []
        return chunks, decodes

    def _commit(self, chunks: list[tuple[Sequence, int]], decodes: list[Sequence], now_s: float) -> None:
        self.totals.steps += 1
        self.steps += 1
        for sequence, count in chunks:
            sequence.computed_tokens += count
            if sequence.computed_tokens >= sequence.prompt_tokens:
                sequence.first_token_s = now_s
                self._give(sequence, 1, now_s)
        for sequence in decodes:
            self._give(sequence, self.tokens_per_step + self.noise.is_accepted(self.faults.drafts_accepted_frac), now_s)

    def _give(self, sequence: Sequence, count: int, now_s: float) -> None:
        if self.faults.stop_after_tokens is not None and sequence.order % self.faults.stop_every == 0:
            sequence.max_tokens = min(sequence.max_tokens, self.faults.stop_after_tokens)
        count = min(count, sequence.max_tokens - sequence.produced_tokens)
        sequence.produced_tokens += count
        self.totals.generation_tokens += count
        if sequence.finished:
            sequence.finished_s = now_s
            self.running.remove(sequence)
            self._count(sequence)
        sequence.deliver(sequence, count)

    def _count(self, sequence: Sequence) -> None:
        scheduled_s, first_s, finished_s = sequence.scheduled_s, sequence.first_token_s, sequence.finished_s
        if scheduled_s is None or first_s is None or finished_s is None:
            raise RuntimeError("a request finished that was never scheduled")
        factor = self.faults.clock_factor * self.speed
        totals = self.totals
        totals.requests += 1
        totals.prompt_tokens += sequence.prompt_tokens
        totals.prefill_s += (first_s - scheduled_s) * factor
        totals.queue_s += max(0.0, scheduled_s - sequence.arrived_s) * factor
        jump_s = self.faults.clock_step_s if sequence.order == self.faults.clock_step_after else 0.0
        totals.e2e_s += (finished_s - sequence.arrived_s) * factor + jump_s
        totals.ttft_s += (first_s - sequence.arrived_s) * factor
        totals.tpot_s += (finished_s - first_s) / max(1, sequence.produced_tokens - 1) * factor
        totals.finished_tokens += sequence.produced_tokens
