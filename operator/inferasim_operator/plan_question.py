"""A ServingPlan's spec read into the question that `simcore.search` answers. Pure: no cluster, no clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from inferasim_operator.api.v1alpha1.servingplan import AnchorMode, ServingPlanSpec
from inferasim_operator.convert import typed
from inferasim_operator.plan_traffic import middle, workload_of
from simcore.anchors.schema import anchor_from
from simcore.cards import load_accelerator_card, load_model_card
from simcore.cards.hf import model_card_from_config
from simcore.cards.layout import Engine, Layout
from simcore.cards.model import ModelCard, main_weights_dtype
from simcore.des.workload.lengths import LengthFacts
from simcore.errors import InputError
from simcore.prediction.predictor import Mode, Predictor, Setting
from simcore.prediction.shapes import EngineOption
from simcore.prediction.traffic import TrafficLengths, WorkloadInput, trace_facts, traffic_lengths
from simcore.search import arrivals, plan
from simcore.search.goal import Goal
from simcore.search.levers import lever
from simcore.search.objectives import Slo, objective
from simcore.search.predictors import Predictors
from simcore.search.tiers import Tier
from simcore.units import MICRO, MILLI

SECONDS_PER_MINUTE = 60
HOST_LEVER = "kvOffload.hostGibibytes"
MOST_TRACE_REQUESTS = 1_000_000
"""Half a gigabyte and 40 s of one core a candidate (measured); a megabyte of gzip can hold four times as many."""
LAYOUT_KEYS = {
    "tensorParallel": "tensor_parallel",
    "pipelineParallel": "pipeline_parallel",
    "dataParallel": "data_parallel",
    "expertParallel": "expert_parallel",
    "attentionDataParallel": "attention_data_parallel",
}


@dataclass(frozen=True)
class Prepared:
    """A question with all that answers it."""

    spec: ServingPlanSpec
    predictors: Predictors
    predictor: Predictor
    """The one of the engines' own settings."""
    scorer: plan.Scorer
    rate_scorer: arrivals.RateScorer
    question: plan.Question
    workload: WorkloadInput
    lengths: TrafficLengths
    goal: Goal | None
    """None where the paper's rule alone chooses."""

    @property
    def chooser(self) -> plan.Chooser | None:
        """Who picks for a tier; None = the paper's rule."""
        return self.goal.choose if self.goal is not None else None

    @property
    def prompt_tokens(self) -> int:
        """Of a mean request."""
        given = self.spec.workload.synthetic
        if given is None or given.conversation is not None:
            return self.lengths.prompt_tokens
        return middle(given.prompt_tokens)

    @property
    def output_tokens(self) -> int:
        """Of a mean request."""
        given = self.spec.workload.synthetic
        if given is None or given.conversation is not None:
            return self.lengths.output_tokens
        return middle(given.output_tokens)


def prepare(request: Mapping[str, Any], trace: Path | None = None) -> Prepared:
    """The question made ready; `trace` is its trace's file. Raises InputError.

    `"lengths"` of the request are those of a trace that others have read.
    """
    spec = parse_spec(request["spec"])
    if spec.cluster.nodes is None:
        raise InputError("cluster.nodes", None, "be given here", "`discovery` needs the operator in a cluster")
    anchors = {name: anchor_from(raw, name) for name, raw in sorted(dict(request.get("anchors") or {}).items())}
    card = _model_card(spec, request.get("modelConfig"))
    accelerator = load_accelerator_card(spec.cluster.accelerator)
    if accelerator.validation_only:
        raise InputError(
            "cluster.accelerator", spec.cluster.accelerator, "be an AMD GPU with a planning card", "see docs/check.md"
        )
    workload = workload_of(spec.workload, trace)
    known = request.get("lengths")
    lengths = traffic_lengths(workload) if known is None else TrafficLengths(**known)
    if lengths.output_tokens < 2:
        must, hint = "answer with at least 2 tokens", "one token has no TPOT; `inferasim predict` prices its TTFT"
        raise InputError("workload", f"{lengths.output_tokens} output token", must, hint)
    if trace is not None:
        _check_trace(spec, trace_facts(workload))
    setting = Setting(
        card=card,
        accelerator=accelerator,
        anchors=anchors,
        mode=_mode(spec),
        prompt_tokens=lengths.prompt_tokens,
        output_tokens=lengths.output_tokens,
        longest_tokens=lengths.longest_tokens,
        # A config.json says how it is stored, and often still bears the name of the checkpoint it was made from.
        weights_dtype=None if spec.model.name is not None else main_weights_dtype(card),
    )
    predictor = Predictor(setting)
    question = _question(spec, accelerator.gpus_per_node)
    predictors = Predictors(predictor, question.gpus_per_node)
    drawn = arrivals.DrawnScorer(predictors, workload)
    scorer = predictor if workload.fixed is not None else drawn
    prepared = Prepared(spec, predictors, predictor, scorer, drawn, question, workload, lengths, None)
    if spec.objective is None and spec.slo is None:
        return prepared
    goal = Goal(
        predictors,
        scorer,
        objective(spec.objective.value) if spec.objective is not None else None,
        _slo(spec),
        prompt_tokens=prepared.prompt_tokens,
        output_tokens=prepared.output_tokens,
    )
    return replace(prepared, goal=goal)


