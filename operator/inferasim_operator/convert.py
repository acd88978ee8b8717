"""Between plain answers of the planning code, live objects, and the API types. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pydantic
from pydantic import Field

from inferasim_operator.api.v1alpha1.common import ApiModel
from inferasim_operator.api.v1alpha1.conditions import Condition
from inferasim_operator.api.v1alpha1.configuration import Binding, Selection
from inferasim_operator.api.v1alpha1.servingplan import (
    Mix,
    Provenance,
    RecommendedHarvest,
    SearchProgress,
    SearchRecord,
)
from simcore.cards import layout as layouts


def parse_conditions(live: Mapping[str, Any]) -> tuple[Condition, ...]:
    """The conditions of a live object; those that do not parse (written by somebody else) are left out."""
    found = []
    for item in (live.get("status") or {}).get("conditions") or ():
        try:
            found.append(Condition.model_validate(item))
        except pydantic.ValidationError:
            continue
    return tuple(found)


def first_error(error: pydantic.ValidationError) -> str:
    """The first problem as one line: path in back-quotes, what must hold, how many more there are."""
    errors = error.errors(include_url=False, include_context=False)
    first = errors[0]
    path = ""
    for part in first["loc"]:
        path += f"[{part}]" if isinstance(part, int) else f".{part}"
    text = str(first["msg"]).removeprefix("Value error, ")
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    return f"`{path.lstrip('.') or 'object'}`: {text}{more}"


class PlanAnswer(ApiModel):
    """The part of `planning.compute_plan`'s answer that the status shows; the ConfigMap keeps all of it."""

    selected: tuple[Selection, ...] = ()
    binding: tuple[Binding, ...] = ()
    candidates: Mapping[str, int] = Field(default_factory=dict)
    mix: Mix | None = None
    search: SearchRecord | None = None
    recommended_harvests: tuple[RecommendedHarvest, ...] = ()
    provenance: Provenance | None = None

    @property
    def progress(self) -> SearchProgress | None:
        """The finished search as progress."""
        return plan_progress(self.candidates)


def plan_answer(result: Mapping[str, Any]) -> PlanAnswer:
    """The typed answer. Raises pydantic.ValidationError."""
    return PlanAnswer.model_validate(result)


def plan_progress(counts: Mapping[str, Any]) -> SearchProgress | None:
    """Progress from `{"scored", "total", "best"?}`; None when it is not that."""
    try:
        return SearchProgress(
            candidates_scored=counts["scored"], candidates_total=counts.get("total"), best=counts.get("best")
        )
    except (KeyError, pydantic.ValidationError):
        return None


def plan_summary(answer: PlanAnswer) -> str:
    """The answer in one line for `kubectl get`, e.g. `interactive: SGLang TP4 x2 (8 GPUs), 4180 tok/s/GPU`."""
    parts = []
    for choice in answer.selected:
        configuration = choice.configuration
        gpus = f" ({choice.gpus} GPUs)" if choice.gpus is not None else ""
        parts.append(
            f"{choice.tier}: {configuration.engine.value} {layout_label(configuration.layout)} "
            f"x{configuration.replicas}{gpus}, {choice.predicted.tokens_per_second_per_gpu} tok/s/GPU"
        )
    return "; ".join(parts) or "infeasible"


def simcore_layout(layout: ApiModel | None) -> layouts.Layout:
    """The layout with every absent width set to 1."""
    given = {} if layout is None else layout.model_dump(exclude_none=True)
    return layouts.Layout(**given)


def layout_label(layout: ApiModel | None) -> str:
    """Short name of a layout, e.g. `TP2xPP4`."""
    return simcore_layout(layout).label()
