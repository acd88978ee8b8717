"""One reader per load generator. Each knows how its tool defines TPOT and in which unit it writes."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import replace

from simcore.units import MILLI
from simcore.validate.importers.definitions import RequestTimes
from simcore.validate.importers.fields import Node
from simcore.validate.importers.rows import (
    Deployment,
    Load,
    Measured,
    failure_note,
    from_requests,
    load_of,
    not_streamed,
)

PRODUCED_FRAC = 0.9
"""SGLang counts the tokens it asked for; far fewer in the text it received mean an early stop (public case E07)."""

BATCHED_CHUNKS_RATIO = 1.3
"""Chunk gaps this much longer than TPOT carry several tokens (speculation, buffering): public case E04."""


def read_serving_benchmark(document: Node) -> list[Measured]:
    """`vllm bench serve`, SGLang's bench_serving and ATOM's copy of the former: milliseconds; TPOT per request.

    Per-request lists, when the run kept them, replace the summary. `request_rate` is a number or "inf".
    """
    if document.has("ramp_up_strategy"):
        raise document.get("ramp_up_strategy").refuse("be absent", "a ramp has no one load that its means stand for")
    completed = document.get("completed").count()
    duration_s = document.get("duration").positive()
    load = _serving_load(document, completed, duration_s)
    deployment = Deployment(engine=_serving_engine(document), model=document.get("model_id").text())
    prompt_tokens = document.get("total_input_tokens").positive() / completed
    failed = _serving_failures(document, completed)
    notes = (
        load.notes
        + failure_note(failed, completed + failed)
        + _chunk_note(document.get("mean_itl_ms").optional(), document.get("mean_tpot_ms").optional())
    )
    produced = document.get("total_output_tokens").positive()
    received = document.get("total_output_tokens_retokenized")
    if received.value is not None and received.number() < PRODUCED_FRAC * produced:
        raise received.refuse(
            f"be near total_output_tokens ({produced:g}), by which the TPOT was divided",
            "the server stopped before the length that was asked for: run with ignore_eos",
        )
    if document.has("itls") and document.has("ttfts") and document.has("output_lens"):
        measured = from_requests(
            _serving_requests(document),
            prompt_tokens=prompt_tokens,
            concurrency=load.concurrency,
            duration_s=duration_s,
            where=document.where,
        )
        return [_with(measured, deployment, (*measured.notes, *notes))]
    tpot_ms = document.get("mean_tpot_ms").mean()
    ttft_ms = document.get("mean_ttft_ms").positive()
    if tpot_ms == 0 and produced > completed:
        raise not_streamed(document.where)
    return [
        Measured(
            prompt_tokens=prompt_tokens,
            output_tokens=produced / completed,
            concurrency=load.concurrency,
            ttft_s=ttft_ms * MILLI,
            tpot_s=tpot_ms * MILLI if produced > completed else None,
            throughput_tokens_per_s=produced / duration_s,
            requests_count=completed,
            deployment=deployment,
            notes=notes,
        )
    ]


def _serving_failures(document: Node, completed: int) -> float:
    """Requests that failed: as counted, else by the error list, else what is missing of those that were asked for."""
    if document.has("failed"):
        return document.get("failed").number()
    if document.has("errors"):
        return sum(bool(error.value) for error in document.get("errors").items())
    asked = document.get("num_prompts").optional()
    return 0 if asked is None else max(asked - completed, 0)


def _serving_load(document: Node, completed: int, duration_s: float) -> Load:
    rate = document.get("request_rate")
    requested = None if rate.value in (None, "inf", "Infinity", float("inf")) else rate.positive()
    cap = document.get("max_concurrency")
    latency_ms = next(
        (document.get(name).number() for name in ("mean_e2el_ms", "mean_e2e_latency_ms") if document.has(name)), None
    )
    if latency_ms is None:
        tokens = document.get("total_output_tokens").positive() / completed
        latency_ms = document.get("mean_ttft_ms").mean() + (tokens - 1) * document.get("mean_tpot_ms").mean()
    return load_of(
        requested_requests_per_s=requested,
        achieved_requests_per_s=completed / duration_s,
        cap=None if cap.value is None else cap.count(),
        mean_request_s=latency_ms * MILLI,
        where=document.where,
        requests_count=completed + int(_serving_failures(document, completed)),
    )


def _serving_engine(document: Node) -> str | None:
    backend = (document.get("backend").text() or "").lower()
    return next(
        (name for key, name in (("sglang", "SGLang"), ("vllm", "VLLM"), ("atom", "ATOM")) if key in backend), None
    )


def _serving_requests(document: Node) -> list[RequestTimes]:
    ttfts, gaps, produced = (document.get(name).items() for name in ("ttfts", "itls", "output_lens"))
    if not len(ttfts) == len(gaps) == len(produced):
        raise document.refuse("hold as many `ttfts` as `itls` and `output_lens`")
    errors = document.get("errors").items() if document.has("errors") else [Node("", document.where)] * len(ttfts)
    requests = []
    for ttft, itls, tokens, error in zip(ttfts, gaps, produced, errors, strict=True):
        if error.value or not tokens.number():
            continue
        ttft_s = ttft.number()
        requests.append(RequestTimes(ttft_s, ttft_s + sum(gap.number() for gap in itls.items()), tokens.count()))
    return requests


def _chunk_note(itl_ms: float | None, tpot_ms: float | None) -> tuple[str, ...]:
    if itl_ms and tpot_ms and itl_ms > BATCHED_CHUNKS_RATIO * tpot_ms:
        return (f"chunks carry about {itl_ms / tpot_ms:.2f} tokens: ITL is not TPOT",)
    return ()


def read_aiperf_summary(document: Node) -> list[Measured]:
    """AIPerf's profile_export_aiperf.json: milliseconds; its inter-token latency is our TPOT, per request."""
    load = document.get("input_config").get("loadgen")
    models = document.get("input_config").get("endpoint").get("model_names").items()
    count = document.get("request_count").get("avg").count()
    latency_s = _aiperf(document, "request_latency")
    rate = load.get("request_rate")
    cap = load.get("concurrency")
    if rate.value is None and cap.value is None and document.has("effective_concurrency"):
        mean_in_flight = document.get("effective_concurrency").get("avg").positive()
        driven = Load(max(round(mean_in_flight), 1), ("concurrency is AIPerf's mean in flight",))
    else:
        driven = load_of(
            requested_requests_per_s=None if rate.value is None else rate.positive(),
            achieved_requests_per_s=document.get("request_throughput").get("avg").positive(),
            cap=None if cap.value is None else cap.count(),
            mean_request_s=latency_s,
            where=document.where,
            requests_count=count,
        )
    chunk_ms = (
        document.get("inter_chunk_latency").get("avg").optional() if document.has("inter_chunk_latency") else None
    )
    if not document.has("time_to_first_token"):
        hint = "the answers were not streamed: measure with streaming on"
        raise document.get("time_to_first_token").refuse("be given", hint)
    has_gaps = document.has("inter_token_latency")
    tpot_s = _aiperf(document, "inter_token_latency") if has_gaps else None
    notes = driven.notes + _chunk_note(chunk_ms, tpot_s / MILLI if tpot_s else None)
    if document.has("effective_concurrency"):
        in_flight = document.get("effective_concurrency").get("avg").number()
        if in_flight > MOST_IN_FLIGHT_RATIO * driven.concurrency:
            notes += (f"{in_flight:.1f} requests were in flight on average: clients keep several open",)
    if document.has("error_request_count"):
        failed = document.get("error_request_count").get("avg").number()
        notes += failure_note(failed, count + failed)
    if document.get("was_cancelled").value:
        notes = (*notes, "the run was cancelled before its end")
    if document.has("theoretical_prefix_cache_hit"):
        notes += _prefix_note(document.get("theoretical_prefix_cache_hit").get("avg").number())
    throughput = document.get("output_token_throughput")
    return [
        Measured(
            prompt_tokens=document.get("input_sequence_length").get("avg").positive(),
            output_tokens=document.get("output_sequence_length").get("avg").positive(),
            concurrency=driven.concurrency,
            ttft_s=_aiperf(document, "time_to_first_token"),
            tpot_s=tpot_s,
            throughput_tokens_per_s=throughput.get("avg").positive() if throughput.value else None,
            requests_count=count,
            deployment=Deployment(model=models[0].text() if models else None),
            notes=notes,
        )
    ]


