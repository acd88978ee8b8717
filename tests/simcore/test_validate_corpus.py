"""The corpus reader: what it takes, and one clear line with line number and field for what it refuses."""

from __future__ import annotations

import pytest

from simcore.errors import FormatError, InputError
from simcore.validate.cells import cells_of, lengths_by_shape
from simcore.validate.corpus import Role, parse_corpus
from simcore.validate.evaluate import Note, evaluate

HEADER = (
    "series,role,engine,model,accelerator,weights_dtype,tp,pp,dp,ep,attention_dp,pools,"
    "isl_tokens,osl_tokens,length_range_ratio,concurrency,ttft_ms,tpot_ms,throughput_tok_s,samples,source"
)
GOOD = "s,anchor,SGLang,Llama-3.1-8B,MI355X,bf16,1,1,1,1,1,,1024,1024,,16,185,5.03,3071,1,table"


def _text(*rows: str, header: str = HEADER) -> str:
    return "\n".join([header, *rows]) + "\n"


def test_row_in_si_units() -> None:
    row = parse_corpus(_text(GOOD))[0]
    assert (row.line, row.role, row.prompt_tokens, row.concurrency) == (2, Role.ANCHOR, 1024, 16)
    assert row.tpot_s == pytest.approx(0.00503)
    assert row.ttft_s == pytest.approx(0.185)
    assert row.length_range_ratio is None


def test_pools_with_unknown_counts() -> None:
    row = parse_corpus(_text(GOOD.replace(",1,1,1,1,1,,", ",8,1,1,1,1,prefill=xTP4EP4;decode=2xTP8,")))[0]
    assert row.prefill_pool is not None
    assert row.decode_pool is not None
    assert (row.prefill_pool.replicas_count, row.prefill_pool.layout.expert_parallel) == (None, 4)
    assert (row.decode_pool.replicas_count, row.decode_pool.layout.tensor_parallel) == (2, 8)
    assert row.pools_label == "?xTP4-EP4+2xTP8"


@pytest.mark.parametrize(
    ("old", "new", "field"),
    [
        (",16,185", ",0,185", "concurrency"),
        (",16,185", ",1.5,185", "concurrency"),
        (",185,5.03", ",185,-1", "tpot_ms"),
        (",185,5.03", ",185,inf", "tpot_ms"),
        (",185,5.03", ",185,1e9", "tpot_ms"),
        (",185,5.03", ",1e9,5.03", "ttft_ms"),
        (",185,5.03", ",185,0.00503", "tpot_ms"),
        (",185,5.03", ",0.185,5.03", "ttft_ms"),
        (",5.03,3071", ",5.03,1e9", "throughput_tok_s"),
        (",16,185", ",1e9,185", "concurrency"),
        ("s,anchor", "s,anker", "role"),
        ("s,anchor", ",anchor", "series"),
        (",1024,1024,,", ",1024,1024,1.5,", "length_range_ratio"),
        (",1,1,1,1,1,,", ",1,1,1,1,1,2xTP4,", "pools"),
        (",1,1,1,1,1,,", ",9999,1,1,1,1,,", "tp"),
    ],
)
def test_refusal_names_line_and_field(old: str, new: str, field: str) -> None:
    with pytest.raises(FormatError) as caught:
        parse_corpus(_text(GOOD, GOOD.replace(old, new)), "bad.csv")
    assert str(caught.value).startswith(f"bad.csv, line 3: `{field}` must ")
    assert "\n" not in str(caught.value)


def test_unknown_missing_and_double_columns() -> None:
    assert parse_corpus(_text(GOOD + ",red", header=HEADER + ",colour")) == parse_corpus(_text(GOOD))
    with pytest.raises(FormatError, match=r"line 1: .*`throughput_tok_s`.*'throughput_toks'"):
        parse_corpus(_text(GOOD, header=HEADER.replace("throughput_tok_s", "throughput_toks")))
    with pytest.raises(FormatError, match="hold column `tpot_ms`"):
        parse_corpus(_text(GOOD, header=HEADER.replace("tpot_ms", "ttft_ms2")))
    with pytest.raises(FormatError, match="each column once"):
        parse_corpus(_text(GOOD, header=HEADER.replace("tpot_ms", "ttft_ms")))
    with pytest.raises(FormatError, match="21 fields"):
        parse_corpus(_text("a,b"))
    with pytest.raises(FormatError, match="at least 1"):
        parse_corpus(HEADER)


def test_a_table_from_a_spreadsheet_reads_the_same() -> None:
    """Windows line ends, capitals, columns in another order, unnamed empty ones."""
    rows = parse_corpus(_text(GOOD))
    assert parse_corpus(_text(GOOD).replace("\n", "\r\n")) == rows
    assert parse_corpus(_text(GOOD, header=HEADER.upper())) == rows
    assert parse_corpus(_text(GOOD + ",,", header=HEADER + ",,")) == rows
    turned = [",".join(reversed(line.split(","))) for line in (HEADER, GOOD)]
    assert parse_corpus("\n".join(turned)) == rows


