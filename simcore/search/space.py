"""The space of one engine: legal values of every lever, a safe baseline, and the price of any configuration in it.

Whatever proposes a configuration (seeds, local search, a language model), it passes the same checks here and gets its
figures from the predictor. An illegal one comes back with its reason and without a figure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from simcore.anchors.select import fp8_kv_output_passed
from simcore.cards.kv_dtype import is_fp8_kv, kv_dtype_name
from simcore.cards.layout import Engine, Layout, resolve
from simcore.errors import InfeasibleError, InputError, UnknownNameError
from simcore.laws.fusions import ALL_FUSIONS, check_fusions, legal_fusions, load_fusions
from simcore.laws.speculation import Drafter
from simcore.legality import LegalityCase, Verdict, judge
from simcore.prediction.costs import Speculation, acceptance, has_quantised_activations
from simcore.prediction.engines import engine_defaults
from simcore.prediction.predictor import Mode, Overrides, Predictor, Setting
from simcore.prediction.result import Prediction
from simcore.prediction.shapes import EngineOption, Refusal, Shape
from simcore.search import objectives
from simcore.search.levers import Lever, Source, Value, lever, levers
from simcore.search.objectives import Reading, Slo
from simcore.search.plan import Candidate, candidate_of
from simcore.stepcost.fused import fusion_opportunities, fusion_scope

Configuration = Mapping[str, Value]
"""Lever names to values; a lever that is absent has its neutral value."""

WIDTHS = {
    "layout.tensorParallel": "tensor_parallel",
    "layout.pipelineParallel": "pipeline_parallel",
    "layout.expertParallel": "expert_parallel",
    "layout.attentionDataParallel": "attention_data_parallel",
    "layout.decodeContextParallel": "decode_context_parallel",
}
ENGINE_DEFAULT = "engine"
NO_FUSION = "none"
OPPORTUNITY_FRAC = 0.02
"""Fusions worth less of a decode step are not reported (paper App. J)."""
DRAFTERS = {"MTP": Drafter.MTP, "EAGLE3": Drafter.EAGLE3}


@dataclass(frozen=True)
class Cluster:
    """GPUs that the search may use."""

    gpus_per_node: int
    nodes_count: int
    gpu_budget_count: int


@dataclass(frozen=True)
class Trial:
    """One configuration, checked and, where legal, priced."""

    configuration: Mapping[str, Any]
    """The values that differ from the baseline; as proposed where they could not be read."""
    legal: bool
    reason: str
    """Why it is not legal; empty where it is."""
    score_value: float | None = None
    """The objective's figure, signed so that more is better."""
    figures: Mapping[str, float | None] = field(default_factory=dict)
    mode: str = ""
    flags: tuple[str, ...] = ()
    opportunities: Mapping[str, float] = field(default_factory=dict)
    """Fusions worth at least 2 % of the decode step: share of it that each saves."""
    candidate: Candidate | None = None
    miss_frac: float = 0.0
    """By how much a priced trial misses the latency budgets."""

    @property
    def miss_rank(self) -> tuple[float, int]:
        """Ascending, the nearer to the budgets first; of equals the one that takes fewer GPUs. Priced trials only."""
        assert self.candidate is not None  # noqa: S101
        return self.miss_frac, self.candidate.gpus_count

    @property
    def rank(self) -> tuple[Any, ...]:
        """Ascending, the better first; legal trials only. Ties: throughput per GPU, fewer GPUs, fewer changes."""
        assert self.score_value is not None and self.candidate is not None  # noqa: S101, PT018
        texts = tuple(sorted((name, str(value)) for name, value in self.configuration.items()))
        return (
            -self.score_value,
            -self.candidate.throughput_per_gpu_tokens_per_s,
            self.candidate.gpus_count,
            len(texts),
            texts,
        )


