"""Applies the table to a case: all violations at once, then advice."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from simcore.cards.kv_dtype import is_fp8_kv
from simcore.cards.layout import Engine, stage_layers
from simcore.cards.model import AttentionKind, ModelCard
from simcore.legality.case import Finding, Judgement, LegalityCase, Violation
from simcore.legality.rules import RULES
from simcore.legality.table import Entry, Match, Verdict, entries_for

_HEAD_RULES = ("tp-divides-heads", "tp-divides-kv-heads", "tp-divides-linear-heads")
_MINIMAX_SAFE_TOKENS = 4096
"""Public case A06: 8k batched tokens fault, 4k works."""
_CAPTURE_FIX_VLLM = (0, 34)
"""Batches above the last captured size below the cap missed the full graph until September 2026 (public case A19)."""


def judge(case: LegalityCase) -> Judgement:
    """Every violation of `case`, what is unverified, and advisories. Pure; raises nothing for an illegal layout."""
    found: list[Violation] = []
    for rule, entries in entries_for(case.engine).items():
        if rule in RULES:
            found += _violations(case, rule, entries)
    illegal = tuple(item for item in found if item.verdict is Verdict.ILLEGAL)
    unsure = tuple(item for item in found if item.verdict is Verdict.UNVERIFIED)
    first = next((index for index, item in enumerate(illegal) if item.rule in _HEAD_RULES), None)
    if first is not None:
        item = illegal[first]
        hinted = replace(item, detail=f"{item.detail}; {suggest_layouts(case)}")
        illegal = (*illegal[:first], hinted, *illegal[first + 1 :])
    return Judgement(illegal, unsure, tuple(_advisories(case)))


def _violations(case: LegalityCase, rule: str, entries: tuple[Entry, ...]) -> Iterator[Violation]:
    """Findings of one rule under the entries that apply; doubt about version or backend makes them unverified."""
    sure: list[tuple[Entry, Finding]] = []
    doubtful: list[tuple[Entry, Finding]] = []
    for entry in entries:
        if not _applies(case, entry):
            continue
        match = entry.match_version(case.parsed_version)
        if match is Match.UNKNOWN and case.engine is Engine.ATOM:
            # ATOM has snapshots, not releases that the table could order: without a date the newest is meant.
            match = Match.YES if entry.below is None else Match.NO
        if match is Match.NO:
            continue
        target = sure if match is Match.YES else doubtful
        target += [(entry, finding) for finding in RULES[rule](case, entry.parameters)]
    for entry, finding in sure:
        yield Violation(rule, finding.tensor, finding.value, finding.detail, finding.verdict or entry.verdict)
    seen: set[tuple[str, int]] = set()
    for _entry, finding in doubtful:
        if (finding.tensor, finding.value) in seen:
            continue
        seen.add((finding.tensor, finding.value))
        missing = "without the engine version" if case.parsed_version is None else "for this version"
        yield Violation(
            rule, finding.tensor, finding.value, f"{finding.detail}; not verified {missing}", Verdict.UNVERIFIED
        )


def _applies(case: LegalityCase, entry: Entry) -> bool:
    if entry.vendor == "amd" and not case.is_amd:
        return False
    if entry.backends and case.backend not in entry.backends:
        return False
    return not entry.moe_backends or case.moe_backend_family in entry.moe_backends


def divides_heads(card: ModelCard, tp: int) -> bool:
    """Can TP cut this model's attention: query heads evenly, KV heads split or replicated, linear heads evenly?"""
    for group in card.groups:
        spec = group.attention
        if spec.kind is AttentionKind.LINEAR:
            if spec.linear_key_heads % tp or spec.linear_value_heads % tp:
                return False
        elif spec.heads % tp or (spec.kind is AttentionKind.GQA and spec.kv_heads % tp and tp % spec.kv_heads):
            return False
    return True


