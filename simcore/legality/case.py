"""What is judged, and what a judgement looks like."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from simcore.cards.accelerator import AcceleratorCard
from simcore.cards.kv_dtype import kv_dtype_name
from simcore.cards.layout import Engine, Layout, ResolvedLayout, resolve
from simcore.cards.model import ModelCard
from simcore.legality.table import Verdict, Version, parse_version


@dataclass(frozen=True)
class LegalityCase:
    """One engine replica as the user asks for it; None = not said."""

    card: ModelCard
    engine: Engine
    layout: Layout
    version: str | None = None
    attention_backend: str | None = None
    moe_backend: str | None = None
    accelerator: AcceleratorCard | None = None
    gpus_per_node: int = 8
    gpu_budget: int | None = None
    kv_dtype: str | None = None
    redundant_experts_count: int = 0
    fused_shared_experts: bool = False
    split: tuple[int, ...] | None = None
    model_length_tokens: int | None = None
    batched_tokens: int | None = None
    running_requests: int | None = None
    capture_batches: tuple[int, ...] | None = None

    @cached_property
    def widths(self) -> ResolvedLayout:
        return resolve(self.layout, self.engine, is_moe=self.card.is_moe)

    @cached_property
    def parsed_version(self) -> Version | None:
        return parse_version(self.version)

    @property
    def backend(self) -> str:
        """Attention backend family: `aiter`, `triton`, another lower-case name, or `default` when none was named."""
        return _family(self.attention_backend)

    @property
    def moe_backend_family(self) -> str:
        return _family(self.moe_backend)

    @cached_property
    def kv_format_name(self) -> str:
        """The KV format that this engine runs with. Raises UnknownNameError."""
        return kv_dtype_name(self.kv_dtype, card=self.card, engine=self.engine)

    @property
    def is_amd(self) -> bool:
        return self.accelerator is None or self.accelerator.architecture.startswith("gfx")

    @property
    def has_shards_of_tp_group(self) -> bool:
        """SGLang and ATOM may still cut dense and shared experts over the whole TP group under attention DP."""
        return self.engine is not Engine.VLLM and self.layout.attention_data_parallel > 1


def _family(name: str | None) -> str:
    text = "default" if name is None else name.strip().lower()
    return next((family for family in ("aiter", "triton") if family in text), text or "default")


@dataclass(frozen=True)
class Finding:
    """What a rule saw, before the table says what it means."""

    tensor: str
    value: int
    detail: str
    verdict: Verdict | None = None
    """Overrides the table's verdict."""


@dataclass(frozen=True)
class Violation:
    """A broken or unproven rule: which tensor, which number."""

    rule: str
    tensor: str
    value: int
    detail: str
    verdict: Verdict


@dataclass(frozen=True)
class Judgement:
    """Every violation at once (public case A09), what could not be verified, and advice that changes no verdict."""

    violations: tuple[Violation, ...] = ()
    unverified: tuple[Violation, ...] = ()
    advisories: tuple[str, ...] = field(default=())

    @property
    def verdict(self) -> Verdict:
        if self.violations:
            return Verdict.ILLEGAL
        return Verdict.UNVERIFIED if self.unverified else Verdict.LEGAL
