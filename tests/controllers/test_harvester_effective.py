"""What ran, read from reports, labels, arguments and logs; what the devices say."""

from __future__ import annotations

from pathlib import Path

import pytest

from inferasim_harvester import device, engine_process, live_checks
from inferasim_harvester.device import Device
from inferasim_harvester.effective import comparable, read_effective
from inferasim_harvester.metrics_page import counters, parse_page, requests_by_rank, total
from simcore.anchors.checks import Verdict, effective_configuration
from simcore.cards.layout import Engine

NEW = """
# HELP vllm:prefix_cache_queries_total x
vllm:prefix_cache_queries_total{engine="0",model_name="m"} 16384.0
vllm:prefix_cache_hits_total{engine="0",model_name="m"} 12000.0
vllm:num_requests_running{engine="0",model_name="m"} 0.0
vllm:num_requests_running{engine="1",model_name="m"} 0.0
vllm:cache_config_info{block_size="16",cache_dtype="fp8",enable_prefix_caching="True",num_gpu_blocks="1000"} 1.0
garbage {{{
"""


def test_counters_of_a_page() -> None:
    """Public case E02's figures; a line that is no sample is skipped."""
    found = counters(Engine.VLLM, parse_page(NEW))
    assert (found.hit_tokens, found.queried_tokens) == (12000.0, 16384.0)
    assert found.preemptions is None


def test_old_and_new_names_read_the_same() -> None:
    """Public case E11."""
    old = parse_page("atom:num_requests_running 3\n")
    new = parse_page("atom:requests_running 3\n")
    names = ("atom:requests_running", "atom:num_requests_running")
    assert total(old, names) == total(new, names) == 3.0
    assert total([], names) is None


def test_labels_of_vllm() -> None:
    found = read_effective(Engine.VLLM, "0.33.0", argv=None, report=None, samples=parse_page(NEW), log="")
    assert found.settings == {"attentionDataParallel": 2, "prefixCaching": "on", "kvDtype": "fp8"}
    assert found.kv_pool_tokens == 16000


def test_the_report_outranks_the_arguments() -> None:
    report = {"tp_size": 4, "enable_dp_attention": True, "dp_size": 4, "disable_radix_cache": True, "version": "0.5.16"}
    argv = ["python3", "-m", "sglang.launch_server", "--tp-size=8", "--disable-radix-cache"]
    found = read_effective(Engine.SGLANG, "0.5.16", argv=argv, report=report, samples=[], log="")
    assert found.settings["tensorParallel"] == 4
    assert found.seen["tensorParallel"] == "server report"
    assert found.settings["attentionDataParallel"] == 4
    assert found.settings["expertParallel"] == 1
    assert found.version == "0.5.16"


def test_log_lines_give_absolute_bytes() -> None:
    """Public case A19: bytes, never a ratio. Lines as vLLM 0.33 words them."""
    log = (
        "Model loading took 14.99 GiB memory and 3.2 seconds\n"
        "GPU KV cache size: 1,217,024 tokens, Maximum concurrency for 8,192 tokens per request: 148.56x\n"
        "Graph capturing finished in 12 secs, took 0.61 GiB\n"
        "compilation_config={'cudagraph_capture_sizes': [1, 2, 4, 8, 16], 'x': 1}\n"
    )
    found = read_effective(Engine.VLLM, "0.33.0", argv=None, report=None, samples=[], log=log)
    assert found.memory["weightsBytes"] == int(14.99 * 2**30)
    assert found.memory["graphBytes"] == int(0.61 * 2**30)
    assert found.kv_pool_tokens == 1_217_024
    assert found.graph_sizes == (1, 2, 4, 8, 16)


def test_two_names_of_one_dtype_are_one() -> None:
    """Public case A24."""
    found = read_effective(Engine.VLLM, "0.33.0", argv=None, report=None, samples=parse_page(NEW), log="")
    asked, ran = comparable({"kvDtype": "fp8_e4m3"}, found)
    assert effective_configuration(asked, {"kvDtype": ran["kvDtype"]}).verdict is Verdict.PASS


