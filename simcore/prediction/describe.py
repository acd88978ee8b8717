"""From a simulated run of a priced replica to a prediction: interval, flags, source, where the step's time goes."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from simcore.anchors.schema import Anchor
from simcore.anchors.select import CONCURRENCY_REACH, Flag, Selection, fp8_kv_output_passed
from simcore.cards.kv_dtype import is_fp8_kv
from simcore.cards.layout import Layout, ResolvedLayout
from simcore.des.config import SchedulerConfig
from simcore.legality import Judgement, Verdict
from simcore.memory import MemoryPlan
from simcore.prediction.engines import EngineDefaults
from simcore.prediction.intervals import Distance, interval_calibration
from simcore.prediction.outcome import Outcome
from simcore.prediction.result import METRICS, Prediction, Source
from simcore.prediction.shapes import Shape
from simcore.stepcost.step import Step, StepCost

UNMEASURED: Final = frozenset(
    (
        "unverified-signature",
        "card-weights-differ",
        "modelled-drafter",
        "acceptance-borrowed",
        "acceptance-extrapolated",
    )
)
"""Flags of what the anchor does not hold: each widens the interval as one doubling of the width does. Assumed."""
UNANCHORED_DOUBLINGS: Final = 3.0
"""Assumed distance of a prediction without an anchor: as far as TP1 to TP8, so that its interval says so."""
QUEUEING_FRAC: Final = 0.05
"""Assumed: where prefixes are shared, requests that wait longer than this share of their latency are a queue. Without
sharing, what the pool holds decides."""


@dataclass(frozen=True)
class Priced:
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

    @property
    def anchor(self) -> Anchor | None:
        return self.selection.chosen if self.selection else None


@dataclass(frozen=True)
class Served:
    """A priced shape as it serves: the scheduler of a rank, mean lengths, and requests in flight per replica."""

    shape: Shape
    priced: Priced
    scheduler: SchedulerConfig
    prompt_tokens: int
    output_tokens: int
    concurrency: int
    has_host_tier: bool = False

    @property
    def batch(self) -> int:
        """What one rank can run at once: its share, its cap, and whole requests that its pool holds."""
        held = self.scheduler.kv_pool_tokens // (self.prompt_tokens + self.output_tokens)
        return max(1, min(self.rank_share, self.scheduler.max_running_requests, held))

    @property
    def rank_share(self) -> int:
        """Requests in flight per attention-DP rank."""
        return math.ceil(self.concurrency / self.priced.widths.attention_dp)

    @property
    def _replica_batch(self) -> int:
        return self.batch * self.priced.widths.attention_dp

    def is_queueing(self, outcome: Outcome) -> bool:
        """Whether requests wait for a place."""
        if not self.scheduler.prefix_caching:
            return self.rank_share > self.batch
        return outcome.queueing["meanQueueSeconds"] > QUEUEING_FRAC * (outcome.e2e.mean_s or 0.0)

    def flags(self, outcome: Outcome) -> tuple[str, ...]:
        """Stable words: how far the step is from what was measured, and what the load does."""
        priced = self.priced
        found = [*priced.cost.flags, *(priced.selection.flags if priced.selection else ())]
        if priced.anchor is not None:
            reach = self._replica_batch / _largest_batch(priced.anchor)
            found += [Flag.BATCH_RANGE.value] if reach > 1 else []
            found += [Flag.CONCURRENCY.value] if reach > CONCURRENCY_REACH else []
        if priced.judgement.verdict is Verdict.UNVERIFIED:
            found.append("legality-unverified")
        if is_fp8_kv(priced.kv_dtype) and not (priced.anchor and fp8_kv_output_passed(priced.anchor)):
            found.append(Flag.FP8_KV.value)  # whoever chose it: the user, the checkpoint, an anchor or a search
        if self.is_queueing(outcome):
            found.append("queueing")
        if self.scheduler.prefix_caching:
            found.append("prefixes-simulated")
        if self.has_host_tier:
            found.append("host-tier-modelled")
        return tuple(sorted(set(found)))

    def distance(self, outcome: Outcome) -> Distance:
        """How far the prediction is from its anchor."""
        priced, layout, anchor = self.priced, self.shape.layout, self.priced.anchor
        of_load = partial(
            Distance,
            is_queueing=self.is_queueing(outcome),
            shares_prefixes=self.scheduler.prefix_caching,
            has_host_tier=self.has_host_tier,
        )
        if anchor is None:
            return of_load(width_doublings=UNANCHORED_DOUBLINGS)
        measured = [sweep.prompt_tokens for sweep in anchor.decode]
        reach = self._replica_batch / _largest_batch(anchor)
        unmeasured = UNMEASURED.intersection(self.flags(outcome))
        width = max(abs(math.log2(ratio)) for ratio in _width_ratios(layout, priced.widths, anchor))
        # Assumed: the corpora hold no batches beyond the reach, so each doubling past it counts as one of the width.
        past_reach = max(0.0, math.log2(reach / CONCURRENCY_REACH))
        return of_load(
            width_doublings=max(width, float(len(unmeasured))) + past_reach,
            stage_doublings=math.log2(layout.pipeline_parallel),
            prompt_doublings=min(abs(math.log2(self.prompt_tokens / length)) for length in measured),
            batch_doublings=max(0.0, math.log2(reach)),
            residual_frac=_residuals(anchor),
        )

    def decode_step(self) -> dict[str, Any]:
        """One decode step at mid-output context, seconds by law."""
        context, window = self.prompt_tokens + self.output_tokens // 2, self.priced.cost.window_tokens
        seconds, parts = self.priced.cost.price(Step.of(contexts=[context] * self.batch, window_tokens=window))
        return {"batch": self.batch, "contextTokens": context, "seconds": seconds, "parts": dict(parts)}

    def prefill_step(self) -> dict[str, Any]:
        """One prompt's prefill, seconds by law."""
        seconds, parts = self.priced.cost.price(Step.of(chunks=[(0, self.prompt_tokens)]))
        return {"promptTokens": self.prompt_tokens, "seconds": seconds, "parts": dict(parts)}


