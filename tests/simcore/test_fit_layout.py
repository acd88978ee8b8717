"""Fitting a layout from rows: rows made from a known step model by hand give that model back."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from inferasim_operator.cli.fit import run as fit_table
from simcore.errors import InputError
from simcore.stepcost.calibration import calibration
from simcore.validate.anchor_export import fit_anchor
from simcore.validate.cells import cells_of, lengths_by_shape
from simcore.validate.corpus import CorpusRow, parse_corpus
from simcore.validate.evaluate import card_features
from simcore.validate.layout_fit import fit_layout, prior_prefill

HEADER = (
    "series,role,engine,model,accelerator,weights_dtype,tp,isl_tokens,osl_tokens,concurrency,"
    "tpot_ms,ttft_ms,throughput_tok_s,length_range_ratio"
)
CLIENTS = (1, 4, 16, 64)
HOST_MS = 20.0


def _step_ms(batch: int) -> float:
    return 5.0 + 0.6 * math.log2(2 * batch)


def _waits(clients: int) -> float:
    return 1.0 + 0.05 * (clients - 1)


def _rows(model: str = "Llama-3.1-8B", accelerator: str = "MI355X") -> tuple[CorpusRow, ...]:
    """A layout with h = 20 ms, P = 25 ms at 1k and 50 ms at 2k, written from T = h + C P + (m - 1) s(C) by hand."""
    lines = [HEADER]
    for prompt, prefill_ms in ((1024, 25.0), (2048, 50.0)):
        for clients in CLIENTS:
            gaps = 1023
            request_ms = HOST_MS + clients * prefill_ms + gaps * _step_ms(clients)
            ttft_ms = HOST_MS + prefill_ms * _waits(clients)
            tpot_ms = (request_ms - ttft_ms) / gaps
            tokens = clients * 1024 / request_ms * 1000
            lines.append(
                f"s,anchor,SGLang,{model},{accelerator},bf16,1,{prompt},1024,{clients},"
                f"{tpot_ms:.4f},{ttft_ms:.3f},{tokens:.2f},1"
            )
    return parse_corpus("\n".join(lines) + "\n")


def test_step_and_prefill_come_back() -> None:
    rows = _rows()
    features = card_features(rows[0], rows[0].layout)
    assert features is not None
    fitted = fit_layout(cells_of(rows, lengths_by_shape(rows)), features, calibration())
    for cell, step_s in zip(fitted.cells, fitted.step_s, strict=True):
        # Prefill per token and context per token are both linear in the prompt, so 64 clients leave 12 % between them.
        assert step_s * 1e3 == pytest.approx(_step_ms(cell.clients), rel=0.15 if cell.clients > 16 else 0.05)
    assert fitted.prefill.seconds(1024) * 1e3 == pytest.approx(25.0, rel=0.35)
    assert fitted.prefill.seconds(2048) > fitted.prefill.seconds(1024)


def test_prior_prefill_is_flop_over_learnt_rate() -> None:
    row = _rows()[0]
    features = card_features(row, row.layout)
    assert features is not None
    learnt = calibration()
    prior = prior_prefill(features, learnt)
    assert prior.s_per_token == features.token_flop / (learnt.dense_prefill_flop_frac * features.peak_flop_per_s)
    # Llama-3.1-8B: 8.03 G parameters less the input embedding, two FLOP each
    assert features.token_flop == pytest.approx(2 * (8.03e9 - 128256 * 4096), rel=0.01)
    assert features.weight_bytes == pytest.approx(2 * (8.03e9 - 128256 * 4096), rel=0.01)


def test_without_a_card_the_rows_alone_tell_host_prefill_and_step() -> None:
    rows = _rows(model="NoSuchModel-1B")
    assert card_features(rows[0], rows[0].layout) is None
    cells = cells_of(rows, lengths_by_shape(rows))
    fitted = fit_layout(cells, None, calibration(), np.array([_waits(cell.clients) for cell in cells]))
    assert fitted.host_s * 1e3 == pytest.approx(HOST_MS, rel=1e-3)
    assert fitted.prefill.seconds(1024) * 1e3 == pytest.approx(25.0, rel=1e-3)
    assert [step * 1e3 for step in fitted.step_s] == pytest.approx([_step_ms(cell.clients) for cell in cells], rel=1e-3)


def test_anchor_says_that_it_is_fitted() -> None:
    anchor = fit_anchor(_rows())
    assert anchor.provenance.source == "fitted"
    assert anchor.provenance.residuals["tpot"] < 0.03
    assert anchor.provenance.max_concurrency == 64
    assert [point.batch for point in anchor.decode[0].points] == list(CLIENTS)
    assert len(anchor.decode) == 2
    assert anchor.digest() == fit_anchor(_rows()).digest()


def test_an_anchor_is_one_layout() -> None:
    mixed = parse_corpus(
        f"{HEADER}\n"
        "s,anchor,SGLang,Llama-3.1-8B,MI355X,bf16,1,1024,1024,1,5,30,200,1\n"
        "s,anchor,SGLang,Llama-3.1-8B,MI355X,bf16,2,1024,1024,1,5,30,200,1\n"
    )
    with pytest.raises(InputError, match="TP1, TP2"):
        fit_anchor(mixed)


def test_an_anchor_is_of_one_engine_and_one_series(tmp_path: Path) -> None:
    """64 clients over four copies are batches of 16: an anchor that keeps 64 would promise four times too much."""
    row = "s,anchor,SGLang,Llama-3.1-8B,MI355X,bf16,1,1024,1024,64,5,30,200,1\n"
    header = HEADER.replace("tp,", "tp,dp,", 1)
    with pytest.raises(InputError, match="divide clients and throughput by dp"):
        fit_anchor(parse_corpus(f"{header}\n" + row.replace("bf16,1,", "bf16,1,4,")))
    table = tmp_path / "two.csv"
    table.write_text(f"{HEADER}\n{row}{row.replace('s,', 't,', 1)}", encoding="utf-8")
    with pytest.raises(InputError, match="say which with --series"):
        fit_table(str(table))
    assert fit_table(str(table), series="t").provenance.source == "fitted"
