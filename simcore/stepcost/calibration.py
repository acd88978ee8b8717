"""Quantities learnt across series, each with its source, from `simcore/data/calibration/laws.yaml`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from math import isfinite
from typing import Any

from simcore.data.loader import read_data
from simcore.errors import FormatError

LAWS_FILE = "calibration/laws.yaml"


@dataclass(frozen=True)
class Calibration:
    """Global parameters of the transfer laws. A field's record in the YAML says how it was obtained."""

    weight_bandwidth_frac: float
    """Share of the HBM datasheet rate at which a decode step reads attention, dense and shared weights."""
    least_constant_frac: float
    """At least this share of the cheapest step is constant, whatever the bytes say: launches and sampling stay."""
    kv_bandwidth_frac: float
    """Prior share of the HBM rate at which a decode step reads context."""
    kv_prior_spread: float
    """Log spread of that prior between series."""
    reduce_latency_s: float
    """What one all-reduce adds to a served token whatever its size: kernel, and the waiting of ranks and host."""
    step_reduce_latency_s: float
    """The same inside a single engine step timed on the GPU, without the serving around it."""
    step_reduce_bytes_per_s: float
    """Rate of an all-reduce's ring traffic in a single engine step, per GPU."""
    reduce_bytes_per_s: float
    """Rate of an all-reduce's ring traffic inside a decode step, per GPU."""
    dense_prefill_flop_frac: float
    """Prior share of the matrix peak that prefill reaches on a dense model."""
    moe_prefill_flop_frac: float
    """The same where experts carry most of the work."""
    index_flop_frac: float
    """Share of the matrix peak at which a sparse-attention indexer scores and sorts its context."""
    host_s: float
    """Prior of what a TTFT holds beside prefills: client, tokenisation, scheduling, the way of the first token."""
    host_prior_spread: float
    """Log spread of that prior between series."""
    prefill_prior_spread: float
    """Log spread of that prior between series."""
    prefill_weight_bandwidth_frac: float
    """Share of the HBM rate at which prefill reads all weights (F)."""
    layer_passes_count: float
    """Times a layer reads or writes a token's whole hidden state in prefill outside its matrices."""
    expert_passes_count: float
    """The same per routed expert of a token: sent to it, in and out of its matrices, combined."""

    def of_single_steps(self) -> Calibration:
        """For engine steps timed on the GPU, without the waiting of ranks and host around them."""
        return replace(
            self, reduce_latency_s=self.step_reduce_latency_s, reduce_bytes_per_s=self.step_reduce_bytes_per_s
        )


@cache
def calibration() -> Calibration:
    """The shipped calibration. Raises FormatError when a record lacks a value or a source."""
    return calibration_from(read_data(LAWS_FILE))


def calibration_from(raw: object, where: str = LAWS_FILE) -> Calibration:
    """The calibration in plain data: {field: {value, source, …}}. Raises FormatError."""
    if not isinstance(raw, Mapping):
        raise FormatError(where, None, "file", type(raw).__name__, "be a mapping")
    names = [field.name for field in fields(Calibration)]
    values: dict[str, float] = {}
    for name in names:
        values[name] = _value(raw.get(name), name, where)
    unknown = sorted(set(raw) - set(names))
    if unknown:
        raise FormatError(where, None, str(unknown[0]), raw[unknown[0]], "be a known quantity")
    return Calibration(**values)


def _value(record: Any, name: str, where: str) -> float:
    if not isinstance(record, Mapping) or not record.get("source"):
        raise FormatError(where, None, name, record, "be a record with `value` and `source`")
    value = record.get("value")
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value) or value <= 0:
        raise FormatError(where, None, name, value, "be a positive number")
    return float(value)
