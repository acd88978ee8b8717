"""The operator's page: what is in the cluster, with a link to the page of each plan that has an answer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote

from inferasim_operator.report.html import Content, page, section, table, tag
from inferasim_operator.report.numbers import count

State = Mapping[str, Any]
PLAN_KIND = "ServingPlan"
PLURALS = {"ServingPlan": "Plans", "AnchorHarvest": "Harvests", "DeploymentMix": "Mixes"}


def render(states: Iterable[State], answers: Mapping[tuple[str, str, str], str], *, left_out: int = 0) -> str:
    """The page of objects' states (`views.state`); `answers` says each one's answer by kind, namespace and name."""
    title = "InferaSim"
    found = list(states)
    ready = sum(item["ready"] == "True" for item in found)
    stalled = sum(bool(item["stalled"]) for item in found)
    summary: list[Content] = [f"{count(ready)} of {count(len(found))} objects are ready."]
    if stalled:
        summary.append(tag("strong", f" {count(stalled)} wait for somebody to change something.", class_="bad"))
    if left_out:
        summary.append(f" {count(left_out)} more are not shown.")
    parts = []
    for kind, heading in PLURALS.items():
        rows = [_row(item, answers) for item in found if item["kind"] == kind]
        if rows:
            columns = ("name", "namespace", "ready", "reason", "answer", "what it says")
            parts.append(section(heading, table(heading, columns, rows), id_=heading.lower()))
    return page(title, tag("h1", title), tag("p", summary, class_="summary"), parts or tag("p", "Nothing here yet."))


def _row(item: State, answers: Mapping[tuple[str, str, str], str]) -> list[Content]:
    namespace, name = item["namespace"], item["name"]
    has_page = item["kind"] == PLAN_KIND and item["summary"]
    link = tag("a", name, href=f"/plans/{quote(namespace, safe='')}/{quote(name, safe='')}") if has_page else name
    quality = "good" if item["ready"] == "True" else "bad" if item["stalled"] else None
    return [
        link,
        namespace,
        tag("span", item["ready"], class_=quality),
        item["reason"] or "–",
        answers[item["kind"], namespace, name],
        item["message"],
    ]
