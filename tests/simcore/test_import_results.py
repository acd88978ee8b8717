"""Result files of load generators: each tool's definitions and units (public cases E03, E04, E06, E07)."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simcore.errors import FormatError, InputError
from simcore.validate.corpus import parse_corpus
from simcore.validate.importers.definitions import (
    RequestTimes,
    capped_waits_s,
    first_text_s,
    mean_itl_s,
    mean_tpot_s,
    token_weighted_tpot_s,
)
from simcore.validate.importers.read import read_results
from simcore.validate.importers.rows import Deployment, corpus_text

SAID = Deployment(engine="VLLM", model="Llama-3.1-8B", accelerator="MI355X", weights_dtype="bf16", tp=1)


def test_e03_three_things_called_tpot() -> None:
    one = RequestTimes(1.0, 3.0, 101)
    assert one.tpot_s == pytest.approx(0.020)
    short = RequestTimes(0.0, 1.0, 11)  # 10 gaps of 100 ms
    long = RequestTimes(0.0, 10.0, 1001)  # 1,000 gaps of 10 ms
    assert mean_tpot_s([short, long]) == pytest.approx(0.055)
    assert token_weighted_tpot_s([short, long]) == pytest.approx(0.010891, abs=1e-6)  # 11 s over 1,010 gaps
    single = RequestTimes(0.5, 0.5, 1)
    assert single.tpot_s is None
    assert mean_tpot_s([short, long, single]) == pytest.approx(0.055)
    assert mean_tpot_s([single]) is None


def test_e04_chunks_of_several_tokens() -> None:
    times = [0.020 * index for index in range(51)]
    assert mean_itl_s(times) == pytest.approx(0.020)
    assert RequestTimes(0.0, 1.0, 134).tpot_s == pytest.approx(1.0 / 133)  # 7.52 ms, from usage, not from chunks


def test_e06_waiting_for_the_clients_cap() -> None:
    waits = capped_waits_s([0.1 * index for index in range(8)], 0.5, 1)
    assert waits == pytest.approx([0.4 * index for index in range(8)])
    assert np.mean(waits) == pytest.approx(1.400)
    assert np.percentile(waits, 99) == pytest.approx(2.772)
    assert np.mean(waits) + 0.5 == pytest.approx(1.900)
    assert max(capped_waits_s([0.1 * index for index in range(8)], 0.5, 5)) == pytest.approx(0.0)


def test_e07_produced_tokens_and_first_text() -> None:
    assert RequestTimes(0.2, 2.2, 101).tpot_s == pytest.approx(0.020)
    assert first_text_s([(0.9, ""), (2.2, "Hello"), (2.3, " world")]) == 2.2
    assert first_text_s([(0.9, "")]) is None


def _serving(**changes: Any) -> dict[str, Any]:
    return {
        "backend": "vllm",
        "model_id": "Llama-3.1-8B",
        "request_rate": "inf",
        "max_concurrency": 16,
        "duration": 10.0,
        "completed": 40,
        "total_input_tokens": 40 * 1000,
        "total_output_tokens": 40 * 200,
        "mean_ttft_ms": 100.0,
        "mean_tpot_ms": 10.0,
        "mean_itl_ms": 10.0,
        **changes,
    }


def _write(folder: Path, document: Any, name: str = "result.json") -> Path:
    path = folder / name
    text = document if isinstance(document, str) else json.dumps(document)
    path.write_text(text, encoding="utf-8")
    return path


def _one(text: str) -> dict[str, str]:
    return next(csv.DictReader(io.StringIO(text)))


def test_serving_benchmark_summary_becomes_a_row(tmp_path: Path) -> None:
    tool, runs = read_results(_write(tmp_path, _serving()))
    text = corpus_text([(runs[0], SAID, tool)])
    row = parse_corpus(text)[0]
    assert (row.prompt_tokens, row.output_tokens, row.concurrency, row.samples_count) == (1000, 200, 16, 40)
    assert (row.ttft_s, row.tpot_s) == pytest.approx((0.1, 0.01))
    assert row.throughput_tokens_per_s == pytest.approx(800.0)


def test_e06_a_missed_rate_is_a_closed_loop(tmp_path: Path) -> None:
    missed = _serving(
        request_rate=10.0, max_concurrency=1, completed=8, duration=4.0, total_input_tokens=800,
        total_output_tokens=800, mean_ttft_ms=100.0, mean_tpot_ms=400 / 99,
    )  # fmt: skip
    _, runs = read_results(_write(tmp_path, missed))
    assert runs[0].concurrency == 1
    assert "closed loop: 2 of 10 requests/s" in runs[0].notes[0]
    reached = _serving(request_rate=4.0, max_concurrency=None, mean_e2el_ms=2000.0)
    _, runs = read_results(_write(tmp_path, reached))
    assert runs[0].concurrency == 8  # 4 requests/s times 2 s
    assert "open loop" in runs[0].notes[0]


def test_e07_a_length_asked_for_and_not_produced_is_refused(tmp_path: Path) -> None:
    early = _serving(backend="sglang", total_output_tokens=40 * 1024, total_output_tokens_retokenized=40 * 101)
    with pytest.raises(FormatError, match="ignore_eos"):
        read_results(_write(tmp_path, early))
    _, runs = read_results(_write(tmp_path, early | {"total_output_tokens_retokenized": 40 * 1020}))
    assert runs[0].output_tokens == 1024


@pytest.mark.parametrize("wave", [4, 10])
def test_e08_a_cold_opening_wave_is_dropped(tmp_path: Path, wave: int) -> None:
    """The issue's own values at a concurrency of 10; the same with 4. The rest is what a warm engine gives."""
    cold = [40.1 + 17.5 * index / (wave - 1) for index in range(wave)]
    warm = [0.60 + 0.78 * index / 89 for index in range(90)]
    count = wave + 90
    run = _serving(
        max_concurrency=wave, completed=count, total_input_tokens=1000 * count, total_output_tokens=11 * count,
        ttfts=cold + warm, output_lens=[11] * count, itls=[[0.01] * 10] * count, errors=[""] * count,
    )  # fmt: skip
    _, runs = read_results(_write(tmp_path, run))
    assert runs[0].ttft_s == pytest.approx(0.99)  # the mean of 0.60 to 1.38 s
    assert (runs[0].requests_count, runs[0].throughput_tokens_per_s) == (90, None)
    assert "cold engine" in runs[0].notes[0]
    # One slow request elsewhere, or an opening wave that queues for its prefills, is no cold engine.
    for ttfts in ([*warm, 60.0], [0.6 * (1 + index) for index in range(wave)] + warm):
        same = run | {"ttfts": ttfts, **{key: run[key][: len(ttfts)] for key in ("output_lens", "itls", "errors")}}
        _, runs = read_results(_write(tmp_path, same | {"completed": len(ttfts)}))
        assert runs[0].requests_count == len(ttfts)


