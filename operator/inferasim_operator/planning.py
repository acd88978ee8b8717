"""A ServingPlan's question and its answer in plain data: the same bytes in the cluster and on a terminal.

The operator calls it in a worker process, the command line in its own. No cluster; network and clock only where the
plan names a language model.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from inferasim_operator import packing, plan_mix, plan_traffic
from inferasim_operator.api.v1alpha1.servingplan import SearchMethod, ServingPlanSpec
from inferasim_operator.plan_document import document_of
from inferasim_operator.plan_question import Prepared, parse_spec, prepare
from inferasim_operator.plan_table import rows_of, write_table
from simcore.agent.dspy_model import DspyModel, Endpoint
from simcore.agent.search import LanguageModel, run_agent
from simcore.errors import FormatError, InputError
from simcore.search import arrivals, plan, shards, trials
from simcore.search.ledger import Session

DEFAULT_BUDGET = 200
"""Trials of a search: about what the paper's study spends (56,328 candidates in 192 searches)."""
MODEL_LIMIT_S = 600.0
"""A language model is asked for so long in all; a computation of the operator may take 900 s."""

ReportProgress = Callable[[Mapping[str, Any]], None]
Keep = Callable[[str], None]
"""Puts a ledger away, and returns once it is there."""


def compute_plan(
    request: Mapping[str, Any],
    progress: ReportProgress | None = None,
    keep: Keep | None = None,
    *,
    table: Path | None = None,
) -> dict[str, Any]:
    """The answer to `{"spec", "anchors": {name: anchor}, "modelConfig": config.json or None}`.

    `"trace"` holds the trace of a ConfigMap, `"claims"` the folder of mounted ones (`plan_traffic.trace_file`).
    With `"shards"` (the packed results of all shards) what they hold is not simulated again; the answer is the same.
    `"agentKey"` is the key of the plan's language model; `"ledger"` the record of a search that is to be repeated, then
    nobody is asked. The answer of a search by trials holds its own `"ledger"`, to be kept beside it. `keep` gets the
    ledger before a language model is asked; handed back as `"resume"` it lets another life of this computation go on
    from there, so that what was paid for is not asked again.
    All candidates go to `table` as Parquet. Raises InputError (the question breaks a rule) — an infeasible plan is an
    answer, not an error.
    """
    spec = parse_spec(request["spec"])
    if spec.demands is not None:
        if table is not None:
            raise InputError("table", str(table), "be asked of a plan without `demands`, which makes several sweeps")
        for number, demand in enumerate(spec.demands):
            if demand.workload is not None and demand.workload.trace is not None:
                raise InputError(f"demands[{number}].workload", "trace", "be `fixed` or `synthetic`")
        return plan_mix.compute(request, spec, lambda part: answer_prepared(part, progress))
    searches = _Searches(request, spec, keep) if spec.search is not None and spec.search.is_tried else None
    if searches is None and request.get("ledger"):
        raise InputError("ledger", "given", "come with a plan of search method Seeds or Agent")
    prepared, answer = answer_prepared(request, progress, searches)
    _write_table(answer, table)
    document = document_of(prepared, answer)
    return document if searches is None else document | {"search": searches.record(), "ledger": searches.ledger}


def _write_table(answer: plan.Answer, table: Path | None) -> None:
    if table is not None:
        write_table(rows_of(answer.candidates), table)


