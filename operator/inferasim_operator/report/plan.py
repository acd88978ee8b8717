"""The page of a plan's result: the answer first, then why, then what to doubt, then every figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from inferasim_operator.report import charts, explain, flags
from inferasim_operator.report.html import Content, Markup, bullets, details, facts, join, page, section, table, tag
from inferasim_operator.report.numbers import (
    count,
    gpu_hours_per_million,
    gpus,
    latency_ms,
    latency_span,
    layout,
    percent,
    short,
    span,
)

Document = Mapping[str, Any]
MICROSECONDS_PER_SECOND = 1e6
PER_USER = "tokens per second per user"
PER_GPU = "tokens per second per GPU"


def render(result: Document, *, name: str = "", explanation: Document | None = None) -> str:
    """The page of what `inferasim plan -o json` prints, with what `inferasim explain -o json` says of it if given.

    Raises KeyError or TypeError for another document.
    """
    effective = result["effective"]
    title = f"{effective['model']}: serving plan" + (f" {name}" if name else "")
    tiers = {tier["name"]: tier for tier in effective["tiers"]}
    return page(
        title,
        tag("h1", title),
        _summary(result),
        _answer(result, tiers),
        _mix(result.get("mix")),
        _charts(result, tiers),
        _reasons(result, explanation),
        _doubts(result),
        _tables(result),
        _provenance(result),
    )


def _summary(result: Document) -> Markup:
    effective, selected = result["effective"], result["selected"]
    answered, asked = len({item["tier"] for item in selected}), len(effective["tiers"])
    words = f"{answered} of {asked} tiers have a configuration within {gpus(effective['gpuBudget'])}."
    parts: list[Content] = [tag("strong", words, class_="good" if answered == asked else "bad")]
    if effective["mode"] == "Simulate" or any(item["source"]["mode"] == "Simulate" for item in selected):
        parts.append(tag("strong", " Not measured: figures rank configurations, they promise nothing.", class_="bad"))
    elif any("not-harvested" in item["source"].get("flags", ()) for item in selected):
        parts.append(" The anchors are published or fitted, not harvested on your nodes.")
    first = next(iter(selected), None) or next((b["nearest"] for b in result["binding"] if b.get("nearest")), None)
    if first is not None:
        chosen = first["configuration"]
        parts.append(f" {_traffic(chosen, effective)}")
    return tag("p", parts, class_="summary")


def _traffic(configuration: Document, effective: Document) -> str:
    """What the plan is for, in a sentence: the GPU, the lengths (means, where they differ), the rate."""
    told = [str(configuration.get("accelerator", ""))]
    if "promptTokens" in configuration and "outputTokens" in configuration:
        told.append(
            f"{count(configuration['promptTokens'])} prompt and {count(configuration['outputTokens'])} output tokens"
        )
    if effective.get("requestsPerMinute"):
        told.append(f"{count(effective['requestsPerMinute'])} requests per minute")
    return ", ".join(part for part in told if part) + "."


def _answer(result: Document, tiers: Mapping[str, Document]) -> Markup:
    chosen = {item["tier"]: item for item in result["selected"]}
    binding = {item["tier"]: item for item in result["binding"]}
    cards = []
    for name, tier in tiers.items():
        if name in chosen:
            cards.append(_card(chosen[name], tier, binding.get(name)))
        else:
            cards.append(_no_card(name, tier, binding.get(name)))
    note = tag("p", "The small figures are 80 % intervals.", class_="note")
    return section("Answer per tier", note, tag("ol", cards, class_="cards"), id_="answer")


def _limits(tier: Document) -> str:
    told = []
    if tier["tokensPerSecondPerUser"]:
        told.append(f"≥ {count(tier['tokensPerSecondPerUser'])} tok/s per user")
    if tier["ttftMilliseconds"]:
        told.append(f"TTFT ≤ {latency_ms(tier['ttftMilliseconds'])}")
    return ", ".join(told) or "no limit"


def _name(row: Document) -> str:
    """Engine, layout and replicas; with the settings that a search by trials moved, where it did."""
    told = f"{row['engine']} {layout(row['layout'])} ×{row['replicas']}"
    return f"{told} ({row['settings']})" if row.get("settings") else told


def _card(choice: Document, tier: Document, binding: Document | None) -> Markup:
    configuration, predicted = choice["configuration"], choice["predicted"]
    interval = predicted.get("interval80") or {}
    user = _per_user(interval.get("tpotMicroseconds"))
    hours = gpu_hours_per_million(predicted["tokensPerSecondPerGpu"])
    rate, ttft = interval.get("tokensPerSecondPerGpu"), interval.get("ttftMilliseconds")
    price = f"{short(hours)} GPU-hours per M tokens" if hours is not None else ""
    figures = tag(
        "dl",
        _figure("tok/s per GPU", count(predicted["tokensPerSecondPerGpu"]), span(rate)),
        _figure("tok/s per user", short(predicted.get("tokensPerSecondPerUser")), span(user)),
        _figure("TTFT", latency_ms(predicted["ttftMilliseconds"]), latency_span(ttft)),
        class_="figures",
    )
    return tag(
        "li",
        tag("h3", choice["tier"], " ", tag("small", _limits(tier))),
        tag("p", tag("b", _name(_flat(choice))), f" on {gpus(choice['gpus'])}, {_load(configuration)}", class_="what"),
        figures,
        _risk(tier, user, ttft),
        tag("p", f"{binding['limit']} binds: {binding['detail']}", class_="risk") if binding else None,
        tag("p", price, _headroom(choice.get("headroomPermille"))),
        tag("p", _origin(choice["source"]), class_="origin"),
        flags.chips(choice["source"].get("flags", ())),
        class_="card",
    )


def _headroom(permille: int | None) -> str:
    return "" if permille is None else f"; headroom {percent(permille, signed=True)}"


def _figure(name: str, value: str, ends: str) -> Markup:
    told = tag("span", tag("span", "80 % interval ", class_="hidden"), ends, class_="ends")
    return tag("div", tag("dt", name), tag("dd", tag("b", value), " ", told))


def _load(configuration: Document) -> str:
    clients = configuration.get("concurrency")
    return "load unknown" if clients is None else f"{count(clients)} in flight"


def _origin(source: Document) -> str:
    return f"from anchor {source['anchor']}" if source.get("anchor") else "no anchor: ranks only"


def _per_user(tpot: Document | None) -> dict[str, float] | None:
    """The interval of tokens per second per user that follows from TPOT's."""
    if tpot is None or tpot["low"] <= 0 or tpot["high"] <= 0:
        return None
    return {"low": MICROSECONDS_PER_SECOND / tpot["high"], "high": MICROSECONDS_PER_SECOND / tpot["low"]}


