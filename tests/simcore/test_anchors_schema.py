"""The anchor file: what is read, what is refused with which words, and what the digest covers."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable
from typing import Any

import pytest

from simcore.anchors.schema import anchor_from, load_anchor, parse_anchor
from simcore.errors import FormatError

RAW: dict[str, Any] = {
    "schema": "inferasim.dev/anchor/v1",
    "signature": {
        "accelerator": "MI355X",
        "engine": "SGLang",
        "model": "Llama-3.1-8B",
        "weightsDtype": "bf16",
        "tensorParallel": 1,
        "graphCapture": {"mode": "full", "sizes": [1, 16, 64]},
    },
    "decode": [
        {
            "promptTokens": 1024,
            "contextTokens": 1536,
            "points": [{"batch": 1, "stepMilliseconds": 4.5}, {"batch": 16, "stepMilliseconds": 5.0}],
        }
    ],
    "prefill": {
        "points": [{"promptTokens": 1024, "milliseconds": 29.0}],
        "fit": {
            "fixedMilliseconds": 9.0,
            "perTokenMicroseconds": 19.5,
            "perTokenSquaredNanoseconds": 0.0,
            "residualPercent": 0.1,
        },
    },
    "provenance": {"source": "harvested", "realWeights": True, "prefixCachingOff": True},
}


def changed(change: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    raw = copy.deepcopy(RAW)
    change(raw)
    return raw


def test_reading_back_what_was_written_changes_nothing() -> None:
    anchor = anchor_from(RAW)
    again = parse_anchor(anchor.to_json())
    assert again == anchor
    assert again.to_json() == anchor.to_json()
    assert anchor.decode[0].points[0].step_s == pytest.approx(0.0045)


def test_digest_is_sha256_of_canonical_json_without_nulls() -> None:
    # Written out by hand: sorted keys, no spaces, defaults of the schema filled in, nulls left out.
    text = (
        '{"decode":[{"contextTokens":1536,"points":[{"batch":1,"stepMilliseconds":4.5},{"batch":16,"stepMilliseconds":5.0}],'
        '"promptTokens":1024}],"prefill":{"fit":{"fixedMilliseconds":9.0,"perTokenMicroseconds":19.5,'
        '"perTokenSquaredNanoseconds":0.0,"residualPercent":0.1},"points":[{"milliseconds":29.0,"promptTokens":1024}]},'
        '"provenance":{"checks":[],"notes":[],"prefixCachingOff":true,"realWeights":true,"residuals":{},"source":"harvested"},'
        '"schema":"inferasim.dev/anchor/v1","signature":{"accelerator":"MI355X","attentionDataParallel":1,"engine":"SGLang",'
        '"expertParallel":1,"graphCapture":{"mode":"full","sizes":[1,16,64]},"model":"Llama-3.1-8B","tensorParallel":1,'
        '"weightsDtype":"bf16"}}'
    )
    assert anchor_from(RAW).digest() == "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def test_digest_does_not_see_key_order_or_number_spelling() -> None:
    other = changed(lambda raw: raw["decode"][0]["points"][1].update(stepMilliseconds=5))
    reordered = dict(reversed(list(other.items())))
    assert anchor_from(reordered).digest() == anchor_from(RAW).digest()
    moved = changed(lambda raw: raw["decode"][0]["points"][1].update(stepMilliseconds=5.001))
    assert anchor_from(moved).digest() != anchor_from(RAW).digest()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda raw: raw.update(extra=1), "`extra` must be a key of this format"),
        (lambda raw: raw["signature"].update(gpus=8), "`signature.gpus` must be a key of this format"),
        (lambda raw: raw["signature"].pop("model"), "`signature.model` must be given"),
        (lambda raw: raw.update(schema="inferasim.dev/anchor/v2"), "`schema` must be 'inferasim.dev/anchor/v1'"),
        (lambda raw: raw["decode"][0]["points"][0].update(stepMilliseconds=-1), "must be greater than 0, got -1"),
        (lambda raw: raw["decode"][0]["points"][0].update(stepMilliseconds=0), "must be greater than 0, got 0"),
        (lambda raw: raw["decode"][0]["points"][1].update(batch=1), "`batch` holds 1 twice"),
        (lambda raw: raw["decode"][0]["points"].reverse(), "`batch` must ascend, got 1 after 16"),
        (lambda raw: raw["decode"][0].update(contextTokens=100), "at least promptTokens"),
        (lambda raw: raw["decode"].append(raw["decode"][0]), "`decode.contextTokens` holds 1536 twice"),
        (lambda raw: raw.update(decode=[]), "`decode` must be readable"),
        (lambda raw: raw["signature"]["graphCapture"].update(mode="none"), "captures no graph"),
        (lambda raw: raw["signature"]["graphCapture"].update(sizes=[4, 2]), "`sizes` must ascend"),
        (lambda raw: raw["provenance"].update(source="guessed"), "`provenance.source` must be"),
        (lambda raw: raw["prefill"]["fit"].update(fixedMilliseconds=-0.1), "must be greater than or equal to 0"),
    ],
)
def test_refusals_name_field_and_reason_on_one_line(change: Callable[[dict[str, Any]], object], words: str) -> None:
    with pytest.raises(FormatError) as caught:
        parse_anchor(json.dumps(changed(change)), "a.json")
    text = str(caught.value)
    assert words in text
    assert text.startswith("a.json: ")
    assert "\n" not in text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[]", "be one JSON object"),
        ("{", "line 1"),
        (json.dumps(RAW).replace("4.5", "NaN"), "finite numbers"),
        (json.dumps(RAW).replace("4.5", "1e999"), "finite"),
        ('{"schema": 1, "schema": 2}', "appears twice"),
        ("[" * 100_000, "plain JSON"),
        (" " * (4 * 1024 * 1024 + 1), "at most"),
    ],
)
def test_text_that_is_no_anchor(text: str, words: str) -> None:
    with pytest.raises(FormatError, match=words):
        parse_anchor(text)


def test_a_missing_file_is_a_format_error(tmp_path: Any) -> None:
    with pytest.raises(FormatError, match="readable UTF-8 file"):
        load_anchor(tmp_path / "none.json")
