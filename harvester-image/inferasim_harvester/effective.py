"""What the engine really runs with: its own report, its metrics' labels, its process arguments, its log (case E10)."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from inferasim_harvester import launch
from inferasim_harvester.launch import Settings
from inferasim_harvester.metrics_page import Sample
from simcore.cards.layout import Engine
from simcore.units import GIB

Path = tuple[str, ...]

# Where each engine's report states a setting: vLLM's VllmConfig (needs its development endpoints), the server arguments
# of SGLang (get_server_info) and of ATOM. A leaf that is missing says nothing.
_REPORT: Final[Mapping[Engine, Mapping[str, Path]]] = {
    Engine.VLLM: {
        "tensorParallel": ("vllm_config", "parallel_config", "tensor_parallel_size"),
        "pipelineParallel": ("vllm_config", "parallel_config", "pipeline_parallel_size"),
        "attentionDataParallel": ("vllm_config", "parallel_config", "data_parallel_size"),
        "expertParallel": ("vllm_config", "parallel_config", "enable_expert_parallel"),
        "prefixCaching": ("vllm_config", "cache_config", "enable_prefix_caching"),
        "kvDtype": ("vllm_config", "cache_config", "cache_dtype"),
    },
    Engine.SGLANG: {
        "tensorParallel": ("tp_size",),
        "pipelineParallel": ("pp_size",),
        "expertParallel": ("ep_size",),
        "kvDtype": ("kv_cache_dtype",),
        "attentionBackend": ("attention_backend",),
        "moeBackend": ("moe_runner_backend",),
    },
    Engine.ATOM: {
        "tensorParallel": ("tensor_parallel_size",),
        "pipelineParallel": ("pipeline_parallel_size",),
        "attentionDataParallel": ("enable_dp_attention",),
        "expertParallel": ("enable_expert_parallel",),
        "prefixCaching": ("enable_prefix_caching",),
        "kvDtype": ("kv_cache_dtype",),
    },
}
# Settings that a report states the other way round.
_INVERTED: Final[Mapping[Engine, Mapping[str, Path]]] = {
    Engine.VLLM: {"graphCapture": ("vllm_config", "model_config", "enforce_eager")},
    Engine.SGLANG: {"graphCapture": ("disable_cuda_graph",), "prefixCaching": ("disable_radix_cache",)},
    Engine.ATOM: {"graphCapture": ("enforce_eager",)},
}
# Where a report holds the drafter, null without one.
_SPECULATION: Final[Mapping[Engine, Path]] = {
    Engine.VLLM: ("vllm_config", "speculative_config"),
    Engine.SGLANG: ("speculative_algorithm",),
    Engine.ATOM: ("method",),
}
# What the weights were loaded as.
_LOADED: Final[Mapping[Engine, Path]] = {
    Engine.VLLM: ("vllm_config", "load_config", "load_format"),
    Engine.SGLANG: ("load_format",),
    Engine.ATOM: ("load_dummy",),
}
_CACHE_LABELS: Final = {"enable_prefix_caching": "prefixCaching", "cache_dtype": "kvDtype"}
"""Labels of vllm:cache_config_info."""

_SIZES: Final = (("vllm_config", "compilation_config", "cudagraph_capture_sizes"), ("cuda_graph_bs_decode",),
                 ("cuda_graph_bs",), ("cudagraph_capture_sizes",))  # fmt: skip
_BUDGET: Final = (("vllm_config", "scheduler_config", "max_num_batched_tokens"), ("chunked_prefill_size",),
                  ("max_num_batched_tokens",))  # fmt: skip
_LONGEST_CHUNK: Final = (("vllm_config", "scheduler_config", "long_prefill_token_threshold"),)
_POOL: Final = (("vllm_config", "cache_config", "kv_cache_size_tokens"), ("max_total_num_tokens",))

# Log lines: (figure, pattern, factor). vLLM v1/worker and v1/core, SGLang model_runner. A GiB is stated as `GB` there.
_LOG_SIZES: Final = re.compile(r"(?:cudagraph_capture_sizes['\"]?\s*[:=]\s*|[Cc]apture cuda graph bs\s*)\[([0-9, ]+)\]")
_LOG_FIGURES: Final = (
    ("weightsBytes", re.compile(r"Model loading took (\d+(?:\.\d+)?) GiB"), GIB),
    ("weightsBytes", re.compile(r"Load weight end\..*?mem usage=(\d+(?:\.\d+)?) GB"), GIB),
    ("graphBytes", re.compile(r"Graph capturing finished in .*?took (\d+(?:\.\d+)?) GiB"), GIB),
    ("graphBytes", re.compile(r"Capture cuda graph end\..*?mem usage=(\d+(?:\.\d+)?) GB"), GIB),
    ("kvPoolTokens", re.compile(r"KV cache size: ([\d,]+) tokens"), 1),
    ("kvPoolTokens", re.compile(r"max_total_num_tokens=(\d+)"), 1),
)
_SPELLINGS: Final = {"fp8": "fp8_e4m3", "bf16": "bfloat16"}
"""Two names of one KV dtype (public case A24)."""


@dataclass
class Effective:
    """The configuration that ran. `seen` says where each setting was read."""

    settings: Settings = field(default_factory=dict)
    seen: dict[str, str] = field(default_factory=dict)
    version: str | None = None
    graph_sizes: tuple[int, ...] = ()
    graph_mode: str | None = None
    """`full` or `piecewise`, where the engine says it."""
    token_budget: int | None = None
    """Most tokens of one step."""
    longest_chunk: int | None = None
    """Most tokens of one prompt in one step, where that is less."""
    pools: dict[str, int] = field(default_factory=dict)
    """KV tokens of one rank by the places that state them."""
    memory: dict[str, int] = field(default_factory=dict)

    @property
    def step_tokens(self) -> int | None:
        """The longest prompt that is computed in one step; None when the engine does not say."""
        known = [limit for limit in (self.token_budget, self.longest_chunk) if limit is not None]
        return min(known) if known else None

    @property
    def kv_pool_tokens(self) -> int | None:
        """The smallest pool that the engine states anywhere; None when it states none."""
        return min(self.pools.values(), default=None)

    def note(self, name: str, value: object, source: str) -> None:
        """Records a setting; a later source wins."""
        self.settings[name] = value
        self.seen[name] = source


def read_effective(
    engine: Engine,
    version: str,
    *,
    argv: Sequence[str] | None,
    report: Mapping[str, Any] | None,
    samples: Sequence[Sample],
    log: str,
    reported_version: str | None = None,
) -> Effective:
    """Everything that can be known of the running engine; its own report outranks its process arguments."""
    found = Effective(version=reported_version)
    if argv is not None:
        for name, value in launch.stated_settings(engine, version, argv).items():
            found.note(name, value, "process arguments")
    _read_labels(engine, samples, found)
    if report is not None:
        _read_report(engine, version, report, found)
    _read_log(log, found)
    return found


def comparable(asked: Settings, found: Effective) -> tuple[Settings, Settings]:
    """(asked, effective) in one spelling, for the check."""
    return ({name: _plain(value) for name, value in asked.items()},
            {name: _plain(value) for name, value in found.settings.items()})  # fmt: skip


def _plain(value: object) -> object:
    return _SPELLINGS.get(value, value) if isinstance(value, str) else value


def _read_labels(engine: Engine, samples: Sequence[Sample], found: Effective) -> None:
    if engine is not Engine.VLLM:
        return
    ranks = {sample.labels.get("engine") for sample in samples if sample.name == "vllm:num_requests_running"}
    if len(ranks) > 1:
        found.note("attentionDataParallel", len(ranks), "metrics labels")
    for sample in samples:
        if sample.name != "vllm:cache_config_info":
            continue
        for label, name in _CACHE_LABELS.items():
            if label in sample.labels and sample.labels[label] not in ("auto", "None"):
                found.note(name, _switch(sample.labels[label]), "metrics labels")
        blocks, size = sample.labels.get("num_gpu_blocks", ""), sample.labels.get("block_size", "")
        if blocks.isdigit() and size.isdigit():
            found.pools["metrics labels"] = int(blocks) * int(size)


def _read_report(engine: Engine, version: str, report: Mapping[str, Any], found: Effective) -> None:
    forms = {name: rule["form"] for name, rule in launch.table(engine, version)["settings"].items()}
    for name, path in _REPORT[engine].items():
        value = _leaf(report, path)
        if value is None or value == "auto":
            continue
        if forms.get(name) == "switch" and isinstance(value, int) and not isinstance(value, bool):
            value = value > 1
        found.note(name, _switch(value), "server report")
    for name, path in _INVERTED[engine].items():
        value = _leaf(report, path)
        if isinstance(value, bool):
            found.note(name, "off" if value else "on", "server report")
    *parents, leaf = _SPECULATION[engine]
    holder = _leaf(report, tuple(parents)) if parents else report
    if isinstance(holder, Mapping) and leaf in holder:
        found.note("speculation", "on" if holder[leaf] else "off", "server report")
    loaded = _leaf(report, _LOADED[engine])
    if loaded is not None:
        found.note("randomWeights", "on" if loaded in (True, "dummy") else "off", "server report")
    if engine is Engine.SGLANG:
        _read_sglang_ranks(report, found)
    if isinstance(report.get("version"), str):
        found.version = str(report["version"])
    sizes = next((value for path in _SIZES if isinstance(value := _leaf(report, path), list)), None)
    if sizes and all(isinstance(size, int) for size in sizes):
        found.graph_sizes = tuple(sorted(set(sizes)))
    mode = _graph_mode(_leaf(report, ("vllm_config", "compilation_config", "cudagraph_mode")))
    if mode == "none":
        found.note("graphCapture", "off", "server report")
    elif mode is not None:
        found.graph_mode = mode
    found.token_budget = _positive(report, _BUDGET) or found.token_budget
    found.longest_chunk = _positive(report, _LONGEST_CHUNK) or found.longest_chunk
    pool = _positive(report, _POOL)
    if pool is not None:
        found.pools["server report"] = pool


def _graph_mode(value: object) -> str | None:
    """The mode of decode steps, from vLLM's CUDAGraphMode: a name, its number, or the pair (decode, other steps)."""
    if isinstance(value, str):
        name = value.upper()
        return "full" if "FULL" in name else "piecewise" if "PIECEWISE" in name else "none" if "NONE" in name else None
    number = value[0] if isinstance(value, list) and value else value
    return {0: "none", 1: "piecewise", 2: "full"}.get(number) if isinstance(number, int) else None


