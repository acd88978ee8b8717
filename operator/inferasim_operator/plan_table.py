"""The table of all candidates of a plan, as Parquet: a row each, in seconds and tokens."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from simcore.errors import InputError
from simcore.prediction.result import METRICS
from simcore.search.plan import Candidate

Row = Mapping[str, Any]
WORDS: Final = ("engine", "engine_version", "layout", "settings", "mode", "anchor_digest")
COUNTS: Final = (
    "tensor_parallel", "pipeline_parallel", "data_parallel", "expert_parallel", "attention_data_parallel",
    "replicas_count", "gpus_count", "concurrency_count",
)  # fmt: skip
FIGURES: Final = (
    "throughput_tokens_per_s", "throughput_per_gpu_tokens_per_s", "interactivity_tokens_per_s", "ttft_s", "tpot_s",
    *(f"replica_{name}_{end}" for name in METRICS for end in ("low80", "high80")),
)  # fmt: skip


def rows_of(candidates: Iterable[Candidate]) -> list[dict[str, Any]]:
    """A row per candidate; the 80 % intervals are those of one replica."""
    return [_row(candidate) for candidate in candidates]


def _row(candidate: Candidate) -> dict[str, Any]:
    shape, prediction = candidate.shape, candidate.prediction
    layout = shape.layout
    row: dict[str, Any] = {
        "engine": shape.option.engine.value,
        "engine_version": shape.option.version or "",
        "layout": layout.label(),
        "settings": candidate.settings,
        "mode": prediction.source.mode,
        "anchor_digest": prediction.source.anchor_digest or "",
        **{name: getattr(layout, name) for name in COUNTS[:5]},
        "replicas_count": candidate.replicas_count,
        "gpus_count": candidate.gpus_count,
        "concurrency_count": candidate.concurrency,
        **{name: float(getattr(candidate, name)) for name in FIGURES[:5]},
        "flags": sorted(prediction.flags),
    }
    for name in METRICS:
        row[f"replica_{name}_low80"], row[f"replica_{name}_high80"] = map(float, prediction.interval80[name])
    return row


def write_table(rows: Sequence[Row], path: Path) -> None:
    """Write `rows` at once or not at all; the same bytes for the same rows. Raises InputError when it cannot."""
    import pyarrow as pa  # here: a second of start-up that only tables are worth
    import pyarrow.parquet as pq

    schema = pa.schema(
        [
            *((name, pa.string()) for name in WORDS),
            *((name, pa.int64()) for name in COUNTS),
            *((name, pa.float64()) for name in FIGURES),
            ("flags", pa.list_(pa.string())),
        ]
    )
    columns = [pa.array([row[field.name] for row in rows], type=field.type) for field in schema]
    partial = path.with_name(f".{path.name}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_arrays(columns, schema=schema), partial, compression="zstd")
        partial.replace(path)
    except OSError as error:
        raise InputError("table", str(path), f"be writable ({error.strerror or error})") from error
