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
    host_kv_gibibytes_per_gpu: int = 0
    """Host memory for the KV cache of one GPU; 0 = no tier below HBM."""


@dataclass(frozen=True)
class Shape:
    """One engine replica that can run: what the predictor found legal and fitting."""

    option: EngineOption
    layout: Layout
    gpus_count: int

    @property
    def host_kv_gibibytes(self) -> int:
        """Of the replica."""
        return self.option.host_kv_gibibytes_per_gpu * self.gpus_count

    @property
    def key(self) -> tuple[str, str, int, Layout]:
        """Orders shapes, and tells them apart."""
        option = self.option
        return option.engine.value, option.version or "", option.host_kv_gibibytes_per_gpu, self.layout


@dataclass(frozen=True)
class Refusal:
    """Why a layout is not a candidate: the rule and its numbers."""

    option: EngineOption
    layout: Layout
    rule: str
    """`legality`, `memory`, `anchor`, `gpu-budget` or `overload`."""
    detail: str
    short_frac: float = 0.0
    """What it lacks of what is asked, where that is not a matter of its width."""
