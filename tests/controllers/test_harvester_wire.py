"""Bytes to token events: transfer coding in any cuts, and the public cases about chunks and tokens."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferasim_harvester import wire
from inferasim_harvester.emulator import virtual
from inferasim_harvester.errors import EngineDiedError, RequestFailedError
from inferasim_harvester.streams import dialect_of
from inferasim_harvester.wire import Address, Answer, Client, Piece
from simcore.cards.layout import Engine
from simcore.errors import InputError


def sse(*events: Any) -> bytes:
    return b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events) + b"data: [DONE]\n\n"


def openai(text: str, usage: tuple[int, int] | None = None) -> dict[str, Any]:
    event: dict[str, Any] = {"choices": [{"index": 0, "text": text, "finish_reason": None}]}
    if usage:
        event["usage"] = {"prompt_tokens": usage[0], "completion_tokens": usage[1]}
    return event


def timed(pieces: list[tuple[float, Any]], tail: bytes = b"data: [DONE]\n\n") -> Answer:
    answer = Answer(sent_s=0.0, status=200)
    answer.pieces = [Piece(at, b"data: " + json.dumps(event).encode() + b"\n\n") for at, event in pieces]
    answer.pieces.append(Piece(pieces[-1][0], tail))
    return answer


@given(st.lists(st.binary(min_size=1, max_size=40), max_size=8), st.integers(0, 2**32 - 1))
def test_chunked_coding_in_any_cuts(payloads: list[bytes], seed: int) -> None:
    """However the bytes are cut, the body is the same, and it has ended exactly at its end."""
    coded = b"".join(b"%x;ext=1\r\n%b\r\n" % (len(p), p) for p in payloads) + b"0\r\n\r\n"
    random = np.random.default_rng(seed)
    cuts = sorted(int(cut) for cut in random.integers(0, len(coded) + 1, size=6))
    reader = wire._Dechunker()
    out = b"".join(reader.feed(coded[a:b]) for a, b in zip([0, *cuts], [*cuts, len(coded)], strict=True))
    assert out == b"".join(payloads)
    assert reader.ended


@given(st.binary(max_size=200))
def test_hostile_bytes_end_in_our_errors(data: bytes) -> None:
    answer = Answer(sent_s=0.0, status=200)
    answer.pieces = [Piece(1.0, b"data: " + data + b"\n\n")]
    with pytest.raises(RequestFailedError):
        dialect_of(Engine.VLLM).read(answer)


def test_several_tokens_a_chunk() -> None:
    """Public case E04: 1 + 50 chunks 20 ms apart, 133 decode tokens: the gap is 20 ms, a token takes 7.52 ms."""
    counts = [1 + round(2.66 * k) for k in range(51)]
    pieces = [(1.0 + 0.02 * k, openai("x", (100, count))) for k, count in enumerate(counts)]
    stream = dialect_of(Engine.VLLM).read(timed(pieces))
    assert stream.completion_tokens == 134
    assert float(np.mean(np.diff(stream.times_s))) == pytest.approx(0.020)
    per_token = (stream.times_s[-1] - stream.times_s[0]) / (stream.completion_tokens - 1)
    assert per_token == pytest.approx(1.0 / 133, rel=1e-9)
    assert 1e3 * per_token == pytest.approx(7.52, abs=0.005)


@pytest.mark.parametrize("engine", [Engine.VLLM, Engine.ATOM])
def test_an_empty_first_chunk_is_no_token(engine: Engine) -> None:
    """Public case E07: empty content at 0.9 s, first text at 2.2 s: TTFT is 2.2 s."""
    usage = engine is Engine.VLLM
    pieces = [
        (0.9, openai("", (10, 0) if usage else None)),
        (2.2, openai("Hi", (10, 1) if usage else None)),
        (2.3, openai(" you", (10, 2) if usage else None)),
        (2.3, {"choices": [], "usage": {"prompt_tokens": 10, "completion_tokens": 2}}),
    ]
    stream = dialect_of(engine).read(timed(pieces))
    assert stream.ttft_s == pytest.approx(2.2)
    assert stream.empty_chunks == 1
    assert list(stream.tokens) == [1, 2]


def test_a_reasoning_delta_is_a_token() -> None:
    """Public case E07: reasoning deltas count."""
    chunk = {"choices": [{"index": 0, "delta": {"reasoning_content": "hm"}, "finish_reason": None}]}
    end = {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 1}}
    assert dialect_of(Engine.ATOM).read(timed([(1.5, chunk), (1.5, end)])).ttft_s == pytest.approx(1.5)


def test_half_a_character_is_a_token_without_text() -> None:
    """A chunk of an engine without running usage may carry no text yet; the step happened all the same."""
    pieces = [
        (1.0, openai("a")),
        (1.1, openai("")),
        (1.2, openai("é")),
        (1.2, {"choices": [{"index": 0, "text": "", "finish_reason": "stop"}]}),
        (1.2, {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 3}}),
    ]
    stream = dialect_of(Engine.ATOM).read(timed(pieces))
    assert list(stream.times_s) == [1.0, 1.1, 1.2]


def test_served_length_comes_from_usage() -> None:
    """Public case E01: 1,000 sent, 5,128 served."""
    stream = dialect_of(Engine.VLLM).read(timed([(1.0, openai("a", (5128, 1)))]))
    assert stream.prompt_tokens == 5128


def test_native_stream_of_sglang() -> None:
    pieces = [
        (1.0 + k, {"text": "x" * k, "meta_info": {"prompt_tokens": 7, "completion_tokens": k + 1}}) for k in range(3)
    ]
    stream = dialect_of(Engine.SGLANG).read(timed(pieces))
    assert list(stream.tokens) == [1, 2, 3]
    assert stream.prompt_tokens == 7


@pytest.mark.parametrize(
    ("status", "event", "said"),
    [(500, openai("x", (1, 1)), "500"), (200, {"error": {"message": "boom"}}, "boom"), (200, openai("x"), "no usage")],
)
def test_failed_requests_say_why(status: int, event: Any, said: str) -> None:
    answer = timed([(1.0, event)])
    answer.status = status
    with pytest.raises(RequestFailedError, match=said):
        dialect_of(Engine.VLLM).read(answer)


@pytest.mark.parametrize(
    "url", ["https://x:1", "http://x", "x:80", "http://a b:1", "http://x:99999999", "http://u@x:1", "http://x:1/v1"]
)
def test_bad_addresses_are_refused(url: str) -> None:
    with pytest.raises(InputError, match="engine-url"):
        Address.parse(url)


async def _silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()
    writer.close()  # an aborted connection ends the read


def test_silence_is_death_after_its_time() -> None:
    async def main() -> float:
        server = await asyncio.start_server(_silent, "127.0.0.1", 0)
        client = Client(Address("127.0.0.1", server.sockets[0].getsockname()[1]), stall_s=30.0)
        with pytest.raises(EngineDiedError, match="30 s"):
            await client.get("/health")
        server.close()
        await asyncio.sleep(1.0)
        return asyncio.get_running_loop().time()

    assert virtual.run(main()) == pytest.approx(31.0, abs=0.5)


def test_nobody_listens() -> None:
    async def main() -> None:
        with pytest.raises(EngineDiedError, match="no connection"):
            await Client(Address("127.0.0.1", 1)).get("/health")

    virtual.run(main())


def test_a_broken_stream_is_no_answer() -> None:
    async def main() -> None:
        async def half(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nda")
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(half, "127.0.0.1", 0)
        with pytest.raises(EngineDiedError, match="broke off"):
            await Client(Address("127.0.0.1", server.sockets[0].getsockname()[1])).get("/x")
        server.close()
        await asyncio.sleep(1.0)

    virtual.run(main())


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 10**12) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
COUNTS = st.integers(-3, 10**12)
USAGE = st.fixed_dictionaries({"prompt_tokens": COUNTS, "completion_tokens": COUNTS}) | JSON
CHOICES = st.lists(st.fixed_dictionaries({}, optional={"text": JSON, "delta": JSON, "finish_reason": JSON}) | JSON)
EVENTS = st.fixed_dictionaries(
    {}, optional={"choices": CHOICES | JSON, "usage": USAGE, "meta_info": USAGE, "text": JSON, "error": JSON}
)


@given(st.sampled_from(list(Engine)), st.lists(EVENTS | JSON, min_size=1, max_size=6))
def test_hostile_events_end_in_our_errors(engine: Engine, events: list[Any]) -> None:
    """Valid JSON of any shape in a stream: a stream is read, or the request has failed; nothing else is raised."""
    pieces = [(float(index), event) for index, event in enumerate(events)]
    try:
        found = dialect_of(engine).read(timed(pieces))
    except RequestFailedError:
        return
    assert len(found.times_s) == len(found.tokens) > 0
    assert found.prompt_tokens >= 0
    assert np.isfinite(found.tokens).all()


@pytest.mark.parametrize("head", [b"HTTP/1.1 abc\r\n\r\n", b"HTTP/1.1\r\n\r\n", b"HTTP/1.\r\n\r\n"])
def test_an_answer_without_a_status_is_a_failed_request(head: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(head)
        writer.close()

    async def whole() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = int(server.sockets[0].getsockname()[1])
        with pytest.raises(RequestFailedError, match="no status"):
            await Client(Address("127.0.0.1", port)).get("/v1/models")
        server.close()

    virtual.run(whole())
