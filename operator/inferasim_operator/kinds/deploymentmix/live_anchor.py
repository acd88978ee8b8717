"""An anchor scaled to what is observed: kept beside the measured one, taken by nothing unless a person says so. Pure.

Only the decode steps are scaled, by observed over predicted mean TPOT. The prefill fit, packing and host time stay: a
mean TTFT holds queueing, and no observation of a live engine tells the two apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from inferasim_operator.emit.configuration import Configuration, Role
from inferasim_operator.emit.objects import DEPLOYMENT
from inferasim_operator.engine import labels, names
from inferasim_operator.kinds.servingplan.render import ANCHOR_KEY
from inferasim_operator.live.compare import Comparison
from inferasim_operator.live.export import Key
from simcore.anchors.schema import Anchor
from simcore.units import MILLI

DERIVED: Final = "derived"
"""The value of the anchor label: no plan's selector finds it."""
DERIVED_FROM: Final = f"{labels.ANCHOR.rsplit('/', 1)[0]}/derived-from"
ROLE: Final = "derived-anchor"
MIN_REQUESTS: Final = 300
"""Ten times what an error needs: an anchor outlives the window it was seen in."""
FACTOR_DIGITS: Final = 4


@dataclass(frozen=True)
class Basis:
    """The anchor that a deployment's prediction rests on."""

    config_map: str
    anchor: Anchor
    derived: str = ""
    """The ConfigMap that was derived from it for this deployment before; empty when there is none."""


def base_label(anchor: Anchor) -> str:
    """The digest of an anchor as a label value."""
    return anchor.digest().removeprefix("sha256:")[:40]


def refusal(configuration: Configuration, anchor: Anchor) -> str:
    """Why this anchor must not be scaled by what the deployment shows; empty when it may.

    A difference in anything means that a transfer law stands between the two, and the error may be the law's.
    """
    if anchor.provenance.source == DERIVED:
        return "the anchor is itself a derived one: harvest anew"
    if configuration.disaggregation is not None:
        return "the anchor is of one engine, the deployment of two"
    sign, layout = anchor.signature, configuration.canonical_layout(Role.COLOCATED)
    if layout.pipeline_parallel > 1 or layout.data_parallel > 1:
        return f"the anchor is of one stage and rank, the deployment of {layout.label()}"
    pairs = {
        "engine": (sign.engine.lower(), configuration.engine.value.lower()),
        "engine version": (sign.engine_version, configuration.engine_version),
        "image": (sign.image, configuration.image),
        "accelerator": (sign.accelerator, configuration.accelerator),
        "tensor parallel": (sign.tensor_parallel, layout.tensor_parallel),
        "expert parallel": (sign.expert_parallel, layout.expert_parallel),
        "speculation": (sign.speculation is not None, configuration.speculation is not None),
        "attention data parallel": (sign.attention_data_parallel, layout.attention_data_parallel),
    }
    for name, (theirs, ours) in pairs.items():
        if theirs != ours:
            return f"the anchor's {name} is {theirs}, the deployment's {ours}"
    return ""


def derive(basis: Basis, key: Key, comparison: Comparison, window_s: float) -> Anchor:
    """The anchor with its decode steps scaled, its evidence in the notes, and no check that was of other figures."""
    tpot, base = comparison.figures["tpot"], basis.anchor
    factor = round(tpot.observed / tpot.predicted, FACTOR_DIGITS)
    sweeps = tuple(
        sweep.model_copy(
            update={
                "points": tuple(
                    point.model_copy(update={"step_milliseconds": point.step_milliseconds * factor})
                    for point in sweep.points
                )
            }
        )
        for sweep in base.decode
    )
    notes = (
        f"Decode steps of {base.digest()} (ConfigMap {basis.config_map}) times {factor}: mean TPOT "
        f"{tpot.observed / MILLI:.4g} ms observed, {tpot.predicted / MILLI:.4g} ms predicted, over "
        f"{comparison.requests_count:.0f} requests in {window_s:.0f} s on {comparison.replicas_count} replicas of "
        f"{key.namespace}/{key.mix}, deployment {key.deployment}, under the predicted load.",
        "The factor was seen at this one load and is applied to every batch; prefill and host time are the base's.",
    )
    provenance = base.provenance.model_copy(
        update={
            "source": DERIVED,
            "notes": (*base.provenance.notes, *notes),
            "checks": (),
            "residuals": {"tpot": tpot.error_ratio},
        }
    )
    return base.model_copy(update={"decode": sweeps, "provenance": provenance})


def config_map(owner: Mapping[str, Any], basis: Basis, derived: Anchor, deployment: str) -> dict[str, Any]:
    """The immutable ConfigMap of a derived anchor of the live mix `owner`, named by the anchor's digest."""
    name = names.object_name(str(owner["metadata"]["name"]), "anchor", base_label(derived)[:16])
    metadata = labels.child_metadata(owner, name, ROLE)
    metadata["labels"] |= {
        labels.ANCHOR: DERIVED,
        DERIVED_FROM: base_label(basis.anchor),
        DEPLOYMENT: names.label_value(deployment),
    }
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata,
        "immutable": True,
        "data": {ANCHOR_KEY: derived.to_json()},
    }


def is_derived_from(live: Mapping[str, Any], anchor: Anchor, deployment: str) -> bool:
    """Whether a live ConfigMap was derived from this anchor for this deployment."""
    found = live["metadata"].get("labels") or {}
    wanted = {DERIVED_FROM: base_label(anchor), DEPLOYMENT: names.label_value(deployment)}
    return bool(wanted.items() <= found.items())
