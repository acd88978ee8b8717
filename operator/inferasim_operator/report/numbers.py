"""Figures as people read them. One place decides how many digits and which unit."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

SECONDS_PER_HOUR: Final = 3600
TOKENS_PER_MILLION: Final = 1_000_000
MILLISECONDS_AS_SECONDS: Final = 1000
"""From here on a latency is told in seconds."""


def count(value: float) -> str:
    """A whole number, grouped: `7,140`."""
    return f"{value:,.0f}"


def short(value: float | None) -> str:
    """Three significant digits, whole from 100 on; a dash for what is unknown."""
    if value is None:
        return "–"
    return count(value) if abs(value) >= 100 else f"{value:.3g}"


def latency_ms(value: float | None) -> str:
    """`152 ms`, `6.31 ms`, `12.4 s`; a dash for what is unknown."""
    if value is None:
        return "–"
    return f"{short(value / 1000)} s" if value >= MILLISECONDS_AS_SECONDS else f"{short(value)} ms"


def percent(permille: float | None, *, signed: bool = False) -> str:
    """`6 %` from permille."""
    if permille is None:
        return "–"
    return f"{permille / 10:{'+' if signed else ''}.0f} %"


def span(ends: Mapping[str, Any] | None, scale: float = 1.0) -> str:
    """`2,076–2,963` of an interval document."""
    return "unknown" if ends is None else f"{short(ends['low'] * scale)}–{short(ends['high'] * scale)}"


def latency_span(ends: Mapping[str, Any] | None) -> str:
    """`102–228 ms`, `0.649–5.29 s` of an interval document in milliseconds: one unit for both ends."""
    if ends is None:
        return "unknown"
    if ends["high"] >= MILLISECONDS_AS_SECONDS:
        return f"{short(ends['low'] / 1000)}–{short(ends['high'] / 1000)} s"
    return f"{short(ends['low'])}–{short(ends['high'])} ms"


def gpus(number: int) -> str:
    """`1 GPU`, `4 GPUs`."""
    return f"{count(number)} GPU{'' if number == 1 else 's'}"


def gpu_hours_per_million(tokens_per_second_per_gpu: float) -> float | None:
    """GPU-hours that a million output tokens take; None where nothing comes out."""
    if tokens_per_second_per_gpu <= 0:
        return None
    return TOKENS_PER_MILLION / tokens_per_second_per_gpu / SECONDS_PER_HOUR


def layout(document: Mapping[str, int]) -> str:
    """Short name of a layout document, e.g. `TP2xPP4`."""
    text = f"TP{document['tensorParallel']}"
    if document.get("pipelineParallel", 1) > 1:
        text += f"xPP{document['pipelineParallel']}"
    for label, key in (("DP", "dataParallel"), ("EP", "expertParallel"), ("ADP", "attentionDataParallel")):
        if document.get(key, 1) > 1:
            text += f"-{label}{document[key]}"
    return text


def words(key: str) -> str:
    """A key of a document for people, e.g. `kvPoolBytesPerGpu` as `KV pool bytes per GPU`."""
    spoken = {"kv": "KV", "gpu": "GPU", "gpus": "GPUs", "hbm": "HBM"}
    parts = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", key).lower().split()
    return " ".join(spoken.get(part, part) for part in parts)
