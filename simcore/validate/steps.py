"""Single engine steps: project every measured width to every wider one, step by step. Format: docs/formats/corpus.md.

The laws are checked here without any scheduler in between: a decode step of b requests at a mean context, a context
(prefill) step of n tokens. Only runs that hold several tensor-parallel widths of one split are scored.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import nnls

from simcore.cards.layout import Engine, Layout
from simcore.cards.library import load_accelerator_card, load_model_card
from simcore.errors import FormatError, InputError, unreadable
from simcore.prediction.intervals import Distance, interval_calibration
from simcore.stepcost.calibration import Calibration, calibration
from simcore.stepcost.features import LayoutFeatures, layout_features
from simcore.stepcost.width import WidthLaw
from simcore.units import MILLI
from simcore.validate.cells import Cell
from simcore.validate.corpus import read_text
from simcore.validate.layout_fit import FittedLayout, Prefill
from simcore.validate.project import Projection
from simcore.validate.report import LAW_TEXT

STEP_COLUMNS = (
    "run", "cell", "phase", "ctx_tokens", "ctx_requests", "ctx_kv_tokens", "decode_requests",
    "mean_decode_kv_bucket256", "n", "latency_ms_median",
)  # fmt: skip
MODELS = {"qwen32": "Qwen3-32B", "dsv4_flash": "DeepSeek-V4-Flash", "qwen36": "Qwen3.6-35B-A3B"}
"""Which checkpoint a run's name stands for."""
ACCELERATOR = "b300_sxm"
"""The tables do not state the GPU; their owner compares them with this one. Assumed, and flagged."""
_CELL = re.compile(r"tp(\d+)_ep(\d+).*")


@dataclass(frozen=True)
class StepRow:
    """One measured step of one width."""

    line: int
    run: str
    model: str
    layout: Layout
    phase: str
    """`context` or `decode`."""
    batch: int
    """Decoding requests, or prompts of a context step."""
    tokens: int
    """Mean context of a decoding request, or new tokens of a context step."""
    step_s: float


def is_steps_file(path: str | Path) -> bool:
    """Whether the file's header names steps rather than corpus cells. Raises FormatError when it cannot be read."""
    try:
        with Path(path).open(encoding="utf-8-sig") as stream:
            header = stream.readline(65536).strip().split(",")
    except (OSError, UnicodeDecodeError) as error:
        raise unreadable(path, error, "be a readable UTF-8 CSV file") from error
    return {"run", "phase", "latency_ms_median"} <= set(header)


def read_steps(path: str | Path) -> tuple[StepRow, ...]:
    """Context and decode steps of runs whose cell names its widths; other rows are left out. Raises FormatError."""
    name = Path(path).name
    reader = csv.DictReader(io.StringIO(read_text(path), newline=""), strict=True)
    try:
        missing = [column for column in STEP_COLUMNS if column not in (reader.fieldnames or ())]
        if missing:
            raise FormatError(name, 1, "header", ",".join(reader.fieldnames or ())[:80], f"hold column `{missing[0]}`")
        found = [_step_row(raw, name, reader.line_num) for raw in reader]
    except csv.Error as error:
        raise FormatError(name, reader.reader.line_num, "row", str(error), "be CSV") from error
    return tuple(row for row in found if row is not None)


def _step_row(raw: dict[str, str], where: str, line: int) -> StepRow | None:
    match = _CELL.fullmatch(raw["cell"] or "")
    model = next((model for key, model in MODELS.items() if key in (raw["run"] or "")), None)
    if match is None or model is None or raw["phase"] not in ("context", "decode"):
        return None
    is_decode = raw["phase"] == "decode"
    batch = _count(raw, "decode_requests" if is_decode else "ctx_requests", where, line)
    tokens = _count(raw, "mean_decode_kv_bucket256" if is_decode else "ctx_tokens", where, line)
    try:
        step_s = float(raw["latency_ms_median"]) * MILLI
    except (TypeError, ValueError):
        step_s = math.nan
    if not 0.0 < step_s < 1e6:
        raise FormatError(where, line, "latency_ms_median", raw["latency_ms_median"], "be a positive number")
    if not is_decode and _count(raw, "ctx_kv_tokens", where, line):
        return None  # a later chunk of a prompt: neither a whole prefill nor a decode
    try:
        layout = Layout(tensor_parallel=int(match[1]), expert_parallel=int(match[2]))
    except InputError as error:
        raise FormatError(where, line, "cell", raw["cell"], "name widths from 1 to 4096") from error
    return StepRow(line, raw["run"], model, layout, raw["phase"], max(batch, 1), max(tokens, 1), step_s)


