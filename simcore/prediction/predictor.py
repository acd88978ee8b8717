"""One setting (model, accelerator, traffic, anchors), many layouts and loads, each priced by the simulator."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from simcore.anchors.schema import Anchor
from simcore.anchors.schema import Speculation as MeasuredSpeculation
from simcore.anchors.select import Selection, Target, select_anchor
from simcore.cards.accelerator import AcceleratorCard
from simcore.cards.kv_dtype import kv_storage, stated_kv_dtype
from simcore.cards.layout import Engine, Layout, apart, resolve
from simcore.cards.model import ModelCard
from simcore.des.config import Admission, Deployment, HostTier, Pool, Routing, SchedulerConfig
from simcore.des.workload.batch import Workload
from simcore.errors import InputError, NoAnchorError
from simcore.laws.speculation import Drafter
from simcore.legality import LegalityCase, Verdict, enumerate_layouts, judge
from simcore.memory import MemoryPlan, MemoryRequest, Reserve, WeightChoices, kv_format, plan_memory
from simcore.memory.pool import DEFAULT_MEMORY_FRAC
from simcore.prediction.bounds import Bound, replica_bound
from simcore.prediction.costs import CostRequest, Speculation, build_cost
from simcore.prediction.describe import Priced, Served, prediction_of
from simcore.prediction.engines import EngineDefaults, engine_defaults
from simcore.prediction.facts import ReplicaFacts
from simcore.prediction.outcome import (
    closed_loop_outcome,
    load_flags,
    most_running,
    run_requests,
    simulated_outcome,
)
from simcore.prediction.reruns import interval_under_arrivals
from simcore.prediction.result import Prediction, Source
from simcore.prediction.shapes import EngineOption, Refusal, Shape
from simcore.stepcost.communication import communication
from simcore.stepcost.step import StepCost
from simcore.stepcost.work import rank_work
from simcore.units import GIB

DRAFTER_METHODS: Final = {
    Drafter.MTP: "MTP", Drafter.EAGLE3: "EAGLE3", Drafter.DSPARK: "DSPARK", Drafter.NGRAM: "NGram",
}  # fmt: skip
"""As anchors spell them."""


class Mode(StrEnum):
    """Anchored refuses to go on without a measurement; Simulate ranks only; Auto takes anchors where they apply."""

    ANCHORED = "anchored"
    SIMULATE = "simulate"
    AUTO = "auto"


@dataclass(frozen=True)
class KvOffload:
    """A KV tier in host memory (paper B.6), shared evenly by a replica's GPUs."""

    host_bytes: int
    """Of one engine replica."""
    link_bytes_per_s: float | None = None
    """From one GPU to its host; None takes the accelerator's."""


@dataclass(frozen=True)
class StatedMemory:
    """What the user measured or fixed of memory, as `check` takes it; None is computed."""

    choices: WeightChoices = field(default_factory=WeightChoices)
    weight_bytes: int | None = None
    draft_weight_bytes: int | None = None
    free_before_bytes: int | None = None
    reserve: Reserve | None = None
    kv_scale_bytes_per_vector: int = 0


@dataclass(frozen=True)
class Overrides:
    """What the user fixes; None takes the engine's default or the anchor's value."""

    kv_dtype: str | None = None
    memory_frac: float | None = None
    block_tokens: int | None = None
    max_running_requests: int | None = None
    max_batched_tokens: int | None = None
    chunk_tokens: int | None = None
    max_model_length_tokens: int | None = None
    kv_pool_bytes_per_gpu: int | None = None
    attention_backend: str | None = None
    moe_backend: str | None = None
    partition: str | None = None
    memory: StatedMemory = field(default_factory=StatedMemory)
    speculation: Speculation | None = None
    """A drafter added to an anchor that was measured without one."""
    fusions: tuple[str, ...] = ()
    kv_offload: KvOffload | None = None
    """A second KV tier, for workloads whose requests share prefixes."""
    prefix_caching: bool = True
    """Where requests share prefixes; others never hit."""
    admission: Admission = Admission.FIFO


