"""Traffic that the closed form does not know: drawn lengths, and arrivals at a rate instead of clients that wait."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from simcore.prediction.predictor import Predictor
from simcore.prediction.result import Prediction
from simcore.prediction.shapes import EngineOption, Refusal, Shape
from simcore.prediction.traffic import LoadInput, WorkloadInput, workload_of
from simcore.search.plan import Answer, Candidate, Chooser, Progress, Question, chosen, shapes_of

SEED: Final = 0
"""All candidates meet the same draws, so that they differ in nothing else."""
LEAST_REQUESTS: Final = 1000
"""Of an open-loop run: enough for a p99 with ten samples above it."""
ROUNDS: Final = 10
"""An open-loop run also lasts this many times the requests that can be in flight, so that its start matters little."""
NEAR_SATURATION_FRAC: Final = 0.9
"""Assumed: above this share of its capacity a queue is so sensitive that the prediction carries a flag."""
REPLICAS_GROWTH_FRAC: Final = 0.05
"""Replica counts above 20 are tried in steps of 5 %: the tier rule takes throughputs within 5 % for equal."""
IDLE_IN_FLIGHT: Final = 0.1
"""With fewer requests in flight per replica another one changes nothing."""


class DrawnScorer:
    """Prices replicas under one workload by the simulator itself. Draws are the same for every candidate."""

    def __init__(self, predictor: Predictor, workload: WorkloadInput) -> None:
        self.predictor, self._workload = predictor, workload
        self._saturated: dict[tuple[EngineOption, object], Prediction] = {}

    def shapes(
        self, option: EngineOption, *, gpus_per_node: int, nodes_count: int
    ) -> tuple[list[Shape], list[Refusal]]:
        """As the predictor's."""
        return self.predictor.shapes(option, gpus_per_node=gpus_per_node, nodes_count=nodes_count)

    def predict(self, shape: Shape, concurrency: int) -> Prediction:
        """One replica in a closed loop of `concurrency` clients."""
        if self._workload.fixed is not None:
            return self.predictor.predict(shape, concurrency)
        return self.predictor.run(shape, workload_of(self._workload, LoadInput(concurrency=concurrency)), seed=SEED)

    def capacity_requests_per_s(self, shape: Shape) -> float:
        """What one replica serves with a full batch; rather too little: the run's start and end count, and the pool
        is filled with requests of the longest lengths."""
        return self._full(shape).requests_per_s

    def predict_rate(self, shape: Shape, request_rate_per_s: float) -> Prediction | None:
        """One replica under Poisson arrivals; None when it cannot keep up, because then no mean exists."""
        full = self._full(shape)
        if request_rate_per_s >= full.requests_per_s:
            return None
        in_flight = request_rate_per_s * (full.e2e.mean_s or 0.0)
        count = max(LEAST_REQUESTS, math.ceil(ROUNDS * in_flight))
        load = LoadInput.model_validate({"requestRate": request_rate_per_s, "requests": count})
        found = self.predictor.run(shape, workload_of(self._workload, load), seed=SEED)
        if request_rate_per_s > NEAR_SATURATION_FRAC * full.requests_per_s:
            found = replace(found, flags=tuple(sorted({*found.flags, "near-saturation"})))
        return found

    def _full(self, shape: Shape) -> Prediction:
        key = (shape.option, shape.layout)
        if key not in self._saturated:
            facts, setting = self.predictor.facts(shape), self.predictor.setting
            held = facts.max_running_requests
            if facts.pool_tokens_per_rank is not None:
                held = min(held, facts.pool_tokens_per_rank // (setting.prompt_tokens + setting.output_tokens))
            self._saturated[key] = self.predict(shape, max(1, held) * facts.attention_dp_count)
        return self._saturated[key]


def replica_steps(largest_count: int) -> Iterator[int]:
    """Replica counts to try, one by one and then in steps of 5 %."""
    count = 1
    while count <= largest_count:
        yield count
        count = max(count + 1, math.ceil(count * (1.0 + REPLICAS_GROWTH_FRAC)))


def answer_rate(
    question: Question,
    scorer: DrawnScorer,
    *,
    mean_output_tokens: float,
    progress: Progress | None = None,
    chooser: Chooser | None = None,
) -> Answer:
    """The answer for `question.request_rate_per_s` arrivals, split evenly over the replicas.

    Throughput is what is asked for (what comes in goes out); a layout that no number of replicas within the budget can
    serve is refused as `overload`.
    """
    rate = question.request_rate_per_s
    assert rate is not None  # noqa: S101 - the caller has branched on it
    shapes, refused = shapes_of(question, scorer)
    refusals = list(refused)
    candidates: list[Candidate] = []
    best: Candidate | None = None
    for number, shape in enumerate(shapes, start=1):
        largest = question.gpu_budget_count // shape.gpus_count
        before = len(candidates)
        for count in replica_steps(largest):
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
            )
            candidates.append(candidate)
            faster = best is None or candidate.throughput_per_gpu_tokens_per_s > best.throughput_per_gpu_tokens_per_s
            best = candidate if faster else best
            if rate / count * e2e_s < IDLE_IN_FLIGHT:
                break
        if len(candidates) == before:
            most = largest * scorer.capacity_requests_per_s(shape)
            detail = f"{shape.layout.label()}: {largest} replicas take {most:.3g} requests/s of the {rate:.3g} asked"
            refusals.append(Refusal(shape.option, shape.layout, "overload", detail))
        if progress is not None:
            progress(number, len(shapes), best)
    return chosen(question, candidates, refusals, len(candidates), 0, chooser)