def _count(raw: dict[str, str], name: str, where: str, line: int) -> int:
    try:
        value = int(float(raw[name]))
    except (TypeError, ValueError, OverflowError) as error:
        raise FormatError(where, line, name, raw[name], "be an integer") from error
    if not 0 <= value <= 10**8:
        raise FormatError(where, line, name, raw[name], "be an integer from 0 to 100,000,000")
    return value


@dataclass(frozen=True)
class ProjectedStep:
    """One step of a wider layout predicted from a narrower one."""

    row: StepRow
    series: str
    predicted_s: float
    same_s: float
    divided_s: float
    equation1_s: float

    @property
    def error(self) -> float:
        return self.predicted_s / self.row.step_s - 1.0


def project_steps(
    rows: Sequence[StepRow], *, law: WidthLaw = WidthLaw.SPLIT_FLOOR, learnt: Calibration | None = None
) -> tuple[ProjectedStep, ...]:
    """Every step of every width predicted from each narrower width of its run and split. Targets are only scored."""
    learnt = (learnt or calibration()).of_single_steps()
    groups: dict[tuple[str, str, int], dict[int, list[StepRow]]] = {}
    for row in rows:
        key = (row.run, row.model, row.layout.expert_parallel)
        groups.setdefault(key, {}).setdefault(row.layout.tensor_parallel, []).append(row)
    found: list[ProjectedStep] = []
    for (_, model, _), widths in groups.items():
        for narrow in sorted(widths):
            for wide in sorted(width for width in widths if width > narrow):
                found += _pair(model, widths[narrow], widths[wide], law, learnt)
    return tuple(found)


def _pair(
    model: str, anchor: list[StepRow], target: list[StepRow], law: WidthLaw, learnt: Calibration
) -> list[ProjectedStep]:
    here, there = _features(model, anchor[0].layout), _features(model, target[0].layout)
    fitted = _fit(anchor, here, learnt)
    narrow, wide = anchor[0].layout.tensor_parallel, target[0].layout.tensor_parallel
    name = f"{model}:tp{narrow}-to-tp{wide}"
    ours = Projection(fitted, there, law, narrow, wide, learnt)
    paper = Projection(fitted, there, WidthLaw.PAPER, narrow, wide, learnt)
    out = []
    for row in target:
        shape = (row.tokens, 1)
        if row.phase == "decode":
            same = fitted.step_at(row.batch, row.tokens, shape)
            values = (ours.step_s(row.batch, row.tokens, shape), paper.step_s(row.batch, row.tokens, shape))
        elif row.batch > 1:
            continue
        else:
            same = fitted.prefill.seconds(row.tokens)
            values = (ours.prefill.seconds(row.tokens), paper.prefill.seconds(row.tokens))
        out.append(ProjectedStep(row, name, values[0], same, same * narrow / wide, values[1]))
    return out


def _features(model: str, layout: Layout) -> LayoutFeatures:
    return layout_features(load_model_card(model), load_accelerator_card(ACCELERATOR), Engine.VLLM, layout, "")


def _fit(rows: list[StepRow], features: LayoutFeatures, learnt: Calibration) -> FittedLayout:
    decodes = [row for row in rows if row.phase == "decode"]
    if not decodes:
        raise InputError("phase", "context", "include decode steps at each width")
    cells = tuple(
        Cell((row.tokens, 1), row.batch, float(row.tokens), 0.0, None, row.step_s, False, float(row.batch), False)
        for row in decodes
    )
    per_byte = _context_slope(decodes, features, 1.0 / (learnt.kv_bandwidth_frac * features.hbm_bytes_per_s))
    steps = np.array([row.step_s for row in decodes])
    prefill = _prefill([row for row in rows if row.phase == "context"])
    return FittedLayout(cells, prefill, per_byte, 0.0, features, steps, np.ones(len(cells)))


def _context_slope(rows: list[StepRow], features: LayoutFeatures, prior: float) -> float:
    """Seconds per KV byte from steps of equal batch and different context; the prior where none differ.

    The median over batches, each weighing what its contexts differ by: some batches change kernels with the context.
    """
    slopes, weights = [], []
    for batch in sorted({row.batch for row in rows}):
        mine = [row for row in rows if row.batch == batch]
        read = np.array([batch * features.read_context_bytes(row.tokens) for row in mine])
        steps = np.array([row.step_s for row in mine])
        if np.ptp(read) > 0:
            slopes.append(float(np.polyfit(read, steps, 1)[0]))
            weights.append(float(np.ptp(read)))
    if not slopes:
        return prior
    order = np.argsort(slopes)
    mass = np.cumsum(np.array(weights)[order])
    return max(float(slopes[order[np.searchsorted(mass, mass[-1] / 2.0)]]), 0.0)


