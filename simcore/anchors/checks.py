"""The harvest checks of paper App. E and of the public cases, one pure function each.

Every check takes what was recorded and returns a `CheckResult` with its numbers. Bounds are named constants here with
their source; a check never changes a measurement.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from types import MappingProxyType
from typing import Final

import numpy as np

from simcore.anchors.schema import Anchor, CheckRecord

HIT_SHARE_LIMIT: Final = 0.01
"""Prefix-cache hits over queried tokens (public case E02: warn from 1 %)."""
LENGTH_PASS, LENGTH_FLAG = 0.01, 0.02
"""Served over asked prompt length (E01: above 1-2 % reject or relabel)."""
OUTPUT_FLAG: Final = 0.03
"""Produced over asked output length (E07: more than a few percent)."""
DROP_PASS, DROP_FLAG = 0.02, 0.10
"""Fall of a step against a smaller batch. Ours: 2 % is the median spread of repeated rows."""
RESIDUAL_PASS, RESIDUAL_FLAG = 0.05, 0.15
"""Largest relative residual of the prefill fit. Ours."""
SPREAD_FLAG: Final = 0.05
"""Interquartile range over median of one point. Ours."""
PACKED_LOW, PACKED_HIGH = 0.63, 1.39
"""A packed step over one sequence of the same tokens (paper App. E; bad probes gave 3.59 and 7.06)."""
OUTLIER_FACTOR: Final = 5.0
"""A first token this many medians late is an outlier (E08: 40 s against about 1 s). Ours."""
TAIL_SAMPLES: Final = 100
"""Requests below which no 99th percentile is stated (E08)."""
REPEATS: Final = 3
DECODE_POINTS, PREFILL_POINTS = 3, 5
"""Batches a sweep needs, prompt lengths a prefill sweep takes (paper 3.1.1: five)."""
CLIENT_SHARE_FLAG: Final = 0.10
"""Client time over the step it measures. Ours."""


class Verdict(StrEnum):
    """What a check says of an anchor, from best to worst."""

    PASS = "pass"  # noqa: S105  (a verdict, no password)
    FLAG = "flag"
    REFUSE = "refuse"


@dataclass(frozen=True)
class CheckResult:
    """One named check: verdict, one sentence, and the numbers behind it."""

    name: str
    verdict: Verdict
    detail: str
    numbers: Mapping[str, float] = field(default_factory=dict)

    def record(self) -> CheckRecord:
        """The form kept in an anchor's provenance."""
        return CheckRecord(name=self.name, verdict=self.verdict.value, detail=self.detail, numbers=dict(self.numbers))


def worst(results: Sequence[CheckResult]) -> Verdict:
    """The gravest verdict of `results`; pass when there are none."""
    order = list(Verdict)
    return max((result.verdict for result in results), key=order.index, default=Verdict.PASS)


def real_weights(anchor: Anchor) -> CheckResult:
    """Random weights spread tokens evenly over experts: GLM-5.2 decode was 1.337x too fast at batch 64 (App. E)."""
    if anchor.provenance.real_weights:
        return CheckResult("real-weights", Verdict.PASS, "a real checkpoint was loaded")
    return CheckResult("real-weights", Verdict.REFUSE, "weights were random, so router, experts and acceptance are not")


def prefix_caching(anchor: Anchor) -> CheckResult:
    """Nothing downstream can tell a warm sweep from a cold one, so caching must be off (App. E)."""
    if anchor.provenance.prefix_caching_off:
        return CheckResult("prefix-caching", Verdict.PASS, "prefix caching was off")
    return CheckResult("prefix-caching", Verdict.REFUSE, "prefix caching was on: prefill points may be partly cached")


def prefix_hits(hit_tokens: int, queried_tokens: int) -> CheckResult:
    """Share of queried prompt tokens that came from the prefix cache; at most 1 % (public case E02)."""
    share = hit_tokens / queried_tokens if queried_tokens else 0.0
    numbers = {"hitTokens": hit_tokens, "queriedTokens": queried_tokens, "hitShare": share}
    detail = f"{hit_tokens} of {queried_tokens} prompt tokens ({share:.1%}) came from the prefix cache"
    if not 0 <= hit_tokens <= queried_tokens:  # a restarted engine, or counters of two of them
        detail = f"the counters contradict each other: {hit_tokens} hits of {queried_tokens} queried prompt tokens"
        return CheckResult("prefix-hits", Verdict.REFUSE, detail, numbers)
    return CheckResult("prefix-hits", Verdict.REFUSE if share > HIT_SHARE_LIMIT else Verdict.PASS, detail, numbers)


