"""Checks that need the harvest's own records; those of the anchor alone are simcore.anchors.checks."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Mapping, Sequence
from typing import Final

from inferasim_harvester.device import Device
from inferasim_harvester.estimates import Estimate
from inferasim_harvester.session import Tally
from simcore.anchors.checks import CheckResult, Verdict, canonical_partition
from simcore.cards.library import load_accelerator_card
from simcore.errors import InputError
from simcore.units import GIB

PRECISION_FLAG: Final = 0.02
"""95 % half width of a point over its mean. Ours: twice what the sweeps aim at."""
DRIFT_FLAG, DRIFT_REFUSE = 0.02, 0.05
"""The first decode point measured again at the end (ours: 2 % is the median spread of repeated rows)."""
IDLE_MEMORY_FRAC: Final = 0.03
"""Memory in use on an idle GPU: driver and firmware take a few hundred MiB."""
HEAT: Final = ("hot", "thermal")
"""In the names of causes that are heat; the others are power limits, at which a loaded GPU is no fault."""
CLOCK_LOW, CLOCK_HIGH = 0.80, 1.005
"""Engine's own end-to-end time over the client's: below 1 by the way through the front end, never above it."""
CLOCK_RATE, CLOCK_UNCERTAIN = 0.01, 0.05
"""Difference of two clocks' rates that is flagged, and how well it must be known (ours)."""
RECALL_PASS, RECALL_REFUSE = 0.8, 0.2
"""Share of a repeated sequence that a working model continues (ours: broken formats get next to none)."""
CHUNK_PASS, CHUNK_FLAG = 0.02, 0.5
"""Tokens per chunk beside 1 without speculation (ours: front ends gather a few; two a chunk is something else)."""
DRAFTED_REFUSE: Final = 0.5
"""In most waves of a point time goes by chunks, not by tokens (ours)."""
STALL_FLAG: Final = 0.10
"""Mean gap over median gap, minus 1 (ours)."""
BALANCE_FLAG: Final = 0.05
"""Excess of the fullest attention-DP rank over its share (ours)."""
COALESCED_FLAG: Final = 0.05
"""Share of coalesced chunks above which the median gap is not used (ours)."""
GROWTH_MARGIN: Final = 0.02
"""Noise of a step against another (ours)."""
SHARED_FRAC: Final = 0.75
"""Prompt tokens that one engine of several read, where they share (ours: whole blocks are counted, not all tokens)."""
POOL_TOLERANCE: Final = 0.01
"""Rounding of a pool to blocks (ours)."""
MEMORY_TOLERANCE: Final = 0.10
"""Reported over nominal memory (ours: MI300X, MI325X and MI355X differ by 33 % and 12 %)."""
PLAIN_DTYPES: Final = {"bf16": "bf16", "bfloat16": "bf16", "fp16": "fp16", "float16": "fp16", "half": "fp16",
                       "fp32": "fp32", "float32": "fp32"}  # fmt: skip
"""Formats of a checkpoint that nothing quantised, in one spelling."""
LENGTH_FLAG, LENGTH_REFUSE = 0.01, 0.02
"""Served against asked prompt length (public case E01)."""


def real_tokens(tally: Tally) -> list[CheckResult]:
    """Served prompt and output lengths over all measured requests, worst request included (cases E01, E07)."""
    asked, served = tally.asked_prompt_tokens, tally.served_prompt_tokens
    worst = tally.worst_length_deviation
    verdict = Verdict.PASS if worst <= LENGTH_FLAG else Verdict.FLAG if worst <= LENGTH_REFUSE else Verdict.REFUSE
    detail = f"asked for {asked} prompt tokens, {served} were served; the worst request is off by {worst:.2%}"
    numbers = {"askedTokens": float(asked), "servedTokens": float(served), "worstDeviation": worst}
    prompt = CheckResult("served-length", verdict, detail, numbers)
    # Request by request: one that is too long does not make up for one that is too short.
    missed = tally.missed_tokens / tally.asked_output_tokens if tally.asked_output_tokens else 0.0
    output = CheckResult(
        "output-length",
        Verdict.PASS if missed == 0 else Verdict.FLAG if missed <= LENGTH_REFUSE else Verdict.REFUSE,
        f"asked for {tally.asked_output_tokens} output tokens, {tally.produced_tokens} were produced, "
        f"{tally.missed_tokens} off request by request",
        {"askedTokens": float(tally.asked_output_tokens), "producedTokens": float(tally.produced_tokens)},
    )
    return [prompt, output]


