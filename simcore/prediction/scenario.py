"""The input of `predict`: the keys of `check`, and anchors, mode, traffic and load (docs/predict.md)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from simcore.anchors.schema import Anchor
from simcore.cards.layout import Engine, Layout
from simcore.cards.model import ModelCard
from simcore.des.config import Routing
from simcore.errors import InputError
from simcore.prediction import case
from simcore.prediction.case import CheckInput, Count, Strict, one_line
from simcore.prediction.predictor import Mode, Overrides, Setting

LARGEST_RATE_REQUESTS_PER_S = 1e6


class LengthRange(Strict):
    """Token counts drawn evenly from `minimum` to `maximum`."""

    minimum: Count
    maximum: Count


class FixedInput(Strict):
    """Every request has the same lengths."""

    prompt_tokens: Count
    output_tokens: Count


class SyntheticInput(Strict):
    """Drawn lengths."""

    prompt_tokens: Count | LengthRange
    output_tokens: Count | LengthRange


class WorkloadInput(Strict):
    """Exactly one of the three."""

    fixed: FixedInput | None = None
    synthetic: SyntheticInput | None = None
    trace: Annotated[str, Field(min_length=1, max_length=4096)] | None = None


class LoadInput(Strict):
    """A closed loop of `concurrency` clients, or an open loop of `requestRate` requests per second."""

    concurrency: Count | None = None
    request_rate: Annotated[float, Field(gt=0, le=LARGEST_RATE_REQUESTS_PER_S, allow_inf_nan=False)] | None = None
    requests: Count | None = None


class ScenarioInput(CheckInput):
    """One scenario (docs/predict.md)."""

    anchors: Annotated[list[str], Field(max_length=256)] | None = None
    mode: Literal["anchored", "simulate", "auto"] = "auto"
    workload: WorkloadInput
    load: LoadInput
    replicas: Count = 1
    routing: Literal["least-loaded", "kv-aware", "prefix-hash", "round-robin", "random"] = "least-loaded"
    chunk_tokens: Count | None = None
    partition: str | None = None
    seed: Annotated[int, Field(ge=0, le=1 << 62)] = 0


@dataclass(frozen=True)
class Scenario:
    """One configuration under one load, ready to be predicted."""

    setting: Setting
    engine: Engine
    version: str | None
    image: str | None
    layout: Layout
    gpus_per_node: int
    nodes_count: int
    workload: WorkloadInput
    load: LoadInput
    replicas_count: int
    routing: Routing
    seed: int

    @property
    def card(self) -> ModelCard:
        return self.setting.card


def anchor_paths(document: Mapping[str, Any]) -> list[str]:
    """The anchors that a scenario names, before anything else of it is read. Raises InputError."""
    named = document.get("anchors") or []
    if not isinstance(named, list) or not all(isinstance(item, str) for item in named):
        raise InputError("anchors", named, "be a list of paths or names")
    return list(named)


def load_scenario(document: Mapping[str, Any], anchors: Mapping[str, Anchor]) -> Scenario:
    """The scenario in `document`; `anchors` are the ones it names, by name. Raises InputError and its kin."""
    try:
        given = ScenarioInput.model_validate(dict(document))
    except ValidationError as error:
        raise one_line(error) from error
    accelerator = case.accelerator_card(given)
    if accelerator is None:
        raise InputError("accelerator", None, "be given", "a prediction needs a known accelerator")
    card = case.model_card(given)
    if card.unknown:
        raise InputError("model.config", sorted(card.unknown), "state all of a model's shape", "these are missing")
    if given.layout is None:
        raise InputError("layout", None, "be given")
    engine_words = case.engine_input(given)
    engine = Engine.parse(engine_words.name)
    prompt, output = longest_tokens(given.workload)
    _check_load(given)
    overrides = Overrides(
        kv_dtype=given.kv_dtype,
        memory_frac=given.memory_fraction,
        block_tokens=given.block_size if given.block_size > 1 else None,
        max_running_requests=given.max_running_requests,
        max_batched_tokens=given.max_batched_tokens,
        chunk_tokens=given.chunk_tokens,
        max_model_length_tokens=given.max_model_length,
        kv_pool_bytes_per_gpu=given.kv_pool_bytes_per_gpu,
        attention_backend=engine_words.attention_backend,
        moe_backend=engine_words.moe_backend,
        partition=given.partition,
    )
    setting = Setting(
        card=card,
        accelerator=accelerator,
        anchors=anchors,
        mode=Mode(given.mode),
        prompt_tokens=prompt,
        output_tokens=output,
        overrides=overrides,
    )
    return Scenario(
        setting=setting,
        engine=engine,
        version=engine_words.version,
        image=None,
        layout=case.to_layout(given.layout, engine),
        gpus_per_node=given.node_gpus,
        nodes_count=given.nodes or 1,
        workload=given.workload,
        load=given.load,
        replicas_count=given.replicas,
        routing=Routing(given.routing),
        seed=given.seed,
    )


def longest_tokens(workload: WorkloadInput) -> tuple[int, int]:
    """Prompt and output tokens that the engine must be able to hold."""
    named = [name for name in ("fixed", "synthetic", "trace") if getattr(workload, name) is not None]
    if len(named) != 1:
        raise InputError("workload", named, "hold exactly one of `fixed`, `synthetic` and `trace`")
    if workload.fixed is not None:
        return workload.fixed.prompt_tokens, workload.fixed.output_tokens
    if workload.synthetic is not None:
        return _most(workload.synthetic.prompt_tokens), _most(workload.synthetic.output_tokens)
    return 1, 1


def _most(length: int | LengthRange) -> int:
    if isinstance(length, int):
        return length
    if length.minimum > length.maximum:
        raise InputError("workload.synthetic", length.minimum, f"have a minimum of at most {length.maximum}")
    return length.maximum


def _check_load(given: ScenarioInput) -> None:
    load = given.load
    if given.workload.trace is not None:
        return
    if (load.concurrency is None) == (load.request_rate is None):
        raise InputError("load", load.model_dump(by_alias=True), "hold exactly one of `concurrency` and `requestRate`")
    if load.request_rate is not None and load.requests is None:
        raise InputError("load.requests", None, "be given with `requestRate`")
