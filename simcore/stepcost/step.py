"""One interface for both modes: a step is priced as a sum of named terms, each linear in the step's tokens.

For a fixed batch every term is linear in the context tokens and in the prefill tokens, so that a `StepCost` lowers to
the integer `StepTable` of the simulator without loss, and the breakdown always sums to the total.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from simcore.errors import InputError
from simcore.stepcost.table import StepTable
from simcore.units import PS_PER_S

Floats = NDArray[np.float64]

SHARED_KEY = "sharedInMixedStep"
"""Breakdown key of the (negative) cost that decode and prefill share when one step holds both."""
MAX_BATCH = 65_536


@dataclass(frozen=True)
class Step:
    """What one engine step of one attention-DP rank holds."""

    batch: int = 0
    """Decoding requests."""
    context_tokens: int = 0
    """K: sum of the decoding requests' contexts."""
    window_context_tokens: int = 0
    """K_w: sum of min(context, window); 0 where the model has no window."""
    prefill_tokens: int = 0
    """N: new prompt tokens of all chunks."""
    prefill_square: int = 0
    """Q: sum of (h + n)^2 - h^2 over chunks of n new tokens after h computed ones."""

    @classmethod
    def of(
        cls, *, contexts: Iterable[int] = (), chunks: Iterable[tuple[int, int]] = (), window_tokens: int = 0
    ) -> Step:
        """The step that decodes requests with these contexts and prefills chunks (computed before, new tokens)."""
        lengths, parts = list(contexts), list(chunks)
        return cls(
            len(lengths),
            sum(lengths),
            sum(min(length, window_tokens) for length in lengths),
            sum(new for _, new in parts),
            sum((done + new) ** 2 - done**2 for done, new in parts),
        )


@dataclass(frozen=True, eq=False)
class Term:
    """One law's share of a step. Arrays are (max_batch + 1,) by batch with entry 0 equal to 0."""

    key: str
    """Breakdown key, camelCase."""
    decode_base_s: Floats
    decode_context_s_per_token: Floats
    decode_window_s_per_token: Floats
    prefill_fixed_s: float = 0.0
    prefill_s_per_token: float = 0.0
    prefill_s_per_token2: float = 0.0


def term(
    key: str,
    max_batch: int,
    *,
    base: ArrayLike = 0.0,
    context: ArrayLike = 0.0,
    window: ArrayLike = 0.0,
    prefill: tuple[float, float, float] = (0.0, 0.0, 0.0),
) -> Term:
    """A Term from values for batches 1..max_batch (scalars are repeated); `prefill` is (F, c1, c2)."""

    def by_batch(values: ArrayLike) -> Floats:
        out = np.zeros(max_batch + 1)
        out[1:] = values
        return out

    return Term(key, by_batch(base), by_batch(context), by_batch(window), *map(float, prefill))


@dataclass(frozen=True, eq=False)
class _Totals:
    """The terms folded into one set of coefficients."""

    base_s: Floats
    context_s_per_token: Floats
    window_s_per_token: Floats
    fixed_s: float
    s_per_token: float
    s_per_token2: float


@dataclass(frozen=True)
class Pipeline:
    """What Eq. 4 adds per stage; one stage adds nothing."""

    stages_count: int = 1
    hop_s: float = 0.0
    host_fixed_s: float = 0.0
    host_s_per_request: float = 0.0


@dataclass(frozen=True)
class HostCost:
    """CPU time per request and per uncached prompt token; never on the GPU's path."""

    request_s: float = 0.0
    s_per_token: float = 0.0


