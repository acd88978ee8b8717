"""Predict one scenario."""

from __future__ import annotations

from simcore.des.config import Deployment
from simcore.errors import InfeasibleError
from simcore.prediction.predictor import Predictor
from simcore.prediction.result import Prediction
from simcore.prediction.scenario import Scenario
from simcore.prediction.shapes import EngineOption, Shape
from simcore.prediction.traffic import workload_of


def predict(scenario: Scenario) -> Prediction:
    """Means, tails, throughput, interval, flags and breakdown of `scenario`.

    Raises InputError (an illegal layout, a load out of range) and InfeasibleError (limit `memory` with the bytes, or
    `anchor` in mode anchored when nothing measured applies).
    """
    predictor, shape = _priced(scenario)
    return predictor.run(
        shape,
        workload_of(scenario.workload, scenario.load),
        replicas_count=scenario.replicas_count,
        routing=scenario.routing,
        seed=scenario.seed,
    )


def deployment_of(scenario: Scenario) -> Deployment:
    """What `scenario` would serve a trace with, prefix caching on. Raises as `predict`."""
    predictor, shape = _priced(scenario)
    return predictor.deployment(shape, replicas_count=scenario.replicas_count, routing=scenario.routing)


def _priced(scenario: Scenario) -> tuple[Predictor, Shape]:
    predictor = Predictor(scenario.setting)
    option = EngineOption(scenario.engine, scenario.version, scenario.image, (scenario.layout,))
    shapes, refusals = predictor.shapes(option, gpus_per_node=scenario.gpus_per_node, nodes_count=scenario.nodes_count)
    for refusal in refusals:
        raise InfeasibleError(refusal.rule, refusal.detail)
    return predictor, shapes[0]