def test_unseen_settings_are_flagged_not_passed() -> None:
    assert effective_configuration({"tensorParallel": 8}, {}).verdict is Verdict.FLAG


def fake_gpus(root: Path, *, used: int, busy: int, compute: str = "SPX", count: int = 2) -> Path:
    for index in range(count):
        folder = root / "class" / "drm" / f"card{index}" / "device"
        folder.mkdir(parents=True)
        for name, text in {
            "vendor": "0x1002",
            "current_compute_partition": compute,
            "current_memory_partition": "NPS1",
            "mem_info_vram_total": str(309_220_868_096),
            "mem_info_vram_used": str(used),
            "gpu_busy_percent": str(busy),
        }.items():
            (folder / name).write_text(text + "\n")
    (root / "class" / "drm" / "card0-DP-1").mkdir()
    nodes = root / "class" / "kfd" / "kfd" / "topology" / "nodes"
    for index, version in enumerate((0, 90500)):
        (nodes / str(index)).mkdir(parents=True)
        (nodes / str(index) / "properties").write_text(f"cpu_cores_count 0\ngfx_target_version {version}\n")
    return root


def test_devices_by_the_drivers_word(tmp_path: Path) -> None:
    root = fake_gpus(tmp_path, used=300_000_000, busy=0)
    assert device.devices(root) == [Device("spx_nps1", 309_220_868_096, 300_000_000, 0)] * 2
    assert device.architecture(root) == "gfx950"
    assert device.devices(tmp_path / "nothing") == []
    assert device.architecture(tmp_path / "nothing") is None


@pytest.mark.parametrize(
    ("used", "busy", "expected", "verdict"),
    [(300_000_000, 0, 2, "pass"), (30_000_000_000, 0, 2, "refuse"), (0, 40, 2, "refuse"), (0, 0, 4, "refuse")],
)
def test_idle_devices(tmp_path: Path, used: int, busy: int, expected: int, verdict: str) -> None:
    found = device.devices(fake_gpus(tmp_path, used=used, busy=busy))
    assert live_checks.idle_devices(found, expected, is_gpu=True, own_engine=True).verdict.value == verdict


def test_another_partition_is_refused(tmp_path: Path) -> None:
    """Public case A26: DPX nodes carry the same device id."""
    found = device.devices(fake_gpus(tmp_path, used=0, busy=0, compute="DPX"))
    mode, check = live_checks.one_partition(found, "spx_nps1", is_gpu=True)
    assert mode == "dpx_nps1"
    assert check.verdict is Verdict.REFUSE
    assert check.numbers["deviceMemoryBytes"] == 309_220_868_096


EXPORTER = """
amd_gpu_violation_current_accumulated_counter{gpu_id="0"} 981233
amd_gpu_violation_ppt_residency_accumulated{gpu_id="0"} 5
amd_gpu_violation_ppt_residency_accumulated{gpu_id="1"} 7
amd_gpu_violation_hbm_thermal_residency_accumulated{gpu_id="0"} 0
amd_gpu_violation_vr_thermal_residency_accumulated{gpu_id="0"} 1.8446744073709552e+19
amd_gpu_violation_low_utilization_accumulated{gpu_id="0"} 400
amd_gpu_violation_gfx_clock_below_host_limit_total_accumulated{gpu_id="0"} 12
amd_gpu_violation_ppt_percentage{gpu_id="0"} 3
amd_gpu_clock{gpu_id="0"} 2100
"""


def test_throttle_counters_by_cause() -> None:
    """The count of all samples grows for ever and idle clocks are no throttling (amdsmi_violation_status_t)."""
    assert device.violations(parse_page(EXPORTER)) == {"ppt": 12.0, "hbm_thermal": 0.0}
    assert device.violations(parse_page("amd_gpu_clock 2100\n")) is None
    assert device.violations(parse_page(EXPORTER.replace(" 7", " NaN"))) is None