@dataclass(frozen=True, kw_only=True, eq=False)
class StepCost(ABC):
    """Seconds of one engine step, with a breakdown by law.

    `flags` are stable words that outputs repeat (extrapolated-width, ranking-only, …); `reasons` explain in sentences
    which law was chosen and what was assumed.
    """

    window_tokens: int = 0
    pipeline: Pipeline = Pipeline()
    host: HostCost = HostCost()
    tokens_per_step: float = 1.0
    """Mean tokens a decode step commits per request (Eq. 2)."""
    flags: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    _cache: dict[int, tuple[tuple[Term, ...], _Totals]] = field(default_factory=dict, repr=False)

    @abstractmethod
    def terms(self, max_batch: int) -> tuple[Term, ...]:
        """The priced terms for batches up to `max_batch`."""

    @cached_property
    def mixed_shared_s(self) -> float:
        """What decode and prefill pay only once when a step holds both: the smaller of their fixed parts.

        Launches, sampling and weight reading are in both floors. On 1,051 vLLM steps of Qwen3-32B at TP 1, 2, 4, 8 the
        shared part is 1.4, 0.9, 0.9 and 0.6 of the decode floor, so the smaller floor is the right size.
        """
        totals = self._at(1)[1]
        return max(0.0, min(float(totals.base_s[1]), totals.fixed_s))

    def price(self, step: Step) -> tuple[float, dict[str, float]]:
        """Seconds of `step` and the breakdown by law; the values sum to the total exactly. Raises InputError."""
        batch = step.batch
        if batch < 0 or batch > MAX_BATCH or min(step.context_tokens, step.prefill_tokens, step.prefill_square) < 0:
            raise InputError("step", step, f"hold 0 to {MAX_BATCH} requests and no negative token counts")
        has_prefill = step.prefill_tokens > 0
        breakdown: dict[str, float] = {}
        decode = prefill = 0.0
        for part in self._at(max(batch, 1))[0]:
            seconds = 0.0
            if batch:
                share = float(
                    part.decode_base_s[batch]
                    + part.decode_context_s_per_token[batch] * step.context_tokens
                    + part.decode_window_s_per_token[batch] * step.window_context_tokens
                )
                decode, seconds = decode + share, seconds + share
            if has_prefill:
                share = (
                    part.prefill_fixed_s
                    + part.prefill_s_per_token * step.prefill_tokens
                    + part.prefill_s_per_token2 * step.prefill_square
                )
                prefill, seconds = prefill + share, seconds + share
            if seconds:
                breakdown[part.key] = breakdown.get(part.key, 0.0) + seconds
        if batch and has_prefill:
            whole = decode + prefill
            breakdown[SHARED_KEY] = max(whole - self.mixed_shared_s, decode, prefill) - whole
        return sum(breakdown.values()), breakdown

    def price_many(
        self,
        batch: ArrayLike,
        context_tokens: ArrayLike,
        window_context_tokens: ArrayLike = 0,
        prefill_tokens: ArrayLike = 0,
        prefill_square: ArrayLike = 0,
    ) -> Floats:
        """Seconds of many steps; the arguments are `Step`'s fields as broadcastable arrays. (n,) out."""
        requests = np.asarray(batch, dtype=np.int64)
        largest = int(requests.max(initial=0))
        if requests.min(initial=0) < 0 or largest > MAX_BATCH:
            raise InputError("batch", largest, f"be 0 to {MAX_BATCH}")
        totals = self._at(max(largest, 1))[1]
        decode: Floats = totals.base_s[requests] + totals.context_s_per_token[requests] * np.asarray(
            context_tokens, float
        )
        if self.window_tokens:
            decode = decode + totals.window_s_per_token[requests] * np.asarray(window_context_tokens, float)
        new, square = np.asarray(prefill_tokens, float), np.asarray(prefill_square, float)
        if not new.any():
            return decode
        prefill = np.where(new > 0, totals.fixed_s + totals.s_per_token * new + totals.s_per_token2 * square, 0.0)
        shared = np.minimum(np.minimum(decode, prefill), self.mixed_shared_s)
        return np.asarray(decode + prefill - shared)

    def table(self, max_batch: int) -> StepTable:
        """The integer form that the simulator runs on, for batches up to `max_batch`. Raises InputError."""
        if not 1 <= max_batch <= MAX_BATCH:
            raise InputError("max_batch", max_batch, f"be 1 to {MAX_BATCH}")
        totals = self._at(max_batch)[1]
        size = max_batch + 1
        pipe = self.pipeline
        host = pipe.host_fixed_s + pipe.host_s_per_request * np.arange(size)
        return StepTable(
            decode_base_ps=_picoseconds(totals.base_s[:size]),
            decode_context_ps_per_token=_picoseconds(totals.context_s_per_token[:size]),
            decode_window_ps_per_token=_picoseconds(totals.window_s_per_token[:size]),
            window_tokens=self.window_tokens,
            prefill_fixed_ps=round(totals.fixed_s * PS_PER_S),
            prefill_ps_per_token=round(totals.s_per_token * PS_PER_S),
            prefill_ps_per_token2=round(totals.s_per_token2 * PS_PER_S),
            mixed_shared_ps=round(self.mixed_shared_s * PS_PER_S),
            host_request_ps=round(self.host.request_s * PS_PER_S),
            host_ps_per_token=round(self.host.s_per_token * PS_PER_S),
            pipeline_stages=pipe.stages_count,
            hop_ps=round(pipe.hop_s * PS_PER_S),
            pipeline_host_ps=_picoseconds(host) if pipe.stages_count > 1 else None,
            tokens_per_step_permille=round(self.tokens_per_step * 1000),
        )

    def _at(self, max_batch: int) -> tuple[tuple[Term, ...], _Totals]:
        """Terms for at least `max_batch`, computed once per power of two so that callers may grow their batches."""
        size = max(64, 1 << (max_batch - 1).bit_length())
        size = min((known for known in self._cache if known >= size), default=size)
        if size not in self._cache:
            parts = self.terms(size)
            totals = _Totals(
                np.sum([part.decode_base_s for part in parts], axis=0),
                np.sum([part.decode_context_s_per_token for part in parts], axis=0),
                np.sum([part.decode_window_s_per_token for part in parts], axis=0),
                sum(part.prefill_fixed_s for part in parts),
                sum(part.prefill_s_per_token for part in parts),
                sum(part.prefill_s_per_token2 for part in parts),
            )
            self._cache[size] = parts, totals
        return self._cache[size]


def _picoseconds(seconds: NDArray[np.floating[Any]]) -> NDArray[np.int64]:
    return np.asarray(np.rint(seconds * PS_PER_S), dtype=np.int64)
