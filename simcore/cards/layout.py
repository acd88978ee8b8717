"""How one engine replica is spread over GPUs, and which engine runs it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from simcore.errors import InputError, UnknownNameError


class Engine(StrEnum):
    """Serving engines that the planner knows."""

    VLLM = "VLLM"
    SGLANG = "SGLang"
    ATOM = "ATOM"

    @classmethod
    def parse(cls, text: str, field: str = "engine.name") -> Engine:
        """The engine named `text` in any case. Raises UnknownNameError."""
        for member in cls:
            if member.value.lower() == str(text).strip().lower():
                return member
        raise UnknownNameError(field, str(text), [m.value for m in cls])


@dataclass(frozen=True, order=True)
class Layout:
    """Parallel widths of one engine replica, as the user states them.

    `data_parallel` counts engine-internal data-parallel ranks; `attention_data_parallel` splits the TP group's
    attention into that many ranks (SGLang, ATOM) and adds no GPU. What each engine makes of the numbers (GPUs,
    attention TP, expert TP and EP) is `resolve`.
    """

    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    data_parallel: int = 1
    expert_parallel: int = 1
    attention_data_parallel: int = 1
    prefill_context_parallel: int = 1
    decode_context_parallel: int = 1

    def __post_init__(self) -> None:
        for name, value in self.__dict__.items():
            if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 4096:
                raise InputError(f"layout.{name}", value, "be an integer from 1 to 4096")

    def label(self) -> str:
        """Short name, e.g. `TP8`, `TP2xPP4`, `TP8-EP8-ADP8`."""
        text = f"TP{self.tensor_parallel}"
        if self.pipeline_parallel > 1:
            text += f"xPP{self.pipeline_parallel}"
        for tag, width in (
            ("DP", self.data_parallel),
            ("EP", self.expert_parallel),
            ("ADP", self.attention_data_parallel),
            ("PCP", self.prefill_context_parallel),
            ("DCP", self.decode_context_parallel),
        ):
            if width > 1:
                text += f"-{tag}{width}"
        return text


@dataclass(frozen=True)
class ResolvedLayout:
    """What an engine makes of a `Layout` (public cases A10, B03)."""

    gpus_count: int
    """GPUs of one engine replica."""
    attention_tp: int
    """Ranks that share one request's attention heads."""
    attention_dp: int
    """Ranks that own whole requests."""
    moe_tp: int
    moe_ep: int
    pipeline_parallel: int


def resolve(layout: Layout, engine: Engine, *, is_moe: bool) -> ResolvedLayout:
    """GPUs and attention/expert widths that `engine` makes of `layout`; keeps dp·tp = moe_tp·moe_ep per stage.

    vLLM: `data_parallel` ranks of `tensor_parallel` GPUs each; on a MoE the ranks are attention DP and, with expert
    parallel, EP = TP·DP. SGLang: DP attention lives inside the TP group; without it `data_parallel` copies the engine.
    ATOM: as SGLang, flattened. Source: public cases A10 and B03. Does not judge legality.
    """
    tp, dp, adp = layout.tensor_parallel, layout.data_parallel, layout.attention_data_parallel
    ep = layout.expert_parallel
    if engine is Engine.VLLM:
        # DP ranks may be stated either way; inside a wider TP group vLLM has none (legality says so, no GPU is added).
        attention_tp, attention_dp = tp, adp if tp == dp == 1 else dp
        ranks = tp * attention_dp
        moe_ranks = ranks if is_moe else tp
    else:
        copies = 1 if adp > 1 else dp
        attention_dp = adp if adp > 1 else copies
        attention_tp = max(1, tp // adp)
        ranks = tp * copies
        # ATOM's expert-parallel switch spans its data-parallel ranks too; SGLang's copies share nothing.
        moe_ranks = ranks if engine is Engine.ATOM and ep > 1 else tp
    moe_ep = min(ep, moe_ranks) if is_moe else 1
    moe_tp = max(1, moe_ranks // moe_ep)
    gpus = ranks * layout.pipeline_parallel * layout.prefill_context_parallel
    return ResolvedLayout(gpus, attention_tp, attention_dp, moe_tp, moe_ep, layout.pipeline_parallel)


def apart(layout: Layout, engine: Engine, *, is_moe: bool) -> tuple[Layout, int]:
    """Data-parallel ranks that share no weight and no step are copies: the layout of one, and how many there are.

    All of a dense model's are, and SGLang's without DP attention (public case B03).
    """
    is_shared = is_moe and (engine is not Engine.SGLANG or layout.attention_data_parallel > 1)
    if is_shared or layout.data_parallel == 1 or layout.attention_data_parallel > 1:
        return layout, 1
    return replace(layout, data_parallel=1), layout.data_parallel


def stage_layers(*, layers_count: int, stages_count: int, split: Sequence[int] | None = None) -> tuple[int, ...]:
    """Layers of each pipeline stage: `split` if given, else as vLLM and SGLang divide.

    A rest goes one layer each to the stages before the last, which also holds the output head: 61 over 4 is
    15, 15, 16, 15; 62 over 3 is 21, 21, 20 (public cases A01, A25). Raises InputError.
    """
    if split is not None:
        if len(split) != stages_count or sum(split) != layers_count or min(split) < 1:
            must = f"be {stages_count} positive layer counts that add up to {layers_count}"
            raise InputError("pipelineLayerSplit", list(split), must)
        return tuple(split)
    if stages_count > layers_count:
        raise InputError("layout.pipelineParallel", stages_count, f"be at most the {layers_count} layers")
    base, rest = divmod(layers_count, stages_count)
    counts = [base] * stages_count
    for index in range(2, rest + 2):
        counts[-index] += 1
    return tuple(counts)
