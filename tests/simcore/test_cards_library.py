"""Built-in cards, accelerators, storage formats, node labels and the strict data loader."""

from __future__ import annotations

import pytest

from simcore.cards import known_accelerators, known_models, load_accelerator_card, load_model_card
from simcore.cards.formats import canonical_format, known_formats, storage_format
from simcore.cards.labels import read_node_labels
from simcore.cards.layout import Engine, Layout, resolve, stage_layers
from simcore.cards.library import accelerator_by_device_id, known_model, with_weights_format
from simcore.cards.matrices import parameters_count, routed_parameters_count
from simcore.cards.model import AttentionKind
from simcore.data import loader
from simcore.errors import FormatError, InputError, UnknownNameError


@pytest.mark.parametrize("name", known_models())
def test_each_card_is_whole_and_says_where_it_is_from(name: str) -> None:
    card = load_model_card(name)
    assert card.source
    assert not card.unknown
    assert sum(group.layers_count for group in card.groups) == card.layers_count
    indexes = sorted(index for group in card.groups for index in group.layer_indexes)
    assert indexes == list(range(card.layers_count))
    assert card.max_position_tokens > 0


@pytest.mark.parametrize(
    ("name", "with_norms", "count"),
    [
        ("DeepSeek-V3", False, 671_025_397_760),  # public cases, table of constants
        ("DeepSeek-R1", False, 671_025_397_760),
        ("Llama-3.1-8B", True, 8_030_261_248),
        ("Llama-3.1-405B", True, 405_853_388_800),
        ("gpt-oss-20b", True, 20_914_757_184),  # the checkpoint's own count
        ("Qwen3-Next-80B-A3B-Instruct", True, 79_674_391_296),  # the checkpoint's own count, without MTP
        ("Mixtral-8x7B", True, 46_702_792_704),  # this and the next as the model hub lists them
        ("Mixtral-8x22B", True, 140_620_634_112),
        ("Llama-2-70B", True, 68_976_648_192),
        ("Qwen2.5-72B", True, 72_706_203_648),
        ("Qwen2.5-7B", True, 7_615_616_512),
    ],
)
def test_exact_parameter_counts(name: str, with_norms: bool, count: int) -> None:
    assert parameters_count(load_model_card(name), norms=with_norms) == count


def test_routed_experts_of_deepseek() -> None:
    assert routed_parameters_count(load_model_card("DeepSeek-R1")) == 653_908_770_816  # public case B01


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        ("deepseek-ai/DeepSeek-V3.2-Exp", "DeepSeek-V3.2"), ("DeepSeek-V3.2-FP8", "DeepSeek-V3.2"),
        ("DeepSeek-R1-0528", "DeepSeek-R1"), ("DeepSeek-R1-0528-MXFP4", "DeepSeek-R1-MXFP4"),
        ("Llama-3.1-8B-Instruct", "Llama-3.1-8B"), ("llama-3.1-8b", "Llama-3.1-8B"),
        ("Kimi-K2.7-Code", "Kimi-K2.7-Code"),
        ("qwen3_14b_fp8", "Qwen3-14B-FP8"), ("GLM-5.3", "GLM-5.3"), ("MiniMax-M3-MXFP4", "MiniMax-M3-MXFP4"),
        ("Qwen/Qwen3-235B-A22B-Instruct-2507-FP8", "Qwen3-235B-A22B-FP8"), ("DeepSeek-V3.1-Terminus", "DeepSeek-V3"),
        ("amd/Kimi-K2-Thinking-MXFP4", "Kimi-K2-Thinking-MXFP4"), ("Kimi-K2-Instruct-0905", "Kimi-K2"),
        ("meta-llama/Llama-3.3-70B-Instruct", "Llama-3.1-70B"), ("Mixtral-8x7B-Instruct-v0.1", "Mixtral-8x7B"),
    ],
)  # fmt: skip
def test_common_names_find_their_card(asked: str, name: str) -> None:
    assert load_model_card(asked).name == name