def _risk(tier: Document, user: Mapping[str, float] | None, ttft: Document | None) -> Markup | None:
    """Said when a tier's limit lies inside the interval: then the prediction alone does not settle it."""
    told = []
    if user and tier["tokensPerSecondPerUser"] and user["low"] < tier["tokensPerSecondPerUser"]:
        told.append(f"{count(tier['tokensPerSecondPerUser'])} tok/s per user")
    if ttft and tier["ttftMilliseconds"] and ttft["high"] > tier["ttftMilliseconds"]:
        told.append(f"TTFT {latency_ms(tier['ttftMilliseconds'])}")
    if not told:
        return None
    return tag("p", f"May miss {', '.join(told)}: inside the interval.", class_="risk")


def _no_card(name: str, tier: Document, binding: Document | None) -> Markup:
    told: list[Content] = [tag("h3", name, " ", tag("small", _limits(tier)))]
    if binding is None:
        told.append(tag("p", "No configuration.", class_="bad"))
    else:
        told.append(tag("p", tag("b", f"Not feasible: {binding['limit']} binds."), class_="bad"))
        told.append(tag("p", binding["detail"]))
        nearest = binding.get("nearest")
        if nearest:
            predicted = nearest.get("predicted") or {}
            figures = (
                f": {short(predicted.get('tokensPerSecondPerUser'))} tok/s per user, "
                f"TTFT {latency_ms(predicted.get('ttftMilliseconds'))}"
                if predicted
                else ""
            )
            told.append(tag("p", "Nearest: ", tag("b", _name(nearest["configuration"])), figures))
    return tag("li", told, class_="card none")


def _mix(mix: Document | None) -> Markup | None:
    """Who gets the GPUs, where the plan states a demand."""
    if mix is None:
        return None
    rows = []
    for item in mix["allocations"]:
        configuration = item.get("configuration")
        rows.append(
            (
                f"{item['model']}, {item['tier']}",
                _name(configuration) if configuration else "none",
                count(item["gpus"]),
                count(item["servedTokensPerSecond"]),
                count(item["demandTokensPerSecond"]),
            )
        )
    caption = (
        f"{gpus(mix['gpus'])} of {count(mix['gpuBudget'])} serve {count(mix['servedTokensPerSecond'])} of "
        f"{count(mix['demandTokensPerSecond'])} tok/s"
    )
    columns = ("model, tier", "configuration", "GPUs", "served tok/s", "demanded tok/s")
    return section("Shared budget", table(caption, columns, rows, numeric=(2, 3, 4)), id_="mix")


