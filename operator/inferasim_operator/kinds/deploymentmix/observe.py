"""Reading what a DeploymentMix is decided from. The only part of the kind that talks to the cluster."""

from __future__ import annotations

import base64
import functools
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import pydantic

from inferasim_operator.api.v1alpha1.conditions import READY, STALLED
from inferasim_operator.api.v1alpha1.deploymentmix import DeliveryType, DeploymentMix
from inferasim_operator.api.v1alpha1.servingplan import ServingPlan
from inferasim_operator.convert import first_error, parse_conditions
from inferasim_operator.delivery.background import Deliveries, DeliveryState
from inferasim_operator.delivery.git import Credentials, GitRequest, deliver
from inferasim_operator.emit.package import OWNED, Package
from inferasim_operator.engine import labels
from inferasim_operator.engine.actions import ObjectKey
from inferasim_operator.engine.kind import Context
from inferasim_operator.errors import NotFoundError
from inferasim_operator.kinds.deploymentmix import live_observe, render
from inferasim_operator.kinds.deploymentmix.choices import PlanAnswer
from inferasim_operator.kinds.deploymentmix.live import LiveState
from inferasim_operator.kinds.deploymentmix.live_anchor import Basis
from inferasim_operator.kinds.servingplan.render import read_result
from simcore.errors import InputError

KIND: Final = "DeploymentMix"
# Everything that a mix may have applied; a kind that the cluster does not serve has no objects.
APPLIED_KINDS: Final = (
    ("v1", "ServiceAccount"),
    ("rbac.authorization.k8s.io/v1", "Role"),
    ("rbac.authorization.k8s.io/v1", "RoleBinding"),
    ("v1", "ConfigMap"),
    ("v1", "Service"),
    ("policy/v1", "PodDisruptionBudget"),
    ("apps/v1", "Deployment"),
    ("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet"),
    ("inference.networking.k8s.io/v1", "InferencePool"),
    ("gateway.networking.k8s.io/v1", "HTTPRoute"),
    ("monitoring.coreos.com/v1", "PodMonitor"),
)


@dataclass(frozen=True)
class PlanState:
    """The ServingPlan that the mix names."""

    name: str
    is_missing: bool = False
    problem: str = ""
    """Why there is no answer now; empty when there is one."""
    is_final: bool = False
    """Nothing will come of it until somebody changes the plan."""
    answer: PlanAnswer | None = None


@dataclass(frozen=True)
class Observed:
    """One moment of a mix. Races: an object that appears after the listing is met by the apply itself."""

    raw: Mapping[str, Any]
    mix: DeploymentMix | None
    """Parsed; None when the spec breaks a rule of this version (then `spec_problem` says which)."""
    spec_problem: str = ""
    plan: PlanState | None = None
    """None when the mix states its configurations itself."""
    emission: render.Emission | None = None
    emission_problem: str = ""
    is_kept: bool = False
    """The ConfigMap of this emission is there."""
    live: tuple[Mapping[str, Any], ...] = ()
    """Objects that were applied for this mix, of all kinds."""
    delivery_digest: str = ""
    """Of the manifests and the place that they go to."""
    git: DeliveryState | None = None
    """The delivery to Git in this process; None when none is needed."""
    git_problem: str = ""
    live_state: LiveState = field(default_factory=LiveState)
    """What is known of the live figures, read in the background."""
    bases: Mapping[str, Basis] = field(default_factory=dict)
    """By deployment, the anchor that a recalibrated one may be made from; none without the mix's consent."""


@functools.cache
def deliveries() -> Deliveries:
    """The deliveries of this process. Repositories on disk are for tests: the environment must allow them."""
    is_local = os.environ.get("INFERASIM_GIT_ALLOW_LOCAL") == "1"
    return Deliveries(functools.partial(deliver, allow_local=is_local))


