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


def compute_plan(
    request: Mapping[str, Any], progress: ReportProgress | None = None, *, table: Path | None = None
) -> dict[str, Any]:
    """The answer to `{"spec", "anchors": {name: anchor}, "modelConfig": config.json or None}`.

    `"trace"` holds the trace of a ConfigMap, `"claims"` the folder of mounted ones (`plan_traffic.trace_file`).
    With `"shards"` (the packed results of all shards) what they hold is not simulated again; the answer is the same.
    `"agentKey"` is the key of the plan's language model; `"ledger"` the record of a search that is to be repeated, then
    nobody is asked. The answer of a search by trials holds its own `"ledger"`, to be kept beside it.
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
    if spec.search is not None and spec.search.is_tried:
        prepared = prepare(request)
        tried = _tried(prepared, _searcher(request, spec), _relay(progress))
        _write_table(tried.answer, table)
        document = document_of(prepared, tried.answer)
        return document | {"search": _record(spec, tried), "ledger": tried.ledger}
    if request.get("ledger"):
        raise InputError("ledger", "given", "come with a plan of search method Seeds or Agent")
    prepared, answer = answer_prepared(request, progress)
    _write_table(answer, table)
    return document_of(prepared, answer)


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


def answer_prepared(request: Mapping[str, Any], progress: ReportProgress | None = None) -> tuple[Prepared, plan.Answer]:
    """The same before it becomes a document: the question made ready, and every candidate."""
    spec, relay = parse_spec(request["spec"]), _relay(progress)
    if spec.search is not None and spec.search.is_tried:
        prepared = prepare(request)
        return prepared, _tried(prepared, _searcher(request, spec), relay).answer
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


def _searcher(request: Mapping[str, Any], spec: ServingPlanSpec) -> trials.Searcher:
    """Who proposes: an earlier ledger, or seeds and local search with a language model between them if one is named."""
    search = spec.search
    assert search is not None  # noqa: S101 - the caller has branched on it
    if request.get("ledger"):
        return trials.replayed(str(request["ledger"]))
    model: LanguageModel | None = None
    guidance, late_s = "", time.monotonic() + MODEL_LIMIT_S
    if search.method is SearchMethod.AGENT:
        agent = search.agent
        if agent is None:
            must = "name a chat model with method Agent"
            raise InputError("search.agent", None, must, "method Seeds searches without one")
        model = DspyModel(Endpoint(agent.model, agent.url, request.get("agentKey")))
        guidance = agent.guidance or ""

    def propose(session: Session) -> None:
        run_agent(session, model, guidance=guidance, is_late=lambda: time.monotonic() > late_s)

    return propose


def _record(spec: ServingPlanSpec, tried: trials.Tried) -> dict[str, Any]:
    assert spec.search is not None  # noqa: S101 - the caller has branched on it
    assert spec.search.method is not None  # noqa: S101 - as above
    entries = [entry for session in tried.sessions for entry in session.entries]
    record: dict[str, Any] = {
        "method": spec.search.method.value,
        "budget": spec.search.budget or DEFAULT_BUDGET,
        "trials": len(entries),
        "refused": sum(not entry.trial.legal for entry in entries),
    }
    failures = tried.model_failures
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
