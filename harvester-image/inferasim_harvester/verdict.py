"""All checks of one harvest: those that need its records, then those that the anchor alone allows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from inferasim_harvester import assemble, checkpoint, launch, live_checks
from inferasim_harvester.device import Device
from inferasim_harvester.effective import comparable
from inferasim_harvester.estimates import estimate, outlier_count
from inferasim_harvester.plan import CLOCKS, DRIFT, points_of
from inferasim_harvester.session import Tally
from inferasim_harvester.spec import HarvestSpec
from simcore.anchors import checks as anchor_checks
from simcore.anchors.checks import CheckResult, Verdict, worst
from simcore.anchors.schema import Anchor, ExpertLoadRow
from simcore.cards.versions import version_key

Records = Mapping[str, Mapping[str, Any]]
OUTLIER_FRAC: Final = 0.10
"""A repeat this far from its median is an outlier (ours)."""


@dataclass(frozen=True)
class Seen:
    """What was looked at once in a harvest, beside the points."""

    violations: tuple[Mapping[str, float] | None, Mapping[str, float] | None] = (None, None)
    """The exporter's throttle counters before and after."""
    client_s_per_event: float = 0.0
    model: str | None = None
    """Name under which the engine serves."""
    extra: tuple[CheckResult, ...] = ()
    """Of optional phases."""
    expert_load: tuple[ExpertLoadRow, ...] = ()
    """Of recorded routing."""
    output: CheckResult = field(default_factory=lambda: live_checks.output(None, None))
    """Whether what was produced makes sense."""


def all_checks(
    spec: HarvestSpec,
    records: Records,
    ran: assemble.Ran,
    *,
    is_gpu: bool,
    own_engine: bool,
    devices: Sequence[Device],
    seen: Seen,
) -> tuple[Anchor, tuple[CheckResult, ...]]:
    """(anchor with its live checks inside, every check). Raises MeasurementFailedError when no anchor can be made."""
    records = dict(sorted(records.items()))  # in whatever order pods measured them, the words are the same
    figures = assemble.prefill_figures(records)
    assemble.decode_sweeps(records)  # refuses before anything is judged
    mode, partition = live_checks.one_partition(devices, spec.accelerator.partition, is_gpu=is_gpu)
    ran = assemble.Ran(**{**ran.__dict__, "partition": mode})
    live = [
        anchor_checks.effective_configuration(*comparable(launch.asked_settings(spec), ran.effective)),
        _version(spec, ran),
        live_checks.idle_devices(devices, spec.layout.tensor_parallel, is_gpu=is_gpu, own_engine=own_engine),
        live_checks.throttling(*seen.violations, is_gpu=is_gpu),
        partition,
        live_checks.device_kind(devices, ran.architecture, spec.accelerator.product, is_gpu=is_gpu),
        live_checks.checkpoint_dtype(
            checkpoint.weights_dtype(checkpoint.read_config(spec.model.path)), ran.weights_dtype
        ),
        _prefix_hits(records),
        *live_checks.real_tokens(_tally(records)),
        live_checks.empty_chunks(_tally(records)),
        live_checks.stream_ends(_tally(records)),
        live_checks.served_model(seen.model, spec.model.name, spec.model.path),
        _token_chunks(spec, records),
        seen.output,
        _clock(records),
        _clock_rate(records),
        _cold(records),
        live_checks.precision(_estimates(records)),
        _outliers(records),
        _drift(records),
        _steadiness(spec, records),
        _growth(records),
        live_checks.kv_pool(ran.effective.pools),
        _stalls(records),
        _coalesced(records),
        live_checks.host_time(figures.separated, len(figures.lengths)),
        _acceptance(spec, records),
        _client(records, seen.client_s_per_event),
        live_checks.rank_balance(_ranks(spec, records), spec.attention_ranks),
        *seen.extra,
        live_checks.unmeasured({name: r["unmeasured"] for name, r in records.items() if "unmeasured" in r}),
    ]
    anchor = assemble.build_anchor(
        spec, records, ran, figures, tuple(check.record() for check in live), seen.expert_load
    )
    return anchor, anchor_checks.check_anchor(anchor)


def _version(spec: HarvestSpec, ran: assemble.Ran) -> CheckResult:
    """The engine's own version is the one that the spec names; a build suffix does not count."""
    found = ran.effective.version
    if found is None:
        return CheckResult("engine-version", Verdict.FLAG, "the engine does not say its version")
    try:
        same = version_key(found) == version_key(spec.engine.version)
    except ValueError:
        same = found == spec.engine.version
    verdict = Verdict.PASS if same else Verdict.REFUSE
    return CheckResult("engine-version", verdict, f"asked for {spec.engine.version}, {found} ran")


def _tally(records: Records) -> Tally:
    whole = Tally()
    for record in records.values():
        if "tally" in record:
            whole.add(Tally(**record["tally"]))
    return whole


def _counter(records: Records, name: str) -> list[float | None]:
    return [record["counters"][name] for record in records.values() if "counters" in record]


def _sum(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) and known else None


def _prefix_hits(records: Records) -> CheckResult:
    """The worst point counts, not the average: one warm point bends a sweep (public case E02)."""
    results = []
    for record in records.values():
        # A cache that was filled without prefill counts as hits what nobody has served before.
        if "counters" not in record or record.get("isFilled"):
            continue
        grown = record["counters"]
        hits, queried = grown["hit_tokens"], grown["queried_tokens"]
        tally = Tally(**record["tally"])
        if tally.cached_tokens > (hits or 0.0):  # the answers say more than the counters
            hits, queried = float(tally.cached_tokens), max(queried or 0.0, float(tally.served_prompt_tokens))
        unknown = live_checks.prefix_counters(hits, queried)
        # With caching off vLLM counts no query at all: hits of nothing queried are none.
        results.append(unknown or anchor_checks.prefix_hits(round(hits), round(queried)))
    if not results:
        return CheckResult("prefix-hits", Verdict.FLAG, "no point has counters")
    gravest = worst(results)
    same = [result for result in results if result.verdict is gravest]
    return max(same, key=lambda result: result.numbers.get("hitShare", 0.0))