def test_a_release_may_have_more_positions_and_no_other_shape() -> None:
    """The 2507 releases of Qwen3 and Kimi-K2's 0905 take 262,144 tokens; their predecessors 40,960 and 131,072."""
    for dated, plain in (
        ("Qwen/Qwen3-235B-A22B-Instruct-2507-FP8", "Qwen3-235B-A22B-FP8"), ("Kimi-K2-Instruct-0905", "Kimi-K2"),
        ("Qwen3-30B-A3B-Thinking-2507", "Qwen3-30B-A3B"),
    ):  # fmt: skip
        one, other = load_model_card(dated), load_model_card(plain)
        assert (one.max_position_tokens, one.groups, one.name) == (262_144, other.groups, other.name)
        assert other.max_position_tokens in (40_960, 131_072)
    assert load_model_card("DeepSeek-R1-0528") == load_model_card("DeepSeek-R1")


def test_unverified_models_are_absent_and_say_why() -> None:
    for name in ("GLM-4.7", "DeepSeek-V4.1-Flash"):
        with pytest.raises(UnknownNameError, match="not verified"):
            load_model_card(name)
    with pytest.raises(UnknownNameError, match="Qwen3-14B"):
        load_model_card("Qwen3-15B")
    for name in ("DeepSeek-R1-Distill-Llama-70B", "Qwen3", "Instruct", ""):
        assert known_model(name) is None


def test_facts_of_the_model_table() -> None:
    """simulators-facts page, section 5."""
    pro = load_model_card("DeepSeek-V4-Pro")
    assert (pro.groups[0].ffn.experts_count, pro.groups[0].ffn.experts_per_token, pro.hidden_connections) == (384, 6, 4)
    glm = load_model_card("GLM-5.2")
    own = sum(group.layers_count for group in glm.groups if group.attention.indexer_own)
    assert (glm.layers_count, own) == (78, 21), "full every 4th layer with offset 3: 3 dense and 18"
    kimi = load_model_card("Kimi-K3")
    linear = sum(g.layers_count for g in kimi.groups if g.attention.kind is AttentionKind.LINEAR)
    assert (linear, kimi.groups[1].ffn.expert_hidden, kimi.dtypes.experts) == (69, 3584, "mxfp4")
    qwen = load_model_card("Qwen3.5-397B-A17B")
    assert sum(g.layers_count for g in qwen.groups if g.attention.kind is AttentionKind.LINEAR) == 45


def test_variants_change_storage_only() -> None:
    plain, fp8 = load_model_card("Qwen3-14B"), load_model_card("Qwen3-14B-FP8")
    assert (plain.groups, plain.dtypes.weights, fp8.dtypes.weights) == (fp8.groups, "bf16", "fp8")
    assert with_weights_format(plain, "fp8").dtypes.weights == "fp8"
    assert with_weights_format(fp8, "fp8") is fp8
    narrow = with_weights_format(load_model_card("DeepSeek-R1"), "fp4")
    assert (narrow.dtypes.experts, narrow.dtypes.attention) == ("nvfp4", "bf16")
    assert narrow.assumed


def test_accelerators() -> None:
    mi300x, mi355x = load_accelerator_card("MI300X"), load_accelerator_card("AMD Instinct MI355X")
    assert mi300x.hbm_bytes == 201_310_208 * 1024  # public cases, table of constants
    assert "mxfp4" not in mi300x.peak_flop_per_s
    assert mi355x.peak_flop_per_s["mxfp4"] > mi355x.peak_flop_per_s["fp8"] > mi355x.peak_flop_per_s["bf16"]
    assert (mi300x.fp8_format, mi355x.fp8_format) == ("fnuz", "ocp")
    assert "hbm_bytes" in mi355x.assumed
    assert known_accelerators(for_planning=True) == ("MI300X", "MI325X", "MI350X", "MI355X")
    for name in known_accelerators():
        card = load_accelerator_card(name)
        assert card.validation_only == (not card.architecture.startswith("gfx"))
        assert set(card.sources) >= {"hbm_bytes", "hbm_bytes_per_s", "peak_flop_per_s", "link_bytes_per_s"}
    assert load_accelerator_card("H100-80GB").hbm_bytes == 81_559 << 20
    with pytest.raises(UnknownNameError, match="MI300X"):
        load_accelerator_card("MI3000")


def test_device_ids() -> None:
    assert [accelerator_by_device_id(i)[0].name for i in ("74a1", "0x74A9", "75a3")] == ["MI300X", "MI300X", "MI355X"]  # type: ignore[index]
    assert accelerator_by_device_id("74b5") == (load_accelerator_card("MI300X"), True)
    assert accelerator_by_device_id("ffff") is None