def _charts(result: Document, tiers: Mapping[str, Document]) -> Markup | None:
    rows = result["front"]
    if not rows:
        return None
    return section(
        "Trade-off",
        tag(
            "p",
            f"{count(len(rows))} configurations on the Pareto front (throughput per GPU, speed per user, TTFT, GPUs), "
            "the chosen ones with their 80 % intervals.",
        ),
        tag("div", front_chart(result), _ttft_chart(result, tiers), class_="charts"),
        id_="trade-off",
    )


def front_chart(result: Document) -> Markup:
    """Throughput per GPU against speed per user, with the tiers' limits and the chosen points."""
    points = [
        charts.Point(_row_text(row), row["tokensPerSecondPerUser"], row["tokensPerSecondPerGpu"])
        for row in result["front"]
        if row.get("tokensPerSecondPerUser")
    ]
    for choice, names in _by_configuration(result["selected"]):
        predicted = choice["predicted"]
        interval = predicted.get("interval80") or {}
        user, rate = _per_user(interval.get("tpotMicroseconds")), interval.get("tokensPerSecondPerGpu")
        if predicted.get("tokensPerSecondPerUser"):
            points.append(
                charts.Point(
                    f"{names}: {_row_text(_flat(choice))}",
                    predicted["tokensPerSecondPerUser"],
                    predicted["tokensPerSecondPerGpu"],
                    label=names,
                    x_spread=None if user is None else (user["low"], user["high"]),
                    y_spread=None if rate is None else (rate["low"], rate["high"]),
                )
            )
    limits = [
        charts.Limit(f"{tier['name']} ≥ {tier['tokensPerSecondPerUser']}", tier["tokensPerSecondPerUser"])
        for tier in result["effective"]["tiers"]
        if tier["tokensPerSecondPerUser"]
    ]
    return charts.scatter(
        id_="front",
        title="Throughput per GPU against speed per user",
        x_name=PER_USER,
        y_name=PER_GPU,
        points=points,
        limits=limits,
        envelope=_envelope([(point.x, point.y) for point in points]),
        number=count,
    )


def picture(result: Document) -> str:
    """The same as an SVG file of its own, for a page of text."""
    return charts.standalone(front_chart(result))


def _ttft_chart(result: Document, tiers: Mapping[str, Document]) -> Markup:
    points = [
        charts.Point(_row_text(row), max(row["ttftMilliseconds"], 1), row["tokensPerSecondPerGpu"])
        for row in result["front"]
    ]
    for choice, names in _by_configuration(result["selected"]):
        predicted = choice["predicted"]
        interval = predicted.get("interval80") or {}
        ttft, rate = interval.get("ttftMilliseconds"), interval.get("tokensPerSecondPerGpu")
        points.append(
            charts.Point(
                f"{names}: {_row_text(_flat(choice))}",
                max(predicted["ttftMilliseconds"], 1),
                predicted["tokensPerSecondPerGpu"],
                label=names,
                x_spread=None if ttft is None else (max(ttft["low"], 1), max(ttft["high"], 1)),
                y_spread=None if rate is None else (rate["low"], rate["high"]),
            )
        )
    limits = [
        charts.Limit(f"{tier['name']} ≤ {latency_ms(tier['ttftMilliseconds'])}", tier["ttftMilliseconds"])
        for tier in tiers.values()
        if tier["ttftMilliseconds"]
    ]
    return charts.scatter(
        id_="ttft",
        title="Throughput per GPU against time to first token",
        x_name="mean TTFT, milliseconds",
        y_name=PER_GPU,
        points=points,
        limits=limits,
        number=count,
    )


