"""Traces: what each format means, and that bad ones are refused with line and reason before they can do harm."""

from __future__ import annotations

import gzip
import json
import os
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simcore.des.config import Deployment, Pool
from simcore.des.kernel import loop
from simcore.des.result import Record
from simcore.des.simulate import run_kernel, simulate
from simcore.des.workload import agentic
from simcore.des.workload import lines as lines_module
from simcore.des.workload.batch import Batch
from simcore.des.workload.trace import TraceFormat, detect, open_trace
from simcore.errors import FormatError, InputError
from tests.reference.des_simple import colocated, flat_table, scheduler

TRACES = Path(__file__).parents[3] / "shared" / "data" / "traces"


def _write(path: Path, *records: Any) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def _record(at: float, tokens: float, output: int, ids: list[Any], **more: Any) -> dict[str, Any]:
    return {"timestamp": at, "input_length": tokens, "output_length": output, "hash_ids": ids, **more}


def _batches(path: Path, **options: Any) -> list[Batch]:
    return list(open_trace(path, **options).batches(np.random.SeedSequence(0)))


# meaning --------------------------------------------------------------------------------------------------------------
def test_mooncake_lines_array_and_gzip_are_the_same(tmp_path: Path) -> None:
    rows = [_record(0, 1100, 5, [1, 2, 3]), _record(1500, 600, 7, [1, 4])]
    plain = _write(tmp_path / "a.jsonl", *rows)
    array = tmp_path / "b.json"
    array.write_text(json.dumps(rows, indent=1))
    packed = tmp_path / "c.jsonl.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    found = [_batches(path) for path in (plain, array, packed)]
    for batches in found:
        assert len(batches) == 1
        columns = batches[0].columns
        assert columns[:, loop.LOAD_PROMPT].tolist() == [1100, 600]
        assert columns[:, loop.LOAD_OUTPUT].tolist() == [5, 7]
        assert columns[:, loop.LOAD_TIMESTAMP].tolist() == [0, 1500 * 10**9]
        assert columns[:, loop.LOAD_BLOCKS].tolist() == [3, 2]
        np.testing.assert_array_equal(batches[0].arena, found[0][0].arena)
    assert open_trace(plain).block_tokens == 512


@pytest.mark.parametrize(("tokens", "blocks", "size"), [(1100, 3, 512), (1100, 17, 64), (1100, 18, 64), (1100, 69, 16)])
def test_block_size_is_inferred(tmp_path: Path, tokens: int, blocks: int, size: int) -> None:
    path = _write(tmp_path / "t.jsonl", *[_record(0, tokens, 1, list(range(blocks)))] * 3)
    assert open_trace(path).block_tokens == size


