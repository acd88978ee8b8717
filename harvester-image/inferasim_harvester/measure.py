"""The measurements: single-wave decode, prefill alone, packed prefill; each repeats until its median is certain."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from inferasim_harvester.errors import MeasurementFailedError
from inferasim_harvester.estimates import estimate
from inferasim_harvester.session import Session, spread_s
from inferasim_harvester.streams import Floats, Stream

UNKNOWN_BUDGET: Final = 2048
"""Token budget assumed only to guess how long a wave takes to be admitted; a wrong guess costs a repeat."""
WINDOW_TRIES: Final = 3
WARMUP_STEPS: Final = 4
BLOCKER_DELAY_FRAC: Final = 0.5
"""The later requests are sent when half of the blocker's time has passed: it surely runs, and they arrive early."""
TOGETHER_FRAC: Final = 0.25
"""First tokens of one step lie closer together than this part of the step."""
SAME_STEP_FRAC: Final = 0.2
"""A gap below this part of the prompt's own time: it shared the blocker's step."""
INVALID_TRIES: Final = 6
COALESCED_FRAC, COALESCED_LIMIT = 0.25, 0.05
"""A gap below this part of the mean gap shows chunks that a busy front end sent together; tolerated up to the limit."""
GATHERED_LIMIT: Final = 0.02
"""Tokens per chunk above 1 without speculation, beyond which steps are counted by tokens."""
CLEARLY_LESS: Final = 0.5
"""Scatter of one reading below this part of the other's decides between them."""
LAG: Final = 8
"""Steps between the chunks that are compared where single gaps are no steps."""


@dataclass(frozen=True)
class Precision:
    """When a point is done: 95 % half width of its repeats within `target_frac`, between two counts of repeats."""

    target_frac: float = 0.01
    minimum: int = 3
    maximum: int = 12
    steps: int = 48
    """Decode steps of one wave's window."""

    def bounded(self, maximum: int) -> Precision:
        """The same aim with at most `maximum` repeats."""
        return replace(self, minimum=min(self.minimum, maximum), maximum=maximum)


@dataclass
class Decode:
    """Single-wave decode at one batch: a step time per wave."""

    steps_s: list[float] = field(default_factory=list)
    context_tokens: list[float] = field(default_factory=list)
    tokens_per_chunk: list[float] = field(default_factory=list)
    stalled_frac: list[float] = field(default_factory=list)
    """Mean over median of the gaps, minus 1: pauses that the median does not see."""
    coalesced_frac: list[float] = field(default_factory=list)
    """Part of the chunks that came together with the one before."""
    drafted: list[bool] = field(default_factory=list)
    """Whether a wave's time went by chunks of several tokens."""
    ttft_s: list[float] = field(default_factory=list)


@dataclass
class Prefill:
    """One prompt alone: first-token times, and the same prompt's step behind another one."""

    ttft_s: list[float] = field(default_factory=list)
    step_s: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Window:
    """The steps that all requests of a wave share."""

    step_s: float
    context_tokens: float
    tokens_per_chunk: float
    stalled_frac: float
    coalesced_frac: float
    is_drafted: bool
    """Chunks hold several tokens, and take as long as those of one: a draft's, where nobody asked for drafts."""
    stagger: int
    """Most chunks any request had before the last one joined."""


