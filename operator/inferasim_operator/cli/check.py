"""`inferasim check`: is this layout legal, does it fit, and what capacity does it have (docs/check.md)."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

import typer
from rich.table import Table

from inferasim_operator.cli.documents import load_document
from inferasim_operator.cli.output import EXIT_INFEASIBLE, Format, emit, exit_codes, screen
from simcore.cards.labels import read_node_labels
from simcore.cards.layout import Engine, Layout
from simcore.cards.model import ModelCard
from simcore.errors import InputError
from simcore.legality import (
    JudgedLayout,
    Judgement,
    LegalityCase,
    Verdict,
    enumerate_layouts,
    judge,
    judge_pair,
)
from simcore.legality.judge import suggest_layouts
from simcore.memory import MemoryPlan, kv_transfer_bytes, plan_memory, weight_bytes_by_stage
from simcore.prediction.case import (
    CheckInput,
    engine_input,
    hbm_bytes,
    kv_input,
    legality_case,
    memory_request,
    model_card,
    read_case,
    to_layout,
)

MOST_GPUS_LISTED = 4096
"""No engine spans more, and a list beyond it is nobody's to read."""
WEIGHTS_TOLERANCE_FRAC = 0.1
"""Allocator and buffers stay below it; a wrong format or a replicated part does not (sglang#7691: 1.8 times)."""
_FIGURES = (
    "gpusPerEngine", "nodesPerEngine", "attentionTensorParallel", "weightBytesPerGpu", "kvBytesPerTokenPerRank",
    "kvPoolTokensPerRank", "kvPoolTokensPerEngine", "longestContextTokens", "concurrencyAtMaxModelLength",
    "minimumMemoryFraction",
)  # fmt: skip


def check_document(document: dict[str, Any]) -> dict[str, Any]:
    """The answer to one case: verdict, every violation, capacity (keys of the contract; unknown is None, never 0).

    Raises InputError and its kin for a case that cannot be read.
    """
    case = read_case(document)
    card = model_card(case)
    engine = Engine.parse(engine_input(case).name)
    if case.enumerate_:
        answer = _enumerated(case, card)
    elif case.prefill is not None or case.decode is not None:
        if case.prefill is None or case.decode is None:
            raise InputError("prefill" if case.prefill is None else "decode", None, "be given with the other side")
        answer = _pair(case, card, to_layout(case.prefill, engine), to_layout(case.decode, engine))
    elif case.layout is not None:
        answer = _single(case, card, to_layout(case.layout, engine))
    else:
        raise InputError("layout", None, "be given", "or `enumerate: true`, or `prefill` and `decode`")
    common = _common(case, card)
    common["assumed"] += answer.get("assumed", [])
    return answer | common


def _single(case: CheckInput, card: ModelCard, layout: Layout) -> dict[str, Any]:
    legal = legality_case(case, card, layout)
    return _answer(judge(legal), legal, _memory(case, card, layout), case)


def _memory(case: CheckInput, card: ModelCard, layout: Layout) -> MemoryPlan | None:
    """Memory of a layout; None where the layout does not even cut the model into stages."""
    if "layers" not in card.unknown and layout.pipeline_parallel > card.layers_count:
        return None
    return plan_memory(memory_request(case, card, layout))


def _answer(judgement: Judgement, legal: LegalityCase, memory: MemoryPlan | None, case: CheckInput) -> dict[str, Any]:
    violations = [_violation(item) for item in judgement.violations]
    violations += [_violation(item) for item in (() if memory is None else memory.violations)]
    verdict = Verdict.ILLEGAL if violations else judgement.verdict
    advisories = list(judgement.advisories) + _length_advice(legal, memory) + _weight_advice(legal, case)
    return {
        "verdict": verdict.value,
        "violations": violations,
        "unverified": [_violation(item) for item in judgement.unverified],
        "advisories": advisories,
        "assumed": _assumed(memory, legal, case),
        **_layout_figures(legal),
        **_memory_figures(memory, case, legal.card),
    }


def _assumed(memory: MemoryPlan | None, legal: LegalityCase, case: CheckInput) -> list[str]:
    """What the capacity rests on that nobody measured or stated."""
    found = [] if memory is None else list(memory.assumed)
    device = legal.accelerator
    if device is not None and "hbm_bytes" in device.assumed and case.kv_pool_bytes_per_gpu is None:
        found.append(f"memory of {device.name}: the nominal class, not what a device reports")
    return found


