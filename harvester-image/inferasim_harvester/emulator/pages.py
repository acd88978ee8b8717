"""What the emulator prints: stream events of each dialect, metrics, server information, GPU metrics."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from simcore.cards.layout import Engine

if TYPE_CHECKING:
    from inferasim_harvester.emulator.scheduler import Sequence
    from inferasim_harvester.emulator.server import Emulator

TEXT = "text/plain; version=0.0.4"
JSON = "application/json"


class EventStream:
    """Server-sent events of one request. `usage`: every chunk of the OpenAI dialect carries the running count."""

    def __init__(self, model: str, prompt_tokens: int, native: bool, *, usage: bool, count_factor: float = 1.0) -> None:
        self.model, self.prompt_tokens, self.native, self.usage = model, prompt_tokens, native, usage
        self.count_factor = count_factor
        self.cached_tokens = 0

    def tokens(self, sequence: Sequence, count: int) -> bytes:
        """One chunk with `count` new tokens."""
        self.cached_tokens = sequence.cached_tokens
        return self._event(" w" * count, sequence.produced_tokens, count)

    def empty(self) -> bytes:
        """A chunk before any token."""
        return self._event("", 0, 0)

    def end(self, sequence: Sequence, *, marked: bool = True) -> bytes:
        """The last usage and the end mark."""
        mark = b"data: [DONE]\n\n" if marked else b""
        if self.native:
            return mark
        closing = {"model": self.model, "choices": [], "usage": self.told(sequence.produced_tokens)}
        return _line(closing) + mark

    def told(self, produced: int) -> dict[str, Any]:
        """The usage as the engine counts it."""
        counted = round(produced * self.count_factor)
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": counted,
            "total_tokens": self.prompt_tokens + counted,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens} if self.cached_tokens else None,
        }

    def _event(self, text: str, produced: int, count: int) -> bytes:
        if self.native:
            counted = round(produced * self.count_factor)
            meta = {
                "prompt_tokens": self.prompt_tokens,
                "completion_tokens": counted,
                "cached_tokens": self.cached_tokens,
            }
            return _line({"text": text, "output_ids": [7] * count, "meta_info": meta})
        chunk: dict[str, Any] = {"model": self.model, "choices": [{"index": 0, "text": text, "finish_reason": None}]}
        if self.usage:
            chunk["usage"] = self.told(produced)
        return _line(chunk)


def whole(stream: EventStream, sequence: Sequence, produced: list[int] | str) -> bytes:
    """The answer in one piece, as for a request that does not stream."""
    if stream.native:
        meta = {"prompt_tokens": stream.prompt_tokens, "completion_tokens": sequence.produced_tokens}
        return json.dumps({"output_ids": produced, "text": "", "meta_info": meta}).encode()
    choice: dict[str, Any] = {"index": 0, "finish_reason": "length"}
    choice |= {"text": produced} if isinstance(produced, str) else {"text": "", "token_ids": produced}
    answer = {"model": stream.model, "choices": [choice], "usage": stream.told(sequence.produced_tokens)}
    return json.dumps(answer).encode()


def _line(event: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(event, separators=(",", ":")).encode() + b"\n\n"


def page(emulator: Emulator, path: str) -> tuple[str, bytes] | None:
    """(content type, body) of an information page, or None."""
    if path == "/health":
        return JSON, b"{}"
    if path == "/v1/models":
        return JSON, json.dumps({"object": "list", "data": [{"id": emulator.model, "object": "model"}]}).encode()
    if path == "/version" and emulator.engine is Engine.VLLM:
        return JSON, json.dumps({"version": emulator.version}).encode()
    if path == "/metrics":
        return TEXT, _spoilt(emulator, _metrics(emulator)).encode()
    if path == "/gpu_metrics":
        return TEXT, _spoilt(emulator, _gpu_metrics(emulator)).encode()
    if path == "/server_info" or (path == "/get_server_info" and emulator.engine is Engine.SGLANG):
        return JSON, json.dumps(_report(emulator)).encode()
    return None


def _report(emulator: Emulator) -> dict[str, object]:
    """The engine's own report, in its own keys; `settings` and then the fault's `reported` replace what is here."""
    told = {**emulator.settings, **emulator.faults.reported}
    sizes = list(emulator.law.graph_sizes)
    if emulator.engine is Engine.VLLM:
        parts: dict[str, dict[str, object]] = {
            "parallel_config": {
                "tensor_parallel_size": 1,
                "pipeline_parallel_size": 1,
                "data_parallel_size": 1,
                "enable_expert_parallel": False,
            },
            "cache_config": {
                "enable_prefix_caching": False,
                "cache_dtype": "auto",
                "kv_cache_size_tokens": emulator.kv_pool_tokens,
            },
            "model_config": {"enforce_eager": False},
            "load_config": {"load_format": "auto"},
            "compilation_config": {"cudagraph_capture_sizes": sizes, "cudagraph_mode": "FULL_AND_PIECEWISE"},
            "scheduler_config": {"max_num_batched_tokens": emulator.token_budget},
        }
        known = {name: {key: told.get(key, value) for key, value in part.items()} for name, part in parts.items()}
        return {"vllm_config": {**known, "speculative_config": told.get("speculative_config")}}
    if emulator.engine is Engine.SGLANG:
        base = {
            "tp_size": 1, "pp_size": 1, "speculative_algorithm": None, "load_format": "auto", "ep_size": 1,
            "dp_size": 1, "enable_dp_attention": False, "disable_radix_cache": True,
            "disable_cuda_graph": False, "cuda_graph_bs": sizes, "chunked_prefill_size": emulator.token_budget,
            "max_total_num_tokens": emulator.kv_pool_tokens, "version": emulator.version,
        }  # fmt: skip
        return {**base, **told}
    atom = {
        "tensor_parallel_size": 1, "pipeline_parallel_size": 1, "method": None, "load_dummy": False,
        "enable_dp_attention": False, "enable_expert_parallel": False,
        "enable_prefix_caching": False, "enforce_eager": False, "cudagraph_capture_sizes": sizes,
        "max_num_batched_tokens": emulator.token_budget, "version": emulator.version,
    }  # fmt: skip
    return {**atom, **told}


def _metrics(emulator: Emulator) -> str:
    totals, scheduler = emulator.scheduler.totals, emulator.scheduler
    if emulator.engine is Engine.SGLANG:
        rows = {
            "sglang:num_running_reqs": len(scheduler.running),
            "sglang:num_queue_reqs": len(scheduler.waiting),
            "sglang:prompt_tokens_total": totals.queried_tokens,
            "sglang:cached_tokens_total": totals.hit_tokens,
            "sglang:generation_tokens_total": totals.generation_tokens,
            "sglang:e2e_request_latency_seconds_sum": totals.e2e_s,
            "sglang:e2e_request_latency_seconds_count": totals.requests,
        }
        return _rows(rows, {"model_name": emulator.model})
    if emulator.engine is Engine.ATOM:
        rows = {
            "atom:requests_running": len(scheduler.running),
            "atom:requests_waiting": len(scheduler.waiting),
            "atom:prefix_cache_full_tokens_total": totals.queried_tokens,
            "atom:prefix_cache_cached_tokens_total": totals.hit_tokens,
            "atom:generation_tokens_total": totals.generation_tokens,
        }
        return _rows(rows, {})
    rows = {
        "vllm:num_requests_running": len(scheduler.running),
        "vllm:num_requests_waiting": len(scheduler.waiting),
        "vllm:prefix_cache_queries_total": totals.queried_tokens,
        "vllm:prefix_cache_hits_total": totals.hit_tokens,
        "vllm:generation_tokens_total": totals.generation_tokens,
        "vllm:num_preemptions_total": 0,
        "vllm:request_prefill_time_seconds_sum": totals.prefill_s,
        "vllm:request_prefill_time_seconds_count": totals.requests,
        "vllm:request_queue_time_seconds_sum": totals.queue_s,
        "vllm:request_queue_time_seconds_count": totals.requests,
    }
    labels = {"model_name": emulator.model, "engine": "0"}
    sums = {
        "vllm:time_to_first_token_seconds": totals.ttft_s,
        "vllm:request_time_per_output_token_seconds": totals.tpot_s,
        "vllm:e2e_request_latency_seconds": totals.e2e_s,
        "vllm:request_prompt_tokens": totals.prompt_tokens,
        "vllm:request_generation_tokens": totals.finished_tokens,
    }
    config = {"block_size": 16, "num_gpu_blocks": emulator.kv_pool_tokens // 16, "cache_dtype": "auto"}
    histograms = "".join(_histogram(name, total, totals.requests, labels) for name, total in sums.items())
    return (
        _rows(rows, labels) + histograms + _rows({"vllm:cache_config_info": 1}, {k: str(v) for k, v in config.items()})
    )


def _spoilt(emulator: Emulator, text: str) -> str:
    if not emulator.faults.metrics_are_nan:
        return text
    return "".join(f"{line.rpartition(' ')[0]} NaN\n" for line in text.splitlines())


def _gpu_metrics(emulator: Emulator) -> str:
    after = emulator.faults.throttled_after_steps
    steps = emulator.scheduler.totals.steps
    throttled = max(0, steps - after) if after is not None else 0
    if emulator.faults.throttle_counters_run_back:
        throttled = 10_000_000 - steps
    counters = {
        "current_accumulated_counter": steps,  # of all samples: grows whether anything is throttled or not
        "processor_hot_residency_accumulated": throttled,
        "ppt_residency_accumulated": 0,
        "vr_thermal_residency_accumulated": 1.8446744073709552e19,  # unsupported
        "low_utilization_accumulated": steps,
    }
    rows = {f"amd_gpu_violation_{name}": float(value) for name, value in counters.items()}
    return _rows({**rows, "amd_gpu_gfx_activity": 0.0}, {"gpu_id": "0"})


def _histogram(name: str, total: float, count: int, labels: dict[str, str]) -> str:
    """A histogram of one bucket: its mean is exact, of its quantiles it says nothing."""
    ends = _rows({f"{name}_sum": total, f"{name}_count": count}, labels)
    return _rows({f"{name}_bucket": count}, {**labels, "le": "+Inf"}) + ends


def _rows(rows: dict[str, float], labels: dict[str, str]) -> str:
    text = ",".join(f'{name}="{value}"' for name, value in labels.items())
    shown = "{" + text + "}" if text else ""
    return "".join(f"{name}{shown} {value}\n" for name, value in rows.items())
