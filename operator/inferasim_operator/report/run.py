"""The pages of one simulated configuration: a prediction, and a replayed trace."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from inferasim_operator.report import charts, flags
from inferasim_operator.report.html import Content, Markup, bullets, details, facts, page, section, table, tag
from inferasim_operator.report.numbers import (
    MILLISECONDS_AS_SECONDS,
    count,
    gpu_hours_per_million,
    gpus,
    latency_ms,
    latency_span,
    short,
    span,
    words,
)

Document = Mapping[str, Any]
PARTS = ("mean", "median", "p90", "p99", "p999")
NAMES = ("mean", "median", "p90", "p99", "p99.9")


def prediction(document: Document) -> str:
    """The page of what `inferasim predict -o json` prints. Raises KeyError or TypeError for another document."""
    source, interval = document["source"], document["interval80"]
    title = f"{document['model']} on {document['engine']} {document['layout']}: prediction"
    rate = document["throughputTokensPerSecondPerGpu"]
    total = document["throughputTokensPerSecond"]
    of_all = _ends(interval.get("throughputTokensPerSecond"))
    # The interval is of all GPUs together; a GPU's is the same share of its figure.
    per_gpu = None if of_all is None or not total else {end: value * rate / total for end, value in of_all.items()}
    lengths = f"{count(document['promptTokens'])} prompt and {count(document['outputTokens'])} output tokens"
    summary: list[Content] = [
        f"{gpus(document['gpus'])} {document['accelerator']}, {', '.join((lengths, *_load(document)))}. "
    ]
    if document["mode"] == "simulate":
        summary.append(tag("strong", "Not measured: figures rank configurations, they promise nothing.", class_="bad"))
    else:
        summary.append(f"From anchor {source['anchor']}.")
    hours = gpu_hours_per_million(rate)
    cards = [
        _card("tok/s per GPU", short(rate), span(per_gpu)),
        _card("tok/s per user", short(document["interactivityTokensPerSecond"]), _per_user(interval.get("tpotMs"))),
        _card("TTFT, mean", latency_ms(document["ttftMs"]["mean"]), latency_span(_ends(interval.get("ttftMs")))),
        _card(
            "TPOT, mean",
            latency_ms((document["tpotMs"] or {}).get("mean")),
            latency_span(_ends(interval.get("tpotMs"))),
        ),
        _card("GPU-hours per million tokens", short(hours), None),
        _card("requests per second", short(document["requestsPerSecond"]), None),
    ]
    latencies = [("TTFT", "ttftMs"), ("TPOT", "tpotMs"), ("ITL", "itlMs"), ("E2E", "e2eMs")]
    return page(
        title,
        tag("h1", title),
        tag("p", summary, class_="summary"),
        section(
            "Answer",
            tag("p", "The small figures are 80 % intervals.", class_="note"),
            tag("ol", cards, class_="cards narrow"),
            flags.chips(document["flags"]),
            id_="answer",
        ),
        _latencies((name, document[key]) for name, key in latencies),
        _steps(document["stepBreakdown"]),
        _doubts(document),
        _other(document, ("hitRates", "queueing", "memory")),
    )


def _per_user(tpot_ms: Iterable[float] | None) -> str | None:
    """The interval of tokens per second per user that follows from TPOT's."""
    if tpot_ms is None:
        return None
    low, high = tpot_ms
    return span({"low": 1000 / high, "high": 1000 / low}) if low > 0 else None


def _load(document: Document) -> list[str]:
    clients, requests = document.get("concurrency"), document.get("requests")
    told = [] if clients is None else [f"{count(clients)} in flight"]
    return told if requests is None else [*told, f"{count(requests)} requests simulated"]


def _ends(pair: Iterable[float] | None) -> dict[str, float] | None:
    if pair is None:
        return None
    low, high = pair
    return {"low": low, "high": high}


def _card(name: str, value: str, ends: str | None) -> Markup:
    told = None
    if ends is not None:
        told = tag("span", tag("span", "80 % interval ", class_="hidden"), ends, class_="ends")
    return tag("li", tag("dl", tag("dt", name), tag("dd", tag("b", value), " ", told)), class_="card figure")


def _latencies(found: Iterable[tuple[str, Document | None]]) -> Markup:
    kept = [(name, latency) for name, latency in found if latency is not None]
    marks = [
        (
            name,
            {told: latency[key] for key, told in zip(PARTS, NAMES, strict=True) if latency[key]},
        )
        for name, latency in kept
    ]
    rows = [(name, *(short(latency[key]) for key in PARTS)) for name, latency in kept]
    return section(
        "Latencies",
        tag(
            "div",
            charts.ranges(id_="latencies", title="Mean and tails, by logarithm", rows=marks, number=_tick_ms),
            tag(
                "div",
                table("Milliseconds", ("", *NAMES), rows, numeric=range(1, 6)),
                tag(
                    "p", "A dash: the sample is too small to hold that tail, or there is no such figure.", class_="note"
                ),
            ),
            class_="charts",
        ),
        id_="latencies",
    )


