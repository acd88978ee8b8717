"""Constants are data with provenance: a record without it does not load."""

from __future__ import annotations

import pytest

from simcore.data.constants import Kind, constant, load_constants, parse_constants
from simcore.errors import FormatError, UnknownNameError

GOOD = {
    "name": "some.delay_s",
    "value": "1.0e-6",
    "unit": '"s"',
    "kind": "measured",
    "source": "paper Table 5",
    "uncertainty": "unstated",
    "applies_to": "MI355X",
}


def _text(**changes: str | None) -> str:
    fields = {**GOOD, **changes}
    return "- " + "\n  ".join(f"{key}: {value}" for key, value in fields.items() if value is not None)


def test_a_complete_record_loads() -> None:
    (record,) = parse_constants(_text(), "x.yaml")
    assert (record.name, record.value, record.unit, record.kind) == ("some.delay_s", 1e-6, "s", Kind.MEASURED)
    assert record.is_measured_on("MI355X")
    assert not record.is_measured_on("MI300X")
    assert not record.is_assumed


@pytest.mark.parametrize(
    "changes",
    [
        {"source": None},
        {"source": '""'},
        {"uncertainty": '" "'},
        {"applies_to": '""'},
        {"unit": '"ms"'},
        {"unit": None},
        {"name": "some.delay"},
        {"kind": "guessed"},
        {"value": None},
        {"value": ".nan"},
        {"points": "[[1, 2]]"},
        {"surprise": "1"},
        {"value": None, "points": "[[2, 1], [1, 2]]"},
        {"value": "abc"},
        {"value": None, "points": "[1, 2]"},
        {"value": None, "points": "[]"},
    ],
)
def test_an_incomplete_record_is_refused(changes: dict[str, str | None]) -> None:
    with pytest.raises(FormatError, match=r"^x\.yaml"):
        parse_constants(_text(**changes), "x.yaml")


@pytest.mark.parametrize("text", ["", "a: 1", "- 1", "[", "- a: 1\n  a: 2"])
def test_a_file_that_is_no_list_of_records_is_refused(text: str) -> None:
    with pytest.raises(FormatError):
        parse_constants(text, "x.yaml")


def test_unknown_names_get_a_hint() -> None:
    with pytest.raises(UnknownNameError, match=r"pipeline\.hop_overhead_s"):
        constant("pipeline.hop_overhed_s")


def test_the_current_set_is_complete_and_consistent() -> None:
    records = load_constants()
    assert len(records) > 60
    for record in records.values():
        assert record.source
        assert record.uncertainty
        assert bool(record.points) != bool(record.value) or record.value == 0.0
        if record.kind is Kind.ASSUMED:
            assert record.note or record.uncertainty != "unstated" or "no published" in record.source, record.name
