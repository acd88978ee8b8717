"""The conditions and events of live figures. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from inferasim_operator.api.v1alpha1.conditions import Condition, ConditionStatus
from inferasim_operator.api.v1alpha1.deploymentmix import PREDICTION_WITHIN_TOLERANCE, REPORTING
from inferasim_operator.engine.actions import Announcement
from inferasim_operator.engine.conditions import Conditions
from inferasim_operator.kinds.deploymentmix.checks import Reason
from inferasim_operator.kinds.deploymentmix.live import LiveState, step
from inferasim_operator.live.compare import Comparison, exceeded
from inferasim_operator.live.request import Report

_NAMES: Final = {"ttft": "TTFT", "tpot": "TPOT", "throughput": "throughput"}


def say(
    state: LiveState, tolerance_frac: Mapping[str, float], before: Iterable[Condition], conditions: Conditions
) -> tuple[Announcement, ...]:
    """Set `Reporting` and `PredictionWithinTolerance` as far as they are asked for; the events of what turned."""
    if not state.is_asked_for:
        return ()
    comparisons = _by_name(state.report)
    if state.problem:
        conditions.set(REPORTING, False, Reason.NOT_OBSERVED, state.problem)
    elif state.report is None:
        conditions.set(REPORTING, None, Reason.COLLECTING, "nothing has been read yet")
    else:
        _say_reporting(comparisons, conditions)
    if not tolerance_frac:
        return ()
    judged = {name: found for name, found in comparisons.items() if tolerance_frac.keys() & found.figures.keys()}
    if not judged or state.problem:
        conditions.set(
            PREDICTION_WITHIN_TOLERANCE, None, Reason.NOT_COMPARABLE, "no error can be stated now; see Reporting"
        )
        return ()
    off = [
        f"{name}: {_NAMES[figure]} {_percent(found.figures[figure].error_ratio)} (limit {limit:.1%})"
        for name, found in judged.items()
        for figure, limit in tolerance_frac.items()
        if figure in exceeded(found, tolerance_frac)
    ]
    was = next((c.status for c in before if c.type == PREDICTION_WITHIN_TOLERANCE), None)
    if off:
        text = "; ".join(off)
        conditions.set(PREDICTION_WITHIN_TOLERANCE, False, Reason.OUT_OF_TOLERANCE, text)
        return () if was is ConditionStatus.FALSE else (Announcement(Reason.OUT_OF_TOLERANCE, text, is_warning=True),)
    text = f"within tolerance: {', '.join(judged)}"
    conditions.set(PREDICTION_WITHIN_TOLERANCE, True, Reason.WITHIN_TOLERANCE, text)
    return (Announcement(Reason.WITHIN_TOLERANCE, text),) if was is ConditionStatus.FALSE else ()


def _by_name(report: Report | None) -> dict[str, Comparison]:
    found = report.comparisons.items() if report is not None else ()
    return dict(sorted((key.deployment, comparison) for key, comparison in found))


def _say_reporting(comparisons: Mapping[str, Comparison], conditions: Conditions) -> None:
    reporting = [name for name, found in comparisons.items() if not found.reasons]
    silent = [f"{name}: {'; '.join(found.reasons)}" for name, found in comparisons.items() if found.reasons]
    if reporting:
        others = f"; not {'; '.join(silent)}" if silent else ""
        conditions.set(REPORTING, True, Reason.COMPARABLE, f"{', '.join(reporting)}{others}")
    else:
        conditions.set(REPORTING, False, Reason.NOT_COMPARABLE, "; ".join(silent))


def _percent(error_ratio: float) -> str:
    return f"{step(error_ratio) / 10:+.0f} %"
