"""From an engine's answer to token events: when each chunk came and how many tokens had been produced by then."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from inferasim_harvester.errors import RequestFailedError
from inferasim_harvester.wire import Answer
from simcore.cards.layout import Engine

Floats = NDArray[np.float64]
TEMPERATURE: Final = 1.0
"""Sampled, not greedy: greedy answers to random prompts fall into loops that send every token to the same experts."""


@dataclass(frozen=True, eq=False)
class Stream:
    """One request: its token events and what the engine says it served."""

    sent_s: float
    times_s: Floats
    """(events,) arrival of each chunk that carried a token."""
    tokens: Floats
    """(events,) tokens produced up to and with that chunk."""
    prompt_tokens: int
    completion_tokens: int
    empty_chunks: int
    """Chunks without a token before the first one (public case E07)."""
    cached_tokens: int = 0
    """Prompt tokens that the engine says it took from its prefix cache, where it says so per request."""
    is_ended: bool = True
    """Whether the end mark came; without it the stream was cut off where nothing else shows it."""

    @property
    def first_s(self) -> float:
        """Arrival of the first token."""
        return float(self.times_s[0])

    @property
    def ttft_s(self) -> float:
        """First token minus the moment the request was written."""
        return self.first_s - self.sent_s


@dataclass(frozen=True)
class Dialect:
    """How one engine is asked for tokens, and how its chunks are read."""

    engine: Engine
    path: str
    token_ids: bool
    """Whether prompts are token ids; else text, whose served length is read from the usage."""
    body: Callable[[str, Any, int, bool], dict[str, Any]]
    """(served model name, prompt, output tokens, detokenize) to the request."""
    count: Callable[[Mapping[str, Any]], int | None]
    """Tokens produced so far by a chunk's own word; None when it does not say."""
    text: Callable[[Mapping[str, Any]], str]
    usage: Callable[[Mapping[str, Any]], tuple[int, int] | None]
    """(prompt tokens, completion tokens) served."""
    returns_ids: str | None = None
    """The request's key that asks for produced token ids, where it takes one."""

    def request(self, model: str, prompt: list[int] | str, max_tokens: int, *, detokenize: bool = True) -> bytes:
        """The body of one request that must produce exactly `max_tokens`."""
        return json.dumps(self.body(model, prompt, max_tokens, detokenize), separators=(",", ":")).encode()

    def read(self, answer: Answer) -> Stream:
        """The token events of a streamed answer. Raises RequestFailedError."""
        if answer.status != 200:
            text = answer.body[:300].decode("utf-8", "replace")
            raise RequestFailedError(f"{self.path} answered {answer.status}: {text}")
        times: list[float] = []
        tokens: list[float] = []
        served: tuple[int, int] | None = None
        empty = cached = 0
        events, is_ended = _events(answer)
        for at_s, event in events:
            if "error" in event:
                raise RequestFailedError(f"{self.path} streamed an error: {str(event['error'])[:300]}")
            served = self.usage(event) or served
            cached = max(cached, _cached_tokens(event))
            before = int(tokens[-1]) if tokens else 0
            if event.get("choices") == []:
                continue  # the closing usage of the OpenAI dialect is no chunk
            said = self.count(event)
            # Without a count a chunk is a token: also one that is half a character, but not before the first text.
            now = said if said is not None else before + bool(self.text(event) or (tokens and not _is_end(event)))
            if now > before:
                times.append(at_s)
                tokens.append(now)
            elif not tokens:
                empty += 1
        if not times or served is None:
            told = f"{self.path} gave {len(times)} tokens and {'a' if served else 'no'} usage"
            raise RequestFailedError(told if events else f"{told}: {answer.body[:80]!r}")
        counts = np.array(tokens, dtype=np.float64)
        if counts[-1] != served[1]:
            counts *= served[1] / counts[-1]  # chunks of several tokens that do not say how many
        return Stream(answer.sent_s, np.array(times), counts, served[0], served[1], empty, cached, is_ended)


def dialect_of(engine: Engine) -> Dialect:
    """The dialect of `engine`."""
    return _DIALECTS[engine]