@pytest.mark.parametrize(
    ("before", "after", "verdict"),
    [
        ({"ppt": 5.0, "hbm_thermal": 0.0}, {"ppt": 5.0, "hbm_thermal": 0.0}, "pass"),
        ({"ppt": 5.0}, {"ppt": 9.0}, "flag"),  # at its power limit: slower than another node, not broken
        ({"hbm_thermal": 0.0}, {"hbm_thermal": 1.0}, "refuse"),
        ({"ppt": 5.0, "processor_hot": 1.0}, {"ppt": 6.0, "processor_hot": 2.0}, "refuse"),
        ({}, {"socket_thermal": 3.0}, "refuse"),
        ({"ppt": 5.0}, {"ppt": 1.0}, "flag"),
        ({"ppt": 5.0}, None, "flag"),
        (None, None, "flag"),
    ],
)
def test_throttling(before: dict[str, float] | None, after: dict[str, float] | None, verdict: str) -> None:
    assert live_checks.throttling(before, after, is_gpu=True).verdict == verdict
    assert live_checks.throttling(before, after, is_gpu=False).verdict is Verdict.PASS


def test_a_stranger_on_the_engine_is_refused() -> None:
    check = live_checks.clock_agreement(10.0, 10.0, 12.0, 10)
    assert check.verdict is Verdict.REFUSE
    assert "something else uses it" in check.detail


def test_command_lines_of_a_session(tmp_path: Path) -> None:
    """The process that serves is the one that names our port, whatever wrapper started it."""
    for pid, session, line in ((10, 10, "sh\0wrap.sh"), (11, 10, "python\0--port=8000\0-tp\0002"), (12, 9, "other")):
        folder = tmp_path / str(pid)
        folder.mkdir()
        (folder / "stat").write_text(f"{pid} (na) me) S 1 {session} {session} 0")
        (folder / "cmdline").write_text(line + "\0")
    lines = engine_process.group_of(10, tmp_path)
    assert lines[0] == ["sh", "wrap.sh"]
    assert engine_process.longest_command_line(lines, ["vllm", "--port=8000"]) == ["python", "--port=8000", "-tp", "2"]
    assert engine_process.longest_command_line([["x"]], ["vllm", "--port=8000"]) is None


@pytest.mark.parametrize(
    ("recall", "kv_dtype", "more", "verdict"),
    [
        (0.97, "fp8_e4m3", {}, "pass"),
        (0.5, "bfloat16", {}, "flag"),
        (0.5, "fp8_e4m3", {}, "refuse"),
        (0.01, None, {}, "refuse"),
        (0.01, "fp8", {"real_weights": False}, "flag"),
        (0.01, "fp8", {"is_forced": True}, "flag"),  # a synthetic sampler writes what no model would
        (None, "fp8", {}, "flag"),
    ],
)
def test_output_that_makes_no_sense(
    recall: float | None, kv_dtype: str | None, more: dict[str, bool], verdict: str
) -> None:
    """Public case A24: FP8 KV of the other kind serves 200 and garbage."""
    assert live_checks.output(recall, kv_dtype, **more).verdict == verdict


def test_a_real_report_of_vllm() -> None:
    """From the answer of vLLM 0.32.0 on a CPU to /server_info?config_format=json, the parts that are read."""
    report = {
        "vllm_config": {
            "parallel_config": {
                "tensor_parallel_size": 1,
                "pipeline_parallel_size": 1,
                "data_parallel_size": 1,
                "enable_expert_parallel": False,
            },
            "cache_config": {
                "enable_prefix_caching": False,
                "cache_dtype": "auto",
                "kv_cache_size_tokens": 349440,
            },
            "model_config": {"enforce_eager": True},
            "scheduler_config": {"max_num_batched_tokens": 2048, "long_prefill_token_threshold": 0},
            "compilation_config": {"cudagraph_capture_sizes": [], "cudagraph_mode": 0},
            "load_config": {"load_format": "dummy"},
            "speculative_config": None,
        }
    }
    found = read_effective(Engine.VLLM, "0.32.0", argv=None, report=report, samples=[], log="")
    assert found.settings == {
        "tensorParallel": 1,
        "pipelineParallel": 1,
        "attentionDataParallel": 1,
        "expertParallel": "off",
        "prefixCaching": "off",
        "graphCapture": "off",
        "randomWeights": "on",
        "speculation": "off",
    }
    assert (found.token_budget, found.longest_chunk, found.step_tokens) == (2048, None, 2048)
    assert (found.kv_pool_tokens, found.graph_sizes) == (349440, ())


