"""`inferasim plan`: a ServingPlan computed here, with the operator's own planning code."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from inferasim_operator.api.v1alpha1.common import API_VERSION
from inferasim_operator.api.v1alpha1.servingplan import SearchMethod
from inferasim_operator.cli import documents
from inferasim_operator.cli.options import Claims, Report
from inferasim_operator.cli.output import EXIT_INFEASIBLE, Format, emit, exit_codes, note, screen, write_page
from inferasim_operator.kinds.servingplan.inputs import trace_data
from inferasim_operator.kinds.servingplan.render import TRACE_KEY
from inferasim_operator.plan_explanation import from_result
from inferasim_operator.planning import compute_plan
from inferasim_operator.report.numbers import layout as layout_text
from simcore.errors import FormatError, InputError, UnknownNameError

PLAN_KIND = "ServingPlan"
ANCHOR_KEY = "anchor.json"
CONFIG_KEY = "config.json"
LEDGER = "ledger"
KEY_VARIABLE = "INFERASIM_AGENT_KEY"
HARVESTS_SHOWN = 3
"""People choose among the first; the rest is in the document."""


def gather(paths: list[str]) -> dict[str, Any]:
    """The question in `paths`: one ServingPlan (manifest or bare spec), anchors (files or ConfigMaps), model configs.

    An anchor is named as its ConfigMap, or as its file without the extension: the names that the answer repeats.
    Raises InputError, FormatError.
    """
    plans: list[tuple[str, dict[str, Any]]] = []
    anchors: dict[str, Any] = {}
    config_maps: dict[str, Mapping[str, Any]] = {}
    for path in documents.expand(paths):
        for document in documents.load_documents(path):
            if "schema" in document:
                _add(anchors, Path(path).stem, document, path)
            elif document.get("kind") == "ConfigMap":
                _take_config_map(document, path, anchors, config_maps)
            elif document.get("kind") in (None, PLAN_KIND):
                if document.get("apiVersion") not in (None, API_VERSION):
                    raise FormatError(path, None, "apiVersion", document["apiVersion"], f"be {API_VERSION}")
                plans.append((path, document))
            elif path in paths:
                raise FormatError(path, None, "kind", document.get("kind"), f"be {PLAN_KIND}, ConfigMap or an anchor")
    if len(plans) != 1:
        found = f"{len(plans)} plans" + (f": {', '.join(path for path, _ in plans)}" if plans else "")
        raise InputError("file", found, "hold exactly one ServingPlan", "name it with -f")
    path, document = plans[0]
    spec = document.get("spec") if document.get("kind") == PLAN_KIND else document
    if not isinstance(spec, dict):
        raise FormatError(path, None, "spec", type(spec).__name__, "be a mapping")
    request = {"spec": spec, "anchors": anchors, "modelConfig": _model_config(spec, config_maps)}
    return request | _trace(spec, config_maps)


def _add(anchors: dict[str, Any], name: str, anchor: object, path: str) -> None:
    if name in anchors:
        raise FormatError(path, None, "anchor", name, "have a name of its own", "two anchors share it")
    anchors[name] = anchor


def _take_config_map(
    document: Mapping[str, Any], path: str, anchors: dict[str, Any], config_maps: dict[str, Mapping[str, Any]]
) -> None:
    name = str((document.get("metadata") or {}).get("name", ""))
    data = document.get("data") or {}
    if ANCHOR_KEY in data:
        _add(anchors, name, _json(data[ANCHOR_KEY], path, ANCHOR_KEY), path)
    else:
        config_maps[name] = document


def _json(text: str, path: str, key: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FormatError(path, None, key, str(error), "be JSON") from error


def _trace(spec: Mapping[str, Any], config_maps: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    workload = spec.get("workload")
    named = workload.get("trace") if isinstance(workload, dict) else None
    reference = named.get("configMap") if isinstance(named, dict) else None
    if not isinstance(reference, dict):
        return {}
    name, key = str(reference.get("name", "")), str(reference.get("key") or TRACE_KEY)
    data = trace_data(config_maps.get(name, {}), key)
    if data is None:
        raise InputError("spec.workload.trace.configMap", f"{name}/{key}", "be among the files given", "add it with -f")
    return {"trace": {"data": data}}


def _model_config(spec: Mapping[str, Any], config_maps: Mapping[str, Mapping[str, Any]]) -> Any:
    reference = (spec.get("model") or {}).get("configMap") if isinstance(spec.get("model"), dict) else None
    if not isinstance(reference, dict):
        return None
    name, key = str(reference.get("name", "")), str(reference.get("key") or CONFIG_KEY)
    data = config_maps.get(name, {}).get("data") or {}
    if key not in data:
        raise InputError("spec.model.configMap", f"{name}/{key}", "be among the files given", "add it with -f")
    return _json(data[key], name, key)


def plan(
    file: Annotated[list[str], typer.Option("-f", "--file", help="One plan, and the anchors it may use.")],
    output: Annotated[Format, typer.Option("-o", "--output", help="Output form.")] = Format.TABLE,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="No progress bar.")] = False,
    method: Annotated[
        str | None, typer.Option(help="Sweep, Seeds or Agent, in the place of the plan's `search.method`.")
    ] = None,
    budget: Annotated[int | None, typer.Option(help="Trials per engine and tier of Seeds and Agent.")] = None,
    ledger: Annotated[
        Path | None, typer.Option(help="Write the trials of Seeds or Agent here, a JSON line each.")
    ] = None,
    claims: Claims = None,
    table: Annotated[Path | None, typer.Option(help="Write all candidates here, as Parquet.")] = None,
    replay: Annotated[
        Path | None, typer.Option(help="Repeat the trials of this ledger; no language model is asked.")
    ] = None,
    report: Report = None,
) -> None:
    """Find the best configuration per latency tier. Exit 0 feasible, 1 no tier is, 2 bad input.

    The key of the plan's language model is taken from the environment: INFERASIM_AGENT_KEY.
    """
    with exit_codes():
        request = asked(gather(file), method=method, budget=budget, replay=replay)
        if claims is not None:
            request["claims"] = str(claims)
        result = run(request, quiet=quiet, table=table)
        _write_ledger(result.pop(LEDGER, None), ledger)
        emit(result, output, draw)
        write_page(report, _page, result)
        if not result["feasible"]:
            if not request["anchors"]:
                note("no anchor was handed in: name a file or folder of them with another -f")
            raise SystemExit(EXIT_INFEASIBLE)


def _page(result: Mapping[str, Any]) -> str:
    from inferasim_operator.report import plan as page

    return page.render(result, explanation=from_result(result))


def asked(request: dict[str, Any], *, method: str | None, budget: int | None, replay: Path | None) -> dict[str, Any]:
    """The question with what the command line says of the search. Raises InputError."""
    given = request["spec"].get("search")
    search = dict(given) if isinstance(given, dict) else {}
    if method is not None:
        names = {name.lower(): name.value for name in SearchMethod}
        if method.lower() not in names:
            raise UnknownNameError("method", method, list(names.values()))
        search["method"] = names[method.lower()]
        if search["method"] != SearchMethod.AGENT:
            search.pop("agent", None)
    if budget is not None:
        search["budget"] = budget
    found = {**request, "spec": {**request["spec"], **({"search": search} if search else {})}}
    key = os.environ.get(KEY_VARIABLE)
    if search.get("method") == SearchMethod.AGENT and key:
        found["agentKey"] = key
    if replay is not None:
        found["ledger"] = documents.read_text(str(replay))
    return found


def _write_ledger(text: str | None, path: Path | None) -> None:
    if path is None:
        return
    if text is None:
        raise InputError("ledger", str(path), "be asked of a search method that makes trials", "Seeds or Agent")
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError("ledger", str(path), f"be writable ({error.strerror or error})") from error


def run(request: dict[str, Any], *, quiet: bool, table: Path | None = None) -> dict[str, Any]:
    """Compute a plan, with a progress bar on a terminal; `table` takes all its candidates."""
    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        return compute_plan(request, table=table)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("scoring candidates", total=None)

        def show(counts: Mapping[str, Any]) -> None:
            bar.update(task, completed=counts["scored"], total=counts["total"])

        return compute_plan(request, show, table=table)


def draw(result: Mapping[str, Any]) -> None:
    """The answer as tables: a row per tier, then why not, then what to harvest."""
    console = screen()
    table = Table(title="chosen configuration per tier", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("tier", no_wrap=True)
    table.add_column("configuration", no_wrap=True)
    for name in ("GPUs", "clients", "tok/s\n/GPU", "tok/s\n/user", "TTFT\nms", "head-\nroom"):
        table.add_column(name, justify="right", no_wrap=True)
    for choice in result["selected"]:
        configuration, predicted = choice["configuration"], choice["predicted"]
        headroom = choice["headroomPermille"]
        table.add_row(
            choice["tier"],
            f"{configuration['engine']} {layout_text(configuration['layout'])} x{configuration['replicas']}",
            str(choice["gpus"]),
            str(configuration["concurrency"]),
            str(predicted["tokensPerSecondPerGpu"]),
            str(predicted["tokensPerSecondPerUser"]),
            str(predicted["ttftMilliseconds"]),
            "-" if headroom is None else f"{headroom / 10:+.0f} %",
        )
    if result["selected"]:
        console.print(table)
    stops = {tier["tier"]: tier["blocked"]["why"] for tier in from_result(result)["tiers"] if tier["blocked"]}
    for choice in result["selected"]:
        interval = choice["predicted"]["interval80"]
        console.print(f"  [bold]{choice['tier']}[/bold]: {choice['reason']}", highlight=False, soft_wrap=True)
        console.print(
            f"    80 % intervals: {_range(interval['tokensPerSecondPerGpu'])} tok/s/GPU, "
            f"TTFT {_range(interval['ttftMilliseconds'])} ms, TPOT {_range(interval['tpotMicroseconds'])} us; "
            f"{_source_text(choice['source'])}",
            highlight=False,
            soft_wrap=True,
        )
        if choice["tier"] in stops:
            console.print(f"    {stops[choice['tier']]}", highlight=False, soft_wrap=True)
    _draw_mix(console, result.get("mix"))
    for binding in result["binding"]:
        nearest = binding.get("nearest")
        near = ""
        if nearest:
            configuration = nearest["configuration"]
            layout = layout_text(configuration["layout"])
            near = f"; nearest: {configuration['engine']} {layout} x{configuration['replicas']}"
        console.print(
            f"  [bold red]{binding['tier']}[/bold red]: not feasible, "
            f"{binding['limit']} binds: {binding['detail']}{near}",
            highlight=False,
            soft_wrap=True,
        )
    harvests = result["recommendedHarvests"]
    for harvest in harvests[:HARVESTS_SHOWN]:
        console.print(
            f"  harvest {harvest['engine']} {layout_text(harvest['layout'])}: {harvest['reason']}",
            highlight=False,
            soft_wrap=True,
        )
    if len(harvests) > HARVESTS_SHOWN:
        console.print(f"  and {len(harvests) - HARVESTS_SHOWN} harvests that bring less: -o json", highlight=False)
    counts = result["candidates"]
    console.print(
        f"  {counts['scored']} candidates, {counts['simulations']} simulations, {counts['refused']} layouts refused",
        highlight=False,
    )
    record = result.get("search")
    if record:
        console.print(f"  {record['method']}: {record['trials']} trials, {record['refused']} refused", highlight=False)
        for failure in record.get("modelFailures", ()):
            console.print(f"  the language model failed: {failure}", highlight=False, soft_wrap=True, markup=False)


def _draw_mix(console: Console, mix: Mapping[str, Any] | None) -> None:
    if mix is None:
        return
    served, demand = mix["servedTokensPerSecond"], mix["demandTokensPerSecond"]
    title = f"mix: {mix['gpus']} of {mix['gpuBudget']} GPUs serve {served} of {demand} tok/s"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("model", "tier", "configuration"):
        table.add_column(name, no_wrap=True)
    for name in ("GPUs", "served\ntok/s", "demand\ntok/s"):
        table.add_column(name, justify="right", no_wrap=True)
    for item in mix["allocations"]:
        found = item.get("configuration")
        label = f"{found['engine']} {layout_text(found['layout'])} x{found['replicas']}" if found else "-"
        figures = (item["gpus"], item["servedTokensPerSecond"], item["demandTokensPerSecond"])
        table.add_row(item["model"], item["tier"], label, *map(str, figures))
    console.print(table)


def _range(ends: Mapping[str, int]) -> str:
    return f"{ends['low']}-{ends['high']}"


def _source_text(source: Mapping[str, Any]) -> str:
    text = f"from anchor {source['anchor']}" if source.get("anchor") else "no anchor: ranks only"
    return text + (f" ({', '.join(source['flags'])})" if source.get("flags") else "")