def served_length(asked_tokens: int, served_tokens: int) -> CheckResult:
    """The served prompt length is the anchor's coordinate; a large gap to the asked one refuses (public case E01)."""
    deviation = served_tokens / asked_tokens - 1.0
    verdict = _graded(abs(deviation), LENGTH_PASS, LENGTH_FLAG)
    detail = f"asked for {asked_tokens} prompt tokens, {served_tokens} were served ({deviation:+.2%})"
    numbers = {"askedTokens": asked_tokens, "servedTokens": served_tokens, "deviation": deviation}
    return CheckResult("served-length", verdict, detail, numbers)


def output_length(asked_tokens: int, produced_tokens: int) -> CheckResult:
    """Early stops: rates must use the produced length; a gap above a few percent is flagged (public case E07)."""
    deviation = produced_tokens / asked_tokens - 1.0
    verdict = Verdict.FLAG if abs(deviation) > OUTPUT_FLAG else Verdict.PASS
    detail = f"asked for {asked_tokens} output tokens, {produced_tokens} were produced ({deviation:+.2%})"
    numbers = {"askedTokens": asked_tokens, "producedTokens": produced_tokens, "deviation": deviation}
    return CheckResult("output-length", verdict, detail, numbers)


def time_per_output_token_s(e2e_s: float, ttft_s: float, produced_tokens: int) -> float | None:
    """TPOT from the produced length (public case E07): (E2E - TTFT) / (n - 1); None below two tokens.

    >>> time_per_output_token_s(2.2, 0.2, 101)
    0.02
    """
    return (e2e_s - ttft_s) / (produced_tokens - 1) if produced_tokens > 1 else None


def monotone_sweep(anchor: Anchor) -> CheckResult:
    """A larger batch or a longer prompt is never faster, but for noise."""
    series = [[point.step_s for point in sweep.points] for sweep in anchor.decode]
    series.append([point.milliseconds for point in anchor.prefill.points])
    drop = max((1.0 - high / low for values in series for low, high in pairwise(values)), default=0.0)
    drop = max(drop, 0.0)
    detail = f"the largest fall between neighbouring points is {drop:.1%}"
    return CheckResult("monotone-sweep", _graded(drop, DROP_PASS, DROP_FLAG), detail, {"largestDrop": drop})


def fit_residual(anchor: Anchor) -> CheckResult:
    """The stated F, c1, c2 reproduce the prefill points, the widest packed probe included."""
    fit = anchor.prefill.fit
    points = [
        (point.prompt_tokens, float(point.prompt_tokens) ** 2, point.milliseconds) for point in anchor.prefill.points
    ]
    if anchor.packed_prefill:
        length, widest = anchor.packed_prefill.sequence_tokens, anchor.packed_prefill.points[-1]
        points.append((widest.sequences * length, widest.sequences * float(length) ** 2, widest.milliseconds))
    residual = max(
        abs(
            (
                fit.fixed_milliseconds
                + fit.per_token_microseconds * n * 1e-3
                + fit.per_token_squared_nanoseconds * q * 1e-6
            )
            / measured
            - 1.0
        )
        for n, q, measured in points
    )
    detail = f"F + c1 n + c2 n^2 misses a measured point by at most {residual:.1%}"
    return CheckResult("fit-residual", _graded(residual, RESIDUAL_PASS, RESIDUAL_FLAG), detail, {"residual": residual})


def graph_sizes(anchor: Anchor) -> CheckResult:
    """Every measured batch below the largest graph is itself a captured size; else the step was a padded one."""
    capture = anchor.signature.graph_capture
    if capture is None:
        return CheckResult("graph-sizes", Verdict.FLAG, "the graph-capture mode is unknown")
    if capture.mode == "none":
        return CheckResult("graph-sizes", Verdict.PASS, "eager mode: nothing is padded")
    if not capture.sizes:
        return CheckResult("graph-sizes", Verdict.FLAG, f"mode `{capture.mode}` without captured sizes")
    batches = {point.batch for sweep in anchor.decode for point in sweep.points}
    padded = sorted(batch for batch in batches if batch <= capture.sizes[-1] and batch not in capture.sizes)
    unmeasured = [size for size in capture.sizes if size not in batches]
    numbers = {"paddedPoints": len(padded), "unmeasuredSizes": len(unmeasured)}
    if padded:
        return CheckResult("graph-sizes", Verdict.FLAG, f"measured batches {padded} are no captured sizes", numbers)
    detail = f"{len(unmeasured)} of {len(capture.sizes)} captured sizes are interpolated"
    return CheckResult("graph-sizes", Verdict.PASS, detail, numbers)


