"""Reading what a ServingPlan is decided from. The only part of the kind that talks to the cluster."""

from __future__ import annotations

import base64
import importlib.metadata
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pydantic

from inferasim_operator.api.v1alpha1.servingplan import AnchorMode, SearchMethod, ServingPlan, ServingPlanSpec
from inferasim_operator.convert import first_error
from inferasim_operator.engine import labels, names
from inferasim_operator.engine.actions import ObjectKey
from inferasim_operator.engine.compute import Computation
from inferasim_operator.engine.kind import Context
from inferasim_operator.kinds.servingplan import inputs, observe_harvests, observe_nodes, observe_search, render
from simcore.anchors.schema import parse_anchor
from simcore.errors import FormatError

VERSION = importlib.metadata.version("inferasim")
KIND = "ServingPlan"


@dataclass(frozen=True)
class AnchorObject:
    """An anchor's ConfigMap. `content` is None when it cannot be used; then `problem` says why."""

    name: str
    accelerator: str = ""
    content: Mapping[str, Any] | None = None
    problem: str = ""


@dataclass(frozen=True)
class ModelConfig:
    """The `config.json` that the plan names: `content`, or the problem with it."""

    content: Mapping[str, Any] | None = None
    is_missing: bool = False
    problem: str = ""


@dataclass(frozen=True)
class Trace:
    """The trace that the plan names, as base64, or the problem with it."""

    data: str | None = None
    problem: str = ""


@dataclass(frozen=True)
class AgentKey:
    """The key of the plan's language model, or why there is none. It goes to the computing process and nowhere else."""

    value: str | None = field(default=None, repr=False)
    problem: str = ""


@dataclass(frozen=True)
class Ledger:
    """The ledger of a search that is under way: `text`, or the problem with it."""

    text: str | None = None
    problem: str = ""


@dataclass(frozen=True)
class Observed:
    """One moment of a plan. Races: an anchor that changes after the read makes a new event and so a new pass; an answer
    that exists already under the digest is taken, whoever wrote it, because its name says its question."""

    raw: Mapping[str, Any]
    """The live object."""
    plan: ServingPlan | None
    """Parsed; None when the spec breaks a rule of this version (then `spec_problem` says which)."""
    spec_problem: str = ""
    anchors: tuple[AnchorObject, ...] = ()
    """What the selector finds, by name; those that cannot be read are kept with their problem."""
    harvests: tuple[str, ...] = ()
    """Harvests under way that may bring the anchor; looked for only where none is of the plan's accelerator."""
    model_config: ModelConfig | None = None
    """None when the plan names a built-in card."""
    trace: Trace | None = None
    """None unless the plan names a trace in a ConfigMap."""
    request: Mapping[str, Any] | None = None
    digest: str = ""
    """Names the question; empty while something that it needs is missing."""
    result: Mapping[str, Any] | None = None
    """The answer kept under the digest by an earlier pass."""
    result_problem: str = ""
    """Why the ConfigMap of that name cannot be read as an answer."""
    computation: Computation | None = None
    """The running or ended computation of this digest in this process."""
    nodes: observe_nodes.Nodes | None = None
    """None unless the plan asks for discovery."""
    search: observe_search.SearchJob | None = None
    """None when the search runs in this process."""
    agent_key: AgentKey | None = None
    """None unless the plan names a Secret for its language model."""
    ledger: Ledger | None = None
    """What a search by an agent had put away; None where there is none, or no need of it."""
    leftovers: tuple[Mapping[str, Any], ...] = ()
    """Jobs and shards of this plan that belong to no search that is to run now."""


