"""A ServingPlan's question and its answer in plain data: the same bytes in the cluster and on a terminal.

Pure: no cluster, no clock. The operator calls it in a worker process, the command line in its own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib import metadata
from typing import Any

import pydantic

from inferasim_operator import packing
from inferasim_operator.api.v1alpha1.common import unknown_fields
from inferasim_operator.api.v1alpha1.servingplan import AnchorMode, LengthRange, ServingPlanSpec
from inferasim_operator.convert import first_error
from simcore.anchors.schema import Anchor, anchor_from
from simcore.cards import load_accelerator_card, load_model_card
from simcore.cards.hf import model_card_from_config
from simcore.cards.layout import Engine, Layout
from simcore.cards.model import ModelCard
from simcore.errors import FormatError, InputError
from simcore.prediction.outcome import closed_loop_outcome
from simcore.prediction.predictor import Mode, Predictor, Setting
from simcore.prediction.scenario import WorkloadInput, longest_tokens
from simcore.prediction.shapes import EngineOption, Shape
from simcore.search import arrivals, plan, shards
from simcore.search.goal import Goal
from simcore.search.objectives import Slo, objective
from simcore.search.recommend import recommend
from simcore.search.tiers import Tier, TierChoice
from simcore.units import MICRO, MILLI

PERMILLE = 1000
SECONDS_PER_MINUTE = 60

ReportProgress = Callable[[Mapping[str, Any]], None]


def compute_plan(request: Mapping[str, Any], progress: ReportProgress | None = None) -> dict[str, Any]:
    """The answer to `{"spec", "anchors": {name: anchor}, "modelConfig": config.json or None}`.

    With `"shards"` (the packed results of all shards) what they hold is not simulated again; the answer is the same.
    Raises InputError (the question breaks a rule) — an infeasible plan is an answer, not an error.
    """
    prepared, answer = answer_prepared(request, progress)
    return _document(prepared, answer)


def compute_part(
    request: Mapping[str, Any], index: int, count: int, progress: ReportProgress | None = None
) -> dict[str, Any]:
    """What shard `index` of `count` finds, as JSON. Raises InputError."""
    prepared = prepare(request)
    part = shards.price_part(prepared.question, prepared.scorer, index, count, _relay(progress))
    return shards.part_document(part)


def answer_prepared(request: Mapping[str, Any], progress: ReportProgress | None = None) -> tuple[Prepared, plan.Answer]:
    """The same before it becomes a document: the question made ready, and every candidate."""
    prepared = prepare(request)
    question, scorer, relay = prepared.question, prepared.scorer, _relay(progress)
    chooser = prepared.goal.choose if prepared.goal is not None else None
    if question.request_rate_per_s is not None:
        found = arrivals.answer_rate(
            question,
            arrivals.DrawnScorer(prepared.predictor, prepared.workload),
            mean_output_tokens=prepared.output_tokens,
            progress=relay,
            chooser=chooser,
        )
    elif request.get("shards"):
        parts = [_part(text, index) for index, text in enumerate(request["shards"])]
        found = shards.merge(question, scorer, parts, relay, chooser=chooser)
    else:
        found = plan.answer(question, scorer, relay, chooser=chooser)
    return prepared, found


@dataclass(frozen=True)
class Prepared:
    """A question with all that answers it."""

    spec: ServingPlanSpec
    predictor: Predictor
    scorer: plan.Scorer
    question: plan.Question
    workload: WorkloadInput
    goal: Goal | None
    """None where the paper's rule alone chooses."""

    @property
    def prompt_tokens(self) -> int:
        """Of a mean request."""
        given = self.spec.workload.synthetic
        return self.predictor.setting.prompt_tokens if given is None else _middle(given.prompt_tokens)

    @property
    def output_tokens(self) -> int:
        """Of a mean request."""
        given = self.spec.workload.synthetic
        return self.predictor.setting.output_tokens if given is None else _middle(given.output_tokens)


