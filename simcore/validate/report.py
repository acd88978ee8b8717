"""The report of `validate` as plain data (the contract's JSON) and as Markdown for `docs/generated/accuracy.md`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from simcore.units import MILLI
from simcore.validate.baselines import BASELINES
from simcore.validate.evaluate import EvaluatedRow, Note
from simcore.validate.metrics import QUANTITIES, Scored, abs_error_percent, coverage_percent, ranking

LAW_TEXT = {
    "split-floor": (
        "decode = constant + weight reading + excess + collectives; the measured row is the base, parts move with width"
    ),
    "paper": "Eq. 1: the cheapest step of the sweep stays, the rest shrinks by w/w'",
    "divide": "the whole step times w/w'",
    "same": "the step does not change",
}


def report(
    rows: Sequence[EvaluatedRow],
    *,
    law: str,
    refused: Mapping[str, str] = MappingProxyType({}),
    notes: Sequence[Note] = (),
) -> dict[str, Any]:
    """The JSON document of the contract: series, overall, rows; the law chosen, simple transfers, what was left out."""
    groups: dict[str, list[EvaluatedRow]] = {}
    for row in rows:
        groups.setdefault(row.row.series, []).append(row)
    return {
        "law": {"name": law, "explanation": LAW_TEXT[law]},
        "series": [{"series": name, **_summary(members)} for name, members in groups.items()],
        "overall": _summary(rows),
        "rows": [_row(row) for row in rows],
        "refused": [{"series": name, "reason": reason} for name, reason in refused.items()],
        "notes": [{"series": note.series, "rows": note.rows_count, "note": note.text} for note in notes],
    }


def _summary(rows: Sequence[EvaluatedRow]) -> dict[str, Any]:
    scored = [row.scored for row in rows]
    order = ranking(scored)
    return {
        "rows": len(rows),
        "medianAbsErrorPercent": _by_quantity(scored, 0.5),
        "p90AbsErrorPercent": _by_quantity(scored, 0.9),
        "intervalCoveragePercent": {name: _round(coverage_percent(scored, name)) for name in QUANTITIES},
        "ranking": {
            "pairsOrderedPercent": _round(order.pairs_ordered_percent),
            "regretPercent": _round(order.regret_percent),
            "pairs": order.pairs_count,
        },
        "baselineMedianAbsTpotErrorPercent": {name: _round(_baseline(rows, name)) for name in BASELINES},
    }


def _by_quantity(scored: Iterable[Scored], at: float) -> dict[str, float | None]:
    members = list(scored)
    return {name: _round(abs_error_percent(members, name, at)) for name in QUANTITIES}


def _baseline(rows: Sequence[EvaluatedRow], name: str) -> float | None:
    errors = [abs(row.baselines.by_name()[name] / row.row.tpot_s - 1.0) for row in rows if row.row.tpot_s is not None]
    return 100.0 * float(np.median(errors)) if errors else None


def _row(item: EvaluatedRow) -> dict[str, Any]:
    row, scored = item.row, item.scored
    return {
        "series": row.series,
        "line": row.line,
        "layout": row.pools_label,
        "tp": row.layout.tensor_parallel,
        "pp": row.layout.pipeline_parallel,
        "islTokens": row.prompt_tokens,
        "oslTokens": row.output_tokens,
        "concurrency": row.concurrency,
        "measured": _figures(scored.measured),
        "predicted": _figures(scored.predicted),
        "interval80": {
            key: [_figure(name, low), _figure(name, high)]
            for name, key in _KEYS.items()
            for low, high in [scored.interval[name]]
        },
        "error": {name: _round(scored.error(name), 5) for name in QUANTITIES},
        "anchor": item.prediction.anchor,
        "flags": list(item.prediction.flags),
    }


_KEYS = {"tpot": "tpotMs", "ttft": "ttftMs", "throughput": "throughputTokensPerSecond"}


def _figures(values: dict[str, float | None] | dict[str, float]) -> dict[str, float | None]:
    return {key: _figure(name, values[name]) for name, key in _KEYS.items()}


def _figure(name: str, value: float | None) -> float | None:
    if value is None:
        return None
    return round(value, 3) if name == "throughput" else round(value / MILLI, 4)


def _round(value: float | None, digits: int = 2) -> float | None:
    return None if value is None else round(float(value), digits)


def markdown(document: dict[str, Any], title: str) -> str:
    """One section of docs/generated/accuracy.md: per series ours and the simple transfers."""
    lines = [
        f"## {title}",
        "",
        "Median absolute error in percent over target rows; the three right columns are TPOT by simple transfers.",
        "",
        "| series | rows | TPOT | TTFT | throughput | 80 % covered (TPOT) | same step | divided | Eq. 1 raw |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for part in [*document["series"], {"series": "**all**", **document["overall"]}]:
        median, simple = part["medianAbsErrorPercent"], part["baselineMedianAbsTpotErrorPercent"]
        cells = [
            part["series"],
            str(part["rows"]),
            *(_shown(median[name]) for name in QUANTITIES),
            _shown(part["intervalCoveragePercent"]["tpot"]),
            *(_shown(simple[name]) for name in BASELINES),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    order = document["overall"]["ranking"]
    lines += [
        "",
        f"Ranking: {_shown(order['pairsOrderedPercent'])} % of {order['pairs']} decisive pairs ordered, "
        f"median regret {_shown(order['regretPercent'])} %.",
        "",
    ]
    return "\n".join(lines)


def _shown(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"
