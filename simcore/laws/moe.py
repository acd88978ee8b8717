"""Mixture-of-experts terms: experts read, bandwidth of few experts, the busiest rank, and what a wider EP costs."""

from __future__ import annotations

import numpy as np

from simcore.data.constants import Constant
from simcore.errors import DomainError
from simcore.laws.domain import require, require_at_least, require_frac, require_not_negative, require_positive
from simcore.laws.registry import OURS, PAPER, Quantity, law


@law(paper=PAPER, equation="App. B.3, independent coverage")
def independent_coverage(
    *, experts_count: Quantity, experts_per_token_count: Quantity, step_tokens: Quantity
) -> Quantity:
    """Share of the experts that a step touches when tokens choose independently.

    Equation: c(t) = 1 - (1 - k/E)^t
    Args:
        experts_count: E [1], routed experts of a layer.
        experts_per_token_count: k [1], top-k.
        step_tokens: t [1], tokens in the step.
    Returns: c(t) [1].
    Domain: 1 <= k <= E; t not negative.
    Not modelled: real tokens, which choose alike and touch fewer (see `curve_at` with a coverage curve).
    Source: paper App. B.3.

    >>> independent_coverage(experts_count=8, experts_per_token_count=4, step_tokens=2)
    0.75
    """
    require_at_least(1.0, experts_per_token_count=experts_per_token_count)
    require_at_least(experts_per_token_count, experts_count=experts_count)
    require_not_negative(step_tokens=step_tokens)
    return 1.0 - (1.0 - experts_per_token_count / experts_count) ** step_tokens


@law(paper=PAPER, equation="App. B.3, measured curves")
def curve_at(*, curve: Constant, at: Quantity) -> Quantity:
    """Value of a measured curve (coverage factor, few-expert bandwidth), straight in log-log, held at its ends.

    Equation: log y = linear interpolation in log x
    Args:
        curve: record with points (x, y), x and y above 0 [1].
        at: x [1], e.g. tokens of the step or experts read by one GPU.
    Returns: y [1].
    Domain: x above 0; a record that is a curve.
    Not modelled: shapes between the points nobody printed (the records say `assumed`).
    Source: paper App. B.3 (coverage bottoms at 0.89 or 0.78; one expert reads at 25 or 14 % of peak, full by 16).

    >>> from simcore.data.constants import constant
    >>> round(curve_at(curve=constant("moe.few_expert_bandwidth.fp8_frac"), at=4), 9)
    0.5
    """
    require_positive(at=at)
    require(bool(curve.points), f"`{curve.name}` must be a curve")
    x, y = np.array(curve.points).T
    require_positive(curve_x=x, curve_y=y)
    value = np.exp(np.interp(np.log(at), np.log(x), np.log(y)))
    return float(value) if np.ndim(value) == 0 else value


@law(paper=PAPER, equation="App. B.3, few experts read slowly")
def few_expert_read(*, expert_bytes: Quantity, peak_bytes_per_s: Quantity, bandwidth_frac: Quantity) -> Quantity:
    """Time of a grouped GEMM that is bound by reading its experts.

    Equation: t = m / (B eta(n))
    Args:
        expert_bytes: m [bytes], experts read by one GPU.
        peak_bytes_per_s: B [bytes/s], what a saturated read reaches.
        bandwidth_frac: eta(n) [1], from the few-expert curve at n experts.
    Returns: t [s].
    Domain: m not negative; B above 0; eta in (0, 1].
    Not modelled: more than one row per expert. Sharding by TP cuts bytes without cutting n and is not charged.
    Source: paper App. B.3.

    >>> few_expert_read(expert_bytes=1e9, peak_bytes_per_s=4e12, bandwidth_frac=0.25)
    0.001
    """
    require_not_negative(expert_bytes=expert_bytes)
    require_positive(peak_bytes_per_s=peak_bytes_per_s, bandwidth_frac=bandwidth_frac)
    require_frac(bandwidth_frac=bandwidth_frac)
    return expert_bytes / (peak_bytes_per_s * bandwidth_frac)


@law(paper=PAPER, equation="App. B.3, imbalance at both widths")
def expert_parallel_transfer(
    *, expert_s: Quantity, anchor_imbalance_factor: Quantity, target_imbalance_factor: Quantity
) -> Quantity:
    """Expert part of an anchored step at another EP: the busiest rank gates, before and after.

    Equation: t' = t I(EP') / I(EP)
    Args:
        expert_s: t [s], the part of the measured step that the factor scales (reading with I_d, rows with I_n).
        anchor_imbalance_factor: I(EP) [1], busiest over mean at the anchor's EP; 1 at EP 1.
        target_imbalance_factor: I(EP') [1], at the target's EP.
    Returns: t' [s].
    Domain: both factors at least 1. One factor used on both sides would cancel and make EP look free.
    Not modelled: attention, router and communication, which the factors leave alone.
    Source: paper App. B.3.

    >>> expert_parallel_transfer(expert_s=0.004, anchor_imbalance_factor=1.0, target_imbalance_factor=1.5)
    0.006
    """
    require_not_negative(expert_s=expert_s)
    require_at_least(
        1.0, anchor_imbalance_factor=anchor_imbalance_factor, target_imbalance_factor=target_imbalance_factor
    )
    return expert_s * target_imbalance_factor / anchor_imbalance_factor


