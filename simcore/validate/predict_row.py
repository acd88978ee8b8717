"""One target row answered from a fitted series: colocated engines, pipelines, disaggregated pools."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from simcore.cards.layout import Layout
from simcore.cards.library import known_model, load_accelerator_card
from simcore.errors import UnknownNameError
from simcore.laws.handoff import HandoffBackend, handoff_link, handoff_time
from simcore.prediction.intervals import Distance
from simcore.prediction.steady import ClosedLoop, closed_loop, first_wave_factor, two_pools
from simcore.stepcost.features import LayoutFeatures
from simcore.validate.cells import Lengths, Shape
from simcore.validate.corpus import CorpusRow, PoolSpec
from simcore.validate.layout_fit import FittedLayout, fixed_share, full_pass
from simcore.validate.project import Projection
from simcore.validate.series import SeriesModel, pool_tokens
from simcore.validate.stages import Stages
from simcore.validate.waits import Traffic, known_engine, simulated_waits

UNTIMED_TTFT_FRAC = 0.5
"""Median TTFT error of layouts whose own TTFTs are hidden or all queues: docs/generated/accuracy-stress.md."""


@dataclass(frozen=True)
class RowPrediction:
    """Predicted means of one row, what they rest on and what was assumed."""

    tpot_s: float
    ttft_s: float
    throughput_tokens_per_s: float
    distance: Distance
    flags: tuple[str, ...]
    anchor: str


def blind(row: CorpusRow) -> CorpusRow:
    """The row without its measures: all that a prediction may see."""
    return replace(row, ttft_s=None, tpot_s=None, throughput_tokens_per_s=None, samples_count=None)


def predict_row(model: SeriesModel, row: CorpusRow) -> RowPrediction:
    """Means of `row` from the anchors of its series. The row's measures are not read."""
    row = blind(row)
    if row.prefill_pool is not None and row.decode_pool is not None:
        return _disaggregated(model, row, row.prefill_pool, row.decode_pool)
    return _colocated(model, row)


@dataclass(frozen=True)
class _Traffic:
    """Served lengths of a row."""

    lengths: Lengths
    shape: Shape
    prompt_tokens: float
    output_tokens: float

    @classmethod
    def of(cls, model: SeriesModel, row: CorpusRow) -> _Traffic:
        lengths = model.lengths_of(row)
        shape = (row.prompt_tokens, row.output_tokens)
        return cls(lengths, shape, shape[0] * lengths.mean_factor, max(shape[1] * lengths.mean_factor, 1.0))

    @property
    def context_tokens(self) -> float:
        return self.prompt_tokens + self.output_tokens / 2.0


def _colocated(model: SeriesModel, row: CorpusRow) -> RowPrediction:
    projection, known = model.projection(row, row.layout)
    traffic = _Traffic.of(model, row)
    fitted, layout = projection.fitted, row.layout
    copies = layout.data_parallel / known.data_parallel
    clients = max(row.concurrency / copies, 1.0)
    capacity = model.capacity(projection)
    stages_count = layout.pipeline_parallel
    cap = capacity.running_cap(traffic.context_tokens) * stages_count
    batch = min(clients, cap)
    waits = _waits(projection, traffic, row.engine, batch)
    gaps = max(traffic.output_tokens - 1.0, 1.0)
    prefill, host_s = projection.prefill, fitted.host_s
    features = projection.features
    share = fixed_share(features, traffic.prompt_tokens, batch, gaps) if features is not None else 1.0
    stages = Stages.of(stages_count, batch, features)
    step_s = projection.step_s(stages.micro_batch, traffic.context_tokens, traffic.shape)
    step_s += stages_count * stages.added_s(stages.micro_batch)
    added_s = stages.added_s(traffic.prompt_tokens)
    prefill_s = prefill.seconds(traffic.prompt_tokens, share) / stages_count + share * added_s
    # Passes follow each other a stage apart: the first takes the whole depth, each other one a stage's time.
    in_pass = min(waits, max(full_pass(traffic.prompt_tokens), 1.0))
    part_s = prefill.seconds(traffic.prompt_tokens) / stages_count
    host_s += (stages_count - 1) * (part_s * in_pass + added_s)
    loop = closed_loop(
        clients=clients,
        running_cap=cap,
        output_tokens=traffic.output_tokens,
        step_s=step_s,
        prefill_s=prefill_s,
        host_s=host_s,
        wait_s=waits * (part_s + added_s),
    )
    distance = _distance(fitted, known, layout, traffic, stages.micro_batch, is_queueing=clients > cap)
    flags = _flags(projection, known, layout, traffic, distance, row)
    return _prediction(loop, copies, traffic, distance, flags, known)


def _waits(projection: Projection, traffic: _Traffic, engine: str, clients: float) -> float:
    """Prefills in a mean TTFT: simulated with the projected steps, corrected by what the anchor's cells measured."""
    features = projection.features
    simulated = simulated_waits(
        engine,
        Traffic(max(round(clients), 1), *traffic.shape, traffic.lengths.range_ratio),
        step_s=lambda batch: projection.step_s(batch, traffic.context_tokens, traffic.shape),
        prefill=projection.prefill,
        shared_frac=0.0 if features is None else 1.0 - features.unread_frac(clients),
    )
    return projection.fitted.waits_at(
        clients, traffic.shape, is_drawn=traffic.lengths.is_drawn, simulated_count=simulated
    )


