"""Synthetic workloads: lengths, arrivals, shared prefixes, conversations (paper App. A.1)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from simcore.des.kernel import loop
from simcore.des.kernel.fields import LATEST, Ints
from simcore.des.workload.batch import Batch, BatchBuilder, Workload, plain_batch
from simcore.errors import InputError
from simcore.units import PS_PER_S

BATCH_REQUESTS: Final = 8192
MAX_DURATION_S: Final = LATEST / PS_PER_S
"""45 days: the clock counts picoseconds in 63 bits."""


@dataclass(frozen=True)
class Lengths:
    """Token counts drawn uniformly from `low_tokens` to `high_tokens`, both included; equal means fixed."""

    low_tokens: int
    high_tokens: int

    @classmethod
    def fixed(cls, tokens: int) -> Lengths:
        return cls(tokens, tokens)

    def check(self, field: str) -> None:
        """Raises InputError."""
        if not 1 <= self.low_tokens <= self.high_tokens <= 1 << 30:
            raise InputError(field, (self.low_tokens, self.high_tokens), "satisfy 1 <= low <= high <= 2^30")

    def draw(self, generator: np.random.Generator, count: int) -> Ints:
        """(count,) lengths."""
        if self.low_tokens == self.high_tokens:
            return np.full(count, self.low_tokens, np.int64)
        return generator.integers(self.low_tokens, self.high_tokens, size=count, endpoint=True)


@dataclass(frozen=True)
class ClosedLoop:
    """`clients` clients that each send the next request when the last one is answered."""

    clients: int
    send_spread_s: float = 0.0
    """... or up to so long after, drawn evenly: real clients do not act at one instant. The first requests do."""


@dataclass(frozen=True)
class PoissonArrivals:
    """Requests (or sessions) arrive at random at a mean rate."""

    requests_per_s: float


Load = ClosedLoop | PoissonArrivals


@dataclass(frozen=True)
class SharedPrefixes:
    """A pool of `count` prefixes of `tokens` tokens; number i is asked in proportion to (i+1)^-`zipf_exponent`."""

    count: int
    tokens: int
    zipf_exponent: float = 0.0
    """0: all equally popular."""


def _check_load(load: Load) -> int | None:
    if isinstance(load, ClosedLoop):
        if not 1 <= load.clients <= 1 << 20:
            raise InputError("load.clients", load.clients, "be from 1 to 1048576")
        if not 0 <= load.send_spread_s <= MAX_DURATION_S:
            raise InputError("load.send_spread_s", load.send_spread_s, "be from 0 to 45 days")
        return load.clients
    if not 0 < load.requests_per_s < float("inf"):
        raise InputError("load.requests_per_s", load.requests_per_s, "be positive and finite")
    return None


def _gaps(load: Load, generator: np.random.Generator, count: int) -> Ints:
    """(count,) picoseconds between arrivals; zeros in a closed loop."""
    if isinstance(load, ClosedLoop):
        return np.zeros(count, np.int64)
    gaps: Ints = np.rint(generator.exponential(PS_PER_S / load.requests_per_s, count)).astype(np.int64)
    return gaps


def independent_requests(
    prompt: Lengths,
    output: Lengths,
    requests_count: int,
    load: Load,
    *,
    prefixes: SharedPrefixes | None = None,
    block_tokens: int = 64,
) -> Workload:
    """Requests of drawn lengths, each its own session, in the given load.

    With `prefixes`, each prompt starts with one of the pool's prefixes (cut to the prompt) and goes on with tokens of
    its own; `block_tokens` is the size of the blocks they are cached in. Raises InputError.
    """
    prompt.check("prompt")
    output.check("output")
    if not 1 <= requests_count <= 1 << 40:
        raise InputError("requests_count", requests_count, "be from 1 to 2^40")
    clients = _check_load(load)
    if isinstance(load, PoissonArrivals) and requests_count / load.requests_per_s > MAX_DURATION_S:
        raise InputError("requests_count", requests_count, "arrive within 45 simulated days at this rate")
    if prefixes is not None:
        if prefixes.count < 1 or prefixes.tokens < 1 or prefixes.zipf_exponent < 0:
            raise InputError("prefixes", prefixes, "have positive count and tokens and an exponent of at least 0")
        if not 1 <= block_tokens <= 1 << 16:
            raise InputError("block_tokens", block_tokens, "be from 1 to 65536")

    def batches(seed: np.random.SeedSequence) -> Iterator[Batch]:
        lengths, arrivals, choices = (np.random.default_rng(child) for child in seed.spawn(3))
        weights = None
        if prefixes is not None:
            weights = np.arange(1, prefixes.count + 1, dtype=np.float64) ** -prefixes.zipf_exponent
            weights /= weights.sum()
        now, sent = 0, 0
        while sent < requests_count:
            count = min(BATCH_REQUESTS, requests_count - sent)
            prompts, outputs = prompt.draw(lengths, count), output.draw(lengths, count)
            times = now + np.cumsum(_gaps(load, arrivals, count))
            now = int(times[-1])
            if prefixes is None:
                yield _spread(plain_batch(prompts, outputs, times), load, sent, choices)
            else:
                picked = choices.choice(prefixes.count, size=count, p=weights)
                yield _prefixed(prompts, outputs, times, picked, prefixes, block_tokens, sent)
            sent += count

    return Workload(
        batches,
        clients,
        block_tokens=0 if prefixes is None else block_tokens,
        requests_count=requests_count,
        most_in_flight=clients,
        source="synthetic",
    )


def _spread(batch: Batch, load: Load, sent: int, generator: np.random.Generator) -> Batch:
    """The requests that follow another of their client leave a moment after it."""
    if isinstance(load, ClosedLoop) and load.send_spread_s > 0:
        delays = generator.uniform(0.0, load.send_spread_s * PS_PER_S, len(batch.columns))
        delays[: max(0, load.clients - sent)] = 0.0
        batch.columns[:, loop.LOAD_DELAY] = np.rint(delays).astype(np.int64)
    return batch


def _prefixed(
    prompts: Ints, outputs: Ints, times: Ints, picked: Ints, prefixes: SharedPrefixes, block: int, sent: int
) -> Batch:
    builder = BatchBuilder()
    for number, (prompt, output) in enumerate(zip(prompts.tolist(), outputs.tolist(), strict=True)):
        builder.start_session()
        blocks = prompt // block
        shared = min(prefixes.tokens // block, blocks)
        ids = np.arange(blocks, dtype=np.int64)
        ids[:shared] += int(picked[number]) << 24
        ids[shared:] += (prefixes.count + 1 + sent + number) << 24
        leaf = builder.path(ids)
        builder.add(prompt, output, timestamp_ps=int(times[number]), leaf=leaf)
    return builder.build()


@dataclass(frozen=True)
class Conversation:
    """A session's shape: a first prompt, then turns that carry the whole context on."""

    turns: int
    first_tokens: Lengths
    turn_tokens: Lengths
    """New prompt tokens a turn adds after the last answer."""
    output: Lengths
    think_s: float = 0.0
    """Mean think time between an answer and the next turn, exponential."""
    shared_tokens: int = 0
    """Leading tokens that all conversations have in common (system prompt, tools)."""


