"""Command lines: every lever stated once by a flag the version has, and read back to the same configuration."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferasim_operator.emit.arguments import parse_args, render_args
from inferasim_operator.emit.configuration import Configuration, Role
from inferasim_operator.emit.flagmap import flag_map
from inferasim_operator.emit.levers import levers_of, with_levers
from simcore.cards.layout import Engine
from simcore.errors import InputError

REGISTERED = json.loads((Path(__file__).parents[1] / "golden/manifests/registered_flags.json").read_text())["flags"]
VERSIONS = {
    "VLLM": ["0.20.2", "0.23.0", "0.27.1", "0.33.0"],
    "SGLang": ["0.5.9", "0.5.13.post1", "0.5.16", "0.5.21", "0.5.23"],
    "ATOM": ["0.1.4"],
}


def configuration(**changes: Any) -> Configuration:
    record: dict[str, Any] = {
        "engine": "VLLM",
        "engineVersion": "0.33.0",
        "image": "vllm/vllm-openai-rocm:v0.33.0",
        "model": {"name": "Qwen/Qwen3-32B", "source": {"hub": {"id": "Qwen/Qwen3-32B"}}, "architecture": "Dense"},
        "accelerator": "MI355X",
        "gpusPerNode": 8,
        "layout": {"tensorParallel": 1},
        "replicas": 1,
        "concurrency": 64,
        "promptTokens": 1024,
        "outputTokens": 512,
        "kvDtype": "bf16",
        "memoryPermille": 900,
        "maxRunningRequests": 64,
        "maxBatchedTokens": 8192,
        "prefixCaching": "Enabled",
    }
    record.update(changes)
    return Configuration.model_validate({key: value for key, value in record.items() if value is not None})


def rendered(config: Configuration, role: Role = Role.COLOCATED) -> list[str]:
    return render_args(config, role, model_path="/models/m", port=8000)


@st.composite
def configurations(draw: st.DrawFn) -> Configuration:
    """Configurations whose levers the engine and version have flags for."""
    engine = draw(st.sampled_from(sorted(VERSIONS)))
    version = draw(st.sampled_from(VERSIONS[engine]))
    is_moe = draw(st.booleans())
    tp = draw(st.sampled_from([1, 2, 4, 8]))
    layout: dict[str, int] = {"tensorParallel": tp, "pipelineParallel": draw(st.sampled_from([1, 2, 4]))}
    if engine == "VLLM":
        layout["dataParallel"] = draw(st.sampled_from([1, 2, 4]))
        experts = [1, tp * layout["dataParallel"]]
    elif engine == "SGLang":
        if is_moe and draw(st.booleans()):
            layout["attentionDataParallel"] = draw(st.sampled_from([w for w in (1, 2, 4, 8) if tp % w == 0]))
        else:
            layout["dataParallel"] = draw(st.sampled_from([1, 2]))
        experts = [w for w in (1, 2, 4, 8) if tp % w == 0]
    else:
        if is_moe:
            layout["attentionDataParallel"] = draw(st.sampled_from([1, tp]))
        experts = [1, tp]
    if is_moe:
        layout["expertParallel"] = draw(st.sampled_from(experts))
    record: dict[str, Any] = {
        "engine": engine,
        "engineVersion": version,
        "layout": {name: width for name, width in layout.items() if width > 1 or name == "tensorParallel"},
        "model": {
            "name": "org/m",
            "source": {"hub": {"id": "org/m"}},
            "architecture": "MixtureOfExperts" if is_moe else "Dense",
        },
        "kvDtype": draw(st.sampled_from(["bf16", "fp8"])),
        "blockSize": draw(st.sampled_from([None, 16, 64])),
        "memoryPermille": draw(st.integers(1, 1000)),
        "maxRunningRequests": draw(st.integers(1, 4096)),
        "maxBatchedTokens": draw(st.integers(512, 131072)),
        "maxModelLengthTokens": draw(st.integers(1536, 1_000_000)),
        "prefixCaching": draw(st.sampled_from(["Enabled", "Disabled"])),
        "moeBackend": draw(st.sampled_from([None, "triton"])),
    }
    if engine == "SGLang":
        record["chunkTokens"] = draw(st.sampled_from([None, 2048, 16384]))
    if engine != "ATOM":
        record["attentionBackend"] = draw(st.sampled_from([None, "triton"]))
        record["redundantExperts"] = draw(st.sampled_from([None, 8])) if is_moe else None
    graphs = draw(st.sampled_from(["none", "list"] if engine == "ATOM" else ["none", "list", "largest"]))
    if graphs == "list":
        record["graphCaptureSizes"] = draw(st.lists(st.integers(1, 512), min_size=1, max_size=5, unique=True))
    elif graphs == "largest":
        record["maxGraphBatch"] = draw(st.integers(1, 512))
    if draw(st.booleans()):
        record["speculation"] = {
            "method": draw(st.sampled_from(["MTP", "EAGLE3"])),
            "draftTokens": draw(st.integers(1, 8)),
        }
        if record["speculation"]["method"] == "EAGLE3":
            record["speculation"]["draftModel"] = "org/draft"
    if engine == "VLLM" and draw(st.booleans()):
        record["kvOffload"] = {"hostGibibytes": draw(st.integers(1, 2048))}
    return configuration(**record)


@given(config=configurations())
def test_the_arguments_give_the_configuration_back(config: Configuration) -> None:
    arguments = rendered(config)
    levers = parse_args(config.engine, config.engine_version, arguments)
    assert levers == levers_of(config, Role.COLOCATED)
    assert with_levers(config, Role.COLOCATED, levers) == config
    counts = Counter(argument.split("=")[0] for argument in arguments if argument.startswith("--"))
    assert max(counts.values()) == 1


@given(config=configurations())
def test_the_parallel_product_rule_holds(config: Configuration) -> None:
    """Case A10: dp·tp = moe_tp·moe_ep, all four from the flags alone."""
    widths = with_levers(
        config, Role.COLOCATED, parse_args(config.engine, config.engine_version, rendered(config))
    ).resolved(Role.COLOCATED)
    if config.is_moe:
        ranks = widths.gpus_count // widths.pipeline_parallel
        if (
            config.engine is not Engine.VLLM
            and widths.attention_tp * widths.attention_dp != widths.moe_tp * widths.moe_ep
        ):
            ranks //= widths.attention_dp  # whole copies of the engine
        assert widths.moe_tp * widths.moe_ep == ranks


@pytest.mark.parametrize(("engine", "version"), [(e, v) for e in REGISTERED for v in REGISTERED[e]])
def test_every_flag_of_a_map_is_registered_in_that_version(engine: str, version: str) -> None:
    flags = flag_map(Engine(engine), version)
    ours = flags.runtime_flags() | {flag for form in flags.forms for flag in form.flags}
    assert ours <= set(REGISTERED[engine][version])


@pytest.mark.parametrize(
    ("version", "stated"),
    [
        ("0.5.13.post1", ["--dp-size=8", "--enable-dp-attention", "--cuda-graph-max-bs=128"]),
        ("v0.5.16-rocm720-mi30x", ["--dp-size=8", "--enable-dp-attention", "--cuda-graph-max-bs-decode=128"]),
        ("0.5.23", ["--attn-dp-size=8", "--cuda-graph-max-bs-decode=128"]),
    ],
)
def test_sglang_flags_move_with_the_version(version: str, stated: list[str]) -> None:
    """The wheels: `--cuda-graph-max-bs` is gone in 0.5.20, `--attn-dp-size` comes in 0.5.22."""
    config = configuration(
        engine="SGLang",
        engineVersion=version,
        layout={"tensorParallel": 8, "attentionDataParallel": 8, "expertParallel": 8},
        model={"name": "m", "source": {"hub": {"id": "org/m"}}, "architecture": "MixtureOfExperts"},
        maxGraphBatch=128,
    )
    arguments = rendered(config)
    assert set(stated) <= set(arguments)
    unstated = {"--dp-size=8", "--enable-dp-attention", "--attn-dp-size=8", "--cuda-graph-max-bs=128"} - set(stated)
    assert not unstated & set(arguments)
    assert config.resolved(Role.COLOCATED).gpus_count == 8


def test_a_vllm_command_line_by_hand() -> None:
    config = configuration(
        layout={"tensorParallel": 1, "dataParallel": 8, "expertParallel": 8},
        model={"name": "m", "source": {"hub": {"id": "org/m"}}, "architecture": "MixtureOfExperts"},
        memoryPermille=925,
        speculation={"method": "MTP", "draftTokens": 2},
        allToAll="MoRILowLatency",
        graphCaptureSizes=[1, 2, 4],
    )
    assert render_args(config, Role.COLOCATED, model_path="org/m", port=8000) == [
        "org/m",
        "--served-model-name=m",
        "--host=0.0.0.0",
        "--port=8000",
        "--tensor-parallel-size=1",
        "--data-parallel-size=8",
        "--enable-expert-parallel",
        "--max-model-len=1536",
        "--max-num-seqs=64",
        "--max-num-batched-tokens=8192",
        "--gpu-memory-utilization=0.925",
        "--kv-cache-dtype=bfloat16",
        "--enable-prefix-caching",
        "--cudagraph-capture-sizes",
        "1",
        "2",
        "4",
        '--speculative-config={"method":"mtp","num_speculative_tokens":2}',
        "--all2all-backend=mori_low_latency",
    ]


@pytest.mark.parametrize(("backend", "role"), [(b, r) for b in ("MoRI", "NIXL") for r in (Role.PREFILL, Role.DECODE)])
@pytest.mark.parametrize("engine", ["VLLM", "SGLang"])
def test_the_transfer_flags_give_backend_and_role_back(engine: str, backend: str, role: Role) -> None:
    sides = {
        "prefill": {"layout": {"tensorParallel": 4}, "replicas": 2},
        "decode": {"layout": {"tensorParallel": 8}, "replicas": 1},
    }
    config = configuration(
        engine=engine,
        engineVersion={"VLLM": "0.33.0", "SGLang": "0.5.16"}[engine],
        layout=None,
        replicas=None,
        disaggregation={"backend": backend, **sides},
    )
    levers = parse_args(config.engine, config.engine_version, rendered(config, role), role)
    assert levers == levers_of(config, role)
    assert with_levers(config, role, levers).pool(role) == config.pool(role)


def test_speculation_of_sglang_counts_the_verified_token() -> None:
    """Three drafts of width one are three steps and four tokens to verify."""
    arguments = rendered(
        configuration(engine="SGLang", engineVersion="0.5.16", speculation={"method": "MTP", "draftTokens": 3})
    )
    assert "--speculative-num-steps=3" in arguments
    assert "--speculative-eagle-topk=1" in arguments
    assert "--speculative-num-draft-tokens=4" in arguments


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"engineVersion": "0.34.0"}, "0.33.0 to 0.33.99, got .0.34.0.; flags of other versions are not guessed"),
        ({"engineVersion": "nightly"}, "be a release"),
        ({"layout": {"tensorParallel": 8, "expertParallel": 4}, "moe": True}, "EP"),
        ({"layout": {"tensorParallel": 8, "expertParallel": 8}}, "be 1 for a dense model"),
        (
            {
                "engine": "SGLang",
                "engineVersion": "0.5.16",
                "layout": {"tensorParallel": 8, "expertParallel": 3},
                "moe": True,
            },
            "divide the 8 ranks",
        ),
        ({"engine": "ATOM", "engineVersion": "0.1.4", "maxGraphBatch": 64}, "state graphCaptureSizes"),
        ({"engineVersion": "0.20.2", "allToAll": "MoRILowLatency"}, "name of the MoRI kernels changed"),
        (
            {"engine": "SGLang", "engineVersion": "0.5.16", "speculation": {"method": "NGram", "draftTokens": 2}},
            "MTP, EAGLE, EAGLE3",
        ),
        ({"extraArgs": ["--tensor-parallel-size=2"]}, "not repeat a flag"),
        ({"extraArgs": ["--tensor-parallel-size", "2"]}, "not repeat a flag"),
        ({"chunkTokens": 2048}, "chunk is its token budget"),
    ],
)
def test_what_no_flag_can_state_is_refused(changes: dict[str, Any], message: str) -> None:
    changes = dict(changes)
    if changes.pop("moe", False):
        changes["model"] = {"name": "m", "source": {"hub": {"id": "org/m"}}, "architecture": "MixtureOfExperts"}
    with pytest.raises(InputError, match=message if message != "EP" else "be 1 or layout.tensorParallel"):
        rendered(configuration(**changes))


@pytest.mark.parametrize(
    "arguments",
    [
        ["m", "--tensor-parallel-size=2", "--tensor-parallel-size=2"],
        ["m", "--not-a-flag=1"],
        ["m", "--max-num-seqs=many"],
    ],
)
def test_a_command_line_that_is_not_ours_is_refused(arguments: list[str]) -> None:
    with pytest.raises(InputError):
        parse_args(Engine.VLLM, "0.33.0", arguments)


def test_a_length_below_prompt_and_output_is_refused() -> None:
    with pytest.raises(ValueError, match="at least `promptTokens`"):
        configuration(maxModelLengthTokens=1535)
