"""`inferasim anchors`: look into an anchor, run its harvest checks, and explain which one a target gets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, get_args

import typer
from rich.table import Table

from inferasim_operator.cli.fit import fit
from inferasim_operator.cli.output import EXIT_INFEASIBLE, EXIT_OK, Format, emit, exit_codes, screen
from simcore.anchors.checks import CheckResult, Verdict, check_anchor, worst
from simcore.anchors.schema import SCHEMA_ID, Anchor, GraphCapture, load_anchor
from simcore.anchors.select import Selection, Target, anchor_key, select_anchor
from simcore.cards.formats import canonical_format
from simcore.cards.kv_dtype import canonical_kv_dtype
from simcore.errors import InputError

app = typer.Typer(help="Inspect, check, fit and select anchors.", no_args_is_help=True, add_completion=False)
app.command()(fit)

Paths = Annotated[list[str], typer.Argument(help="Anchor files, or folders of them.")]
Output = Annotated[Format, typer.Option("-o", "--output", help="Output form.")]


def read_anchors(paths: list[str]) -> tuple[dict[str, Anchor], dict[str, str]]:
    """Anchors by path, and the files of folders that are none with the reason. Raises FormatError, InputError.

    A folder stands for its `.json` files: a harvest leaves its points, progress and result beside the anchor.
    """
    files: list[Path] = []
    others: dict[str, str] = {}
    for path in map(Path, paths):
        for file in sorted(path.glob("*.json")) if path.is_dir() else [path]:
            kind = _kind(file) if path.is_dir() else SCHEMA_ID
            if kind == SCHEMA_ID:
                files.append(file)
            else:
                others[str(file)] = f"no anchor: its `schema` is {kind}, not {SCHEMA_ID}"
    if not files:
        raise InputError("file", ", ".join(paths), "hold at least one anchor (.json)")
    return {str(file): load_anchor(file) for file in files}, others


def _kind(file: Path) -> str:
    """What a JSON file says that it is; an anchor where it cannot be read, so that reading it says why."""
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return SCHEMA_ID
    return str(document.get("schema", "absent")) if isinstance(document, dict) else "absent"


@app.command()
def show(paths: Paths, output: Output = Format.TABLE) -> None:
    """What an anchor was measured on, its sweeps and its provenance."""
    with exit_codes():
        documents = [
            {
                "file": path,
                "digest": anchor.digest(),
                "label": anchor.label,
                **anchor.model_dump(mode="json", by_alias=True),
            }
            for path, anchor in read_anchors(paths)[0].items()
        ]
        emit({"anchors": documents}, output, _show_table)


@app.command()
def check(paths: Paths, output: Output = Format.TABLE) -> None:
    """Run the named harvest checks; exit code 1 when one of them refuses an anchor."""
    with exit_codes():
        results = {path: check_anchor(anchor) for path, anchor in read_anchors(paths)[0].items()}
        document = {
            "anchors": [
                {"file": path, "verdict": worst(found).value, "checks": [_check_row(result) for result in found]}
                for path, found in results.items()
            ]
        }
        emit(document, output, _check_table)
        refused = any(worst(found) is Verdict.REFUSE for found in results.values())
        raise SystemExit(EXIT_INFEASIBLE if refused else EXIT_OK)


@app.command()
def select(
    paths: Paths,
    accelerator: Annotated[str, typer.Option(help="Product, e.g. MI355X.")],
    engine: Annotated[str, typer.Option(help="VLLM, SGLang or ATOM.")],
    model: Annotated[str, typer.Option(help="Checkpoint, e.g. Llama-3.1-8B.")],
    tensor_parallel: Annotated[int, typer.Option("--tensor-parallel", "--tp", min=1, max=4096)] = 1,
    expert_parallel: Annotated[int, typer.Option("--expert-parallel", "--ep", min=1, max=4096)] = 1,
    attention_data_parallel: Annotated[int, typer.Option(min=1, max=4096)] = 1,
    weights_dtype: Annotated[str | None, typer.Option()] = None,
    activation_dtype: Annotated[str | None, typer.Option()] = None,
    kv_dtype: Annotated[str | None, typer.Option()] = None,
    expert_dtype: Annotated[str | None, typer.Option()] = None,
    engine_version: Annotated[str | None, typer.Option()] = None,
    image: Annotated[str | None, typer.Option()] = None,
    partition: Annotated[str | None, typer.Option(help="e.g. spx_nps1.")] = None,
    attention_backend: Annotated[str | None, typer.Option()] = None,
    moe_backend: Annotated[str | None, typer.Option()] = None,
    graph_capture: Annotated[str | None, typer.Option(help="none, piecewise or full.")] = None,
    prompt_tokens: Annotated[int | None, typer.Option(min=1)] = None,
    max_batch: Annotated[int | None, typer.Option(min=1)] = None,
    concurrency: Annotated[int | None, typer.Option(min=1)] = None,
    output: Output = Format.TABLE,
) -> None:
    """The anchor a target gets and why not the others; exit code 1 when none applies."""
    with exit_codes():
        for option, dtype, known in (
            ("--weights-dtype", weights_dtype, canonical_format),
            ("--activation-dtype", activation_dtype, canonical_format),
            ("--expert-dtype", expert_dtype, canonical_format),
            ("--kv-dtype", kv_dtype, canonical_kv_dtype),
        ):
            if dtype is not None:
                known(dtype, option)
        modes = get_args(GraphCapture.model_fields["mode"].annotation)
        if graph_capture is not None and graph_capture not in modes:
            raise InputError("--graph-capture", graph_capture, "be one of " + ", ".join(modes))
        target = Target(
            accelerator=accelerator,
            engine=engine,
            model=model,
            tensor_parallel=tensor_parallel,
            expert_parallel=expert_parallel,
            attention_data_parallel=attention_data_parallel,
            weights_dtype=weights_dtype,
            activation_dtype=activation_dtype,
            kv_dtype=None if kv_dtype == "auto" else kv_dtype,
            expert_dtype=expert_dtype,
            engine_version=engine_version,
            image=image,
            partition=partition,
            attention_backend=attention_backend,
            moe_backend=moe_backend,
            graph_capture_mode=graph_capture,
            prompt_tokens=prompt_tokens,
            max_batch=max_batch,
            concurrency=concurrency,
        )
        anchors, others = read_anchors(paths)
        selection = select_anchor(target, list(anchors.values()))
        emit(_selection_document(selection, target, anchors) | {"otherFiles": others}, output, _select_table)
        raise SystemExit(EXIT_OK if selection.chosen else EXIT_INFEASIBLE)


def _selection_document(selection: Selection, target: Target, anchors: dict[str, Anchor]) -> dict[str, Any]:
    chosen = selection.chosen
    return {
        "target": target.label,
        "chosen": anchor_key(chosen) if chosen else None,
        "file": next((path for path, anchor in anchors.items() if anchor == chosen), None),
        "digest": chosen.digest() if chosen else None,
        "covered": selection.is_covered,
        "flags": list(selection.flags),
        "notes": list(selection.notes),
        "sibling": anchor_key(selection.sibling) if selection.sibling else None,
        "adopted": dict(selection.adopted or {}),
        "refusals": {name: list(why) for name, why in selection.refusals.items()},
    }


def _check_row(result: CheckResult) -> dict[str, Any]:
    return {
        "name": result.name,
        "verdict": result.verdict.value,
        "detail": result.detail,
        "numbers": dict(result.numbers),
    }


def _show_table(document: dict[str, Any]) -> None:
    console = screen()
    for item in document["anchors"]:
        signature, provenance = item["signature"], item["provenance"]
        console.print(f"[bold]{item['label']}[/]  {item['file']}  {item['digest'][:19]}", highlight=False)
        known = ", ".join(f"{key} {value}" for key, value in signature.items() if isinstance(value, str | int))
        console.print(f"  {known}", highlight=False)
        console.print(
            f"  source {provenance['source']}, real weights {provenance['realWeights']}, "
            f"prefix caching off {provenance['prefixCachingOff']}",
            highlight=False,
        )
        table = Table("prompt", "batch", "step ms", title="decode", title_justify="left")
        for sweep in item["decode"]:
            for point in sweep["points"]:
                table.add_row(str(sweep["promptTokens"]), str(point["batch"]), f"{point['stepMilliseconds']:.3f}")
        console.print(table)
        fit = item["prefill"]["fit"]
        console.print(
            f"  prefill: {fit['fixedMilliseconds']:.3f} ms + {fit['perTokenMicroseconds']:.3f} us/token + "
            f"{fit['perTokenSquaredNanoseconds']:.4f} ns/token^2",
            highlight=False,
        )
        for note in provenance["notes"]:
            console.print(f"  note: {note}", highlight=False, markup=False)


def _check_table(document: dict[str, Any]) -> None:
    console = screen()
    for item in document["anchors"]:
        table = Table("check", "verdict", "detail", title=f"{item['file']}: {item['verdict']}", title_justify="left")
        for row in item["checks"]:
            table.add_row(row["name"], row["verdict"], row["detail"])
        console.print(table)


def _select_table(document: dict[str, Any]) -> None:
    console = screen()
    console.print(f"target: {document['target']}", highlight=False)
    console.print(f"chosen: {document['chosen'] or 'none'}", highlight=False, markup=False)
    for flag, note in zip(document["flags"], document["notes"], strict=True):
        console.print(f"  {flag}: {note}", highlight=False, markup=False)
    if document["sibling"]:
        console.print(f"sibling for the measured shrink: {document['sibling']}", highlight=False, markup=False)
    for name, reasons in document["refusals"].items():
        console.print(f"not {name}: {'; '.join(reasons)}", highlight=False, markup=False)
    for path, reason in document["otherFiles"].items():
        console.print(f"not {path}: {reason}", highlight=False, markup=False)
