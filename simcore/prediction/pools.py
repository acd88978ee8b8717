"""Prefill and decode pools as the simulator serves them, with the hand-off between them (paper App. D.4)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from simcore.des.config import Deployment, Handoff, Routing
from simcore.des.workload.batch import Workload
from simcore.errors import InputError
from simcore.laws.handoff import HandoffBackend, handoff_link
from simcore.legality import Verdict, judge_pair
from simcore.prediction.describe import split_prediction
from simcore.prediction.outcome import load_flags, most_running, simulated_outcome
from simcore.prediction.predictor import Predictor
from simcore.prediction.reruns import interval_under_arrivals
from simcore.prediction.result import Prediction
from simcore.prediction.shapes import Shape


@dataclass(frozen=True)
class PoolOf:
    """Equal replicas of a shape, and the predictor that priced it: pools may differ in caps."""

    predictor: Predictor
    shape: Shape
    replicas_count: int = 1


@dataclass(frozen=True)
class DecodeOf(PoolOf):
    """The decode side, and what brings the KV cache to it."""

    backend: HandoffBackend = HandoffBackend.MORI


def split_deployment(
    prefill: PoolOf,
    decode: DecodeOf,
    *,
    routing: Routing = Routing.LEAST_LOADED,
    block_tokens: int = 0,
    most: int | None = None,
) -> Deployment:
    """Both pools with their own schedulers and KV budgets; the hand-off queues on the prefill replica's link.

    Prefix cache and host tier are the prefill side's. `most` bounds the requests under way, where the load does.
    """
    facts, card = prefill.predictor.facts(prefill.shape), prefill.predictor.setting.card
    link = handoff_link(decode.backend, layers_count=card.layers_count)
    first, second = (
        side.predictor.pool(side.shape, replicas_count=side.replicas_count, most_running=most, block_tokens=block)
        for side, block in ((prefill, block_tokens), (decode, 0))
    )
    handoff = Handoff(link.floor_s, link.bytes_per_s, facts.kv_bytes_per_token, link.exposed_frac)
    return Deployment(first, second, handoff, routing)


def split_flags(prefill: PoolOf, decode: DecodeOf, *, gpus_per_node: int) -> tuple[str, ...]:
    """What to doubt of the pair itself. Raises InputError for pools that cannot hand KV over."""
    cases = (
        side.predictor.legality_case(side.shape.option, side.shape.layout, gpus_per_node) for side in (prefill, decode)
    )
    judgement = judge_pair(*cases)
    if judgement.verdict is Verdict.ILLEGAL:
        details = "; ".join(f"{v.tensor}: {v.detail}" for v in judgement.violations)
        raise InputError("decode.layout", decode.shape.layout.label(), "take the prefill pool's KV cache", details)
    flags = ["legality-unverified"] if judgement.verdict is Verdict.UNVERIFIED else []
    if not handoff_link(decode.backend, layers_count=prefill.predictor.setting.card.layers_count).is_measured:
        flags.append("handoff-unmeasured")
    if max(side.shape.layout.pipeline_parallel for side in (prefill, decode)) > 1:
        flags.append("split-pipeline-unvalidated")
    return tuple(flags)


def predict_split(
    prefill: PoolOf,
    decode: DecodeOf,
    workload: Workload,
    *,
    gpus_per_node: int,
    routing: Routing = Routing.LEAST_LOADED,
    seed: int = 0,
    warmup_requests: int = 0,
) -> Prediction:
    """Any workload on a prefill and a decode pool. Raises InputError, InfeasibleError."""
    flags = split_flags(prefill, decode, gpus_per_node=gpus_per_node)
    deployment = split_deployment(
        prefill, decode, routing=routing, block_tokens=workload.block_tokens, most=most_running(workload)
    )
    outcome = simulated_outcome(deployment, workload, seed=seed, warmup_requests=warmup_requests)
    in_flight = outcome.mean_active_requests if workload.clients is None else workload.clients
    sides = [
        side.predictor.served(
            side.shape,
            pool.scheduler,
            math.ceil(in_flight / side.replicas_count),
            has_host_tier=pool.host_tier is not None,
        )
        for side, pool in ((prefill, deployment.pool), (decode, deployment.decode_pool))
        if pool is not None
    ]
    found = split_prediction(sides[0], prefill.replicas_count, sides[1], decode.replicas_count, outcome)
    flags = (*flags, *found.flags, *load_flags(outcome, workload))
    interval80 = interval_under_arrivals(found, deployment, workload, seed=seed, warmup_requests=warmup_requests)
    return replace(found, concurrency=workload.clients, interval80=interval80, flags=tuple(sorted(set(flags))))