def common_window(streams: Sequence[Stream], steps: int, *, speculates: bool = False) -> Window | None:
    """The steps after the last request's first token and before the first one's end; None when they are too few.

    Prefill is excluded: before that moment steps still hold prompts. Without speculation a token is a step, however
    many tokens a chunk carries; with it a chunk is.
    """
    start_s = max(stream.first_s for stream in streams)
    end_s = min(float(stream.times_s[-1]) for stream in streams)
    shared: list[tuple[Floats, Floats]] = []
    stagger = 0
    for stream in streams:
        first = int(np.searchsorted(stream.times_s, start_s))
        last = min(int(np.searchsorted(stream.times_s, end_s, side="right")) - 1, first + steps)
        stagger = max(stagger, first)
        if last - first < max(1, steps * 3 // 4):
            return None
        shared.append((stream.times_s[first : last + 1], stream.tokens[first : last + 1]))
    gaps = [np.diff(times) for times, _ in shared]
    every = np.concatenate(gaps)
    mean_s = float(np.mean(every))
    if mean_s <= 0:
        raise MeasurementFailedError("whole waves arrive at once: the engine or a proxy buffers its stream")
    coalesced = float(np.mean(every < COALESCED_FRAC * mean_s))
    per_chunk = float(np.mean([(tokens[-1] - tokens[0]) / (len(tokens) - 1) for _, tokens in shared]))
    # The paper's median gap; where chunks come in bunches or carry several tokens, a gap is no step, but a span of
    # several bunches still holds all the steps of their tokens.
    if coalesced <= COALESCED_LIMIT and (speculates or per_chunk <= 1.0 + GATHERED_LIMIT):
        step_s, mean_step_s = float(np.median(every)), mean_s
    else:
        lag = max(LAG, 2 * max(_longest_bunch(part < COALESCED_FRAC * mean_s) for part in gaps))
        step_s = float(np.median(np.concatenate([_spans(*window, lag, speculates=speculates) for window in shared])))
        mean_step_s = mean_s / (1.0 if speculates else per_chunk)
    contexts = [
        stream.prompt_tokens + np.mean(tokens[:-1]) for stream, (_, tokens) in zip(streams, shared, strict=True)
    ]
    drafted = not speculates and per_chunk > 1.0 + GATHERED_LIMIT and _follows_chunks(shared)
    return Window(step_s, float(np.mean(contexts)), per_chunk, mean_step_s / step_s - 1.0, coalesced, drafted, stagger)


def _follows_chunks(windows: Sequence[tuple[Floats, Floats]]) -> bool:
    """Whether time goes by chunks and not by tokens, where both are not the same: spans of several chunks scatter less
    by chunk then. Single gaps do not tell: a busy front end sends late, and the next chunk soon after."""
    by_chunk, by_token = [], []
    for times, tokens in windows:
        lag = min(LAG, len(times) - 1)
        span_s, count = times[lag:] - times[:-lag], tokens[lag:] - tokens[:-lag]
        by_chunk += (span_s / lag).tolist()
        by_token += (span_s / count).tolist()
    scatter_chunk, scatter_token = (float(np.std(values) / np.mean(values)) for values in (by_chunk, by_token))
    return scatter_chunk < CLEARLY_LESS * scatter_token


def _longest_bunch(together: NDArray[np.bool_]) -> int:
    """Most neighbouring gaps in a row that are hardly any."""
    longest = run = 0
    for one in together:
        run = run + 1 if one else 0
        longest = max(longest, run)
    return longest


def _spans(times: Floats, tokens: Floats, lag: int, *, speculates: bool) -> Floats:
    """Seconds per step of every span of `lag` chunks."""
    lag = min(lag, len(times) - 1)
    return (times[lag:] - times[:-lag]) / (lag if speculates else tokens[lag:] - tokens[:-lag])


async def measure_decode(
    session: Session,
    batch: int,
    length: int,
    precision: Precision,
    token_budget: int | None,
    label: str,
    *,
    speculates: bool = False,
) -> Decode:
    """Repeats of one batch. The first wave is dropped: it compiles, and tells how long admission takes."""
    stagger = math.ceil(batch * length / (token_budget or UNKNOWN_BUDGET)) + 1
    tokens_per_step = 1.0
    for attempt in range(WINDOW_TRIES):
        asked = _tokens(WARMUP_STEPS, stagger, tokens_per_step)
        streams = await session.wave(f"{label}/drop{attempt}", batch, length, asked)
        tokens_per_step = max(1.0, *(_committed(stream) for stream in streams))
        try:
            seen = common_window(streams, WARMUP_STEPS)
        except MeasurementFailedError:
            # A front end that was away for so few steps sends them all at once; a proxy does that to longer waves too.
            if attempt == WINDOW_TRIES - 1:
                raise
            seen = None
        if seen is not None:
            stagger = min(stagger, seen.stagger + 2)
            break
        stagger = 2 * stagger + 2 + WARMUP_STEPS
    else:
        raise MeasurementFailedError(f"a wave of {batch} never ran together: too few KV tokens or running requests")
    found = Decode()
    repeat = failures = 0
    while not _done(found.steps_s, precision):
        asked = _tokens(precision.steps, stagger, tokens_per_step)
        streams = await session.wave(f"{label}/{repeat}", batch, length, asked)
        repeat += 1
        try:
            window = common_window(streams, precision.steps, speculates=speculates)
        except MeasurementFailedError:
            if failures >= WINDOW_TRIES:
                raise
            window = None
        if window is None:
            short = min(stream.completion_tokens for stream in streams)
            if short < asked:
                raise MeasurementFailedError(f"requests end after {short} of {asked} tokens, though told not to stop")
            failures += 1
            stagger += max(2, stagger // 2)
            if failures > WINDOW_TRIES:
                raise MeasurementFailedError(f"batch {batch}: too few steps that all requests share")
            continue
        found.steps_s.append(window.step_s)
        found.context_tokens.append(window.context_tokens)
        found.tokens_per_chunk.append(window.tokens_per_chunk)
        found.stalled_frac.append(window.stalled_frac)
        found.coalesced_frac.append(window.coalesced_frac)
        found.drafted.append(window.is_drafted)
        found.ttft_s += [stream.ttft_s for stream in streams]
    return found


async def measure_prefill(
    session: Session, length: int, blocker: tuple[int, float] | None, precision: Precision, label: str
) -> Prefill:
    """Repeats of one prompt alone, and behind a blocker of (tokens, seconds alone) where one is given."""
    found = Prefill()
    await session.wave(f"{label}/drop", 1, length, 1)
    while not _done(found.ttft_s, precision):
        (stream,) = await session.wave(f"{label}/{len(found.ttft_s)}", 1, length, 1)
        found.ttft_s.append(stream.ttft_s)
    if blocker is None:
        blocker = (length, float(np.median(found.ttft_s)))
    alone_s = float(np.median(found.ttft_s))
    invalid = repeat = 0
    while not _done(found.step_s, precision) and invalid < INVALID_TRIES:
        step_s = await _behind(session, f"{label}/behind{repeat}", blocker, 1, length, alone_s)
        repeat += 1
        if step_s is None:
            invalid += 1
        else:
            found.step_s.append(step_s)
    if len(found.step_s) < precision.minimum:
        found.step_s = []
    return found


async def measure_packed(
    session: Session, count: int, length: int, blocker: tuple[int, float], precision: Precision, label: str
) -> list[float]:
    """Repeats of `count` prompts in one step. Raises MeasurementFailedError when they never share one."""
    values: list[float] = []
    invalid = repeat = 0
    while not _done(values, precision):
        step_s = await _behind(session, f"{label}/{repeat}", blocker, count, length, None)
        repeat += 1
        if step_s is not None:
            values.append(step_s)
        elif (invalid := invalid + 1) >= INVALID_TRIES:
            raise MeasurementFailedError(f"{count} prompts of {length} tokens are not computed in one step")
    return values


async def _behind(
    session: Session, label: str, blocker: tuple[int, float], count: int, length: int, alone_s: float | None
) -> float | None:
    """Seconds of the step after the blocker's; None when the timing shows that it was not that step."""
    tokens, busy_s = blocker
    first, later = await session.behind(label, tokens, BLOCKER_DELAY_FRAC * busy_s, count, length)
    step_s = max(stream.first_s for stream in later) - first.first_s
    if step_s <= 0 or (count > 1 and spread_s(later) > TOGETHER_FRAC * step_s):
        return None
    waited_s = first.first_s - max(stream.sent_s for stream in later)
    if alone_s is not None:
        if step_s < SAME_STEP_FRAC * alone_s or waited_s < alone_s - step_s:
            return None
    elif waited_s <= 0:
        return None
    return step_s


def _done(values: Sequence[float], precision: Precision) -> bool:
    if len(values) < precision.minimum:
        return False
    return len(values) >= precision.maximum or estimate(values).half_width_frac <= precision.target_frac


def _tokens(steps: int, stagger: int, tokens_per_step: float) -> int:
    return math.ceil((steps + stagger + 2) * tokens_per_step)


def _committed(stream: Stream) -> float:
    """Tokens per chunk of a stream, its first and its last chunk left out: one is a prefill's, one is cut off."""
    tokens = stream.tokens
    return (
        float(tokens[-2] - tokens[0]) / (len(tokens) - 2) if len(tokens) > 2 else stream.completion_tokens / len(tokens)
    )