def _clock(records: Records) -> CheckResult:
    tally = _tally(records)
    requests = _sum(_counter(records, "requests"))
    others = live_checks.others_tokens(_sum(_counter(records, "queried_tokens")), tally.served_prompt_tokens)
    if requests is None and others is not None:
        return others
    return live_checks.clock_agreement(_sum(_counter(records, "e2e_s")), tally.stream_s, requests, tally.requests)


def _clock_rate(records: Records) -> CheckResult:
    seen = records.get(CLOCKS, {})
    return live_checks.clock_rate(seen.get("serverS"), seen.get("clientS", 0.0))


def _cold(records: Records) -> CheckResult:
    """First-token times of each decode point in request order; the worst point counts."""
    results = []
    for name, record in sorted(assemble.measured(records, "decode").items()):
        batch = int(name.split("/")[2])
        results.append(anchor_checks.cold_first_wave(record["ttftS"], batch, warmup_dropped=False))
    results += [
        anchor_checks.cold_first_wave(record["ttftS"], 1, warmup_dropped=False)
        for record in assemble.measured(records, "prefill").values()
    ]
    gravest = worst(results)
    return next(result for result in results if result.verdict is gravest)


def _repeats(records: Records) -> dict[str, list[float]]:
    series: dict[str, list[float]] = {}
    for kind, key in (("decode", "stepsS"), ("prefill", "ttftS"), ("packed", "stepS")):
        for name, record in assemble.measured(records, kind).items():
            series[name] = record[key]
    return series


def _estimates(records: Records) -> dict[str, Any]:
    return {name: estimate(values) for name, values in _repeats(records).items()}


def _outliers(records: Records) -> CheckResult:
    series = _repeats(records)
    counts = {name: outlier_count(values, OUTLIER_FRAC) for name, values in series.items()}
    return live_checks.outliers(counts, sum(len(values) for values in series.values()))


def _drift(records: Records) -> CheckResult:
    again = records.get(DRIFT, {})
    first = next(iter(sorted(assemble.measured(records, "decode"), key=_decode_order)), "")
    name = first or DRIFT
    again_s = estimate(again["stepsS"]).value_s if "stepsS" in again else None
    return live_checks.drift(estimate(records[name]["stepsS"]).value_s, again_s, name)


def _steadiness(spec: HarvestSpec, records: Records) -> CheckResult:
    """In the order of measuring, which the names do not keep."""
    smallest = {point.name: records.get(point.name, {}).get("smallestStepS") for point in points_of(spec)}
    return live_checks.steadiness({name: step_s for name, step_s in smallest.items() if step_s is not None})


def _growth(records: Records) -> CheckResult:
    """The prompt length with the worst growth counts."""
    sweeps: dict[int, dict[int, float]] = {}
    for name, record in assemble.measured(records, "decode").items():
        length, batch = _decode_order(name)
        sweeps.setdefault(length, {})[batch] = estimate(record["stepsS"]).value_s
    results = [live_checks.batch_growth(steps_s, length) for length, steps_s in sorted(sweeps.items())]
    return max(results, key=lambda result: result.numbers["growth"])


def _decode_order(name: str) -> tuple[int, int]:
    _, length, batch = name.split("/")
    return int(length), int(batch)


def _stalls(records: Records) -> CheckResult:
    points = assemble.measured(records, "decode")
    name = max(points, key=lambda key: points[key]["stalledFrac"])
    return live_checks.stalls(points[name]["stalledFrac"], name, _sum(_counter(records, "preemptions")))


def _coalesced(records: Records) -> CheckResult:
    points = assemble.measured(records, "decode")
    name = max(points, key=lambda key: points[key]["coalescedFrac"])
    return live_checks.coalesced(points[name]["coalescedFrac"], name)


def _ranks(spec: HarvestSpec, records: Records) -> dict[str, Mapping[str, float]]:
    """Requests by rank of the decode points that have one for every rank."""
    return {
        name: record.get("requestsByRank", {})
        for name, record in assemble.measured(records, "decode").items()
        if int(name.split("/")[2]) % spec.attention_ranks == 0
    }


def _token_chunks(spec: HarvestSpec, records: Records) -> CheckResult:
    points = assemble.measured(records, "decode")
    name = max(points, key=lambda key: abs(points[key]["tokensPerChunk"] - 1.0))
    return live_checks.token_chunks(
        points[name]["tokensPerChunk"],
        name,
        speculates=spec.signature.speculation is not None,
        drafted_frac=max(record.get("draftedFrac", 0.0) for record in points.values()),
    )


def _acceptance(spec: HarvestSpec, records: Records) -> CheckResult:
    speculation = spec.signature.speculation
    forced = speculation.forced_acceptance_length if speculation else None
    return live_checks.acceptance(speculation is not None, forced, assemble.acceptance_length(records))


def _client(records: Records, client_s_per_event: float) -> CheckResult:
    """The worst batch: all chunks of a step are stamped before the step ends."""
    shares = {
        name: (client_s_per_event * int(name.split("/")[2]), estimate(record["stepsS"]).value_s)
        for name, record in assemble.measured(records, "decode").items()
    }
    client_s, step_s = max(shares.values(), key=lambda pair: pair[0] / pair[1])
    return anchor_checks.client_overhead(client_s, step_s)
