"""The target rows of `validate`, predicted the way a plan predicts them: a fitted anchor, `predict`, the simulator.

Per series an anchor is fitted from its anchor rows and each target row is asked as a scenario. `tools/accuracy.py`
puts the result on the accuracy page beside `validate`'s own figures; both must tell the same story.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from simcore import load_scenario, predict
from simcore.anchors.schema import Anchor
from simcore.cards.library import load_accelerator_card
from simcore.errors import InfeasibleError, InputError, UnknownNameError
from simcore.prediction.result import Prediction
from simcore.validate.anchor_export import fit_anchor
from simcore.validate.cells import Lengths, lengths_by_shape, lengths_for
from simcore.validate.corpus import CorpusRow, Role, by_series

MOST_CLIENTS = 256
"""Rows above it are mostly queueing, and slow to simulate."""
QUANTITIES = ("tpot", "ttft", "throughput")


@dataclass(frozen=True)
class PlannedRow:
    """One target row as a plan predicts it."""

    series: str
    error: dict[str, float | None]
    is_covered: dict[str, bool | None]


def planned_rows(rows: Sequence[CorpusRow]) -> list[PlannedRow]:
    """Every colocated, single-stage target row of one measured layout per series; equal questions once."""
    found = []
    for name, members in by_series(rows).items():
        anchors = [row for row in members if row.role is Role.ANCHOR]
        targets = [row for row in members if row.role is Role.TARGET and _is_plain(row)]
        if not targets or not _can_plan(targets[0]) or len({row.layout for row in anchors}) != 1:
            continue
        anchor, lengths = fit_anchor(anchors), lengths_by_shape(anchors)
        asked = {(row.layout, row.prompt_tokens, row.output_tokens, row.concurrency): row for row in reversed(targets)}
        for row in reversed(asked.values()):
            served = lengths_for((row.prompt_tokens, row.output_tokens), lengths, row.length_range_ratio)
            prediction = _predicted(row, served, anchor)
            if prediction is not None:
                found.append(_scored(name, row, prediction))
    return found


def _is_plain(row: CorpusRow) -> bool:
    return not row.is_disaggregated and row.layout.pipeline_parallel == 1 and row.concurrency <= MOST_CLIENTS


def _can_plan(row: CorpusRow) -> bool:
    try:
        return not load_accelerator_card(row.accelerator).validation_only
    except UnknownNameError:
        return False


def _predicted(row: CorpusRow, served: Lengths, anchor: Anchor) -> Prediction | None:
    """None where the scenario is refused: a layout that does not fit, or an anchor that a plan would not take."""
    try:
        return predict(load_scenario(scenario(row, served), {"fitted": anchor}))
    except (InfeasibleError, InputError):
        return None


def scenario(row: CorpusRow, served: Lengths) -> dict[str, Any]:
    """The question that the benchmark's client put, without any of its measures."""

    def drawn(tokens: int) -> Any:
        least = max(round(served.range_ratio * tokens), 1)
        return {"minimum": least, "maximum": tokens} if least < tokens else tokens

    lengths = {"promptTokens": drawn(row.prompt_tokens), "outputTokens": drawn(row.output_tokens)}
    return {
        "model": row.model,
        "engine": {"name": row.engine},
        "accelerator": row.accelerator,
        "layout": {
            "tensorParallel": row.layout.tensor_parallel,
            "expertParallel": row.layout.expert_parallel,
            "attentionDataParallel": row.layout.attention_data_parallel,
        },
        "mode": "anchored",
        "anchors": ["fitted"],
        "workload": {"synthetic" if served.is_drawn else "fixed": lengths},
        "load": {"concurrency": row.concurrency, "requests": 10 * row.concurrency},
    }


def _scored(name: str, row: CorpusRow, prediction: Prediction) -> PlannedRow:
    pairs = {
        "tpot": (prediction.tpot_s, row.tpot_s),
        "ttft": (prediction.ttft_s, row.ttft_s),
        "throughput": (prediction.throughput_tokens_per_s, row.throughput_tokens_per_s),
    }
    error: dict[str, float | None] = {}
    covered: dict[str, bool | None] = {}
    for key, (found, held) in pairs.items():
        low, high = prediction.interval80[key]
        error[key] = found / held - 1.0 if found is not None and held else None
        covered[key] = low <= held <= high if held else None
    return PlannedRow(name, error, covered)


def medians(rows: Sequence[PlannedRow]) -> dict[str, float]:
    """Median absolute error in percent by quantity."""
    found = {}
    for name in QUANTITIES:
        errors = [abs(row.error[name] or 0.0) for row in rows if row.error[name] is not None]
        if errors:
            found[name] = round(100.0 * float(np.median(errors)), 2)
    return found


def markdown(rows: Sequence[PlannedRow], title: str) -> str:
    """A section of the accuracy page, by kind of series."""
    lines = [
        f"## {title}, as plans predict it",
        "",
        "An anchor fitted from each series' anchor rows, its target rows asked of `predict`: the simulator with the",
        f"engine's default settings, up to {MOST_CLIENTS} clients, equal questions once.",
        "",
        "| kind | rows | TPOT | TTFT | throughput | 80 % covered: TPOT | TTFT | throughput |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for kind in sorted({row.series.split(":")[0] for row in rows}):
        mine = [row for row in rows if row.series.split(":")[0] == kind]
        errors = medians(mine)
        cells = [f"{errors.get(name, math.nan):.1f}" for name in QUANTITIES]
        cells += [f"{_covered_percent(mine, name):.1f}" for name in QUANTITIES]
        lines.append(f"| {kind} | {len(mine)} | {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def _covered_percent(rows: Sequence[PlannedRow], name: str) -> float:
    held = [row.is_covered[name] for row in rows if row.is_covered[name] is not None]
    return 100.0 * sum(map(bool, held)) / len(held) if held else math.nan
