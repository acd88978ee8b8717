"""Ranking of ladders: the measured layout is an alternative, at its measure; without an anchor all are simulated."""

from __future__ import annotations

from pathlib import Path

import pytest

from inferasim_operator.cli.validate import run
from simcore.validate.corpus import parse_corpus
from simcore.validate.evaluate import evaluate
from simcore.validate.ladders import ladders

HEAD = (
    "series,role,engine,model,accelerator,weights_dtype,tp,pp,dp,ep,"
    "isl_tokens,osl_tokens,concurrency,ttft_ms,tpot_ms,throughput_tok_s,samples,source\n"
)
SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "mi355x_open.csv"


def _row(role: str, width: int, clients: int, tpot_ms: float, throughput: float, model: str = "Llama-3.1-8B") -> str:
    return f"tp:x,{role},SGLang,{model},MI355X,bf16,{width},1,1,1,1024,256,{clients},50,{tpot_ms},{throughput},1,hand\n"


def _ladder(model: str = "Llama-3.1-8B", *, swapped: bool = False) -> str:
    """TP1 measured, TP2 to be ordered: per GPU TP1 gives more, and by hand so does every prediction of the two."""
    text = HEAD
    for clients, tpot_ms in ((1, 6.0), (8, 7.0), (32, 9.0)):
        rate = clients * 1000 / tpot_ms
        text += _row("anchor", 1, clients, tpot_ms, rate, model)
        text += _row("target", 2, clients, tpot_ms * 0.7, rate * (4.0 if swapped else 1.3), model)
    return text


def test_a_ladder_of_two_widths_by_hand() -> None:
    """Three loads, one pair each: right in both modes; with the measures swapped, wrong with a regret of half."""
    rows = parse_corpus(_ladder())
    found = ladders(rows, evaluate(rows))
    for mode in ("anchored", "analytical"):
        assert (found[mode]["pairs"], found[mode]["pairsOrderedPercent"]) == (3, 100.0)
        assert found[mode]["regretPercent"] == 0.0
        assert found[mode]["rows"] == 6
    rows = parse_corpus(_ladder(swapped=True))
    wrong = ladders(rows, evaluate(rows))["analytical"]
    assert (wrong["pairs"], wrong["pairsOrderedPercent"]) == (3, 0.0)
    assert wrong["regretPercent"] == pytest.approx(50.0), "TP1 was picked, TP2 gives twice as much per GPU"


def test_a_model_without_a_card_is_ranked_anchored_alone() -> None:
    rows = parse_corpus(_ladder("Nobodys-Model-7B"))
    found = ladders(rows, evaluate(rows))
    assert found["anchored"]["pairs"] == 3
    assert found["analytical"] == {"pairsOrderedPercent": None, "regretPercent": None, "pairs": 0, "rows": 0}


@pytest.mark.skipif(not SHARED.exists(), reason="the open corpora are not beside the checkout")
def test_the_open_ladders_are_ordered_as_the_paper_orders_them() -> None:
    """Issue: at least 93 % anchored, regret at most 3 %; the paper's simulate mode orders 89.0 %."""
    found = run(str(SHARED))["ladders"]
    assert found["anchored"]["pairsOrderedPercent"] >= 93.0
    assert found["anchored"]["regretPercent"] <= 3.0
    assert found["analytical"]["pairsOrderedPercent"] >= 89.0
