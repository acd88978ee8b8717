"""Traffic that the closed form does not know: drawn lengths, shared prefixes, traces, and arrivals at a rate."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final, Protocol

from simcore.des.config import Deployment
from simcore.errors import InfeasibleError
from simcore.prediction.overload import capacity_requests_per_s, check_rate, full_load_clients
from simcore.prediction.result import Prediction
from simcore.prediction.shapes import EngineOption, Refusal, Shape
from simcore.prediction.traffic import PREFIX_BLOCK_TOKENS, LoadInput, WorkloadInput, shares_prefixes, workload_of
from simcore.search.plan import (
    Answer,
    Candidate,
    Chooser,
    Progress,
    Question,
    Shaping,
    chosen,
    settings_of,
    shapes_of,
    shard_of,
)
from simcore.search.predictors import Predictors
from simcore.search.replicas import replica_steps

SEED: Final = 0
"""All candidates meet the same draws, so that they differ in nothing else."""
LEAST_REQUESTS: Final = 1000
"""Of an open-loop run: enough for a p99 with ten samples above it."""
ROUNDS: Final = 10
"""An open-loop run also lasts this many times the requests that can be in flight, so that its start matters little."""
IDLE_IN_FLIGHT: Final = 0.1
"""With fewer requests in flight per replica another one changes nothing."""


class RateScorer(Shaping, Protocol):
    """Prices one replica under arrivals."""

    def capacity_requests_per_s(self, shape: Shape) -> float:
        """What one replica serves with a full batch."""
        ...

    def predict_rate(self, shape: Shape, request_rate_per_s: float) -> Prediction | None:
        """One replica under Poisson arrivals; None when it cannot keep up, because then no mean exists."""
        ...


class DrawnScorer:
    """Prices replicas under one workload by the simulator itself. Draws are the same for every candidate."""

    def __init__(self, predictors: Predictors, workload: WorkloadInput) -> None:
        self._predictors, self._workload = predictors, workload
        self._capacities: dict[tuple[object, ...], tuple[int, float]] = {}

    def shapes(
        self, option: EngineOption, *, gpus_per_node: int, nodes_count: int
    ) -> tuple[list[Shape], list[Refusal]]:
        """As the predictor's."""
        return self._predictors.own.shapes(option, gpus_per_node=gpus_per_node, nodes_count=nodes_count)

    def predict(self, shape: Shape, concurrency: int) -> Prediction:
        """One replica in a closed loop of `concurrency` clients; with a trace they take its sessions in their order."""
        predictor = self._predictors.of_shape(shape)
        if self._workload.fixed is not None:
            return predictor.predict(shape, concurrency)
        return predictor.run(shape, workload_of(self._workload, LoadInput(concurrency=concurrency)), seed=SEED)

    def capacity_requests_per_s(self, shape: Shape) -> float:
        """What one replica serves with a full batch, start and end of the run left out."""
        return self._full(shape)[1]

    def predict_rate(self, shape: Shape, request_rate_per_s: float) -> Prediction | None:
        """One replica under Poisson arrivals; None when it cannot keep up, because then no mean exists."""
        clients, capacity_per_s = self._full(shape)
        try:
            flags = check_rate(request_rate_per_s, capacity_per_s)
        except InfeasibleError:
            return None
        in_flight = request_rate_per_s * clients / capacity_per_s  # Little's law at the longest latency there is
        count = max(LEAST_REQUESTS, math.ceil(ROUNDS * in_flight))
        talk = self._workload.synthetic.conversation if self._workload.synthetic is not None else None
        least = 1 if talk is None else talk.turns
        load = LoadInput.model_validate({"requestRate": request_rate_per_s, "requests": max(count, least)})
        found = self._predictors.of_shape(shape).run(shape, workload_of(self._workload, load), seed=SEED)
        return replace(found, flags=tuple(sorted({*found.flags, *flags})))

    def _full(self, shape: Shape) -> tuple[int, float]:
        """Clients that fill a replica, and what it then serves."""
        if shape.key not in self._capacities:
            predictor = self._predictors.of_shape(shape)
            block_tokens = PREFIX_BLOCK_TOKENS if shares_prefixes(self._workload) else 0
            pool = predictor.pool(shape, block_tokens=block_tokens)
            clients = full_load_clients(pool, predictor.setting.model_length_tokens)
            capacity_per_s = capacity_requests_per_s(Deployment(pool), self._workload, clients=clients, seed=SEED)
            self._capacities[shape.key] = clients, capacity_per_s
        return self._capacities[shape.key]


