"""One setting (model, accelerator, traffic, anchors), many layouts and loads, each priced by the simulator."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from simcore.anchors.schema import Anchor
from simcore.anchors.select import Selection, Target, select_anchor
from simcore.cards.accelerator import AcceleratorCard
from simcore.cards.layout import Engine, Layout, ResolvedLayout, resolve
from simcore.cards.model import ModelCard
from simcore.des.config import Deployment, Pool, Routing, SchedulerConfig
from simcore.des.workload.batch import Workload
from simcore.errors import InputError, NoAnchorError
from simcore.legality import Judgement, LegalityCase, Verdict, enumerate_layouts, judge
from simcore.memory import MemoryPlan, MemoryRequest, Reserve, kv_format, plan_memory
from simcore.memory.pool import DEFAULT_MEMORY_FRAC
from simcore.prediction.bounds import Bound, replica_bound
from simcore.prediction.costs import CostRequest, Speculation, build_cost
from simcore.prediction.engines import EngineDefaults, engine_defaults
from simcore.prediction.facts import ReplicaFacts
from simcore.prediction.intervals import Distance, interval_calibration
from simcore.prediction.outcome import Outcome, closed_loop_outcome, run_requests, simulated_outcome
from simcore.prediction.result import METRICS, Prediction, Source
from simcore.prediction.shapes import EngineOption, Refusal, Shape
from simcore.stepcost.communication import communication
from simcore.stepcost.step import Step, StepCost
from simcore.stepcost.work import rank_work

UNANCHORED_DOUBLINGS = 3.0
"""Assumed distance of a prediction without an anchor: as far as TP1 to TP8, so that its interval says so."""


class Mode(StrEnum):
    """Anchored refuses to go on without a measurement; Simulate ranks only; Auto takes anchors where they apply."""

    ANCHORED = "anchored"
    SIMULATE = "simulate"
    AUTO = "auto"


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
    speculation: Speculation | None = None
    """A drafter added to an anchor that was measured without one."""
    fusions: tuple[str, ...] = ()


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

    def __post_init__(self) -> None:
        longest = self.prompt_tokens + self.output_tokens
        if min(self.prompt_tokens, self.output_tokens) < 1:
            raise InputError("workload.fixed", (self.prompt_tokens, self.output_tokens), "hold positive token counts")
        most = self.card.max_position_tokens
        if most and longest > most:
            raise InputError(
                "workload.fixed", longest, f"stay within the model's {most} positions", "prompt plus output tokens"
            )
        given = self.overrides.max_model_length_tokens
        if given is not None and given < longest:
            raise InputError("maxModelLength", given, f"be at least prompt plus output tokens ({longest})")

    @property
    def model_length_tokens(self) -> int:
        return self.overrides.max_model_length_tokens or self.prompt_tokens + self.output_tokens


@dataclass(frozen=True)
class _Priced:
    """A shape with everything that does not depend on the load."""

    widths: ResolvedLayout
    cost: StepCost
    selection: Selection | None
    anchor_name: str | None
    memory: MemoryPlan
    judgement: Judgement
    version: str | None
    kv_dtype: str
    defaults: EngineDefaults
    source: Source


class Predictor:
    """Prices engine replicas of one `Setting`; step costs and memory are computed once per layout."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self._priced: dict[tuple[EngineOption, Layout], _Priced] = {}
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
        priced, scheduler, setting = self._of(shape), self.scheduler(shape), self.setting
        whole = shape.option.engine is Engine.ATOM
        work = rank_work(setting.card, priced.widths, kv_dtype=priced.kv_dtype)
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

    def _case(self, option: EngineOption, layout: Layout, gpus_per_node: int) -> LegalityCase:
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
            case = self._case(option, Layout(), gpus_per_node)
            inside = [item.layout for item in enumerate_layouts(case, gpus=gpus_per_node, largest_pipeline=1)]
            if nodes_count == 1 or any(self._fits(option, layout) for layout in inside):
                return inside
            stages = range(2, min(nodes_count, self.setting.card.layers_count) + 1)
            return inside + [Layout(tensor_parallel=gpus_per_node, pipeline_parallel=count) for count in stages]
        for layout in option.layouts:
            judgement = judge(self._case(option, layout, gpus_per_node))
            if judgement.verdict is Verdict.ILLEGAL:
                details = "; ".join(f"{v.tensor}: {v.detail}" for v in judgement.violations)
                raise InputError(f"engines.{option.engine.value}.layouts", layout.label(), "be legal", details)
        return sorted(set(option.layouts))

    def _fits(self, option: EngineOption, layout: Layout) -> bool:
        return self._memory(option, layout, None, self.setting.overrides.kv_dtype).fits

    def _memory(self, option: EngineOption, layout: Layout, anchor: Anchor | None, kv_dtype: str | None) -> MemoryPlan:
        setting, overrides = self.setting, self.setting.overrides
        defaults = engine_defaults(option.engine)
        measured = anchor.memory if anchor else None
        reserve = None
        if measured is not None:
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
            kv=kv_format(kv_dtype, card=setting.card),
            hbm_bytes=setting.accelerator.hbm_bytes,
            memory_frac=overrides.memory_frac,
            block_tokens=overrides.block_tokens or defaults.block_tokens,
            pool_bytes=overrides.kv_pool_bytes_per_gpu,
            reserve=reserve,
            batched_tokens=overrides.max_batched_tokens or defaults.max_batched_tokens,
            model_length_tokens=setting.model_length_tokens,
        )
        return plan_memory(request)

    def _try(self, option: EngineOption, layout: Layout, gpus_per_node: int) -> _Priced | Refusal:
        setting = self.setting
        case = self._case(option, layout, gpus_per_node)
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
                return Refusal(option, layout, "anchor", self._no_anchor(option, layout, selection))
        widths = resolve(layout, option.engine, is_moe=setting.card.is_moe)
        nodes_count = max(1, math.ceil(widths.gpus_count / gpus_per_node))
        anchor = selection.chosen if selection else None
        kv_dtype = setting.overrides.kv_dtype or (anchor.signature.kv_dtype if anchor else None) or "bf16"
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
                kv_dtype=kv_dtype,
                nodes_count=nodes_count,
                anchor=anchor,
                sibling=selection.sibling if selection else None,
                speculation=setting.overrides.speculation,
                fusions=setting.overrides.fusions,
            )
        )
        anchor_name = self._name_of(anchor) if anchor else None
        return _Priced(
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
        setting, overrides = self.setting, self.setting.overrides
        asked = (overrides.kv_dtype, overrides.attention_backend, overrides.moe_backend, overrides.partition)
        key = (option, layout, *asked)
        if key in self._selections:
            return self._selections[key]
        target = Target(
            accelerator=setting.accelerator.name,
            engine=option.engine.value,
            model=setting.card.name,
            tensor_parallel=layout.tensor_parallel,
            kv_dtype=overrides.kv_dtype,
            engine_version=option.version,
            image=option.image,
            partition=overrides.partition,
            attention_backend=overrides.attention_backend,
            moe_backend=overrides.moe_backend,
            speculates=False,
            expert_parallel=layout.expert_parallel,
            attention_data_parallel=layout.attention_data_parallel,
            prompt_tokens=setting.prompt_tokens,
        )
        self._selections[key] = select_anchor(target, list(setting.anchors.values()))
        return self._selections[key]

    def _no_anchor(self, option: EngineOption, layout: Layout, selection: Selection) -> str:
        target = f"{self.setting.card.name} on {option.engine.value} {self.setting.accelerator.name} {layout.label()}"
        return str(NoAnchorError(target, {name: list(why) for name, why in selection.refusals.items()}))

    def _name_of(self, anchor: Anchor) -> str:
        return min(name for name, other in self.setting.anchors.items() if other is anchor or other == anchor)

    def _of(self, shape: Shape) -> _Priced:
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
        return self._prediction(shape, priced, scheduler, concurrency, outcome)

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

    def deployment(
        self, shape: Shape, *, replicas_count: int = 1, routing: Routing = Routing.LEAST_LOADED
    ) -> Deployment:
        """Equal replicas with a prefix cache behind a router, for replaying a trace."""
        priced = self._of(shape)
        scheduler = replace(self.scheduler(shape), prefix_caching=True)
        pool = Pool(
            table=priced.cost.table(scheduler.max_running_requests),
            scheduler=scheduler,
            replicas_count=replicas_count,
            attention_dp=priced.widths.attention_dp,
            gpus_per_replica_count=shape.gpus_count,
        )
        return Deployment(pool, routing=routing)

    def run(
        self,
        shape: Shape,
        workload: Workload,
        *,
        replicas_count: int = 1,
        routing: Routing = Routing.LEAST_LOADED,
        seed: int = 0,
    ) -> Prediction:
        """`replicas_count` equal replicas behind a router under any workload, with every distribution. As `predict`."""
        priced, scheduler = self._of(shape), self.scheduler(shape)
        outcome = simulated_outcome(
            priced.cost,
            scheduler,
            attention_dp=priced.widths.attention_dp,
            gpus_per_replica_count=shape.gpus_count,
            replicas_count=replicas_count,
            routing=routing,
            workload=workload,
            seed=seed,
        )
        busiest = (
            math.ceil(outcome.mean_active_requests / replicas_count) if workload.clients is None else workload.clients
        )
        per_replica = max(1, math.ceil(busiest / replicas_count) if workload.clients is not None else busiest)
        found = self._prediction(shape, priced, scheduler, per_replica, outcome)
        return replace(found, gpus_count=shape.gpus_count * replicas_count, concurrency=workload.clients)

    def _prediction(
        self, shape: Shape, priced: _Priced, scheduler: SchedulerConfig, concurrency: int, outcome: Outcome
    ) -> Prediction:
        anchor = priced.selection.chosen if priced.selection else None
        share = math.ceil(concurrency / priced.widths.attention_dp)
        # What one rank can run at once: its cap, and whole requests that its pool holds.
        held = scheduler.kv_pool_tokens // (self.setting.prompt_tokens + self.setting.output_tokens)
        batch = max(1, min(share, scheduler.max_running_requests, held))
        is_queueing = share > batch
        distance = self._distance(priced, shape.layout, anchor, batch * priced.widths.attention_dp, is_queueing)
        calibration = interval_calibration()
        values = {
            "ttft": outcome.ttft.mean_s or 0.0,
            "tpot": (outcome.tpot.mean_s or 0.0) if outcome.tpot else 0.0,
            "throughput": outcome.throughput_tokens_per_s,
        }
        interval = {name: calibration.interval(name, values[name], distance) for name in METRICS}
        flags = [*priced.cost.flags, *(priced.selection.flags if priced.selection else ())]
        if priced.judgement.verdict is Verdict.UNVERIFIED:
            flags.append("legality-unverified")
        if is_queueing:
            flags.append("queueing")
        return Prediction(
            label=shape.layout.label(),
            gpus_count=shape.gpus_count,
            concurrency=concurrency,
            source=priced.source,
            flags=tuple(sorted(set(flags))),
            ttft=outcome.ttft,
            ttft_from_admission=outcome.ttft_from_admission,
            tpot=outcome.tpot,
            itl=outcome.itl,
            e2e=outcome.e2e,
            throughput_tokens_per_s=outcome.throughput_tokens_per_s,
            requests_per_s=outcome.requests_per_s,
            requests_count=outcome.requests_count,
            interval80=interval,
            hit_rates=outcome.hit_rates,
            queueing=outcome.queueing,
            preemptions_count=outcome.preemptions_count,
            kv_occupancy_frac=outcome.kv_occupancy_frac,
            memory=memory_document(priced.memory),
            step_breakdown=self._breakdown(priced, batch),
            mixed_step_frac=outcome.mixed_step_frac,
            mean_running=outcome.mean_running,
            key=(shape.option.engine.value, shape.option.version or "", shape.layout, concurrency),
        )

    def _distance(
        self, priced: _Priced, layout: Layout, anchor: Anchor | None, batch: int, is_queueing: bool
    ) -> Distance:
        if anchor is None:
            return Distance(width_doublings=UNANCHORED_DOUBLINGS, is_queueing=is_queueing)
        signature = anchor.signature
        ranks_to = priced.widths.attention_tp * priced.widths.attention_dp
        measured = [sweep.prompt_tokens for sweep in anchor.decode]
        largest = max(point.batch for sweep in anchor.decode for point in sweep.points)
        # A change of how ranks share the work (attention DP, EP) counts like a change of width of the same ratio.
        ratios = (
            ranks_to / signature.tensor_parallel,
            layout.expert_parallel / signature.expert_parallel,
            priced.widths.attention_dp / signature.attention_data_parallel,
        )
        return Distance(
            width_doublings=max(abs(math.log2(ratio)) for ratio in ratios),
            stage_doublings=math.log2(layout.pipeline_parallel),
            prompt_doublings=min(abs(math.log2(self.setting.prompt_tokens / length)) for length in measured),
            batch_doublings=max(0.0, math.log2(batch / largest)),
            is_queueing=is_queueing,
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
        assumed = (*memory.assumed, *self.setting.card.assumed, *self.setting.accelerator.assumed)
        return Source(
            mode="anchored" if anchor is not None else "simulate",
            anchor_name=anchor_name,
            anchor_digest=anchor.digest() if anchor is not None else None,
            laws=reasons,
            refusals=selection.refusals if selection else {},
            assumed=tuple(dict.fromkeys(assumed)),
        )

    def _breakdown(self, priced: _Priced, batch: int) -> dict[str, Any]:
        """One decode step at mid-output context and one prompt's prefill, seconds by law."""
        setting = self.setting
        context = setting.prompt_tokens + setting.output_tokens // 2
        window = priced.cost.window_tokens
        decode, parts = priced.cost.price(Step.of(contexts=[context] * batch, window_tokens=window))
        prefill, prefill_parts = priced.cost.price(Step.of(chunks=[(0, setting.prompt_tokens)]))
        return {
            "decode": {"batch": batch, "contextTokens": context, "seconds": decode, "parts": dict(parts)},
            "prefill": {"promptTokens": setting.prompt_tokens, "seconds": prefill, "parts": dict(prefill_parts)},
        }


def memory_document(memory: MemoryPlan) -> dict[str, Any]:
    """Memory figures in the words of `check`; unknown = null."""
    return {
        "weightBytesPerGpu": memory.weight_bytes_per_gpu,
        "kvPoolBytesPerGpu": memory.pool_bytes_per_gpu,
        "kvBytesPerTokenPerRank": memory.kv.bytes_per_token or None,
        "kvPoolTokensPerRank": memory.pool_tokens_per_rank,
        "kvPoolTokensPerEngine": memory.pool_tokens_per_engine,
        "activationBytes": memory.activation_bytes,
        "longestContextTokens": memory.longest_context_tokens,
        "concurrencyAtMaxModelLength": memory.concurrency_at_model_length,
    }