def _finishes(path: Path) -> dict[int, tuple[int, int]]:
    """Arrival and last token in ms by record; every request takes 10 ms, one at a time per rank is no limit."""
    table = flat_table(64, decode_ms=1, prefill_ms=10)
    records = simulate(colocated(table, scheduler(prefix_caching=True)), open_trace(path)).records
    assert records is not None
    return {
        int(index): (int(arrival) // 10**6, int(finish) // 10**6)
        for index, arrival, finish in zip(records.index, records.arrival_ns, records.finish_ns, strict=True)
    }


def test_sessions_wait_think_and_join(tmp_path: Path) -> None:
    path = _write(
        tmp_path / "t.jsonl",
        _record(0, 16, 1, [1], id="a", session_id="s"),
        _record(0, 16, 1, [2], session_id="s", delay=100, id="b"),  # after a, 100 ms of thinking
        _record(0, 16, 1, [3], wait_for="a", delay=500, id="c"),  # a sub-agent
        {"input_length": 16, "output_length": 1, "hash_ids": [4], "joins": ["b", "c"], "id": "d", "delay": 1},
        _record(900, 16, 1, [5], id="e"),
    )
    found = _finishes(path)
    assert found[0] == (0, 10)
    assert found[1] == (110, 120)
    assert found[2] == (510, 520)
    assert found[3] == (521, 531)  # waits for both
    assert found[4] == (900, 910)


def test_compact_form_reuses_leading_blocks(tmp_path: Path) -> None:
    whole = _write(
        tmp_path / "whole.jsonl",
        _record(0, 2048, 1, [1, 2, 3, 4], id="a"),
        _record(1000, 2048, 1, [1, 2, 3, 9], id="b", wait_for="a"),
        _record(2000, 2560, 1, [1, 2, 3, 9, 8], id="c", wait_for="b"),
    )
    compact = _write(
        tmp_path / "compact.jsonl",
        _record(0, 2048, 1, [1, 2, 3, 4], id="a"),
        _record(1000, 2048, 1, [9], id="b", wait_for="a", prefix_of="a", prefix_blocks=3),
        _record(2000, 2560, 1, [8], id="c", wait_for="b", prefix_of="b", prefix_blocks=4),
    )
    rules = scheduler(prefix_caching=True)
    hits = []
    for path in (whole, compact):
        records = simulate(colocated(flat_table(64, decode_ms=1), rules), open_trace(path)).records
        assert records is not None
        hits.append(records.hit_blocks.tolist())
    assert hits == [[0, 3, 4]] * 2


def test_azure_times_are_relative(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-12-31 23:59:59.5000000,10,2\n2024-01-01 00:00:01.2500000,20,3\n"
        "2024-02-01 00:00:00,7,1\n"
    )
    columns = np.concatenate([batch.columns for batch in _batches(path)])
    days_ps = 31 * 86_400 * 10**12
    assert columns[:, loop.LOAD_TIMESTAMP].tolist() == [0, 1_750_000_000_000, days_ps + 500_000_000_000]
    assert columns[:, loop.LOAD_PROMPT].tolist() == [10, 20, 7]


def _session(*requests: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"id": "s", "block_size": 64, "requests": list(requests), **more}


def test_agentic_full_and_compact_forms_agree(tmp_path: Path) -> None:
    def turn(t: float, tokens: int, **more: Any) -> dict[str, Any]:
        return {"t": t, "in": tokens, "out": 2, "think_time": 3.0, "api_time": 1.0, **more}

    nested = {"type": "subagent", "t": 5.0, "requests": [turn(0, 130, hash_ids=[7, 8])]}
    compact_nested = {"type": "subagent", "t": 5.0, "requests": [turn(0, 130, ref=-1, n=0, tail=[[7, 2]])]}
    full = _write(
        tmp_path / "full.jsonl",
        _session(turn(0, 200, hash_ids=[1, 2, 3]), nested, turn(9, 330, hash_ids=[1, 2, 3, 4, 5])),
    )
    compact = _write(
        tmp_path / "compact.jsonl",
        _session(turn(0, 200, ref=-1, n=0, tail=[[1, 3]]), compact_nested, turn(9, 330, ref=0, n=3, tail=[[4, 2]])),
    )
    found = []
    for path in (full, compact):
        assert detect(path) is TraceFormat.AGENTIC
        result = simulate(
            colocated(flat_table(64, decode_ms=1), scheduler(prefix_caching=True)), open_trace(path, clients=1)
        )
        assert result.records is not None
        found.append((result.records.arrival_ns.tolist(), result.records.hit_blocks.tolist()))
    assert found[0] == found[1]
    # the answer is out at 1 ms; the sub-agent starts 5 - (0 + 1) s later, the next turn after 3 s of thinking
    assert found[0][0] == [0, 3_001_000_000, 4_001_000_000]
    assert found[0][1] == [0, 3, 0]


def test_equal_ids_of_two_sessions_are_different_blocks(tmp_path: Path) -> None:
    turn = {"t": 0.0, "in": 128, "out": 1, "hash_ids": [1, 2]}
    path = _write(tmp_path / "t.jsonl", _session(turn), {**_session(turn), "id": "other"})
    deployment = colocated(flat_table(64, decode_ms=1), scheduler(prefix_caching=True))
    assert simulate(deployment, open_trace(path, clients=1)).block_hit_rate == 0.0
    shared = _write(tmp_path / "u.jsonl", _session(turn, scope="global"), {**_session(turn, scope="global"), "id": "o"})
    assert simulate(deployment, open_trace(shared, clients=1)).block_hit_rate == 0.5


# refusals -------------------------------------------------------------------------------------------------------------
BAD_MOONCAKE = {
    "cycle": ([_record(0, 16, 1, [1], id="a", wait_for="b"), _record(0, 16, 1, [1], id="b", wait_for="a")], 1, "cycle"),
    "waits for itself": ([_record(0, 16, 1, [1], id="a", wait_for="a")], 1, "cycle"),
    "missing hash": ([_record(0, 1024, 1, [1, 2]), _record(0, 1024, 1, [1])], 2, "hash_ids"),
    "no hash": (
        [_record(0, 1024, 1, [1, 2]), {"timestamp": 1, "input_length": 9, "output_length": 1}],
        2,
        "every record",
    ),
    "negative time": ([_record(-1, 512, 1, [1])], 1, "negative"),
    "back in time": ([_record(5, 512, 1, [1]), _record(4, 512, 1, [1])], 2, "back in time"),
    "too late": ([_record(1e13, 512, 1, [1])], 1, "at most"),
    "fraction of a token": ([_record(0, 511.5, 1, [1])], 1, "whole number"),
    "boolean": ([_record(0, 512, True, [1])], 1, "whole number"),
    "string id": ([_record(0, 512, 1, ["x"])], 1, "hash_ids"),
    "huge length": ([_record(0, 1 << 40, 1, [1])], 1, "input_length"),
    "unknown prefix": ([_record(0, 512, 1, [1], prefix_of="q", prefix_blocks=1)], 1, "earlier record"),
    "prefix too long": (
        [_record(0, 512, 1, [1], id="a"), _record(0, 1536, 1, [1], prefix_of="a", prefix_blocks=2)],
        2,
        "prefix_blocks",
    ),
    "twice the same id": (
        [_record(0, 512, 1, [1], id="a"), _record(0, 512, 1, [1], id="a", wait_for="a")],
        2,
        "unique",
    ),
}


@pytest.mark.parametrize("name", BAD_MOONCAKE)
def test_bad_mooncake_records(tmp_path: Path, name: str) -> None:
    records, line, words = BAD_MOONCAKE[name]
    path = _write(tmp_path / "bad.jsonl", *records)
    with pytest.raises(FormatError, match=words) as caught:
        _batches(path, trace_format=TraceFormat.MOONCAKE)
    assert caught.value.line == line
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('{"timestamp": 0, "input_length": 512, "output_length": 1, "hash_ids": [1]}\n{"timestamp": 0, "inp', 2),
        ('[{"timestamp": 0, "input_length": 512, "output_length": 1, "hash_ids": [1]},\n {"timest', 2),
        ('[{"timestamp": 0, "input_length": 512, "output_length": 1, "hash_ids": [1]}', 1),
        ('{"timestamp": NaN, "input_length": 512, "output_length": 1, "hash_ids": [1]}\n', 1),
        ('{"timestamp": 1e999, "input_length": 512, "output_length": 1, "hash_ids": [1]}\n', 1),
        ('{"timestamp": 0, "input_length": 512, "output_length": 1, "hash_ids": ' + "[" * 100_000 + "\n", 1),
    ],
)
def test_truncated_and_broken_json(tmp_path: Path, text: str, line: int) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(text)
    with pytest.raises(FormatError) as caught:
        _batches(path, trace_format=TraceFormat.MOONCAKE)
    assert caught.value.line == line