def observe(context: Context, key: ObjectKey) -> Observed | None:
    """Read everything; None when the plan is gone."""
    client = context.client
    raw = client.find(ServingPlan.resource.api_version, KIND, key.namespace, key.name)
    if raw is None:
        context.references.forget(KIND, key)
        return None
    try:
        plan = ServingPlan.model_validate(raw)
    except pydantic.ValidationError as error:
        return Observed(raw, None, spec_problem=first_error(error))
    anchors = _anchors(context, key, plan.spec)
    model_config = _model_config(context, key, plan.spec)
    targets = [("ConfigMap", anchor.name) for anchor in anchors]
    if plan.spec.model.config_map is not None:
        targets.append(("ConfigMap", plan.spec.model.config_map.name))
    trace = _trace(context, key, plan.spec)
    if trace is not None and plan.spec.workload.trace is not None and plan.spec.workload.trace.config_map is not None:
        targets.append(("ConfigMap", plan.spec.workload.trace.config_map.name))
    context.references.note(KIND, key, targets)
    harvests: tuple[str, ...] = ()
    if _is_anchor_missing(anchors, plan.spec):
        context.references.note(KIND, key, [*targets, observe_harvests.ANY_HARVEST])
        harvests = observe_harvests.under_way(context, key.namespace, plan.spec)
    nodes = observe_nodes.nodes(context, plan.spec)
    is_missing = (model_config is not None and model_config.content is None) or (trace is not None and trace.problem)
    if is_missing or (nodes is not None and nodes.problem):
        return Observed(
            raw, plan, anchors=anchors, harvests=harvests, model_config=model_config, trace=trace, nodes=nodes
        )
    spec = plan.spec if nodes is None else observe_nodes.resolved(plan.spec, nodes)
    usable = {anchor.name: anchor.content for anchor in anchors if anchor.content is not None}
    request = inputs.question(
        spec, usable, model_config.content if model_config else None, None if trace is None else trace.data
    )
    digest = inputs.input_digest(request, rerun=spec.rerun, version=VERSION)
    result, problem = _result(context, key, digest)
    computation = context.computations.state(digest) if context.computations is not None else None
    agent_key = None if result is not None else _agent_key(context, key, spec)
    search, leftovers = observe_search.search(context, raw, spec, digest, is_answered=result is not None)
    ledger, old_ledgers = _ledger(context, raw, spec, digest, is_answered=result is not None)
    return Observed(
        raw,
        plan,
        anchors=anchors,
        harvests=harvests,
        model_config=model_config,
        trace=trace,
        request=request,
        digest=digest,
        result=result,
        result_problem=problem,
        computation=computation,
        nodes=nodes,
        search=search,
        agent_key=agent_key,
        ledger=ledger,
        leftovers=(*leftovers, *old_ledgers),
    )


def _is_anchor_missing(anchors: tuple[AnchorObject, ...], spec: ServingPlanSpec) -> bool:
    """Measurements are demanded, and there is none of the plan's accelerator."""
    if spec.anchors is not None and spec.anchors.mode not in (None, AnchorMode.ANCHORED):
        return False
    wanted = spec.cluster.accelerator.lower()
    return not any(anchor.content is not None and anchor.accelerator.lower() == wanted for anchor in anchors)


def _anchors(context: Context, key: ObjectKey, spec: ServingPlanSpec) -> tuple[AnchorObject, ...]:
    choice = spec.anchors
    if choice is not None and choice.mode is AnchorMode.SIMULATE:
        return ()
    # A plan that names the anchor label itself opts into anchors of another kind, e.g. `derived` ones.
    wanted = {labels.ANCHOR: "true"} | dict((choice.match_labels if choice else None) or {})
    selector = ",".join(f"{name}={value}" for name, value in sorted(wanted.items()))
    found = context.client.list("v1", "ConfigMap", key.namespace, labels=selector)
    return tuple(_anchor(item) for item in found)


def _anchor(config_map: Mapping[str, Any]) -> AnchorObject:
    name = str(config_map["metadata"]["name"])
    text = (config_map.get("data") or {}).get(render.ANCHOR_KEY)
    if text is None:
        return AnchorObject(name, problem=f"has no key {render.ANCHOR_KEY}")
    try:
        anchor = parse_anchor(text, f"ConfigMap {name}")
    except FormatError as error:
        return AnchorObject(name, problem=str(error))
    return AnchorObject(name, accelerator=anchor.signature.accelerator, content=json.loads(text))