def test_nothing_is_left_out_in_silence() -> None:
    """A series without a target, a target whose cell is an anchor's, repeats, anchors that hold no step."""
    target = GOOD.replace("anchor", "target").replace(",16,185,5.03", ",32,300,6.0")
    known = GOOD.replace("anchor", "target")
    bare = GOOD.replace(",16,185,5.03,3071", ",8,185,,")
    lone = GOOD.replace("s,anchor", "lone,anchor")
    far = target.replace(",1024,1024,", ",1024,10000000,")
    notes: list[Note] = []
    rows = evaluate(parse_corpus(_text(GOOD, bare, target, target, known, far, lone)), refused={}, notes=notes)
    assert [(row.row.line, "cell-fitted" in row.prediction.flags) for row in rows] == [(4, 0), (5, 0), (6, 1)]
    said = [(note.series, note.rows_count, note.text) for note in notes]
    for (series, count, text), fragment in zip(
        said, ("are not fitted", "each of them counts", "they score the fit", "line 7 is not scored"), strict=False
    ):
        assert (series, count) == ("s", 1)
        assert fragment in text
    assert said[4:] == [("lone", 1, "not scored: the series has no target row")]


def test_a_series_needs_an_anchor_and_a_corpus_a_target() -> None:
    with pytest.raises(InputError, match="only target rows are scored"):
        evaluate(parse_corpus(_text(GOOD)))
    with pytest.raises(InputError, match="at least one colocated row"):
        evaluate(parse_corpus(_text(GOOD.replace("anchor", "target"))))


def test_what_tools_write_for_a_missing_measure_is_empty() -> None:
    for word in ("nan", "NaN", "N/A", "null", ""):
        assert parse_corpus(_text(GOOD.replace(",185,5.03", f",{word},5.03")))[0].ttft_s is None
    assert parse_corpus(_text(GOOD.replace(",1024,1024,", ",1024,1,")))[0].tpot_s is None, "one token has no gap"
    minimal = "series,role,engine,model,accelerator,tp,isl_tokens,osl_tokens,concurrency,tpot_ms"
    row = parse_corpus(_text("s,Anchor,SGLang,Llama-3.1-8B,MI355X,1,1024,1024,16,5.03", ",,,,,,,,,", header=minimal))[0]
    assert (row.weights_dtype, row.layout.pipeline_parallel, row.role) == ("", 1, Role.ANCHOR)


def test_one_unusable_series_does_not_hide_the_others() -> None:
    target = GOOD.replace("anchor", "target").replace(",16,185,5.03", ",32,300,6.0")
    lost = target.replace("s,target", "lost,target")
    refused: dict[str, str] = {}
    rows = evaluate(parse_corpus(_text(GOOD, target, lost)), refused=refused)
    assert [row.row.series for row in rows] == ["s"]
    assert "anchor" in refused["lost"]
    with pytest.raises(InputError, match="anchor"):
        evaluate(parse_corpus(_text(lost)), refused={})


def test_what_no_card_is_known_for_is_flagged() -> None:
    for old, new, flag in (
        ("Llama-3.1-8B", "NoSuch-8B", "model-unknown"),
        ("MI355X", "A1000", "accelerator-unknown"),
        ("bf16", "fp5", "weights-dtype-unknown"),
        ("SGLang", "TGI", "engine-unknown-taken-as-vllm"),
    ):
        anchor = GOOD.replace(old, new)
        row = evaluate(parse_corpus(_text(anchor, anchor.replace("anchor", "target"))))[0]
        assert flag in row.prediction.flags


def test_a_series_mixes_no_stacks() -> None:
    other = GOOD.replace("anchor", "target").replace("SGLang", "VLLM")
    with pytest.raises(InputError, match="engine"):
        evaluate(parse_corpus(_text(GOOD, other)))


def test_a_wait_that_a_larger_batch_does_not_know_is_no_capacity() -> None:
    """Eight clients at 200 tokens wait long (a cold start), 64 at 2,048 do not: no queue for a place, yet no step."""
    rows = [GOOD.replace(",16,185,5.03,3071", f",{clients},{ttft},5.0,") for clients, ttft in ((8, 90), (64, 400))]
    cold = GOOD.replace(",1024,1024,,16,185,5.03,3071", ",100,100,,8,900,5.0,")
    full = GOOD.replace(",1024,1024,,16,185,5.03,3071", ",1024,1024,,256,9000,5.5,")
    rows_read = parse_corpus(_text(*rows, cold, full))
    cells = cells_of(rows_read, lengths_by_shape(rows_read), prefill_s=lambda tokens: 1e-5 * tokens)
    found = {(cell.prompt_tokens, cell.clients): cell for cell in cells}
    assert (found[100, 8].is_waiting, found[100, 8].is_saturated) == (True, False)
    assert (found[1024, 64].is_waiting, found[1024, 256].is_saturated) == (False, True)
    assert found[100, 8].running == pytest.approx(8 * 0.495 / (0.9 + 0.495)), "Little's law, whatever they wait for"