def suggest_layouts(case: LegalityCase) -> str:
    """What to do with the asked number of GPUs instead: legal TP widths, copies, idle GPUs, pipelines (A01)."""
    gpus = case.gpu_budget or case.widths.gpus_count
    legal = [tp for tp in range(1, gpus + 1) if divides_heads(case.card, tp)]
    ways = []
    for tp in legal:
        copies, idle = divmod(gpus, tp)
        ways.append(f"{copies}xTP{tp}" + (f" ({idle} GPU idle)" if idle else ""))
    text = f"legal TP widths up to {gpus} GPUs: {', '.join(map(str, legal))}; instead: {', '.join(ways[:6])}"
    if "layers" not in case.card.unknown and 1 < gpus <= case.card.layers_count:
        split = stage_layers(layers_count=case.card.layers_count, stages_count=gpus)
        shown = "/".join(map(str, split)) if len(split) <= 8 else f"{min(split)}-{max(split)} each"
        text += f", PP{gpus} ({shown} layers)"
    return text


def fp8_kv_needs_output_check(case: LegalityCase) -> bool:
    """FP8 KV may be chosen by a search only with an anchor whose outputs were checked (public case A24)."""
    return is_fp8_kv(case.kv_format_name)


def batches_without_graph(capture_batches: tuple[int, ...], running_requests: int) -> tuple[int, int] | None:
    """First and last batch above the largest captured size at or below the cap, or None where all are covered."""
    below = [size for size in capture_batches if size <= running_requests]
    largest = max(below, default=0)
    return (largest + 1, running_requests) if largest < running_requests else None


def _advisories(case: LegalityCase) -> Iterator[str]:
    card, layout, widths = case.card, case.layout, case.widths
    if widths.attention_tp > case.gpus_per_node:
        yield f"TP {widths.attention_tp} leaves its node of {case.gpus_per_node} GPUs: collectives cross the network"
    kv = min((g.attention.kv_heads for g in card.groups if g.attention.kind is AttentionKind.GQA), default=0)
    if kv and widths.attention_tp > kv:
        yield f"TP {widths.attention_tp} above {kv} KV heads: they are replicated, KV bytes per rank shrink no further"
    if card.is_mla and case.is_amd and case.backend == "default" and case.engine is not Engine.ATOM:
        with_aiter = replace(case, attention_backend="aiter")
        for item in _violations(with_aiter, "mla-kernel-heads", entries_for(case.engine).get("mla-kernel-heads", ())):
            yield f"if the attention backend is AITER: {item.detail} ({item.verdict})"
    if card.is_mla and widths.attention_tp > 1:
        yield "latent KV is replicated over TP ranks: TP does not enlarge the KV pool, attention DP does"
    if fp8_kv_needs_output_check(case):
        form = case.accelerator.fp8_format if case.accelerator is not None else "unknown"
        note = " (FNUZ encoding: other range than OCP)" if form == "fnuz" else ""
        yield f"FP8 KV cache{note}: only with an anchor of this model, engine, version and GPU with checked outputs"
    if not card.is_moe and layout.data_parallel > 1:
        yield f"data parallel {layout.data_parallel} on a dense model is {layout.data_parallel} independent copies"
    if card.has_linear_attention:
        yield "hybrid linear attention: each running request needs a state slot; use the pool size the engine reports"
    if any(not group.attention.latent_expanded for group in card.groups):
        yield "compressed latent attention: not per-token arithmetic; use the pool size that the engine reports"
    if (
        card.architecture == "MiniMaxM2ForCausalLM"
        and case.engine is Engine.VLLM
        and layout.expert_parallel > 1
        and case.moe_backend_family in ("aiter", "default")
        and (case.accelerator is None or case.accelerator.architecture == "gfx950")
        and (case.batched_tokens is None or case.batched_tokens > _MINIMAX_SAFE_TOKENS)
    ):
        yield (
            "reported: MiniMax with expert parallelism and AITER faults with 8k batched tokens on gfx950; "
            f"{_MINIMAX_SAFE_TOKENS} works (vllm#43605)"
        )
    if case.capture_batches is not None and case.running_requests is not None:
        gap = batches_without_graph(case.capture_batches, case.running_requests)
        if gap is not None and case.engine is Engine.VLLM and (case.parsed_version or (0,)) < _CAPTURE_FIX_VLLM:
            larger = min((size for size in case.capture_batches if size > case.running_requests), default=None)
            prefer = f"{gap[0] - 1}" if larger is None else f"{gap[0] - 1} or {larger}"
            yield f"batches {gap[0]}-{gap[1]} miss the full graph: prefer {prefer} running requests"
    if case.accelerator is not None and case.accelerator.validation_only:
        yield f"{case.accelerator.name} is kept for validation only: no plan is made for it"