def _events(answer: Answer) -> tuple[list[tuple[float, dict[str, Any]]], bool]:
    """((arrival, event) of every server-sent event, whether the end mark came); an event arrives with its last byte."""
    found: list[tuple[float, dict[str, Any]]] = []
    pending, is_ended = b"", False
    for piece in answer.pieces:
        pending += piece.data.replace(b"\r", b"")
        *whole, pending = pending.split(b"\n\n")
        for block in whole:
            lines = block.split(b"\n")
            # Comments (keep-alives) begin with a colon, whatever words follow.
            data = b"\n".join(line[5:].strip() for line in lines if line.startswith(b"data:"))
            if data == b"[DONE]":
                is_ended = True
            if not data or is_ended:
                continue
            try:
                event = json.loads(data)
            except (ValueError, RecursionError) as error:
                raise RequestFailedError(f"the stream holds no JSON: {data[:80]!r}") from error
            if not isinstance(event, dict):
                raise RequestFailedError(f"the stream holds no object: {data[:80]!r}")
            found.append((piece.at_s, event))
    return found, is_ended


def _completion_body(model: str, prompt: Any, max_tokens: int, detokenize: bool) -> dict[str, Any]:
    body: dict[str, Any] = {
        "model": model,
        "prompt": prompt,
        "max_tokens": max_tokens,
        "ignore_eos": True,
        "temperature": TEMPERATURE,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }
    if not detokenize:
        body["detokenize"] = False
    return body


def _text_body(model: str, prompt: Any, max_tokens: int, _detokenize: bool) -> dict[str, Any]:
    # ATOM's completion request takes text only and ignores stream_options (atom/entrypoints/openai/protocol.py).
    return {
        "model": model,
        "prompt": prompt,
        "max_tokens": max_tokens,
        "ignore_eos": True,
        "temperature": TEMPERATURE,
        "stream": True,
    }


def _native_body(_model: str, prompt: Any, max_tokens: int, _detokenize: bool) -> dict[str, Any]:
    sampling = {"max_new_tokens": max_tokens, "ignore_eos": True, "temperature": TEMPERATURE}
    key = "text" if isinstance(prompt, str) else "input_ids"
    return {key: prompt, "sampling_params": sampling, "stream": True}


def _usage_pair(record: Any) -> tuple[int, int] | None:
    if not isinstance(record, dict):
        return None
    prompt, completion = record.get("prompt_tokens"), record.get("completion_tokens")
    if not isinstance(prompt, int) or not isinstance(completion, int) or min(prompt, completion) < 0:
        return None
    return prompt, completion


def _cached_tokens(event: Mapping[str, Any]) -> int:
    """Prompt tokens from the prefix cache by the event's own word; 0 when it has none."""
    usage, meta = event.get("usage"), event.get("meta_info")
    details = usage.get("prompt_tokens_details") if isinstance(usage, dict) else None
    for record in (details, meta):
        cached = record.get("cached_tokens") if isinstance(record, dict) else None
        if isinstance(cached, int):
            return cached
    return 0


def _openai_usage(event: Mapping[str, Any]) -> tuple[int, int] | None:
    return _usage_pair(event.get("usage"))


def _openai_count(event: Mapping[str, Any]) -> int | None:
    pair = _openai_usage(event)
    return pair[1] if pair else None


def _openai_text(event: Mapping[str, Any]) -> str:
    first = next(iter(_choices(event)), {})
    delta = first.get("delta")
    told = delta if isinstance(delta, dict) else {}
    return str(first.get("text") or told.get("content") or told.get("reasoning_content") or "")


def _is_end(event: Mapping[str, Any]) -> bool:
    return any(choice.get("finish_reason") for choice in _choices(event))


def _choices(event: Mapping[str, Any]) -> list[dict[str, Any]]:
    choices = event.get("choices")
    return [choice for choice in choices if isinstance(choice, dict)] if isinstance(choices, list) else []


def _native_usage(event: Mapping[str, Any]) -> tuple[int, int] | None:
    return _usage_pair(event.get("meta_info"))


def _native_count(event: Mapping[str, Any]) -> int | None:
    pair = _native_usage(event)
    return pair[1] if pair else None


def _native_text(event: Mapping[str, Any]) -> str:
    return str(event.get("text") or "")


_DIALECTS: Final[Mapping[Engine, Dialect]] = {
    Engine.VLLM: Dialect(
        Engine.VLLM,
        "/v1/completions",
        True,
        _completion_body,
        _openai_count,
        _openai_text,
        _openai_usage,
        returns_ids="return_token_ids",
    ),
    Engine.SGLANG: Dialect(Engine.SGLANG, "/generate", True, _native_body, _native_count, _native_text, _native_usage),
    # Chunks carry no usage; the last one does, so a chunk counts as one token until then.
    Engine.ATOM: Dialect(Engine.ATOM, "/v1/completions", False, _text_body, _openai_count, _openai_text, _openai_usage),
}