def _largest_batch(anchor: Anchor) -> int:
    return max(point.batch for sweep in anchor.decode for point in sweep.points)


def _residuals(anchor: Anchor) -> dict[str, float]:
    """How well an anchor that was not harvested gives back what it was made from; prefill's counts for TTFT."""
    kept = anchor.provenance.residuals
    return {**kept, "ttft": kept["prefill"]} if "prefill" in kept else dict(kept)


def _width_ratios(layout: Layout, widths: ResolvedLayout, anchor: Anchor) -> tuple[float, ...]:
    """A change of how ranks share the work (attention DP, EP) counts like a change of width of the same ratio."""
    signature = anchor.signature
    return (
        widths.attention_tp * widths.attention_dp / signature.tensor_parallel,
        layout.expert_parallel / signature.expert_parallel,
        widths.attention_dp / signature.attention_data_parallel,
    )


def prediction_of(served: Served, outcome: Outcome) -> Prediction:
    """Equal replicas of one shape; the GPUs are those of one."""
    shape = served.shape
    return _prediction(
        outcome,
        served.distance(outcome),
        label=shape.layout.label(),
        gpus_count=shape.gpus_count,
        concurrency=served.concurrency,
        source=served.priced.source,
        flags=served.flags(outcome),
        memory=memory_document(served.priced.memory),
        step_breakdown={"decode": served.decode_step(), "prefill": served.prefill_step()},
        key=(shape.option.engine.value, shape.option.version or "", shape.layout, served.concurrency),
    )


def split_prediction(
    prefill: Served, prefill_replicas: int, decode: Served, decode_replicas: int, outcome: Outcome
) -> Prediction:
    """A prefill and a decode pool; the interval is that of the side that is farther from its anchor.

    Prefixes and a host tier are the prefill side's.
    """
    ours, theirs = prefill.shape, decode.shape
    label = f"{prefill_replicas} x {ours.layout.label()} prefill + {decode_replicas} x {theirs.layout.label()} decode"
    first = prefill.distance(outcome)
    far = max((first, decode.distance(outcome)), key=lambda d: (d.width_doublings, d.batch_doublings))
    distance = replace(
        far,
        is_disaggregated=True,
        is_queueing=prefill.is_queueing(outcome) or decode.is_queueing(outcome),
        shares_prefixes=first.shares_prefixes,
        has_host_tier=first.has_host_tier,
    )
    return _prediction(
        outcome,
        distance,
        label=label,
        gpus_count=ours.gpus_count * prefill_replicas + theirs.gpus_count * decode_replicas,
        concurrency=None,
        source=_both(prefill.priced.source, decode.priced.source),
        flags=tuple(sorted({*prefill.flags(outcome), *decode.flags(outcome)})),
        memory={"prefill": memory_document(prefill.priced.memory), "decode": memory_document(decode.priced.memory)},
        step_breakdown={"decode": decode.decode_step(), "prefill": prefill.prefill_step()},
        key=(ours.option.engine.value, ours.option.version or "", ours.layout, theirs.layout),
    )


def _both(prefill: Source, decode: Source) -> Source:
    """The decode side's anchor is named first: it prices most of the time."""
    names = [name for name in dict.fromkeys((decode.anchor_name, prefill.anchor_name)) if name is not None]
    digests = [text for text in dict.fromkeys((decode.anchor_digest, prefill.anchor_digest)) if text is not None]
    sides = (("prefill", prefill), ("decode", decode))
    return Source(
        mode="anchored" if prefill.mode == decode.mode == "anchored" else "simulate",
        anchor_name=", ".join(names) or None,
        anchor_digest=", ".join(digests) or None,
        laws={f"{side}.{name}": text for side, source in sides for name, text in source.laws.items()},
        refusals={**prefill.refusals, **decode.refusals},
        assumed=tuple(dict.fromkeys((*prefill.assumed, *decode.assumed))),
    )


def _prediction(outcome: Outcome, distance: Distance, **words: Any) -> Prediction:
    calibration = interval_calibration()
    values = {
        "ttft": outcome.ttft.mean_s or 0.0,
        "tpot": (outcome.tpot.mean_s or 0.0) if outcome.tpot else 0.0,
        "throughput": outcome.throughput_tokens_per_s,
    }
    return Prediction(
        ttft=outcome.ttft,
        ttft_from_admission=outcome.ttft_from_admission,
        tpot=outcome.tpot,
        itl=outcome.itl,
        e2e=outcome.e2e,
        throughput_tokens_per_s=outcome.throughput_tokens_per_s,
        requests_per_s=outcome.requests_per_s,
        requests_count=outcome.requests_count,
        interval80={name: calibration.interval(name, values[name], distance) for name in METRICS},
        hit_rates=outcome.hit_rates,
        queueing=outcome.queueing,
        preemptions_count=outcome.preemptions_count,
        kv_occupancy_frac=outcome.kv_occupancy_frac,
        mean_kv_occupancy_frac=outcome.mean_kv_occupancy_frac,
        mixed_step_frac=outcome.mixed_step_frac,
        mean_running=outcome.mean_running,
        **words,
    )


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