def _prefix_note(shared_percent: float) -> tuple[str, ...]:
    """Public case E02: above 1 % of hits a point stands for other work than its prompt length says."""
    if shared_percent <= MOST_PREFIX_PERCENT:
        return ()
    return (f"prompts share up to {shared_percent:.1f} % of their tokens: no anchor unless prefix caching was off",)


MOST_PREFIX_PERCENT = 1.0
MOST_IN_FLIGHT_RATIO = 1.1
"""Agentic sessions open subagents' requests beside their own: more are in flight than there are clients."""
_AIPERF_SECONDS = {"ms": MILLI, "sec": 1.0, "s": 1.0, "us": 1e-6, "ns": 1e-9}


def _aiperf(document: Node, name: str, field: str = "avg") -> float:
    """Seconds of one metric object, whatever unit it states."""
    metric = document.get(name)
    unit = metric.get("unit")
    if unit.value not in _AIPERF_SECONDS:
        raise unit.refuse("be a known unit of time", ", ".join(_AIPERF_SECONDS))
    return metric.get(field).number() * _AIPERF_SECONDS[unit.value]


def read_aiperf_records(lines: list[Node]) -> list[Measured]:
    """AIPerf's profile_export.jsonl, one record per request: warm-up, cancelled and failed ones are left out."""
    requests, prompts, starts, ends = [], [], [], []
    failed = 0
    for line in lines:
        metadata, metrics = line.get("metadata"), line.get("metrics")
        if metadata.get("benchmark_phase").value not in (None, "profiling") or metadata.get("was_cancelled").value:
            continue
        if (
            line.get("error").value
            or not metrics.has("output_sequence_length")
            or not metrics.has("time_to_first_token")
        ):
            failed += 1
            continue
        request_s = _aiperf(metrics, "request_latency", "value")
        produced = metrics.get("output_sequence_length").get("value").count()
        request = RequestTimes(_aiperf(metrics, "time_to_first_token", "value"), request_s, produced)
        starts.append(metadata.get("request_start_ns").number())
        requests.append((starts[-1], request))
        prompts.append(metrics.get("input_sequence_length").get("value").number())
        ends.append(metadata.get("request_end_ns").number())
    if not requests:
        raise lines[0].refuse("hold at least one profiled request that succeeded")
    duration_s = (max(ends) - min(starts)) * 1e-9
    in_flight = max(round(sum(request.request_s for _, request in requests) / duration_s), 1) if duration_s > 0 else 1
    measured = from_requests(
        [request for _, request in sorted(requests, key=lambda sent: sent[0])],
        prompt_tokens=statistics.fmean(prompts),
        concurrency=in_flight,
        duration_s=duration_s or None,
        where=lines[0].where,
    )
    failures = failure_note(failed, failed + len(requests))
    return [_with(measured, Deployment(), (*measured.notes, *failures, "concurrency is the mean in flight"))]


