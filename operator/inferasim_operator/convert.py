"""Between plain answers of the planning code, live objects, and the API types. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeVar

import pydantic
from pydantic import Field
from pydantic_core import ErrorDetails

from inferasim_operator.api.v1alpha1.common import ApiModel, unknown_fields
from inferasim_operator.api.v1alpha1.conditions import Condition
from inferasim_operator.api.v1alpha1.configuration import Binding, Selection
from inferasim_operator.api.v1alpha1.servingplan import (
    Mix,
    Provenance,
    RecommendedHarvest,
    SearchProgress,
    SearchRecord,
)
from inferasim_operator.report import numbers
from simcore.cards import layout as layouts
from simcore.errors import InputError, UnknownKeyError

T = TypeVar("T", bound=ApiModel)


def parse_conditions(live: Mapping[str, Any]) -> tuple[Condition, ...]:
    """The conditions of a live object; those that do not parse (written by somebody else) are left out."""
    found = []
    for item in (live.get("status") or {}).get("conditions") or ():
        try:
            found.append(Condition.model_validate(item))
        except pydantic.ValidationError:
            continue
    return tuple(found)


def typed(model: type[T], raw: object, where: str) -> T:
    """What a person wrote as `where`; a key that is none is refused as the API server refuses it. Raises InputError."""
    for path, known in unknown_fields(model, raw, where).items():
        # Before the rest: a misspelt key is the cause where a required one is missing.
        raise UnknownKeyError(path, path.rpartition(".")[2], known)
    return validated(model, raw, where)


def validated(model: type[T], raw: object, where: str) -> T:
    """What stands at `where`, whatever keys stand beside ours. Raises InputError with the first rule that it breaks."""
    try:
        return model.model_validate(raw)
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        value = None if first["type"] == "missing" else first["input"]
        more = error.error_count() - 1
        hint = f"and {more} more {'rule' if more == 1 else 'rules'} broken" if more else ""
        raise InputError(_path(first["loc"], where), value, _must(first), hint) from error


def first_error(error: pydantic.ValidationError) -> str:
    """The first problem as one line: path in back-quotes, what must hold, how many more there are."""
    errors = error.errors(include_url=False, include_context=False)
    first = errors[0]
    text = str(first["msg"]).removeprefix("Value error, ")
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    return f"`{_path(first['loc']) or 'object'}`: {text}{more}"


def _path(loc: tuple[int | str, ...], where: str = "") -> str:
    path = where
    for part in loc:
        path += f"[{part}]" if isinstance(part, int) else f".{part}"
    return path.lstrip(".")


def _must(problem: ErrorDetails) -> str:
    """Pydantic's words as they read on after `must`."""
    if problem["type"] == "missing":
        return "be given"
    if problem["type"] in ("model_type", "dict_type"):
        return "be a mapping"
    if problem["type"] == "tuple_type":
        return "be a list"
    text = problem["msg"].removeprefix("Value error, ").removeprefix("must ").replace("valid integer", "whole number")
    text = re.sub(r"^(Input|String|Tuple|Dictionary) should ", "", text)
    return re.sub(r" after validation, not (\d+)$", "", text)


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
    """The answer in one line for `kubectl get`, e.g. `responsive, bulk: SGLang TP4 x2 (8 GPUs), 4180 tok/s/GPU`."""
    tiers: dict[str, list[str]] = {}
    for choice in answer.selected:
        configuration = choice.configuration
        gpus = "" if choice.gpus is None else f" ({numbers.gpus(choice.gpus)})"
        text = (
            f"{configuration.engine.value} {layout_label(configuration.layout)} "
            f"x{configuration.replicas}{gpus}, {choice.predicted.tokens_per_second_per_gpu} tok/s/GPU"
        )
        tiers.setdefault(text, []).append(choice.tier)
    return "; ".join(f"{', '.join(names)}: {text}" for text, names in tiers.items()) or "infeasible"


def simcore_layout(layout: ApiModel | None) -> layouts.Layout:
    """The layout with every absent width set to 1."""
    given = {} if layout is None else layout.model_dump(exclude_none=True)
    return layouts.Layout(**given)


def layout_label(layout: ApiModel | None) -> str:
    """Short name of a layout, e.g. `TP2xPP4`."""
    return simcore_layout(layout).label()
