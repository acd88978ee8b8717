"""`inferasim check` as a command: exit codes, one clear line, spellings, enumeration, unknown is null."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from inferasim_operator.cli.check import check, check_document
from simcore.errors import InputError

APP = typer.Typer()
APP.command()(check)
CASE: dict[str, Any] = {
    "model": {"name": "DeepSeek-R1"}, "engine": {"name": "vLLM", "version": "0.27"}, "accelerator": "MI300X",
    "layout": {"tensorParallel": 8},
}  # fmt: skip


def _run(tmp_path: Path, document: Any, *more: str) -> Any:
    path = tmp_path / "case.yaml"
    path.write_text(document if isinstance(document, str) else json.dumps(document), encoding="utf-8")
    return CliRunner().invoke(APP, ["-f", str(path), *more])


def test_legal_is_exit_zero_and_json(tmp_path: Path) -> None:
    result = _run(tmp_path, CASE, "-o", "json")
    answer = json.loads(result.stdout)
    assert result.exit_code == 0
    assert (answer["verdict"], answer["gpusPerEngine"], answer["kvBytesPerTokenPerRank"]) == ("legal", 8, 70272)


def test_illegal_is_exit_one(tmp_path: Path) -> None:
    result = _run(tmp_path, CASE | {"layout": {"tensorParallel": 3}}, "-o", "json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["violations"][0]["rule"] == "tp-divides-heads"


def test_tables_are_for_people(tmp_path: Path) -> None:
    assert "DeepSeek-R1: legal" in _run(tmp_path, CASE).stdout
    listing = {key: value for key, value in CASE.items() if key != "layout"} | {"enumerate": True}
    assert "TP8-EP8" in _run(tmp_path, listing).stdout
    assert "verdict: illegal" in _run(tmp_path, CASE | {"layout": {"tensorParallel": 3}}, "-o", "yaml").stdout


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layout": None}, "`layout` must be given"),
        ({"layuot": {}}, "did you mean one of: layout"),
        ({"layout": {"tensorParallel": "8"}}, "layout.tensorParallel"),
        ({"layout": {"tensorParallel": 0}}, "layout.tensorParallel"),
        ({"layout": {"tensor_parallel": 8}}, "tensorParallel"),
        ({"model": {"name": "DeepSeek-R3"}}, "DeepSeek-R1"),
        ({"model": {}}, "name a built-in card or give a config"),
        ({"model": {"config": {"model_type": "llama", "num_attention_heads": 32}}}, "num_hidden_layers"),
        ({"model": {"config": {"heads": 32, "kvHeds": 8}}}, "kvHeads"),
        ({"model": {"config": {"heads": -1}}}, "num_attention_heads"),
        ({"model": {"config": {"heads": 32, "quant": "fp9"}}}, "quant"),
        ({"model": {"config": {"heads": 32, "block": 128}}}, "quant"),
        ({"engine": "TGI"}, "engine.name"),
        ({"engine": {"name": "vLLM", "version": 0.2}}, "0.20"),
        ({"engine": {"version": "1"}}, "engine.name"),
        ({"accelerator": "MI9000X"}, "did you mean one of: MI300X"),
        ({"kvDtype": "fp7"}, "kvDtype"),
        ({"blockSize": 0}, "blockSize"),
        ({"memoryFraction": 1.5}, "memoryFraction"),
        ({"memoryFraction": float("nan")}, "memoryFraction"),
        ({"kvPoolBytesPerGpu": -1}, "kvPoolBytesPerGpu"),
        ({"pipelineLayerSplit": [1, 2]}, "pipelineLayerSplit"),
        ({"prefill": {"tensorParallel": 2}}, "`decode` must be given"),
    ],
    ids=str,
)
def test_bad_input_is_exit_two_and_one_line(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    text = json.dumps(CASE | change).replace("NaN", ".nan")
    result = _run(tmp_path, text, "-o", "json")
    assert result.exit_code == 2
    assert result.stdout == ""
    assert message in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize("text", ["", "a: [", "- 1", "model: 1\nmodel: 2", "\x00"])
def test_files_that_are_no_case(tmp_path: Path, text: str) -> None:
    result = _run(tmp_path, text)
    assert result.exit_code == 2
    assert len(result.stderr.strip().splitlines()) == 1


def test_unknown_is_null_never_zero() -> None:
    answer = check_document({"model": {"config": {"heads": 32, "kvHeads": 8}}, "engine": "vLLM", "layout": {}})
    for key in (
        "weightBytesPerGpu", "kvBytesPerTokenPerRank", "kvPoolTokensPerRank", "kvPoolTokensPerEngine",
        "longestContextTokens", "concurrencyAtMaxModelLength", "minimumMemoryFraction",
    ):  # fmt: skip
        assert answer[key] is None
    assert answer["gpusPerEngine"] == 1
    flash = check_document(CASE | {"model": "DeepSeek-V4-Flash"})
    assert flash["kvBytesPerTokenPerRank"] is None
    assert flash["kvBytesPerTokenPerRankEstimate"] > 0


def test_what_the_capacity_rests_on_is_said() -> None:
    case: dict[str, Any] = {"model": "DeepSeek-R1", "accelerator": "MI355X", "layout": {"tensorParallel": 8}}
    said = " | ".join(check_document(case | {"engine": "vLLM"})["assumed"])
    assert "activation working set" in said
    assert "nominal class" in said
    reserve = {"nonTorchBytes": 1 << 30, "peakBytes": 4 << 30}
    measured = check_document(case | {"engine": "vLLM", "reserve": reserve, "accelerator": "MI300X"})
    assert measured["assumed"] == []


def test_both_spellings_and_the_name_agree() -> None:
    short = {"layers": 32, "hidden": 4096, "heads": 32, "kvHeads": 8, "headDim": 128, "intermediate": 14336,
             "vocab": 128256, "maxPos": 131072}  # fmt: skip
    hugging = {
        "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8,
        "head_dim": 128, "intermediate_size": 14336, "vocab_size": 128256, "max_position_embeddings": 131072,
    }  # fmt: skip
    models: list[Any] = [{"config": short}, {"config": hugging}, "Llama-3.1-8B"]
    answers = [check_document(CASE | {"model": model}) for model in models]
    figures = [{key: value for key, value in answer.items() if key != "model"} for answer in answers]
    assert figures[0] == figures[1] == figures[2]


def test_enumeration_lists_only_what_fits_and_says_why() -> None:
    """Public case B01: on 80 GB GPUs every engine of 8 is too small, 16 is the floor and 32 the ceiling."""
    answer = check_document(
        {"model": "DeepSeek-R1", "engine": "vLLM", "accelerator": {"name": "H100", "hbmBytes": 81_559 << 20},
         "cluster": {"nodes": 4, "gpusPerNode": 8}, "memoryFraction": 0.9, "enumerate": True}
    )  # fmt: skip
    sizes = {row["gpusPerEngine"] for row in answer["layouts"]}
    assert (min(sizes), max(sizes)) == (16, 32)
    rejected = {row["layoutLabel"]: row["violations"] for row in answer["rejectedLayouts"]}
    assert rejected["TP1-DP8-EP8"][0]["rule"] == "memory-fit"
    rows = {row["layoutLabel"]: row for row in answer["layouts"]}
    assert (rows["TP1-DP16-EP16"]["replicas"], rows["TP1-DP16-EP16"]["nodesPerEngine"]) == (2, 2)


def test_pairs_show_both_sides() -> None:
    answer = check_document(
        {"model": "Llama-3.1-405B", "engine": "SGLang", "accelerator": "MI300X",
         "prefill": {"tensorParallel": 4}, "decode": {"tensorParallel": 8}}
    )  # fmt: skip
    assert answer["verdict"] == "illegal"
    assert [item["tensor"] for item in answer["violations"]] == ["prefill.weights"]
    assert (answer["prefill"]["gpusPerEngine"], answer["decode"]["gpusPerEngine"]) == (4, 8)


def test_node_labels() -> None:
    labels = {"amd.com/gpu.device-id": "75a3", "amd.com/gpu.compute-memory-partition": "dpx_nps1"}
    node = check_document(CASE | {"nodeLabels": labels, "allocatableDevices": 16})["node"]
    assert (node["product"], node["gpus"], node["canPlan"]) == ("MI355X", 8, False)


VALUES: st.SearchStrategy[object] = (
    st.none() | st.booleans() | st.integers(-5, 10**12) | st.floats() | st.text(max_size=5) | st.just({}) | st.just([])
)
KEYS = [
    "model", "engine", "accelerator", "layout", "prefill", "decode", "enumerate", "cluster", "gpus", "kvDtype",
    "blockSize", "kvPoolBytesPerGpu", "memoryFraction", "maxModelLength", "pipelineLayerSplit", "reserve",
    "captureSizes", "nodeLabels", "draftLayers", "weightBytesPerGpu", "freeBytesBeforeLoad",
]  # fmt: skip


@given(key=st.sampled_from(KEYS), value=VALUES)
def test_any_value_is_an_answer_or_an_input_error(key: str, value: object) -> None:
    try:
        answer = check_document(CASE | {key: value})
    except InputError as error:
        assert len(str(error).splitlines()) == 1  # noqa: PT017 (either outcome is fine)
    else:
        json.dumps(answer, allow_nan=False)


def test_a_list_of_layouts_is_of_one_engine() -> None:
    for size in ({"gpus": 100_000}, {"nodes": 4096, "gpusPerNode": 8}):
        with pytest.raises(InputError, match="at most 4096 where layouts are listed"):
            check_document({"model": "Llama-3.1-8B", "engine": "vLLM", "enumerate": True, **size})
