"""The ledger of a search: every trial with its configuration, figures, legality and reason, as JSON lines.

A session spends the budget, keeps the best legal trial and says when to stop. Its ledger replays to the same decisions.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from simcore.errors import FormatError, InputError
from simcore.search.space import Space, Trial

STALE_FRAC: Final = 0.7
"""A search stops when its best trial has not changed for this share of the budget (paper App. J)."""
MAX_BUDGET: Final = 1_000_000


@dataclass(frozen=True)
class Entry:
    """A trial as the ledger numbers it."""

    number: int
    """From 1."""
    origin: str
    """Who proposed it: `seed: …`, `local: …`, `agent`."""
    proposed: Any
    trial: Trial

    def document(self) -> dict[str, Any]:
        """The line of the ledger."""
        trial = self.trial
        return {
            "kind": "trial",
            "number": self.number,
            "origin": self.origin,
            "proposed": self.proposed,
            "configuration": dict(trial.configuration),
            "legal": trial.legal,
            "reason": trial.reason,
            "score": trial.score_value,
            "figures": dict(trial.figures),
            "mode": trial.mode,
            "flags": list(trial.flags),
            "fusionOpportunities": dict(trial.opportunities),
        }


class Session:
    """One search over a space with a budget of trials. The same proposals in the same order give the same ledger."""

    def __init__(
        self,
        space: Space,
        *,
        budget_count: int,
        tier: str = "",
        on_trial: Callable[[Entry], None] | None = None,
    ) -> None:
        """`tier`: what the search is for, where a plan makes several. `on_trial` is called with each new trial."""
        if not 1 <= budget_count <= MAX_BUDGET:
            raise InputError("budget", budget_count, f"be 1 to {MAX_BUDGET} trials")
        self.space, self.budget_count, self.tier = space, budget_count, tier
        self._on_trial = on_trial
        self.entries: list[Entry] = []
        self.best: Entry | None = None
        self.nearest: Entry | None = None
        """The priced trial that misses the latency budgets by least, as long as none keeps them."""
        self._seen: dict[str, Entry] = {}
        self.granted_count = 0
        """Requests to a language model that were granted, whether they were made or not."""
        self.lines: list[dict[str, Any]] = [self.header()]
        """The ledger so far; `json_lines` is its text."""

    def header(self) -> dict[str, Any]:
        """The first line: what is searched, and the digest of the space."""
        space = self.space
        return {
            "kind": "search",
            "objective": space.objective.name,
            "direction": space.objective.direction.value,
            "budget": self.budget_count,
            "engine": space.option.engine.value,
            "model": space.setting.card.name,
            "space": space_digest(space),
            "tier": self.tier,
        }

    @property
    def left_count(self) -> int:
        """Trials that may still be made."""
        return self.budget_count - len(self.entries)

    @property
    def requests_left_count(self) -> int:
        """Requests to a language model that may still be granted: as many in all as there are trials."""
        return self.budget_count - self.granted_count

    @property
    def stop_reason(self) -> str | None:
        """Why no further trial is made; None while the search goes on."""
        if self.left_count <= 0:
            return "the budget is used"
        if self.best is not None and len(self.entries) - self.best.number >= STALE_FRAC * self.budget_count:
            return f"the best trial has not changed for {STALE_FRAC:.0%} of the budget"
        return None

    def try_(self, partial: object, origin: str) -> Entry | None:
        """Evaluate `partial` over the baseline; None once the search is over, then nothing is simulated.

        What was tried before comes back as it was and costs nothing; an illegal proposal costs a trial.
        """
        if self.stop_reason is not None:
            return None
        trial = self.space.evaluate(partial)
        key = _canonical(dict(trial.configuration)) if trial.candidate or trial.figures else _canonical(partial)
        known = self._seen.get(key)
        if known is not None:
            return known
        entry = Entry(len(self.entries) + 1, origin[:80], _plain(partial), trial)
        self.entries.append(entry)
        self._seen[key] = entry
        self.lines.append(entry.document())
        if trial.legal and (self.best is None or trial.rank < self.best.trial.rank):
            self.best = entry
        elif trial.miss_frac > 0 and (self.nearest is None or trial.miss_rank < self.nearest.trial.miss_rank):
            self.nearest = entry
        if self._on_trial is not None:
            self._on_trial(entry)
        return entry

    @property
    def is_closed(self) -> bool:
        """Whether the last line is written."""
        return bool(self.lines[-1]["kind"] == "result")

    @property
    def leader(self) -> Entry | None:
        """What a search goes on from: the best trial, or the nearest to being legal."""
        return self.best or self.nearest

    def grant(self, most_count: int) -> int:
        """Grant up to `most_count` requests to a language model, and write down how many it were."""
        count = max(0, min(most_count, self.requests_left_count))
        if count:
            self.granted_count += count
            self.write("grant", requests=count)
        return count

    def write(self, kind: str, **fields: Any) -> None:
        """Add a line that is not a trial: a plan, a note, a question."""
        self.lines.append({"kind": kind, **_plain(fields)})

    def close(self) -> None:
        """Add the last line: the best trial and why the search stopped."""
        number = None if self.best is None else self.best.number
        self.lines.append({"kind": "result", "best": number, "stopped": self.stop_reason or "nothing left to propose"})

    def json_lines(self) -> str:
        """The ledger so far: one JSON object per line, keys sorted, no time stamps."""
        return "".join(_canonical(line) + "\n" for line in self.lines)

    def recent(self, count: int) -> list[Entry]:
        """The latest `count` trials, oldest first."""
        return self.entries[-count:]


def space_digest(space: Space) -> str:
    """What the legal values, the question and the anchors hash to."""
    setting = space.setting
    document = {
        "values": {name: list(values) for name, values in space.legal_values.items()},
        "layouts": [layout.label() for layout in space.layouts],
        "cluster": list(vars(space.cluster).values()),
        "lengths": [setting.prompt_tokens, setting.output_tokens],
        "slo": [space.slo.max_ttft_s, space.slo.max_tpot_s],
        "mode": setting.mode.value,
        "model": setting.card.name,
        "accelerator": setting.accelerator.name,
        "anchors": sorted(anchor.digest() for anchor in setting.anchors.values()),
    }
    return "sha256:" + hashlib.sha256(_canonical(document).encode()).hexdigest()


def replay(lines: str | Iterable[str], space: Space) -> Session:
    """Repeat a recorded search over `space`: same proposals, same figures, same decision. Raises FormatError if not.

    Lines that are not trials (plans, notes) are carried over.
    """
    documents = documents_of(lines)
    header = documents[0]
    session = Session(space, budget_count=header.get("budget", 0), tier=str(header.get("tier", "")))
    repeat(session, documents)
    return session


def repeat(session: Session, documents: Sequence[Mapping[str, Any]], first_line: int = 1) -> None:
    """Propose to a new session what `documents` of one search say was proposed. Raises FormatError where it differs."""
    _compare(documents[0], session.header(), first_line)
    for number, document in enumerate(documents[1:], start=first_line + 1):
        kind = document.get("kind")
        if kind == "trial":
            entry = session.try_(document.get("proposed"), str(document.get("origin")))
            _compare(document, entry.document() if entry else {}, number)
        elif kind == "grant":
            asked = document.get("requests")
            session.grant(asked if isinstance(asked, int) else 0)
            _compare(document, session.lines[-1], number)
        elif kind == "result":
            session.close()
            _compare(document, session.lines[-1], number)
        else:
            session.write(str(kind), **{key: value for key, value in document.items() if key != "kind"})


def documents_of(lines: str | Iterable[str]) -> list[dict[str, Any]]:
    """The lines of a ledger, the first one a search's head. Raises FormatError."""
    texts = lines.splitlines() if isinstance(lines, str) else list(lines)
    documents = [_parsed(text, number) for number, text in enumerate(texts, start=1) if text.strip()]
    if not documents or documents[0].get("kind") != "search":
        raise FormatError("ledger", 1, "kind", documents[:1], "be `search` on the first line")
    return documents