def observe(context: Context, key: ObjectKey) -> Observed | None:
    """Read everything; None when the mix is gone."""
    raw = context.client.find(DeploymentMix.resource.api_version, KIND, key.namespace, key.name)
    if raw is None:
        context.references.forget(KIND, key)
        deliveries().forget(key)
        live_observe.loop().forget(key)
        return None
    try:
        mix = DeploymentMix.model_validate(raw)
    except pydantic.ValidationError as error:
        return Observed(raw, None, spec_problem=first_error(error))
    spec = mix.spec
    plan = _plan(context, key, spec.plan_ref.name) if spec.plan_ref is not None else None
    context.references.note(KIND, key, [("ServingPlan", plan.name)] if plan is not None else ())
    if plan is not None and plan.answer is None:
        return Observed(raw, mix, plan=plan, live_state=live_observe.look(context, mix, None))
    try:
        emission = render.emission(key.name, key.namespace, spec, plan.answer if plan is not None else None)
        if spec.package is Package.HELM:
            emission.files(spec.package)  # what no chart takes is a fault of the mix, not of the repository
    except InputError as error:
        state = live_observe.look(context, mix, None)
        return Observed(raw, mix, plan=plan, emission_problem=str(error), live_state=state)
    digest = render.delivery_digest(spec, emission)
    live: tuple[Mapping[str, Any], ...] = ()
    git: DeliveryState | None = None
    problem = ""
    kind = spec.delivery.type if spec.delivery is not None else DeliveryType.CONFIG_MAP
    if kind is DeliveryType.APPLY:
        live = _live(context, raw)
    elif kind is DeliveryType.GIT and not spec.suspend and not is_delivered_already(mix, digest):
        try:
            git = deliveries().want(key, digest, _git_request(context, mix, emission))
        except (InputError, NotFoundError, ValueError) as error:
            problem = str(error)
    state = live_observe.look(context, mix, emission)
    name = render.manifests_name(key.name, emission.digest)
    kept = context.client.find("v1", "ConfigMap", key.namespace, name)
    return Observed(
        raw,
        mix,
        plan=plan,
        emission=emission,
        is_kept=kept is not None and labels.is_owned(kept, str(raw["metadata"]["uid"])),
        live=live,
        delivery_digest=digest,
        git=git,
        git_problem=problem,
        live_state=state,
        bases=live_observe.bases(context, raw, mix, emission, plan.answer if plan is not None else None, state),
    )


def is_delivered_already(mix: DeploymentMix, digest: str) -> bool:
    """Whether an earlier pass, perhaps of another process, has delivered just this to just there."""
    done = mix.status.delivered if mix.status is not None else None
    return done is not None and done.digest == digest


def _plan(context: Context, key: ObjectKey, name: str) -> PlanState:
    client = context.client
    live = client.find(ServingPlan.resource.api_version, ServingPlan.resource.kind, key.namespace, name)
    if live is None:
        return PlanState(name, is_missing=True, problem=f"ServingPlan {name} does not exist")
    generation = live["metadata"].get("generation")
    conditions = {c.type: c for c in parse_conditions(live) if c.observed_generation == generation}
    ready = conditions.get(READY)
    if ready is None or ready.status != "True":
        told = f": {ready.reason}: {ready.message}" if ready is not None else ""
        return PlanState(name, problem=f"ServingPlan {name} has no answer{told}", is_final=STALLED in conditions)
    status = live.get("status") or {}
    selected = status.get("selected") or []
    result = status.get("result") or {}
    config_map = client.find("v1", "ConfigMap", key.namespace, str(result["configMap"])) if result else None
    if config_map is not None:
        try:
            # The status shows the configuration in short; the answer's ConfigMap has all of it.
            selected = read_result(config_map, str(result.get("digest"))).get("selected") or selected
        except ValueError as error:
            return PlanState(name, problem=f"ServingPlan {name}: its answer {error}", is_final=True)
    return PlanState(name, answer=PlanAnswer(live["spec"], tuple(selected)))


def _live(context: Context, owner: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    selector = labels.owned_by(owner, role=render.ROLE_DEPLOYED)
    namespace = owner["metadata"]["namespace"]
    found: list[Mapping[str, Any]] = []
    for api_version, kind in APPLIED_KINDS:
        try:
            found += context.client.list(api_version, kind, namespace, labels=selector)
        except NotFoundError:
            continue
    return tuple(found)


def _git_request(context: Context, mix: DeploymentMix, emission: render.Emission) -> GitRequest:
    assert mix.spec.delivery is not None and mix.spec.delivery.git is not None  # noqa: S101, PT018 - a rule of the type
    git = mix.spec.delivery.git
    credentials = Credentials()
    if git.secret is not None:
        secret = context.client.get("v1", "Secret", mix.metadata.namespace, git.secret.name)
        data = {name: base64.b64decode(text).decode() for name, text in (secret.get("data") or {}).items()}
        credentials = Credentials.from_secret(data)
    files, message = emission.files(mix.spec.package), render.commit_message(mix, emission)
    return GitRequest(git.url, git.branch, git.path, files, message, credentials, OWNED)