def prepare(request: Mapping[str, Any]) -> Prepared:
    """The question made ready. Raises InputError."""
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
    workload = _workload(spec)
    prompt_tokens, output_tokens = longest_tokens(workload)
    setting = Setting(
        card=card,
        accelerator=accelerator,
        anchors=anchors,
        mode=_mode(spec),
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
    )
    predictor = Predictor(setting)
    scorer = predictor if workload.fixed is not None else arrivals.DrawnScorer(predictor, workload)
    question = _question(spec, accelerator.gpus_per_node)
    prepared = Prepared(spec, predictor, scorer, question, workload, None)
    if spec.objective is None and spec.slo is None:
        return prepared
    goal = Goal(
        predictor,
        scorer,
        objective(spec.objective.value) if spec.objective is not None else None,
        _slo(spec),
        prompt_tokens=prepared.prompt_tokens,
        output_tokens=prepared.output_tokens,
    )
    return replace(prepared, goal=goal)


def _part(packed: str, index: int) -> shards.Part:
    where = f"shard {index}"
    try:
        document = json.loads(packing.unpack(packed))
    except (ValueError, RecursionError) as error:
        raise FormatError(where, None, "shard", str(error), "be a shard's result") from error
    return shards.part_from(document, where)


def _workload(spec: ServingPlanSpec) -> WorkloadInput:
    given = spec.workload.to_dict()
    return WorkloadInput.model_validate(given)


def _middle(length: LengthRange) -> int:
    """Of an even draw, rounded."""
    return round((length.minimum + length.maximum) / 2)


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
    try:
        spec = ServingPlanSpec.model_validate(raw)
    except pydantic.ValidationError as error:
        raise InputError("spec", first_error(error), "be a valid ServingPlan spec") from error
    unknown = unknown_fields(ServingPlanSpec, raw)
    if unknown:
        raise InputError(f"spec.{unknown[0]}", unknown[0], "be a field of ServingPlan", "remove it or correct its name")
    return spec


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
    engines = tuple(
        EngineOption(
            Engine(choice.name.value),
            choice.version,
            choice.image,
            tuple(_layout(layout.to_dict()) for layout in choice.layouts) if choice.layouts else None,
        )
        for choice in spec.engines
    )
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


_LAYOUT_KEYS = {
    "tensorParallel": "tensor_parallel",
    "pipelineParallel": "pipeline_parallel",
    "dataParallel": "data_parallel",
    "expertParallel": "expert_parallel",
    "attentionDataParallel": "attention_data_parallel",
}


def _layout(raw: Mapping[str, int]) -> Layout:
    return Layout(**{_LAYOUT_KEYS[key]: width for key, width in raw.items()})


def _layout_document(layout: Layout) -> dict[str, int]:
    """Widths above 1, and always the tensor-parallel one."""
    found = {key: getattr(layout, name) for key, name in _LAYOUT_KEYS.items()}
    return {key: width for key, width in found.items() if width > 1 or key == "tensorParallel"}


def _relay(progress: ReportProgress | None) -> plan.Progress | None:
    if progress is None:
        return None
    report = progress

    def relay(scored: int, total: int, best: plan.Candidate | None) -> None:
        text = f"{best.shape.layout.label()} x{best.replicas_count}" if best else None
        report({"scored": scored, "total": total, "best": text})

    return relay