def read_guidellm(document: Node) -> list[Measured]:
    """GuideLLM: its TPOT divides by all tokens and its means weigh by tokens, so only per-request records convert.

    Latencies are seconds, token times milliseconds. Refuses runs saved without requests (public case E03).
    """
    found = []
    for benchmark in document.get("benchmarks").items():
        requests = benchmark.get("requests")
        listed = requests.get("successful") if requests.value is not None else requests
        if not listed.value:
            raise listed.refuse(
                "hold the requests",
                "GuideLLM's summary weighs by tokens and cannot be converted; save the run with its requests",
            )
        records = sorted(listed.items(), key=lambda record: record.get("request_start_time").optional() or 0.0)
        times = [
            RequestTimes(
                record.get("time_to_first_token_ms").number() * MILLI,
                record.get("request_latency").positive(),
                record.get("output_tokens").count(),
            )
            for record in records
        ]
        metrics = benchmark.get("metrics")
        concurrency = metrics.get("request_concurrency").get("successful").get("mean").positive()
        duration = benchmark.get("duration")
        measured = from_requests(
            times,
            prompt_tokens=statistics.fmean(record.get("prompt_tokens").number() for record in records),
            concurrency=max(round(concurrency), 1),
            duration_s=duration.positive() if duration.value is not None else None,
            where=benchmark.where,
        )
        failed = len(requests.get("errored").items()) if requests.has("errored") else 0
        notes = (*measured.notes, *failure_note(failed, failed + len(records)), "concurrency is GuideLLM's mean")
        found.append(_with(measured, Deployment(), notes))
    return found


MOST_TPOT_S = 5.0
"""No GPU engine that somebody benchmarks takes that long for a token."""


def read_inferencex(document: Node) -> list[Measured]:
    """InferenceX aggregate rows: seconds (the `_ms` is dropped after dividing); throughput per GPU."""
    rows = document.items() if isinstance(document.value, list) else [document]
    return [_inferencex_row(row) for row in rows]


