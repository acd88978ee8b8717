"""Measured cells on their way into a corpus, and what the user must add because result files do not say it."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from simcore.anchors.checks import cold_first_wave
from simcore.cards.library import load_model_card
from simcore.errors import FormatError, InputError, UnknownNameError
from simcore.units import MILLI
from simcore.validate.corpus import COLUMNS
from simcore.validate.importers.definitions import RequestTimes, mean_tpot_s

ACHIEVED_RATE_FRAC = 0.9
"""A run that reaches less of its requested rate is a closed loop held by its cap, not an open one (public case E06)."""
UNIT_MISTAKE = 200
"""A factor that no load explains and a thousand does."""


@dataclass(frozen=True)
class Deployment:
    """What a result file may leave open; None = not known yet."""

    series: str | None = None
    role: str = "anchor"
    engine: str | None = None
    model: str | None = None
    accelerator: str | None = None
    weights_dtype: str | None = None
    tp: int | None = None
    pp: int = 1
    dp: int = 1
    ep: int = 1
    attention_dp: int = 1
    pools: str = ""

    def over(self, found: Deployment) -> Deployment:
        """What the user said, completed by what the file says. Raises InputError when the two disagree."""
        merged: dict[str, Any] = {}
        for item in fields(self):
            said, seen = getattr(self, item.name), getattr(found, item.name)
            if item.default is None and said is not None and seen is not None and not _agree(item.name, said, seen):
                raise InputError(item.name, said, f"agree with the file, which says {seen!r}")
            merged[item.name] = said if said != item.default else seen
        return replace(self, **merged)


def _agree(name: str, said: object, seen: object) -> bool:
    """Is this one thing under two names? A file may call a model by a path or a served name that no card knows.

    A client's backend `vllm` is a way to ask: any server with that API answers it, ATOM's own client included.
    """
    if name == "engine" and str(seen) == "VLLM":
        return True
    if name != "model":
        return str(said).lower() == str(seen).lower()
    try:
        return load_model_card(str(said)).name == load_model_card(str(seen)).name
    except UnknownNameError:
        return True


@dataclass(frozen=True)
class Measured:
    """One run in SI units. Lengths are served means, not what was asked for (public cases E01, E07)."""

    prompt_tokens: float
    output_tokens: float
    concurrency: int
    ttft_s: float
    tpot_s: float | None
    throughput_tokens_per_s: float | None
    requests_count: int
    deployment: Deployment = field(default_factory=Deployment)
    notes: tuple[str, ...] = ()


def from_requests(
    requests: list[RequestTimes], *, prompt_tokens: float, concurrency: int, duration_s: float | None, where: str
) -> Measured:
    """A run from its per-request records, in the order they were sent. Raises FormatError when there is none.

    An opening wave that is late as a whole, and alone, is a cold engine (public case E08): it is dropped, and with it
    the throughput, whose duration includes the wait.
    """
    if not requests:
        raise FormatError(where, None, "requests", 0, "hold at least one successful request")
    cold = cold_first_wave([request.ttft_s for request in requests], concurrency, warmup_dropped=False)
    if cold.numbers["firstWaveOutliers"] == concurrency == cold.numbers["outliers"] < len(requests):
        warm = from_requests(
            requests[concurrency:], prompt_tokens=prompt_tokens, concurrency=concurrency, duration_s=None, where=where
        )
        note = f"the opening wave of {concurrency} met a cold engine and was dropped, and the throughput with it"
        return replace(warm, notes=(*warm.notes, note))
    several = [request for request in requests if request.output_tokens > 1]
    if several and all(request.request_s <= request.ttft_s for request in several):
        raise not_streamed(where)
    produced = sum(request.output_tokens for request in requests)
    single = sum(request.output_tokens < 2 for request in requests)
    notes = (f"{single} single-token requests have no TPOT",) if single else ()
    return Measured(
        prompt_tokens=prompt_tokens,
        output_tokens=produced / len(requests),
        concurrency=concurrency,
        ttft_s=sum(request.ttft_s for request in requests) / len(requests),
        tpot_s=mean_tpot_s(requests),
        throughput_tokens_per_s=produced / duration_s if duration_s else None,
        requests_count=len(requests),
        notes=notes,
    )


def not_streamed(where: str) -> FormatError:
    """The first token came with the last one: its time is no TTFT, and no TPOT follows."""
    hint = "the answers were not streamed, so the file holds no time to first token: measure with streaming on"
    return FormatError(where, None, "tpot", 0, "be above 0 for answers of several tokens", hint)


def failure_note(failed_count: float, asked_count: float) -> tuple[str, ...]:
    """What a run says of its failed requests: nothing where none failed."""
    return (f"{failed_count:.0f} of {asked_count:.0f} requests failed",) if failed_count > 0 else ()


def refuse_mixed_units(measured: Measured, where: str) -> None:
    """Throughput times latency is what was in flight (Little): far from the concurrency, a unit is not what it says.

    Raises FormatError.
    """
    if measured.tpot_s is None or measured.throughput_tokens_per_s is None:
        return
    request_s = measured.ttft_s + max(measured.output_tokens - 1, 0) * measured.tpot_s
    in_flight = measured.throughput_tokens_per_s / measured.output_tokens * request_s
    if not measured.concurrency / UNIT_MISTAKE <= in_flight <= measured.concurrency * UNIT_MISTAKE:
        must = f"be near the concurrency {measured.concurrency}"
        hint = "a latency or the duration is in another unit than its name says (seconds for milliseconds?)"
        raise FormatError(where, None, "throughput x latency", f"{in_flight:.3g} requests in flight", must, hint)


@dataclass(frozen=True)
class Load:
    """How a run was driven."""

    concurrency: int
    notes: tuple[str, ...]


def load_of(
    *,
    requested_requests_per_s: float | None,
    achieved_requests_per_s: float,
    cap: int | None,
    mean_request_s: float,
    where: str,
    requests_count: int | None = None,
) -> Load:
    """The concurrency a run stands for: its cap when that held it, else the mean in flight by Little's law.

    A run of fewer requests than its cap never has more in flight than it has requests.

    Raises FormatError when neither is known.
    """
    mean_in_flight = achieved_requests_per_s * mean_request_s
    if not math.isfinite(mean_in_flight):
        raise FormatError(where, None, "duration", mean_in_flight, "be long enough for a request rate to follow")
    in_flight = max(round(mean_in_flight), 1)
    if cap is not None and requests_count is not None and cap > requests_count:
        note = f"{requests_count} requests never fill a concurrency of {cap}"
        return Load(requests_count if requested_requests_per_s is None else in_flight, (note,))
    if requested_requests_per_s is None:
        if cap is None:
            raise FormatError(where, None, "max_concurrency", None, "be given when the request rate is unlimited")
        return Load(cap, ())
    if achieved_requests_per_s < ACHIEVED_RATE_FRAC * requested_requests_per_s:
        held = cap if cap is not None else in_flight
        reached = f"{achieved_requests_per_s:.3g} of {requested_requests_per_s:.3g} requests/s reached"
        note = f"closed loop: {reached}; latencies omit the wait"
        return Load(held, (note,))
    return Load(
        in_flight, (f"open loop at {requested_requests_per_s:.3g} requests/s; concurrency is the mean in flight",)
    )


def corpus_text(runs: Iterable[tuple[Measured, Deployment, str]]) -> str:
    """CSV in corpus columns. Raises InputError naming the option for what neither file nor user says."""
    out = io.StringIO()
    writer = csv.DictWriter(out, fieldnames=COLUMNS, lineterminator="\n")
    writer.writeheader()
    for measured, said, source in runs:
        writer.writerow(_record(measured, said.over(measured.deployment), source))
    return out.getvalue()


def _record(measured: Measured, deployment: Deployment, source: str) -> Mapping[str, object]:
    for name in ("engine", "model", "accelerator", "weights_dtype", "tp"):
        if getattr(deployment, name) is None:
            raise InputError(name, None, "be known", f"the file does not say it: add --{name.replace('_', '-')}")
    called = measured.deployment.model
    names: tuple[str, ...] = (f"the file calls the model {called}",) if called not in (None, deployment.model) else ()
    client = measured.deployment.engine
    names += (f"asked by a client of {client}",) if client not in (None, deployment.engine) else ()
    series = deployment.series or f"import:{deployment.model}:{deployment.engine}"
    return {
        "series": series,
        "role": deployment.role,
        **{name: getattr(deployment, name) for name in ("engine", "model", "accelerator", "weights_dtype")},
        **{name: getattr(deployment, name) for name in ("tp", "pp", "dp", "ep", "attention_dp", "pools")},
        "isl_tokens": round(measured.prompt_tokens),
        "osl_tokens": round(measured.output_tokens),
        "length_range_ratio": 1,
        "concurrency": measured.concurrency,
        "ttft_ms": f"{measured.ttft_s / MILLI:.4f}",
        "tpot_ms": "" if measured.tpot_s is None else f"{measured.tpot_s / MILLI:.4f}",
        "throughput_tok_s": ""
        if measured.throughput_tokens_per_s is None
        else f"{measured.throughput_tokens_per_s:.3f}",
        "samples": measured.requests_count,
        "source": "; ".join((source, *names, *measured.notes)),
    }
