"""Metrics pages of engines under a perfectly steady load, as a function of the time since the pages were opened."""

from __future__ import annotations

import http.server
import threading
import time
from collections.abc import Callable, Mapping

REQUESTS_PER_S = 10.0
TTFT_S = 0.5
TPOT_S = 0.02
E2E_S = 2.5
PROMPT_TOKENS = 1000.0
OUTPUT_TOKENS = 101.0
IN_FLIGHT = REQUESTS_PER_S * E2E_S
"""By Little's law."""

VLLM_MODEL, SGLANG_MODEL = "Qwen/Qwen3-32B", "Llama-3.1-8B"
"""What the mixes of the tests serve; figures of another model would not count."""

Page = Callable[[float], str]


def histogram(name: str, count: float, mean: float, model: str) -> str:
    """All values alike, in the middle bucket of three."""
    rows = [(mean / 2, 0.0), (mean * 2, count), ("+Inf", count)]
    of = f'model_name="{model}"'
    buckets = "".join(f'{name}_bucket{{{of},le="{bound}"}} {value}\n' for bound, value in rows)
    ends = f"{name}_sum{{{of}}} {count * mean}\n{name}_count{{{of}}} {count}\n"
    return f"# TYPE {name} histogram\n{buckets}{ends}"


def vllm(elapsed_s: float) -> str:
    """A vLLM 0.33 replica."""
    count = REQUESTS_PER_S * elapsed_s
    means = {
        "vllm:time_to_first_token_seconds": TTFT_S,
        "vllm:request_time_per_output_token_seconds": TPOT_S,
        "vllm:e2e_request_latency_seconds": E2E_S,
        "vllm:request_prompt_tokens": PROMPT_TOKENS,
        "vllm:request_generation_tokens": OUTPUT_TOKENS,
    }
    text = "".join(histogram(name, count, mean, VLLM_MODEL) for name, mean in means.items())
    return text + (
        f"# TYPE vllm:generation_tokens_total counter\nvllm:generation_tokens_total {count * OUTPUT_TOKENS}\n"
        f"vllm:prefix_cache_queries_total {count * PROMPT_TOKENS}\nvllm:prefix_cache_hits_total 0\n"
        f"vllm:num_requests_running {IN_FLIGHT}\nvllm:num_requests_waiting 0\nvllm:kv_cache_usage_perc 0.4\n"
    )


def sglang(elapsed_s: float) -> str:
    """An SGLang 0.5 replica."""
    count = REQUESTS_PER_S * elapsed_s
    means = {
        "sglang:time_to_first_token_seconds": TTFT_S,
        "sglang:request_time_per_output_token_seconds": TPOT_S,
        "sglang:e2e_request_latency_seconds": E2E_S,
        "sglang:prompt_tokens_histogram": PROMPT_TOKENS,
        "sglang:generation_tokens_histogram": OUTPUT_TOKENS,
    }
    text = "".join(histogram(name, count, mean, SGLANG_MODEL) for name, mean in means.items())
    return text + (
        f"sglang:generation_tokens_total {count * OUTPUT_TOKENS}\nsglang:prompt_tokens_total {count * PROMPT_TOKENS}\n"
        f"sglang:cached_tokens_total 0\nsglang:num_running_reqs {IN_FLIGHT}\nsglang:num_queue_reqs 0\n"
        "sglang:token_usage 0.2\n"
    )


def atom(elapsed_s: float) -> str:
    """An ATOM 0.1.4 replica: no latency at all."""
    count = REQUESTS_PER_S * elapsed_s
    return (
        f"atom:requests_finished_total {count}\natom:prompt_tokens_total {count * PROMPT_TOKENS}\n"
        f"atom:generation_tokens_total {count * OUTPUT_TOKENS}\natom:requests_running {IN_FLIGHT}\n"
        "atom:requests_waiting 0\natom:kv_cache_usage_ratio 0.3\n"
    )


class Pages:
    """Serves pages by path on a free port of the loopback."""

    def __init__(self, pages: Mapping[str, Page]) -> None:
        opened_s = time.monotonic()

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                page = pages.get(self.path)
                body = page(time.monotonic() - opened_s).encode() if page is not None else b""
                self.send_response(200 if page is not None else 404)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def __enter__(self) -> Pages:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
