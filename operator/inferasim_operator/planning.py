"""A ServingPlan's question and its answer in plain data: the same bytes in the cluster and on a terminal.

Pure: no cluster, no clock. The operator calls it in a worker process, the command line in its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import metadata
from typing import Any

import pydantic

from inferasim_operator.api.v1alpha1.common import unknown_fields
from inferasim_operator.api.v1alpha1.servingplan import AnchorMode, ServingPlanSpec
from inferasim_operator.convert import first_error
from simcore.anchors.schema import Anchor, anchor_from
from simcore.cards import load_accelerator_card, load_model_card
from simcore.cards.hf import model_card_from_config
from simcore.cards.layout import Engine, Layout
from simcore.cards.model import ModelCard
from simcore.errors import InputError
from simcore.predict.predictor import Mode, Predictor, Setting
from simcore.predict.shapes import EngineOption
from simcore.search import plan
from simcore.search.recommend import recommend
from simcore.search.tiers import Tier, TierChoice
from simcore.units import MICRO, MILLI

PERMILLE = 1000

ReportProgress = Callable[[Mapping[str, Any]], None]


def compute_plan(request: Mapping[str, Any], progress: ReportProgress | None = None) -> dict[str, Any]:
    """The answer to `{"spec", "anchors": {name: anchor}, "modelConfig": config.json or None}`.

    Raises InputError (the question breaks a rule) — an infeasible plan is an answer, not an error.
    """
    return _document(*answer_plan(request, progress))


def answer_plan(
    request: Mapping[str, Any], progress: ReportProgress | None = None
) -> tuple[ServingPlanSpec, plan.Answer, Predictor]:
    """The same before it becomes a document: the typed spec, every candidate, and what priced them."""
    spec = parse_spec(request["spec"])
    anchors = {name: anchor_from(raw, name) for name, raw in sorted(dict(request.get("anchors") or {}).items())}
    card = _model_card(spec, request.get("modelConfig"))
    accelerator = load_accelerator_card(spec.cluster.accelerator)
    if accelerator.validation_only:
        raise InputError(
            "cluster.accelerator", spec.cluster.accelerator, "be an AMD GPU with a planning card", "see docs/check.md"
        )
    setting = Setting(
        card=card,
        accelerator=accelerator,
        anchors=anchors,
        mode=_mode(spec),
        prompt_tokens=spec.workload.fixed.prompt_tokens,
        output_tokens=spec.workload.fixed.output_tokens,
    )
    predictor = Predictor(setting)
    return spec, plan.answer(_question(spec, accelerator.gpus_per_node), predictor, _relay(progress)), predictor


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
        nodes_count=spec.cluster.nodes,
        gpu_budget_count=spec.cluster.gpu_budget or gpus_per_node * spec.cluster.nodes,
        concurrencies=spec.load.concurrencies,
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


def _document(spec: ServingPlanSpec, answer: plan.Answer, predictor: Predictor) -> dict[str, Any]:
    selected = [
        _selection(answer.candidates[choice.chosen], choice, predictor)
        for choice in answer.choices
        if choice.chosen is not None
    ]
    return {
        "feasible": answer.is_feasible,
        "selected": selected,
        "binding": [_binding(answer, choice, predictor) for choice in answer.choices if choice.binding is not None],
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
            "gpuBudget": spec.cluster.gpu_budget
            or (spec.cluster.gpus_per_node or predictor.setting.accelerator.gpus_per_node) * spec.cluster.nodes,
            "mode": predictor.setting.mode.value.capitalize(),
            "tiers": [_tier(choice.tier) for choice in answer.choices],
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


def _selection(candidate: plan.Candidate, choice: TierChoice, predictor: Predictor) -> dict[str, Any]:
    return {
        "tier": choice.tier.name,
        "configuration": _configuration(candidate, predictor),
        "gpus": candidate.gpus_count,
        "predicted": _predicted(candidate),
        "headroomPermille": None if choice.headroom_frac is None else _permille(choice.headroom_frac),
        "reason": _reason(candidate, choice),
        "source": _source(candidate, predictor.setting.anchors),
    }


def _reason(candidate: plan.Candidate, choice: TierChoice) -> str:
    rate = f"{candidate.throughput_per_gpu_tokens_per_s:.0f} tok/s per GPU"
    if choice.headroom_frac is None:
        return f"best throughput per GPU within 5 % ({rate}), quickest of the band; the tier sets no limit"
    return f"within 5 % of the best throughput per GPU ({rate}) with the most headroom ({choice.headroom_frac:+.0%})"


def _configuration(candidate: plan.Candidate, predictor: Predictor) -> dict[str, Any]:
    """What emission needs, in the words of the API; scheduler settings are those that were simulated."""
    shape, setting = candidate.shape, predictor.setting
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
        "promptTokens": setting.prompt_tokens,
        "outputTokens": setting.output_tokens,
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


def _source(candidate: plan.Candidate, anchors: Mapping[str, Anchor]) -> dict[str, Any]:
    source = candidate.prediction.source
    document: dict[str, Any] = {"mode": source.mode.capitalize()}
    if source.anchor_name is not None:
        document["anchor"] = source.anchor_name
        document["anchorDigest"] = anchors[source.anchor_name].digest()
    if candidate.prediction.flags:
        document["flags"] = sorted(candidate.prediction.flags)
    if source.laws:
        document["laws"] = dict(sorted(source.laws.items()))
    return document


def _binding(answer: plan.Answer, choice: TierChoice, predictor: Predictor) -> dict[str, Any]:
    binding = choice.binding
    if binding is None:
        raise InputError("binding", None, "be given for a tier without a configuration")
    document: dict[str, Any] = {"tier": choice.tier.name, "limit": binding.limit, "detail": binding.detail}
    if choice.nearest is not None:
        nearest = answer.candidates[choice.nearest]
        document["nearest"] = {
            "configuration": _configuration(nearest, predictor),
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