def empty_chunks(tally: Tally) -> CheckResult:
    """Chunks before the first token are ignored, not counted as the first token (public case E07)."""
    count = tally.empty_chunks
    numbers = {"emptyChunks": float(count), "requests": float(tally.requests)}
    if count:
        detail = f"{count} chunks without a token came first in {tally.requests} requests; they were ignored"
        return CheckResult("empty-chunks", Verdict.FLAG, detail, numbers)
    return CheckResult("empty-chunks", Verdict.PASS, "every stream began with a token", numbers)


def stream_ends(tally: Tally) -> CheckResult:
    """Every stream came to its end mark; one without was cut off, wherever its token count stands."""
    numbers = {"cutStreams": float(tally.cut_streams), "requests": float(tally.requests)}
    if tally.cut_streams:
        detail = f"{tally.cut_streams} of {tally.requests} streams ended without their end mark"
        return CheckResult("stream-ends", Verdict.FLAG, detail, numbers)
    return CheckResult("stream-ends", Verdict.PASS, "every stream came to its end mark", numbers)


def served_model(served: str | None, name: str, path: str) -> CheckResult:
    """The engine serves the model that the anchor is labelled with; one that ran before us may serve any."""
    if served is None:
        return CheckResult("served-model", Verdict.FLAG, "the engine does not say which model it serves")
    same = served in (name, path)
    detail = f"the engine serves {served}" + ("" if same else f", the anchor would say {name}")
    return CheckResult("served-model", Verdict.PASS if same else Verdict.REFUSE, detail[:1900])


def token_chunks(per_chunk: float, name: str, *, speculates: bool, drafted_frac: float = 0.0) -> CheckResult:
    """One token a chunk, where nothing speculates; else either something does, or the stream is gathered.

    Where time goes by chunks of several tokens (in `drafted_frac` of the waves), they are drafts, however few.
    """
    numbers = {"tokensPerChunk": per_chunk, "draftedFraction": drafted_frac}
    off = abs(per_chunk - 1.0)
    if not speculates and off > CHUNK_PASS and drafted_frac > DRAFTED_REFUSE:
        detail = f"{per_chunk:.3g} tokens a chunk at {name}, several in the time of one: the engine speculates unasked"
        return CheckResult("token-chunks", Verdict.REFUSE, detail, numbers)
    if speculates or off <= CHUNK_PASS:
        return CheckResult("token-chunks", Verdict.PASS, f"{per_chunk:.3g} tokens a chunk", numbers)
    detail = f"{per_chunk:.3g} tokens a chunk at {name} without speculation; steps were counted by tokens"
    if off <= CHUNK_FLAG:
        return CheckResult("token-chunks", Verdict.FLAG, detail, numbers)
    detail = f"{per_chunk:.3g} tokens a chunk at {name}: the engine speculates unasked, or its stream is gathered"
    return CheckResult("token-chunks", Verdict.REFUSE, detail, numbers)


def prefix_counters(hit_tokens: float | None, queried_tokens: float | None) -> CheckResult | None:
    """Only the cases where the counters cannot be read; else None, and `prefix_hits` judges the numbers."""
    if hit_tokens is None:
        return CheckResult("prefix-hits", Verdict.FLAG, "the engine prints no prefix-cache counter")
    if queried_tokens is None or (not queried_tokens and hit_tokens):
        return CheckResult("prefix-hits", Verdict.FLAG, "the engine counts hits and no queries")
    if queried_tokens < 0 or hit_tokens < 0:
        return CheckResult("prefix-hits", Verdict.FLAG, "the counters ran backwards: the engine was restarted")
    return None


def output(
    recall: float | None, kv_dtype: str | None, *, real_weights: bool = True, is_forced: bool = False
) -> CheckResult:
    """What is produced continues what was shown (public case A24): a broken format is as fast as a sound one."""
    if recall is None:
        return CheckResult("output", Verdict.FLAG, "unchecked: the answers hold neither token ids nor text")
    numbers = {"recall": recall}
    if not real_weights or is_forced:
        why = "drafts that are accepted by force" if is_forced else "random weights"
        detail = f"unchecked: {why} produce nothing that could be judged"
        return CheckResult("output", Verdict.FLAG, detail, numbers)
    detail = f"{recall:.0%} of a repeated sequence was continued rightly"
    if recall >= RECALL_PASS:
        return CheckResult("output", Verdict.PASS, detail, numbers)
    doubtful = recall < RECALL_REFUSE or "fp8" in (kv_dtype or "").lower()
    return CheckResult("output", Verdict.REFUSE if doubtful else Verdict.FLAG, detail, numbers)


