"""Names and labels of children (D01, D08)."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from inferasim_operator.engine import labels, names
from tests import builders

DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
LABEL = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?")
NAMES = st.from_regex(r"[a-z0-9]([-a-z0-9.]{0,250}[a-z0-9])?", fullmatch=True)


@given(NAMES, st.from_regex(r"[a-z0-9]{10,16}", fullmatch=True))
def test_names_are_legal(base: str, suffix: str) -> None:
    """Whatever the owner's name: a DNS label of at most 63 characters that ends with the suffix."""
    made = names.object_name(base, suffix)
    assert len(made) <= 63
    assert DNS_LABEL.fullmatch(made)
    assert made.endswith(f"-{suffix}")
    value = names.label_value(base)
    assert len(value) <= 63
    assert LABEL.fullmatch(value)


@given(NAMES, NAMES)
def test_two_owners_never_share_a_name(one: str, other: str) -> None:
    """Not even with the same first 60 characters, or with a dot where the other has a dash."""
    if one != other:
        assert names.object_name(one, "abc") != names.object_name(other, "abc")
        assert names.label_value(one) != names.label_value(other)


def test_long_names_by_hand() -> None:
    """Two names that differ in their last character only."""
    stem = "a" * 100
    made = {names.object_name(stem + end, "0123456789", "progress") for end in "xy"}
    assert len(made) == 2
    assert all(len(name) == 63 and name.endswith("-0123456789-progress") for name in made)
    assert names.object_name("plan", "abc") == "plan-abc"


def test_children_carry_our_labels_only() -> None:
    """Neither the parent's tracking labels nor its annotations."""
    owner = builders.live(builders.serving_plan())
    owner["metadata"]["labels"] = {"app.kubernetes.io/instance": "myapp", "kustomize.toolkit.fluxcd.io/name": "x"}
    assert labels.child_labels(owner, role="r") == {
        "app.kubernetes.io/managed-by": "inferasim-operator",
        "inferasim.dev/owner-kind": "ServingPlan",
        "inferasim.dev/owner-name": "plan",
        "inferasim.dev/owner-uid": "uid-1",
        "inferasim.dev/role": "r",
    }


def test_digest_is_of_the_value() -> None:
    """Key order does not matter, content does; the text is fixed so that stored names stay valid."""
    assert names.digest({"a": 1, "b": [2]}) == names.digest({"b": [2], "a": 1})
    assert names.digest({"a": 1}) != names.digest({"a": 2})
    # sha256 of the two bytes `{}`, first 40 digits (as any sha256 tool prints it)
    assert names.digest({}) == "44136fa355b3678a1146ad16f7e8649e94fb4fc2"
