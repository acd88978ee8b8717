"""From measured points to the anchor of paper App. I."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from inferasim_harvester.effective import Effective
from inferasim_harvester.errors import MeasurementFailedError
from inferasim_harvester.estimates import Estimate, Quadratic, estimate, fit_line, fit_quadratic
from inferasim_harvester.spec import HarvestSpec
from simcore.anchors.schema import (
    Anchor,
    CheckRecord,
    DecodePoint,
    DecodeSweep,
    ExpertLoadRow,
    GraphCapture,
    HostTime,
    MeasuredMemory,
    PackedPoint,
    PackedPrefill,
    PrefillFit,
    PrefillPoint,
    PrefillSweep,
    Provenance,
    Signature,
    Speculation,
)
from simcore.units import MICRO, MILLI

Records = Mapping[str, Mapping[str, Any]]
NANO = 1e-9


@dataclass(frozen=True)
class Ran:
    """Facts of the run beside the points."""

    effective: Effective
    weights_dtype: str
    architecture: str | None
    partition: str | None
    harvested_at: str
    node: str | None
    client_command: str


@dataclass(frozen=True)
class PrefillFigures:
    """The prefill sweep, host time taken out where it could be told apart."""

    lengths: tuple[int, ...]
    """Served lengths."""
    times_s: tuple[float, ...]
    estimates: tuple[Estimate, ...]
    fit: Quadratic
    host: tuple[float, float] | None
    """(seconds per request, seconds per prompt token)."""
    separated: int
    """Lengths at which host time could be told apart."""


def measured(records: Records, kind: str) -> dict[str, Mapping[str, Any]]:
    """The points of one kind that have values."""
    return {name: r for name, r in records.items() if name.startswith(kind + "/") and "unmeasured" not in r}


def prefill_figures(records: Records) -> PrefillFigures:
    """Fit and host line. Raises MeasurementFailedError below two lengths.

    A prompt alone takes host time and step; behind another prompt it takes its step only. Both say the step once, so
    each point is the mean of the two.
    """
    by_length: dict[int, Mapping[str, Any]] = {}
    for record in measured(records, "prefill").values():
        by_length[int(record["servedTokens"])] = record
    lengths = tuple(sorted(by_length))
    if len(lengths) < 2:
        raise MeasurementFailedError(f"{len(lengths)} prefill lengths were measured; a fit needs two")
    alone = {n: estimate(by_length[n]["ttftS"]) for n in lengths}
    behind = {n: estimate(by_length[n]["stepS"]) for n in lengths if by_length[n]["stepS"]}
    host = None
    if len(behind) >= 2:
        known = list(behind)
        weights = [1.0 / alone[n].value_s ** 2 for n in known]
        host = fit_line(known, [alone[n].value_s - behind[n].value_s for n in known], weights)
    times = [alone[n].value_s for n in lengths]
    if host:
        net = {n: alone[n].value_s - (host[0] + host[1] * n) for n in lengths}
        times = [(net[n] + behind[n].value_s) / 2 if n in behind else net[n] for n in lengths]
    if min(times) <= 0:  # the noise is larger than the host's share: F holds it then, and `host-time` says so
        host, behind, times = None, {}, [alone[n].value_s for n in lengths]
    fit = fit_quadratic(lengths, times)
    return PrefillFigures(lengths, tuple(times), tuple(alone[n] for n in lengths), fit, host, len(behind))


def decode_sweeps(records: Records) -> list[DecodeSweep]:
    """One sweep per prompt length. Raises MeasurementFailedError without any."""
    lengths: dict[int, list[tuple[int, Mapping[str, Any]]]] = {}
    for name, record in measured(records, "decode").items():
        _, length, batch = name.split("/")
        lengths.setdefault(int(length), []).append((int(batch), record))
    if not lengths:
        reasons = {record["unmeasured"] for record in records.values() if "unmeasured" in record}
        raise MeasurementFailedError("no decode point could be measured: " + "; ".join(sorted(reasons)))
    sweeps = []
    for _, points in sorted(lengths.items()):
        points.sort(key=lambda item: item[0])
        sweeps.append(
            DecodeSweep(
                prompt_tokens=round(float(np.median([record["servedTokens"] for _, record in points]))),
                context_tokens=round(float(np.mean([record["contextTokens"] for _, record in points]))),
                points=tuple(
                    DecodePoint(
                        batch=batch,
                        step_milliseconds=_rounded(estimate(record["stepsS"]).value_s / MILLI),
                        repeats=len(record["stepsS"]),
                        spread=_rounded(estimate(record["stepsS"]).spread),
                    )
                    for batch, record in points
                ),
            )
        )
    return sweeps


def packed_prefill(records: Records, token_budget: int | None) -> PackedPrefill | None:
    """The probe, where any of it could be measured. An unknown budget is at least what was packed."""
    found = measured(records, "packed")
    if not found:
        return None
    points, length = [], 0
    for name, record in found.items():
        length, count = (int(part) for part in name.split("/")[1:])
        points.append(PackedPoint(sequences=count, milliseconds=_rounded(estimate(record["stepS"]).value_s / MILLI)))
    points.sort(key=lambda point: point.sequences)
    budget = token_budget or points[-1].sequences * length
    return PackedPrefill(sequence_tokens=length, token_budget=budget, points=tuple(points))


def signature(spec: HarvestSpec, ran: Ran, acceptance: float) -> Signature:
    """Built from what ran where that was seen, else from what was asked (public case E10)."""
    effective, asked = ran.effective.settings, spec.signature
    layout = spec.layout
    captures = effective.get("graphCapture", "on" if asked.graph_capture == "Enabled" else "off") == "on"
    speculation = asked.speculation
    tensor = effective.get("tensorParallel", layout.tensor_parallel)
    return Signature(
        accelerator_architecture=ran.architecture,
        accelerator=spec.accelerator.product,
        partition=ran.partition or spec.accelerator.partition,
        engine=spec.engine.name.value,
        engine_version=ran.effective.version or spec.engine.version,
        image=spec.engine.image,
        model=spec.model.name,
        weights_dtype=ran.weights_dtype,
        activation_dtype=asked.activation_dtype,
        kv_dtype=asked.kv_dtype or _text(effective.get("kvDtype")),
        expert_dtype=asked.expert_dtype,
        attention_backend=_text(effective.get("attentionBackend")) or asked.attention_backend,
        moe_backend=_text(effective.get("moeBackend")) or asked.moe_backend,
        graph_capture=GraphCapture(
            mode="piecewise" if ran.effective.graph_mode == "piecewise" else "full", sizes=ran.effective.graph_sizes
        )
        if captures
        else GraphCapture(mode="none"),
        speculation=Speculation(
            method=speculation.method.lower(), depth=speculation.draft_tokens, acceptance_length=max(1.0, acceptance)
        )
        if speculation
        else None,
        tensor_parallel=tensor if isinstance(tensor, int) else layout.tensor_parallel,
        expert_parallel=layout.expert_parallel,
        attention_data_parallel=spec.attention_ranks,
    )


def acceptance_length(records: Records) -> float:
    """Mean tokens per chunk over the decode points; 1 without speculation."""
    values = [record["tokensPerChunk"] for record in measured(records, "decode").values()]
    return float(np.mean(values)) if values else 1.0


def build_anchor(
    spec: HarvestSpec,
    records: Records,
    ran: Ran,
    figures: PrefillFigures,
    checks: tuple[CheckRecord, ...],
    expert_load: tuple[ExpertLoadRow, ...] = (),
) -> Anchor:
    """The anchor, live checks included. Raises MeasurementFailedError."""
    fit, host = figures.fit, figures.host
    notes = ["prefill points and fit are net of host time; a lone prompt's first token takes both" if host else
             "host time could not be separated: prefill points and F include it"]  # fmt: skip
    notes.append("prompts are random tokens, sampled answers at temperature 1")
    sweeps = decode_sweeps(records)
    filled = sorted({int(name.split("/")[1]) for name, r in measured(records, "decode").items() if r.get("isFilled")})
    if filled:
        notes.append(
            f"decode at {filled[0]} prompt tokens: KV cache filled without prefill, on an engine started for it"
        )
    memory = ran.effective.memory
    return Anchor(
        signature=signature(spec, ran, acceptance_length(records)),
        decode=tuple(sweeps),
        prefill=PrefillSweep(
            points=tuple(
                PrefillPoint(
                    prompt_tokens=n, milliseconds=_rounded(t / MILLI), repeats=e.repeats, spread=_rounded(e.spread)
                )
                for n, t, e in zip(figures.lengths, figures.times_s, figures.estimates, strict=True)
            ),
            fit=PrefillFit(
                fixed_milliseconds=_rounded(fit.fixed_s / MILLI),
                per_token_microseconds=_rounded(fit.s_per_token / MICRO),
                per_token_squared_nanoseconds=_rounded(fit.s_per_token2 / NANO),
                residual_percent=_rounded(100 * fit.residual),
            ),
        ),
        packed_prefill=packed_prefill(records, ran.effective.token_budget),
        host_time=HostTime(
            per_request_milliseconds=_rounded(host[0] / MILLI), per_prompt_token_microseconds=_rounded(host[1] / MICRO)
        )
        if host
        else None,
        memory=MeasuredMemory(
            weights_bytes=memory.get("weightsBytes"),
            graph_bytes=memory.get("graphBytes"),
            kv_pool_tokens=ran.effective.kv_pool_tokens,
        )
        if memory or ran.effective.kv_pool_tokens
        else None,
        expert_load=expert_load or None,
        provenance=Provenance(
            source="harvested",
            harvested_at=ran.harvested_at,
            node=ran.node,
            real_weights=spec.model.weights == "Real",
            prefix_caching_off=ran.effective.settings.get("prefixCaching") == "off",
            client_command=ran.client_command[:4000],
            notes=tuple(notes),
            checks=checks,
            max_concurrency=max(point.batch for sweep in sweeps for point in sweep.points),
        ),
    )


def _rounded(value: float) -> float:
    """Six significant digits: more would claim a precision that no clock has."""
    return float(f"{value:.6g}")


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