@dataclass(frozen=True)
class Setting:
    """What all candidates share."""

    card: ModelCard
    accelerator: AcceleratorCard
    anchors: Mapping[str, Anchor]
    """By the name that outputs repeat."""
    mode: Mode
    prompt_tokens: int
    output_tokens: int
    overrides: Overrides = field(default_factory=Overrides)
    longest_tokens: int = 0
    """Prompt plus output of the longest request, where that is not the sum of the two."""
    weights_dtype: str | None = None
    """As the question states it: an anchor must have run it. None takes the anchor's."""

    def __post_init__(self) -> None:
        longest = self._longest_tokens
        if min(self.prompt_tokens, self.output_tokens) < 1:
            raise InputError("workload", (self.prompt_tokens, self.output_tokens), "hold positive token counts")
        most = self.card.max_position_tokens
        if most and longest > most:
            raise InputError(
                "workload", longest, f"stay within the model's {most} positions", "prompt plus output of a request"
            )
        given = self.overrides.max_model_length_tokens
        if given is not None and given < longest:
            raise InputError("maxModelLength", given, f"be at least prompt plus output of any request ({longest})")

    @property
    def _longest_tokens(self) -> int:
        return max(self.longest_tokens, self.prompt_tokens + self.output_tokens)

    @property
    def model_length_tokens(self) -> int:
        return self.overrides.max_model_length_tokens or self._longest_tokens