def conversations(shape: Conversation, sessions_count: int, load: Load, *, block_tokens: int = 64) -> Workload:
    """Multi-turn sessions: each turn's prompt is all before it plus new tokens. Raises InputError.

    The answer's tokens become part of the next prompt, but the cache knows only blocks that were in a prompt before, as
    in a trace's hash ids.
    """
    for field in ("first_tokens", "turn_tokens", "output"):
        getattr(shape, field).check(f"shape.{field}")
    if not 1 <= shape.turns <= 100_000 or not 0 <= shape.think_s <= MAX_DURATION_S or shape.shared_tokens < 0:
        raise InputError("shape", shape, "have 1 to 100000 turns and think times that are not negative")
    if not 1 <= sessions_count <= 1 << 30:
        raise InputError("sessions_count", sessions_count, "be from 1 to 2^30")
    clients = _check_load(load)

    def batches(seed: np.random.SeedSequence) -> Iterator[Batch]:
        lengths, arrivals, thinks = (np.random.default_rng(child) for child in seed.spawn(3))
        builder, now = BatchBuilder(), 0
        for session in range(sessions_count):
            now += int(_gaps(load, arrivals, 1)[0])
            builder.start_session()
            _add_turns(builder, shape, session, now, block_tokens, lengths, thinks)
            if len(builder) >= BATCH_REQUESTS or builder.blocks_count >= 1 << 18:
                yield builder.build()
        if len(builder):
            yield builder.build()

    return Workload(
        batches,
        clients,
        block_tokens=block_tokens,
        requests_count=sessions_count * shape.turns,
        most_in_flight=clients,
        source="synthetic conversations",
    )


def _add_turns(
    builder: BatchBuilder,
    shape: Conversation,
    session: int,
    start_ps: int,
    block: int,
    lengths: np.random.Generator,
    thinks: np.random.Generator,
) -> None:
    prompt = int(shape.first_tokens.draw(lengths, 1)[0])
    leaf, held, before = -1, 0, -1
    for turn in range(shape.turns):
        output = int(shape.output.draw(lengths, 1)[0])
        ids = np.arange(held, prompt // block, dtype=np.int64)
        ids[ids >= shape.shared_tokens // block] += (session + 1) << 24
        leaf = builder.path(ids, below=leaf, blocks=held)
        held += len(ids)
        delay_ps = round(float(thinks.exponential(shape.think_s)) * PS_PER_S) if turn and shape.think_s > 0 else 0
        waits = () if before < 0 else (before,)
        before = builder.add(prompt, output, timestamp_ps=start_ps, delay_ps=delay_ps, leaf=leaf, waits_for=waits)
        prompt += output + int(shape.turn_tokens.draw(lengths, 1)[0])


def timestamped(prompts: Ints, outputs: Ints, arrivals_s: np.ndarray[tuple[int], np.dtype[np.float64]]) -> Workload:
    """Requests at given times, in order. Arrays: (requests,); seconds. Raises InputError."""
    if not len(prompts) == len(outputs) == len(arrivals_s) > 0:
        raise InputError("arrivals_s", len(arrivals_s), "be as many as the lengths, at least one")
    times = np.asarray(arrivals_s, dtype=np.float64)
    if not np.all(np.isfinite(times)) or times[0] < 0 or np.any(np.diff(times) < 0) or times[-1] > MAX_DURATION_S:
        raise InputError("arrivals_s", float(times.min()), "rise from 0 or more and stay below 45 days")
    if min(prompts.min(), outputs.min()) < 1:
        raise InputError("prompts", int(min(prompts.min(), outputs.min())), "be at least one token")
    batch = plain_batch(prompts, outputs, np.rint(times * PS_PER_S).astype(np.int64))
    return Workload(lambda _: iter([batch]), None, requests_count=len(batch.columns[:, loop.LOAD_PROMPT]))