def _envelope(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The corners of those that no other point beats in both, from the slowest to the quickest."""
    kept: list[tuple[float, float]] = []
    best = float("-inf")
    for x, y in sorted(set(points), reverse=True):
        if y > best:
            best = y
            kept.append((x, y))
    return kept[::-1]


def _by_configuration(selected: Sequence[Document]) -> list[tuple[Document, str]]:
    """Each chosen configuration once, with the names of its tiers."""
    names: dict[str, list[str]] = {}
    first: dict[str, Document] = {}
    for choice in selected:
        key = _row_text(_flat(choice))
        first.setdefault(key, choice)
        names.setdefault(key, []).append(choice["tier"])
    return [(choice, ", ".join(names[key])) for key, choice in first.items()]


def _flat(choice: Document) -> dict[str, Any]:
    settings = choice.get("settings", "")
    return {**choice["configuration"], "settings": settings, "gpus": choice["gpus"], **choice["predicted"]}


def _row_text(row: Document) -> str:
    return (
        f"{_name(row)}, {gpus(row['gpus'])}, {_load(row)}: {count(row['tokensPerSecondPerGpu'])} tok/s per GPU, "
        f"{short(row.get('tokensPerSecondPerUser'))} per user, TTFT {latency_ms(row['ttftMilliseconds'])}"
    )


def _reasons(result: Document, explanation: Document | None) -> Markup:
    told = bullets(
        [
            tag("b", f"{choice['tier']}: "),
            f"{_name(_flat(choice))}, {choice.get('reason', 'no reason given')}.",
        ]
        for choice in result["selected"]
    )
    limits = bullets(
        [tag("b", f"{item['tier']}: "), f"{item['limit']} binds. {item['detail']}"] for item in result["binding"]
    )
    parts: list[Content] = [told, limits]
    if explanation is not None:
        parts.append(
            details("What binds, the runners-up, and when the choice flips", explain.tiers(explanation, level=3))
        )
    lists = result.get("shortList") or {}
    tables = [table(f"Short list, {tier}", COLUMNS, map(_row, rows), numeric=NUMERIC) for tier, rows in lists.items()]
    if tables:
        parts.append(details("The short list of each tier", *tables))
    return section("Why", *parts, id_="why")


def _doubts(result: Document) -> Markup:
    listed = flags.explained({item["tier"]: item["source"].get("flags", ()) for item in result["selected"]})
    laws = {text: None for item in result["selected"] for _, text in sorted((item["source"].get("laws") or {}).items())}
    harvests = bullets(
        [tag("b", f"{item['engine']} {layout(item['layout'])} on {item['accelerator']}: "), item["reason"]]
        for item in result["recommendedHarvests"]
    )
    return section(
        "What to doubt",
        listed or tag("p", "Nothing was flagged."),
        [tag("h3", "How the anchor was moved"), bullets(laws)] if laws else None,
        [tag("h3", "Harvests that would help most"), harvests] if harvests else None,
        id_="doubts",
    )


COLUMNS = (
    "configuration",
    "GPUs",
    "in flight",
    "tok/s/GPU",
    "80 %",
    "tok/s/user",
    "TPOT ms",
    "80 %",
    "TTFT ms",
    "80 %",
)
NUMERIC = range(1, len(COLUMNS))


def _row(row: Document) -> list[Content]:
    interval = row.get("interval80") or {}
    return [
        _name(row),
        count(row["gpus"]),
        count(row["concurrency"]) if row.get("concurrency") is not None else "–",
        count(row["tokensPerSecondPerGpu"]),
        span(interval.get("tokensPerSecondPerGpu")),
        short(row.get("tokensPerSecondPerUser")),
        short(row["tpotMicroseconds"] / 1000),
        span(interval.get("tpotMicroseconds"), 1 / 1000),
        count(row["ttftMilliseconds"]),
        span(interval.get("ttftMilliseconds")),
    ]


def _tables(result: Document) -> Markup:
    front = [_row(row) for row in result["front"]]
    refused = [
        (f"{item['engine']} {layout(item['layout'])}", item["rule"], item["detail"]) for item in result["refusals"]
    ]
    parts: list[Content] = []
    if front:
        parts.append(
            details(f"The Pareto front, {count(len(front))} rows", table("Front", COLUMNS, front, numeric=NUMERIC))
        )
    if refused:
        columns = ("layout", "rule", "detail")
        parts.append(details(f"Refused layouts, {count(len(refused))}", table("Refused", columns, refused)))
    counts = result["candidates"]
    told = f"{count(counts['scored'])} of {count(counts['total'])} candidates scored"
    if "simulations" in counts:
        told += f" in {count(counts['simulations'])} simulations"
    search = result.get("search")
    if search:
        told += f"; {search['method']}: {count(search['trials'])} trials, {count(search['refused'])} refused"
    return section("Every figure", tag("p", f"{told}."), parts, id_="figures")


def _provenance(result: Document) -> Markup:
    effective, provenance = result["effective"], result["provenance"]
    images = sorted({item["configuration"].get("image", "") for item in result["selected"]} - {""})
    slo = effective.get("slo")
    return section(
        "Provenance",
        facts(
            [
                ("model", effective["model"]),
                ("GPU budget", count(effective["gpuBudget"])),
                ("mode", effective["mode"]),
                ("objective", effective.get("objective")),
                ("SLO", None if slo is None else ", ".join(f"{key} {value}" for key, value in sorted(slo.items()))),
                ("images", bullets(images)),
                ("anchors", bullets(tag("code", digest) for digest in provenance["anchorDigests"])),
                ("InferaSim", provenance["inferasimVersion"]),
            ]
        ),
        tag("p", GLOSSARY),
        id_="provenance",
    )


GLOSSARY = join(
    tag("b", "TTFT"),
    " time to first token, ",
    tag("b", "TPOT"),
    " time per output token after the first; both are means. ",
    tag("b", "80 %"),
    " the interval that holds the true mean in eight of ten cases, calibrated on open benchmarks. ",
    tag("b", "Headroom"),
    " distance to the tier's nearest limit.",
)
