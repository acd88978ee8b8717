"""`predict` takes the keys of `check`: what changes nothing in its answer is refused, what it can honour it does."""

from __future__ import annotations

from typing import Any

import pytest

from inferasim_operator.plan_question import prepare
from simcore import load_scenario, predict
from simcore.anchors.builtin import builtin_anchor
from simcore.cards.layout import Engine, Layout
from simcore.errors import InfeasibleError, InputError
from simcore.prediction.predictor import Predictor
from simcore.prediction.result import Prediction
from simcore.prediction.shapes import EngineOption, Shape

NAME = "llama-3.1-8b-sglang-mi355x-tp1"
SCENARIO: dict[str, Any] = {
    "model": "Llama-3.1-8B", "engine": {"name": "SGLang"}, "accelerator": "MI355X", "layout": {"tensorParallel": 1},
    "anchors": [NAME], "workload": {"fixed": {"promptTokens": 1024, "outputTokens": 64}},
    "load": {"concurrency": 16, "requests": 32},
}  # fmt: skip


def _predict(**changes: Any) -> Prediction:
    return predict(load_scenario(SCENARIO | changes, {NAME: builtin_anchor(NAME)}))


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"layout": {"tensorParallel": 8, "decodeContextParallel": 8}}, "layout.decodeContextParallel"),
        ({"layout": {"tensorParallel": 1, "prefillContextParallel": 2}}, "layout.prefillContextParallel"),
        ({"layout": {"tensorParallel": 1, "contextParallel": 2}}, "layout.contextParallel"),
        ({"enumerate": True}, "enumerate"),
        ({"pipelineLayerSplit": [20, 12], "layout": {"pipelineParallel": 2}}, "pipelineLayerSplit"),
        ({"captureSizes": [1, 2]}, "captureSizes"),
        ({"footprint": {"sequences": 1, "tokens": 2}}, "footprint"),
        ({"transfer": {"promptTokens": 2}}, "transfer"),
        ({"allocatableDevices": 8}, "allocatableDevices"),
        ({"gpus": 4, "replicas": 8}, "gpus"),
        ({"gpus": 4, "layout": {"tensorParallel": 8}}, "gpus"),
        ({"stateBlocks": 8, "maxRunningRequests": 9}, "maxRunningRequests"),
        ({"redundantExperts": 8}, "redundantExperts"),
    ],
    ids=str,
)
def test_what_is_not_priced_is_refused_by_its_name(change: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError) as caught:
        _predict(**change)
    assert caught.value.field == field


def test_data_parallel_copies_are_replicas() -> None:
    """Independent copies answer as one does, each with its share of the clients: adding some makes no prompt faster."""
    one, two = _predict(), _predict(layout={"dataParallel": 2}, load={"concurrency": 32, "requests": 64})
    assert two.gpus_count == 2
    assert (two.tpot_s, two.ttft.mean_s) == pytest.approx((one.tpot_s, one.ttft.mean_s), rel=1e-9)
    assert two.throughput_tokens_per_s == pytest.approx(2 * one.throughput_tokens_per_s, rel=1e-9)
    assert any("copies, priced as replicas" in note for note in two.source.assumed)


def test_measured_memory_reaches_the_capacity() -> None:
    """288 GiB x 0.9 = 278.3 GB: weights of 279 GB leave nothing, weights of 200 GB leave (278.3 - 200) / 131072."""
    with pytest.raises(InfeasibleError, match="does not fit"):
        _predict(weightBytesPerGpu=279_000_000_000)
    assert _predict(weightBytesPerGpu=200_000_000_000).kv_occupancy_frac > _predict().kv_occupancy_frac > 0


def test_a_plan_names_one_engine_not_its_copies() -> None:
    scenario = load_scenario(SCENARIO, {NAME: builtin_anchor(NAME)})
    option = EngineOption(Engine.SGLANG, layouts=(Layout(data_parallel=4),))
    with pytest.raises(InputError, match="name TP1, a plan counts its replicas"):
        Predictor(scenario.setting).layouts(option, 8, 1)


LLAMA = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 32, "hidden_size": 4096,
    "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256,
    "max_position_embeddings": 131072, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}  # fmt: skip


def test_stated_weights_need_an_anchor_that_ran_them() -> None:
    """Weight format defines an anchor (paper 3.1.1): one in bf16 says nothing of the same model in another."""
    assert _predict(model={"name": "Llama-3.1-8B", "config": LLAMA}).source.mode == "anchored"
    awq = LLAMA | {"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 128}}
    for model in ({"name": "Llama-3.1-8B", "weightsFormat": "fp8"}, {"name": "Llama-3.1-8B", "config": awq}):
        found = _predict(model=model)
        assert found.source.mode == "simulate"
        assert "weightsDtype: anchor has bf16" in str(found.source.refusals)


def test_a_config_under_another_models_name_is_refused() -> None:
    """Anchors are found by the name: half of Llama-3.1-8B's layers would get the whole model's steps."""
    for change in ({"num_hidden_layers": 16}, {"hidden_size": 8192, "num_attention_heads": 64}, {"vocab_size": 32000}):
        with pytest.raises(InputError) as caught:
            _predict(model={"name": "Llama-3.1-8B", "config": LLAMA | change})
        assert caught.value.field == "model.name"


def test_a_plan_from_a_config_asks_for_its_weights() -> None:
    """A quantised checkpoint's config often still names the checkpoint it was made from."""
    awq = {"quant_method": "awq", "bits": 4, "group_size": 128}
    anchor = builtin_anchor(NAME).model_dump(by_alias=True, mode="json", exclude_none=True)
    spec = {
        "model": {"configMap": {"name": "config"}}, "cluster": {"accelerator": "MI355X", "nodes": 1, "gpuBudget": 1},
        "engines": [{"name": "SGLang", "layouts": [{"tensorParallel": 1}]}], "load": {"concurrencies": [8]},
        "workload": {"fixed": {"promptTokens": 1024, "outputTokens": 64}}, "tiers": [{"name": "bulk"}],
    }  # fmt: skip
    named = LLAMA | {"_name_or_path": "meta-llama/Llama-3.1-8B"}
    for config, chosen in ((named, True), (named | {"quantization_config": awq}, False)):
        prepared = prepare({"spec": spec, "anchors": {NAME: anchor}, "modelConfig": config})
        found = prepared.predictor.shape(EngineOption(Engine.SGLANG), Layout(), gpus_per_node=8)
        assert isinstance(found, Shape) is chosen
        assert chosen or "weightsDtype: anchor has bf16, target asks int4" in str(found)
