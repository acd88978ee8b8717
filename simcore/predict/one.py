"""Predict one scenario."""

from __future__ import annotations

from simcore.errors import InfeasibleError
from simcore.predict.predictor import Predictor
from simcore.predict.result import Prediction
from simcore.predict.scenario import Scenario
from simcore.predict.shapes import EngineOption
from simcore.predict.traffic import workload_of


def predict(scenario: Scenario) -> Prediction:
    """Means, tails, throughput, interval, flags and breakdown of `scenario`.

    Raises InputError (an illegal layout, a load out of range) and InfeasibleError (limit `memory` with the bytes, or
    `anchor` in mode anchored when nothing measured applies).
    """
    predictor = Predictor(scenario.setting)
    option = EngineOption(scenario.engine, scenario.version, scenario.image, (scenario.layout,))
    shapes, refusals = predictor.shapes(option, gpus_per_node=scenario.gpus_per_node, nodes_count=scenario.nodes_count)
    for refusal in refusals:
        raise InfeasibleError(refusal.rule, refusal.detail)
    return predictor.run(
        shapes[0],
        workload_of(scenario.workload, scenario.load),
        replicas_count=scenario.replicas_count,
        routing=scenario.routing,
        seed=scenario.seed,
    )
