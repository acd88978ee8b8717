"""`inferasim predict`: one configuration under one load."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.table import Table

from inferasim_operator.cli import documents
from inferasim_operator.cli.options import Report
from inferasim_operator.cli.output import Format, emit, exit_codes, screen, write_page
from inferasim_operator.report import run as pages
from inferasim_operator.report.numbers import gpus
from simcore.anchors.builtin import builtin_anchor, builtin_anchors
from simcore.anchors.schema import Anchor, load_anchor
from simcore.prediction.one import predict as predict_scenario
from simcore.prediction.scenario import Scenario, anchor_paths, load_scenario


def predict(
    file: Annotated[str, typer.Option("-f", "--file", help="The scenario, YAML or JSON; `-` reads standard input.")],
    output: Annotated[Format, typer.Option("-o", "--output", help="Output form.")] = Format.TABLE,
    report: Report = None,
) -> None:
    """Predict one configuration. Exit 0 predicted, 1 it cannot run or nothing measured applies, 2 bad input."""
    with exit_codes():
        document = run(file)
        emit(document, output, draw)
        write_page(report, pages.prediction, document)


def run(file: str) -> dict[str, Any]:
    """The prediction of the scenario in `file`; paths in it are relative to it. Raises InputError and its kin."""
    scenario = read_scenario(documents.load_document(file), file)
    return predict_scenario(scenario).document() | scenario.subject()


def read_scenario(document: Mapping[str, Any], file: str) -> Scenario:
    """The scenario of a document read from `file`, with the anchors it names. Raises InputError and its kin."""
    folder = Path.cwd() if file == "-" else Path(file).parent
    return load_scenario(document, dict(_anchor(name, folder) for name in anchor_paths(document)), folder=folder)


def _anchor(name: str, folder: Path) -> tuple[str, Anchor]:
    if name in builtin_anchors():
        return name, builtin_anchor(name)
    path = folder / name
    if not path.exists() and "/" not in name and not name.endswith(".json"):
        return name, builtin_anchor(name)  # raises with the nearest names
    return path.stem, load_anchor(path)


def draw(result: Mapping[str, Any]) -> None:
    """The prediction for people: latencies, throughput with interval, where the step's time goes, what to doubt."""
    console = screen()
    console.print(
        f"{result['model']} on {result['engine']} [bold]{result['layout']}[/bold], {gpus(result['gpus'])} "
        f"{result['accelerator']}, mode {result['mode']}, anchor {result['source']['anchor'] or 'none: ranks only'}",
        highlight=False,
    )
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("ms")
    for name in ("mean", "80 % interval", "median", "p90", "p99", "p99.9"):
        table.add_column(name, justify="right")
    for label, key in (("TTFT", "ttftMs"), ("TPOT", "tpotMs"), ("ITL", "itlMs"), ("E2E", "e2eMs")):
        latency = result[key]
        if latency is None:
            continue
        interval = result["interval80"].get(key)
        shown = "" if interval is None else f"{interval[0]:.4g} - {_number(interval[1])}"
        table.add_row(
            label,
            _number(latency["mean"]),
            shown,
            *(_number(latency[name]) for name in ("median", "p90", "p99", "p999")),
        )
    console.print(table)
    low, high = result["interval80"]["throughputTokensPerSecond"]
    console.print(
        f"  {result['throughputTokensPerSecond']:.5g} tok/s ({low:.4g} - {high:.4g}), "
        f"{result['throughputTokensPerSecondPerGpu']:.5g} per GPU, "
        f"{_number(result['interactivityTokensPerSecond'])} per user, {result['requestsPerSecond']:.4g} requests/s",
        highlight=False,
    )
    hits = result["hitRates"]
    shares = "" if hits.get("prefix") is None else f"hit rate {hits['prefix']:.3g} (host {_number(hits['host'])}), "
    console.print(
        f"  {shares}KV pool at most {_share(result['kvOccupancyFraction'])} used, "
        f"{_share(result['meanKvOccupancyFraction'])} on average, {result['preemptions']} preemptions",
        highlight=False,
    )
    for phase, step in result["stepBreakdown"].items():
        parts = ", ".join(f"{name} {seconds * 1e3:.3g}" for name, seconds in step["parts"].items())
        console.print(f"  {phase} step {step['seconds'] * 1e3:.4g} ms: {parts}", highlight=False, soft_wrap=True)
    if result["flags"]:
        console.print(f"  flags: {', '.join(result['flags'])}", highlight=False, soft_wrap=True)
    for text in result["source"]["assumed"]:
        console.print(f"  assumed: {text}", highlight=False, soft_wrap=True)


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
