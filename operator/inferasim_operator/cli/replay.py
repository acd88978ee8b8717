"""`inferasim replay`: a trace through the simulator."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from inferasim_operator.cli import documents
from inferasim_operator.cli.options import Report
from inferasim_operator.cli.output import Format, dumps, emit, exit_codes, screen, write_page
from inferasim_operator.cli.predict import read_scenario
from inferasim_operator.report import run as pages
from simcore.des.config import Deployment, Routing
from simcore.des.document import load_deployment
from simcore.des.replay import chrome_trace, question_part, record_rows, result_document
from simcore.des.result import Record
from simcore.des.simulate import simulate
from simcore.des.workload.trace import TraceFormat, open_trace
from simcore.errors import InputError
from simcore.prediction.one import deployment_of

Advance = Callable[[int, int | None, float], None]


def replay(
    trace: Annotated[Path, typer.Argument(help="Mooncake JSON lines or array, agentic sessions, Azure CSV; or .gz.")],
    file: Annotated[str, typer.Option("-f", "--file", help="A deployment, or a scenario of `predict`.")],
    trace_format: Annotated[TraceFormat, typer.Option("--format", help="The trace's format.")] = TraceFormat.AUTO,
    clients: Annotated[
        int | None, typer.Option(help="Closed loop: so many clients take the sessions; timestamps are ignored.")
    ] = None,
    replicas: Annotated[int | None, typer.Option(help="Replicas of the first pool, over the file's.")] = None,
    routing: Annotated[Routing | None, typer.Option(help="Router, over the file's.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the router's random numbers.")] = 0,
    warmup: Annotated[int, typer.Option(min=0, help="Requests left out of the latencies.")] = 0,
    summary: Annotated[bool, typer.Option(help="Keep histograms only: flat memory, quantiles to 0.2 %.")] = False,
    records: Annotated[Path | None, typer.Option(help="Write one JSON line per request here.")] = None,
    timeline: Annotated[Path | None, typer.Option(help="Write a Chrome/Perfetto trace of the steps here.")] = None,
    output: Annotated[Format, typer.Option("-o", "--output", help="Output form.")] = Format.TABLE,
    report: Report = None,
) -> None:
    """Replay a trace. Exit 0 replayed, 1 the deployment cannot run, 2 bad input, with the trace's line."""
    with exit_codes():
        if summary and (records or timeline):
            raise InputError("--summary", True, "not be given with --records or --timeline")
        workload = open_trace(trace, trace_format, clients=clients)
        deployment = _changed(_deployment(file, trace, trace_format, workload.block_tokens), replicas, routing)
        keep = Record.SUMMARY if summary else Record.TIMELINE if timeline else Record.REQUESTS
        with _progress() as advance:
            result = simulate(deployment, workload, seed=seed, record=keep, warmup_requests=warmup, progress=advance)
        if records is not None:
            with records.open("w", encoding="utf-8") as stream:
                stream.writelines(_line(row) for row in record_rows(result))
        if timeline is not None:
            timeline.write_text(dumps(chrome_trace(result)), encoding="utf-8")
        asked = question_part(workload, seed, warmup) | {"source": trace.name}
        document = result_document(result) | asked
        emit(document, output, draw)
        write_page(report, pages.replay, document)


def _deployment(file: str, trace: Path, trace_format: TraceFormat, block_tokens: int) -> Deployment:
    """From a deployment document, or from a scenario as `predict` takes it (told by its key `model`).

    The trace stands for the scenario's own traffic, which it may leave out.
    """
    document = documents.load_document(file)
    if "model" not in document:
        return load_deployment(document)
    traffic = {"workload": {"trace": {"path": str(trace.resolve()), "format": trace_format.value}}, "load": {}}
    return deployment_of(read_scenario(document | traffic, file), block_tokens=block_tokens)


def _line(row: Mapping[str, Any]) -> str:
    import json

    return json.dumps(row, separators=(",", ":")) + "\n"


def _changed(deployment: Deployment, replicas: int | None, routing: Routing | None) -> Deployment:
    if replicas is not None:
        if not 1 <= replicas <= 4096:
            raise InputError("--replicas", replicas, "be from 1 to 4096")
        deployment = replace(deployment, pool=replace(deployment.pool, replicas_count=replicas))
    return deployment if routing is None else replace(deployment, routing=routing)


@contextmanager
def _progress() -> Iterator[Advance | None]:
    """A bar on standard error where a person watches."""
    if not sys.stderr.isatty():
        yield None
        return
    columns = (TextColumn("replaying"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[clock]}"))
    with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("replay", total=None, clock="")

        def advance(done: int, total: int | None, simulated_s: float) -> None:
            bar.update(task, completed=done, total=total, clock=f"{simulated_s:,.0f} s simulated")

        yield advance


def draw(result: Mapping[str, Any]) -> None:
    """The replay for people."""
    console = screen()
    console.print(
        f"[bold]{result['source']}[/bold]: {result['completedRequests']} requests served, "
        f"{result['rejectedRequests']} rejected, {result['durationSeconds']:,.1f} s simulated, {result['gpus']} GPUs",
        highlight=False,
    )
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("ms")
    for name in ("mean", "median", "p90", "p99", "p99.9"):
        table.add_column(name, justify="right")
    for label, key in (
        ("TTFT", "ttft"),
        ("TTFT from admission", "ttftFromAdmission"),
        ("TPOT", "tpot"),
        ("ITL", "itl"),
        ("E2E", "e2e"),
        ("queue", "queue"),
    ):
        latency = result[f"{key}Milliseconds"]
        table.add_row(label, *(_number(latency[name]) for name in ("mean", "median", "p90", "p99", "p999")))
    console.print(table)
    console.print(
        f"  {result['outputTokensPerSecond']:.5g} output tok/s, {result['outputTokensPerSecondPerGpu']:.5g} per GPU; "
        f"hit rate {_number(result['hitRate'])} (HBM {_number(result['hbmHitRate'])}, host "
        f"{_number(result['hostHitRate'])}); {result['preemptions']} preemptions",
        highlight=False,
    )
    ranks = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("pool", "replica", "rank", "requests", "hit rate", "peak KV", "mean KV", "preempted"):
        ranks.add_column(name, justify="right")
    for rank in result["ranks"]:
        peak, mean = (f"{rank[key] / rank['kvBlocks']:.1%}" for key in ("peakKvBlocks", "meanKvBlocks"))
        ranks.add_row(
            rank["pool"],
            *(str(rank[key]) for key in ("replica", "rank", "requests")),
            _number(rank["hitRate"]),
            peak,
            mean,
            str(rank["preemptions"]),
        )
    console.print(ranks)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