def _document(prepared: Prepared, answer: plan.Answer) -> dict[str, Any]:
    predictor = prepared.predictor
    selected = [
        _selection(answer.candidates[choice.chosen], choice, prepared)
        for choice in answer.choices
        if choice.chosen is not None
    ]
    return {
        "feasible": answer.is_feasible,
        "selected": selected,
        "binding": [_binding(answer, choice, prepared) for choice in answer.choices if choice.binding is not None],
        "front": [_front_row(answer.candidates[index]) for index in answer.front],
        "shortList": {
            choice.tier.name: [_front_row(answer.candidates[index]) for index in choice.short_list]
            for choice in answer.choices
            if choice.short_list
        },
        "candidates": {
            "scored": len(answer.candidates),
            "total": len(answer.candidates) + answer.pruned_count,
            "simulations": answer.simulations_count,
            "refused": len(answer.refusals),
        },
        "refusals": [
            {
                "engine": refusal.option.engine.value,
                "layout": _layout_document(refusal.layout),
                "rule": refusal.rule,
                "detail": refusal.detail,
            }
            for refusal in answer.refusals
        ],
        "recommendedHarvests": [
            {
                "engine": item.engine.value,
                "accelerator": predictor.setting.accelerator.name,
                "layout": _layout_document(item.layout),
                "reason": item.reason,
            }
            for item in recommend(answer, predictor.setting.mode)
        ],
        "effective": {
            "model": predictor.setting.card.name,
            "gpuBudget": prepared.question.gpu_budget_count,
            "mode": predictor.setting.mode.value.capitalize(),
            "tiers": [_tier(choice.tier) for choice in answer.choices],
            **_asked(prepared.spec),
        },
        "provenance": {
            "inferasimVersion": metadata.version("inferasim"),
            "anchorDigests": sorted(anchor.digest() for anchor in predictor.setting.anchors.values()),
        },
    }


def _tier(tier: Tier) -> dict[str, Any]:
    return {
        "name": tier.name,
        "tokensPerSecondPerUser": round(tier.min_interactivity_tokens_per_s) or None,
        "ttftMilliseconds": None if tier.max_ttft_s is None else round(tier.max_ttft_s / MILLI),
    }


def _selection(candidate: plan.Candidate, choice: TierChoice, prepared: Prepared) -> dict[str, Any]:
    return {
        "tier": choice.tier.name,
        "configuration": _configuration(candidate, prepared),
        "gpus": candidate.gpus_count,
        "predicted": _predicted(candidate),
        "headroomPermille": None if choice.headroom_frac is None else _permille(choice.headroom_frac),
        "reason": _reason(candidate, choice, prepared.goal),
        "source": _source(candidate, prepared.predictor),
    }


def _asked(spec: ServingPlanSpec) -> dict[str, Any]:
    """What the choice was made by, where it is not the paper's rule; and the load where it is a rate."""
    found: dict[str, Any] = {}
    if spec.objective is not None:
        found["objective"] = spec.objective.value
    if spec.slo is not None:
        found["slo"] = spec.slo.to_dict()
    if spec.load.requests_per_minute is not None:
        found["requestsPerMinute"] = spec.load.requests_per_minute
    return found


def _reason(candidate: plan.Candidate, choice: TierChoice, goal: Goal | None) -> str:
    if goal is not None and goal.objective is not None:
        value = goal.figure(candidate)
        return f"best {goal.objective.name} ({value:.4g} {goal.objective.unit}) of those that meet the tier"
    rate = f"{candidate.throughput_per_gpu_tokens_per_s:.0f} tok/s per GPU"
    if choice.headroom_frac is None:
        return f"best throughput per GPU within 5 % ({rate}), quickest of the band; the tier sets no limit"
    return f"within 5 % of the best throughput per GPU ({rate}) with the most headroom ({choice.headroom_frac:+.0%})"


def _configuration(candidate: plan.Candidate, prepared: Prepared) -> dict[str, Any]:
    """What emission needs, in the words of the API; scheduler settings are those that were simulated."""
    shape, predictor, setting = candidate.shape, prepared.predictor, prepared.predictor.setting
    limits = predictor.limits(shape)
    document = {
        "engine": shape.option.engine.value,
        "engineVersion": predictor.engine_version(shape),
        "image": predictor.image(shape),
        "model": setting.card.name,
        "accelerator": setting.accelerator.name,
        "layout": _layout_document(shape.layout),
        "replicas": candidate.replicas_count,
        "gpusPerReplica": shape.gpus_count,
        "concurrency": candidate.concurrency,
        "promptTokens": prepared.prompt_tokens,
        "outputTokens": prepared.output_tokens,
        "maxModelLengthTokens": setting.prompt_tokens + setting.output_tokens,
        "kvDtype": predictor.kv_dtype(shape),
        "blockSize": limits.block_tokens,
        "memoryPermille": _permille(predictor.memory_frac),
        "maxRunningRequests": limits.max_running_requests,
        "maxBatchedTokens": limits.max_batched_tokens,
        "chunkTokens": limits.chunk_tokens,
        "prefixCaching": "Disabled",
    }
    return {key: value for key, value in document.items() if value is not None}


