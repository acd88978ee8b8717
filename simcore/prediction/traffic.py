"""Traffic: how a scenario words it (docs/predict.md), and the simulator's workload from those words."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from simcore.des.workload import synthetic
from simcore.des.workload.batch import Workload
from simcore.des.workload.lengths import LengthFacts, length_facts
from simcore.des.workload.synthetic import ClosedLoop, Lengths, PoissonArrivals
from simcore.des.workload.trace import TraceFormat, open_trace
from simcore.errors import InputError
from simcore.prediction.case import Strict
from simcore.prediction.outcome import run_requests

MOST_REQUESTS = 1 << 21
"""Of one prediction, whose records are kept for exact tails: about 1 GiB."""
PREFIX_BLOCK_TOKENS = 64
"""Synthetic prefixes and conversations are shared in blocks of so many tokens; a trace states its own size."""

LARGEST_RATE_REQUESTS_PER_S = 1e6
Tokens = Annotated[int, Field(ge=1, le=1 << 30)]


class LengthRange(Strict):
    """Token counts drawn evenly from `minimum` to `maximum`."""

    minimum: Tokens
    maximum: Tokens


class FixedInput(Strict):
    """Every request has the same lengths."""

    prompt_tokens: Tokens
    output_tokens: Tokens


class PrefixesInput(Strict):
    """A pool of shared prefixes; number i is asked in proportion to (i + 1)^-`zipfExponent`, 0 being all alike."""

    count: Annotated[int, Field(ge=1, le=10**6)]
    tokens: Tokens
    zipf_exponent: Annotated[float, Field(ge=0, le=10, allow_inf_nan=False)] = 0.0


class ConversationInput(Strict):
    """Sessions of `turns` requests: each carries the whole context on and adds `turnTokens` after the last answer."""

    turns: Annotated[int, Field(ge=1, le=10_000)]
    turn_tokens: Tokens | LengthRange
    think_seconds: Annotated[float, Field(ge=0, le=86_400, allow_inf_nan=False)] = 0.0
    """Mean of the exponential time between an answer and the next turn."""
    shared_tokens: Annotated[int, Field(ge=0, le=1 << 30)] = 0
    """Leading tokens that all sessions have in common."""


class SyntheticInput(Strict):
    """Drawn lengths, alone or with a shared pool of prefixes or as conversations (then of the first turn)."""

    prompt_tokens: Tokens | LengthRange
    output_tokens: Tokens | LengthRange
    prefixes: PrefixesInput | None = None
    conversation: ConversationInput | None = None


class TraceInput(Strict):
    """A trace file in full; the path alone means the same with `auto`."""

    path: Annotated[str, Field(min_length=1, max_length=4096)]
    format: Literal["auto", "mooncake", "agentic", "azure"] = "auto"


class WorkloadInput(Strict):
    """Exactly one of the three."""

    fixed: FixedInput | None = None
    synthetic: SyntheticInput | None = None
    trace: Annotated[str, Field(min_length=1, max_length=4096)] | TraceInput | None = None

    @property
    def trace_input(self) -> TraceInput | None:
        """The trace in its long form."""
        return TraceInput(path=self.trace) if isinstance(self.trace, str) else self.trace


class LoadInput(Strict):
    """A closed loop of `concurrency` clients, or an open loop of `requestRate` requests per second.

    A trace without either goes out at its own times.
    """

    concurrency: Annotated[int, Field(ge=1, le=1 << 20)] | None = None
    request_rate: Annotated[float, Field(gt=0, le=LARGEST_RATE_REQUESTS_PER_S, allow_inf_nan=False)] | None = None
    requests: Annotated[int, Field(ge=1, le=1 << 24)] | None = None
    warmup_requests: Annotated[int, Field(ge=0, le=1 << 24)] = 0
    """Requests left out of the latencies, the first to end; they stay in the throughput."""


@dataclass(frozen=True)
class TrafficLengths:
    """Lengths that a `Setting` is made of."""

    prompt_tokens: int
    """The longest drawn prompt; of a trace and of conversations the mean, rounded."""
    output_tokens: int
    longest_tokens: int
    """Prompt plus output of the longest request: what the engine must be able to hold."""


def check_traffic(workload: WorkloadInput, load: LoadInput) -> None:
    """Whether the words go together. Raises InputError."""
    named = [name for name in ("fixed", "synthetic", "trace") if getattr(workload, name) is not None]
    if len(named) != 1:
        raise InputError("workload", named, "hold exactly one of `fixed`, `synthetic` and `trace`")
    if workload.synthetic is not None:
        _check_synthetic(workload.synthetic)
    if workload.trace is not None:
        if load.request_rate is not None or load.requests is not None:
            raise InputError(
                "load", load.model_dump(by_alias=True, exclude_none=True), "hold only `concurrency` with a trace",
                "without it requests go out at the trace's own times, and all of them do",
            )  # fmt: skip
        return
    if (load.concurrency is None) == (load.request_rate is None):
        raise InputError("load", load.model_dump(by_alias=True), "hold exactly one of `concurrency` and `requestRate`")
    if load.request_rate is not None and load.requests is None:
        raise InputError("load.requests", None, "be given with `requestRate`")
    turns = _turns(workload)
    if load.requests is not None and load.requests < (load.concurrency or 1) * turns:
        least = (load.concurrency or 1) * turns
        raise InputError("load.requests", load.requests, f"be at least {least}", "fewer never reach the concurrency")
    if requests_count(workload, load) > MOST_REQUESTS:
        counted = requests_count(workload, load)
        raise InputError("load.requests", counted, f"be at most {MOST_REQUESTS}", "`replay --summary` has no limit")
    if load.warmup_requests >= requests_count(workload, load):
        raise InputError("load.warmupRequests", load.warmup_requests, "be fewer than the requests of the run")


def _check_synthetic(given: SyntheticInput) -> None:
    if given.prefixes is not None and given.conversation is not None:
        raise InputError("workload.synthetic", ["prefixes", "conversation"], "hold at most one of them")
    ranges = {"promptTokens": given.prompt_tokens, "outputTokens": given.output_tokens}
    if given.conversation is not None:
        ranges["conversation.turnTokens"] = given.conversation.turn_tokens
    for name, length in ranges.items():
        if isinstance(length, LengthRange) and length.minimum > length.maximum:
            field = f"workload.synthetic.{name}"
            raise InputError(field, length.minimum, f"have a minimum of at most {length.maximum}")


def _turns(workload: WorkloadInput) -> int:
    conversation = workload.synthetic.conversation if workload.synthetic else None
    return conversation.turns if conversation else 1


def requests_count(workload: WorkloadInput, load: LoadInput) -> int:
    """Requests of a run that is not a trace: as stated, else ten per client (ten sessions of conversations)."""
    turns = _turns(workload)
    if load.requests is not None:
        return load.requests // turns * turns
    if load.concurrency is None:
        raise InputError("load.requests", None, "be given with `requestRate`")
    return run_requests(load.concurrency) * turns


def workload_of(given: WorkloadInput, load: LoadInput, *, send_spread_s: float = 0.0) -> Workload:
    """The simulator's workload. A trace's path must be absolute or relative to here. Raises InputError, FormatError.

    `send_spread_s`: in a closed loop of single requests that share nothing (`ClosedLoop`).
    """
    check_traffic(given, load)
    trace = given.trace_input
    if trace is not None:
        return open_trace(Path(trace.path), TraceFormat(trace.format), clients=load.concurrency)
    count = requests_count(given, load)
    words = given.synthetic
    if given.fixed is not None:
        prompt, output = Lengths.fixed(given.fixed.prompt_tokens), Lengths.fixed(given.fixed.output_tokens)
    else:
        assert words is not None  # noqa: S101 - exactly one is given
        prompt, output = _lengths(words.prompt_tokens), _lengths(words.output_tokens)
    if words is not None and words.conversation is not None:
        talk = words.conversation
        shape = synthetic.Conversation(
            talk.turns, prompt, _lengths(talk.turn_tokens), output, talk.think_seconds, talk.shared_tokens
        )
        sessions = count // talk.turns
        return synthetic.conversations(shape, sessions, _sent(load, talk.turns), block_tokens=PREFIX_BLOCK_TOKENS)
    prefixes = None
    if words is not None and words.prefixes is not None:
        prefixes = synthetic.SharedPrefixes(words.prefixes.count, words.prefixes.tokens, words.prefixes.zipf_exponent)
    return synthetic.independent_requests(
        prompt, output, count, _sent(load, 1, send_spread_s), prefixes=prefixes, block_tokens=PREFIX_BLOCK_TOKENS
    )


def _sent(load: LoadInput, turns: int, send_spread_s: float = 0.0) -> synthetic.Load:
    """Sessions arrive at the rate that makes their requests come at the one asked for."""
    if load.request_rate is not None:
        return PoissonArrivals(load.request_rate / turns)
    return ClosedLoop(load.concurrency or 1, send_spread_s)


def _lengths(given: int | LengthRange) -> Lengths:
    return Lengths.fixed(given) if isinstance(given, int) else Lengths(given.minimum, given.maximum)


def shares_prefixes(workload: WorkloadInput) -> bool:
    """Whether a prefix cache can find anything. Of a trace it says so only where it is opened."""
    words = workload.synthetic
    return workload.trace is not None or (words is not None and (words.prefixes or words.conversation) is not None)


def trace_facts(workload: WorkloadInput) -> LengthFacts:
    """Counts over a trace, read once. Raises FormatError with the line of the first bad record."""
    trace = workload.trace_input
    assert trace is not None  # noqa: S101 - the caller has seen it
    return length_facts(open_trace(Path(trace.path), TraceFormat(trace.format)))


def traffic_lengths(workload: WorkloadInput) -> TrafficLengths:
    """What a `Setting` needs to know of the requests' lengths. Raises InputError; FormatError from a trace."""
    if workload.fixed is not None:
        prompt, output = workload.fixed.prompt_tokens, workload.fixed.output_tokens
        return TrafficLengths(prompt, output, prompt + output)
    if workload.trace is not None:
        facts = trace_facts(workload)
        means = max(1, round(facts.mean_prompt_tokens)), max(1, round(facts.mean_output_tokens))
        return TrafficLengths(*means, facts.longest_tokens)
    words = workload.synthetic
    if words is None:
        raise InputError("workload", [], "hold exactly one of `fixed`, `synthetic` and `trace`")
    first, answer = _lengths(words.prompt_tokens), _lengths(words.output_tokens)
    if words.conversation is None:
        longest = first.high_tokens + answer.high_tokens
        return TrafficLengths(first.high_tokens, answer.high_tokens, longest)
    more, turns = _lengths(words.conversation.turn_tokens), words.conversation.turns
    longest = first.high_tokens + (turns - 1) * (answer.high_tokens + more.high_tokens) + answer.high_tokens
    grown_tokens = (turns - 1) / 2 * (_mean(answer) + _mean(more))
    return TrafficLengths(round(_mean(first) + grown_tokens), round(_mean(answer)), longest)


def _mean(lengths: Lengths) -> float:
    return (lengths.low_tokens + lengths.high_tokens) / 2