def others_tokens(read_tokens: float | None, sent_tokens: int) -> CheckResult | None:
    """Where an engine counts no requests, its prompt tokens show others' traffic, or that a second engine took a part
    of ours; None when nothing shows."""
    if not read_tokens:
        return None  # with caching off some count none
    numbers = {"engineTokens": read_tokens, "clientTokens": float(sent_tokens)}
    told = f"the engine read {read_tokens:.0f} prompt tokens, we sent {sent_tokens}: "
    if read_tokens > sent_tokens * (1.0 + LENGTH_FLAG):
        return CheckResult("clock-agreement", Verdict.REFUSE, f"{told}something else uses it", numbers)
    if read_tokens < sent_tokens * SHARED_FRAC:
        return CheckResult("clock-agreement", Verdict.REFUSE, f"{told}several engines answer", numbers)
    return None


def clock_agreement(engine_s: float | None, client_s: float, requests: float | None, sent: int) -> CheckResult:
    """The engine's clock and ours measure the same requests."""
    if engine_s is None or not requests or not client_s:
        return CheckResult("clock-agreement", Verdict.FLAG, "unchecked: the engine prints no end-to-end time")
    ratio = (engine_s / requests) / (client_s / sent)
    numbers = {"engineOverClient": ratio, "engineRequests": requests, "clientRequests": float(sent)}
    if round(requests) != sent:
        detail = f"the engine finished {requests:.0f} requests, we sent {sent}: something else uses it"
        return CheckResult("clock-agreement", Verdict.REFUSE, detail, numbers)
    verdict = Verdict.PASS if CLOCK_LOW <= ratio <= CLOCK_HIGH else Verdict.FLAG
    return CheckResult("clock-agreement", verdict, f"the engine's own times are {ratio:.3f} of ours", numbers)


def clock_rate(server_s: float | None, client_s: float) -> CheckResult:
    """The engine's machine counts as many seconds as ours between two answers, by their Date headers."""
    if server_s is None:
        return CheckResult("clock-rate", Verdict.FLAG, "unchecked: the engine's answers carry no date")
    # Either date is cut to a whole second, so their difference is up to one off.
    uncertain = 1.0 / client_s if client_s > 0 else 1.0
    ratio = server_s / client_s if client_s > 0 else 1.0
    numbers = {"serverOverClient": ratio, "seconds": client_s, "uncertainty": uncertain}
    if uncertain > CLOCK_UNCERTAIN:
        detail = f"unchecked: whole seconds say nothing of a rate over {client_s:.0f} s"
        return CheckResult("clock-rate", Verdict.FLAG, detail, numbers)
    verdict = Verdict.PASS if abs(ratio - 1.0) <= CLOCK_RATE + uncertain else Verdict.FLAG
    detail = f"{server_s:.0f} s on the engine's clock while {client_s:.0f} s passed on ours"
    return CheckResult("clock-rate", verdict, detail, numbers)


def precision(points: Mapping[str, Estimate]) -> CheckResult:
    """Every point's 95 % interval is narrow enough."""
    widest = max(points, key=lambda name: points[name].half_width_frac)
    half = points[widest].half_width_frac
    half = min(half, 1.0)  # a single repeat has no interval
    verdict = Verdict.PASS if half <= PRECISION_FLAG else Verdict.FLAG
    detail = f"the least certain point is {widest}: {half:.2%} at 95 %"
    return CheckResult("precision", verdict, detail, {"halfWidth": half})


def outliers(points: Mapping[str, int], repeats: int) -> CheckResult:
    """Repeats far from their median; a few are what medians are for."""
    count = sum(points.values())
    worst = [name for name in sorted(points) if points[name]]
    verdict = Verdict.FLAG if count > 0.1 * repeats else Verdict.PASS
    detail = f"{count} of {repeats} repeats lie far from their median" + (f" ({', '.join(worst[:5])})" if worst else "")
    return CheckResult("outliers", verdict, detail, {"outliers": float(count), "repeats": float(repeats)})


