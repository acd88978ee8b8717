"""Any configuration in a space: legal ones are priced within the budget, illegal ones say why, budgets only reject."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from simcore.cards.layout import Engine
from simcore.search.levers import levers
from simcore.search.objectives import Slo
from simcore.search.space import Space
from tests.search_spaces import space

SPACES = {engine: space(engine=engine, gpus=6, model="Qwen3-30B-A3B") for engine in Engine}


@st.composite
def proposals(draw: st.DrawFn, here: Space) -> dict[str, Any]:
    """Mostly legal values, each by itself."""
    names = draw(st.lists(st.sampled_from(sorted(levers())), max_size=5, unique=True))
    return {name: draw(st.sampled_from(list(here.legal_values[name]) or [1])) for name in names}


@settings(max_examples=80)
@given(st.data(), st.sampled_from(list(Engine)))
def test_legal_means_priced_and_within_the_budget(data: st.DataObject, engine: Engine) -> None:
    here = SPACES[engine]
    trial = here.evaluate(data.draw(proposals(here)))
    assert trial.legal == (trial.score_value is not None) == (trial.reason == "")
    if trial.legal:
        assert trial.candidate is not None
        assert trial.candidate.gpus_count <= 6
        assert trial.candidate.replicas_count <= trial.candidate.concurrency
        assert trial.candidate.shape.layout in here.layouts
        assert here.evaluate(dict(trial.configuration)) == trial


@settings(max_examples=40)
@given(st.data(), st.floats(1e-4, 10), st.floats(1, 3))
def test_relaxing_a_budget_never_rejects_more(data: st.DataObject, ttft_s: float, factor: float) -> None:
    here = SPACES[Engine.SGLANG]
    trial = here.evaluate(data.draw(proposals(here)))
    if trial.candidate is None:
        return
    tight, loose = Slo(ttft_s, ttft_s / 50), Slo(ttft_s * factor, ttft_s / 50 * factor)
    prediction = trial.candidate.prediction
    assert len(loose.misses(prediction)) <= len(tight.misses(prediction))
    assert not Slo().misses(prediction)


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), st.lists, max_leaves=5))
def test_any_junk_is_refused_with_a_reason(junk: Any) -> None:
    here = SPACES[Engine.VLLM]
    for proposal in (junk, {"layout.tensorParallel": junk}, {str(junk): 1}):
        trial = here.evaluate(proposal)
        if trial.legal:  # the junk happened to be a legal width
            assert isinstance(junk, int)
        else:
            assert trial.reason