def sweep_size(anchor: Anchor) -> CheckResult:
    """A sweep from batch 1 over several batches, and five prompt lengths."""
    batches = [point.batch for point in anchor.decode[0].points]
    lengths = len(anchor.prefill.points)
    numbers = {"decodePoints": len(batches), "prefillPoints": lengths, "smallestBatch": batches[0]}
    short = len(batches) < DECODE_POINTS or lengths < PREFILL_POINTS or batches[0] != 1
    detail = f"{len(batches)} batches from {batches[0]} on, {lengths} prompt lengths"
    return CheckResult("sweep-size", Verdict.FLAG if short else Verdict.PASS, detail, numbers)


def spread(anchor: Anchor) -> CheckResult:
    """Noise of the repeats of one point."""
    spreads = [point.spread for sweep in anchor.decode for point in sweep.points if point.spread is not None]
    spreads += [point.spread for point in anchor.prefill.points if point.spread is not None]
    if not spreads:
        return CheckResult("spread", Verdict.FLAG, "no point records its spread")
    largest = max(spreads)
    verdict = Verdict.FLAG if largest > SPREAD_FLAG else Verdict.PASS
    return CheckResult(
        "spread", verdict, f"largest interquartile range over median is {largest:.1%}", {"spread": largest}
    )


def minimum_repeats(anchor: Anchor) -> CheckResult:
    """A median needs at least three repeats of each point."""
    repeats = [point.repeats for sweep in anchor.decode for point in sweep.points]
    fewest = min((count or 0 for count in repeats), default=0)
    verdict = Verdict.PASS if fewest >= REPEATS else Verdict.FLAG
    return CheckResult("minimum-repeats", verdict, f"the least repeated decode point has {fewest}", {"fewest": fewest})


def packed_prefill(anchor: Anchor) -> CheckResult:
    """A step of N packed tokens must cost 0.63 to 1.39 times one N-token sequence; else it was serialised (App. E)."""
    probe = anchor.packed_prefill
    if probe is None:
        return CheckResult("packed-prefill", Verdict.PASS, "no packed-prefill probe")
    lengths = np.array([point.prompt_tokens for point in anchor.prefill.points], dtype=float)
    times = np.array([point.milliseconds for point in anchor.prefill.points])
    ratios = []
    for point in probe.points:
        packed = point.sequences * probe.sequence_tokens
        if packed > probe.token_budget:
            detail = f"{point.sequences} x {probe.sequence_tokens} tokens exceed the budget of {probe.token_budget}"
            return CheckResult("packed-prefill", Verdict.REFUSE, detail, {"packedTokens": packed})
        if lengths[0] <= packed <= lengths[-1]:
            ratios.append(point.milliseconds / float(np.interp(packed, lengths, times)))
    if not ratios:
        return CheckResult("packed-prefill", Verdict.FLAG, "no single sequence is as long as a packed step")
    low, high = min(ratios), max(ratios)
    inside = low >= PACKED_LOW and high <= PACKED_HIGH
    detail = f"packed steps cost {low:.2f} to {high:.2f} times one sequence of the same tokens"
    numbers = {"lowest": low, "highest": high}
    return CheckResult("packed-prefill", Verdict.PASS if inside else Verdict.REFUSE, detail, numbers)


def cold_first_wave(ttft_s: Sequence[float], concurrency: int, *, warmup_dropped: bool) -> CheckResult:
    """Late first tokens that are exactly the opening wave mean a cold engine inside the sample (public case E08).

    `ttft_s` is in request order. Outliers elsewhere are flagged too; fewer than 100 requests allow no 99th percentile.
    """
    values = np.asarray(ttft_s, dtype=float)
    if len(values) == 0:
        return CheckResult("cold-first-wave", Verdict.REFUSE, "no request was measured")
    late = np.flatnonzero(values > OUTLIER_FACTOR * float(np.median(values)))
    kept = values[concurrency:] if len(values) > concurrency else values
    numbers = {
        "outliers": float(len(late)),
        "firstWaveOutliers": float(np.count_nonzero(late < concurrency)),
        "p95Seconds": float(np.percentile(values, 95)),
        "p95WithoutFirstWaveSeconds": float(np.percentile(kept, 95)),
        "samples": float(len(values)),
    }
    if len(late) and late[-1] < concurrency and not warmup_dropped:
        detail = f"{len(late)} outliers, all in the opening wave of {concurrency}: drop it as warm-up"
        return CheckResult("cold-first-wave", Verdict.FLAG, detail, numbers)
    if len(late):
        return CheckResult("cold-first-wave", Verdict.FLAG, f"{len(late)} requests are far above the median", numbers)
    return CheckResult("cold-first-wave", Verdict.PASS, "no request is far above the median", numbers)


