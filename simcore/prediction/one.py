"""Predict one scenario."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from simcore.cards.layout import Layout
from simcore.des.config import Deployment, Routing
from simcore.des.workload.batch import Workload
from simcore.errors import InfeasibleError
from simcore.prediction.overload import capacity_requests_per_s, check_rate, full_load_clients
from simcore.prediction.pools import DecodeOf, PoolOf, predict_split, split_deployment
from simcore.prediction.predictor import Predictor
from simcore.prediction.reruns import SEND_SPREAD_S, with_drift
from simcore.prediction.result import Prediction
from simcore.prediction.scenario import Scenario
from simcore.prediction.shapes import EngineOption, Shape
from simcore.prediction.traffic import workload_of


def predict(scenario: Scenario) -> Prediction:
    """Means, tails, throughput, interval, flags and breakdown of `scenario`.

    Raises InputError (an illegal layout, a load out of range) and InfeasibleError (limit `memory` with the bytes,
    `overload` where arrivals outrun the deployment, or `anchor` in mode anchored when nothing measured applies).
    """
    workload = workload_of(scenario.workload, scenario.load)
    prefill, decode = _pools(scenario)
    capacity_per_s = _capacity(scenario, prefill, decode, workload.block_tokens)
    rate_per_s = scenario.load.request_rate
    flags = () if rate_per_s is None or capacity_per_s is None else check_rate(rate_per_s, capacity_per_s)
    found = _run(scenario, prefill, decode, workload)
    if rate_per_s is not None and capacity_per_s is not None:
        found = replace(found, interval80=_open_ended(found, rate_per_s, capacity_per_s))
    if scenario.workload.fixed is not None and (workload.clients or 1) > 1:
        spread = workload_of(scenario.workload, scenario.load, send_spread_s=SEND_SPREAD_S)
        found = with_drift(found, _run(scenario, prefill, decode, spread))
    return replace(
        found,
        source=replace(found.source, assumed=(*found.source.assumed, *scenario.assumed)),
        flags=tuple(sorted({*found.flags, *flags})),
    )


def _run(scenario: Scenario, prefill: PoolOf, decode: DecodeOf | None, workload: Workload) -> Prediction:
    routing, seed, warmup = scenario.routing, scenario.seed, scenario.load.warmup_requests
    if decode is None:
        return prefill.predictor.run(
            prefill.shape,
            workload,
            replicas_count=prefill.replicas_count,
            routing=routing,
            seed=seed,
            warmup_requests=warmup,
        )
    return predict_split(
        prefill,
        decode,
        workload,
        gpus_per_node=scenario.gpus_per_node,
        routing=routing,
        seed=seed,
        warmup_requests=warmup,
    )


def deployment_of(scenario: Scenario, *, block_tokens: int) -> Deployment:
    """What `scenario` serves requests with, whose prefix blocks have `block_tokens` tokens. Raises as `predict`."""
    return _deployment(*_pools(scenario), scenario.routing, block_tokens)


def _deployment(prefill: PoolOf, decode: DecodeOf | None, routing: Routing, block_tokens: int) -> Deployment:
    if decode is not None:
        return split_deployment(prefill, decode, routing=routing, block_tokens=block_tokens)
    pool = prefill.predictor.pool(prefill.shape, replicas_count=prefill.replicas_count, block_tokens=block_tokens)
    return Deployment(pool, routing=routing)


def _open_ended(found: Prediction, rate_per_s: float, capacity_per_s: float) -> Mapping[str, tuple[float, float]]:
    """The interval, without an upper end of TTFT where the capacity's own error reaches the rate."""
    value, high = found.throughput_tokens_per_s, found.interval80["throughput"][1]
    if rate_per_s * high / value < capacity_per_s:
        return found.interval80
    return {**found.interval80, "ttft": (found.interval80["ttft"][0], math.inf)}


def _capacity(scenario: Scenario, prefill: PoolOf, decode: DecodeOf | None, block_tokens: int) -> float | None:
    """Requests per second that can be served, where arrivals are Poisson."""
    longest = scenario.setting.model_length_tokens
    if scenario.load.request_rate is None:
        return None
    if decode is None:
        one = _deployment(replace(prefill, replicas_count=1), None, scenario.routing, block_tokens)
        clients = full_load_clients(one.pool, longest)
        return prefill.replicas_count * capacity_requests_per_s(one, scenario.workload, clients=clients)
    both = _deployment(prefill, decode, scenario.routing, block_tokens)
    clients = sum(full_load_clients(pool, longest) for pool in (both.pool, both.decode_pool) if pool is not None)
    return capacity_requests_per_s(both, scenario.workload, clients=clients)


def _pools(scenario: Scenario) -> tuple[PoolOf, DecodeOf | None]:
    predictor = Predictor(scenario.setting)
    prefill = PoolOf(predictor, _shape(scenario, predictor, scenario.layout), scenario.replicas_count)
    side = scenario.decode
    if side is None:
        return prefill, None
    predictor = predictor.with_overrides(side.overrides)
    shape = _shape(scenario, predictor, side.layout)
    return prefill, DecodeOf(predictor, shape, side.replicas_count, side.backend)


def _shape(scenario: Scenario, predictor: Predictor, layout: Layout) -> Shape:
    option = EngineOption(scenario.engine, scenario.version, scenario.image, (layout,))
    shapes, refusals = predictor.shapes(option, gpus_per_node=scenario.gpus_per_node, nodes_count=scenario.nodes_count)
    for refusal in refusals:
        raise InfeasibleError(refusal.rule, refusal.detail)
    return shapes[0]
