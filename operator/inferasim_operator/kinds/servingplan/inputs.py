"""The question of a plan and its digest: the same for the cluster and for the command line. Pure."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from inferasim_operator.api.v1alpha1.servingplan import ServingPlanSpec
from inferasim_operator.engine import names

CONTROLS = ("suspend", "rerun", "search", "pod")
"""What does not change the answer of a sweep. A search by trials finds what its method and budget find."""


def question(
    spec: ServingPlanSpec,
    anchors: Mapping[str, Mapping[str, Any]],
    model_config: Mapping[str, Any] | None,
    trace: str | None = None,
) -> dict[str, Any]:
    """The request for `planning.compute_plan`: only what the answer depends on, not how the search is run."""
    fields = spec.to_dict()
    controls = ("suspend", "rerun", "pod") if spec.search is not None and spec.search.is_tried else CONTROLS
    for control in controls:
        fields.pop(control, None)
    return {
        "spec": fields,
        "anchors": {name: dict(anchors[name]) for name in sorted(anchors)},
        "modelConfig": None if model_config is None else dict(model_config),
        **({} if trace is None else {"trace": {"data": trace}}),
    }


def trace_data(config_map: Mapping[str, Any], key: str) -> str | None:
    """A trace in a ConfigMap, as text or as (packed) bytes, in base64; None when it has no such key."""
    text = (config_map.get("data") or {}).get(key)
    if text is not None:
        return base64.b64encode(str(text).encode()).decode("ascii")
    packed = (config_map.get("binaryData") or {}).get(key)
    return None if packed is None else str(packed)


def input_digest(request: Mapping[str, Any], *, rerun: str | None, version: str) -> str:
    """The digest that names the answer: of the question, our own version, and the token of a deliberate second run."""
    return names.digest([request, version, rerun])