def test_node_labels_of_case_a26() -> None:
    """Two MI355X nodes in two partition modes, a virtual function, an empty node (gpu-operator#555, #266)."""
    base = {"amd.com/gpu.device-id": "75a3"}
    whole = read_node_labels(base | {"amd.com/gpu.compute-memory-partition": "spx_nps1", "amd.com/gpu.vram": "288G"})
    half = read_node_labels(
        base | {"amd.com/gpu.compute-memory-partition": "dpx_nps1", "amd.com/gpu.vram": "144G"}, allocatable_devices=16
    )
    assert whole.memory_bytes_per_gpu == half.memory_bytes_per_gpu == 288 << 30
    assert (half.devices_per_gpu, half.gpus, half.can_plan) == (2, 8, False)
    assert any("vram=144G" in note for note in half.notes)
    parts = read_node_labels(base | {"amd.com/gpu.compute-memory-partition": "dpx_nps2", "amd.com/gpu.vram": "144G"})
    assert not any("vram" in note for note in parts.notes), "NPS2 halves the memory: the label is right"
    assert parts.memory_bytes_per_gpu == half.memory_bytes_per_gpu == 288 << 30
    assert not half.matches_anchor(product="MI355X", partition="spx_nps1")
    assert whole.matches_anchor(product="MI355X", partition="spx_nps1")
    virtual = read_node_labels({"amd.com/gpu.device-id": "74b5", "amd.com/gpu.cu-count": "304"}, allocatable_devices=0)
    assert (virtual.product, virtual.virtual_function, virtual.gpus) == ("MI300X", True, 0)
    assert any("no capacity" in note for note in virtual.notes)
    legacy = read_node_labels({"beta.amd.com/gpu.device-id.74a1": "8"})
    assert legacy.product == "MI300X"
    assert read_node_labels({}).product is None
    liar = read_node_labels(base | {"amd.com/gpu.product-name": "AMD_Instinct_MI300X_OAM"})
    assert liar.product == "MI355X"
    assert any("contradicts" in note for note in liar.notes)


def test_formats() -> None:
    assert canonical_format("fp8_e4m3") == canonical_format("float8_e4m3fnuz") == "fp8"  # public case A24
    assert storage_format("mxfp4").payload_bytes(65) == 33
    assert all(form.source for form in known_formats().values())
    with pytest.raises(UnknownNameError):
        canonical_format("fp5")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\na: 2", "written twice"), ("a: [", "valid YAML"), ("? {b: 1}\n: 2", "not a plain value"),
        ("- !!python/object:os.system x", "valid YAML"),
    ],
)  # fmt: skip
def test_the_loader_is_strict(text: str, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        loader.parse_yaml(text, "x.yaml")


def test_records_need_a_source_and_known_keys() -> None:
    with pytest.raises(FormatError, match="source"):
        loader.record({"a": 1}, "x", required={"a"})
    with pytest.raises(FormatError, match="`b`"):
        loader.record({"a": 1, "b": 2, "source": "s"}, "x", required={"a"})
    with pytest.raises(FormatError, match="`a`"):
        loader.record({"source": "s"}, "x", required={"a"})


@pytest.mark.parametrize(
    ("layers", "stages", "split"),
    [(62, 3, (21, 21, 20)), (61, 4, (15, 15, 16, 15)), (64, 2, (32, 32)), (5, 5, (1,) * 5)],
)
def test_pipeline_splits(layers: int, stages: int, split: tuple[int, ...]) -> None:
    assert stage_layers(layers_count=layers, stages_count=stages) == split


def test_bad_pipeline_splits() -> None:
    with pytest.raises(InputError):
        stage_layers(layers_count=4, stages_count=5)
    with pytest.raises(InputError):
        stage_layers(layers_count=4, stages_count=2, split=[4, 0])


def test_vllm_states_attention_dp_as_data_parallel() -> None:
    one = resolve(Layout(data_parallel=8, expert_parallel=8), Engine.VLLM, is_moe=True)
    other = resolve(Layout(attention_data_parallel=8, expert_parallel=8), Engine.VLLM, is_moe=True)
    assert one == other
    assert resolve(Layout(tensor_parallel=8, attention_data_parallel=8), Engine.VLLM, is_moe=True).gpus_count == 8