def drift(first_s: float, again_s: float | None, name: str) -> CheckResult:
    """The first point measured again at the end: heat, clocks and neighbours show here."""
    if again_s is None:
        return CheckResult("drift", Verdict.FLAG, "the first point was not measured again")
    change = again_s / first_s - 1.0
    size = abs(change)
    verdict = Verdict.PASS if size <= DRIFT_FLAG else Verdict.FLAG if size <= DRIFT_REFUSE else Verdict.REFUSE
    return CheckResult("drift", verdict, f"{name} took {change:+.1%} at the end", {"change": change})


def steadiness(smallest_s: Mapping[str, float]) -> CheckResult:
    """The smallest step, measured after every point in their order, stays the same: heat, clocks and neighbours that
    come and go. One that is off alone was a moment; two in a row held a point between them."""
    if len(smallest_s) < 2:
        return CheckResult("steadiness", Verdict.FLAG, "unchecked: the smallest step was not measured between points")
    middle = statistics.median(smallest_s.values())
    changes = {name: value / middle - 1.0 for name, value in smallest_s.items()}
    lasting = {
        later: min(abs(changes[earlier]), abs(changes[later]))
        for earlier, later in itertools.pairwise(changes)
        if changes[earlier] * changes[later] > 0
    }
    held = max(lasting, key=lambda name: lasting[name], default="")
    worst = max(changes, key=lambda name: abs(changes[name]))
    numbers = {"change": changes[worst], "lasting": lasting.get(held, 0.0)}
    if numbers["lasting"] > DRIFT_REFUSE:
        detail = f"the smallest step was {changes[held]:+.1%} off before and after {held}: something slowed the machine"
        return CheckResult("steadiness", Verdict.REFUSE, detail, numbers)
    verdict = Verdict.FLAG if abs(changes[worst]) > DRIFT_REFUSE else Verdict.PASS
    return CheckResult("steadiness", verdict, f"the smallest step was {changes[worst]:+.1%} off after {worst}", numbers)


def batch_growth(steps_s: Mapping[int, float], prompt_tokens: int) -> CheckResult:
    """A step of twice the batch takes at most twice as long: two steps of half of it would do the same work."""
    growth = {high: steps_s[high] / steps_s[low] * low / high for low, high in itertools.pairwise(sorted(steps_s))}
    worst = max(growth, key=lambda batch: growth[batch], default=0)
    numbers = {"growth": growth.get(worst, 0.0), "batch": float(worst)}
    if growth.get(worst, 0.0) > 1.0 + GROWTH_MARGIN:
        detail = f"at {prompt_tokens} prompt tokens the step of batch {worst} grew faster than the batch: a missing "
        return CheckResult("batch-growth", Verdict.FLAG, detail + "graph, or a machine that was slower then", numbers)
    return CheckResult("batch-growth", Verdict.PASS, "no step grew faster than its batch", numbers)


def kv_pool(said: Mapping[str, int]) -> CheckResult:
    """All places where the engine states its KV pool state the same; where not, the smallest is kept."""
    numbers = {source: float(count) for source, count in said.items()}
    if not said:
        return CheckResult("kv-pool", Verdict.PASS, "the engine does not state its KV pool, and the anchor has none")
    text = ", ".join(f"{count} by its {source}" for source, count in sorted(said.items()))
    same = max(said.values()) <= min(said.values()) * (1.0 + POOL_TOLERANCE)
    detail = f"the KV pool holds {text} tokens" + ("" if same else "; the smallest is kept")
    return CheckResult("kv-pool", Verdict.PASS if same else Verdict.FLAG, detail, numbers)


def stalls(worst_frac: float, name: str, preemptions: float | None) -> CheckResult:
    """Pauses inside a wave that the median does not see, and preemptions."""
    numbers = {"meanOverMedian": worst_frac, "preemptions": preemptions or 0.0}
    if preemptions:
        return CheckResult("stalls", Verdict.REFUSE, f"the engine preempted {preemptions:.0f} requests", numbers)
    verdict = Verdict.FLAG if worst_frac > STALL_FLAG else Verdict.PASS
    return CheckResult("stalls", verdict, f"the mean gap exceeds the median by {worst_frac:.1%} at {name}", numbers)


def coalesced(worst_frac: float, name: str) -> CheckResult:
    """Chunks of several steps that arrive together: single gaps are no steps then, only longer spans are."""
    verdict = Verdict.FLAG if worst_frac > COALESCED_FLAG else Verdict.PASS
    detail = f"{worst_frac:.1%} of the chunks came together with the one before at {name}"
    return CheckResult("coalesced-chunks", verdict, detail, {"coalescedFraction": worst_frac})


