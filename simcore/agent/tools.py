"""The tools of the investigation. Each answers in JSON text; evaluate is the only one that spends the budget."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

from simcore.agent import briefing
from simcore.search.ledger import Session

MAX_NOTE: Final = 2000
MAX_NOTES: Final = 50
MAX_QUESTIONS: Final = 5
"""Sub-questions per round."""


class SearchOver(BaseException):
    """Ends the investigation from inside a tool.

    Not an Exception: the loop that calls the tools reports those to the model and goes on, for ever if it likes.
    """


class Toolbox:
    """What the model may call. `calls_count` bounds all calls together, so that a loop of cheap calls ends too."""

    def __init__(
        self,
        session: Session,
        *,
        calls_count: int,
        ask: Callable[[str], str] | None = None,
        is_late: Callable[[], bool] = lambda: False,
    ) -> None:
        self.session, self.calls_left = session, calls_count
        self.notes: list[str] = []
        self.questions_left = MAX_QUESTIONS
        self._ask, self._is_late = ask, is_late

    def _count(self) -> None:
        self.calls_left -= 1
        if self.calls_left < 0:
            raise SearchOver("the calls of this round are used")
        if self.session.stop_reason is not None:
            raise SearchOver(self.session.stop_reason)
        if self._is_late():
            raise SearchOver("the time of the language model is used")

    def evaluate(self, configuration: Any) -> str:
        """Price one configuration: a JSON object that names only the levers it changes (values: read_legal)."""
        self._count()
        entry = self.session.try_(parsed_object(configuration), "agent")
        if entry is None:
            raise SearchOver(self.session.stop_reason or "the search is over")
        return briefing.compact({**briefing.trial_row(entry), "budgetLeft": self.session.left_count})

    def read_history(self) -> str:
        """The latest 40 trials, oldest first."""
        self._count()
        return briefing.compact(briefing.history(self.session))

    def read_best(self) -> str:
        """The best legal trial so far."""
        self._count()
        best = self.session.best
        return briefing.compact(None if best is None else briefing.trial_row(best))

    def read_legal(self) -> str:
        """Legal values of every lever, the architecture, the cluster and the objective."""
        self._count()
        return briefing.compact(
            {
                "legal": briefing.legal_values(self.session),
                "architecture": briefing.architecture(self.session),
                "cluster": briefing.cluster(self.session),
                "objective": briefing.objective(self.session),
            }
        )

    def read_budget(self) -> str:
        """Trials that are left."""
        self._count()
        return briefing.compact({"trialsLeft": self.session.left_count, "callsLeft": self.calls_left})

    def write_note(self, text: Any) -> str:
        """Keep a note for later rounds."""
        self._count()
        note = str(text)[:MAX_NOTE]
        if len(self.notes) < MAX_NOTES:
            self.notes.append(note)
            self.session.write("note", text=note)
            return "kept"
        return "the scratchpad is full"

    def read_notes(self) -> str:
        """All notes."""
        self._count()
        return briefing.compact(self.notes)

    def ask_question(self, question: Any) -> str:
        """Ask the same model a sub-question."""
        self._count()
        if self._ask is None or self.questions_left <= 0:
            return "no further sub-questions in this round"
        self.questions_left -= 1
        answer = self._ask(str(question)[:MAX_NOTE])[:MAX_NOTE]
        self.session.write("question", question=str(question)[:MAX_NOTE], answer=answer)
        return answer

    def all(self) -> list[Callable[..., str]]:
        """The tools, in the order they are described."""
        return [
            self.evaluate,
            self.read_history,
            self.read_best,
            self.read_legal,
            self.read_budget,
            self.write_note,
            self.read_notes,
            self.ask_question,
        ]


def parsed_object(value: Any) -> Any:
    """A JSON object handed over as text, else the value as it is."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value