class Predictor:
    """Prices engine replicas of one `Setting`; step costs and memory are computed once per layout."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self._priced: dict[tuple[EngineOption, Layout], Priced] = {}
        self._facts: dict[tuple[EngineOption, Layout], ReplicaFacts] = {}
        self._costs: dict[tuple[object, ...], StepCost] = {}
        self._selections: dict[tuple[object, ...], Selection] = {}

    def with_overrides(self, overrides: Overrides) -> Predictor:
        """The same setting with other overrides; step costs that do not depend on them are shared."""
        other = Predictor(replace(self.setting, overrides=overrides))
        other._costs, other._selections = self._costs, self._selections
        return other

    def shapes(
        self, option: EngineOption, *, gpus_per_node: int, nodes_count: int
    ) -> tuple[list[Shape], list[Refusal]]:
        """Layouts of `option` that are legal, fit in memory and have a step cost; the others with their reasons.

        Layouts that the user named must be legal: raises InputError. Without names, replicas stay inside a node, and
        pipelines over nodes are tried only when no single-node layout fits.
        """
        found: list[Shape] = []
        refusals: list[Refusal] = []
        for layout in self.layouts(option, gpus_per_node, nodes_count):
            result = self.shape(option, layout, gpus_per_node=gpus_per_node)
            if isinstance(result, Refusal):
                refusals.append(result)
            else:
                found.append(result)
        return found, refusals

    def shape(self, option: EngineOption, layout: Layout, *, gpus_per_node: int) -> Shape | Refusal:
        """One layout: what can run, or why it cannot. Raises InputError for a lever the model cannot have."""
        if (option, layout) not in self._priced:
            result = self._try(option, layout, gpus_per_node)
            if isinstance(result, Refusal):
                return result
            self._priced[(option, layout)] = result
        return Shape(option, layout, self._priced[(option, layout)].widths.gpus_count)

    def facts(self, shape: Shape) -> ReplicaFacts:
        """Step cost, collectives and limits of a shape that this predictor priced."""
        key = (shape.option, shape.layout)
        if key not in self._facts:
            self._facts[key] = self._facts_of(shape)
        return self._facts[key]

    def _facts_of(self, shape: Shape) -> ReplicaFacts:
        priced, scheduler, setting = self._of(shape), self.scheduler(shape), self.setting
        whole = shape.option.engine is Engine.ATOM
        work = rank_work(setting.card, priced.widths, kv_dtype=kv_storage(priced.kv_dtype))
        exchanges = shape.option.engine is Engine.VLLM and priced.widths.attention_dp > 1 and priced.widths.moe_ep > 1
        return ReplicaFacts(
            cost=priced.cost,
            collectives=communication(work, setting.accelerator, all_to_all=exchanges),
            attention_dp_count=priced.widths.attention_dp,
            mixes=shape.option.engine is Engine.VLLM or (not whole and scheduler.mixed_chunk),
            chunk_tokens=setting.prompt_tokens if whole else min(scheduler.chunk_tokens, scheduler.max_batched_tokens),
            max_running_requests=scheduler.max_running_requests,
            block_tokens=scheduler.block_tokens,
            pool_tokens_per_rank=priced.memory.pool_tokens_per_rank,
            kv_bytes_per_token=float(priced.memory.kv.bytes_per_token),
        )

    def legality_case(self, option: EngineOption, layout: Layout, gpus_per_node: int) -> LegalityCase:
        """The case that decides whether `layout` may run."""
        setting, overrides = self.setting, self.setting.overrides
        return LegalityCase(
            card=setting.card,
            engine=option.engine,
            layout=layout,
            version=option.version or self._anchor_version(option.engine),
            attention_backend=overrides.attention_backend,
            moe_backend=overrides.moe_backend,
            accelerator=setting.accelerator,
            gpus_per_node=gpus_per_node,
            kv_dtype=overrides.kv_dtype,
            redundant_experts_count=overrides.memory.choices.redundant_experts_count,
            fused_shared_experts=overrides.memory.choices.fused_shared_experts,
        )

    def _anchor_version(self, engine: Engine) -> str | None:
        """The version that all anchors of `engine` share; None when they differ or there are none."""
        versions = {
            anchor.signature.engine_version
            for anchor in self.setting.anchors.values()
            if anchor.signature.engine.lower() == engine.value.lower()
        }
        return versions.pop() if len(versions) == 1 else None

    def layouts(self, option: EngineOption, gpus_per_node: int, nodes_count: int) -> list[Layout]:
        """The layouts that `shapes` tries. Raises InputError for an illegal one that the user named."""
        if option.layouts is None:
            case = self.legality_case(option, Layout(), gpus_per_node)
            inside = [item.layout for item in enumerate_layouts(case, gpus=gpus_per_node, largest_pipeline=1)]
            if nodes_count == 1 or any(self._fits(option, layout) for layout in inside):
                return inside
            stages = range(2, min(nodes_count, self.setting.card.layers_count) + 1)
            return inside + [Layout(tensor_parallel=gpus_per_node, pipeline_parallel=count) for count in stages]
        for layout in option.layouts:
            one, copies = apart(layout, option.engine, is_moe=self.setting.card.is_moe)
            if copies > 1:
                hint = f"its {copies} data-parallel ranks share nothing: name {one.label()}, a plan counts its replicas"
                raise InputError(f"engines.{option.engine.value}.layouts", layout.label(), "be one engine", hint)
            judgement = judge(self.legality_case(option, layout, gpus_per_node))
            if judgement.verdict is Verdict.ILLEGAL:
                details = "; ".join(f"{v.tensor}: {v.detail}" for v in judgement.violations)
                raise InputError(f"engines.{option.engine.value}.layouts", layout.label(), "be legal", details)
        return sorted(set(option.layouts))

    def _fits(self, option: EngineOption, layout: Layout) -> bool:
        return self._memory(option, layout, None, self.setting.overrides.kv_dtype).fits

    def _memory(self, option: EngineOption, layout: Layout, anchor: Anchor | None, kv_dtype: str | None) -> MemoryPlan:
        setting, overrides = self.setting, self.setting.overrides
        defaults = engine_defaults(option.engine)
        measured, stated = anchor.memory if anchor else None, overrides.memory
        reserve = stated.reserve
        if measured is not None and reserve is None:
            # Absolute bytes as harvested, never a share carried to another width or GPU (public case A19).
            reserve = Reserve(
                non_torch_bytes=measured.non_torch_bytes or 0,
                graph_bytes=measured.graph_bytes or 0,
                peak_bytes=measured.peak_bytes or 0,
            )
        request = MemoryRequest(
            card=setting.card,
            engine=option.engine,
            layout=layout,
            kv=kv_format(
                kv_dtype,
                card=setting.card,
                engine=option.engine,
                scale_bytes_per_vector=stated.kv_scale_bytes_per_vector,
            ),
            choices=stated.choices,
            weight_bytes=stated.weight_bytes,
            draft_weight_bytes=stated.draft_weight_bytes,
            free_before_bytes=stated.free_before_bytes,
            hbm_bytes=setting.accelerator.hbm_bytes,
            memory_frac=overrides.memory_frac,
            block_tokens=overrides.block_tokens or defaults.block_tokens,
            pool_bytes=overrides.kv_pool_bytes_per_gpu,
            reserve=reserve,
            batched_tokens=overrides.max_batched_tokens or defaults.max_batched_tokens,
            model_length_tokens=setting.model_length_tokens,
        )
        return plan_memory(request)

    def _try(self, option: EngineOption, layout: Layout, gpus_per_node: int) -> Priced | Refusal:
        setting = self.setting
        case = self.legality_case(option, layout, gpus_per_node)
        judgement = judge(case)
        if judgement.verdict is Verdict.ILLEGAL:
            details = "; ".join(f"{v.tensor}: {v.detail}" for v in judgement.violations)
            return Refusal(option, layout, "legality", f"{layout.label()}: {details}")
        memory = self._memory(option, layout, None, setting.overrides.kv_dtype)
        if not memory.fits:
            details = "; ".join(violation.detail for violation in memory.violations)
            return Refusal(option, layout, "memory", f"{layout.label()}: {details}")
        selection = None
        if setting.mode is not Mode.SIMULATE:
            selection = self._select(option, layout)
            if selection.chosen is None and setting.mode is Mode.ANCHORED:
                return Refusal(option, layout, "anchor", self._no_anchor(option, selection))
        widths = resolve(layout, option.engine, is_moe=setting.card.is_moe)
        nodes_count = max(1, math.ceil(widths.gpus_count / gpus_per_node))
        anchor = selection.chosen if selection else None
        measured = anchor.signature.kv_dtype if anchor else None
        kv_dtype = setting.overrides.kv_dtype or measured or stated_kv_dtype(setting.card, option.engine) or "bf16"
        if anchor is not None:
            memory = self._memory(option, layout, anchor, kv_dtype)
            if not memory.fits:
                details = "; ".join(violation.detail for violation in memory.violations)
                return Refusal(option, layout, "memory", f"{layout.label()}: {details}")
        if memory.pool_tokens_per_rank is None:
            detail = (
                f"{layout.label()}: the KV pool of this model is not per-token arithmetic; harvest or state its size"
            )
            return Refusal(option, layout, "memory", detail)
        cost = self._cost(
            CostRequest(
                card=setting.card,
                accelerator=setting.accelerator,
                engine=option.engine,
                layout=layout,
                kv_dtype=kv_storage(kv_dtype),
                nodes_count=nodes_count,
                anchor=anchor,
                sibling=selection.sibling if selection else None,
                speculation=None if anchor and anchor.signature.speculation else setting.overrides.speculation,
                fusions=setting.overrides.fusions,
            )
        )
        anchor_name = self._name_of(anchor) if anchor else None
        return Priced(
            widths=widths,
            cost=cost,
            selection=selection,
            anchor_name=anchor_name,
            memory=memory,
            judgement=judgement,
            version=option.version or (anchor.signature.engine_version if anchor else None),
            kv_dtype=kv_dtype,
            defaults=engine_defaults(option.engine),
            source=self._source(cost, memory, selection, anchor, anchor_name),
        )

    def _cost(self, request: CostRequest) -> StepCost:
        """Built once for all predictors that share costs."""
        names = (None if anchor is None else self._name_of(anchor) for anchor in (request.anchor, request.sibling))
        key = (
            request.engine,
            request.layout,
            request.kv_dtype,
            request.nodes_count,
            request.speculation,
            request.fusions,
            *names,
        )
        if key not in self._costs:
            self._costs[key] = build_cost(request)
        return self._costs[key]

    def _select(self, option: EngineOption, layout: Layout) -> Selection:
        """A drafter takes an anchor that was measured with it, else one without, to which it is then added."""
        drafter = self.setting.overrides.speculation
        if drafter is not None and not drafter.accepted_length_tokens:
            asked = MeasuredSpeculation(method=DRAFTER_METHODS[drafter.drafter], depth=drafter.draft_tokens)
            measured = self._selected(option, layout, asked)
            if measured.chosen is not None:
                return measured
        return self._selected(option, layout, None)

    def _selected(self, option: EngineOption, layout: Layout, speculation: MeasuredSpeculation | None) -> Selection:
        setting, overrides = self.setting, self.setting.overrides
        asked = (overrides.kv_dtype, overrides.attention_backend, overrides.moe_backend, overrides.partition)
        key = (option, layout, speculation, *asked)
        if key in self._selections:
            return self._selections[key]
        target = Target(
            accelerator=setting.accelerator.name,
            engine=option.engine.value,
            model=setting.card.name,
            tensor_parallel=layout.tensor_parallel,
            weights_dtype=setting.weights_dtype,
            kv_dtype=overrides.kv_dtype,
            engine_version=option.version,
            image=option.image,
            partition=overrides.partition,
            attention_backend=overrides.attention_backend,
            moe_backend=overrides.moe_backend,
            speculates=speculation is not None,
            speculation=speculation,
            expert_parallel=layout.expert_parallel,
            attention_data_parallel=layout.attention_data_parallel,
            prompt_tokens=setting.prompt_tokens,
        )
        self._selections[key] = select_anchor(target, list(setting.anchors.values()))
        return self._selections[key]

    def _no_anchor(self, option: EngineOption, selection: Selection) -> str:
        """Says the same of all layouts that no anchor reaches for the same reason, so that readers see it once."""
        target = f"{self.setting.card.name} on {option.engine.value} {self.setting.accelerator.name}"
        return str(NoAnchorError(target, {name: list(why) for name, why in selection.refusals.items()}))

    def _name_of(self, anchor: Anchor) -> str:
        return min(name for name, other in self.setting.anchors.items() if other is anchor or other == anchor)

    def _of(self, shape: Shape) -> Priced:
        return self._priced[(shape.option, shape.layout)]

    def engine_version(self, shape: Shape) -> str | None:
        """The stated version, else the anchor's."""
        return self._of(shape).version

    def image(self, shape: Shape) -> str | None:
        """The stated image, else the anchor's: what was measured is what is served."""
        priced = self._of(shape)
        anchor = priced.selection.chosen if priced.selection else None
        return shape.option.image or (anchor.signature.image if anchor else None)

    def kv_dtype(self, shape: Shape) -> str:
        """KV format of the configuration."""
        return self._of(shape).kv_dtype

    @property
    def memory_frac(self) -> float:
        """Share of HBM that the engine may take."""
        return self.setting.overrides.memory_frac or DEFAULT_MEMORY_FRAC

    def limits(self, shape: Shape) -> EngineDefaults:
        """The scheduler's settings as the engine's own flags state them: what is emitted."""
        overrides, defaults = self.setting.overrides, self._of(shape).defaults
        return replace(
            defaults,
            max_running_requests=overrides.max_running_requests or defaults.max_running_requests,
            max_batched_tokens=overrides.max_batched_tokens or defaults.max_batched_tokens,
            chunk_tokens=overrides.chunk_tokens or defaults.chunk_tokens,
            block_tokens=overrides.block_tokens or defaults.block_tokens,
        )

    def scheduler(self, shape: Shape) -> SchedulerConfig:
        """The scheduler of one attention-DP rank: what is simulated.

        SGLang divides its running cap and its chunk over the attention-DP ranks; vLLM's flags are per rank. ATOM is
        taken as SGLang (assumed): the smaller caps.
        """
        priced, limits = self._of(shape), self.limits(shape)
        tokens = priced.memory.pool_tokens_per_rank
        if tokens is None:
            raise InputError("kvPoolBytesPerGpu", None, "be given for a model whose pool is not per-token arithmetic")
        ranks = 1 if shape.option.engine is Engine.VLLM else priced.widths.attention_dp
        return SchedulerConfig(
            engine=shape.option.engine,
            max_running_requests=max(1, limits.max_running_requests // ranks),
            max_batched_tokens=limits.max_batched_tokens,
            chunk_tokens=max(1, limits.chunk_tokens // ranks),
            kv_pool_tokens=tokens,
            block_tokens=limits.block_tokens,
        )

    def predict(self, shape: Shape, concurrency: int) -> Prediction:
        """One replica that serves `concurrency` clients in a closed loop of 10 requests each."""
        setting, priced = self.setting, self._of(shape)
        scheduler = self.scheduler(shape)
        outcome = closed_loop_outcome(
            priced.cost,
            scheduler,
            attention_dp=priced.widths.attention_dp,
            concurrency=concurrency,
            requests_count=run_requests(concurrency),
            prompt_tokens=setting.prompt_tokens,
            output_tokens=setting.output_tokens,
        )
        return prediction_of(self.served(shape, scheduler, concurrency), outcome)

    def bound(self, shape: Shape, concurrency: int) -> Bound:
        """What `predict` cannot beat, without a simulation."""
        priced, scheduler = self._of(shape), self.scheduler(shape)
        return replica_bound(
            priced.cost.table(min(concurrency, scheduler.max_running_requests)),
            concurrency=concurrency,
            running_cap=scheduler.max_running_requests,
            attention_dp=priced.widths.attention_dp,
            prompt_tokens=self.setting.prompt_tokens,
            output_tokens=self.setting.output_tokens,
        )

    def pool(
        self, shape: Shape, *, replicas_count: int = 1, most_running: int | None = None, block_tokens: int = 0
    ) -> Pool:
        """Equal replicas of a shape, as the simulator takes them: the one way from a configuration to a pool.

        `most_running` bounds the requests under way at once, where the load does. `block_tokens` is the size of the
        workload's prefix blocks, 0 where requests share nothing; then there is no prefix cache and no host tier.
        """
        priced, overrides = self._of(shape), self.setting.overrides
        scheduler = self.scheduler(shape)
        caches = block_tokens > 0 and overrides.prefix_caching
        running = max(1, min(scheduler.max_running_requests, most_running or scheduler.max_running_requests))
        return Pool(
            table=priced.cost.table(running),
            scheduler=replace(
                scheduler, max_running_requests=running, prefix_caching=caches, admission=overrides.admission
            ),
            replicas_count=replicas_count,
            attention_dp=priced.widths.attention_dp,
            gpus_per_replica_count=shape.gpus_count,
            host_tier=self._host_tier(shape, overrides.kv_offload, block_tokens) if caches else None,
        )

    def _host_tier(self, shape: Shape, tier: KvOffload | None, block_tokens: int) -> HostTier | None:
        """The replica's host memory divided over its GPUs, each with its own link and its share of a rank's cache."""
        if tier is None:
            return None
        priced = self._of(shape)
        token_bytes = float(priced.memory.kv.bytes_per_token)
        block_bytes = math.ceil(token_bytes * block_tokens)
        if block_bytes == 0:
            raise InputError("kvOffload", tier.host_bytes, "come with a model whose cache is per-token arithmetic")
        blocks = math.floor(tier.host_bytes / shape.gpus_count / block_bytes) * priced.widths.attention_dp
        if blocks < priced.widths.attention_dp:
            must = f"hold a block of {block_tokens} tokens on each of {shape.gpus_count} GPUs"
            raise InputError("kvOffload.hostGibibytes", tier.host_bytes / GIB, must)
        return HostTier(blocks, tier.link_bytes_per_s or self.setting.accelerator.host_link_bytes_per_s, block_bytes)

    def served(
        self, shape: Shape, scheduler: SchedulerConfig, concurrency: int, *, has_host_tier: bool = False
    ) -> Served:
        """A shape under `concurrency` requests in flight per replica, for describing a run of it."""
        lengths = self.setting.prompt_tokens, self.setting.output_tokens
        return Served(shape, self._of(shape), scheduler, *lengths, max(1, concurrency), has_host_tier)

    def run(
        self,
        shape: Shape,
        workload: Workload,
        *,
        replicas_count: int = 1,
        routing: Routing = Routing.LEAST_LOADED,
        seed: int = 0,
        warmup_requests: int = 0,
    ) -> Prediction:
        """`replicas_count` equal replicas behind a router under any workload, with every distribution. As `predict`."""
        most = most_running(workload)
        pool = self.pool(shape, replicas_count=replicas_count, most_running=most, block_tokens=workload.block_tokens)
        deployment = Deployment(pool, routing=routing)
        outcome = simulated_outcome(deployment, workload, seed=seed, warmup_requests=warmup_requests)
        in_flight = outcome.mean_active_requests if workload.clients is None else workload.clients
        scheduler = replace(pool.scheduler, max_running_requests=self.scheduler(shape).max_running_requests)
        each = math.ceil(in_flight / replicas_count)
        served = self.served(shape, scheduler, each, has_host_tier=pool.host_tier is not None)
        found = prediction_of(served, outcome)
        return replace(
            found,
            gpus_count=shape.gpus_count * replicas_count,
            concurrency=workload.clients,
            interval80=interval_under_arrivals(found, deployment, workload, seed=seed, warmup_requests=warmup_requests),
            flags=tuple(sorted({*found.flags, *load_flags(outcome, workload)})),
        )

    def _source(
        self,
        cost: StepCost,
        memory: MemoryPlan,
        selection: Selection | None,
        anchor: Anchor | None,
        anchor_name: str | None,
    ) -> Source:
        reasons = {f"reason{index + 1}": text for index, text in enumerate(cost.reasons)}
        assumed = (*memory.assumed, *self.setting.card.assumed, *self.setting.accelerator.assumptions())
        return Source(
            mode="anchored" if anchor is not None else "simulate",
            anchor_name=anchor_name,
            anchor_digest=anchor.digest() if anchor is not None else None,
            laws=reasons,
            refusals=selection.refusals if selection else {},
            assumed=tuple(dict.fromkeys(assumed)),
        )
