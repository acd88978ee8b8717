"""The spec at the door, and the command lines made of it: expected flags are written by hand from the engines' docs."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferasim_harvester import launch, plan
from inferasim_harvester.spec import HarvestSpec, parse_spec
from simcore.cards.layout import Engine
from simcore.errors import FormatError, InputError, UnknownNameError


def raw_spec(engine: str = "VLLM", version: str = "0.33.0", **parts: Any) -> dict[str, Any]:
    return {
        "schema": "inferasim.dev/harvest/v1",
        "engine": {"name": engine, "version": version},
        "model": {"name": "org/model", "path": "/models/checkpoint"},
        "accelerator": {"product": "MI355X", "partition": "spx_nps1"},
        **parts,
    }


def parsed(*args: Any, **parts: Any) -> HarvestSpec:
    return parse_spec(json.dumps(raw_spec(*args, **parts)))


def test_defaults_are_the_ones_documented() -> None:
    sweeps = parsed().sweeps
    assert sweeps.decode_batches == (1, 2, 4, 8, 16, 32, 64, 128, 256)
    assert sweeps.decode_prompt_lengths_tokens == (1024,)
    assert sweeps.prefill_lengths_tokens == (512, 1024, 2048, 4096, 8192)
    names = [point.name for point in plan.points_of(parsed())]
    assert names[:5] == ["prefill/8192", "prefill/4096", "prefill/2048", "prefill/1024", "prefill/512"]
    assert names[5] == "decode/1024/1"
    assert names[-4:] == ["packed/1024/2", "packed/1024/4", "packed/1024/8", "drift"]
    assert len(names) == 5 + 9 + 3 + 1


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("unknown key", {"surprise": 1}, "surprise"),
    ("pipeline", {"layout": {"pipelineParallel": 2}}, "layout.pipelineParallel"),
    ("three prompt lengths", {"sweeps": {"decodePromptLengthsTokens": [1, 2, 3]}}, "sweeps.decodePromptLengthsTokens"),
    ("zero batch", {"sweeps": {"decodeBatches": [0]}}, "sweeps.decodeBatches.0"),
    ("flag as model", {"model": {"name": "m", "path": "--help"}}, "model.path"),
    ("control character", {"model": {"name": "m\n", "path": "x"}}, "model.name"),
    ("EP that vLLM cannot have", {"layout": {"tensorParallel": 8, "expertParallel": 4}}, "expertParallel 4"),
    ("schema", {"schema": "v2"}, "schema"),
]


@pytest.mark.parametrize(("name", "change", "said"), REFUSED, ids=[row[0] for row in REFUSED])
def test_bad_specs_are_refused_in_one_line(name: str, change: dict[str, Any], said: str) -> None:
    with pytest.raises(FormatError) as caught:
        parse_spec(json.dumps({**raw_spec(), **change}))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "[]", "{", "[" * 100_000, "null", '{"schema": "inferasim.dev/harvest/v1"}'])
def test_what_is_no_spec_is_refused(text: str) -> None:
    with pytest.raises(FormatError):
        parse_spec(text)


def test_an_unknown_engine_names_the_known_ones() -> None:
    with pytest.raises(UnknownNameError, match="SGLang"):
        parsed("SGLnag", "0.5.16")


def test_the_digest_is_of_the_meaning() -> None:
    """Key order, spelling of the engine and stated defaults do not change it; a point more does."""
    base = parsed().digest
    turned = json.dumps(dict(reversed(raw_spec(engine="vllm").items())))
    assert parse_spec(turned).digest == base
    assert parsed(sweeps={"decodePromptLengthsTokens": [1024]}).digest == base
    assert parsed(sweeps={"decodeBatches": [1, 2]}).digest != base


COMMANDS: list[tuple[str, str, dict[str, Any], list[str]]] = [
    (
        "VLLM",
        "0.33.0",
        {
            "layout": {"tensorParallel": 4, "dataParallel": 2, "expertParallel": 8},
            "signature": {"kvDtype": "fp8", "graphCapture": "Disabled"},
        },
        [
            "vllm", "serve", "/models/checkpoint", "--served-model-name=org/model", "--host=127.0.0.1", "--port=8000",
            "--no-enable-prefix-caching", "--tensor-parallel-size=4", "--data-parallel-size=2",
            "--enable-expert-parallel", "--enforce-eager", "--kv-cache-dtype=fp8_e4m3",
        ],
    ),
    (
        "SGLang",
        "0.5.13.post1",
        {"layout": {"tensorParallel": 8, "attentionDataParallel": 8, "expertParallel": 8}},
        [
            "python3", "-m", "sglang.launch_server", "--model-path=/models/checkpoint",
            "--served-model-name=org/model", "--host=127.0.0.1", "--port=8000", "--disable-radix-cache",
            "--enable-metrics", "--tp-size=8", "--dp-size=8", "--enable-dp-attention", "--ep-size=8",
        ],
    ),
    (
        "SGLang",
        "0.5.23",
        {"layout": {"tensorParallel": 8, "attentionDataParallel": 8}, "signature": {"attentionBackend": "aiter"}},
        [
            "python3", "-m", "sglang.launch_server", "--model-path=/models/checkpoint",
            "--served-model-name=org/model", "--host=127.0.0.1", "--port=8000", "--disable-radix-cache",
            "--enable-metrics", "--tp-size=8", "--attn-dp-size=8", "--attention-backend=aiter",
        ],
    ),
    (
        "ATOM",
        "0.1.4",
        {
            "layout": {"tensorParallel": 8, "attentionDataParallel": 8},
            "signature": {
                "kvDtype": "fp8",
                "speculation": {"method": "MTP", "draftTokens": 3, "forcedAcceptanceLength": 2.5},
            },
        },
        [
            "python3", "-m", "atom.entrypoints.openai_server", "--model=/models/checkpoint",
            "--served-model-name=org/model", "--host=127.0.0.1", "--server-port=8000", "--no-enable_prefix_caching",
            "--tensor-parallel-size=8", "--enable-dp-attention", "--kv_cache_dtype=fp8", "--method=mtp",
            "--num-speculative-tokens=3", "--spec-decode-acceptance-length=2.5",
        ],
    ),
]  # fmt: skip


@pytest.mark.parametrize(("engine", "version", "parts", "argv"), COMMANDS, ids=[f"{r[0]}-{r[1]}" for r in COMMANDS])
def test_command_lines(engine: str, version: str, parts: dict[str, Any], argv: list[str]) -> None:
    assert launch.command(parsed(engine, version, **parts), port=8000) == argv


def test_speculation_of_vllm_is_one_json_argument() -> None:
    spec = parsed(signature={"speculation": {"method": "MTP", "draftTokens": 2, "forcedAcceptanceLength": 2}})
    (flag,) = [token for token in launch.command(spec, port=1) if token.startswith("--speculative-config=")]
    assert json.loads(flag.split("=", 1)[1]) == {
        "method": "mtp",
        "num_speculative_tokens": 2,
        "rejection_sample_method": "synthetic",
        "synthetic_acceptance_length": 2.0,
    }


def test_forced_acceptance_of_sglang_is_a_variable() -> None:
    spec = parsed(
        "SGLang",
        "0.5.16",
        signature={"speculation": {"method": "MTP", "draftTokens": 3, "forcedAcceptanceLength": 2.5}},
    )
    assert launch.environment(spec) == {"SGLANG_SIMULATE_ACC_LEN": "2.5"}
    argv = launch.command(spec, port=1)
    assert argv[-4:] == [
        "--speculative-algorithm=NEXTN",
        "--speculative-num-steps=3",
        "--speculative-eagle-topk=1",
        "--speculative-num-draft-tokens=4",
    ]


@pytest.mark.parametrize(
    ("engine", "version"), [("VLLM", "0.19.0"), ("SGLang", "0.6.0"), ("ATOM", "1.0"), ("VLLM", "x")]
)
def test_unknown_versions_are_not_guessed(engine: str, version: str) -> None:
    with pytest.raises(InputError, match=r"engine\.version"):
        launch.command(parsed(engine, version), port=8000)


@pytest.mark.parametrize("argument", ["--tensor-parallel-size=2", "-tp=2", "--no-enable-prefix-caching", "--port=1"])
def test_extra_arguments_do_not_restate_the_spec(argument: str) -> None:
    raw = raw_spec()
    raw["engine"]["extraArgs"] = [argument]
    with pytest.raises(InputError, match="restate"):
        launch.command(parse_spec(json.dumps(raw)), port=8000)


def test_shell_text_stays_one_argument() -> None:
    """Nothing is split, quoted or expanded: the list goes to exec."""
    nasty = "; rm -rf / $(id) `id` && echo 'x' \"y\""
    raw = raw_spec(model={"name": nasty, "path": nasty})
    raw["engine"]["extraArgs"] = ["--note=" + nasty]
    argv = launch.command(parse_spec(json.dumps(raw)), port=8000)
    assert argv[2] == nasty
    assert argv[3] == "--served-model-name=" + nasty
    assert argv[-1] == "--note=" + nasty


VERSIONS = {Engine.VLLM: ["0.20.2", "0.33.0"], Engine.SGLANG: ["0.5.9", "0.5.16", "0.5.23"], Engine.ATOM: ["0.1.4"]}


@st.composite
def specs(draw: st.DrawFn) -> HarvestSpec:
    engine = draw(st.sampled_from(list(Engine)))
    tensor = draw(st.sampled_from([1, 2, 4, 8]))
    attention = draw(st.sampled_from([1, tensor]))
    ranks = tensor * attention if engine is Engine.VLLM else tensor
    signature: dict[str, Any] = {}
    if draw(st.booleans()):
        signature["kvDtype"] = draw(st.sampled_from(["bf16", "fp8", "fp8_e4m3", "FP8"]))
    version = draw(st.sampled_from(VERSIONS[engine]))
    if draw(st.booleans()) and version != "0.5.16":
        signature["graphCapture"] = "Disabled"
    if draw(st.booleans()):
        signature["moeBackend"] = draw(st.sampled_from(["aiter", "triton"]))
    layout = {
        "tensorParallel": tensor,
        "attentionDataParallel": attention,
        "expertParallel": draw(st.sampled_from([1, ranks])),
    }
    return parsed(engine.value, version, layout=layout, signature=signature)


@given(specs())
def test_a_command_line_states_what_was_asked(spec: HarvestSpec) -> None:
    """Rendered and read back, every setting is the one asked for."""
    argv = launch.command(spec, port=8000)
    stated = launch.stated_settings(spec.engine.name, spec.engine.version, argv)
    asked = launch.asked_settings(spec)
    assert {name: stated.get(name) for name in asked} == asked


@given(specs(), st.data())
def test_a_dropped_flag_is_seen(spec: HarvestSpec, data: st.DataObject) -> None:
    """Public case E10: a wrapper that loses one of the setting's flags states something else."""
    argv = launch.command(spec, port=8000)
    start = argv.index(next(token for token in argv if "port=" in token)) + 1
    settings = [token for token in argv[start:] if token != "--enable-metrics"]
    if spec.layout.tensor_parallel > 1 and settings:
        lost = data.draw(st.sampled_from(settings))
        left = [token for token in argv if token != lost]
        stated = launch.stated_settings(spec.engine.name, spec.engine.version, left)
        asked = launch.asked_settings(spec)
        assert {name: stated.get(name) for name in asked} != asked