def _prefill(rows: list[StepRow]) -> Prefill:
    """F, c1, c2 >= 0 by relative least squares over single-prompt context steps."""
    alone = [row for row in rows if row.batch == 1]
    if not alone:
        return Prefill(0.0, 0.0, 0.0)
    tokens = np.array([row.tokens for row in alone], dtype=np.float64)
    times = np.array([row.step_s for row in alone])
    design = np.stack([np.ones_like(tokens), tokens, tokens**2], axis=1) / times[:, None]
    scale = np.array([1.0, 1e3, 1e6])
    found, _ = nnls(design * scale, np.ones_like(times))
    fixed, linear, square = (float(value) for value in found * scale)
    return Prefill(fixed, linear, square)


def steps_report(rows: Sequence[StepRow], *, law: WidthLaw = WidthLaw.SPLIT_FLOOR) -> dict[str, Any]:
    """The contract's document for single steps: decode steps under `tpot`, context steps under `ttft`.

    Raises InputError when no run holds two widths of one split.
    """
    projected = project_steps(rows, law=law)
    if not projected:
        raise InputError("cell", len(rows), "hold at least two tensor-parallel widths of one run and expert split")
    groups: dict[str, list[ProjectedStep]] = {}
    for step in projected:
        groups.setdefault(step.series, []).append(step)
    return {
        "law": {"name": law.value, "explanation": LAW_TEXT[law.value]},
        "series": [{"series": name, **_summary(members)} for name, members in groups.items()],
        "overall": _summary(projected),
        "rows": [_document(step) for step in projected],
        "refused": [],
    }


def _summary(steps: Sequence[ProjectedStep]) -> dict[str, Any]:
    decode = [step for step in steps if step.row.phase == "decode"]
    context = [step for step in steps if step.row.phase == "context"]

    def errors(at: float) -> dict[str, float | None]:
        return {
            "tpot": _quantile([abs(step.error) for step in decode], at),
            "ttft": _quantile([abs(step.error) for step in context], at),
            "throughput": None,
        }

    inside = [low <= step.row.step_s <= high for step in decode for low, high in [_interval(step)]]
    return {
        "rows": len(steps),
        "medianAbsErrorPercent": errors(0.5),
        "p90AbsErrorPercent": errors(0.9),
        "intervalCoveragePercent": {
            "tpot": round(100.0 * sum(inside) / len(inside), 2) if inside else None,
            "ttft": None,
            "throughput": None,
        },
        "ranking": {"pairsOrderedPercent": None, "regretPercent": None, "pairs": 0},
        "baselineMedianAbsTpotErrorPercent": {
            "sameStep": _quantile([abs(step.same_s / step.row.step_s - 1) for step in decode], 0.5),
            "divided": _quantile([abs(step.divided_s / step.row.step_s - 1) for step in decode], 0.5),
            "equation1Raw": _quantile([abs(step.equation1_s / step.row.step_s - 1) for step in decode], 0.5),
        },
    }


def _quantile(values: list[float], at: float) -> float | None:
    return round(100.0 * float(np.quantile(values, at)), 2) if values else None


def _interval(step: ProjectedStep) -> tuple[float, float]:
    narrow = float(step.series.rsplit(":tp", 1)[1].split("-", 1)[0])
    distance = Distance(width_doublings=math.log2(step.row.layout.tensor_parallel / narrow), is_borrowed=True)
    return interval_calibration().interval("tpot", step.predicted_s, distance)


def _document(step: ProjectedStep) -> dict[str, Any]:
    row, key = step.row, "tpot" if step.row.phase == "decode" else "ttft"
    empty: dict[str, Any] = {"tpotMs": None, "ttftMs": None, "throughputTokensPerSecond": None}
    low, high = _interval(step)
    return {
        "series": step.series,
        "line": row.line,
        "layout": row.layout.label(),
        "tp": row.layout.tensor_parallel,
        "pp": 1,
        "islTokens": row.tokens,
        "oslTokens": 1,
        "concurrency": row.batch,
        "measured": {**empty, f"{key}Ms": round(row.step_s / MILLI, 4)},
        "predicted": {**empty, f"{key}Ms": round(step.predicted_s / MILLI, 4)},
        "interval80": {**empty, f"{key}Ms": [round(low / MILLI, 4), round(high / MILLI, 4)]},
        "error": {"tpot": None, "ttft": None, "throughput": None, key: round(step.error, 5)},
        "anchor": step.series.rsplit(":", 1)[1].split("-")[0].upper(),
        "flags": ["single-step", f"accelerator-assumed-{ACCELERATOR}"],
    }