def _tick_ms(value: float) -> str:
    return f"{value / 1000:g} s" if value >= MILLISECONDS_AS_SECONDS and value % 100 == 0 else latency_ms(value)


def _steps(breakdown: Document) -> Markup | None:
    drawn = [
        charts.shares(
            title=f"{phase} step, {latency_ms(step['seconds'] * 1000)}",
            parts=[(name, seconds * 1000) for name, seconds in step["parts"].items()],
            number=latency_ms,
        )
        for phase, step in breakdown.items()
        if step and step.get("seconds")
    ]
    return section("Where a step's time goes", tag("div", drawn, class_="charts"), id_="steps") if drawn else None


def _doubts(document: Document) -> Markup:
    source = document["source"]
    refused = bullets(f"{name}: {'; '.join(why)}" for name, why in sorted(source.get("refusedAnchors", {}).items()))
    assumed = bullets(source.get("assumed", ()))
    return section(
        "What to doubt",
        flags.explained({"": document["flags"]}) or tag("p", "Nothing was flagged."),
        [tag("h3", "Assumed"), assumed] if assumed else None,
        [tag("h3", "How the anchor was moved"), bullets(text for _, text in sorted(source["laws"].items()))]
        if source.get("laws")
        else None,
        details("Anchors that were refused", refused) if refused else None,
        facts([("anchor digest", source.get("anchorDigest") and tag("code", source["anchorDigest"]))]),
        id_="doubts",
    )


def _other(document: Document, keys: Iterable[str]) -> Markup:
    rows = [
        (f"{words(key)}: {words(name)}" if len(values) > 1 else words(key), _plain(value))
        for key in keys
        for values in [document.get(key) or {}]
        for name, value in values.items()
    ]
    others = ("kvOccupancyFraction", "mixedStepFraction", "preemptions")
    rows += [(words(name), _plain(document.get(name))) for name in others]
    return section("Every figure", details("Memory, queueing, cache", facts(rows)), id_="figures")


def _plain(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "–" if value is None else str(value)
    return f"{value:,}" if isinstance(value, int) else short(value)


def replay(document: Document) -> str:
    """The page of what `inferasim replay -o json` prints. Raises KeyError or TypeError for another document."""
    title = f"{document['source']}: replay"
    rejected = document["rejectedRequests"]
    summary: list[Content] = [
        f"{count(document['completedRequests'])} requests on {gpus(document['gpus'])}, "
        f"{count(document['durationSeconds'])} s simulated. "
    ]
    if rejected:
        summary.append(tag("strong", f"{count(rejected)} requests were rejected.", class_="bad"))
    cards = [
        _card("output tok/s per GPU", short(document["outputTokensPerSecondPerGpu"]), None),
        _card("requests per second", short(document["requestsPerSecond"]), None),
        _card("TTFT, mean", latency_ms(document["ttftMilliseconds"]["mean"]), None),
        _card("TPOT, mean", latency_ms(document["tpotMilliseconds"]["mean"]), None),
        _card("prefix hit rate", _share(document["hitRate"]), None),
        _card("preemptions", count(document["preemptions"]), None),
    ]
    names = (("TTFT", "ttft"), ("queue", "queue"), ("TPOT", "tpot"), ("ITL", "itl"), ("E2E", "e2e"))
    ranks = [
        (
            f"{rank['pool']} {rank['replica']}.{rank['rank']}",
            count(rank["requests"]),
            _share(rank["hitRate"]),
            _share(rank["peakKvBlocks"] / rank["kvBlocks"] if rank["kvBlocks"] else None),
            count(rank["evictedBlocks"]),
            count(rank["preemptions"]),
        )
        for rank in document["ranks"]
    ]
    replicas = [
        (
            f"{one['pool']} {one['replica']}",
            _share(one["busyFraction"]),
            count(one["steps"]),
            count(one["prefillSteps"]),
            short(one["meanBatch"]),
        )
        for one in document["replicas"]
    ]
    rank_columns = ("rank", "requests", "hit rate", "peak KV", "evicted blocks", "preempted")
    return page(
        title,
        tag("h1", title),
        tag("p", summary, class_="summary"),
        section(
            "Answer",
            tag("p", "A replay is one simulated run: its figures have no interval.", class_="note"),
            tag("ol", cards, class_="cards narrow"),
            id_="answer",
        ),
        _latencies((name, document[f"{key}Milliseconds"]) for name, key in names),
        section(
            "Replicas",
            table("Replicas", ("replica", "busy", "steps", "prefills", "mean batch"), replicas, numeric=range(1, 5)),
            table("Ranks", rank_columns, ranks, numeric=range(1, 6)),
            id_="replicas",
        ),
        section(
            "Every figure",
            facts(
                (words(name), _plain(value)) for name, value in document.items() if not isinstance(value, dict | list)
            ),
            id_="figures",
        ),
    )


def _share(fraction: float | None) -> str:
    return "–" if fraction is None else f"{fraction:.1%}"