def test_a_line_without_end_is_refused_unread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A 10 GB line costs a capped read, not memory; the cap is lowered here, and the file is sparse."""
    monkeypatch.setattr(lines_module, "MAX_RECORD_BYTES", 1 << 16)
    path = tmp_path / "long.jsonl"
    with path.open("wb") as stream:
        stream.write(b'{"timestamp": 0, "input_length": 512, "hash_ids": [')
        stream.truncate(10 << 30)
    with pytest.raises(FormatError, match="MiB long") as caught:
        open_trace(path, TraceFormat.MOONCAKE)
    assert caught.value.line == 1


def test_damaged_gzip(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl.gz"
    row = json.dumps(_record(0, 512, 1, [1])).encode() + b"\n"
    path.write_bytes(gzip.compress(row * 5000)[:-40])
    with pytest.raises(FormatError, match="damaged"):
        _batches(path, trace_format=TraceFormat.MOONCAKE)


@pytest.mark.parametrize(
    ("rows", "line", "words"),
    [
        ("TIMESTAMP,Context\n", 1, "ContextTokens"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,1,1\n", 2, "UTC time"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-13-01 00:00:00,1,1\n", 2, "UTC time"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 00:00:00,-4,1\n", 2, "whole number"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 00:00:00,4\n", 2, "three columns"),
        (
            "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 00:00:01,4,1\n2023-11-16 00:00:00,4,1\n",
            3,
            "back in time",
        ),
    ],
)
def test_bad_azure_rows(tmp_path: Path, rows: str, line: int, words: str) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(rows)
    with pytest.raises(FormatError, match=words) as caught:
        _batches(path, trace_format=TraceFormat.AZURE)
    assert caught.value.line == line


@pytest.mark.parametrize(
    ("requests", "words"),
    [
        ([{"t": 0, "in": 64, "out": 1, "ref": 3, "n": 0, "tail": [[1, 1]]}], "earlier request"),
        ([{"t": 0, "in": 64, "out": 1, "ref": -1, "n": 2, "tail": [[1, 1]]}], "`n`"),
        ([{"t": 0, "in": 64, "out": 1, "ref": -1, "n": 0, "tail": [[1, 1 << 40]]}], "runs"),
        ([{"t": 0, "in": 6400, "out": 1, "ref": -1, "n": 0, "tail": [[1, 1]]}], "one block per"),
        ([{"t": -2, "in": 64, "out": 1, "hash_ids": [1]}], "negative"),
        (
            [{"t": 5, "in": 64, "out": 1, "hash_ids": [1]}, {"t": 4, "in": 64, "out": 1, "hash_ids": [1]}],
            "back in time",
        ),
        ([{"t": 0, "in": 64, "out": 1}], "hash_ids"),
        ("none", "list"),
    ],
)
def test_bad_sessions(tmp_path: Path, requests: Any, words: str) -> None:
    good = _session({"t": 0, "in": 64, "out": 1, "hash_ids": [1]})
    path = _write(tmp_path / "bad.jsonl", good, {**good, "requests": requests})
    with pytest.raises(FormatError, match=words) as caught:
        _batches(path, trace_format=TraceFormat.AGENTIC)
    assert caught.value.line == 2


GOOD = json.dumps(_record(0, 1024, 2, [1, 2]))
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


NEIGHBOURS: list[tuple[str, str, int | None, str]] = [
    ("a.json", f"[{GOOD}]\ngarbage", 2, "end with its array"),
    ("a.json", f"[{GOOD}]\n[{GOOD}]", 2, "end with its array"),
    ("a.json", f"[{GOOD} {GOOD}]", 1, "go on with"),
    ("a.json", f"[{GOOD},\n,{GOOD}]", 2, "valid JSON"),
    ("a.json", f"[{GOOD},\n{GOOD},]", 2, "valid JSON"),
    ("a.json", f"[{GOOD},\n{GOOD}\n", 3, "cut off"),
    ("a.json", "[]", None, "at least one request"),
    ("a.json", "[" * 200_000, 1, "recursion"),
    ("a.jsonl", GOOD + '\n{"timestamp": 0, "timestamp": 5}', 2, "stands twice"),
    ("a.jsonl", GOOD + "\n" + GOOD.replace("1024", "1" * 5000), 2, "valid JSON"),
    ("a.jsonl", GOOD + "\n" + GOOD.replace("1024", "1e999"), 2, "whole number"),
    ("a.jsonl", GOOD + "\n[1, 2]", 2, "JSON object"),
    ("a.jsonl", GOOD + "\n" + json.dumps(_session()), 2, "input_length"),
    ("a.jsonl", json.dumps(_session({"t": 0, "in": 64, "out": 1, "hash_ids": [1]})) + "\n" + GOOD, 2, "requests"),
    ("a.jsonl", json.dumps(_session()), None, "at least one request"),
    ("a.jsonl", GOOD.replace("[1, 2]", "[1, -2]"), 1, "2\\^62"),
    ("a.csv", AZURE, None, "at least one request"),
    ("a.csv", AZURE + "2023-02-29 00:00:00,4,1\n", 2, "UTC time"),
    ("a.csv", AZURE + "2023-11-31 00:00:00,4,1\n", 2, "UTC time"),
    ("a.csv", AZURE + "16/11/2023 18:17,4,1\n", 2, "UTC time"),
    ("a.csv", AZURE + f"2023-11-16 00:00:00,{'9' * 6000},1\n", 2, "whole number"),
    ("a.csv", AZURE + "2023-11-16 00:00:00,\u0664,1\n", 2, "whole number"),
    ("a.csv", AZURE + "2023-11-16 00:00:00,4,1\n2024-02-16 00:00:00,4,1\n", 3, "45 days"),
    ("a.csv", AZURE + "2023-11-16 00:00:00,4,1\n" + GOOD, 3, "three columns"),
]


@pytest.mark.parametrize(("name", "text", "line", "words"), NEIGHBOURS, ids=range(len(NEIGHBOURS)))
def test_neighbours_of_bad_traces(tmp_path: Path, name: str, text: str, line: int | None, words: str) -> None:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    with pytest.raises(FormatError, match=words) as caught:
        _batches(path)
    assert caught.value.line == line


@pytest.mark.parametrize(
    ("name", "data", "requests"),
    [
        ("a.jsonl", b"\xef\xbb\xbf" + GOOD.encode() + b"\n", 1),
        ("a.json", b"\xef\xbb\xbf[" + GOOD.encode() + b",\r\n" + GOOD.encode() + b"]\r\n ", 2),
        ("a.jsonl", GOOD.encode() + b"\r\n\r\n" + GOOD.encode() + b"\r\n", 2),
        ("a.csv", b"\r\n" + AZURE.encode().replace(b"\n", b"\r\n") + b"2024-02-29 00:00:00,4,1\r\n", 1),
    ],
)
def test_byte_order_marks_and_line_ends_of_other_systems(tmp_path: Path, name: str, data: bytes, requests: int) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    assert sum(len(batch.columns) for batch in _batches(path)) == requests


def test_only_regular_files_are_read(tmp_path: Path) -> None:
    """A pipe that nobody writes to would hang the reader."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (pipe, Path("/dev/zero"), Path("/" + "a" * 5000)):
        with pytest.raises(FormatError, match=r"regular|readable"):
            open_trace(path)


