"""Everything that reads what others wrote: how it is called, what it may refuse with, and a legal example of each."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from inferasim_harvester import effective, metrics_page
from inferasim_harvester import spec as harvester_spec
from inferasim_operator import packing
from inferasim_operator.api.v1alpha1.anchorharvest import AnchorHarvest
from inferasim_operator.api.v1alpha1.deploymentmix import DeploymentMix
from inferasim_operator.api.v1alpha1.servingplan import ServingPlan
from inferasim_operator.cli.check import check_document
from inferasim_operator.cli.documents import load_documents
from inferasim_operator.cli.render import render_document
from inferasim_operator.engine.actions import ObjectKey
from inferasim_operator.engine.clock import Clock
from inferasim_operator.engine.kind import Context, Kind
from inferasim_operator.engine.reconcile import Reconciler
from inferasim_operator.kinds.anchorharvest import observe as harvest_observe
from inferasim_operator.kinds.anchorharvest import plan as harvest_plan
from inferasim_operator.kinds.anchorharvest import render as harvest_render
from inferasim_operator.kinds.deploymentmix import observe as mix_observe
from inferasim_operator.kinds.deploymentmix import plan as mix_plan
from inferasim_operator.kinds.servingplan import observe as plan_observe
from inferasim_operator.kinds.servingplan import plan as plan_plan
from inferasim_operator.kinds.servingplan.render import read_result
from inferasim_operator.live.prometheus import scrapes
from inferasim_operator.live.scrape import parse_scrape
from simcore.agent.proposals import read_plan
from simcore.anchors.schema import parse_anchor
from simcore.cards.hf import model_card_from_config
from simcore.data.acceptance import parse_acceptance
from simcore.des.workload.trace import open_trace
from simcore.errors import InferasimError
from simcore.laws.routing_files import read_recording, read_table
from simcore.prediction.scenario import load_scenario
from simcore.search.ledger import documents_of
from simcore.validate.corpus import parse_corpus
from simcore.validate.importers.read import read_results
from tests import builders
from tests.fake_cluster import FakeCluster

ROOT = Path(__file__).parents[2]
CORPUS = Path(__file__).with_name("corpus")


@dataclass(frozen=True)
class Target:
    """One reader. `documents` are examples of what it reads as JSON, `texts` those that are mutated as bytes."""

    read: Callable[[bytes], object]
    refuses: tuple[type[Exception], ...] = (InferasimError,)
    documents: tuple[Any, ...] = ()
    texts: tuple[bytes, ...] = field(default=())

    @property
    def seeds(self) -> tuple[bytes, ...]:
        return (*self.texts, *(json.dumps(document).encode() for document in self.documents))


def _text(data: bytes) -> str:
    """As a reader gets it: bytes that are no text never get that far, lone surrogates (escaped in JSON) do."""
    try:
        return data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return data.decode("utf-8", "replace")


def _in_file(data: bytes, read: Callable[[Path], object], name: str) -> object:
    with tempfile.TemporaryDirectory(prefix="inferasim-fuzz-") as folder:
        path = Path(folder) / name
        path.write_bytes(data)
        return read(path)


def _trace(path: Path) -> int:
    workload = open_trace(path, clients=4)
    return sum(1 for _ in workload.batches(0))


def _object(raw: Any) -> Any:
    """A document as far as it is JSON at all; what is none never reaches these readers."""
    try:
        return json.loads(_text(raw))
    except (ValueError, RecursionError):
        return {}


def _mapping(raw: bytes) -> dict[str, Any]:
    found = _object(raw)
    return found if isinstance(found, dict) else {}


def _yaml(path: str) -> Any:
    return yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))


CONFIG: Mapping[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "hidden_size": 7168, "vocab_size": 129280,
    "num_hidden_layers": 61, "num_attention_heads": 128, "num_key_value_heads": 128, "intermediate_size": 18432,
    "moe_intermediate_size": 2048, "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8,
    "first_k_dense_replace": 3, "moe_layer_freq": 1, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64, "v_head_dim": 128, "torch_dtype": "bfloat16", "tie_word_embeddings": False,
    "max_position_embeddings": 163840,
    "quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]},
}  # fmt: skip
SERVING = {
    "backend": "vllm", "model_id": "Llama-3.1-8B", "request_rate": "inf", "max_concurrency": 16, "duration": 10.0,
    "completed": 160, "total_input_tokens": 163840, "total_output_tokens": 16384, "mean_ttft_ms": 100.0,
    "mean_tpot_ms": 9.0, "mean_itl_ms": 9.0, "output_throughput": 1638.4, "request_throughput": 16.0,
    "input_lens": [1024, 1024], "output_lens": [128, 128], "ttfts": [0.1, 0.1], "itls": [[0.01], [0.01]],
}  # fmt: skip
SCENARIO = {
    "model": "Llama-3.1-8B", "engine": {"name": "SGLang", "version": "0.5.19"}, "accelerator": "MI355X",
    "layout": {"tensorParallel": 1}, "mode": "simulate", "load": {"concurrency": 8, "requests": 64}, "replicas": 2,
    "workload": {"synthetic": {"promptTokens": {"mean": 512}, "outputTokens": {"mean": 128}}},
}  # fmt: skip
PAGE = (
    b"# HELP vllm:num_requests_running x\n# TYPE vllm:num_requests_running gauge\n"
    b'vllm:num_requests_running{engine="0",model_name="m\\"x"} 3.0\n'
    b"# TYPE vllm:time_to_first_token_seconds histogram\n"
    b'vllm:time_to_first_token_seconds_bucket{le="0.1"} 1\nvllm:time_to_first_token_seconds_bucket{le="+Inf"} 2\n'
    b"vllm:time_to_first_token_seconds_sum 0.3\nvllm:time_to_first_token_seconds_count 2\n"
)
RANGE = {
    "values": [{"metric": {"__name__": "vllm:num_requests_running", "pod": "a"}, "values": [[1.0, "2"], [2.0, "3"]]}],
    "clocks": [{"metric": {"pod": "a"}, "values": [[1.0, "1.0"], [2.0, "2.0"]]}],
}


def _pass(kind: Kind[Any], raw: bytes, *others: Mapping[str, Any]) -> None:
    """One pass over an object whose spec and status are hostile: never an internal error, schema or not."""
    given = _mapping(raw)
    api, name = kind.resource.api_version, kind.resource.kind
    live = {"apiVersion": api, "kind": name, "metadata": {"name": "a", "namespace": "default", "generation": 1}}
    live |= {key: given[key] for key in ("spec", "status") if isinstance(given.get(key), dict)}
    cluster = FakeCluster({"spec": {}, **live}, *others)
    Reconciler(kind, Context(cluster), Clock()).run(ObjectKey("default", "a"))
    said = [c["message"] for c in cluster.get(api, name, "default", "a").get("status", {}).get("conditions", ())]
    if any("internal error" in message for message in said):
        raise AssertionError(said)


_HARVEST: Kind[Any] = Kind(AnchorHarvest.resource, harvest_observe.observe, harvest_plan.plan)
_PLAN: Kind[Any] = Kind(ServingPlan.resource, plan_observe.observe, plan_plan.plan)
_MIX: Kind[Any] = Kind(DeploymentMix.resource, mix_observe.observe, mix_plan.plan)


def _anchor_map(raw: bytes) -> None:
    """A plan beside an anchor and a `config.json` that others wrote."""
    hostile = builders.anchor_config_map("x") | {"data": {"anchor.json": _text(raw), "config.json": _text(raw)}}
    plan = builders.serving_plan(model={"configMap": {"name": "x"}})
    _pass(_PLAN, json.dumps({"spec": plan["spec"]}).encode(), hostile)


@cache
def targets() -> dict[str, Target]:
    """By name; a folder of the same name in the corpus holds what was found."""
    trace = (ROOT / "examples" / "traces" / "chat.jsonl").read_bytes()
    corpus = b"\n".join((ROOT / "tests" / "golden" / "table20_corpus.csv").read_bytes().splitlines()[:6])
    check = {"model": {"config": dict(CONFIG)}, "engine": {"name": "vLLM", "version": "0.19"}}
    check |= {"accelerator": "MI325X", "layout": {"tensorParallel": 8}, "maxModelLength": 8192}
    mix = _yaml("examples/mix.yaml")
    plan = _yaml("examples/plan.yaml")
    harvest = _yaml("examples/harvest.yaml")
    told = harvest_render.harvester_spec(AnchorHarvest.model_validate(builders.anchor_harvest()))
    anchor = json.loads(builders.anchor().to_json())
    load = {"phase": "decode", "step_tokens": 8, "expert_parallel": 8, "rows_factor": 1.2, "experts_factor": 1.1}
    load |= {"samples_count": 32}
    words = b"timestamp,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,4808,10\n"
    sessions = b'{"session_id": "a", "block_size": 64, "requests": [{"in": 128, "out": 16, "hash_ids": [1, 2]}]}\n'
    return {
        "acceptance": Target(
            lambda raw: parse_acceptance(_text(raw), "x"),
            documents=({"curves": [{"model": "m", "drafter": "mtp", "accepted": [1.0, 1.8], "source": "x"}]},),
        ),
        "agent-answer": Target(
            lambda raw: read_plan(
                rationale=_text(raw), hypotheses=_text(raw), configurations=_text(raw), polish=_object(raw)
            ),
            texts=(b'Here: ```json\n[{"tensorParallel": 2}, {"engine": "vLLM"}]\n```',),
        ),
        "anchor": Target(lambda raw: parse_anchor(_text(raw)), documents=(anchor,)),
        "anchor-in-cluster": Target(_anchor_map, documents=(anchor, dict(CONFIG))),
        "answer-in-cluster": Target(
            lambda raw: read_result({"data": {"digest": "d", "result.json": _text(raw)}}, "d"),
            refuses=(ValueError,),
            documents=(builders.plan_result(),),
        ),
        "check": Target(lambda raw: check_document(_mapping(raw)), documents=(check,)),
        "corpus": Target(lambda raw: parse_corpus(_text(raw)), texts=(corpus,)),
        "documents": Target(
            lambda raw: _in_file(raw, lambda path: load_documents(str(path)), "a.yaml"),
            texts=((ROOT / "examples" / "plan.yaml").read_bytes(), (ROOT / "examples" / "mix.yaml").read_bytes()),
        ),
        "engine-report": Target(effective.parse_report, documents=({"tensor_parallel_size": 1, "enforce_eager": "x"},)),
        "expert-load": Target(lambda raw: read_table(_text(raw), "x"), documents=({"expertLoad": [load]},)),
        "harvest": Target(lambda raw: _pass(_HARVEST, raw), documents=(harvest, builders.anchor_harvest())),
        "harvester-spec": Target(lambda raw: harvester_spec.parse_spec(_text(raw)), documents=(told,)),
        "ledger": Target(
            lambda raw: documents_of(_text(raw)), texts=(b'{"kind": "search", "space": {}}\n{"kind": "trial"}\n',)
        ),
        "metrics-page": Target(lambda raw: parse_scrape(_text(raw), "VLLM", 1.0), texts=(PAGE,)),
        "metrics-page-of-harvester": Target(lambda raw: metrics_page.parse_page(_text(raw)), texts=(PAGE,)),
        "mix": Target(lambda raw: _pass(_MIX, raw), documents=(mix,)),
        "mix-command": Target(lambda raw: render_document(_mapping(raw)), documents=(mix,)),
        "model-config": Target(lambda raw: model_card_from_config(_object(raw)), documents=(dict(CONFIG),)),
        "packed": Target(
            lambda raw: packing.unpack(_text(raw)), refuses=(ValueError,), texts=(packing.pack("x" * 99).encode(),)
        ),
        "plan": Target(lambda raw: _pass(_PLAN, raw), documents=(plan, builders.serving_plan())),
        "prometheus": Target(
            lambda raw: scrapes(*[_mapping(raw).get(key, ()) for key in RANGE], "VLLM", since_s=0.0), documents=(RANGE,)
        ),
        "results": Target(lambda raw: _in_file(raw, read_results, "a.json"), documents=(SERVING,)),
        "results-lines": Target(lambda raw: _in_file(raw, read_results, "a.jsonl"), documents=(SERVING,)),
        "routing-recording": Target(lambda raw: read_recording(raw, "x"), documents=({"logical_count": [[[1, 2]]]},)),
        "scenario": Target(lambda raw: load_scenario(_mapping(raw), {}), documents=(SCENARIO,)),
        "trace": Target(lambda raw: _in_file(raw, _trace, "a.jsonl"), texts=(trace[:2000], words, sessions)),
    }
