"""The live part of observing a mix: says what is wanted to the loop, and reads what anchors rest on."""

from __future__ import annotations

import base64
import functools
from collections.abc import Mapping, Sequence
from typing import Any

from prometheus_client import REGISTRY

from inferasim_operator.api.v1alpha1.configuration import Switch
from inferasim_operator.api.v1alpha1.deploymentmix import DeploymentMix
from inferasim_operator.engine import labels
from inferasim_operator.engine.actions import ObjectKey
from inferasim_operator.engine.kind import Context
from inferasim_operator.errors import ClusterError
from inferasim_operator.kinds.deploymentmix import live, live_anchor
from inferasim_operator.kinds.deploymentmix.choices import PlanAnswer
from inferasim_operator.kinds.deploymentmix.live import LiveState
from inferasim_operator.kinds.deploymentmix.live_anchor import Basis
from inferasim_operator.kinds.deploymentmix.render import Emission
from inferasim_operator.kinds.servingplan.render import ANCHOR_KEY
from inferasim_operator.live.compare import exceeded
from inferasim_operator.live.direct import DirectSource, ListPods, Source
from inferasim_operator.live.export import LiveCollector
from inferasim_operator.live.loop import LiveLoop
from inferasim_operator.live.prometheus import PrometheusSource
from inferasim_operator.live.request import Pool, Prometheus, Request
from simcore.anchors.schema import parse_anchor
from simcore.errors import FormatError, InputError


@functools.cache
def loop() -> LiveLoop:
    """The one loop of this process; its series are on the operator's own metrics page."""
    collector = LiveCollector()
    REGISTRY.register(collector)
    return LiveLoop(collector, words=live.words)


def look(context: Context, mix: DeploymentMix, emission: Emission | None) -> LiveState:
    """What is known of a mix's live figures; wants them observed from now on, or no more.

    Without an emission (the plan is searched anew) what was wanted before stays wanted: it still runs.
    """
    key = ObjectKey(mix.metadata.namespace, mix.metadata.name)
    if not live.is_asked_for(mix) or mix.metadata.deletion_timestamp is not None:
        loop().forget(key)
        return LiveState()
    if emission is None:
        return LiveState(True, loop().known(key))
    try:
        request = live.request(mix, emission, _prometheus(context, mix))
        report = loop().want(key, request, functools.partial(_source, context, request))
    except (InputError, ClusterError, ValueError) as error:
        loop().forget(key)
        text = str(error) if not isinstance(error, ValueError) else "the Secret's values are not base64 of text"
        return LiveState(True, problem=text)
    return LiveState(True, report)


def bases(
    context: Context,
    raw: Mapping[str, Any],
    mix: DeploymentMix,
    emission: Emission,
    answer: PlanAnswer | None,
    state: LiveState,
) -> dict[str, Basis]:
    """By deployment, the anchor that may be scaled: only with the mix's consent, only where TPOT is off."""
    tolerance, report = mix.spec.tolerance, state.report
    if tolerance is None or tolerance.recalibration is not Switch.ENABLED or answer is None or report is None:
        return {}
    limits = live.tolerance_frac(tolerance)
    off = {key.deployment for key, found in report.comparisons.items() if "tpot" in exceeded(found, limits)}
    sources = {str(selection["tier"]): selection.get("source") or {} for selection in answer.selected}
    found = {}
    for choice in emission.chosen:
        name = choice.deployment.name
        source = sources.get(name, {})
        if name not in off or not source.get("anchor"):
            continue
        basis = _basis(context, raw, str(source["anchor"]), str(source.get("anchorDigest") or ""), name)
        if basis is not None and not live_anchor.refusal(choice.deployment.configuration, basis.anchor):
            found[name] = basis
    return found


def _basis(context: Context, raw: Mapping[str, Any], name: str, digest: str, deployment: str) -> Basis | None:
    namespace = raw["metadata"]["namespace"]
    config_map = context.client.find("v1", "ConfigMap", namespace, name)
    text = ((config_map or {}).get("data") or {}).get(ANCHOR_KEY)
    if text is None:
        return None
    try:
        anchor = parse_anchor(text, f"ConfigMap {name}")
    except FormatError:
        return None
    if digest and anchor.digest() != digest:
        return None  # it was replaced since; the prediction rests on another one
    selector = labels.owned_by(raw, role=live_anchor.ROLE)
    made = [
        str(item["metadata"]["name"])
        for item in context.client.list("v1", "ConfigMap", namespace, labels=selector)
        if live_anchor.is_derived_from(item, anchor, deployment)
    ]
    return Basis(name, anchor, made[0] if made else "")


def _source(context: Context, request: Request) -> Source:
    def list_pods(pool: Pool) -> Sequence[Mapping[str, Any]]:
        # Never in another namespace: whoever may write a mix here must not see who runs what elsewhere.
        if pool.namespace != request.namespace:
            return ()
        return context.client.list("v1", "Pod", pool.namespace, labels=pool.selector)

    lister: ListPods = list_pods
    if request.prometheus is None:
        return DirectSource(lister)
    return PrometheusSource(request.prometheus, lister)


def _prometheus(context: Context, mix: DeploymentMix) -> Prometheus | None:
    """Raises NotFoundError for a missing Secret, ValueError for values that are not base64 of text."""
    observation = mix.spec.observation
    if observation is None or observation.prometheus_url is None:
        return None
    if observation.secret is None:
        return Prometheus(observation.prometheus_url)
    secret = context.client.get("v1", "Secret", mix.metadata.namespace, observation.secret.name)
    data = {name: base64.b64decode(text).decode() for name, text in (secret.get("data") or {}).items()}
    return Prometheus(
        observation.prometheus_url,
        token=data.get("token", "").strip(),
        user=data.get("username", ""),
        password=data.get("password", ""),
        authority=data.get("ca.crt", ""),
    )