def tail_samples(samples: int) -> CheckResult:
    """Enough requests after warm-up to state a 99th percentile (public case E08)."""
    verdict = Verdict.PASS if samples >= TAIL_SAMPLES else Verdict.FLAG
    detail = f"{samples} requests after warm-up; a 99th percentile needs {TAIL_SAMPLES}"
    return CheckResult("tail-samples", verdict, detail, {"samples": samples})


def effective_configuration(asked: Mapping[str, object], effective: Mapping[str, object]) -> CheckResult:
    """What ran is what was asked, key by key, from process arguments, logs and metrics (public case E10)."""
    wrong = sorted(key for key, value in asked.items() if key in effective and effective[key] != value)
    unseen = sorted(key for key in asked if key not in effective)
    numbers = {"asked": len(asked), "different": len(wrong), "unseen": len(unseen)}
    if wrong:
        text = "; ".join(f"{key} asked {asked[key]!r}, ran {effective[key]!r}" for key in wrong)
        return CheckResult("effective-configuration", Verdict.REFUSE, text, numbers)
    if unseen:
        return CheckResult("effective-configuration", Verdict.FLAG, f"could not be seen: {', '.join(unseen)}", numbers)
    return CheckResult("effective-configuration", Verdict.PASS, f"all {len(asked)} settings ran as asked", numbers)


def partition(anchor: Anchor, device_partition: str | None, device_memory_bytes: int | None = None) -> CheckResult:
    """The partition mode that the device reports is the anchor's; labels are not trusted (public case A26)."""
    recorded = anchor.signature.partition
    numbers = {"deviceMemoryBytes": float(device_memory_bytes)} if device_memory_bytes is not None else {}
    if recorded is None or device_partition is None:
        return CheckResult("partition", Verdict.FLAG, "the partition mode was not read from the device", numbers)
    if canonical_partition(recorded) != canonical_partition(device_partition):
        detail = f"recorded {recorded}, the device reports {device_partition}"
        return CheckResult("partition", Verdict.REFUSE, detail, numbers)
    return CheckResult("partition", Verdict.PASS, f"the device reports {device_partition}", numbers)


def client_overhead(client_s: float, step_s: float) -> CheckResult:
    """CPU time of the load generator per step against the step it measures."""
    share = client_s / step_s
    verdict = Verdict.FLAG if share > CLIENT_SHARE_FLAG else Verdict.PASS
    return CheckResult("client-overhead", verdict, f"the client takes {share:.1%} of a step", {"share": share})


def canonical_partition(text: str) -> str:
    """`SPX/NPS1`, `spx-nps1` and `spx_nps1` are one."""
    return text.strip().lower().replace("/", "_").replace("-", "_")


def _graded(value: float, passes: float, flags: float) -> Verdict:
    return Verdict.PASS if value <= passes else Verdict.FLAG if value <= flags else Verdict.REFUSE


ANCHOR_CHECKS: Final[Mapping[str, Callable[[Anchor], CheckResult]]] = MappingProxyType(
    {
        "real-weights": real_weights,
        "prefix-caching": prefix_caching,
        "monotone-sweep": monotone_sweep,
        "fit-residual": fit_residual,
        "graph-sizes": graph_sizes,
        "sweep-size": sweep_size,
        "spread": spread,
        "minimum-repeats": minimum_repeats,
        "packed-prefill": packed_prefill,
    }
)
"""Checks that need nothing but the anchor; the others take what the harvester recorded beside it."""


def check_anchor(anchor: Anchor) -> tuple[CheckResult, ...]:
    """Every check an anchor alone allows, then those its harvest recorded under other names, in that order."""
    own = tuple(check(anchor) for check in ANCHOR_CHECKS.values())
    recorded = tuple(
        CheckResult(item.name, Verdict(item.verdict), item.detail, item.numbers)
        for item in anchor.provenance.checks
        if item.name not in ANCHOR_CHECKS
    )
    return own + recorded