def _violation(item: Any) -> dict[str, Any]:
    return {"rule": item.rule, "tensor": item.tensor, "value": item.value, "detail": item.detail}


def _length_advice(legal: LegalityCase, memory: MemoryPlan | None) -> list[str]:
    """Without a maximum length the checkpoint's own is what vLLM would try."""
    longest = legal.card.max_position_tokens
    if memory is None or not memory.pool_tokens_per_rank or legal.model_length_tokens is not None or not longest:
        return []
    if memory.pool_tokens_per_rank >= longest:
        return []
    tokens = memory.pool_tokens_per_rank
    return [f"the checkpoint's {longest} positions exceed the pool: set a maximum model length of at most {tokens}"]


def _weight_advice(legal: LegalityCase, case: CheckInput) -> list[str]:
    """Measured weights that the config does not explain, and draft layers that the checkpoint does not have."""
    card, layout, given, found = legal.card, legal.layout, case.weight_bytes_per_gpu, []
    if card.unknown or layout.pipeline_parallel > card.layers_count:
        return []
    if case.draft_layers > card.mtp_layers_count:
        held = card.mtp_layers_count
        found.append(
            f"draftLayers {case.draft_layers}, the config has {held} MTP layers: the rest is counted like them"
        )
    if given is not None:
        stages = weight_bytes_by_stage(card=card, layout=layout, engine=legal.engine, split=legal.split)
        counted = max(sum(stage.values()) for stage in stages)
        if abs(given - counted) > WEIGHTS_TOLERANCE_FRAC * counted:
            found.append(
                f"measured weights of {given} B are {given / counted:.2f} times the {counted} B that the config gives "
                "for this layout: the engine runs another layout or format, or holds copies"
            )
    return found