class Space:
    """All configurations of one engine for one question; prices are kept, so asking again is free."""

    def __init__(
        self,
        setting: Setting,
        option: EngineOption,
        cluster: Cluster,
        *,
        concurrencies: tuple[int, ...],
        objective: str,
        slo: Slo | None = None,
        builds_fusions: bool = False,
        predictor: Predictor | None = None,
    ) -> None:
        """`builds_fusions`: an engine with fused kernels can be built; else fusions are reported, not chosen.

        `predictor`: one of the same setting whose step costs are taken over.
        """
        self.setting, self.option, self.cluster = setting, option, cluster
        self.builds_fusions = builds_fusions
        self.objective = objectives.objective(objective)
        self.slo = slo or Slo()
        self.concurrencies = tuple(sorted(set(concurrencies)))
        self._predictor = predictor or Predictor(setting)
        self._predictors: dict[Overrides, Predictor] = {setting.overrides: self._predictor}
        self._predictions: dict[tuple[Overrides, Layout, int], Prediction] = {}
        self._trials: dict[tuple[tuple[str, Value], ...], Trial] = {}

    def with_slo(self, slo: Slo) -> Space:
        """The same space with other latency budgets; what was priced is shared."""
        other = Space(
            self.setting,
            self.option,
            self.cluster,
            concurrencies=self.concurrencies,
            objective=self.objective.name,
            slo=slo,
            builds_fusions=self.builds_fusions,
            predictor=self._predictor,
        )
        other._predictors, other._predictions = self._predictors, self._predictions
        return other

    @property
    def simulations_count(self) -> int:
        """Simulated runs so far."""
        return len(self._predictions)

    @cached_property
    def layouts(self) -> tuple[Layout, ...]:
        """Legal layouts within the budget, narrowest first; memory is not judged yet."""
        cluster = self.cluster
        found = self._predictor.layouts(self.option, cluster.gpus_per_node, cluster.nodes_count)
        return tuple(
            sorted((one for one in found if self.gpus_count(one) <= cluster.gpu_budget_count), key=self._width)
        )

    def _width(self, layout: Layout) -> tuple[int, Layout]:
        return self.gpus_count(layout), layout

    def gpus_count(self, layout: Layout) -> int:
        """GPUs of one replica."""
        return resolve(layout, self.option.engine, is_moe=self.setting.card.is_moe).gpus_count

    @cached_property
    def neutral(self) -> Configuration:
        """The value of each lever where nothing is said; the engine's own numbers where a lever says `engine`."""
        defaults = engine_defaults(self.option.engine)
        own = {
            "maxRunningRequests": defaults.max_running_requests,
            "maxBatchedTokens": defaults.max_batched_tokens,
            "chunkTokens": defaults.chunk_tokens,
            "blockSize": defaults.block_tokens,
        }
        return {name: own.get(name, one.neutral) for name, one in levers().items()}

    @cached_property
    def legal_values(self) -> Mapping[str, tuple[Value, ...]]:
        """What each of the 36 levers may be here, the neutral value among it."""
        return {name: self._values(one) for name, one in levers().items()}

    def _values(self, one: Lever) -> tuple[Value, ...]:
        if one.held:
            return (one.neutral,)
        if one.rule is Source.LAYOUT:
            return tuple(sorted({self.widths(layout)[one.name] for layout in self.layouts} | {1}))
        if one.rule is Source.CLUSTER:
            return tuple(self._replica_counts())
        if one.rule is Source.LOAD:
            return self.concurrencies
        if one.rule is Source.ANCHORS:
            return (one.neutral, *self._measured(one.name))
        if one.rule is Source.FUSIONS:
            return self._fusion_values()
        values = one.values(self.option.engine, self.version)
        if one.neutral == ENGINE_DEFAULT:
            values = tuple(dict.fromkeys((self.neutral[one.name], *values[1:])))
        if one.name == "kvDtype":
            # Never FP8 of its own accord: its outputs must have passed a harvest's check on this GPU (public case A24).
            measured = {
                kv_dtype_name(anchor.signature.kv_dtype, card=self.setting.card): fp8_kv_output_passed(anchor)
                for anchor in sorted(self._own_anchors(), key=fp8_kv_output_passed)
                if anchor.signature.kv_dtype is not None
            }
            values = tuple(
                value
                for value in values
                if value == one.neutral or (value in measured and (measured[value] or not is_fp8_kv(str(value))))
            )
        if one.name == "speculation.method":
            values = tuple(value for value in values if value == one.neutral or self._has_drafter(str(value)))
        if one.name == "speculation.draftTokens" and len(self._values(lever("speculation.method"))) == 1:
            values = (one.neutral,)
        return values

    @property
    def version(self) -> str | None:
        """The stated engine version, else the one that all anchors of the engine share."""
        versions = {anchor.signature.engine_version for anchor in self._own_anchors()}
        return self.option.version or (versions.pop() if len(versions) == 1 else None)

    def _own_anchors(self) -> list[Any]:
        name = self.option.engine.value.lower()
        return [a for a in self.setting.anchors.values() if a.signature.engine.lower() == name]

    def _measured(self, name: str) -> tuple[str, ...]:
        key = {"attentionBackend": "attention_backend", "moeBackend": "moe_backend"}[name]
        return tuple(sorted({getattr(a.signature, key) for a in self._own_anchors()} - {None}))

    def _replica_counts(self) -> list[int]:
        """Powers of two, and the most replicas of each layout that the budget holds."""
        budget = self.cluster.gpu_budget_count
        most = {budget // self.gpus_count(layout) for layout in self.layouts} | {1}
        return sorted({1 << power for power in range(max(most).bit_length()) if 1 << power <= max(most)} | most)

    def _fusion_values(self) -> tuple[str, ...]:
        if not self.builds_fusions:
            return (NO_FUSION,)
        quantised, is_moe = has_quantised_activations(self.setting.card), self.setting.card.is_moe
        names = legal_fusions(quantised_activations=quantised, is_moe=is_moe)
        safe = legal_fusions(quantised_activations=False, is_moe=is_moe)
        return tuple(dict.fromkeys((NO_FUSION, ALL_FUSIONS, "+".join(safe), *names)))

    def _has_drafter(self, method: str) -> bool:
        """MTP needs the heads in the checkpoint; every method a measured acceptance (public case B07)."""
        card = self.setting.card
        if method == "MTP" and not card.mtp_layers_count:
            return False
        try:
            acceptance(card, DRAFTERS[method])
        except UnknownNameError:
            return False
        return True

    @cached_property
    def baseline(self) -> Configuration:
        """Safe start: the widest plain TP of a node that can run, one replica, the middle of the offered loads.

        Raises InfeasibleError when no layout can run, with the reasons.
        """
        plain = [one for one in self.layouts if one == Layout(tensor_parallel=one.tensor_parallel)]
        reasons: list[str] = []
        # Any layout may stand in where no plain width fits, the widest first.
        for layout in (*reversed(plain), *reversed([one for one in self.layouts if one not in plain])):
            shape = self._predictor.shape(self.option, layout, gpus_per_node=self.cluster.gpus_per_node)
            if isinstance(shape, Shape):
                load = self.concurrencies[(len(self.concurrencies) - 1) // 2]
                values = {**self.widths(layout), "load.concurrency": load}
                return {name: value for name, value in sorted(values.items()) if value != self.neutral[name]}
            reasons.append(f"{shape.rule}: {shape.detail}")
        raise InfeasibleError("layout", "; ".join(reasons) or "no legal layout fits the GPU budget")

    def widths(self, layout: Layout) -> dict[str, int]:
        """Lever values of a layout; attention DP is vLLM's data parallelism (public case B03)."""
        found = {name: int(getattr(layout, key)) for name, key in WIDTHS.items()}
        if self.option.engine is Engine.VLLM:
            found["layout.attentionDataParallel"] = layout.data_parallel
        return found

    def layout_of(self, configuration: Configuration) -> Layout:
        """The layout that a completed configuration states."""
        widths = {key: int(configuration[name]) for name, key in WIDTHS.items()}
        if self.option.engine is Engine.VLLM:
            widths["data_parallel"], widths["attention_data_parallel"] = widths["attention_data_parallel"], 1
        return Layout(**widths)

    def complete(self, partial: object) -> dict[str, Value]:
        """All 36 values: `partial` over the baseline over neutral. Raises InputError for an illegal value."""
        if not isinstance(partial, Mapping):
            raise InputError("configuration", partial, "be an object of lever names and values")
        found = {**self.neutral, **self.baseline}
        # In a fixed order, so that the first reason does not depend on how the proposal was written.
        for name, value in sorted(partial.items(), key=lambda item: str(item[0])):
            one = lever(str(name)[:80])
            found[one.name] = self._checked(one, value)
        return found

    def _checked(self, one: Lever, value: object) -> Value:
        legal = self.legal_values[one.name]
        for known in legal:
            if type(known) is type(value) and known == value:
                return known
        if (
            self.builds_fusions
            and one.rule is Source.FUSIONS
            and isinstance(value, str)
            and set(value.split("+")) <= set(load_fusions())
        ):
            card = self.setting.card
            quantised = has_quantised_activations(card)
            names = check_fusions(value.split("+"), quantised_activations=quantised, is_moe=card.is_moe)
            return "+".join(sorted(names))
        shown = ", ".join(map(str, legal))
        raise InputError(one.name, value, f"be one of {shown}", one.held)

    def _changes(self, configuration: Configuration) -> dict[str, Value]:
        """What differs from the baseline: the partial configuration that gives `configuration` again."""
        start = {**self.neutral, **self.baseline}
        return {name: value for name, value in sorted(configuration.items()) if value != start[name]}

    def structural_reasons(self, configuration: Configuration) -> tuple[str, ...]:
        """What is wrong with a completed configuration before memory and time are looked at; empty = nothing."""
        layout = self.layout_of(configuration)
        reasons = []
        if layout not in self.layouts:
            reasons.append(self._why_not(layout))
        replicas, clients = int(configuration["replicas"]), int(configuration["load.concurrency"])
        gpus = replicas * self.gpus_count(layout)
        if gpus > self.cluster.gpu_budget_count:
            reasons.append(f"gpu-budget: needs {gpus} GPUs of a budget of {self.cluster.gpu_budget_count}")
        if replicas > clients:
            reasons.append(f"replicas: {replicas} replicas for {clients} clients leave some idle")
        if (configuration["speculation.method"] == "none") != (configuration["speculation.draftTokens"] == 0):
            reasons.append("speculation: a method needs draftTokens of at least 1, and draftTokens need a method")
        return tuple(reasons)

    def _why_not(self, layout: Layout) -> str:
        case = LegalityCase(
            card=self.setting.card,
            engine=self.option.engine,
            layout=layout,
            version=self.version,
            accelerator=self.setting.accelerator,
            gpus_per_node=self.cluster.gpus_per_node,
            gpu_budget=self.cluster.gpu_budget_count,
        )
        judgement = judge(case)
        if judgement.verdict is Verdict.ILLEGAL:
            return "legality: " + "; ".join(f"{v.tensor}: {v.detail}" for v in judgement.violations)
        return f"layout: {layout.label()} is not among the layouts of this search"

    def evaluate(self, partial: object) -> Trial:
        """Check and price `partial` over the baseline. Whatever is proposed, nothing is raised: the trial says why."""
        try:
            configuration = self.complete(partial)
        except InputError as error:
            return Trial(_readable(partial), False, str(error))
        short = self._changes(configuration)
        key = tuple(short.items())
        if key not in self._trials:
            self._trials[key] = self._evaluate(configuration, short)
        return self._trials[key]

    def _evaluate(self, configuration: Configuration, short: dict[str, Value]) -> Trial:
        reasons = self.structural_reasons(configuration)
        if reasons:
            return Trial(short, False, "; ".join(reasons))
        layout = self.layout_of(configuration)
        try:
            overrides = self._overrides(configuration)
            predictor = self._predictors.setdefault(overrides, self._predictor.with_overrides(overrides))
            shape = predictor.shape(self.option, layout, gpus_per_node=self.cluster.gpus_per_node)
            if isinstance(shape, Refusal):
                return Trial(short, False, f"{shape.rule}: {shape.detail}")
            predict = self._predict(predictor, overrides)
            candidate = candidate_of(
                shape, int(configuration["replicas"]), int(configuration["load.concurrency"]), predict
            )
            candidate = replace(candidate, overrides=overrides, settings=_settings(short))
            reading = Reading(
                candidate,
                predictor.facts(shape),
                self.setting.prompt_tokens,
                self.setting.output_tokens,
                self.slo,
                lambda clients: predict(shape, clients),
            )
            value = objectives.figure(self.objective.name, reading)
        except (InputError, InfeasibleError) as error:
            return Trial(short, False, str(error))
        figures = {**_main_figures(candidate), self.objective.name: value}
        misses = self.slo.misses(candidate.prediction)
        if value is None:
            misses = (*misses, f"{self.objective.name} has no figure here")
        return Trial(
            short,
            not misses,
            "; ".join(misses),
            None if misses or value is None else self.objective.score(value),
            figures,
            candidate.prediction.source.mode,
            candidate.prediction.flags,
            self._opportunities(candidate, configuration),
            candidate,
            self.slo.miss_frac(candidate.prediction),
        )

    def _overrides(self, configuration: Configuration) -> Overrides:
        def word(name: str) -> str | None:
            value = str(configuration[name])
            return None if value == lever(name).neutral else value

        batched, chunk = int(configuration["maxBatchedTokens"]), int(configuration["chunkTokens"])
        if self.option.engine is not Engine.SGLANG:
            chunk = batched  # vLLM and ATOM chunk by their token budget
        method, depth = str(configuration["speculation.method"]), int(configuration["speculation.draftTokens"])
        fusions = str(configuration["fusions"])
        kv_is_free = self.setting.mode is not Mode.ANCHORED or len(self.legal_values["kvDtype"]) > 1
        return Overrides(
            kv_dtype=str(configuration["kvDtype"]) if kv_is_free else None,
            memory_frac=int(configuration["memoryPermille"]) / 1000,
            block_tokens=int(configuration["blockSize"]),
            max_running_requests=int(configuration["maxRunningRequests"]),
            max_batched_tokens=batched,
            chunk_tokens=chunk,
            max_model_length_tokens=self.setting.overrides.max_model_length_tokens,
            kv_pool_bytes_per_gpu=self.setting.overrides.kv_pool_bytes_per_gpu,
            attention_backend=word("attentionBackend"),
            moe_backend=word("moeBackend"),
            partition=self.setting.overrides.partition,
            speculation=None if method == "none" else Speculation(DRAFTERS[method], depth),
            fusions=() if fusions == NO_FUSION else tuple(fusions.split("+")),
        )

    def _predict(self, predictor: Predictor, overrides: Overrides) -> Callable[[Shape, int], Prediction]:
        def predict(shape: Shape, clients: int) -> Prediction:
            key = (overrides, shape.layout, clients)
            if key not in self._predictions:
                self._predictions[key] = predictor.predict(shape, clients)
            return self._predictions[key]

        return predict

    def _opportunities(self, candidate: Candidate, configuration: Configuration) -> Mapping[str, float]:
        if configuration["fusions"] != NO_FUSION:
            return {}
        card, decode = self.setting.card, candidate.prediction.step_breakdown["decode"]
        widths = resolve(candidate.shape.layout, self.option.engine, is_moe=card.is_moe)
        return fusion_opportunities(
            fusion_scope(card, widths, self.setting.accelerator),
            quantised_activations=has_quantised_activations(card),
            step_s=decode["seconds"],
            step_tokens=decode["batch"],
            floor_frac=OPPORTUNITY_FRAC,
        )


def _settings(changes: Mapping[str, Value]) -> str:
    """Changed levers that are neither layout, replicas nor load: those a candidate states itself."""
    own = {*WIDTHS, "replicas", "load.concurrency"}
    return " ".join(f"{name}={value}" for name, value in sorted(changes.items()) if name not in own)


def _main_figures(candidate: Candidate) -> dict[str, float | None]:
    prediction = candidate.prediction
    return {
        "ttft": prediction.ttft_s,
        "tpot": prediction.tpot_s if prediction.tpot else None,
        "decodeThroughputPerGpu": candidate.throughput_per_gpu_tokens_per_s,
        "gpus": float(candidate.gpus_count),
    }


def _readable(partial: object) -> dict[str, Any]:
    """A proposal that could not be read, short enough for a ledger."""
    if not isinstance(partial, Mapping):
        return {"unreadable": repr(partial)[:200]}
    kept = list(partial.items())[: len(levers())]
    return {str(name)[:80]: value if type(value) is int else str(value)[:80] for name, value in kept}
