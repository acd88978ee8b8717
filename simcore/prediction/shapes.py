"""What may be asked of an engine, what of it can run, and why the rest cannot."""

from __future__ import annotations

from dataclasses import dataclass

from simcore.cards.layout import Engine, Layout


@dataclass(frozen=True)
class EngineOption:
    """An engine that the search may choose; `layouts` None means all that are legal."""

    engine: Engine
    version: str | None = None
    image: str | None = None
    layouts: tuple[Layout, ...] | None = None


@dataclass(frozen=True)
class Shape:
    """One engine replica that can run: what the predictor found legal and fitting."""

    option: EngineOption
    layout: Layout
    gpus_count: int


@dataclass(frozen=True)
class Refusal:
    """Why a layout is not a candidate: the rule and its numbers."""

    option: EngineOption
    layout: Layout
    rule: str
    """`legality`, `memory`, `anchor` or `gpu-budget`."""
    detail: str