def _read_sglang_ranks(report: Mapping[str, Any], found: Effective) -> None:
    new = report.get("attn_dp_size")
    if isinstance(new, int):
        found.note("attentionDataParallel", new, "server report")
    elif isinstance(report.get("enable_dp_attention"), bool) and isinstance(report.get("dp_size"), int):
        ranks = report["dp_size"] if report["enable_dp_attention"] else 1
        found.note("attentionDataParallel", ranks, "server report")


def _read_log(log: str, found: Effective) -> None:
    sizes = _LOG_SIZES.search(log)
    if sizes and not found.graph_sizes:
        found.graph_sizes = tuple(sorted({int(text) for text in sizes[1].split(",") if text.strip()}))
    for name, pattern, factor in _LOG_FIGURES:
        match = pattern.search(log)
        if match and name not in found.memory:
            found.memory[name] = int(float(match[1].replace(",", "")) * factor)
    if found.memory.get("kvPoolTokens"):
        found.pools["log"] = found.memory["kvPoolTokens"]


def _positive(report: Mapping[str, Any], paths: Sequence[Path]) -> int | None:
    """The first positive count that stands at one of `paths`."""
    return next((v for path in paths if isinstance(v := _leaf(report, path), int) and v > 0), None)


def _leaf(report: Mapping[str, Any], path: Path) -> Any:
    value: Any = report
    for key in path:
        if not isinstance(value, Mapping):
            return None
        value = value.get(key)
    return value


def _switch(value: object) -> object:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return "on" if value.lower() == "true" else "off"
    return value


def parse_report(text: bytes) -> Mapping[str, Any] | None:
    """The engine's JSON report; None when it is none."""
    try:
        report = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return report if isinstance(report, dict) else None
