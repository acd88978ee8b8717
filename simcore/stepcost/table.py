"""The integer form of a step cost that the simulator runs on.

Every step cost, anchored or analytical, is lowered to a `StepTable` once per candidate. Prices are integer
picoseconds and linear in context for a fixed batch, so k equal steps of growing context are an exact closed form.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class StepTable:
    """Price of one step of one engine replica (one attention-DP rank where ranks run in lockstep).

    A step holds `batch` decoding requests and, maybe, prefill chunks. With K = sum of the decoding requests' context
    tokens, K_w = sum of min(context, window_tokens), N = sum of new prompt tokens n_i, and
    Q = sum of (h_i + n_i)^2 - h_i^2 over chunks with h_i tokens already computed:

        decode  = decode_base_ps[batch] + decode_context_ps_per_token[batch]*K + decode_window_ps_per_token[batch]*K_w
        prefill = prefill_fixed_ps + prefill_ps_per_token*N + prefill_ps_per_token2*Q          (0 when N = 0)
        step    = decode + prefill - mixed_shared_ps (only when both parts are present; never below the larger part)

    With `pipeline_stages` p > 1 the price above is the full-depth forward; a stage takes price/p, each of the p hops
    adds `hop_ps`, and once two or more micro-batches are in flight each stage adds `pipeline_host_ps[batch]` (Eq. 4).
    Host time per request never occupies the GPU: it is added to TTFT and end-to-end latency only.
    """

    decode_base_ps: NDArray[np.int64]
    """(max_batch + 1,) graph padding already applied; entry 0 is 0."""
    decode_context_ps_per_token: NDArray[np.int64]
    """(max_batch + 1,)"""
    decode_window_ps_per_token: NDArray[np.int64]
    """(max_batch + 1,) zeros when there is no window."""
    window_tokens: int
    prefill_fixed_ps: int
    prefill_ps_per_token: int
    prefill_ps_per_token2: int
    mixed_shared_ps: int
    host_request_ps: int = 0
    host_ps_per_token: int = 0
    """Per uncached prompt token."""
    pipeline_stages: int = 1
    hop_ps: int = 0
    pipeline_host_ps: NDArray[np.int64] | None = None
    tokens_per_step_permille: int = 1000
    """Mean tokens a decode step commits per request, times 1000 (speculation: L(k) of Eq. 2)."""

    @property
    def max_batch(self) -> int:
        return len(self.decode_base_ps) - 1

    def scaled(self, factor: float) -> StepTable:
        """The same steps, all longer by `factor`; host time per request is none of theirs."""
        arrays = ("decode_base_ps", "decode_context_ps_per_token", "decode_window_ps_per_token", "pipeline_host_ps")
        numbers = ("prefill_fixed_ps", "prefill_ps_per_token", "prefill_ps_per_token2", "mixed_shared_ps", "hop_ps")
        fields: dict[str, Any] = {name: round(getattr(self, name) * factor) for name in numbers}
        for name in arrays:
            values = getattr(self, name)
            fields[name] = None if values is None else np.rint(values * factor).astype(np.int64)
        return replace(self, **fields)

    def price_ps(
        self, batch: int, context_tokens: int, window_context_tokens: int, new_tokens: int, square: int
    ) -> int:
        """Picoseconds of one step (single stage): `batch`, K, K_w, N, Q as in the class text."""
        decode = 0
        if batch:
            decode = (
                int(self.decode_base_ps[batch])
                + int(self.decode_context_ps_per_token[batch]) * context_tokens
                + int(self.decode_window_ps_per_token[batch]) * window_context_tokens
            )
        if not new_tokens:
            return decode
        prefill = self.prefill_fixed_ps + self.prefill_ps_per_token * new_tokens + self.prefill_ps_per_token2 * square
        if not batch:
            return prefill
        return max(decode + prefill - self.mixed_shared_ps, decode, prefill)
