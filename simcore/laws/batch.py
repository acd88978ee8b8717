"""How a decode step depends on its batch and its contexts: graph-capture padding and the context slope."""

from __future__ import annotations

import numpy as np

from simcore.errors import DomainError
from simcore.laws.domain import require, require_at_least, require_positive
from simcore.laws.registry import PAPER, FloatArray, Quantity, law


@law(paper=PAPER, equation="Sec. 3.1.2, graph-capture staircase")
def padded_batch(*, batch_requests: Quantity, captured_requests: FloatArray) -> Quantity:
    """Batch that the engine really runs: the next captured graph size; unpadded above the largest graph.

    Equation: b' = min {c in captured : c >= b}, or b where b exceeds every c
    Args:
        batch_requests: b [1].
        captured_requests: (n,) [1], captured sizes in rising order; empty in eager mode.
    Returns: b' [1].
    Domain: b at least 1; sizes rise and are at least 1.
    Not modelled: piecewise graphs, which exempt attention from the padding.
    Source: paper Sec. 3.1.2 (a batch of 33 costs as much as 40).

    >>> padded_batch(batch_requests=33, captured_requests=np.array([1.0, 2, 4, 8, 16, 24, 32, 40]))
    40.0
    """
    require_at_least(1.0, batch_requests=batch_requests)
    if len(captured_requests) == 0:
        return batch_requests
    require_at_least(1.0, captured_requests=captured_requests)
    require(bool(np.all(np.diff(captured_requests) > 0)), "`captured_requests` must rise")
    index = np.searchsorted(captured_requests, batch_requests)
    inside = np.minimum(index, len(captured_requests) - 1)
    padded = np.where(index < len(captured_requests), captured_requests[inside], batch_requests)
    return float(padded) if padded.ndim == 0 else padded


@law(paper=PAPER, equation="Sec. 3.1.2, context slope")
def context_slope(
    *,
    short_step_s: Quantity,
    long_step_s: Quantity,
    short_context_tokens: Quantity,
    long_context_tokens: Quantity,
    batch_requests: Quantity,
) -> Quantity:
    """Extra decode time per extra token of context held by the batch, from sweeps at two prompt lengths.

    Equation: g(b) = (s_long(b) - s_short(b)) / (b (L_long - L_short))
    Args:
        short_step_s: s_short(b) [s].
        long_step_s: s_long(b) [s].
        short_context_tokens: L_short [token], context of each request during the short sweep.
        long_context_tokens: L_long [token].
        batch_requests: b [1].
    Returns: g [s/token]; negative only by noise, which the caller must judge.
    Domain: steps above 0; L_short < L_long; b at least 1.
    Not modelled: attention that reads a fixed top-k or a window (there g saturates).
    Source: paper Sec. 3.1.2 and App. E.

    >>> context_slope(
    ...     short_step_s=0.010, long_step_s=0.014, short_context_tokens=1000.0, long_context_tokens=9000.0,
    ...     batch_requests=4,
    ... )
    1.25e-07
    """
    require_positive(short_step_s=short_step_s, long_step_s=long_step_s, short_context_tokens=short_context_tokens)
    require_at_least(1.0, batch_requests=batch_requests)
    if not np.all(np.asarray(long_context_tokens) > short_context_tokens):
        raise DomainError("`long_context_tokens` must be above `short_context_tokens`")
    return (long_step_s - short_step_s) / (batch_requests * (long_context_tokens - short_context_tokens))