def answer_rate(
    question: Question,
    scorer: RateScorer,
    *,
    mean_output_tokens: float,
    progress: Progress | None = None,
    chooser: Chooser | None = None,
) -> Answer:
    """The answer for `question.request_rate_per_s` arrivals, split evenly over the replicas.

    Throughput is what is asked for (what comes in goes out); a layout that no number of replicas within the budget can
    serve is refused as `overload`.
    """
    shapes, refused = shapes_of(question, scorer)
    refusals = list(refused)
    candidates: list[Candidate] = []
    for shape, found in _priced(question, scorer, shapes, mean_output_tokens, progress):
        candidates += found
        if not found:
            refusals.append(_overload(question, scorer, shape))
    return chosen(question, candidates, refusals, len(candidates), 0, chooser)


def price_rate(
    question: Question,
    scorer: RateScorer,
    index: int,
    count: int,
    *,
    mean_output_tokens: float,
    progress: Progress | None = None,
) -> tuple[list[Candidate], int, int]:
    """The candidates of shard `index` of `count`, its shapes, and those of all. Shapes are dealt out in turns."""
    shapes, _ = shapes_of(question, scorer)
    mine = [shape for number, shape in enumerate(shapes) if shard_of(number, count) == index]
    found = [
        candidate for _, part in _priced(question, scorer, mine, mean_output_tokens, progress) for candidate in part
    ]
    return found, len(mine), len(shapes)


def _priced(
    question: Question,
    scorer: RateScorer,
    shapes: Iterable[Shape],
    mean_output_tokens: float,
    progress: Progress | None,
) -> Iterator[tuple[Shape, list[Candidate]]]:
    """Each shape with its candidates within the budget."""
    rate = question.request_rate_per_s
    assert rate is not None  # noqa: S101 - the caller has branched on it
    best: Candidate | None = None
    listed = list(shapes)
    for number, shape in enumerate(listed, start=1):
        found: list[Candidate] = []
        for count in replica_steps(question.gpu_budget_count // shape.gpus_count):
            prediction = scorer.predict_rate(shape, rate / count)
            if prediction is None:
                continue
            e2e_s = prediction.e2e.mean_s or 0.0
            candidate = Candidate(
                shape,
                count,
                max(1, math.ceil(rate * e2e_s)),
                prediction,
                rate * mean_output_tokens,
                request_rate_per_s=rate,
                settings=settings_of(shape),
            )
            found.append(candidate)
            faster = best is None or candidate.throughput_per_gpu_tokens_per_s > best.throughput_per_gpu_tokens_per_s
            best = candidate if faster else best
            if rate / count * e2e_s < IDLE_IN_FLIGHT:
                break
        yield shape, found
        if progress is not None:
            progress(number, len(listed), best)


def _overload(question: Question, scorer: RateScorer, shape: Shape) -> Refusal:
    largest, rate = question.gpu_budget_count // shape.gpus_count, question.request_rate_per_s
    most = largest * scorer.capacity_requests_per_s(shape)
    detail = f"{shape.layout.label()}: {largest} replicas take {most:.3g} requests/s of the {rate:.3g} asked"
    assert rate is not None  # noqa: S101 - the caller has branched on it
    return Refusal(shape.option, shape.layout, "overload", detail, short_frac=1.0 - most / rate)
