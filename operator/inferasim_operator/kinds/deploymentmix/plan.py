"""The decision for a DeploymentMix: pure and total. What runs is not deleted because a plan has no answer just now."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any, Final

from inferasim_operator import convert
from inferasim_operator.api.v1alpha1.common import ResultReference
from inferasim_operator.api.v1alpha1.deploymentmix import (
    DELIVERED,
    EMITTED,
    PREDICTION_WITHIN_TOLERANCE,
    DeliveredRevision,
    DeliveryType,
    DeployedConfiguration,
    DeploymentMix,
    DeploymentMixStatus,
)
from inferasim_operator.engine.actions import (
    Action,
    Announcement,
    ApplyObject,
    CreateObject,
    DeleteObject,
    Plan,
    Reference,
)
from inferasim_operator.engine.conditions import Conditions
from inferasim_operator.engine.findings import first_finding
from inferasim_operator.engine.labels import MANAGER
from inferasim_operator.kinds.deploymentmix import checks, live, live_anchor, live_say, render, summary
from inferasim_operator.kinds.deploymentmix.checks import Reason
from inferasim_operator.kinds.deploymentmix.observe import Observed, is_delivered_already
from inferasim_operator.kinds.deploymentmix.render import Emission
from inferasim_operator.live.compare import exceeded

SETTLE_S: Final = 2.0
"""How soon a delivery under way is looked at again."""


def plan(observed: Observed, now: datetime.datetime) -> Plan:
    """What to do for a mix, and what to say of it."""
    generation = int(observed.raw["metadata"].get("generation", 0))
    conditions = Conditions(convert.parse_conditions(observed.raw), generation=generation, now=now)
    finding = first_finding(checks.CHAIN, observed)
    mix, emission = observed.mix, observed.emission
    announcements: tuple[Announcement, ...] = ()
    if mix is not None:
        # What runs is observed whatever becomes of the next emission.
        limits = live.tolerance_frac(mix.spec.tolerance)
        before = convert.parse_conditions(observed.raw)
        announcements = live_say.say(observed.live_state, limits, before, conditions)
    if finding is not None or mix is None or emission is None:
        return _not_emitted(observed, conditions, generation, finding, announcements)
    if mix.spec.suspend:
        conditions.idle(Reason.SUSPENDED, "suspended: nothing new is emitted or delivered")
        return Plan(_kept(observed, conditions, generation), announcements=announcements)
    actions: list[Action] = []
    if not observed.is_kept:
        actions.append(CreateObject(render.manifests_config_map(observed.raw, emission)))
    objects = f"{len(emission.manifests)} objects for {', '.join(c.deployment.name for c in emission.chosen)}"
    conditions.set(EMITTED, True, Reason.EMITTED, objects)
    kind = mix.spec.delivery.type if mix.spec.delivery is not None else DeliveryType.CONFIG_MAP
    wake_after_s: float | None = None
    is_done = True
    commit = ""
    if kind is DeliveryType.APPLY:
        actions += _apply_actions(observed, emission)
        is_done = _say_applied(observed, emission, conditions)
        wake_after_s = None if is_done else SETTLE_S
    elif kind is DeliveryType.GIT:
        is_done, commit = _say_pushed(observed, mix, conditions)
        wake_after_s = None if is_done else SETTLE_S
    else:
        name = render.manifests_name(mix.metadata.name, emission.digest)
        conditions.set(DELIVERED, True, Reason.DELIVERED, f"in ConfigMap {name}")
    actions += _derived_anchors(observed, mix, now)
    told = summary.line(emission)
    if is_done:
        conditions.ready(Reason.DELIVERED, told)
    else:
        conditions.working(Reason.DELIVERING, f"being delivered: {objects}")
    delivered = DeliveredRevision(type=kind, digest=observed.delivery_digest, commit=commit or None)
    status = DeploymentMixStatus(
        conditions=conditions.done(),
        observed_generation=generation,
        summary=told,
        deployments=_deployments(observed, emission),
        manifests=ResultReference(
            config_map=render.manifests_name(mix.metadata.name, emission.digest), digest=emission.digest
        ),
        inventory=summary.inventory(emission),
        delivered=delivered if is_done else _before(mix),
        derived_anchors=_derived_names(observed),
    )
    return Plan(status, actions=tuple(actions), wake_after_s=wake_after_s, announcements=announcements)


def _not_emitted(
    observed: Observed,
    conditions: Conditions,
    generation: int,
    finding: checks.Finding | None,
    announcements: tuple[Announcement, ...],
) -> Plan:
    assert finding is not None  # noqa: S101 - the chain covers every way in which there is no mix or no emission
    conditions.set(EMITTED, False, finding.reason, finding.message)
    if finding.is_final:
        conditions.stalled(finding.reason, finding.message)
    else:
        conditions.working(finding.reason, finding.message)
    return Plan(_kept(observed, conditions, generation), announcements=announcements)


def _kept(observed: Observed, conditions: Conditions, generation: int) -> DeploymentMixStatus:
    """The status with what was delivered before: it is still there."""
    before = observed.mix.status if observed.mix is not None else None
    return DeploymentMixStatus(
        conditions=conditions.done(),
        observed_generation=generation,
        manifests=before.manifests if before is not None else None,
        inventory=before.inventory if before is not None else None,
        delivered=before.delivered if before is not None else None,
        derived_anchors=_derived_names(observed),
    )


def _deployments(observed: Observed, emission: Emission) -> tuple[DeployedConfiguration, ...]:
    report = observed.live_state.report
    return tuple(live.with_figures(record, report) for record in summary.deployments(emission))


def _derived_anchors(observed: Observed, mix: DeploymentMix, now: datetime.datetime) -> list[Action]:
    """An anchor for each deployment whose TPOT has been off for a whole window, once per anchor that it rests on."""
    tolerance, report = mix.spec.tolerance, observed.live_state.report
    since = next(
        (
            datetime.datetime.fromisoformat(c.last_transition_time)
            for c in convert.parse_conditions(observed.raw)
            if c.type == PREDICTION_WITHIN_TOLERANCE and c.status == "False"
        ),
        now,
    )
    window_s = live.window_s(mix)
    if tolerance is None or report is None or (now - since).total_seconds() < window_s:
        return []
    limits = live.tolerance_frac(tolerance)
    actions: list[Action] = []
    for key, comparison in sorted(report.comparisons.items(), key=lambda item: item[0]):
        basis = observed.bases.get(key.deployment)
        is_enough = comparison.requests_count >= live_anchor.MIN_REQUESTS
        if basis is None or basis.derived or not is_enough or "tpot" not in exceeded(comparison, limits):
            continue
        derived = live_anchor.derive(basis, key, comparison, window_s)
        actions.append(CreateObject(live_anchor.config_map(observed.raw, basis, derived, key.deployment)))
    return actions


def _derived_names(observed: Observed) -> tuple[str, ...] | None:
    return tuple(sorted(basis.derived for basis in observed.bases.values() if basis.derived)) or None


def _before(mix: DeploymentMix) -> DeliveredRevision | None:
    return mix.status.delivered if mix.status is not None else None


def _by_reference(observed: Observed) -> dict[Reference, Mapping[str, Any]]:
    return {Reference.of(found): found for found in observed.live}


def _apply_actions(observed: Observed, emission: Emission) -> list[Action]:
    """Apply what is wanted, in order; then delete what was applied for this mix and is wanted no more."""
    applied = _by_reference(observed)
    wanted = {Reference.of(manifest): manifest for manifest in emission.manifests}
    actions: list[Action] = [
        ApplyObject(render.applied(observed.raw, manifest, applied.get(reference), MANAGER))
        for reference, manifest in wanted.items()
    ]
    actions += [
        DeleteObject(reference, str(found["metadata"]["uid"]))
        for reference, found in sorted(applied.items())
        if reference not in wanted and not found["metadata"].get("deletionTimestamp")
    ]
    return actions


def _say_applied(observed: Observed, emission: Emission, conditions: Conditions) -> bool:
    applied = _by_reference(observed)
    missing = [m for m in emission.manifests if not render.is_delivered(m, applied.get(Reference.of(m)))]
    if missing:
        conditions.set(DELIVERED, False, Reason.DELIVERING, f"{len(missing)} objects are not applied yet")
        return False
    elsewhere = [
        told
        for manifest in emission.manifests
        if (told := render.replicas_elsewhere(manifest, applied[Reference.of(manifest)], MANAGER))
    ]
    if elsewhere:
        conditions.set(DELIVERED, True, Reason.REPLICAS_ELSEWHERE, "; ".join(elsewhere))
    else:
        conditions.set(DELIVERED, True, Reason.DELIVERED, f"{len(emission.manifests)} objects applied")
    return True


def _say_pushed(observed: Observed, mix: DeploymentMix, conditions: Conditions) -> tuple[bool, str]:
    before = _before(mix)
    if before is not None and is_delivered_already(mix, observed.delivery_digest):
        conditions.set(DELIVERED, True, Reason.DELIVERED, f"commit {before.commit}")
        return True, before.commit or ""
    git = observed.git
    if git is not None and git.outcome is not None:
        conditions.set(DELIVERED, True, Reason.DELIVERED, f"commit {git.outcome.commit}")
        return True, git.outcome.commit
    problem = observed.git_problem or (git.problem if git is not None else "")
    if problem:
        conditions.set(DELIVERED, False, Reason.GIT_FAILED, f"{problem}; will be tried again")
    else:
        conditions.set(DELIVERED, False, Reason.DELIVERING, "being pushed")
    return False, ""