def _check_trace(spec: ServingPlanSpec, facts: LengthFacts) -> None:
    if facts.requests_count > MOST_TRACE_REQUESTS:
        must = f"hold at most {MOST_TRACE_REQUESTS} requests for a plan"
        raise InputError("workload.trace", f"{facts.requests_count} requests", must, "take a part of it")
    most = max(spec.load.concurrencies or (1,))
    if most > facts.sessions_count:
        must = f"be at most {facts.sessions_count}, the trace's sessions"
        raise InputError("load.concurrencies", most, must, "more clients would never be at work at once")


def _slo(spec: ServingPlanSpec) -> Slo:
    given = spec.slo
    if given is None:
        return Slo()
    return Slo(
        None if given.ttft_milliseconds is None else given.ttft_milliseconds * MILLI,
        None if given.tpot_microseconds is None else given.tpot_microseconds * MICRO,
    )


def parse_spec(raw: Mapping[str, Any]) -> ServingPlanSpec:
    """The typed spec; unknown fields are refused here as the API server refuses them. Raises InputError."""
    return typed(ServingPlanSpec, raw, "spec")


def _model_card(spec: ServingPlanSpec, config: Mapping[str, Any] | None) -> ModelCard:
    if spec.model.name is not None:
        return load_model_card(spec.model.name)
    if config is None:
        raise InputError("model.configMap", None, "be resolved", "hand in the config.json with the question")
    return model_card_from_config(config)


def _mode(spec: ServingPlanSpec) -> Mode:
    asked = (spec.anchors.mode if spec.anchors else None) or AnchorMode.ANCHORED
    return Mode(asked.value.lower())


def _question(spec: ServingPlanSpec, card_gpus_per_node: int) -> plan.Question:
    gpus_per_node = spec.cluster.gpus_per_node or card_gpus_per_node
    nodes_count, rate = spec.cluster.nodes or 1, spec.load.requests_per_minute
    plain = tuple(
        EngineOption(
            Engine(choice.name.value),
            choice.version,
            choice.image,
            tuple(_layout(layout.to_dict()) for layout in choice.layouts) if choice.layouts else None,
        )
        for choice in spec.engines
    )
    engines = (*plain, *_with_host_tier(spec, plain, gpus_per_node))
    tiers = tuple(
        Tier(
            tier.name,
            float(tier.tokens_per_second_per_user or 0),
            tier.ttft_milliseconds * MILLI if tier.ttft_milliseconds is not None else None,
        )
        for tier in spec.tiers or ()
    )
    return plan.Question(
        engines=engines,
        gpus_per_node=gpus_per_node,
        nodes_count=nodes_count,
        gpu_budget_count=spec.cluster.gpu_budget or gpus_per_node * nodes_count,
        concurrencies=spec.load.concurrencies or (),
        request_rate_per_s=None if rate is None else rate / SECONDS_PER_MINUTE,
        tiers=tiers,
    )


def _with_host_tier(spec: ServingPlanSpec, plain: tuple[EngineOption, ...], gpus_per_node: int) -> list[EngineOption]:
    """The engines again with a host KV tier, those whose tier can be set. Raises InputError when none is."""
    host = spec.cluster.host_kv_gibibytes
    if host is None:
        return []
    if host < gpus_per_node:
        raise InputError("cluster.hostKvGibibytes", host, f"be at least 1 GiB for each of the {gpus_per_node} GPUs")
    settable = {engine for entry in lever(HOST_LEVER).allowed if any(entry.values) for engine in entry.engines}
    found = [replace(option, host_kv_gibibytes_per_gpu=host // gpus_per_node) for option in plain]
    kept = [option for option in found if option.engine in settable]
    if not kept:
        names = ", ".join(sorted(engine.value for engine in settable))
        raise InputError("cluster.hostKvGibibytes", host, f"come with an engine whose tier can be set: {names}")
    return kept


def _layout(raw: Mapping[str, int]) -> Layout:
    return Layout(**{LAYOUT_KEYS[key]: width for key, width in raw.items()})
