"""A plan answered by trials: as good as a sweep, replayed to the same decisions, within its bounds."""

from __future__ import annotations

import json

import pytest

from simcore.agent.search import ModelError, run_agent
from simcore.cards.layout import Engine
from simcore.errors import FormatError, InputError
from simcore.prediction.predictor import Predictor
from simcore.prediction.shapes import EngineOption
from simcore.search.ledger import Session
from simcore.search.objectives import Slo
from simcore.search.plan import Candidate, Question, answer, candidate_of
from simcore.search.predictors import Predictors
from simcore.search.tiers import Tier, default_rule, margins
from simcore.search.trials import MOST_TRIALS, Tried, answer_tried, model_failures, replayed
from tests.search_spaces import space

TIERS = (Tier("quick", 120.0, 2.0), Tier("bulk", 0.0, None))
QUESTION = Question((EngineOption(Engine.SGLANG),), 8, 1, 4, concurrencies=(1, 8, 64), tiers=TIERS)


def tried(budget_count: int = 60, question: Question = QUESTION, **changes: object) -> Tried:
    predictor = Predictor(space().setting)
    searcher = changes.pop("searcher", lambda session: run_agent(session, None))
    return answer_tried(question, predictor, searcher, budget_count=budget_count, **changes)  # type: ignore[arg-type]


def chosen(found: Tried) -> list[Candidate]:
    return [found.answer.candidates[choice.chosen] for choice in found.answer.choices if choice.chosen is not None]


def test_what_is_chosen_was_tried_meets_its_tier_and_stays_in_the_budget() -> None:
    found = tried()
    assert [(s.tier, len(s.entries) <= 60) for s in found.sessions] == [("quick", True), ("bulk", True)]
    assert len(chosen(found)) == 2
    for tier, candidate in zip(TIERS, chosen(found), strict=True):
        assert candidate.gpus_count <= 4
        assert min(margins(candidate, tier, default_rule()).values(), default=0.0) >= 0
        predictor = Predictors(Predictor(space().setting), 8).of(candidate)
        again = candidate_of(candidate.shape, candidate.replicas_count, candidate.concurrency, predictor.predict)
        assert again.throughput_tokens_per_s == candidate.throughput_tokens_per_s, "priced by the predictor alone"


def test_enough_trials_find_what_the_sweep_finds_or_better() -> None:
    """A local search that ends at a sweep's own optimum, plus settings that a sweep does not try."""
    swept = answer(QUESTION, Predictor(space().setting))
    for choice, candidate in zip(swept.choices, chosen(tried(300)), strict=True):
        assert choice.chosen is not None
        best = swept.candidates[choice.chosen].throughput_per_gpu_tokens_per_s
        assert candidate.throughput_per_gpu_tokens_per_s >= best * (1 - default_rule().throughput_band_frac)


def test_a_ledger_repeats_to_the_same_answer_without_anybody_who_proposes() -> None:
    first = tried(20)
    again = tried(20, searcher=replayed(first.ledger))
    assert again.ledger == first.ledger
    assert again.answer.candidates == first.answer.candidates
    assert again.answer.choices == first.answer.choices


def test_a_ledger_of_another_plan_or_with_other_figures_is_refused() -> None:
    lines = tried(5).ledger.splitlines()
    with pytest.raises(FormatError, match="hold every search of the plan"):
        tried(5, searcher=replayed("\n".join(lines[: len(lines) // 2])))
    second = json.loads(lines[1])
    second["figures"]["ttft"] *= 0.5
    with pytest.raises(FormatError, match="as replayed"):
        tried(5, searcher=replayed("\n".join([lines[0], json.dumps(second), *lines[2:]])))
    with pytest.raises(FormatError, match="be `search`"):
        replayed("{}")


def test_the_plans_own_slo_is_kept_where_it_is_the_stricter() -> None:
    found = tried(20, slo=Slo(max_tpot_s=0.005))
    assert {session.space.slo for session in found.sessions} == {Slo(1.0, 0.005), Slo(None, 0.005)}


def test_all_trials_together_are_bounded() -> None:
    with pytest.raises(InputError, match=str(MOST_TRIALS)):
        tried(MOST_TRIALS // 2 + 1)


def test_without_a_layout_that_runs_the_refusals_say_why() -> None:
    large = space(model="DeepSeek-R1")
    question = Question((EngineOption(Engine.SGLANG),), 8, 1, 1, concurrencies=(1,), tiers=TIERS)
    found = answer_tried(question, Predictor(large.setting), lambda session: None, budget_count=5)
    assert found.sessions == ()
    assert {choice.binding.limit for choice in found.answer.choices if choice.binding} <= {"memory", "gpu-budget"}


def test_a_search_without_a_model_that_begins_again_finds_the_same() -> None:
    """What an operator does that was killed meanwhile: nothing was kept, and nothing but time is lost."""
    cut = []

    class Killed(BaseException):
        pass

    def cut_off(session: Session) -> None:
        cut.append(session)
        if len(cut) == 2:
            raise Killed
        run_agent(session, None)

    with pytest.raises(Killed):
        tried(20, searcher=cut_off)
    assert tried(20).ledger == tried(20).ledger
    assert tried(20).ledger.startswith(cut[0].json_lines())


def test_a_ledger_that_was_cut_off_is_gone_on_from() -> None:
    """Whole searches are repeated, the one that was cut is finished, and the rest is made."""

    def go_on(session: Session) -> None:
        run_agent(session, None)

    whole = tried(20)
    lines = whole.ledger.splitlines(keepends=True)
    for count in (1, 5, len(lines) - 1, len(lines)):
        again = tried(20, searcher=replayed("".join(lines[:count]), go_on))
        assert len(again.sessions) == 2
        assert all(session.is_closed and len(session.entries) <= 20 for session in again.sessions)
        assert again.sessions[0].entries[0].document() == whole.sessions[0].entries[0].document()
    assert again.ledger == whole.ledger


def test_what_a_model_failed_at_is_kept_and_a_late_one_is_not_asked() -> None:
    asked = []

    class Broken:
        def plan(self, inputs: dict[str, str]) -> object:
            asked.append(inputs)
            raise ModelError("no answer")

        def ask(self, question: str) -> str:
            return question

    def search(session: Session, *, late: bool) -> None:
        run_agent(session, Broken(), is_late=lambda: late)  # type: ignore[arg-type]

    failed = tried(6, searcher=lambda session: search(session, late=False))
    assert model_failures(failed.sessions) == ("no answer",)
    assert len(asked) == 4, "two rounds in each of two searches"
    late = tried(6, searcher=lambda session: search(session, late=True))
    assert len(asked) == 4
    assert model_failures(late.sessions) == ()
