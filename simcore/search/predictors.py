"""Which predictor prices a candidate: the plan's own, or one of the settings that the candidate changes."""

from __future__ import annotations

from dataclasses import replace

from simcore.prediction.predictor import KvOffload, Overrides, Predictor
from simcore.prediction.shapes import Shape
from simcore.search.plan import Candidate
from simcore.units import GIB


class Predictors:
    """Predictors of one setting that share their step costs."""

    def __init__(self, predictor: Predictor, gpus_per_node: int) -> None:
        self.own, self._gpus_per_node = predictor, gpus_per_node
        self._others: dict[Overrides, Predictor] = {}

    def of(self, candidate: Candidate) -> Predictor:
        """The one that priced `candidate`; it knows the candidate's shape."""
        if candidate.overrides is not None:
            return self._with(candidate.overrides, candidate.shape)
        return self.of_shape(candidate.shape)

    def of_shape(self, shape: Shape) -> Predictor:
        """The one of the engine's own settings, with the host KV tier that the shape's engine option states."""
        if not shape.host_kv_gibibytes:
            return self.own
        tier = KvOffload(shape.host_kv_gibibytes * GIB)
        return self._with(replace(self.own.setting.overrides, kv_offload=tier), shape)

    def _with(self, overrides: Overrides, shape: Shape) -> Predictor:
        found = self._others.get(overrides)
        if found is None:
            found = self._others[overrides] = self.own.with_overrides(overrides)
        found.shape(shape.option, shape.layout, gpus_per_node=self._gpus_per_node)
        return found