def test_failed_requests_are_told(tmp_path: Path) -> None:
    _, runs = read_results(_write(tmp_path, _serving(failed=3)))
    assert runs[0].notes == ("3 of 43 requests failed",)


@pytest.mark.parametrize(
    ("changes", "note"),
    [
        ({"num_prompts": 43}, "3 of 43 requests failed"),  # older clients count only what completed
        ({"num_prompts": 40}, None),
        ({"max_concurrency": 512}, "40 requests never fill a concurrency of 512"),
    ],
    ids=str,
)
def test_what_a_run_was_not_is_told(tmp_path: Path, changes: dict[str, Any], note: str | None) -> None:
    _, runs = read_results(_write(tmp_path, _serving(**changes)))
    assert runs[0].notes == (() if note is None else (note,))
    assert runs[0].concurrency == (40 if "max_concurrency" in changes else 16)


def test_failures_of_lists_and_of_other_tools_are_told(tmp_path: Path) -> None:
    lists = {"ttfts": [0.1] * 40 + [0.0], "itls": [[0.01] * 199] * 40 + [[]], "output_lens": [200] * 40 + [0]}
    _, runs = read_results(_write(tmp_path, _serving(errors=[""] * 40 + ["reset"], **lists)))
    assert (runs[0].requests_count, runs[0].notes) == (40, ("1 of 41 requests failed",))
    _, runs = read_results(_write(tmp_path, _aiperf(error_request_count=_metric(25, "requests"))))
    assert "25 of 125 requests failed" in runs[0].notes


