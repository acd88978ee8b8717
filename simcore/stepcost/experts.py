"""Time of the routed experts on the busiest EP rank: experts read, rows computed, few-expert shortfall (App. B.3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from simcore.cards.accelerator import AcceleratorCard
from simcore.cards.formats import canonical_format
from simcore.cards.layout import Engine
from simcore.cards.model import ModelCard
from simcore.data.constants import constant
from simcore.laws import moe as moe_laws
from simcore.laws.expert_load import uniform_load
from simcore.laws.routing_replay import ExpertLoad, Phase, load_at
from simcore.stepcost.roofline import peak_flop_per_s
from simcore.stepcost.work import Experts

Floats = NDArray[np.float64]

SHORTFALL_CURVE: Final[Mapping[str, str]] = MappingProxyType(
    {"fp8": "fp8", "mxfp8": "fp8", "int8": "fp8", "mxfp4": "mxfp4", "nvfp4": "mxfp4", "int4": "mxfp4"}
)
"""Few-expert bandwidth curve by expert format; 16-bit formats use their own."""
OWN_COVERAGE: Final = "gpt-oss"
"""Models whose names start so have a coverage curve of their own; the others take DeepSeek-V3's."""


class RouterLoad(Protocol):
    """(I_n, I_d) of the busiest rank of `experts` for steps of `step_tokens` tokens, (n,) each."""

    def __call__(self, experts: Experts, step_tokens: Floats, phase: Phase) -> tuple[Floats, Floats]: ...


def uniform_router(experts: Experts, step_tokens: Floats, phase: Phase) -> tuple[Floats, Floats]:
    """The load of a uniform router: chance only, no skew, the same in both phases."""
    del phase
    rows, distinct = uniform_load(
        experts_count=experts.experts_count,
        experts_per_token=experts.experts_per_token,
        expert_parallel=experts.expert_parallel,
        step_tokens=np.maximum(step_tokens, 1.0),
    )
    return np.asarray(rows), np.asarray(distinct)


def recorded_router(table: Sequence[ExpertLoad]) -> RouterLoad:
    """The load that a recorded routing replayed (`routing_replay.replay_table`); it must hold the EPs asked for."""

    def load(experts: Experts, step_tokens: Floats, phase: Phase) -> tuple[Floats, Floats]:
        tokens = np.maximum(step_tokens, 1.0)
        rows, distinct = load_at(table, expert_parallel=experts.expert_parallel, phase=phase, step_tokens=tokens)
        return np.asarray(rows), np.asarray(distinct)

    return load


@dataclass(frozen=True)
class ExpertRates:
    """What a GPU reaches: streaming reads and matrix products, and which model's router coverage applies."""

    read_bytes_per_s: float
    flop_per_s: float
    model_name: str = ""
    kept_surplus_frac: float = 1.0
    """Share of the busiest rank's surplus of distinct experts that the engine's step pays."""


def expert_rates(model: ModelCard, accelerator: AcceleratorCard, engine: Engine) -> ExpertRates:
    """The rates of `accelerator` for the expert format of `model`: datasheet peaks times reached shares."""
    peak = peak_flop_per_s(accelerator, model.dtypes.experts, model.dtypes.activations)
    return ExpertRates(
        accelerator.hbm_bytes_per_s * constant("memory.read_bandwidth_frac").value,
        peak * constant("gemm.peak_frac").value,
        model.name,
        constant("moe.sglang_kept_surplus_frac").value if engine is Engine.SGLANG else 1.0,
    )


def experts_s(
    layers: Sequence[Experts],
    step_tokens: Floats,
    rates: ExpertRates,
    load: RouterLoad = uniform_router,
    phase: Phase = Phase.DECODE,
) -> Floats:
    """Seconds that the busiest rank's experts take in a step of `step_tokens` tokens of the whole engine. (n,).

    Per layer the larger of reading I_d distinct experts and computing I_n rows. Source: paper App. B.3.
    """
    tokens = np.asarray(step_tokens, dtype=np.float64)
    total = np.zeros_like(tokens)
    for experts in layers:
        rows_factor, experts_factor = load(experts, tokens, phase)
        experts_factor = np.asarray(
            moe_laws.kept_surplus(imbalance_factor=np.maximum(experts_factor, 1.0), kept_frac=rates.kept_surplus_frac)
        )
        read = _touched(experts, tokens, rates.model_name) / experts.expert_parallel * experts_factor
        read = np.minimum(read, experts.experts_count / experts.expert_parallel)
        read_s = moe_laws.few_expert_read(
            expert_bytes=read * experts.slice_bytes,
            peak_bytes_per_s=rates.read_bytes_per_s,
            bandwidth_frac=_shortfall(experts.dtype, read),
        )
        rows = tokens * experts.experts_per_token / experts.expert_parallel * rows_factor
        compute_s = rows * experts.flop_per_row / rates.flop_per_s
        total += experts.layers_count * np.maximum(read_s, compute_s)
    return total


def _touched(experts: Experts, tokens: Floats, model_name: str) -> Floats:
    share = moe_laws.independent_coverage(
        experts_count=experts.experts_count,
        experts_per_token_count=experts.experts_per_token,
        step_tokens=np.maximum(tokens, 1.0),
    )
    own = model_name.lower().rsplit("/", 1)[-1].startswith(OWN_COVERAGE)
    curve = constant("moe.coverage.gpt_oss_120b_factor" if own else "moe.coverage.deepseek_v3_factor")
    return np.asarray(experts.experts_count * share * moe_laws.curve_at(curve=curve, at=np.maximum(tokens, 1.0)))


def _shortfall(dtype: str, experts_read: Floats) -> Floats:
    family = SHORTFALL_CURVE.get(canonical_format(dtype), "bf16")
    curve = constant(f"moe.few_expert_bandwidth.{family}_frac")
    return np.asarray(moe_laws.curve_at(curve=curve, at=np.maximum(experts_read, 1e-6)))
