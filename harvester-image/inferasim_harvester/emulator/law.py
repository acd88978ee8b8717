"""The emulator's step law and the faults that can be injected into it."""

from __future__ import annotations

import bisect
import random
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class StepLaw:
    """Seconds of a step: a staircase over captured batches, a context slope, and F + c1 n + c2 n^2 per prefill."""

    graph_sizes: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128, 256)
    decode_fixed_s: float = 6e-3
    decode_s_per_sequence: float = 60e-6
    decode_s_per_context_token: float = 4e-9
    prefill_fixed_s: float = 8e-3
    prefill_s_per_token: float = 20e-6
    prefill_s_per_token2: float = 0.6e-9
    host_s_per_request: float = 3e-3
    host_s_per_token: float = 0.5e-6

    def padded(self, batch: int) -> int:
        """The captured size that serves `batch`; itself above the largest."""
        index = bisect.bisect_left(self.graph_sizes, batch)
        return self.graph_sizes[index] if index < len(self.graph_sizes) else batch

    def decode_s(self, contexts: Sequence[int]) -> float:
        """One decode step of `len(contexts)` sequences with these context lengths."""
        return (
            self.decode_fixed_s
            + self.decode_s_per_sequence * self.padded(len(contexts))
            + self.decode_s_per_context_token * sum(contexts)
        )

    def prefill_s(self, chunks: Sequence[tuple[int, int]]) -> float:
        """One prefill step of `chunks` (tokens already there, tokens added)."""
        total = self.prefill_fixed_s
        for start, count in chunks:
            total += self.prefill_s_per_token * count
            total += self.prefill_s_per_token2 * ((start + count) ** 2 - start**2)
        return total

    def step_s(self, chunks: Sequence[tuple[int, int]], contexts: Sequence[int]) -> float:
        """A mixed step: the prefill, plus the part of a decode step that grows with its sequences."""
        if not chunks:
            return self.decode_s(contexts)
        extra = self.decode_s(contexts) - self.decode_fixed_s if contexts else 0.0
        return self.prefill_s(chunks) + extra

    def host_s(self, prompt_tokens: int) -> float:
        """CPU time before a request can be scheduled."""
        return self.host_s_per_request + self.host_s_per_token * prompt_tokens


@dataclass(frozen=True)
class Faults:
    """What goes wrong; nothing by default. `jitter_frac` is the standard deviation of a step, not a fault."""

    jitter_frac: float = 0.0
    cached_frac: float = 0.0
    """Warm prefix cache: this share of every prompt is already there."""
    stop_after_tokens: int | None = None
    """Early end of sequence, `ignore_eos` or not."""
    dead_after_steps: int | None = None
    """A worker dies: no step completes any more, /health stays 200."""
    reported: dict[str, object] = field(default_factory=dict)
    """Settings that the server really runs with, against its arguments."""
    prompt_factor: float = 1.0
    """Served over sent prompt length."""
    clock_factor: float = 1.0
    """Engine seconds per true second in its metrics."""
    empty_first_chunk: bool = False
    """A chunk without a token as soon as the request arrives."""
    throttled_after_steps: int | None = None
    throttle_factor: float = 1.35
    cold_requests: int = 0
    """The first requests take `cold_s` longer to their first token."""
    cold_s: float = 1.0


class Noise:
    """Multiplicative step noise: mostly Gaussian, now and then a host hiccup."""

    HICCUP_FRAC = 0.01
    HICCUP_FACTOR = 1.5

    def __init__(self, jitter_frac: float, seed: int) -> None:
        self.jitter_frac = jitter_frac
        self.stream = random.Random(seed)  # noqa: S311 - noise, not a secret

    def factor(self) -> float:
        """One draw; 1 without jitter."""
        if not self.jitter_frac:
            return 1.0
        if self.stream.random() < self.HICCUP_FRAC:
            return self.HICCUP_FACTOR
        return max(0.5, self.stream.gauss(1.0, self.jitter_frac))