def idle_devices(before: Sequence[Device], expected: int, *, is_gpu: bool, own_engine: bool) -> CheckResult:
    """Nothing else ran on the GPUs before the engine was started."""
    if not is_gpu:
        return CheckResult("idle-devices", Verdict.PASS, "no GPU is measured")
    if not before:
        return CheckResult("idle-devices", Verdict.FLAG, "the driver shows no GPU, so nothing is known of its load")
    if not own_engine:
        return CheckResult("idle-devices", Verdict.FLAG, "the engine ran before us, so an idle GPU could not be seen")
    used = max(
        (d.used_bytes / d.memory_bytes for d in before if d.used_bytes is not None and d.memory_bytes), default=0.0
    )
    busy = max((d.busy_pct for d in before if d.busy_pct is not None), default=0)
    numbers = {"gpus": float(len(before)), "usedFraction": used, "busyPercent": float(busy)}
    if len(before) < expected:
        return CheckResult("idle-devices", Verdict.REFUSE, f"{len(before)} GPUs for {expected} ranks", numbers)
    verdict = Verdict.REFUSE if used > IDLE_MEMORY_FRAC or busy > 0 else Verdict.PASS
    detail = f"before the start, {used:.1%} of memory was used and the busiest GPU was at {busy} %"
    return CheckResult("idle-devices", verdict, detail, numbers)


def device_kind(found: Sequence[Device], architecture: str | None, product: str, *, is_gpu: bool) -> CheckResult:
    """The GPUs are the product that the anchor names, by what they report; labels are not trusted (public case A26).

    Memory is compared in the undivided mode only: elsewhere a device's memory is the whole's or a part of it.
    """
    if not is_gpu:
        return CheckResult("device-kind", Verdict.PASS, "no GPU is measured")
    try:
        card = load_accelerator_card(product)
    except InputError:
        return CheckResult("device-kind", Verdict.FLAG, f"unchecked: no card of {product}")
    whole = [d for d in found if d.partition is not None and canonical_partition(d.partition).startswith("spx")]
    memory = max((d.memory_bytes or 0 for d in whole), default=0)
    numbers = {"deviceMemoryBytes": float(memory)} if memory else {}
    if architecture is not None and architecture != card.architecture:
        detail = f"the devices are {architecture}, {card.name} is {card.architecture}"
        return CheckResult("device-kind", Verdict.REFUSE, detail, numbers)
    if memory and abs(memory / card.hbm_bytes - 1.0) > MEMORY_TOLERANCE:
        detail = f"a device has {memory / GIB:.0f} GiB, {card.name} has {card.hbm_bytes / GIB:.0f} GiB"
        return CheckResult("device-kind", Verdict.REFUSE, detail, numbers)
    if architecture is None:
        return CheckResult("device-kind", Verdict.FLAG, "the devices do not say what they are", numbers)
    return CheckResult("device-kind", Verdict.PASS, f"the devices are {architecture}, as {card.name} is", numbers)


def checkpoint_dtype(held: str | None, labelled: str) -> CheckResult:
    """The weights are in the format that the anchor names, where the checkpoint is plain and says so."""
    if held not in PLAIN_DTYPES:
        return CheckResult("checkpoint-dtype", Verdict.PASS, f"labelled {labelled}; the checkpoint does not contradict")
    same = PLAIN_DTYPES[held] == PLAIN_DTYPES.get(labelled.lower(), labelled.lower())
    detail = f"the checkpoint holds {held} weights, the anchor says {labelled}"
    return CheckResult("checkpoint-dtype", Verdict.PASS if same else Verdict.REFUSE, detail)


def throttling(before: Mapping[str, float] | None, after: Mapping[str, float] | None, *, is_gpu: bool) -> CheckResult:
    """Nothing held the clocks down while we measured. Heat refuses; a power limit is the node's own, and is flagged."""
    if not is_gpu:
        return CheckResult("throttling", Verdict.PASS, "no GPU is measured")
    if before is None or after is None:
        told = "the metrics exporter stopped answering" if before is not None else "no metrics exporter answers"
        return CheckResult("throttling", Verdict.FLAG, f"{told}, or it has no throttle counters")
    growth = {cause: after[cause] - before.get(cause, 0.0) for cause in sorted(after)}
    numbers = {cause: count for cause, count in growth.items() if count}
    if any(count < 0 for count in growth.values()):
        detail = "the exporter's counters ran backwards: it was restarted"
        return CheckResult("throttling", Verdict.FLAG, detail, numbers)
    if not numbers:
        return CheckResult("throttling", Verdict.PASS, "no throttling was counted")
    text = ", ".join(f"{cause} {count:g}" for cause, count in numbers.items())
    is_hot = any(word in cause for cause in numbers for word in HEAT)
    detail = f"the clocks were held down: {text}" + ("" if is_hot else "; figures hold for this power limit")
    return CheckResult("throttling", Verdict.REFUSE if is_hot else Verdict.FLAG, detail[:1900], numbers)