def _layout_figures(legal: LegalityCase) -> dict[str, Any]:
    widths, layout = legal.widths, legal.layout
    return {
        "engine": legal.engine.value,
        "layout": _layout(layout),
        "layoutLabel": layout.label(),
        "gpusPerEngine": widths.gpus_count,
        "nodesPerEngine": -(-widths.gpus_count // legal.gpus_per_node),
        "attentionTensorParallel": widths.attention_tp,
        "attentionDataParallel": widths.attention_dp,
        "moeTensorParallel": widths.moe_tp if legal.card.is_moe else None,
        "moeExpertParallel": widths.moe_ep if legal.card.is_moe else None,
    }


def _layout(layout: Layout) -> dict[str, int]:
    return {
        "tensorParallel": layout.tensor_parallel,
        "pipelineParallel": layout.pipeline_parallel,
        "dataParallel": layout.data_parallel,
        "expertParallel": layout.expert_parallel,
        "attentionDataParallel": layout.attention_data_parallel,
        "prefillContextParallel": layout.prefill_context_parallel,
        "decodeContextParallel": layout.decode_context_parallel,
    }


def _memory_figures(memory: MemoryPlan | None, case: CheckInput, card: ModelCard) -> dict[str, Any]:
    if memory is None:
        return dict.fromkeys(_FIGURES[3:])
    kv, exact = memory.kv, memory.kv_known and memory.kv.exact
    estimate = kv.planning_bytes_per_token if memory.kv_known else None
    tokens = memory.pool_tokens_per_rank or None
    positive_pool = memory.pool_bytes_per_gpu if (memory.pool_bytes_per_gpu or 0) > 0 else None
    figures: dict[str, Any] = {
        "weightBytesPerGpu": memory.weight_bytes_per_gpu,
        "weightBytesByPart": dict(sorted(memory.weight_parts.items())) or None,
        "kvBytesPerTokenPerRank": kv.bytes_per_token if exact else None,
        "kvBytesPerTokenPerRankWindowAware": int(kv.growing_bytes_per_token) if exact and kv.windows else None,
        "kvBytesPerTokenPerRankEstimate": estimate if not exact else None,
        "stateBytesPerRequestPerRank": kv.state_bytes_per_request or None,
        "memoryBudgetBytes": memory.budget_bytes,
        "activationBytes": memory.activation_bytes,
        "kvPoolBytesPerGpu": positive_pool,
        "kvPoolTokensPerRank": tokens if exact else None,
        "kvPoolTokensPerEngine": (memory.pool_tokens_per_engine or None) if exact else None,
        "longestContextTokens": (memory.longest_context_tokens or None) if exact else None,
        "concurrencyAtMaxModelLength": _rounded(memory.concurrency_at_model_length) if exact and tokens else None,
        "minimumMemoryFraction": _rounded(memory.minimum_fraction),
        "indexerBufferBytes": memory.index_buffer_bytes,
    }
    if case.footprint is not None:
        sequences, length = case.footprint.sequences, case.footprint.tokens
        reserved = kv.reserved_bytes(sequences_count=sequences, tokens=length)
        capped = kv.capped_bytes(sequences_count=sequences, tokens=length)
        figures["footprintBytesReserved"] = reserved if exact else None
        figures["footprintBytesWindowCapped"] = capped if exact else None
    if case.transfer is not None:
        form = kv_input(case, card)
        size = kv_transfer_bytes(card=card, prompt_tokens=case.transfer.prompt_tokens, form=form) if exact else None
        rate = case.transfer.link_bytes_per_second
        figures["kvTransferBytes"] = size
        figures["kvTransferMilliseconds"] = None if size is None or rate is None else _rounded(1000 * size / rate)
    return figures


def _rounded(value: float | None) -> float | None:
    """Six decimals: enough for every tolerance of the cases, and the same text on every machine."""
    return None if value is None else round(value, 6)


def _pair(case: CheckInput, card: ModelCard, prefill: Layout, decode: Layout) -> dict[str, Any]:
    """Both pools; the figures of the contract are the decode side's, where KV capacity binds."""
    sides = {"prefill": legality_case(case, card, prefill), "decode": legality_case(case, card, decode)}
    plans = {name: _memory(case, card, side.layout) for name, side in sides.items()}
    judgement = judge_pair(sides["prefill"], sides["decode"])
    answer = _answer(judgement, sides["decode"], plans["decode"], case)
    early = plans["prefill"]
    for item in () if early is None else early.violations:
        answer["violations"].append(_violation(replace(item, tensor=f"prefill.{item.tensor}")))
        answer["verdict"] = Verdict.ILLEGAL.value
    for name, side in sides.items():
        answer[name] = _layout_figures(side) | _memory_figures(plans[name], case, card)
    return answer


def _enumerated(case: CheckInput, card: ModelCard) -> dict[str, Any]:
    """Every legal layout that fits, those that nobody verified, and why the plain TP widths that are missing are."""
    base = legality_case(case, card, Layout())
    gpus = case.total_gpus or case.node_gpus
    if gpus > MOST_GPUS_LISTED:
        raise InputError("gpus", gpus, f"be at most {MOST_GPUS_LISTED} where layouts are listed", "one engine is asked")
    base = replace(base, gpu_budget=gpus)
    legal: list[dict[str, Any]] = []
    unverified: list[dict[str, Any]] = []
    rejected: list[dict[str, Any]] = []
    for item in enumerate_layouts(base, gpus=gpus, largest_pipeline=case.largest_pipeline_parallel):
        memory = _memory(case, card, item.layout)
        if memory is not None and not memory.fits:
            rejected.append(_rejection(item.layout, [_violation(found) for found in memory.violations]))
            continue
        (legal if item.verdict is Verdict.LEGAL else unverified).append(_row(item, base, memory, gpus))
    fits_nowhere = rejected and not legal and not unverified
    for tp in range(1, min(gpus, base.gpus_per_node) + 1):
        judgement = judge(replace(base, layout=Layout(tensor_parallel=tp)))
        if judgement.verdict is Verdict.ILLEGAL:
            rejected.append(_rejection(Layout(tensor_parallel=tp), [_violation(v) for v in judgement.violations]))
    verdict = Verdict.LEGAL if legal else Verdict.UNVERIFIED if unverified else Verdict.ILLEGAL
    violations: list[dict[str, Any]] = []
    if verdict is Verdict.ILLEGAL:
        # If all candidates die of memory, say memory, with the nearest one's bytes (public case B04).
        nearest = min(
            (found for entry in rejected for found in entry["violations"] if found["rule"] == "memory-fit"),
            key=lambda found: abs(found["value"]),
            default=None,
        )
        violations = [nearest] if fits_nowhere and nearest else [v for entry in rejected for v in entry["violations"]]
    return {
        "verdict": verdict.value,
        "violations": violations,
        "unverified": [],
        "advisories": [suggest_layouts(base)] if card.groups[0].attention.heads else [],
        **dict.fromkeys(_FIGURES),
        "layouts": legal,
        "unverifiedLayouts": unverified,
        "rejectedLayouts": rejected,
    }


def _rejection(layout: Layout, violations: list[dict[str, Any]]) -> dict[str, Any]:
    return {**_layout(layout), "layoutLabel": layout.label(), "violations": violations}


def _row(item: JudgedLayout, base: LegalityCase, memory: MemoryPlan | None, gpus: int) -> dict[str, Any]:
    figures = _layout_figures(replace(base, layout=item.layout))
    copies, idle = divmod(gpus, item.widths.gpus_count)
    return {
        **_layout(item.layout),
        **{key: value for key, value in figures.items() if key not in ("engine", "layout")},
        "dataParallel": item.layout.data_parallel,
        "attentionDataParallel": item.layout.attention_data_parallel,
        "verdict": item.verdict.value,
        "unverified": [_violation(found) for found in item.judgement.unverified],
        "replicas": copies,
        "idleGpus": idle,
        "weightBytesPerGpu": None if memory is None else memory.weight_bytes_per_gpu,
        "kvPoolTokensPerEngine": (memory.pool_tokens_per_engine or None)
        if memory is not None and memory.kv.exact
        else None,
    }


def _common(case: CheckInput, card: ModelCard) -> dict[str, Any]:
    """What is true of the case whatever the layout."""
    common: dict[str, Any] = {
        "model": card.name,
        "hbmBytesPerGpu": hbm_bytes(case),
        "modelShapeUnknown": list(card.unknown),
        "assumed": list(card.assumed),
    }
    if case.node_labels is not None:
        node = read_node_labels(case.node_labels, allocatable_devices=case.allocatable_devices)
        common["node"] = {
            "product": node.product,
            "virtualFunction": node.virtual_function,
            "partition": node.partition,
            "devicesPerGpu": node.devices_per_gpu,
            "memoryBytesPerGpu": node.memory_bytes_per_gpu,
            "gpus": node.gpus,
            "canPlan": node.can_plan,
            "notes": list(node.notes),
        }
    return common


def check(
    file: Annotated[str, typer.Option("-f", "--file", help="The case, YAML or JSON; `-` reads standard input.")],
    output: Annotated[Format, typer.Option("-o", "--output", help="Output form.")] = Format.TABLE,
) -> None:
    """Judge one case: legality, memory and capacity. Exit 0 legal or unverified, 1 illegal, 2 bad input."""
    with exit_codes():
        answer = check_document(load_document(file))
        emit(answer, output, _print_table)
        if answer["verdict"] == Verdict.ILLEGAL.value:
            raise SystemExit(EXIT_INFEASIBLE)


def _print_table(answer: dict[str, Any]) -> None:
    console = screen()
    console.print(f"[bold]{answer['model']}[/bold]: {answer['verdict']}", highlight=False)
    for key, style in (("violations", "red"), ("unverified", "yellow")):
        for item in answer[key]:
            console.print(f"  [{style}]{item['rule']}[/{style}] {item['tensor']}: {item['detail']}", highlight=False)
    for word, notes in (("note", answer["advisories"]), ("assumed", answer["assumed"])):
        for note in notes:
            console.print(f"  {word}: {note}", highlight=False, markup=False)
    if "layouts" in answer:
        table = Table("layout", "GPUs", "replicas", "idle", "weights GiB/GPU", "KV tokens", "verdict")
        for row in [*answer["layouts"], *answer["unverifiedLayouts"]]:
            table.add_row(
                row["layoutLabel"], str(row["gpusPerEngine"]), str(row["replicas"]), str(row["idleGpus"]),
                _gibibytes(row["weightBytesPerGpu"]), _number(row["kvPoolTokensPerEngine"]), row["verdict"],
            )  # fmt: skip
        console.print(table)
        return
    table = Table("figure", "value")
    for key in _FIGURES:
        value = answer[key]
        text = f"{_number(value)} ({_gibibytes(value)} GiB)" if key == "weightBytesPerGpu" and value else _number(value)
        table.add_row(key, text)
    console.print(table)


def _gibibytes(value: int | None) -> str:
    return "unknown" if value is None else f"{value / (1 << 30):.2f}"


def _number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:,}"
