"""Speculative decoding: tokens a verify step commits (Eq. 2), acceptance curves, drafter cost, choice of depth."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

import numpy as np
from scipy.optimize import minimize_scalar

from simcore.errors import InputError
from simcore.laws.domain import require, require_at_least, require_frac, require_not_negative, require_positive
from simcore.laws.registry import OURS, PAPER, FloatArray, Quantity, law

DEPTH_LIMIT = 8
"""Deepest draft that the paper searches (Table 4)."""


class Drafter(StrEnum):
    """Methods that propose tokens."""

    MTP = "mtp"
    EAGLE3 = "eagle3"
    DSPARK = "dspark"
    NGRAM = "ngram"

    @property
    def is_serial(self) -> bool:
        """MTP and EAGLE-3 run their layers once per proposed token; DSpark runs its backbone once per block."""
        return self in {Drafter.MTP, Drafter.EAGLE3}


@law(paper=PAPER, equation="Eq. 2")
def committed_tokens(*, acceptance_frac: FloatArray) -> float:
    """Mean tokens a verify step commits: its own token and the accepted prefix of the draft.

    Equation: L(k) = 1 + sum_{i=1..k} prod_{j=1..i} a_j
    Args:
        acceptance_frac: (k,) a_j [1], chance that draft token j is accepted given that those before it were.
    Returns: L(k) [1], tokens per step and request; 1 for an empty draft.
    Domain: a_j in [0, 1].
    Not modelled: correlation between requests.
    Source: paper App. A.2, Eq. 2.

    >>> committed_tokens(acceptance_frac=np.array([0.5, 0.5]))
    1.75
    """
    require_frac(acceptance_frac=acceptance_frac)
    return 1.0 + float(np.sum(np.cumprod(acceptance_frac)))


@law(paper=PAPER, equation="Sec. 3.6, time per output token")
def speculative_tpot(*, step_s: Quantity, step_commits_tokens: Quantity) -> Quantity:
    """Time per output token when every step commits several.

    Equation: TPOT = s / L(k)
    Args:
        step_s: s [s], draft and verify together.
        step_commits_tokens: L(k) [1], tokens per step and request.
    Returns: TPOT [s].
    Domain: s above 0; L(k) at least 1.
    Not modelled: steps whose batch shrinks within a wave.
    Source: paper Sec. 3.6; public case B07 (20 ms at 2.66 tokens per step is 7.52 ms).

    >>> round(speculative_tpot(step_s=0.020, step_commits_tokens=2.66), 5)
    0.00752
    """
    require_positive(step_s=step_s)
    require_at_least(1.0, step_commits_tokens=step_commits_tokens)
    return step_s / step_commits_tokens


@law(paper=PAPER, equation="App. A.2, geometric chain")
def extrapolated_tokens(*, measured_tokens: FloatArray, chain_frac: float, depth_count: int) -> float:
    """Committed tokens at a depth beyond the last measured one, by a geometric chain of acceptance.

    Equation: L(k) = L(K) + sum_{i=K+1..k} a^i for k > K, the measured L(k) for k <= K
    Args:
        measured_tokens: (K,) L(1..K) [1], tokens per step and request.
        chain_frac: a [1], fitted by `geometric_chain`.
        depth_count: k [1].
    Returns: L(k) [1]; 1 at k = 0.
    Domain: 1 <= L(k) <= k + 1; a in [0, 1]; k not negative.
    Not modelled: drafters that get worse with depth.
    Source: paper App. A.2.

    >>> extrapolated_tokens(measured_tokens=np.array([1.5, 1.75]), chain_frac=0.5, depth_count=4)
    1.9375
    """
    check_committed(measured_tokens)
    require_frac(chain_frac=chain_frac)
    require(depth_count >= 0, f"`depth_count` must not be negative, got {depth_count}")
    if depth_count == 0:
        return 1.0
    known = len(measured_tokens)
    beyond = np.arange(known + 1, depth_count + 1)
    return float(measured_tokens[min(depth_count, known) - 1] + np.sum(chain_frac**beyond))


def geometric_chain(measured_tokens: FloatArray) -> float:
    """The acceptance a for which 1 + a + ... + a^k fits L(1..K) best (least squares). Source: paper App. A.2."""
    check_committed(measured_tokens)
    depths = np.arange(1, len(measured_tokens) + 1)

    def residual(chain: float) -> float:
        return float(np.sum((1.0 + np.cumsum(chain**depths) - measured_tokens) ** 2))

    fitted = minimize_scalar(residual, bounds=(0.0, 1.0), method="bounded", options={"xatol": 1e-10})
    return float(fitted.x)


@law(paper=PAPER, equation="App. A.2, entropy class")
def entropy_scaled_tokens(*, step_commits_tokens: Quantity, class_ratio: Quantity) -> Quantity:
    """Committed tokens on text of another entropy class: the first position's acceptance scales, so all products do.

    Equation: L'(k) = 1 + (L(k) - 1) r
    Args:
        step_commits_tokens: L(k) [1], measured on coding.
        class_ratio: r [1], mean acceptance rate of the class relative to coding.
    Returns: L'(k) [1].
    Domain: L(k) at least 1; r above 0 and small enough that a_1 r <= 1 (the caller holds a_1 = L(1) - 1).
    Not modelled: acceptance at later positions changing by its own factor.
    Source: paper App. A.2; the ratios are SPEED-Bench's, not printed there, hence the caller's input.

    >>> entropy_scaled_tokens(step_commits_tokens=3.0, class_ratio=0.5)
    2.0
    """
    require_at_least(1.0, step_commits_tokens=step_commits_tokens)
    require_positive(class_ratio=class_ratio)
    return 1.0 + (step_commits_tokens - 1.0) * class_ratio


@law(paper=PAPER, equation="App. A.2, draft cost")
def draft_time(*, drafter: Drafter, depth_count: Quantity, backbone_s: Quantity, head_s: Quantity) -> Quantity:
    """Time to propose k tokens.

    Equation: t = k (b + h) for MTP and EAGLE-3, b + k h for DSpark (one backbone pass per block), 0 for n-gram
    Args:
        drafter: the method.
        depth_count: k [1], tokens proposed.
        backbone_s: b [s], the drafter's layers, each priced as a target layer of its kind.
        head_s: h [s], LM head at the drafter's vocabulary and sampling.
    Returns: t [s]; 0 at k = 0.
    Domain: all not negative.
    Not modelled: drafting overlapped with verification.
    Source: paper App. A.2 (layers: MTP its own count, EAGLE-3 one dense, DSpark three MoE layers).

    >>> draft_time(drafter=Drafter.MTP, depth_count=3, backbone_s=0.25, head_s=0.125)
    1.125
    >>> draft_time(drafter=Drafter.DSPARK, depth_count=3, backbone_s=0.25, head_s=0.125)
    0.625
    """
    require_not_negative(depth_count=depth_count, backbone_s=backbone_s, head_s=head_s)
    if drafter is Drafter.NGRAM:
        return 0.0 * depth_count
    if drafter.is_serial:
        return depth_count * (backbone_s + head_s)
    blocks: Quantity = np.minimum(depth_count, 1.0)
    drafted = blocks * backbone_s + depth_count * head_s
    return float(drafted) if np.ndim(drafted) == 0 else drafted


@law(paper=PAPER, equation="App. A.2, draft cost on an anchor")
def anchored_draft_time(*, step_s: Quantity, modelled_draft_s: Quantity, modelled_step_s: Quantity) -> Quantity:
    """Draft time next to a measured step: the modelled ratio carried to the measurement.

    Equation: t = s (t_model / s_model)
    Args:
        step_s: s [s], measured.
        modelled_draft_s: t_model [s].
        modelled_step_s: s_model [s].
    Returns: t [s].
    Domain: steps above 0; draft not negative.
    Not modelled: a drafter whose kernels are better or worse tuned than the target's.
    Source: paper App. A.2.

    >>> anchored_draft_time(step_s=0.02, modelled_draft_s=0.001, modelled_step_s=0.01)
    0.002
    """
    require_positive(step_s=step_s, modelled_step_s=modelled_step_s)
    require_not_negative(modelled_draft_s=modelled_draft_s)
    return step_s * modelled_draft_s / modelled_step_s


@law(paper=OURS, equation="depth choice")
def best_depth(*, step_s: FloatArray, step_commits_tokens: FloatArray) -> int:
    """Draft depth with the most tokens per unit of step time; 0 means no speculation.

    Equation: k* = argmax_k L(k) / s(k), the smallest k on a tie
    Args:
        step_s: (K+1,) s(0..K) [s], draft and verify at each depth, from 0.
        step_commits_tokens: (K+1,) L(0..K) [1], L(0) = 1.
    Returns: k* [1].
    Domain: equal lengths; s above 0; 1 <= L(k) <= k + 1.
    Not modelled: the change of batch that faster requests bring (price it at the projected batch).
    Source: paper App. A.2, last lines.

    >>> best_depth(step_s=np.array([1.0, 1.25, 2.0]), step_commits_tokens=np.array([1.0, 1.75, 2.0]))
    1
    """
    require(len(step_s) == len(step_commits_tokens) > 0, "`step_s` and `step_commits_tokens` must be equally long")
    require_positive(step_s=step_s)
    require(step_commits_tokens[0] == 1.0, "`step_commits_tokens` must start with 1 at depth 0")
    if len(step_commits_tokens) > 1:
        check_committed(step_commits_tokens[1:])
    return int(np.argmax(step_commits_tokens / step_s))


def check_committed(committed: FloatArray | Sequence[float], field: str = "speculation.acceptedLength") -> None:
    """Raise InputError unless L(1..K) is there and 1 <= L(k) <= k + 1: acceptance is measured, never assumed."""
    values = np.asarray(committed, dtype=np.float64)
    if values.size == 0:
        raise InputError(field, committed, "be given", "acceptance is a measured input; there is no default")
    for depth, tokens in enumerate(values.tolist(), start=1):
        if not 1.0 <= tokens <= depth + 1.0:
            raise InputError(f"{field}[{depth}]", tokens, f"lie in [1, {depth + 1}] tokens per step at depth {depth}")