def one_partition(found: Sequence[Device], asked: str | None, *, is_gpu: bool) -> tuple[str | None, CheckResult]:
    """(partition that the devices report, the check); labels are not trusted (public case A26)."""
    if not is_gpu:
        return None, CheckResult("partition", Verdict.PASS, "no GPU is measured")
    modes = sorted({canonical_partition(device.partition) for device in found if device.partition})
    memory = max((device.memory_bytes or 0 for device in found), default=0)
    numbers = {"deviceMemoryBytes": float(memory)} if memory else {}
    if not modes:
        return None, CheckResult("partition", Verdict.FLAG, "the partition mode was not read from the device", numbers)
    if len(modes) > 1 or (asked is not None and canonical_partition(asked) != modes[0]):
        detail = f"asked for {asked or 'one mode'}, the devices report {', '.join(modes)}"
        return modes[0], CheckResult("partition", Verdict.REFUSE, detail, numbers)
    return modes[0], CheckResult("partition", Verdict.PASS, f"the devices report {modes[0]}", numbers)


def acceptance(speculates: bool, forced: float | None, measured: float) -> CheckResult:
    """Random prompts accept drafts at a rate that says nothing about real traffic (public case B07)."""
    if not speculates:
        return CheckResult("acceptance", Verdict.PASS, "no speculation")
    numbers = {"acceptanceLength": measured}
    if forced is None:
        detail = f"{measured:.2f} tokens per step were accepted on random prompts: not what users will see"
        return CheckResult("acceptance", Verdict.FLAG, detail, numbers)
    off = abs(measured / forced - 1.0)
    verdict = Verdict.PASS if off <= 0.05 else Verdict.REFUSE
    return CheckResult("acceptance", verdict, f"forced to {forced:g}, measured {measured:.2f} per step", numbers)


def rank_balance(points: Mapping[str, Mapping[str, float]], ranks: int) -> CheckResult:
    """Attention-DP ranks got equal shares: the fullest rank's step is everyone's, so an uneven wave is a larger batch.

    `points` are decode points of at least one request a rank, with the requests that each rank finished.
    """
    if ranks == 1:
        return CheckResult("rank-balance", Verdict.PASS, "one rank serves every request")
    known = {name: counts for name, counts in points.items() if len(counts) == ranks and sum(counts.values()) > 0}
    if not known:
        return CheckResult("rank-balance", Verdict.FLAG, "unchecked: the engine does not count requests by rank")
    excess = {name: max(counts.values()) * ranks / sum(counts.values()) - 1.0 for name, counts in known.items()}
    worst = max(sorted(excess), key=lambda name: excess[name])
    verdict = Verdict.PASS if excess[worst] <= BALANCE_FLAG else Verdict.FLAG
    detail = f"the fullest of {ranks} ranks had {excess[worst]:.0%} more than its share at {worst}"
    return CheckResult("rank-balance", verdict, detail, {"excess": excess[worst]})


def unmeasured(missing: Mapping[str, str]) -> CheckResult:
    """Points that could not be measured, with their reasons."""
    if not missing:
        return CheckResult("unmeasured-points", Verdict.PASS, "every point was measured")
    text = "; ".join(f"{name}: {why}" for name, why in sorted(missing.items()))
    return CheckResult("unmeasured-points", Verdict.FLAG, text[:1900], {"points": float(len(missing))})


def host_time(separated: int, lengths: int) -> CheckResult:
    """Host time could be told from the engine's step."""
    numbers = {"lengths": float(separated)}
    if separated < 2:
        detail = "host time could not be told from the prefill step, so F holds it and hostTime is absent"
        return CheckResult("host-time", Verdict.FLAG, detail, numbers)
    verdict = Verdict.PASS if separated == lengths else Verdict.FLAG
    return CheckResult("host-time", verdict, f"separated at {separated} of {lengths} prompt lengths", numbers)