def _inferencex_row(row: Node) -> Measured:
    metrics = row.get("metrics") if row.has("metrics") else row
    gpus = row.get("tp").count() * (row.get("pp").count() if row.has("pp") else 1)
    is_split = bool(row.get("disagg").value) or bool(row.get("is_multinode").value)
    output = metrics.get("output_tput_per_gpu").optional()
    tpot_s = metrics.get("mean_tpot").mean()
    if tpot_s > MOST_TPOT_S:
        raise metrics.get("mean_tpot").refuse(f"be seconds per token, at most {MOST_TPOT_S:g}", "milliseconds?")
    notes = ("output throughput is per decode GPU of split pools and was left out",) if is_split else ()
    is_attention_dp = str(row.get("dp_attention").value).lower() in ("true", "1")
    return Measured(
        prompt_tokens=row.get("isl").positive(),
        output_tokens=row.get("osl").positive(),
        concurrency=row.get("conc").count(),
        ttft_s=metrics.get("mean_ttft").positive(),
        tpot_s=tpot_s or None,
        throughput_tokens_per_s=None if output is None or is_split else output * gpus,
        requests_count=1,
        deployment=Deployment(
            engine=_inferencex_engine(row),
            model=row.get("model").text(),
            accelerator=(row.get("hw").text() or "").split("-")[0].upper() or None,
            weights_dtype=row.get("precision").text(),
            tp=row.get("tp").count(),
            pp=row.get("pp").count() if row.has("pp") else 1,
            ep=row.get("ep").count() if row.has("ep") else 1,
            attention_dp=row.get("tp").count() if is_attention_dp else 1,
        ),
        notes=notes,
    )


def _inferencex_engine(row: Node) -> str | None:
    name = (row.get("framework").text() or "").lower()
    return next(
        (engine for key, engine in (("sglang", "SGLang"), ("vllm", "VLLM"), ("atom", "ATOM")) if key in name), None
    )


def read_inference_perf(document: Node) -> list[Measured]:
    """inference-perf's summary_lifecycle_metrics.json: seconds. Normalised time per token (E2E/n) is not TPOT."""
    good = document.get("successes")
    count = good.get("count").count()
    failed = document.get("failures").get("count").optional() or 0
    latency, throughput = good.get("latency"), good.get("throughput")
    tpot = latency.get("time_per_output_token")
    if tpot.value is None:
        raise tpot.refuse(
            "be given", "`normalized_time_per_output_token` divides by all tokens and cannot be converted"
        )
    request_s = latency.get("request_latency").get("mean").positive()
    rate = throughput.get("requests_per_sec").positive()
    output = throughput.get("output_tokens_per_sec")
    return [
        Measured(
            prompt_tokens=good.get("prompt_len").get("mean").positive(),
            output_tokens=good.get("output_len").get("mean").positive(),
            concurrency=max(round(rate * request_s), 1),
            ttft_s=latency.get("time_to_first_token").get("mean").positive(),
            tpot_s=tpot.get("mean").number() or None,
            throughput_tokens_per_s=output.positive() if output.value is not None else None,
            requests_count=count,
            notes=(*failure_note(failed, count + failed), "concurrency is the mean in flight"),
        )
    ]


def _with(measured: Measured, deployment: Deployment, notes: tuple[str, ...]) -> Measured:
    return replace(measured, deployment=deployment, notes=notes)


Reader = Callable[[Node], list[Measured]]
READERS: dict[str, Reader] = {
    "aiperf": read_aiperf_summary,
    "guidellm": read_guidellm,
    "vllm": read_serving_benchmark,
    "sglang": read_serving_benchmark,
    "atom": read_serving_benchmark,
    "inferencex": read_inferencex,
    "inference-perf": read_inference_perf,
}
"""Tools by the name the user may give; `detect` tells them apart by their documents."""


def _holds_metrics(benchmarks: object) -> bool:
    return isinstance(benchmarks, list) and all(isinstance(one, dict) and "metrics" in one for one in benchmarks)


def detect(document: Node) -> str | None:
    """The tool that wrote `document`, or None."""
    value = document.value
    first = value[0] if isinstance(value, list) and value else value
    if not isinstance(first, dict):
        return None
    keys = set(first)
    if {"aiperf_version", "input_config"} <= keys:
        return "aiperf"
    if "benchmarks" in keys and ({"metadata", "config", "args"} & keys or _holds_metrics(first["benchmarks"])):
        return "guidellm"
    if {"successes", "failures"} <= keys:
        return "inference-perf"
    if {"hw", "conc", "framework"} <= keys:
        return "inferencex"
    if {"completed", "duration", "total_output_tokens"} <= keys:
        return "vllm"
    return None
