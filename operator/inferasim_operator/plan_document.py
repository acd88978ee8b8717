"""The answer of a ServingPlan as a document: what status, result ConfigMap and command line show. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import metadata
from typing import Any

from inferasim_operator.api.v1alpha1.servingplan import ServingPlanSpec
from inferasim_operator.plan_question import LAYOUT_KEYS, Prepared
from simcore.anchors.schema import Anchor
from simcore.cards.layout import Layout, resolve
from simcore.errors import InputError
from simcore.laws.speculation import Drafter
from simcore.prediction.outcome import closed_loop_outcome
from simcore.prediction.predictor import Overrides, Predictor
from simcore.prediction.shapes import Refusal, Shape
from simcore.search import plan
from simcore.search.goal import Goal
from simcore.search.recommend import Harvest, recommend
from simcore.search.space import DRAFTERS
from simcore.search.tiers import Tier, TierChoice, promise_flags
from simcore.units import MICRO, MILLI

PERMILLE = 1000


def _layout_document(layout: Layout) -> dict[str, int]:
    """Widths above 1, and always the tensor-parallel one."""
    found = {key: getattr(layout, name) for key, name in LAYOUT_KEYS.items()}
    return {key: width for key, width in found.items() if width > 1 or key == "tensorParallel"}


def document_of(prepared: Prepared, answer: plan.Answer) -> dict[str, Any]:
    """The whole answer in the words of the API."""
    predictor = prepared.predictor
    selected = [
        selection(answer.candidates[choice.chosen], choice, prepared)
        for choice in answer.choices
        if choice.chosen is not None
    ]
    return {
        "feasible": answer.is_feasible,
        "selected": selected,
        "binding": [binding_of(answer, choice, prepared) for choice in answer.choices if choice.binding is not None],
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
                **_worth(item),
            }
            for item in recommend(answer, predictor.setting.mode)
        ],
        "effective": {
            "model": predictor.setting.card.name,
            "gpuBudget": prepared.question.gpu_budget_count,
            "mode": predictor.setting.mode.value.capitalize(),
            "tiers": [tier_document(choice.tier) for choice in answer.choices],
            **_asked(prepared.spec),
        },
        "provenance": {
            "inferasimVersion": metadata.version("inferasim"),
            "anchorDigests": sorted(anchor.digest() for anchor in predictor.setting.anchors.values()),
        },
    }


def _worth(item: Harvest) -> dict[str, int]:
    found = {
        "expectedGainPermille": item.gain_frac,
        "changePermille": item.change_frac,
        "intervalPermille": item.interval_frac,
    }
    return {name: _permille(value) for name, value in found.items() if value is not None}


def tier_document(tier: Tier) -> dict[str, Any]:
    """A tier in the words of the API."""
    return {
        "name": tier.name,
        "tokensPerSecondPerUser": round(tier.min_interactivity_tokens_per_s) or None,
        "ttftMilliseconds": None if tier.max_ttft_s is None else round(tier.max_ttft_s / MILLI),
    }


def selection(candidate: plan.Candidate, choice: TierChoice, prepared: Prepared) -> dict[str, Any]:
    """What one tier got."""
    source = _source(candidate, prepared.predictors.of(candidate))
    flags = {*source.get("flags", ()), *promise_flags(candidate.prediction.interval80, choice.tier)}
    return {
        "tier": choice.tier.name,
        "configuration": configuration(candidate, prepared),
        "gpus": candidate.gpus_count,
        **_settings(candidate),
        "predicted": predicted(candidate) | _acceptance(candidate, prepared),
        "headroomPermille": None if choice.headroom_frac is None else _permille(choice.headroom_frac),
        "reason": _reason(candidate, choice, prepared.goal),
        "source": source | ({"flags": sorted(flags)} if flags else {}),
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


def configuration(candidate: plan.Candidate, prepared: Prepared) -> dict[str, Any]:
    """What emission needs, in the words of the API; scheduler settings are those that were simulated."""
    shape, predictor, setting = candidate.shape, prepared.predictors.of(candidate), prepared.predictor.setting
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
        "maxModelLengthTokens": setting.model_length_tokens,
        "kvDtype": predictor.kv_dtype(shape),
        "blockSize": limits.block_tokens,
        "memoryPermille": _permille(predictor.memory_frac),
        "maxRunningRequests": limits.max_running_requests,
        "maxBatchedTokens": limits.max_batched_tokens,
        "chunkTokens": limits.chunk_tokens,
        "prefixCaching": "Enabled" if prepared.spec.workload.shares_prefixes else "Disabled",
        "kvOffload": {"hostGibibytes": shape.host_kv_gibibytes} if shape.host_kv_gibibytes else None,
        **_proposed(candidate.overrides),
    }
    return {key: value for key, value in document.items() if value is not None}


def _proposed(overrides: Overrides | None) -> dict[str, Any]:
    """Settings that only a search by trials changes."""
    if overrides is None:
        return {}
    drafts = overrides.speculation
    return {
        "attentionBackend": overrides.attention_backend,
        "moeBackend": overrides.moe_backend,
        "speculation": None
        if drafts is None
        else {"method": _METHODS[drafts.drafter], "draftTokens": drafts.draft_tokens},
    }


def _acceptance(candidate: plan.Candidate, prepared: Prepared) -> dict[str, int]:
    """With speculation, the acceptance that the figures hold for: a live deployment is compared at no other."""
    if candidate.overrides is None or candidate.overrides.speculation is None:
        return {}
    cost = prepared.predictors.of(candidate).facts(candidate.shape).cost
    return {"acceptanceLengthPermille": round(cost.tokens_per_step * PERMILLE)}


_METHODS: Mapping[Drafter, str] = {drafter: method for method, drafter in DRAFTERS.items()}


def predicted(candidate: plan.Candidate) -> dict[str, Any]:
    """The figures that a tier is judged by, with their intervals."""
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


def binding_of(answer: plan.Answer, choice: TierChoice, prepared: Prepared) -> dict[str, Any]:
    binding = choice.binding
    if binding is None:
        raise InputError("binding", None, "be given for a tier without a configuration")
    document: dict[str, Any] = {"tier": choice.tier.name, "limit": binding.limit, "detail": binding.detail}
    if choice.nearest is not None:
        nearest = answer.candidates[choice.nearest]
        document["nearest"] = {
            "configuration": configuration(nearest, prepared),
            "predicted": predicted(nearest),
        }
    elif binding.refused is not None:
        document["nearest"] = {"configuration": _refused(binding.refused, prepared)}
    return document


def _refused(refusal: Refusal, prepared: Prepared) -> dict[str, Any]:
    """A layout that cannot run as asked, in as many replicas as the budget holds; it has no figures."""
    setting, layout, engine = prepared.predictor.setting, refusal.layout, refusal.option.engine
    gpus_count = resolve(layout, engine, is_moe=setting.card.is_moe).gpus_count
    fitting = prepared.question.gpu_budget_count // gpus_count if refusal.rule == "overload" else 1
    return {
        "engine": engine.value,
        "model": setting.card.name,
        "accelerator": setting.accelerator.name,
        "layout": _layout_document(layout),
        "replicas": fitting,
        "gpusPerReplica": gpus_count,
    }


def _settings(candidate: plan.Candidate) -> dict[str, str]:
    return {"settings": candidate.settings} if candidate.settings else {}


def _front_row(candidate: plan.Candidate) -> dict[str, Any]:
    return {
        "engine": candidate.shape.option.engine.value,
        "layout": _layout_document(candidate.shape.layout),
        "replicas": candidate.replicas_count,
        "gpus": candidate.gpus_count,
        "concurrency": candidate.concurrency,
        **_settings(candidate),
        **predicted(candidate),
    }


def _permille(fraction: float) -> int:
    return round(fraction * PERMILLE)
