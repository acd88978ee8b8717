"""The tuning agent (paper section 4, App. J): seeds, then rounds of plan and investigation, then a local search.

The model proposes; the space checks and prices. Without a model, or when it fails, what is left of the budget goes to
the deterministic local search, so an answer never depends on a model that answers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from simcore.agent.allowance import Allowance
from simcore.agent.briefing import briefing
from simcore.agent.proposals import SearchPlan
from simcore.agent.tools import SearchOver, Toolbox
from simcore.errors import InferasimError
from simcore.search.ledger import Session
from simcore.search.local import run_local
from simcore.search.seeds import run_seeds

MOST_ROUNDS: Final = 20
CALLS_PER_ROUND: Final = 40
IDLE_ROUNDS: Final = 2
"""Rounds in a row without a new trial after which the model is not asked again."""
SEED_SHARE: Final = 0.5
"""Most of the budget that seeds take, so that combinations of levers get their turn."""


class ModelError(InferasimError):
    """The language model did not answer in a way that can be used; the text holds no key."""


class LanguageModel(Protocol):
    """A chat model behind two stages. Each method raises ModelError when there is no usable answer."""

    before_request: Callable[[], None]
    """To be called before each request, each attempt of one included; ends the search by SearchOver."""

    def plan(self, inputs: dict[str, str]) -> SearchPlan:
        """Hypotheses and partial configurations for the inputs of `briefing`."""
        ...

    def investigate(self, inputs: dict[str, str], plan: SearchPlan, toolbox: Toolbox) -> str:
        """Use the tools until done; the summary of what worked."""
        ...

    def ask(self, question: str) -> str:
        """A sub-question."""
        ...


def run_agent(
    session: Session,
    model: LanguageModel | None,
    *,
    guidance: str = "",
    seeds_count: int | None = None,
    is_late: Callable[[], bool] = lambda: False,
    keep: Callable[[], None] = lambda: None,
) -> Session:
    """Search until a stop rule holds; the session's best trial is the answer (None when nothing legal was found).

    `seeds_count`: how many seeds to score, half of the budget when None. Once `is_late` says so the model is not asked
    again. `keep` puts the ledger away, before requests that it grants are made: a session that was repeated from there
    goes on. Raises InfeasibleError: no layout can run.
    """
    most = max(1, int(SEED_SHARE * session.budget_count)) if seeds_count is None else seeds_count
    run_seeds(session, most_count=most)
    if model is not None:
        allowance = Allowance(session, keep)
        model.before_request = allowance.take
        _rounds(session, model, allowance, guidance, is_late)
    run_local(session)
    session.close()
    return session


def _rounds(
    session: Session, model: LanguageModel, allowance: Allowance, guidance: str, is_late: Callable[[], bool]
) -> None:
    notes = [str(line.get("text")) for line in session.lines if line["kind"] == "note"]  # of an earlier life
    idle = 0
    for number in range(1, MOST_ROUNDS + 1):
        if session.stop_reason is not None or idle >= IDLE_ROUNDS or allowance.is_used:
            return
        if is_late():
            session.write("round", number=number, ended="the time of the language model is used")
            return
        before = len(session.entries)
        try:
            _round(session, model, guidance, notes, is_late)
        except SearchOver as over:
            session.write("round", number=number, ended=str(over))
        except ModelError as failure:
            session.write("failure", round=number, text=str(failure)[:500])
            idle += 1
            continue
        idle = 0 if len(session.entries) > before else idle + 1


def _round(
    session: Session, model: LanguageModel, guidance: str, notes: list[str], is_late: Callable[[], bool]
) -> None:
    toolbox = Toolbox(session, calls_count=CALLS_PER_ROUND, ask=model.ask, is_late=is_late)
    toolbox.notes = notes
    inputs = briefing(session, notes, guidance)
    plan = model.plan(inputs)
    session.write(
        "plan",
        rationale=plan.rationale,
        hypotheses=list(plan.hypotheses),
        proposals=list(plan.proposals),
        polish=plan.polish,
    )
    for proposal in plan.proposals:
        if session.try_(proposal, "agent: plan") is None:
            raise SearchOver(session.stop_reason or "the search is over")
    summary = model.investigate(briefing(session, notes, guidance), plan, toolbox)
    session.write("summary", text=summary[:2000])
