"""The corpus reader: what it takes, and one clear line with line number and field for what it refuses."""

from __future__ import annotations

import pytest

from simcore.errors import FormatError, InputError
from simcore.validate.corpus import Role, parse_corpus
from simcore.validate.evaluate import evaluate

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
        (",185,5.03", ",185,nan", "tpot_ms"),
        (",185,5.03", ",185,", "tpot_ms"),
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
    with pytest.raises(FormatError, match=r"line 1: .*known columns.*'colour'"):
        parse_corpus(_text(GOOD + ",red", header=HEADER + ",colour"))
    with pytest.raises(FormatError, match="hold column `tpot_ms`"):
        parse_corpus(_text(GOOD, header=HEADER.replace("tpot_ms", "ttft_ms2")))
    with pytest.raises(FormatError, match="each column once"):
        parse_corpus(_text(GOOD, header=HEADER.replace("tpot_ms", "ttft_ms")))
    with pytest.raises(FormatError, match="21 fields"):
        parse_corpus(_text("a,b"))
    with pytest.raises(FormatError, match="at least 1"):
        parse_corpus(HEADER)


def test_a_series_needs_an_anchor_and_a_corpus_a_target() -> None:
    with pytest.raises(InputError, match="only target rows are scored"):
        evaluate(parse_corpus(_text(GOOD)))
    with pytest.raises(InputError, match="at least one colocated row"):
        evaluate(parse_corpus(_text(GOOD.replace("anchor", "target"))))


def test_a_series_mixes_no_stacks() -> None:
    other = GOOD.replace("anchor", "target").replace("SGLang", "VLLM")
    with pytest.raises(InputError, match="engine"):
        evaluate(parse_corpus(_text(GOOD, other)))