def test_waits_that_add_up_beyond_the_clock_are_refused(tmp_path: Path) -> None:
    """Three waits of 44 days each are valid records; their sum is past what the clock can count to."""
    wait_ms = 44 * 86_400e3
    rows = [_record(0, 16, 1, [1], id="a")]
    rows += [_record(0, 16, 1, [1], id=one, wait_for=two, delay=wait_ms) for one, two in ("ba", "cb", "dc")]
    with pytest.raises(InputError, match="45 simulated days"):
        simulate(colocated(flat_table(64, decode_ms=1), scheduler()), open_trace(_write(tmp_path / "t.jsonl", *rows)))


def test_a_session_of_huge_runs_is_refused_in_bounded_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of ids is a few bytes of file and 32 bytes of memory an id; the cap is lowered here."""
    monkeypatch.setattr(agentic, "MAX_SESSION_BLOCKS", 1000)
    turns = [{"t": 0, "in": 400 * 64, "out": 1, "ref": -1, "n": 0, "tail": [[1 + 400 * n, 400]]} for n in range(4)]
    with pytest.raises(FormatError, match="1000 new blocks"):
        _batches(_write(tmp_path / "t.jsonl", _session(*turns)))


def test_full_and_compact_requests_may_be_mixed_in_a_session(tmp_path: Path) -> None:
    """Ids in full are compared with the last ids in full, wherever a compact request came between."""
    turns = [
        {"t": 0, "in": 192, "out": 1, "hash_ids": [1, 2, 3]},
        {"t": 1, "in": 128, "out": 1, "ref": -1, "n": 0, "tail": [[7, 2]]},
        {"t": 2, "in": 256, "out": 1, "hash_ids": [1, 2, 3, 4]},
    ]
    path = _write(tmp_path / "t.jsonl", _session(*turns))
    load = open_trace(path, TraceFormat.AGENTIC, clients=1)
    records = simulate(colocated(flat_table(64, decode_ms=1), scheduler(prefix_caching=True)), load).records
    assert records is not None
    assert records.hit_blocks.tolist() == [0, 0, 3]


def test_unknown_files_are_named(tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    path.write_text("hello\n")
    with pytest.raises(FormatError, match="Mooncake"):
        open_trace(path)
    with pytest.raises(FormatError, match="readable"):
        open_trace(tmp_path / "missing.jsonl")


# the stored traces ----------------------------------------------------------------------------------------------------
SESSIONS = TRACES / "agentic_weka_cc" / "agentic_cc_traces_compact.jsonl.gz"


def _session_paths(path: Path) -> list[list[np.ndarray[Any, np.dtype[np.int64]]]]:
    """The prompts' block ids of every request in file order, by session; read without any of the simulator's code."""
    found = []
    with gzip.open(path, "rt") as stream:
        for line in stream:
            paths: list[np.ndarray[Any, np.dtype[np.int64]]] = []
            for item in json.loads(line)["requests"]:
                for request in item.get("requests", [item]):
                    head = [paths[request["ref"]][: request["n"]]] if request["ref"] >= 0 else []
                    paths.append(np.concatenate(head + [np.arange(a, a + count) for a, count in request["tail"]]))
            found.append(paths)
    return found


def _reused_blocks(paths: list[np.ndarray[Any, np.dtype[np.int64]]], order: list[int]) -> list[int]:
    """Leading blocks of each prompt that an earlier one in `order` had at the same place."""
    depth_of = np.full(1 + max(int(row.max(initial=0)) for row in paths), -1)
    found = [0] * len(paths)
    for number in order:
        row = paths[number]
        fits = depth_of[row] == np.arange(len(row))
        found[number] = len(row) if fits.all() else int(np.argmin(fits))
        depth_of[row] = np.arange(len(row))
    return found


@pytest.mark.slow
def test_all_coding_sessions_replay() -> None:
    """710 sessions, 49,334 requests, a cache for everything: what each conversation, and each request of it, reuses
    equals a count without any simulator, in the order in which the simulator admitted its requests."""
    if not SESSIONS.is_file():
        pytest.skip("the agentic traces are not here")
    sessions = _session_paths(SESSIONS)
    rules = scheduler(prefix_caching=True, kv_pool_tokens=1 << 33, block_tokens=64, max_running_requests=64)
    pool = Pool(flat_table(64, decode_ms=0.001, token_us=0.0001), rules)
    result = simulate(Deployment(pool), open_trace(SESSIONS, clients=8))
    records = result.records
    assert result.completed_count == 49_334
    assert records is not None
    by_index = np.argsort(records.index)
    hits, admitted = records.hit_blocks[by_index], records.admitted_ns[by_index]
    first, reuse = 0, []
    for paths in sessions:
        mine = slice(first, first + len(paths))
        order = np.lexsort((np.arange(len(paths)), admitted[mine])).tolist()
        counted = _reused_blocks(paths, order)
        assert hits[mine].tolist() == counted
        asked = sum(len(row) for row in paths)
        reuse.append(sum(counted) / asked if asked else 0.0)
        first += len(paths)
    assert first == 49_334
    assert result.block_hit_rate == pytest.approx(int(hits.sum()) / sum(len(row) for s in sessions for row in s))
    assert 0.90 < float(np.median(reuse)) < 1.0


@pytest.mark.slow
def test_memory_does_not_grow_with_the_trace() -> None:
    """The sessions once and three times over, in the same finite pools: the kernel's whole state has the same size."""
    if not SESSIONS.is_file():
        pytest.skip("the agentic traces are not here")
    rules = scheduler(prefix_caching=True, kv_pool_tokens=4_000_000, block_tokens=64, max_running_requests=64)
    pool = Pool(flat_table(64, decode_ms=0.001, token_us=0.0001), rules, replicas_count=2)
    one = open_trace(SESSIONS, clients=16)
    sizes = []
    for times in (1, 3):
        load = replace(
            one, batches=lambda seed, times=times: chain.from_iterable(one.batches(seed) for _ in range(times))
        )
        state, collector = run_kernel(Deployment(pool), load, record=Record.SUMMARY)
        assert collector.requests_count == 49_334 * times
        sizes.append(len(state.m))
    assert sizes[1] == sizes[0]