def _model_config(context: Context, key: ObjectKey, spec: ServingPlanSpec) -> ModelConfig | None:
    reference = spec.model.config_map
    if reference is None:
        return None
    live = context.client.find("v1", "ConfigMap", key.namespace, reference.name)
    data_key = reference.key or render.MODEL_CONFIG_KEY
    if live is None:
        return ModelConfig(is_missing=True, problem=f"ConfigMap {reference.name} does not exist")
    text = (live.get("data") or {}).get(data_key)
    if text is None:
        return ModelConfig(problem=f"ConfigMap {reference.name} has no key {data_key}")
    try:
        content = json.loads(text)
        names.digest(content)  # Python reads NaN and lone surrogates, which no question could be named by
    except (ValueError, RecursionError) as error:
        return ModelConfig(problem=f"ConfigMap {reference.name}, key {data_key}: not JSON ({type(error).__name__})")
    if not isinstance(content, dict):
        return ModelConfig(problem=f"ConfigMap {reference.name}, key {data_key}: must be a JSON object")
    return ModelConfig(content=content)


def _trace(context: Context, key: ObjectKey, spec: ServingPlanSpec) -> Trace | None:
    reference = spec.workload.trace.config_map if spec.workload.trace is not None else None
    if reference is None:
        return None
    live = context.client.find("v1", "ConfigMap", key.namespace, reference.name)
    data_key = reference.key or render.TRACE_KEY
    if live is None:
        return Trace(problem=f"ConfigMap {reference.name} does not exist")
    data = inputs.trace_data(live, data_key)
    return Trace(data) if data else Trace(problem=f"ConfigMap {reference.name} has no key {data_key}")


def _agent_key(context: Context, key: ObjectKey, spec: ServingPlanSpec) -> AgentKey | None:
    agent = spec.search.agent if spec.search is not None else None
    if agent is None or agent.secret is None:
        return None
    live = context.client.find("v1", "Secret", key.namespace, agent.secret.name)
    if live is None:
        return AgentKey(problem=f"Secret {agent.secret.name} does not exist")
    text = (live.get("data") or {}).get(agent.secret.key)
    if text is None:
        return AgentKey(problem=f"Secret {agent.secret.name} has no key {agent.secret.key}")
    try:
        return AgentKey(base64.b64decode(text, validate=True).decode().strip())
    except ValueError:
        return AgentKey(problem=f"Secret {agent.secret.name}, key {agent.secret.key}: is not text")


def _ledger(
    context: Context, raw: Mapping[str, Any], spec: ServingPlanSpec, digest: str, *, is_answered: bool
) -> tuple[Ledger | None, tuple[Mapping[str, Any], ...]]:
    """The ledger of this question, and those that nobody goes on from any more."""
    if spec.search is None or spec.search.method is not SearchMethod.AGENT:
        return None, ()
    namespace, mine = raw["metadata"]["namespace"], labels.owned_by(raw, role=render.LEDGER_ROLE)
    wanted = "" if is_answered else render.ledger_name(raw["metadata"]["name"], digest)
    live = context.client.list("v1", "ConfigMap", namespace, labels=mine)
    old = tuple(item for item in live if item["metadata"]["name"] != wanted)
    # Not from the list: a server may answer that from a cache, and a ledger that is overlooked is paid for twice.
    found = context.client.find("v1", "ConfigMap", namespace, wanted) if wanted else None
    if found is None:
        return None, old
    try:
        return Ledger(render.read_ledger(found, digest)), old
    except ValueError as error:
        return Ledger(problem=f"ConfigMap {wanted}: {error}; delete it to search anew"), old


def _result(context: Context, key: ObjectKey, digest: str) -> tuple[Mapping[str, Any] | None, str]:
    name = render.result_name(key.name, digest)
    live = context.client.find("v1", "ConfigMap", key.namespace, name)
    if live is None:
        return None, ""
    try:
        return render.read_result(live, digest), ""
    except ValueError as error:
        return None, f"ConfigMap {name}: {error}"
