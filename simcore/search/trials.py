"""A plan answered by trials instead of a sweep: a search per engine and tier, then the choice among all that was tried.

A search starts from a safe baseline, knows its tier's limits, and ends with its budget. Who proposes is the caller's:
seeds and local search (`simcore.search.local`), the agent (`simcore.agent`), or the ledger of an earlier run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from simcore.errors import FormatError, InputError
from simcore.prediction.predictor import Predictor
from simcore.prediction.shapes import EngineOption
from simcore.search.ledger import Session, documents_of, repeat
from simcore.search.objectives import Slo
from simcore.search.plan import Answer, Candidate, Chooser, Progress, Question, chosen, shapes_of
from simcore.search.space import Cluster, Space
from simcore.search.tiers import Tier, TierRule, default_rule, default_tiers

MOST_TRIALS: Final = 10_000
"""Of all searches of a plan: their ledger then fits a ConfigMap."""
DEFAULT_OBJECTIVE: Final = "decodeThroughputPerGpu"
"""What the paper's rule ranks by."""

Searcher = Callable[[Session], None]
"""Proposes configurations to a session until it is over, and closes it."""


@dataclass(frozen=True)
class Tried:
    """The answer, and the record of how it was found."""

    answer: Answer
    sessions: tuple[Session, ...]
    """One per engine and tier, in order."""

    @property
    def ledger(self) -> str:
        """The ledgers of all searches, one after the other."""
        return ledger_of(self.sessions)


def ledger_of(sessions: Sequence[Session]) -> str:
    """The ledgers of several searches, one after the other."""
    return "".join(session.json_lines() for session in sessions)


def model_failures(sessions: Sequence[Session]) -> tuple[str, ...]:
    """What a language model answered that could not be used, each text once."""
    lines = [line for session in sessions for line in session.lines if line["kind"] == "failure"]
    return tuple(dict.fromkeys(str(line.get("text")) for line in lines))


def answer_tried(
    question: Question,
    predictor: Predictor,
    searcher: Searcher,
    *,
    budget_count: int,
    objective: str = DEFAULT_OBJECTIVE,
    slo: Slo | None = None,
    progress: Progress | None = None,
    chooser: Chooser | None = None,
) -> Tried:
    """Run a search of at most `budget_count` trials per engine and tier. Raises InputError.

    Every trial that was priced counts for every tier, whichever search made it; the choice among them is the sweep's.
    """
    tiers, rule = question.tiers or default_tiers(), question.rule or default_rule()
    shapes, refusals = shapes_of(question, predictor)
    options = sorted({shape.option for shape in shapes}, key=lambda option: (option.engine.value, option.version or ""))
    total_count = budget_count * len(tiers) * max(1, len(options))
    if total_count > MOST_TRIALS:
        must = f"make at most {MOST_TRIALS} trials in all"
        raise InputError("search.budget", budget_count, must, f"{len(options)} engines times {len(tiers)} tiers")
    found: dict[tuple[object, ...], Candidate] = {}
    sessions: list[Session] = []
    best: list[Candidate] = []
    simulations_count = 0

    def note(entry: Any) -> None:
        candidate = entry.trial.candidate
        if candidate is not None:
            found.setdefault(candidate.key, candidate)
            rate = candidate.throughput_per_gpu_tokens_per_s
            if not best or rate > best[0].throughput_per_gpu_tokens_per_s:
                best[:] = [candidate]
        if progress is not None:
            done = sum(len(session.entries) for session in sessions)
            progress(done, total_count, best[0] if best else None)

    for option in options:
        space = _space(question, predictor, option, objective)
        for tier in tiers:
            own = space.with_slo(_tier_slo(tier, rule, slo or Slo()))
            session = Session(own, budget_count=budget_count, tier=tier.name, on_trial=note)
            sessions.append(session)
            searcher(session)
        simulations_count += space.simulations_count
    candidates = sorted(found.values(), key=lambda candidate: candidate.key)
    answer = chosen(question, candidates, refusals, simulations_count, 0, chooser)
    return Tried(answer, tuple(sessions))


def _space(question: Question, predictor: Predictor, option: EngineOption, objective: str) -> Space:
    return Space(
        predictor.setting,
        option,
        Cluster(question.gpus_per_node, question.nodes_count, question.gpu_budget_count),
        concurrencies=question.concurrencies,
        objective=objective,
        predictor=predictor,
    )


def _tier_slo(tier: Tier, rule: TierRule, slo: Slo) -> Slo:
    """The plan's own budgets and those at which the tier qualifies, whichever is less."""
    ttft_s = None if tier.max_ttft_s is None else rule.ttft_margin_frac * tier.max_ttft_s
    rate = tier.min_interactivity_tokens_per_s
    return Slo(_least(ttft_s, slo.max_ttft_s), _least(1.0 / rate if rate > 0 else None, slo.max_tpot_s))


def _least(*values: float | None) -> float | None:
    return min((value for value in values if value is not None), default=None)


def replayed(ledger: str, go_on: Searcher | None = None) -> Searcher:
    """A searcher that proposes what `ledger` says was proposed, and fails where an outcome differs. Raises FormatError.

    The searches must be those of the ledger, in its order. What the ledger does not hold to the end, `go_on` takes up.
    """
    documents = documents_of(ledger)
    starts = [number for number, document in enumerate(documents) if document.get("kind") == "search"]
    ends = [*starts[1:], len(documents)]
    parts: list[tuple[int, Sequence[Mapping[str, Any]]]] = [
        (start + 1, documents[start:end]) for start, end in zip(starts, ends, strict=True)
    ]

    def search(session: Session) -> None:
        if parts:
            first_line, part = parts.pop(0)
            repeat(session, part, first_line)
        elif go_on is None:
            must = "hold every search of the plan"
            raise FormatError("ledger", len(documents), "search", session.tier, must, "another plan's ledger?")
        if go_on is not None and not session.is_closed:
            go_on(session)

    return search
