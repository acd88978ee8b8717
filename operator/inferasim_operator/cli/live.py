"""`inferasim status`, `report` and `harvest logs`: what is in the cluster, as `kubectl inferasim` shows it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.table import Table

from inferasim_operator import views
from inferasim_operator.api.v1alpha1.anchorharvest import AnchorHarvest
from inferasim_operator.cli import cluster, documents
from inferasim_operator.cli.options import Context, Kubeconfig, Namespace, Output
from inferasim_operator.cli.output import EXIT_INFEASIBLE, Format, emit, exit_codes, note, screen, write_page
from inferasim_operator.engine import labels
from inferasim_operator.errors import NotFoundError
from simcore.errors import FormatError

harvest = typer.Typer(no_args_is_help=True, add_completion=False)
LOG_LINES = 200
HARVEST_ROLE = "harvest"


def status(
    name: Annotated[str | None, typer.Argument(metavar="[KIND/]NAME", help="One object; all when absent.")] = None,
    all_namespaces: Annotated[bool, typer.Option("-A", "--all-namespaces", help="In every namespace.")] = False,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
    output: Output = Format.TABLE,
) -> None:
    """How harvests, plans and mixes are doing. Exit 0, 1 when one of them is stalled, 2 bad input."""
    with exit_codes():
        where = cluster.place(namespace, context, kubeconfig)
        resource, wanted = cluster.split_name(name) if name else (None, None)
        found = [
            live
            for kind in cluster.KINDS
            if resource in (None, kind)
            for live in where.list(kind, everywhere=all_namespaces)
            if wanted in (None, live["metadata"]["name"])
        ]
        if wanted is not None and not found:
            raise NotFoundError(f"no object `{name}` in namespace `{where.namespace}`", status=404)
        document = {"objects": [views.state(live) for live in found]}
        emit(document, output, _draw)
        if any(item["stalled"] for item in document["objects"]):
            raise SystemExit(EXIT_INFEASIBLE)


def _draw(document: Mapping[str, Any]) -> None:
    console, objects = screen(), document["objects"]
    if not objects:
        note("nothing found")
        return
    namespaces = len({item["namespace"] for item in objects}) > 1
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in (*(["namespace"] if namespaces else []), "object", "ready", "reason", "answer"):
        table.add_column(heading, overflow="fold")
    for item in objects:
        label = f"{item['kind'].lower()}/{item['name']}"
        first = [item["namespace"]] if namespaces else []
        table.add_row(*first, label, item["ready"], item["reason"] or "–", views.answer_text(item))
    console.print(table)
    for item in objects:
        if item["ready"] != "True":
            text = f"  {item['kind'].lower()}/{item['name']}: {item['message']}"
            console.print(text, highlight=False, soft_wrap=True, markup=False)


def report(
    source: Annotated[
        str, typer.Argument(metavar="PLAN|RESULT.json", help="A live plan, or what `plan -o json` wrote.")
    ],
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="Where the page goes; `-` = standard output.")
    ] = None,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Write a plan's answer as one self-contained HTML page. Exit 0, 1 there is no answer yet, 2 bad input."""
    with exit_codes():
        name = cluster.plan_name([source])
        if name is None:
            result, title = documents.load_document(source), ""
        else:
            result, title = cluster.live_result(name, cluster.place(namespace, context, kubeconfig)), name
        text = _render(result, title, source)
        if str(file) == "-":
            sys.stdout.write(text)
            return
        target = file or Path(f"{name or Path(source).stem}.html")
        write_page(target, lambda found: found, text)
        note(f"wrote {target}")


def _render(result: Mapping[str, Any], title: str, source: str) -> str:
    # Both bring the search with them, which `status` must not wait for.
    from inferasim_operator import plan_explanation
    from inferasim_operator.report import plan as page

    try:
        return page.render(result, name=title, explanation=plan_explanation.from_result(result))
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise FormatError(source, None, "result", repr(error), "be what `inferasim plan -o json` writes") from error


@harvest.callback()
def _group() -> None:
    """Look into a measurement that runs."""


@harvest.command()
def logs(
    name: Annotated[str, typer.Argument(help="The AnchorHarvest.")],
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on until the harvester ends.")] = False,
    tail: Annotated[int, typer.Option(min=1, max=1_000_000, help="Lines from the end to begin with.")] = LOG_LINES,
    previous: Annotated[
        bool, typer.Option("-p", "--previous", help="Of the container before the last restart.")
    ] = False,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Print what the harvester of an AnchorHarvest says. Exit 0, 1 it has said nothing yet, 2 bad input."""
    with exit_codes():
        where = cluster.place(namespace, context, kubeconfig)
        live = where.find(AnchorHarvest.resource.kind, name)
        pod = _pod(live, where)
        container = pod["spec"]["containers"][0]["name"]
        stream = where.client.stream_pod_log(
            where.namespace, pod["metadata"]["name"], container=container, lines=tail, previous=previous, follow=follow
        )
        for piece in stream:
            sys.stdout.write(piece)
            sys.stdout.flush()


def _pod(live: cluster.Object, where: cluster.Place) -> Mapping[str, Any]:
    """The harvest's newest pod that has run. Raises NoAnswerError with the reason when none has."""
    name = live["metadata"]["name"]
    pods = where.client.list("v1", "Pod", where.namespace, labels=labels.owned_by(live, role=HARVEST_ROLE))
    if not pods:
        raise views.NoAnswerError(f"harvest `{name}` has no pod: {views.ready_text(live)}")
    pod = max(pods, key=lambda item: str(item["metadata"].get("creationTimestamp", "")))
    told = pod.get("status") or {}
    if told.get("phase", "Pending") == "Pending":
        why = _waiting(told) or views.ready_text(live)
        raise views.NoAnswerError(f"the pod of harvest `{name}` has not started: {why}")
    return pod


def _waiting(told: Mapping[str, Any]) -> str:
    for container in told.get("containerStatuses") or ():
        waiting = (container.get("state") or {}).get("waiting") or {}
        if waiting:
            return ": ".join(str(waiting[key]) for key in ("reason", "message") if waiting.get(key))
    for item in told.get("conditions") or ():
        if item.get("type") == "PodScheduled":
            return str(item.get("message") or "")
    return ""
