"""Single steps at several widths: the split floor against Eq. 1 on the figures printed for Qwen3-32B."""

from __future__ import annotations

from pathlib import Path

import pytest

from simcore.cards.layout import Layout
from simcore.errors import FormatError, InputError
from simcore.stepcost.width import WidthLaw
from simcore.validate.steps import (
    StepRow,
    _context_slope,
    _features,
    is_steps_file,
    project_steps,
    read_steps,
    steps_report,
)

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data" / "steps" / "steps_open.csv"
BATCH_ONE_MS = {1: 13.30, 2: 8.41, 4: 5.95, 8: 4.52}
"""Batch-1 decode steps of Qwen3-32B BF16 on vLLM by TP: simulators-facts, finding 2."""
HEADER = (
    "run,cell,phase,ctx_tokens,ctx_requests,ctx_kv_tokens,decode_requests,mean_decode_kv_bucket256,n,"
    "latency_ms_median,latency_ms_min,latency_ms_p90"
)


def _rows() -> list[StepRow]:
    return [
        StepRow(2, "qwen32", "Qwen3-32B", Layout(tensor_parallel=tp), "decode", 1, 256, ms / 1000)
        for tp, ms in BATCH_ONE_MS.items()
    ]


def test_weight_reading_shrinks_where_eq1_keeps_the_floor() -> None:
    ours = {step.series: step for step in project_steps(_rows())}
    paper = {step.series: step for step in project_steps(_rows(), law=WidthLaw.PAPER)}
    assert len(ours) == 6
    for name, step in ours.items():
        assert abs(step.error) < 0.20
        assert abs(step.error) < abs(paper[name].error)
    # Eq. 1 keeps the batch-1 step: 13.30 / 8.41 - 1 = 58 %, 13.30 / 4.52 - 1 = 194 %
    assert paper["Qwen3-32B:tp1-to-tp2"].error == pytest.approx(0.58, abs=0.01)
    assert paper["Qwen3-32B:tp1-to-tp8"].error == pytest.approx(1.94, abs=0.01)


def test_targets_are_not_read() -> None:
    rows = _rows()
    spoiled = [rows[0], *(StepRow(**{**row.__dict__, "step_s": 1.0}) for row in rows[1:])]
    ours = {step.series: step.predicted_s for step in project_steps(rows) if step.series.startswith("Qwen3-32B:tp1")}
    again = {step.series: step.predicted_s for step in project_steps(spoiled)}
    assert {name: again[name] for name in ours} == ours


def test_file_is_told_by_its_header_and_bad_fields_name_their_line(tmp_path: Path) -> None:
    path = tmp_path / "steps.csv"
    good = "x_qwen32_x,tp1_ep1,decode,0,0,0,1,256,5,13.3,13,14"
    path.write_text(f"{HEADER}\n{good}\n", encoding="utf-8")
    assert is_steps_file(path)
    assert len(read_steps(path)) == 1
    with pytest.raises(InputError, match="two tensor-parallel widths"):
        steps_report(read_steps(path))
    for old, new, field in (
        ("13.3", "-1", "latency_ms_median"), ("0,1,256", "0,inf,256", "decode_requests"), ("tp1_", "tp0_", "cell"),
        ("0,1,256,5,13.3,13,14", "0", "decode_requests"), (",13,14", ',13,"14', "row"),
        ("x_qwen32_x", "x" * 200_000, "row"),
    ):  # fmt: skip
        path.write_text(f"{HEADER}\n{good.replace(old, new)}\n", encoding="utf-8")
        with pytest.raises(FormatError, match=f"line [23]: `{field}`"):
            read_steps(path)


@pytest.mark.skipif(not SHARED.exists(), reason="the open step table is not beside the checkout")
def test_open_steps_within_eight_percent_between_any_two_widths() -> None:
    document = steps_report(read_steps(SHARED))
    medians = {part["series"]: part["medianAbsErrorPercent"]["tpot"] for part in document["series"]}
    for narrow, wide in ((1, 2), (1, 4), (1, 8), (2, 4), (2, 8), (4, 8)):
        assert medians[f"Qwen3-32B:tp{narrow}-to-tp{wide}"] <= 8.0


def test_one_batch_in_another_kernel_does_not_set_the_context_slope() -> None:
    """Batches 1 to 3 grow by 1 ms per GB of KV, batch 4 by 9: half of the bytes lie below batch 4, so 1 ms stands."""
    features = _features("Qwen3-32B", Layout(tensor_parallel=1))
    per_token = features.read_context_bytes(1.0)
    rows = [
        StepRow(
            1, "r", "Qwen3-32B", Layout(), "decode", batch, tokens, 0.01 + s_per_gb * batch * tokens * per_token / 1e9
        )
        for batch, s_per_gb in ((1, 1e-3), (2, 1e-3), (3, 1e-3), (4, 9e-3))
        for tokens in (1000, 5000)
    ]
    assert _context_slope(rows, features, 1.0) == pytest.approx(1e-3 / 1e9, rel=1e-6)
    assert _context_slope(rows[:1], features, 7.0) == 7.0
