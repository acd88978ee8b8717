"""Why a plan chose what it chose, as a page and as a part of a plan's page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inferasim_operator.report.html import Content, Markup, bullets, join, page, section, table, tag
from inferasim_operator.report.numbers import count, latency_ms, percent, short

Document = Mapping[str, Any]
COLUMNS = ("not chosen", "in flight", "tok/s/GPU", "TPOT ms", "TTFT ms", "because", "the choice flips")
NUMERIC = range(1, 5)


def render(document: Document) -> str:
    """The page of what `inferasim explain -o json` prints. Raises KeyError or TypeError for another document."""
    title = "Why this configuration"
    refused = bullets(f"{rule}: {count(number)}" for rule, number in sorted(document["refused"].items()))
    return page(
        title,
        tag("h1", title),
        tag("p", f"Compared: {document['scope']}.", class_="summary"),
        tiers(document),
        _disaggregation(document.get("disaggregation")),
        section("Refused layouts", refused, id_="refused") if refused else None,
    )


def tiers(document: Document, *, level: int = 2) -> Markup:
    """A section per tier."""
    return join([_tier(item, at, level) for at, item in enumerate(document["tiers"])])


def _tier(item: Document, at: int, level: int) -> Markup:
    chosen, blocked = item["chosen"], item["blocked"]
    told: list[Content] = [
        tag("p", tag("b", _text(chosen) if chosen else "No configuration"), f": {item['why']}."),
    ]
    if blocked:
        told.append(tag("p", f"{blocked['why']}."))
    if item["runnersUp"]:
        told.append(table(f"Runners-up, {item['tier']}", COLUMNS, map(_runner_up, item["runnersUp"]), numeric=NUMERIC))
    return section(item["tier"], *told, id_=f"tier-{at}", level=level)


def _runner_up(item: Document) -> list[Content]:
    row, flip = item["configuration"], item["breakEven"]
    between = f"{count(flip['holdsAtConcurrency'])} to {count(flip['flipsAtConcurrency'])} in flight" if flip else "–"
    return [
        row["label"],
        count(row["concurrency"]),
        count(row["tokensPerSecondPerGpu"]),
        short(row["tpotMicroseconds"] / 1000),
        count(row["ttftMilliseconds"]),
        item["why"],
        f"{between}: {flip['reason']}" if flip else between,
    ]


def _text(row: Document) -> str:
    return f"{row['label']} at {count(row['concurrency'])} in flight ({count(row['tokensPerSecondPerGpu'])} tok/s/GPU)"


def _disaggregation(compared: Document | None) -> Markup | None:
    if compared is None:
        return None
    rows = []
    for item in compared["tiers"]:
        split = item["split"]
        told = "no split meets it" if split is None else f"{_text(split)}, TTFT {latency_ms(split['ttftMilliseconds'])}"
        rows.append((item["tier"], told, percent(item["gainPermille"], signed=True)))
    caption = f"Prefill and decode pools over {compared['backend']}, {count(compared['splits'])} splits"
    columns = ("tier", "best split", "against colocated")
    return section("Disaggregated", table(caption, columns, rows, numeric=(2,)), id_="disaggregated")
