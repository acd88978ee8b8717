"""The lever table: its size, its cover of the paper's Table 4, its values per engine and version."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from simcore.anchors.schema import anchor_from
from simcore.cards.layout import Engine
from simcore.errors import InputError, UnknownNameError
from simcore.prediction.predictor import Mode
from simcore.prediction.shapes import EngineOption
from simcore.search.levers import LeverKind, Source, lever, levers
from simcore.search.space import Cluster, Space
from tests import builders
from tests.search_spaces import space

# Rows of Table 4 by the lever that stands for them, transcribed from the paper.
TABLE_4 = {
    "Tensor (TP)": "layout.tensorParallel",
    "Expert (EP)": "layout.expertParallel",
    "Attention data (DP)": "layout.attentionDataParallel",
    "Pipeline (PP)": "layout.pipelineParallel",
    "Decode context (DCP)": "layout.decodeContextParallel",
    "Replicas": "replicas",
    "Disaggregation": "disaggregation.backend",
    "Precision: weights": "weightsDtype",
    "Precision: linear layers": "activationsDtype",
    "Precision: experts": "expertsDtype",
    "Precision: KV": "kvDtype",
    "Backends: attention": "attentionBackend",
    "Backends: sparse top-k": "sparseTopkTokens",
    "Backends: MoE": "moeBackend",
    "Backends: DeepEP": "allToAll",
    "Backends: fused kernels": "fusions",
    "Graph capture": "graphCapture",
    "Collectives": "collectives",
    "Scheduler: running cap": "maxRunningRequests",
    "Scheduler: token budget": "maxBatchedTokens",
    "Scheduler: chunk size": "chunkTokens",
    "Scheduler: KV memory share": "memoryPermille",
    "Speculation: method": "speculation.method",
    "Speculation: depth": "speculation.draftTokens",
    "Memory tiers: host": "kvOffload.hostGibibytes",
    "Memory tiers: prefix cache": "prefixCaching",
    "Load: concurrency": "load.concurrency",
    "Load: arrivals": "load.requestRate",
}


def test_there_are_36_levers_and_they_cover_table_4() -> None:
    assert len(levers()) == 36
    assert set(TABLE_4.values()) <= set(levers())


def test_kinds_follow_section_3_1() -> None:
    """Anchor-defining: precision, attention and MoE implementation, graph capture, speculative method, DCP (5.6)."""
    for name in ("weightsDtype", "kvDtype", "attentionBackend", "moeBackend", "graphCapture", "speculation.method"):
        assert lever(name).kind is LeverKind.ANCHOR_DEFINING, name
    for name in ("layout.tensorParallel", "layout.expertParallel", "replicas", "load.concurrency", "prefixCaching"):
        assert lever(name).kind is LeverKind.TRANSFERABLE, name
    assert lever("layout.decodeContextParallel").kind is LeverKind.ANCHOR_DEFINING


@pytest.mark.parametrize(
    ("name", "engine", "version", "has", "lacks"),
    [
        # operator facts B1: MoRIIO works without its own proxy from 0.33; the old name `mori` was split before 0.23.
        ("disaggregation.backend", Engine.VLLM, "0.33.0", "MoRI", "Mooncake"),
        ("disaggregation.backend", Engine.VLLM, "0.27.1", "NIXL", "MoRI"),
        ("disaggregation.backend", Engine.VLLM, "0.20.2", "none", "NIXL"),
        ("allToAll", Engine.VLLM, "0.33.0", "MoRIHighThroughput", "MoRI"),
        ("allToAll", Engine.SGLANG, "0.5.23", "MoRI", "MoRIHighThroughput"),
        # operator facts B2 and B3: only SGLang chunks by a flag of its own.
        ("chunkTokens", Engine.SGLANG, "0.5.23", 8192, 32768),
        ("chunkTokens", Engine.ATOM, "0.1.4", "engine", 8192),
    ],
)
def test_values_by_engine_and_version(name: str, engine: Engine, version: str, has: object, lacks: object) -> None:
    values = lever(name).values(engine, version)
    assert has in values
    assert lacks not in values


def test_an_unknown_version_gets_no_version_bound_value() -> None:
    assert lever("disaggregation.backend").values(Engine.VLLM, None) == ("none",)


def test_a_lever_that_is_held_says_why_and_does_not_move() -> None:
    here = space()
    for name, one in levers().items():
        if one.held:
            assert here.legal_values[name] == (here.neutral[name],), name
        assert here.neutral[name] in here.legal_values[name] or one.rule in {Source.LOAD, Source.LAYOUT}, name
        assert here.complete({})[name] in here.legal_values[name], name


def test_unknown_levers_and_values_are_refused_with_the_legal_ones() -> None:
    here = space()
    with pytest.raises(UnknownNameError, match=r"layout\.tensorParallel"):
        here.complete({"layout.tensorParalel": 2})
    with pytest.raises(InputError, match="be one of 1, 2"):
        here.complete({"layout.tensorParallel": 16})
    for wrong in (True, 2.0, "2", None, [2], {"a": 1}):
        with pytest.raises(InputError):
            here.complete({"layout.tensorParallel": wrong})


def test_speculation_is_offered_only_with_heads_and_measured_acceptance() -> None:
    """Public case B07: no acceptance, no speculation. Llama-3.1-8B has no MTP heads."""
    assert space(model="Llama-3.1-8B").legal_values["speculation.method"] == ("none",)
    assert "MTP" in space(model="DeepSeek-V4-Pro").legal_values["speculation.method"]


@pytest.mark.parametrize(
    ("dtype", "checks", "offered"),
    [
        ("fp8_e4m3", [{"name": "output", "verdict": "pass", "detail": ""}], ("bf16", "fp8")),
        ("fp8", [{"name": "output", "verdict": "flag", "detail": ""}], ("bf16",)),
        ("fp8", [], ("bf16",)),
        ("bf16", [], ("bf16",)),
    ],
)
def test_fp8_kv_is_offered_only_where_its_outputs_have_passed(dtype: str, checks: list[Any], offered: Any) -> None:
    """Public case A24: as fast as the right numbers, and garbage; `fp8_e4m3` is another word for `fp8`."""
    plain = json.loads(builders.anchor().to_json())
    plain["signature"]["kvDtype"] = dtype
    plain["provenance"]["checks"] = checks
    setting = replace(space(model="Llama-3.1-8B").setting, anchors={"a": anchor_from(plain, "a")}, mode=Mode.ANCHORED)
    cluster = Cluster(gpus_per_node=8, nodes_count=1, gpu_budget_count=1)
    made = Space(setting, EngineOption(Engine.SGLANG), cluster, concurrencies=(1,), objective="decodeThroughputPerGpu")
    assert made.legal_values["kvDtype"] == offered


def test_expert_parallel_values_are_those_the_engine_can_say() -> None:
    """Public case A10: vLLM has EP off or the whole group; SGLang any divisor of TP."""
    vllm = space(model="Qwen3-30B-A3B", engine=Engine.VLLM, gpus=4)
    for layout in vllm.layouts:
        assert layout.expert_parallel in {1, layout.tensor_parallel * layout.data_parallel}
    sglang = space(model="Qwen3-30B-A3B", gpus=4)
    assert {layout.expert_parallel for layout in sglang.layouts if layout.tensor_parallel == 4} == {1, 2, 4}
