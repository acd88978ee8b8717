"""Hypothesis strategies: legal arguments of every law, by its key in the register. A new law is added here too."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from simcore.data.constants import constant
from simcore.laws.speculation import Drafter


def real(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(low, high, allow_nan=False, allow_infinity=False)


TIME = real(1e-6, 10.0)
FACTOR = real(0.1, 4.0)
SHARE = real(0.01, 1.0)
IMBALANCE = real(1.0, 8.0)
BYTES = real(0.0, 1e12)
RATE = real(1e9, 1e13)
WIDTH = st.sampled_from([1, 2, 4, 8, 16])
BATCH = st.integers(1, 2048)
TOKENS = real(1.0, 1e6)
COUNT = st.integers(1, 512)


@st.composite
def rising(draw: st.DrawFn, low: float, high: float, count: int) -> tuple[float, ...]:
    return tuple(sorted(draw(st.lists(real(low, high), min_size=count, max_size=count, unique=True))))


@st.composite
def decode(draw: st.DrawFn) -> dict[str, Any]:
    floor = draw(TIME)
    return {"step_s": floor + draw(TIME), "floor_s": floor, "shrink_factor": draw(FACTOR)}


@st.composite
def split_decode(draw: st.DrawFn) -> dict[str, Any]:
    """Parts first, so that they always fit."""
    constant_s, weight, first, more, excess = (draw(TIME) for _ in range(5))
    floor = constant_s + weight + first
    return {
        "step_s": floor + more + excess,
        "floor_s": floor,
        "weight_s": weight,
        "collective_from_s": first + more,
        "collective_floor_from_s": first,
        "collective_to_s": draw(TIME),
        "weight_shrink_factor": draw(FACTOR),
        "excess_shrink_factor": draw(FACTOR),
    }


@st.composite
def shrink_pair(draw: st.DrawFn) -> dict[str, Any]:
    floor = draw(real(1e-4, 1e-2))
    return {
        "half_width_excess_s": floor + draw(TIME),
        "width_excess_s": draw(TIME),
        "excess_floor_s": floor,
        "low_factor": 0.5,
        "high_factor": 1.0,
    }


@st.composite
def shrink_curve(draw: st.DrawFn) -> dict[str, Any]:
    count = draw(st.integers(1, 5))
    batches = draw(st.lists(BATCH, min_size=count, max_size=count, unique=True))
    return {
        "batch_requests": draw(BATCH),
        "curve_batch_requests": np.array(sorted(batches), dtype=np.float64),
        "curve_factor": np.array([draw(real(0.5, 1.0)) for _ in range(count)]),
        "doublings_count": draw(st.integers(-2, 3)),
    }


@st.composite
def communicating_prefill(draw: st.DrawFn) -> dict[str, Any]:
    fixed, communication, work = draw(TIME), draw(TIME), draw(TIME)
    return {
        "step_s": fixed + communication + work,
        "fixed_s": fixed,
        "communication_from_s": communication,
        "communication_to_s": draw(TIME),
        "shrink_factor": draw(FACTOR),
    }


@st.composite
def two_widths(draw: st.DrawFn) -> dict[str, Any]:
    narrow = draw(st.sampled_from([1, 2, 4]))
    return {
        "narrow_step_s": draw(TIME),
        "wide_step_s": draw(TIME),
        "narrow_width": narrow,
        "wide_width": narrow * draw(st.sampled_from([2, 4])),
    }


@st.composite
def staircase(draw: st.DrawFn) -> dict[str, Any]:
    sizes = sorted(draw(st.sets(BATCH, max_size=20)))
    return {"batch_requests": float(draw(BATCH)), "captured_requests": np.array(sizes, dtype=np.float64)}


@st.composite
def slope(draw: st.DrawFn) -> dict[str, Any]:
    short = draw(TOKENS)
    return {
        "short_step_s": draw(TIME),
        "long_step_s": draw(TIME),
        "short_context_tokens": short,
        "long_context_tokens": short + draw(TOKENS),
        "batch_requests": draw(BATCH),
    }


@st.composite
def router(draw: st.DrawFn) -> dict[str, Any]:
    """Routers small enough to enumerate every step."""
    experts, ranks = draw(st.sampled_from([(4, 2), (4, 4), (6, 2), (6, 3)]))
    return {
        "experts_count": experts,
        "experts_per_token": draw(st.integers(1, 2)),
        "expert_parallel": ranks,
        "step_tokens": draw(st.integers(1, 3)),
    }


@st.composite
def placed_hop(draw: st.DrawFn) -> dict[str, Any]:
    stages = draw(st.integers(1, 16))
    return {
        "stages_count": stages,
        "nodes_count": draw(st.integers(1, stages)),
        "node_hop_s": draw(TIME),
        "network_hop_s": draw(TIME),
    }


@st.composite
def committed(draw: st.DrawFn, count: int) -> list[float]:
    """L(1..count) from a chain of acceptances, hence legal and rising."""
    chances = draw(st.lists(real(0.0, 1.0), min_size=count, max_size=count))
    return (1.0 + np.cumsum(np.cumprod(chances))).tolist() if chances else []


@st.composite
def chain(draw: st.DrawFn) -> dict[str, Any]:
    measured = draw(committed(draw(st.integers(1, 8))))
    return {
        "measured_tokens": np.array(measured),
        "chain_frac": draw(real(0.0, 1.0)),
        "depth_count": draw(st.integers(0, 12)),
    }


@st.composite
def depths(draw: st.DrawFn) -> dict[str, Any]:
    count = draw(st.integers(0, 8))
    return {
        "step_s": np.array([draw(TIME) for _ in range(count + 1)]),
        "step_commits_tokens": np.array([1.0, *draw(committed(count))]),
    }


@st.composite
def mesh(draw: st.DrawFn) -> dict[str, Any]:
    node = draw(st.integers(2, 16))
    return {
        "node_bytes_per_s": draw(RATE),
        "efficiency_frac": draw(SHARE),
        "group_gpus_count": draw(st.integers(2, node)),
        "node_gpus_count": node,
    }


@st.composite
def coverage(draw: st.DrawFn) -> dict[str, Any]:
    experts = draw(st.integers(1, 512))
    return {
        "experts_count": experts,
        "experts_per_token_count": draw(st.integers(1, experts)),
        "step_tokens": draw(st.integers(0, 400)),
    }


def arguments(**named: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(named)


CURVES = tuple(
    constant(name)
    for name in (
        "moe.few_expert_bandwidth.fp8_frac",
        "moe.coverage.deepseek_v3_factor",
        "moe.coverage.gpt_oss_120b_factor",
    )
)

ARGUMENTS: dict[str, st.SearchStrategy[dict[str, Any]]] = {
    "rocm-inferasim:Eq. 1, default shrink": arguments(width_from=WIDTH, width_to=WIDTH),
    "rocm-inferasim:Eq. 1": decode(),
    "rocm-inferasim:App. B.1, shrink per doubling": shrink_pair(),
    "rocm-inferasim:App. B.1, shrink at a batch": shrink_curve(),
    "inferasim:split floor, weight reading": arguments(weight_bytes=BYTES, effective_bytes_per_s=RATE),
    "inferasim:split floor, decode transfer": split_decode(),
    "rocm-inferasim:Sec. 3.1.1, prefill step": arguments(
        fixed_s=TIME,
        linear_s_per_token=real(0.0, 1e-3),
        quadratic_s_per_token2=real(0.0, 1e-8),
        prompt_tokens=TOKENS,
    ),
    "rocm-inferasim:Sec. 3.1.2, prefill transfer": decode().map(
        lambda drawn: {"step_s": drawn["step_s"], "fixed_s": drawn["floor_s"], "shrink_factor": drawn["shrink_factor"]}
    ),
    "inferasim:prefill transfer with communication": communicating_prefill(),
    "rocm-inferasim:Table 18, fallback width law": arguments(serial_s=TIME, parallel_s=TIME, width=WIDTH),
    "rocm-inferasim:Table 18, prefill fixed term from two widths": two_widths(),
    "rocm-inferasim:Sec. 3.1.2, graph-capture staircase": staircase(),
    "rocm-inferasim:Sec. 3.1.2, context slope": slope(),
    "rocm-inferasim:App. B.2, message time": arguments(message_bytes=BYTES, alpha_s=TIME, bytes_per_s=RATE),
    "rocm-inferasim:App. B.2, mesh bandwidth": mesh(),
    "rocm-inferasim:App. B.2, bytes on the mesh": arguments(
        message_bytes=BYTES, group_gpus_count=st.integers(2, 16), passes_count=st.integers(1, 2)
    ),
    "rocm-inferasim:App. B.4, scheduler host time": arguments(batch_requests=BATCH, base_s=TIME, s_per_request=TIME),
    "rocm-inferasim:Eq. 4": arguments(
        forward_s=TIME, stages_count=st.integers(2, 16), hop_s=TIME, hop_overhead_s=TIME, host_s=TIME
    ),
    "rocm-inferasim:App. B.4, micro-batches in flight": arguments(
        clients_requests=BATCH, stages_count=st.integers(1, 16)
    ),
    "rocm-inferasim:App. C.2, mean hop": placed_hop(),
    "rocm-inferasim:App. C.2, hop inside a step": arguments(
        activation_bytes=BYTES, bytes_per_s=RATE, wire_latency_s=TIME, kernel_s=TIME
    ),
    "inferasim:serial pipeline": arguments(forward_s=TIME, stages_count=st.integers(1, 16), hop_s=TIME),
    "rocm-inferasim:App. B.3, independent coverage": coverage(),
    "rocm-inferasim:App. B.3, measured curves": arguments(curve=st.sampled_from(CURVES), at=real(0.5, 1e5)),
    "rocm-inferasim:App. B.3, few experts read slowly": arguments(
        expert_bytes=BYTES, peak_bytes_per_s=RATE, bandwidth_frac=SHARE
    ),
    "rocm-inferasim:App. B.3, imbalance at both widths": arguments(
        expert_s=TIME, anchor_imbalance_factor=IMBALANCE, target_imbalance_factor=IMBALANCE
    ),
    "rocm-inferasim:Eq. 3": arguments(
        imbalance_factor=IMBALANCE, experts_count=COUNT, replicas_count=st.integers(0, 512)
    ),
    "rocm-inferasim:App. B.3, kept surplus": arguments(imbalance_factor=IMBALANCE, kept_frac=real(0.0, 1.0)),
    "rocm-inferasim:App. B.2, dispatch and combine": arguments(
        step_tokens=TOKENS, experts_per_token_count=COUNT, hidden_bytes_per_token=BYTES
    ),
    "inferasim:expert dispatch by engine": arguments(
        is_all_to_all=st.booleans(),
        step_tokens=TOKENS,
        ranks_count=WIDTH,
        experts_per_token_count=COUNT,
        hidden_bytes_per_token=BYTES,
    ),
    "rocm-inferasim:App. B.3, I_n of a uniform router": router(),
    "rocm-inferasim:App. B.3, I_d of a uniform router": router(),
    "rocm-inferasim:App. D.4, cache bytes by KV heads": arguments(
        layers_count=COUNT, kv_heads_count=COUNT, head_dim_count=COUNT, element_bytes=st.sampled_from([0.5, 1, 2])
    ),
    "rocm-inferasim:App. D.4, cache bytes of a latent": arguments(
        layers_count=COUNT, latent_dim_count=COUNT, rope_dim_count=COUNT, element_bytes=st.sampled_from([0.5, 1, 2])
    ),
    "rocm-inferasim:App. D.4, hand-off": arguments(
        cache_bytes=BYTES, exposed_frac=SHARE, floor_s=TIME, bytes_per_s=RATE
    ),
    "rocm-inferasim:Sec. 3.4, host time per request": arguments(
        base_s=TIME, host_s_per_token=real(0.0, 1e-3), uncached_tokens=TOKENS
    ),
    "rocm-inferasim:App. D.4, serial host time of a split": arguments(host_s=TIME, serial_frac=SHARE),
    "rocm-inferasim:App. B.6, load from the host tier": arguments(resident_bytes=BYTES, link_bytes_per_s=RATE),
    "rocm-inferasim:Sec. 4, fusion saving": arguments(
        kernels_removed_count=COUNT,
        kernel_s=TIME,
        intermediate_bytes=BYTES,
        memory_bytes_per_s=RATE,
        realised_frac=SHARE,
    ),
    "rocm-inferasim:Eq. 2": arguments(
        acceptance_frac=st.lists(real(0.0, 1.0), max_size=8).map(lambda chances: np.array(chances, dtype=np.float64))
    ),
    "rocm-inferasim:Sec. 3.6, time per output token": arguments(step_s=TIME, step_commits_tokens=real(1.0, 9.0)),
    "rocm-inferasim:App. A.2, geometric chain": chain(),
    "rocm-inferasim:App. A.2, entropy class": arguments(step_commits_tokens=real(1.0, 9.0), class_ratio=SHARE),
    "rocm-inferasim:App. A.2, draft cost": arguments(
        drafter=st.sampled_from(Drafter), depth_count=st.integers(0, 8), backbone_s=TIME, head_s=TIME
    ),
    "rocm-inferasim:App. A.2, draft cost on an anchor": arguments(
        step_s=TIME, modelled_draft_s=TIME, modelled_step_s=TIME
    ),
    "inferasim:depth choice": depths(),
    "inferasim:indexer logits": arguments(
        query_rows_count=BATCH, context_rows_count=COUNT, element_bytes=st.sampled_from([2, 4])
    ),
}
