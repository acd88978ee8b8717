"""Hostile input to every reader: an answer, or one clear line of an error that it is known to raise.

Short in the unit suite; `make fuzz` tries as many as `INFERASIM_FUZZ_EXAMPLES` says. What is found is minimised by
hypothesis and kept under corpus/, which every run reads.
"""

from __future__ import annotations

import hashlib
import itertools
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from simcore.errors import FormatError, InferasimError
from tests.fuzz import mutations
from tests.fuzz.targets import CORPUS, Target, targets

EXAMPLES = int(os.environ.get("INFERASIM_FUZZ_EXAMPLES", "20"))
IS_SHORT = EXAMPLES <= 50
LONGEST = 4096
NAMES = sorted(targets())


def run(target: Target, data: bytes) -> None:
    """Read, and judge how it is refused. Anything but the known errors leaves as it is."""
    try:
        target.read(data)
    except target.refuses as error:
        text = str(error)
        if isinstance(error, InferasimError):
            assert "\n" not in text, "an error is one line"
            assert len(text) <= LONGEST, "an error does not repeat what it was given"
        text.encode("utf-8")  # it has to reach a terminal, a log and a JSON status


@pytest.mark.parametrize("name", NAMES)
def test_the_examples_are_read(name: str) -> None:
    """A mutation of what is refused anyway would test nothing."""
    target = targets()[name]
    for seed in target.seeds:
        run(target, seed)


@pytest.mark.parametrize("path", sorted(CORPUS.glob("*/*")), ids=lambda path: f"{path.parent.name}/{path.name}")
def test_what_was_found_stays_fixed(path: Path) -> None:
    run(targets()[path.parent.name], path.read_bytes())


def test_a_bomb_of_aliases_is_refused() -> None:
    """Nine lines that stand for 43 million texts."""
    lines = ["a: &a [x, x, x, x, x, x, x, x, x]"]
    lines += [f"{two}: &{two} [{', '.join([f'*{one}'] * 9)}]" for one, two in itertools.pairwise("abcdefgh")]
    with pytest.raises(FormatError, match="no YAML aliases"):
        targets()["documents"].read("\n".join([*lines, "spec: *h"]).encode())


@pytest.mark.parametrize("name", NAMES)
def test_hostile_input_is_refused(name: str) -> None:
    target = targets()[name]
    inputs = mutations.hostile_bytes(target.seeds)
    if target.documents:
        inputs = st.one_of(mutations.hostile_documents(target.documents).map(mutations.as_json), inputs)

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize=IS_SHORT,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(inputs)
    def check(data: bytes) -> None:
        failing[:] = [data]
        run(target, data)
        failing.clear()

    failing: list[bytes] = []
    try:
        check()
    finally:
        if failing and not IS_SHORT:
            place = CORPUS / name / hashlib.sha256(failing[0]).hexdigest()[:12]
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(failing[0])