@law(paper=PAPER, equation="Eq. 3")
def replicated_imbalance(*, imbalance_factor: Quantity, experts_count: Quantity, replicas_count: Quantity) -> Quantity:
    """Bound on the imbalance after replicating hot experts, when no routing was recorded.

    Equation: I' = 1 + (I - 1) E / (E + R)
    Args:
        imbalance_factor: I [1].
        experts_count: E [1].
        replicas_count: R [1], extra copies.
    Returns: I' [1].
    Domain: I at least 1; E at least 1; R not negative.
    Not modelled: chance in a single step, which replication cannot remove.
    Source: paper App. B.3, Eq. 3.

    >>> replicated_imbalance(imbalance_factor=1.75, experts_count=48, replicas_count=16)
    1.5625
    """
    require_at_least(1.0, imbalance_factor=imbalance_factor, experts_count=experts_count)
    require_not_negative(replicas_count=replicas_count)
    return 1.0 + (imbalance_factor - 1.0) * experts_count / (experts_count + replicas_count)


@law(paper=PAPER, equation="App. B.3, kept surplus")
def kept_surplus(*, imbalance_factor: Quantity, kept_frac: Quantity) -> Quantity:
    """Imbalance of which an engine's step pays only a share.

    Equation: I' = 1 + (I - 1) kappa
    Args:
        imbalance_factor: I [1].
        kept_frac: kappa [1], 0.5 or 1 for SGLang without an all-to-all backend, 1 for vLLM.
    Returns: I' [1].
    Domain: I at least 1; kappa in [0, 1].
    Not modelled: why SGLang hides half of it.
    Source: paper App. B.3 (`half of the busiest rank's surplus of distinct experts kept`).

    >>> kept_surplus(imbalance_factor=1.5, kept_frac=0.5)
    1.25
    """
    require_at_least(1.0, imbalance_factor=imbalance_factor)
    require_frac(kept_frac=kept_frac)
    return 1.0 + (imbalance_factor - 1.0) * kept_frac


@law(paper=PAPER, equation="App. B.2, dispatch and combine")
def all_to_all_bytes(
    *, step_tokens: Quantity, experts_per_token_count: Quantity, hidden_bytes_per_token: Quantity
) -> Quantity:
    """Message of one EP dispatch, or of one combine: each rank's tokens go once to each chosen expert.

    Equation: m = t k h
    Args:
        step_tokens: t [token], tokens that one rank owns.
        experts_per_token_count: k [1].
        hidden_bytes_per_token: h [bytes/token], hidden size times element size.
    Returns: m [bytes], the whole buffer (the mesh law takes off the share that stays at home).
    Domain: all not negative.
    Not modelled: two experts of one token on one rank, sent once by some backends.
    Source: paper App. B.2.

    >>> all_to_all_bytes(step_tokens=4, experts_per_token_count=8, hidden_bytes_per_token=1024)
    32768
    """
    require_not_negative(
        step_tokens=step_tokens,
        experts_per_token_count=experts_per_token_count,
        hidden_bytes_per_token=hidden_bytes_per_token,
    )
    return step_tokens * experts_per_token_count * hidden_bytes_per_token


@law(paper=OURS, equation="expert dispatch by engine")
def expert_dispatch_bytes(
    *,
    is_all_to_all: bool,
    step_tokens: Quantity,
    ranks_count: Quantity,
    experts_per_token_count: Quantity,
    hidden_bytes_per_token: Quantity,
) -> tuple[Quantity, Quantity]:
    """Messages that EP adds to a MoE layer: (all-to-all bytes per exchange, all-reduce bytes of the combine).

    Equation: with an all-to-all backend (t/r k h, 0), twice per layer; without one (0, t h): tokens stay replicated
        over the TP group and the TP all-reduce, charged already, combines the experts' outputs
    Args:
        is_all_to_all: whether the engine runs an all-to-all backend (DeepEP, MoRI-EP); SGLang's default has none.
        step_tokens: t [token], tokens of the whole step.
        ranks_count: r [1], EP ranks that own tokens.
        experts_per_token_count: k [1].
        hidden_bytes_per_token: h [bytes/token].
    Returns: a pair of messages, each m [bytes].
    Domain: r at least 1.
    Not modelled: charging both, which puts about 19 ms too much on a prefill forward (paper App. B.3).
    Source: ours, after paper App. B.3 (SGLang's EP dispatch).

    >>> expert_dispatch_bytes(
    ...     is_all_to_all=False, step_tokens=16, ranks_count=8, experts_per_token_count=8, hidden_bytes_per_token=1024
    ... )
    (0.0, 16384)
    """
    require_at_least(1.0, ranks_count=ranks_count, experts_per_token_count=experts_per_token_count)
    require_not_negative(step_tokens=step_tokens, hidden_bytes_per_token=hidden_bytes_per_token)
    if not is_all_to_all:
        return 0.0, step_tokens * hidden_bytes_per_token
    exchanged = all_to_all_bytes(
        step_tokens=step_tokens / ranks_count,
        experts_per_token_count=experts_per_token_count,
        hidden_bytes_per_token=hidden_bytes_per_token,
    )
    return exchanged, 0.0


def split_experts(experts_count: int, expert_parallel: int) -> int:
    """Experts on each rank. Raises DomainError unless `expert_parallel` divides `experts_count`."""
    if expert_parallel < 1 or experts_count % expert_parallel:
        raise DomainError(f"`expert_parallel` must divide {experts_count} experts, got {expert_parallel}")
    return experts_count // expert_parallel
