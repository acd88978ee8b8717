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
    stop_every: int = 1
    """Only every so many requests end early."""
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
    heavy_tail: bool = False
    """Steps are Pareto-distributed: most are as the law says, some take many times as long."""
    tokens_per_chunk: int = 1
    """The stream is gathered: a chunk is sent when so many tokens are there."""
    doubled_chunks: bool = False
    """Every chunk is sent twice."""
    usage_factor: float = 1.0
    """Counted over produced tokens."""
    cut_every: int | None = None
    """Every so many streams end without usage and end mark, the last token's chunk included."""
    unmarked_ends: bool = False
    """All tokens and the usage come, the end mark does not."""
    refused_every: int | None = None
    """Every so many requests are answered with 429."""
    metrics_are_nan: bool = False
    """All figures of the metrics pages are NaN."""
    hides_hits: bool = False
    """Counters show no prefix hit; the answers' usage does."""
    garbage: bool = False
    """What is produced has nothing to do with the prompt (a number format that does not fit)."""
    throttle_counters_run_back: bool = False
    """The exporter is restarted while we measure."""
    slower_frac_per_step: float = 0.0
    """Every step is so much slower than the one before: something leaks."""
    slow_steps: tuple[int, int] | None = None
    """From the first to before the second of these steps all are `slow_factor` times as long: a neighbour, or heat that
    passes."""
    slow_factor: float = 1.3
    uncaptured: tuple[int, ...] = ()
    """Batches whose graph is missing though it is reported: they run `eager_factor` times as long."""
    eager_factor: float = 3.0
    drafts_accepted_frac: float = 0.0
    """Speculation that no report shows: this share of the steps gives two tokens."""
    stranger_every: int | None = None
    """With every so many requests one of somebody else is served."""
    restart_after_requests: int | None = None
    """The engine is started again between two requests: its counters begin at 0."""
    clock_step_s: float = 0.0
    """The engine's wall clock jumps by so much after `clock_step_after` requests."""
    clock_step_after: int = 150
    buffered_chunks: int = 1
    """A proxy holds so many chunks of a stream back and sends them together."""
    flush_s: float = 0.0
    """A proxy sends what it has only so often."""
    keep_alives: bool = False
    """Comments stand between the events of a stream."""
    html_after_requests: int | None = None
    """From then on a gateway answers for the engine: status 200, and a page for people."""
    redirects: bool = False
    """Every answer is a redirect to HTTPS."""


class Noise:
    """Multiplicative step noise: mostly Gaussian, now and then a host hiccup."""

    HICCUP_FRAC = 0.01
    HICCUP_FACTOR = 1.5

    PARETO_SHAPE = 1.5

    def __init__(self, jitter_frac: float, seed: int, *, heavy_tail: bool = False) -> None:
        self.jitter_frac, self.heavy_tail = jitter_frac, heavy_tail
        self.stream = random.Random(seed)  # noqa: S311 - noise, not a secret

    def factor(self) -> float:
        """One draw; 1 without jitter."""
        if self.heavy_tail:
            return self.stream.paretovariate(self.PARETO_SHAPE)
        if not self.jitter_frac:
            return 1.0
        if self.stream.random() < self.HICCUP_FRAC:
            return self.HICCUP_FACTOR
        return max(0.5, self.stream.gauss(1.0, self.jitter_frac))

    def is_accepted(self, share: float) -> bool:
        """Whether one drafted token is; draws nothing where nothing is drafted."""
        return bool(share) and self.stream.random() < share
