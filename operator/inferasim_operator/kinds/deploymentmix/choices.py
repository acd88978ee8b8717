"""From what a plan chose, or the mix states, to deployments with nothing left open. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import pydantic

from inferasim_operator.api.v1alpha1.configuration import Prediction
from inferasim_operator.api.v1alpha1.deploymentmix import DeploymentMixSpec
from inferasim_operator.convert import first_error
from inferasim_operator.emit.configuration import Architecture, Configuration
from inferasim_operator.emit.target import Deployment
from simcore.cards.kv_dtype import canonical_kv_dtype
from simcore.cards.layout import Engine, Layout
from simcore.cards.library import load_accelerator_card, load_model_card
from simcore.errors import InputError, UnknownNameError
from simcore.memory.weights import ROTARY, weight_bytes_by_stage

SETTABLE: Final = (
    "engineVersion",
    "gpusPerNode",
    "kvDtype",
    "memoryPermille",
    "maxBatchedTokens",
    "maxModelLengthTokens",
    "prefixCaching",
)
_NEEDED: Final = ("gpusPerNode", "kvDtype", "memoryPermille", "maxBatchedTokens", "prefixCaching")


@dataclass(frozen=True)
class Chosen:
    """A deployment and what was promised of it."""

    deployment: Deployment
    predicted: Prediction | None = None
    flags: tuple[str, ...] = field(default=())
    """What the prediction assumed or extrapolated."""


@dataclass(frozen=True)
class PlanAnswer:
    """What a ServingPlan answers: its spec and its `selected` list, as plain records."""

    spec: Mapping[str, Any]
    selected: tuple[Mapping[str, Any], ...]


def chosen(spec: DeploymentMixSpec, answer: PlanAnswer | None) -> tuple[Chosen, ...]:
    """The deployments of a mix, by name. Raises InputError when a tier or a setting is missing."""
    if spec.configurations is not None:
        engine_image = spec.images.engine if spec.images is not None else None
        result = []
        for named in spec.configurations:
            configuration = named.configuration
            if engine_image is not None:
                configuration = configuration.model_copy(update={"image": engine_image})
            deployment = Deployment(named.name, configuration, named.peak_prefill_tokens_per_second)
            result.append(Chosen(deployment, named.predicted))
        return tuple(sorted(result, key=lambda c: c.deployment.name))
    if answer is None:
        raise InputError("planRef", spec.plan_ref and spec.plan_ref.name, "name a plan that has an answer")
    by_tier = {str(selection["tier"]): selection for selection in answer.selected}
    wanted = spec.tiers or tuple(sorted(by_tier))
    missing = [tier for tier in wanted if tier not in by_tier]
    if missing or not wanted:
        met = ", ".join(sorted(by_tier)) or "none"
        raise InputError("tiers", missing, f"be tiers that the plan has a configuration for ({met})")
    return tuple(_of_selection(spec, answer.spec, by_tier[tier]) for tier in sorted(wanted))


def _of_selection(spec: DeploymentMixSpec, plan: Mapping[str, Any], selection: Mapping[str, Any]) -> Chosen:
    tier = str(selection["tier"])
    record = _completed(spec, plan, selection["configuration"], tier)
    try:
        configuration = Configuration.model_validate(record)
        predicted = selection.get("predicted")
        prediction = Prediction.model_validate(predicted) if predicted is not None else None
    except pydantic.ValidationError as error:
        raise InputError(f"selected[{tier}]", tier, f"be a configuration: {first_error(error)}") from error
    stated = selection["configuration"].get("gpusPerReplica")
    gpus = sum(configuration.resolved(role).gpus_count for role in configuration.roles())
    if stated is not None and stated != gpus:
        raise InputError(f"selected[{tier}].gpusPerReplica", stated, f"be the {gpus} GPUs that the layout takes")
    source = selection.get("source") or {}
    deployment = Deployment(tier, configuration, source.get("peakPrefillTokensPerSecond"))
    own = tuple(
        f"{name} is the mix's, not the anchor's"
        for name in ("engineVersion", "image")
        if selection["configuration"].get(name) != record[name]
    )
    return Chosen(deployment, prediction, (*(source.get("flags") or ()), *own))


def _completed(
    spec: DeploymentMixSpec, plan: Mapping[str, Any], configuration: Mapping[str, Any], tier: str
) -> dict[str, Any]:
    """The plan's configuration with what it leaves open taken from the plan's question and the mix's `serving`."""
    record = dict(configuration)
    settings = spec.serving.to_dict() if spec.serving is not None else {}
    cluster = plan.get("cluster") or {}
    fixed = (plan.get("workload") or {}).get("fixed") or {}
    for name in ("accelerator", "gpusPerNode"):
        if name in cluster:
            record.setdefault(name, cluster[name])
    for name in SETTABLE:
        if name in settings:
            record.setdefault(name, settings[name])
    if "gpusPerNode" not in record and "accelerator" in record:
        record["gpusPerNode"] = load_accelerator_card(str(record["accelerator"])).gpus_per_node
    if "kvDtype" in record:
        # `fp8_e4m3` and `fp8` are one format here: what the bits mean is the GPU's matter (case A24). E5M2 is another,
        # which no emission writes: it must not come out as E4M3.
        record["kvDtype"] = canonical_kv_dtype(str(record["kvDtype"]), f"selected[{tier}].kvDtype")
    for name in ("promptTokens", "outputTokens"):
        if name in fixed:
            record.setdefault(name, fixed[name])
    if "concurrency" in record and "replicas" in record:
        # The prediction holds for this many requests in flight in each replica.
        record.setdefault("maxRunningRequests", math.ceil(record["concurrency"] / record["replicas"]))
    if spec.images is not None and spec.images.engine is not None:
        record["image"] = spec.images.engine
    record["model"] = _model(spec, record.get("model"), plan)
    for name in (*_NEEDED, "promptTokens", "outputTokens", "image", "engineVersion"):
        if name not in record:
            hint = "set `images.engine`" if name == "image" else f"set `serving.{name}`" if name in SETTABLE else ""
            raise InputError(f"selected[{tier}].{name}", None, "be stated by the plan", hint)
    return record


def _model(spec: DeploymentMixSpec, stated: object, plan: Mapping[str, Any]) -> dict[str, Any]:
    record: dict[str, Any] = dict(stated) if isinstance(stated, Mapping) else {}
    name = stated if isinstance(stated, str) else record.get("name") or (plan.get("model") or {}).get("name")
    if name is None:
        raise InputError("model", None, "have a name in the plan")
    record["name"] = name
    own = spec.model.to_dict() if spec.model is not None else {}
    record |= own
    try:
        card = load_model_card(str(name))
    except UnknownNameError as error:
        if "architecture" not in record:
            hint = "there is no built-in card of this name"
            raise InputError("model.architecture", None, "be stated: Dense or MixtureOfExperts", hint) from error
        return record
    kind = Architecture.MIXTURE_OF_EXPERTS if card.is_moe else Architecture.DENSE
    record.setdefault("architecture", kind.value)
    if "weightBytes" not in record and not card.unknown:
        (whole,) = weight_bytes_by_stage(card=card, layout=Layout(), engine=Engine.VLLM)
        # The rotary table is made at start, not read.
        record["weightBytes"] = sum(whole.values()) - whole.get(ROTARY, 0)
    return record
