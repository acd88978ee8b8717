"""The step cost of one layout: from an anchor or from the cards, then speculation and fusions where asked for."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from simcore.anchors.schema import Anchor
from simcore.cards.accelerator import AcceleratorCard
from simcore.cards.layout import Engine, Layout, resolve
from simcore.cards.model import ModelCard
from simcore.data.acceptance import AcceptanceCurve, borrow_acceptance, find_acceptance
from simcore.errors import InputError, UnknownNameError
from simcore.laws.fusions import check_fusions
from simcore.laws.speculation import DEPTH_LIMIT, Drafter, extrapolated_tokens, geometric_chain
from simcore.stepcost.analytical import AnalyticalStepCost, analytical
from simcore.stepcost.anchored import anchored
from simcore.stepcost.fused import fused
from simcore.stepcost.speculation import speculative
from simcore.stepcost.step import StepCost


@dataclass(frozen=True)
class Speculation:
    """A drafter that the anchor does not have, at a draft depth."""

    drafter: Drafter
    draft_tokens: int
    accepted_length_tokens: tuple[float, ...] = ()
    """L(1..K) as the user measured it; empty takes the curve measured for the model and this drafter."""
    borrows_acceptance: bool = False
    """Without either, take the sibling head's or other models' median (App. A.2) instead of refusing (case B07)."""


@dataclass(frozen=True)
class CostRequest:
    """What the step cost of one engine replica depends on."""

    card: ModelCard
    accelerator: AcceleratorCard
    engine: Engine
    layout: Layout
    kv_dtype: str
    nodes_count: int
    anchor: Anchor | None = None
    sibling: Anchor | None = None
    speculation: Speculation | None = None
    fusions: tuple[str, ...] = ()


def build_cost(request: CostRequest) -> StepCost:
    """Anchored where an anchor is given, else analytical. Raises InputError for a lever the model cannot have."""
    card, accelerator = request.card, request.accelerator
    cost: StepCost
    if request.anchor is not None:
        cost = anchored(
            request.anchor,
            layout=request.layout,
            model=card,
            accelerator=accelerator,
            sibling=request.sibling,
            nodes_count=request.nodes_count,
        )
    else:
        cost = _analytical(request)
    if request.speculation is not None:
        cost = _speculative(cost, request, request.speculation)
    if request.fusions:
        names = check_fusions(
            request.fusions, quantised_activations=has_quantised_activations(card), is_moe=card.is_moe
        )
        widths = resolve(request.layout, request.engine, is_moe=card.is_moe)
        cost = fused(cost, names, card=card, widths=widths, accelerator=accelerator)
    return cost


def has_quantised_activations(card: ModelCard) -> bool:
    """Whether linear layers read activations below 16 bits."""
    return card.dtypes.activations not in {"bf16", "fp16"}


def _analytical(request: CostRequest) -> AnalyticalStepCost:
    return analytical(
        request.card,
        request.accelerator,
        layout=request.layout,
        engine=request.engine,
        kv_dtype=request.kv_dtype,
        nodes_count=request.nodes_count,
    )


def acceptance(card: ModelCard, drafter: Drafter, *, borrows: bool = False) -> AcceptanceCurve:
    """The acceptance measured for model and drafter; with `borrows` the nearest other. Raises UnknownNameError."""
    find = borrow_acceptance if borrows else find_acceptance
    return find(model=card.name, drafter=drafter.value)


def _curve(card: ModelCard, asked: Speculation) -> AcceptanceCurve:
    try:
        return acceptance(card, asked.drafter, borrows=asked.borrows_acceptance)
    except UnknownNameError as error:
        hint = f"nobody measured {asked.drafter.value} on {card.name}"
        if not asked.borrows_acceptance:
            hint += "; `borrowAcceptance: true` takes the nearest other curve"
        raise InputError("speculation.acceptedLengthTokens", None, "be given", hint) from error


def _speculative(cost: StepCost, request: CostRequest, asked: Speculation) -> StepCost:
    if not 1 <= asked.draft_tokens <= DEPTH_LIMIT:
        raise InputError("speculation.draftTokens", asked.draft_tokens, f"be 1 to {DEPTH_LIMIT}")
    stated = asked.accepted_length_tokens
    borrowed, source = "", "as stated"
    if not stated:
        curve = _curve(request.card, asked)
        borrowed, source = curve.borrowed, curve.source
        stated = tuple(np.maximum.accumulate(curve.accepted_length_tokens).tolist())  # a measured fall is noise
    if not all(1.0 <= tokens <= depth + 1 for depth, tokens in enumerate(stated, start=1)):
        raise InputError("speculation.acceptedLengthTokens", stated, "lie from 1 to depth + 1 at each depth")
    if sorted(stated) != list(stated):
        raise InputError("speculation.acceptedLengthTokens", stated, "not fall with depth", "L(k) of Eq. 2 is a sum")
    if asked.drafter is Drafter.MTP and not request.card.mtp_layers_count:
        raise InputError(
            "speculation.method", asked.drafter.value, "be another drafter", f"{request.card.name} has no MTP layers"
        )
    measured = np.asarray(stated)
    committed = extrapolated_tokens(
        measured_tokens=measured, chain_frac=geometric_chain(measured), depth_count=asked.draft_tokens
    )
    found = speculative(
        cost,
        _analytical(request),
        drafter=asked.drafter,
        depth=asked.draft_tokens,
        committed_tokens=committed,
    )
    flags = ["acceptance-borrowed"] if borrowed else []
    if asked.draft_tokens > len(measured):
        flags.append("acceptance-extrapolated")
    reasons = (f"acceptance of {asked.drafter.value}: {borrowed or source}",)
    return replace(found, flags=(*found.flags, *flags), reasons=(*found.reasons, *reasons), _cache={})