def compute_part(
    request: Mapping[str, Any], index: int, count: int, progress: ReportProgress | None = None
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What shard `index` of `count` finds, as JSON, and its rows of the table. Raises InputError."""
    with plan_traffic.trace_file(request, parse_spec(request["spec"]).workload) as trace:
        prepared = prepare(request, trace)
        question, relay = prepared.question, _relay(progress)
        if question.request_rate_per_s is None:
            found = shards.price_part(question, prepared.scorer, index, count, relay)
        else:
            mean = prepared.output_tokens
            found = shards.price_rate_part(
                question, prepared.rate_scorer, index, count, mean_output_tokens=mean, progress=relay
            )
    return shards.part_document(found.part) | {"lengths": asdict(prepared.lengths)}, rows_of(found.candidates)


def answer_prepared(
    request: Mapping[str, Any], progress: ReportProgress | None = None, searches: _Searches | None = None
) -> tuple[Prepared, plan.Answer]:
    """The same before it becomes a document: the question made ready, and every candidate."""
    spec, relay = parse_spec(request["spec"]), _relay(progress)
    if spec.search is not None and spec.search.is_tried:
        prepared = prepare(request)
        return prepared, _tried(prepared, (searches or _Searches(request, spec)).propose, relay).answer
    documents = [_shard(text, index) for index, text in enumerate(request.get("shards") or ())]
    if documents:
        prepared = prepare({**request, "lengths": documents[0].get("lengths")})
        return prepared, _merged(prepared, documents, relay)
    with plan_traffic.trace_file(request, spec.workload) as trace:
        prepared = prepare(request, trace)
        return prepared, _swept(prepared, relay)


def _swept(prepared: Prepared, relay: plan.Progress | None) -> plan.Answer:
    question, chooser = prepared.question, prepared.chooser
    if question.request_rate_per_s is None:
        return plan.answer(question, prepared.scorer, relay, chooser=chooser)
    mean = prepared.output_tokens
    scorer = prepared.rate_scorer
    return arrivals.answer_rate(question, scorer, mean_output_tokens=mean, progress=relay, chooser=chooser)


def _merged(prepared: Prepared, documents: list[dict[str, Any]], relay: plan.Progress | None) -> plan.Answer:
    question, chooser = prepared.question, prepared.chooser
    parts = [shards.part_from(document, f"shard {index}") for index, document in enumerate(documents)]
    if question.request_rate_per_s is None:
        return shards.merge(question, prepared.scorer, parts, relay, chooser=chooser)
    mean = prepared.output_tokens
    scorer = prepared.rate_scorer
    return shards.merge_rate(question, scorer, parts, relay, mean_output_tokens=mean, chooser=chooser)


def _tried(prepared: Prepared, searcher: trials.Searcher, relay: plan.Progress | None) -> trials.Tried:
    search, goal = prepared.spec.search, prepared.goal
    assert search is not None  # noqa: S101 - the caller has branched on it
    objective = goal.objective.name if goal is not None and goal.objective is not None else trials.DEFAULT_OBJECTIVE
    return trials.answer_tried(
        prepared.question,
        prepared.predictor,
        searcher,
        budget_count=search.budget or DEFAULT_BUDGET,
        objective=objective,
        slo=None if goal is None else goal.slo,
        progress=relay,
        chooser=prepared.chooser,
    )


class _Searches:
    """All searches of one computation, and who proposes in them.

    That is an earlier ledger, or seeds and local search with a language model between them if one is named.
    """

    def __init__(self, request: Mapping[str, Any], spec: ServingPlanSpec, keep: Keep | None = None) -> None:
        search = spec.search
        assert search is not None  # noqa: S101 - the caller has branched on it
        assert search.method is not None  # noqa: S101 - as above
        self._method, self._budget_count, self._keep = search.method, search.budget or DEFAULT_BUDGET, keep
        self._sessions: list[Session] = []
        self._model: LanguageModel | None = None
        self._guidance, self._late_s = "", time.monotonic() + MODEL_LIMIT_S
        if request.get("ledger"):
            self._proposer = trials.replayed(str(request["ledger"]))
            return
        if search.method is SearchMethod.AGENT:
            agent = search.agent
            if agent is None:
                must = "name a chat model with method Agent"
                raise InputError("search.agent", None, must, "method Seeds searches without one")
            self._model = DspyModel(Endpoint(agent.model, agent.url, request.get("agentKey")))
            self._guidance = agent.guidance or ""
        earlier = request.get("resume")
        self._proposer = trials.replayed(str(earlier), self._run) if earlier else self._run

    def propose(self, session: Session) -> None:
        """Propose to one search until it is over."""
        self._sessions.append(session)
        self._proposer(session)

    def _run(self, session: Session) -> None:
        def is_late() -> bool:
            return time.monotonic() > self._late_s

        run_agent(session, self._model, guidance=self._guidance, is_late=is_late, keep=self._put_away)

    def _put_away(self) -> None:
        if self._keep is not None:
            self._keep(self.ledger)

    @property
    def ledger(self) -> str:
        """Of all searches so far."""
        return trials.ledger_of(self._sessions)

    def record(self) -> dict[str, Any]:
        """What status says of them."""
        entries = [entry for session in self._sessions for entry in session.entries]
        record: dict[str, Any] = {
            "method": self._method.value,
            "budget": self._budget_count,
            "trials": len(entries),
            "refused": sum(not entry.trial.legal for entry in entries),
        }
        if self._method is SearchMethod.AGENT:
            record["modelRequests"] = sum(session.granted_count for session in self._sessions)
        failures = trials.model_failures(self._sessions)
        return record | ({"modelFailures": list(failures[:8])} if failures else {})


def _shard(packed: str, index: int) -> dict[str, Any]:
    where = f"shard {index}"
    try:
        document = json.loads(packing.unpack(packed))
    except (ValueError, RecursionError) as error:
        raise FormatError(where, None, "shard", str(error), "be a shard's result") from error
    if not isinstance(document, dict):
        raise FormatError(where, None, "shard", type(document).__name__, "be a shard's result")
    return document


def _relay(progress: ReportProgress | None) -> plan.Progress | None:
    if progress is None:
        return None
    report = progress

    def relay(scored: int, total: int, best: plan.Candidate | None) -> None:
        text = f"{best.shape.layout.label()} x{best.replicas_count}" if best else None
        report({"scored": scored, "total": total, "best": text})

    return relay
