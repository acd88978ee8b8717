"""Corpora that hold little or start from an odd end: pipelines as anchors, copies, queues, hidden columns. By hand."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from simcore.cards.layout import Layout
from simcore.stepcost.calibration import calibration
from simcore.stepcost.features import LayoutFeatures
from simcore.stepcost.width import WidthLaw
from simcore.validate.anchor_export import fit_anchor
from simcore.validate.cells import Cell, cells_of, lengths_by_shape
from simcore.validate.corpus import CorpusRow, Role, parse_corpus, read_corpus
from simcore.validate.evaluate import _card_features, evaluate
from simcore.validate.layout_fit import FittedLayout, Prefill
from simcore.validate.project import Projection
from simcore.validate.series import _caps_requests, _moved_tokens
from simcore.validate.stages import Stages, one_stage
from tools.accuracy_stress import every_layout_from_every_other

TABLE_20 = Path(__file__).resolve().parents[1] / "golden" / "table20_corpus.csv"
HEADER = "series,role,engine,model,accelerator,weights_dtype,tp,dp,isl_tokens,osl_tokens,concurrency,ttft_ms,tpot_ms"


def _features(**changes: float) -> LayoutFeatures:
    found = _card_features("Llama-3.1-8B", "MI355X", "SGLang", "", Layout(tensor_parallel=1))
    assert found is not None
    return replace(found, **changes)  # type: ignore[arg-type]


def _corpus(*rows: str) -> tuple[CorpusRow, ...]:
    return parse_corpus("\n".join([HEADER, *rows]) + "\n")


def test_what_a_stage_adds_is_hop_transfer_and_host() -> None:
    # Table 5: 970 us a hop, 0.33 ms + 6.3 us per request; Table 19: one link of 600 GB/s x 0.62 / 7; 8 tokens of 8 KiB.
    transfer_s = 4.98e-6 + 8 * 8192 / (600e9 * 0.62 / 7)
    full = Stages.of(2, 16.0, _features())
    assert (full.flights, full.micro_batch) == (2.0, 8.0)
    assert full.added_s(8.0) == pytest.approx(transfer_s + 970e-6 + 0.33e-3 + 8 * 6.3e-6, rel=1e-9)
    alone = Stages.of(4, 1.0, _features())
    assert alone.added_s(1.0) == pytest.approx(4.98e-6 + 8192 / (600e9 * 0.62 / 7) + 970e-6, rel=1e-9)
    assert Stages.of(1, 16.0, _features()).added_s(16.0) == 0.0


def test_a_cell_of_two_stages_as_one_stage() -> None:
    cell = Cell((1024, 1001), 16, 1024.0, 1001.0, 0.2, 0.010, False, 16.0, False)
    host_s = 0.33e-3 + 8 * 6.3e-6
    token_s = 4.98e-6 + 8 * 8192 / (600e9 * 0.62 / 7) + 970e-6 + host_s
    prompt_s = 4.98e-6 + 1024 * 8192 / (600e9 * 0.62 / 7) + 970e-6 + host_s
    seen = one_stage(cell, 2, _features())
    assert (seen.clients, seen.running) == (8, 8.0)
    # Two hops a token, and fifteen other prompts, each of which keeps a stage busy once in 1,000 tokens.
    assert seen.tpot_s == pytest.approx(0.010 - 2 * token_s - 15 * prompt_s / 1000, rel=1e-9)
    assert seen.ttft_s == pytest.approx(0.2 - 2 * prompt_s, rel=1e-9)
    assert one_stage(cell, 1, _features()) is cell


def test_any_depth_of_the_papers_ladders_predicts_any_other() -> None:
    """From PP2, PP4 or PP8 rows to all other depths: within what the paper prints from PP1 rows (7.2, 2.3, 9.2 %)."""
    rows = every_layout_from_every_other(read_corpus(TABLE_20))
    found = [item for item in evaluate(rows) if " TP1 to " not in item.row.series]
    errors = [abs(error) for item in found if (error := item.scored.error("tpot")) is not None]
    assert len(errors) > 100
    assert 100 * statistics.median(errors) < 7.2


def test_copies_share_the_clients() -> None:
    """Twice the copies with twice the clients serve each client alike, also where the anchor is no single copy."""
    anchors = [
        f"s,anchor,SGLang,Llama-3.1-8B,MI355X,bf16,1,2,1024,1024,{2 * c},{20 * c},{5 + c / 8}" for c in (1, 4, 16)
    ]
    targets = [f"s,target,SGLang,Llama-3.1-8B,MI355X,bf16,1,4,1024,1024,{4 * c},1,1" for c in (1, 4, 16)]
    rows = _corpus(*anchors, *targets)
    again = [replace(row, role=Role.TARGET, line=0) for row in rows if row.role is Role.ANCHOR]
    two = [item.prediction for item in evaluate([*rows[:3], *again])]
    four = [item.prediction for item in evaluate(rows)]
    for narrow, wide in zip(two, four, strict=True):
        assert wide.tpot_s == pytest.approx(narrow.tpot_s, rel=1e-6)
        assert wide.ttft_s == pytest.approx(narrow.ttft_s, rel=1e-6)
        assert wide.throughput_tokens_per_s == pytest.approx(2 * narrow.throughput_tokens_per_s, rel=1e-6)


def test_a_cell_that_holds_more_than_the_saturated_ones_is_a_queue_too() -> None:
    """Little: of 256 clients 999 x 20 / (28,000 + 999 x 20) = 0.416 run, 107; so 128 queue and 64 do not."""
    rows = _corpus(
        *(
            f"s,anchor,SGLang,Llama-3.1-8B,MI355X,bf16,1,1,1000,1000,{clients},{ttft},{tpot}"
            for clients, ttft, tpot in ((64, 3000, 15.0), (128, 7000, 20.0), (256, 28000, 20.0))
        )
    )
    cells = cells_of(rows, lengths_by_shape(rows))
    assert [cell.is_waiting for cell in cells] == [False, True, True]
    assert cells[2].running == pytest.approx(256 * 19.98 / (28 + 19.98))
    assert cells[1].running == pytest.approx(128 * 19.98 / (7 + 19.98))


def _held(tokens: float) -> float:
    """Tokens at the wider layout. Card of the source: (0.9 x 80 - 60) GB / 200 kB = 60,000 tokens."""
    plain = {"expert_bytes": 0.0, "window_bytes_per_token": 0.0, "hbm_bytes": 80e9}
    source = _features(matrix_bytes=60e9, context_bytes_per_token=2e5, **plain)
    target = _features(matrix_bytes=30e9, context_bytes_per_token=1e5, **plain)
    cell = Cell((1024, 1024), 4, 1024.0, 1024.0, 0.2, 0.01, False, 4.0, False)
    fitted = FittedLayout((cell,), Prefill(0.02, 1e-5, 0.0), 0.0, 0.0, source, np.array([0.01]), np.ones(1))
    return _moved_tokens(tokens, Projection(fitted, target, WidthLaw.SPLIT_FLOOR, 1, 2, calibration()))


def test_weights_that_leave_a_gpu_make_room_for_tokens() -> None:
    # 20,000 tokens are 4 GB of the 12 the card leaves; the 8 stay unused, and 30 GB of weights leave: 34 GB / 100 kB.
    assert _held(20_000) == pytest.approx(340_000)
    # 90,000 tokens in 12 GB are smaller than the card says, by 1.5: (72 - 30) GB / 100 kB x 1.5.
    assert _held(90_000) == pytest.approx(630_000)


def _cell(prompt: float, running: float, *, is_waiting: bool) -> Cell:
    return Cell((int(prompt), 100), 256, prompt, 100.0, 9.0, 0.02, False, running, is_waiting)


def test_only_batches_alike_at_contexts_that_differ_are_a_cap_on_requests() -> None:
    capped = [_cell(1000, 64, is_waiting=True), _cell(4000, 62, is_waiting=True)]
    assert _caps_requests(capped, capped)
    assert not _caps_requests(capped[:1], capped)  # one length shows tokens as well as requests
    tokens = [_cell(4000, 64, is_waiting=True), _cell(4200, 62, is_waiting=True)]
    assert not _caps_requests(tokens, tokens)
    assert not _caps_requests(capped, [*capped, _cell(100, 128, is_waiting=False)]), "128 run elsewhere without waiting"


def test_below_the_measured_batches_the_cards_take_their_work_off() -> None:
    """1 ms of FLOP per request: 64 of them in a step of 100 ms leave 68 ms at 32 and 37 ms at one."""
    features = _features(token_flop=1e12, peak_flop_per_s=1e15, context_bytes_per_token=0.0)
    cell = Cell((1024, 1024), 64, 1024.0, 1024.0, 0.2, 0.1, False, 64.0, False)
    fitted = FittedLayout((cell,), Prefill(0.02, 1e-5, 0.0), 0.0, 0.0, features, np.array([0.1]), np.ones(1))
    assert [fitted.step_at(batch, 1536.0, (1024, 1024)) for batch in (64.0, 32.0, 1.0)] == pytest.approx(
        [0.100, 0.068, 0.037]
    )
    # The nearest measured batch is six doublings from 1 and three from 512; half of one is no gap.
    assert [fitted.gap_doublings(batch) for batch in (1.0, 64.0, 90.0, 512.0)] == pytest.approx([5.5, 0.0, 0.0, 2.5])


def test_a_layout_that_cannot_hold_its_weights_is_flagged() -> None:
    """671 GB of DeepSeek-R1 in 8 bit do not fit 288 GB."""
    row = "s,{},ATOM,DeepSeek-R1-0528,MI355X,fp8,{},1,1024,1024,4,100,10"
    flags = {width: evaluate(_corpus(row.format("anchor", 8), row.format("target", width)))[0] for width in (1, 4)}
    assert "weights-do-not-fit" in flags[1].prediction.flags
    assert "weights-do-not-fit" not in flags[4].prediction.flags


def test_hidden_ttfts_are_said_and_widen_the_interval() -> None:
    """A median error of one half makes an 80 % interval of at least exp(1.9 x 0.5) to each side."""
    rows = read_corpus(TABLE_20)
    told = evaluate(rows)
    hidden = evaluate([replace(row, ttft_s=None) if row.role is Role.ANCHOR else row for row in rows])
    assert not any("ttft-not-measured" in item.prediction.flags for item in told)
    for item in hidden:
        assert "ttft-not-measured" in item.prediction.flags
        low, high = item.scored.interval["ttft"]
        assert math.sqrt(high / low) > math.exp(0.95)
    anchor = fit_anchor([replace(row, ttft_s=None) for row in rows if row.role is Role.ANCHOR][:6])
    assert anchor.provenance.residuals["ttft"] == 0.5
