"""Speculation: committed tokens stay in bounds, missing acceptance is refused, depth is chosen by rate."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simcore.data.acceptance import borrow_acceptance, find_acceptance, load_acceptance, parse_acceptance
from simcore.errors import DomainError, FormatError, InputError, UnknownNameError
from simcore.laws.speculation import (
    DEPTH_LIMIT,
    Drafter,
    best_depth,
    check_committed,
    committed_tokens,
    draft_time,
    entropy_scaled_tokens,
    extrapolated_tokens,
    geometric_chain,
    speculative_tpot,
)
from tests.law_strategies import TIME

CHANCES = st.lists(st.floats(0.0, 1.0), max_size=DEPTH_LIMIT)


@given(CHANCES)
def test_committed_tokens_are_bounded_and_rise_with_depth(chances: list[float]) -> None:
    lengths = [committed_tokens(acceptance_frac=np.array(chances[:depth])) for depth in range(len(chances) + 1)]
    assert lengths[0] == 1.0
    assert all(1.0 <= tokens <= depth + 1 for depth, tokens in enumerate(lengths))
    assert lengths == sorted(lengths)


@given(st.floats(0.0, 1.0), st.integers(1, 8))
def test_a_geometric_chain_is_found_again(chance: float, depth: int) -> None:
    measured = np.array([committed_tokens(acceptance_frac=np.full(k, chance)) for k in range(1, depth + 1)])
    fitted = geometric_chain(measured)
    assert fitted == pytest.approx(chance, abs=1e-4)
    beyond = extrapolated_tokens(measured_tokens=measured, chain_frac=chance, depth_count=depth + 3)
    assert beyond == pytest.approx(committed_tokens(acceptance_frac=np.full(depth + 3, chance)), rel=1e-9)


@given(CHANCES.filter(bool), st.floats(0.01, 1.0))
def test_an_entropy_class_scales_the_first_position(chances: list[float], ratio: float) -> None:
    scaled = [chances[0] * ratio, *chances[1:]]
    found = entropy_scaled_tokens(
        step_commits_tokens=committed_tokens(acceptance_frac=np.array(chances)), class_ratio=ratio
    )
    assert found == pytest.approx(committed_tokens(acceptance_frac=np.array(scaled)), rel=1e-12)


def test_case_b07() -> None:
    """20 ms per step, 2.66 tokens per step: 7.52 ms; missing or impossible acceptance is refused."""
    assert speculative_tpot(step_s=0.020, step_commits_tokens=2.66) == pytest.approx(0.020 / 2.66)
    assert round(speculative_tpot(step_s=0.020, step_commits_tokens=1 + 1.66) * 1e3, 2) == 7.52
    with pytest.raises(InputError, match="there is no default"):
        check_committed([])
    for impossible in ([0.9], [2.1], [1.5, 3.2], [float("nan")]):
        with pytest.raises(InputError, match="lie in"):
            check_committed(impossible)
    with pytest.raises(DomainError):
        speculative_tpot(step_s=0.020, step_commits_tokens=0.9)


@given(st.lists(TIME, min_size=2, max_size=9))
def test_no_acceptance_means_no_speculation(times: list[float]) -> None:
    """Steps that get longer and commit one token each: depth 0 is kept."""
    steps = np.cumsum(times)
    assert best_depth(step_s=steps, step_commits_tokens=np.ones(len(steps))) == 0


@given(st.integers(1, 8))
def test_free_and_perfect_drafts_go_to_the_limit(limit: int) -> None:
    depths = np.arange(limit + 1)
    assert best_depth(step_s=np.ones(limit + 1), step_commits_tokens=1.0 + depths) == limit


@given(st.sampled_from(Drafter), TIME, TIME, st.integers(0, 7))
def test_draft_time_starts_at_nothing_and_grows(drafter: Drafter, backbone: float, head: float, depth: int) -> None:
    shared = {"drafter": drafter, "backbone_s": backbone, "head_s": head}
    assert draft_time(**shared, depth_count=0) == 0.0
    assert draft_time(**shared, depth_count=depth) <= draft_time(**shared, depth_count=depth + 1)
    assert draft_time(**{**shared, "drafter": Drafter.NGRAM}, depth_count=depth) == 0.0


def test_every_shipped_curve_is_possible_and_sourced() -> None:
    curves = load_acceptance()
    assert len(curves) == 14  # nine files, five of them with thinking on and off
    for curve in curves:
        check_committed(curve.accepted_length_tokens)
        assert curve.source
        assert curve.drafter in set(Drafter)
        assert not curve.borrowed
    keys = [(c.model, c.drafter, c.thinking, c.variant) for c in curves]
    assert len(set(keys)) == len(keys)


def test_a_model_nobody_measured_is_refused_and_a_borrowed_curve_says_so() -> None:
    own = find_acceptance(model="glm-5.2", drafter="mtp")
    assert own.accepted_length_tokens[:3] == (1.84, 2.50, 2.99)  # InferenceX, GLM-5.2 FP8, thinking on
    assert borrow_acceptance(model="GLM-5.2", drafter="mtp") == own
    assert find_acceptance(model="GLM-5.2-MXFP4", drafter="mtp") == own, "the same model stored otherwise"
    with pytest.raises(UnknownNameError, match=r"GLM-5\.2/mtp"):
        find_acceptance(model="GLM-5.2", drafter="eagle3")
    assert "sibling head mtp" in borrow_acceptance(model="GLM-5.2", drafter="eagle3").borrowed
    median = borrow_acceptance(model="Unheard-Of", drafter="mtp")
    assert "median of mtp" in median.borrowed
    # By hand from the three MTP curves with thinking on at depth 1: 1.79, 1.84, 1.93.
    assert median.accepted_length_tokens[0] == 1.84
    with pytest.raises(UnknownNameError):
        borrow_acceptance(model="GLM-5.2", drafter="ngram")


@pytest.mark.parametrize(
    ("change", "fragment"),
    [
        ("source: ''", "`source` must not be empty"),
        ("accepted_length_tokens: [2.5]", "lie in"),
        ("accepted_length_tokens: []", "lie in"),
        ("surprise: 1", "exactly the keys"),
    ],
)
def test_broken_acceptance_files_are_refused(change: str, fragment: str) -> None:
    fields = {
        "model": "m",
        "checkpoint": "m",
        "drafter": "mtp",
        "thinking": "true",
        "variant": "''",
        "accepted_length_tokens": "[1.5]",
        "source": "somewhere",
    }
    name, _, value = change.partition(": ")
    fields[name] = value
    text = "- " + "\n  ".join(f"{key}: {value}" for key, value in fields.items())
    with pytest.raises(FormatError, match=fragment):
        parse_acceptance(text, "curves.yaml")