def _compare(written: Mapping[str, Any], found: Mapping[str, Any], number: int) -> None:
    # Through text, because that is what the file holds.
    again = json.loads(_canonical(dict(found)))
    for key in sorted(set(written) | set(again)):
        if written.get(key) != again.get(key):
            must = f"be {again.get(key)!r}, as replayed"
            raise FormatError("ledger", number, key, written.get(key), must, "other anchors, model or version?")


def _parsed(text: str, number: int) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FormatError("ledger", number, "line", str(error), "be JSON") from error
    if not isinstance(value, dict):
        raise FormatError("ledger", number, "line", type(value).__name__, "be an object")
    return value


def _canonical(value: object) -> str:
    return json.dumps(_plain(value), sort_keys=True, separators=(",", ":"), allow_nan=False)


def _plain(value: Any, depth: int = 0) -> Any:
    """JSON of anything that was proposed, cut to a bounded size."""
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else repr(value)
    if isinstance(value, str):
        return value[:4000]
    if depth < 6 and isinstance(value, Mapping):
        return {str(key)[:200]: _plain(item, depth + 1) for key, item in list(value.items())[:200]}
    if depth < 6 and isinstance(value, Sequence):
        return [_plain(item, depth + 1) for item in value[:200]]
    return repr(value)[:200]