@pytest.mark.parametrize(
    "change",
    [{"mean_ttft_ms": 0.1, "mean_tpot_ms": 0.01}, {"mean_ttft_ms": 1e5, "mean_tpot_ms": 1e4}, {"duration": 10_000.0}],
    ids=str,
)
def test_a_unit_that_is_not_what_its_name_says_is_refused(tmp_path: Path, change: dict[str, float]) -> None:
    """4 requests/s x (0.1 + 199 x 0.01) s = 8.4 in flight of 16; a factor of 1,000 is seconds for milliseconds."""
    with pytest.raises(FormatError, match="another unit"):
        read_results(_write(tmp_path, _serving(**change)))


@pytest.mark.parametrize(
    "change",
    [
        {"mean_ttft_ms": 2090.0, "mean_tpot_ms": 0.0},
        {"completed": 2, "ttfts": [2.0, 2.1], "itls": [[], []], "output_lens": [9, 9], "errors": ["", ""]},
    ],
    ids=["means", "lists"],
)
def test_answers_that_were_not_streamed_have_no_ttft(tmp_path: Path, change: dict[str, Any]) -> None:
    with pytest.raises(FormatError, match="not streamed"):
        read_results(_write(tmp_path, _serving(**change)))


def test_runs_in_one_file_are_all_read(tmp_path: Path) -> None:
    """`--append-result` writes one document after the other into one .json; others write a list."""
    two = [_serving(max_concurrency=n) for n in (1, 8)]
    for text in ("\n".join(map(json.dumps, two)), json.dumps(two)):
        _, runs = read_results(_write(tmp_path, text))
        assert [run.concurrency for run in runs] == [1, 8]


def test_what_has_no_one_load_or_no_means_is_refused(tmp_path: Path) -> None:
    for document, message in (
        (_serving(ramp_up_strategy="linear"), "a ramp has no one load"),
        ({key: value for key, value in _serving(p99_tpot_ms=9).items() if key != "mean_tpot_ms"}, "does not convert"),
        ({key: value for key, value in _aiperf().items() if key != "time_to_first_token"}, "not streamed"),
        ({"metadata": {}, "benchmarks": []}, "at least 1"),
    ):
        with pytest.raises(FormatError, match=message):
            read_results(_write(tmp_path, document))


def test_a_model_by_two_names_is_one_and_two_models_are_refused(tmp_path: Path) -> None:
    for called in ("meta-llama/Llama-3.1-8B-Instruct", "/mnt/weights/checkpoint-7"):
        _, runs = read_results(_write(tmp_path, "\ufeff" + json.dumps(_serving(model_id=called))))
        row = _one(corpus_text([(runs[0], SAID, "vllm")]))
        assert row["model"] == "Llama-3.1-8B"
        assert f"the file calls the model {called}" in row["source"]
    _, runs = read_results(_write(tmp_path, _serving(model_id="Qwen/Qwen3-32B")))
    with pytest.raises(InputError, match="Qwen3-32B"):
        corpus_text([(runs[0], SAID, "vllm")])


def test_the_clients_backend_is_not_the_server(tmp_path: Path) -> None:
    """ATOM ships vLLM's client: its files say `vllm`. SGLang's own API is answered by SGLang only."""
    _, runs = read_results(_write(tmp_path, _serving()))
    for engine in ("ATOM", "SGLang"):
        row = _one(corpus_text([(runs[0], replace(SAID, engine=engine), "vllm")]))
        assert (row["engine"], "asked by a client of VLLM" in row["source"]) == (engine, True)
    _, runs = read_results(_write(tmp_path, _serving(backend="sglang")))
    with pytest.raises(InputError, match="engine"):
        corpus_text([(runs[0], SAID, "vllm")])


def test_per_request_lists_win_and_leave_single_tokens_out(tmp_path: Path) -> None:
    detailed = _serving(
        completed=3, total_input_tokens=300, total_output_tokens=1013, mean_tpot_ms=999.0,
        ttfts=[0.1, 0.1, 0.4], output_lens=[11, 1001, 1], itls=[[0.1] * 10, [0.01] * 1000, []], errors=["", "", ""],
    )  # fmt: skip
    _, runs = read_results(_write(tmp_path, detailed))
    assert runs[0].tpot_s == pytest.approx(0.055)
    assert runs[0].ttft_s == pytest.approx(0.2)
    assert "1 single-token requests have no TPOT" in runs[0].notes