def _predicted(candidate: plan.Candidate) -> dict[str, Any]:
    prediction = candidate.prediction
    low_high = prediction.interval80
    # The interval of one replica's throughput, carried to the mean over the GPUs of all replicas.
    scale = candidate.throughput_per_gpu_tokens_per_s / prediction.throughput_tokens_per_s
    return {
        "ttftMilliseconds": round(candidate.ttft_s / MILLI),
        "tpotMicroseconds": round(candidate.tpot_s / MICRO),
        "tokensPerSecondPerGpu": round(candidate.throughput_per_gpu_tokens_per_s),
        "tokensPerSecondPerUser": round(candidate.interactivity_tokens_per_s),
        "interval80": {
            "ttftMilliseconds": _range(low_high["ttft"], 1 / MILLI),
            "tpotMicroseconds": _range(low_high["tpot"], 1 / MICRO),
            "tokensPerSecondPerGpu": _range(low_high["throughput"], scale),
        },
    }


def _range(ends: tuple[float, float], factor: float) -> dict[str, int]:
    return {"low": round(ends[0] * factor), "high": round(ends[1] * factor)}


def _source(candidate: plan.Candidate, predictor: Predictor) -> dict[str, Any]:
    source = candidate.prediction.source
    document: dict[str, Any] = {"mode": source.mode.capitalize()}
    if source.anchor_name is not None:
        anchor = predictor.setting.anchors[source.anchor_name]
        document["anchor"] = source.anchor_name
        document["anchorDigest"] = anchor.digest()
        document["peakPrefillTokensPerSecond"] = _peak_prefill_tokens_per_s(candidate.shape, predictor, anchor)
    if candidate.prediction.flags:
        document["flags"] = sorted(candidate.prediction.flags)
    if source.laws:
        document["laws"] = dict(sorted(source.laws.items()))
    return document


def _peak_prefill_tokens_per_s(shape: Shape, predictor: Predictor, anchor: Anchor) -> int:
    """Tokens of one full prefill step over the time to first token of it alone, rounded down.

    That is how llm-d's calibration defines its `peakPrefillThroughput`. The step is never longer than one that the
    anchor measured.
    """
    scheduler, facts, packed = predictor.scheduler(shape), predictor.facts(shape), anchor.packed_prefill
    longest = max(point.prompt_tokens for point in anchor.prefill.points)
    measured = max(longest, packed.token_budget if packed is not None else 0)
    tokens = min(scheduler.chunk_tokens, scheduler.max_batched_tokens, measured)
    alone = closed_loop_outcome(
        facts.cost,
        scheduler,
        attention_dp=facts.attention_dp_count,
        concurrency=1,
        requests_count=1,
        prompt_tokens=tokens,
        output_tokens=1,
    )
    assert alone.ttft.mean_s is not None  # noqa: S101 - one request ran
    return int(tokens / alone.ttft.mean_s)


def _binding(answer: plan.Answer, choice: TierChoice, prepared: Prepared) -> dict[str, Any]:
    binding = choice.binding
    if binding is None:
        raise InputError("binding", None, "be given for a tier without a configuration")
    document: dict[str, Any] = {"tier": choice.tier.name, "limit": binding.limit, "detail": binding.detail}
    if choice.nearest is not None:
        nearest = answer.candidates[choice.nearest]
        document["nearest"] = {
            "configuration": _configuration(nearest, prepared),
            "predicted": _predicted(nearest),
        }
    return document


def _front_row(candidate: plan.Candidate) -> dict[str, Any]:
    return {
        "engine": candidate.shape.option.engine.value,
        "layout": _layout_document(candidate.shape.layout),
        "replicas": candidate.replicas_count,
        "gpus": candidate.gpus_count,
        "concurrency": candidate.concurrency,
        **_predicted(candidate),
    }


def _permille(fraction: float) -> int:
    return round(fraction * PERMILLE)