def _disaggregated(model: SeriesModel, row: CorpusRow, prefill: PoolSpec, decode: PoolSpec) -> RowPrediction:
    traffic = _Traffic.of(model, row)
    to_prefill, _ = model.projection(row, prefill.layout)
    to_decode, known = model.projection(row, decode.layout)
    prefill_count, decode_count = prefill.replicas_count or 1, decode.replicas_count or 1
    prefill_s = to_prefill.prefill.seconds(traffic.prompt_tokens)
    cap = model.capacity(to_decode).running_cap(traffic.context_tokens) * decode_count
    handoff_s = _handoff_s(to_decode.features, traffic.prompt_tokens)

    def step_s(requests: float) -> float:
        return to_decode.step_s(max(requests / decode_count, 1.0), traffic.context_tokens, traffic.shape)

    loop = two_pools(
        clients=float(row.concurrency),
        decode_cap=cap,
        output_tokens=traffic.output_tokens,
        step_s=step_s,
        prefill_s=prefill_s,
        prefill_replicas=prefill_count,
        host_s=to_prefill.fitted.host_s + handoff_s,
        first_wave=first_wave_factor(row.concurrency),
    )
    batch = loop.running / decode_count
    distance = _distance(to_decode.fitted, known, decode.layout, traffic, batch, is_queueing=False)
    unknown = prefill.replicas_count is None or decode.replicas_count is None
    distance = replace(distance, is_disaggregated=True, has_unknown_pools=unknown)
    flags = _flags(to_decode, known, decode.layout, traffic, distance, row)
    if unknown:
        flags = (*flags, "pool-counts-unknown-one-each-assumed")
    return _prediction(loop, 1, traffic, distance, flags, known)


def _handoff_s(features: LayoutFeatures | None, prompt_tokens: float) -> float:
    """KV of one prompt over the link of the prefill engine's GPUs; MoRI's measured constants, the default on AMD."""
    if features is None:
        return 0.0
    link = handoff_link(HandoffBackend.MORI, layers_count=features.layers_count)
    cache_bytes = features.stored_context_bytes_per_token() * prompt_tokens
    return float(
        handoff_time(
            cache_bytes=cache_bytes,
            exposed_frac=link.exposed_frac,
            floor_s=link.floor_s,
            bytes_per_s=link.bytes_per_s,
        )
    )


def _prediction(
    loop: ClosedLoop, copies: float, traffic: _Traffic, distance: Distance, flags: tuple[str, ...], known: Layout
) -> RowPrediction:
    tokens_per_s = copies * loop.requests_per_s * traffic.output_tokens / traffic.lengths.drain_factor
    return RowPrediction(loop.tpot_s, loop.ttft_s, tokens_per_s, distance, flags, known.label())


def _distance(
    fitted: FittedLayout, known: Layout, layout: Layout, traffic: _Traffic, batch: float, *, is_queueing: bool
) -> Distance:
    shapes = {cell.shape for cell in fitted.cells}
    prompt = min(abs(math.log2(shape[0] / traffic.shape[0])) for shape in shapes)
    output = min(abs(math.log2(shape[1] / traffic.shape[1])) for shape in shapes)
    # A change of how ranks share the work counts like a change of width of the same ratio, as in plans.
    ratios = (
        known.tensor_parallel / layout.tensor_parallel,
        known.expert_parallel / layout.expert_parallel,
        known.attention_data_parallel / layout.attention_data_parallel,
        known.data_parallel / layout.data_parallel,
    )
    return Distance(
        width_doublings=max(abs(math.log2(ratio)) for ratio in ratios),
        stage_doublings=abs(math.log2(known.pipeline_parallel / layout.pipeline_parallel)),
        prompt_doublings=prompt,
        output_doublings=output,
        batch_doublings=fitted.gap_doublings(batch),
        is_queueing=is_queueing,
        residual_frac={} if fitted.is_timed else {"ttft": UNTIMED_TTFT_FRAC},
        is_borrowed=fitted.features is not None and fitted.features.is_borrowed,
    )


def _missing_cards(row: CorpusRow) -> list[str]:
    """Which of the three things that cards are found by has none."""
    found = []
    if known_model(row.model) is None:
        found.append("model-unknown")
    try:
        load_accelerator_card(row.accelerator)
    except UnknownNameError:
        found.append("accelerator-unknown")
    return found or ["weights-dtype-unknown"]


def _flags(
    projection: Projection, known: Layout, layout: Layout, traffic: _Traffic, distance: Distance, row: CorpusRow
) -> tuple[str, ...]:
    flags = ["fitted-anchor"]
    if projection.features is None or projection.fitted.features is None:
        flags += ["no-model-card-law-paper", *_missing_cards(row)]
    elif layout.pipeline_parallel == 1 and pool_tokens(projection.features) == 0.0:
        flags.append("weights-do-not-fit")
    if not known_engine(row.engine):
        flags.append("engine-unknown-taken-as-vllm")
    if distance.width_doublings:
        flags.append(f"width-{known.tensor_parallel}-to-{layout.tensor_parallel}")
    if distance.prompt_doublings > 0.5:
        flags.append("prompt-length-not-measured")
    if distance.batch_doublings > 0.5:
        flags.append("batch-not-measured")
    if not projection.fitted.is_timed:
        flags.append("ttft-not-measured")
    if distance.is_queueing:
        flags.append("above-kv-capacity")
    if layout.expert_parallel != known.expert_parallel:
        flags.append("expert-parallel-not-measured")
    if layout.attention_data_parallel != known.attention_data_parallel or layout.data_parallel != known.data_parallel:
        flags.append("data-parallel-not-measured")
    if row.length_range_ratio is None:
        flags.append("drawn-lengths-inferred" if traffic.lengths.is_drawn else "nominal-lengths-assumed")
    return tuple(flags)