def test_e04_speculation_is_noted(tmp_path: Path) -> None:
    _, runs = read_results(_write(tmp_path, _serving(mean_itl_ms=20.0, mean_tpot_ms=20.0 / 2.66)))
    assert runs[0].tpot_s == pytest.approx(0.00752, abs=1e-5)
    assert "2.66 tokens: ITL is not TPOT" in runs[0].notes[-1]


def test_sglang_lines(tmp_path: Path) -> None:
    lines = "\n".join(json.dumps(_serving(backend="sglang", model_id=None, max_concurrency=n)) for n in (1, 8))
    tool, runs = read_results(_write(tmp_path, lines, "sglang.jsonl"))
    assert tool == "vllm"  # one client family, one reader
    assert [run.concurrency for run in runs] == [1, 8]
    assert runs[0].deployment.engine == "SGLang"


def _metric(value: float, unit: str) -> dict[str, Any]:
    return {"unit": unit, "avg": value}


def _aiperf(**changes: Any) -> dict[str, Any]:
    return {
        "aiperf_version": "0.8.0",
        "request_count": _metric(100, "requests"),
        "request_throughput": _metric(2.0, "requests/sec"),
        "request_latency": _metric(4000.0, "ms"),
        "time_to_first_token": _metric(500.0, "ms"),
        "inter_token_latency": _metric(7.5, "ms"),
        "inter_chunk_latency": _metric(20.0, "ms"),
        "output_token_throughput": _metric(900.0, "tokens/sec"),
        "input_sequence_length": _metric(8000.0, "tokens"),
        "output_sequence_length": _metric(450.0, "tokens"),
        "was_cancelled": False,
        "input_config": {"endpoint": {"model_names": ["m"]}, "loadgen": {"concurrency": 8}},
        **changes,
    }


def test_aiperf_summary(tmp_path: Path) -> None:
    tool, runs = read_results(_write(tmp_path, _aiperf()))
    assert tool == "aiperf"
    assert (runs[0].ttft_s, runs[0].tpot_s, runs[0].concurrency) == (0.5, 0.0075, 8)
    assert "ITL is not TPOT" in runs[0].notes[0]
    _, shared = read_results(_write(tmp_path, _aiperf(theoretical_prefix_cache_hit=_metric(93.9, "%"))))
    assert any("share up to 93.9 %" in note for note in shared[0].notes)  # public case E02
    loose = _aiperf(input_config={"endpoint": {"model_names": ["m"]}, "loadgen": {}})
    _, traced = read_results(_write(tmp_path, loose | {"effective_concurrency": _metric(7.9, "requests")}))
    assert traced[0].concurrency == 8
    # One of the public MI355X runs: 8 sessions, 11.0 requests in flight.
    _, nested = read_results(_write(tmp_path, _aiperf(effective_concurrency=_metric(11.0196, "requests"))))
    assert (nested[0].concurrency, "11.0 requests were in flight" in " ".join(nested[0].notes)) == (8, True)
    with pytest.raises(FormatError, match="known unit of time"):
        read_results(_write(tmp_path, _aiperf(time_to_first_token=_metric(1, "fortnights"))))


def test_aiperf_records_skip_warm_up_and_failures(tmp_path: Path) -> None:
    def record(phase: str, tokens: int, request_ms: float, error: str | None = None) -> dict[str, Any]:
        values = {"output_sequence_length": (tokens, "tokens"), "input_sequence_length": (100, "tokens")}
        values |= {"request_latency": (request_ms, "ms"), "time_to_first_token": (200.0, "ms")}
        return {
            "metadata": {
                "benchmark_phase": phase, "was_cancelled": False,
                "request_start_ns": 0, "request_end_ns": int(request_ms * 1e6),
            },
            "metrics": {name: {"value": value, "unit": unit} for name, (value, unit) in values.items()},
            "error": error,
        }  # fmt: skip

    rows = [record("warmup", 9, 9e6), record("profiling", 101, 2200.0), record("profiling", 5, 10.0, "boom")]
    _, runs = read_results(_write(tmp_path, "\n".join(map(json.dumps, rows)), "profile_export.jsonl"))
    assert (runs[0].requests_count, runs[0].tpot_s) == (1, pytest.approx(0.020))