@pytest.mark.parametrize(
    ("mode", "known", "capture"),
    [
        (0, None, "off"),
        (1, "piecewise", "on"),
        (2, "full", "on"),
        ([2, 0], "full", "on"),
        ([2, 1], "full", "on"),
        ("FULL_AND_PIECEWISE", "full", "on"),
        ("PIECEWISE", "piecewise", "on"),
        ("NONE", None, "off"),
        (None, None, "on"),
    ],
)
def test_graph_modes_of_vllm(mode: object, known: str | None, capture: str) -> None:
    """vllm/config/compilation.py, CUDAGraphMode: numbers and pairs in JSON; `enforce_eager` alone does not tell."""
    parts = {"compilation_config": {"cudagraph_mode": mode}, "model_config": {"enforce_eager": False}}
    found = read_effective(Engine.VLLM, "0.33.0", argv=None, report={"vllm_config": parts}, samples=[], log="")
    assert (found.graph_mode, found.settings["graphCapture"]) == (known, capture)


def test_requests_by_rank() -> None:
    name = "vllm:e2e_request_latency_seconds_count"
    page = f'{name}{{engine="0",model_name="m"}} 12\n{name}{{engine="1",model_name="m"}} 4\n'
    assert requests_by_rank(Engine.VLLM, parse_page(page)) == {"0": 12.0, "1": 4.0}
    assert requests_by_rank(Engine.ATOM, parse_page(page)) == {}


@pytest.mark.parametrize(
    ("counts", "ranks", "verdict"),
    [
        ({"0": 16.0, "1": 16.0}, 2, "pass"),
        ({"0": 20.0, "1": 12.0}, 2, "flag"),  # 25 % more than its share
        ({"0": 32.0}, 2, "flag"),  # one rank cannot be told from the other
        ({}, 8, "flag"),
        ({}, 1, "pass"),
    ],
)
def test_ranks_share_a_wave_evenly(counts: dict[str, float], ranks: int, verdict: str) -> None:
    assert live_checks.rank_balance({"decode/64/8": counts}, ranks).verdict == verdict


GIB = 1 << 30


@pytest.mark.parametrize(
    ("product", "architecture", "memory_gib", "verdict"),
    [
        ("MI355X", "gfx950", 288, "pass"),
        ("MI355X", "gfx942", 288, "refuse"),  # a label that names another GPU
        ("MI300X", "gfx942", 192, "pass"),
        ("MI300X", "gfx942", 256, "refuse"),  # it is an MI325X: the same architecture, more memory
        ("MI325X", "gfx942", 256, "pass"),
        ("MI355X", None, 288, "flag"),
        ("MI999X", "gfx950", 288, "flag"),
    ],
)
def test_the_devices_are_what_the_anchor_names(
    product: str, architecture: str | None, memory_gib: int, verdict: str
) -> None:
    """Public case A26: labels lie about the product and the memory."""
    found = [Device("spx_nps1", memory_gib * GIB, 0, 0)]
    assert live_checks.device_kind(found, architecture, product, is_gpu=True).verdict == verdict


def test_memory_of_a_divided_gpu_is_not_judged() -> None:
    found = [Device("cpx_nps4", 72 * GIB, 0, 0)]
    assert live_checks.device_kind(found, "gfx950", "MI355X", is_gpu=True).verdict is Verdict.PASS
    assert live_checks.device_kind([], None, "CPU", is_gpu=False).verdict is Verdict.PASS


@pytest.mark.parametrize(
    ("held", "labelled", "verdict"),
    [
        ("bf16", "bf16", "pass"),
        ("bf16", "bfloat16", "pass"),
        ("bf16", "fp8", "refuse"),
        ("fp16", "bf16", "refuse"),
        ("compressed-tensors", "fp8", "pass"),
        (None, "fp8", "pass"),
    ],
)
def test_weights_are_in_the_format_that_the_anchor_names(held: str | None, labelled: str, verdict: str) -> None:
    assert live_checks.checkpoint_dtype(held, labelled).verdict == verdict