def test_guidellm_needs_its_requests(tmp_path: Path) -> None:
    request = {"time_to_first_token_ms": 1000.0, "request_latency": 3.0, "output_tokens": 101, "prompt_tokens": 50}
    benchmark: dict[str, Any] = {
        "metrics": {"request_concurrency": {"successful": {"mean": 3.9}}},
        "requests": {"successful": [request], "errored": [{}, {}]},
        "duration": 30.0,
    }
    document = {"metadata": {"version": 2}, "benchmarks": [benchmark]}
    tool, runs = read_results(_write(tmp_path, document))
    assert (tool, runs[0].tpot_s, runs[0].concurrency) == ("guidellm", pytest.approx(0.020), 4)
    assert runs[0].notes[0] == "2 of 3 requests failed"
    benchmark["requests"] = {"successful": []}
    with pytest.raises(FormatError, match="weighs by tokens and cannot be converted"):
        read_results(_write(tmp_path, document))


def test_inferencex_is_in_seconds(tmp_path: Path) -> None:
    row = {
        "hw": "mi355x-amds", "conc": 64, "framework": "sglang", "model": "DeepSeek-R1-0528", "precision": "fp8",
        "isl": 1024, "osl": 1024, "tp": 8, "ep": 1, "dp_attention": "false", "mean_ttft": 0.25, "mean_tpot": 0.0125,
        "tput_per_gpu": 999.0, "output_tput_per_gpu": 500.0,
    }  # fmt: skip
    tool, runs = read_results(_write(tmp_path, [row]))
    assert tool == "inferencex"
    with pytest.raises(FormatError, match="milliseconds"):
        read_results(_write(tmp_path, [row | {"mean_ttft": 250.0, "mean_tpot": 12.5, "output_tput_per_gpu": None}]))
    text = corpus_text([(runs[0], Deployment(), tool)])
    assert _one(text)["tpot_ms"] == "12.5000"
    assert _one(text)["throughput_tok_s"] == "4000.000"
    assert (_one(text)["accelerator"], _one(text)["engine"], _one(text)["tp"]) == ("MI355X", "SGLang", "8")


def test_inference_perf_is_in_seconds_and_normalised_time_is_refused(tmp_path: Path) -> None:
    latency: dict[str, Any] = {
        "request_latency": {"mean": 2.0},
        "time_to_first_token": {"mean": 0.2},
        "time_per_output_token": {"mean": 0.018},
    }
    good = {
        "count": 50, "latency": latency, "prompt_len": {"mean": 512.0}, "output_len": {"mean": 101.0},
        "throughput": {"requests_per_sec": 4.0, "output_tokens_per_sec": 404.0},
    }  # fmt: skip
    document = {"successes": good, "failures": {"count": 7}}
    tool, runs = read_results(_write(tmp_path, document))
    assert (tool, runs[0].tpot_s, runs[0].concurrency) == ("inference-perf", 0.018, 8)
    assert runs[0].notes[0] == "7 of 57 requests failed"
    latency["normalized_time_per_output_token"] = latency.pop("time_per_output_token")
    with pytest.raises(FormatError, match="cannot be converted"):
        read_results(_write(tmp_path, document))


def test_what_nobody_says_is_asked_for_and_contradictions_are_refused(tmp_path: Path) -> None:
    tool, runs = read_results(_write(tmp_path, _serving()))
    with pytest.raises(InputError, match="--accelerator"):
        corpus_text([(runs[0], Deployment(tp=1), tool)])
    with pytest.raises(InputError, match=r"the file, which says 'Llama-3\.1-8B'"):
        corpus_text([(runs[0], Deployment(model="Qwen3-8B"), tool)])


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"completed": 0}', "\x00", "[[[[1]]]]"])
def test_hostile_files_get_one_line(tmp_path: Path, text: str) -> None:
    with pytest.raises(FormatError) as caught:
        read_results(_write(tmp_path, text))
    assert "\n" not in str(caught.value)
