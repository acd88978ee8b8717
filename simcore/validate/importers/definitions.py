"""What TTFT, TPOT and ITL mean here, computed from per-request records (public cases E03, E04, E06, E07)."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class RequestTimes:
    """One finished request. `output_tokens` is what the server produced, never what was asked for."""

    ttft_s: float
    request_s: float
    """End to end."""
    output_tokens: int

    @property
    def tpot_s(self) -> float | None:
        """(E2E - TTFT)/(n - 1); a single token has none."""
        if self.output_tokens < 2:
            return None
        return (self.request_s - self.ttft_s) / (self.output_tokens - 1)


def mean_tpot_s(requests: Iterable[RequestTimes]) -> float | None:
    """Mean over requests, each counting once; single-token requests are left out, not counted as 0."""
    values = [tpot for request in requests if (tpot := request.tpot_s) is not None]
    return float(np.mean(values)) if values else None


def token_weighted_tpot_s(requests: Iterable[RequestTimes]) -> float | None:
    """All decode time over all gaps between tokens: long requests count more. Never mixed with `mean_tpot_s`."""
    members = [request for request in requests if request.output_tokens >= 2]
    gaps = sum(request.output_tokens - 1 for request in members)
    return sum(request.request_s - request.ttft_s for request in members) / gaps if gaps else None


def mean_itl_s(chunk_times_s: Sequence[float]) -> float | None:
    """Mean gap between visible chunks; equals TPOT only when every chunk is one token (no speculation)."""
    return float(np.mean(np.diff(chunk_times_s))) if len(chunk_times_s) > 1 else None


def first_text_s(chunks: Iterable[tuple[float, str]]) -> float | None:
    """Time of the first chunk that carries text (content or reasoning): an empty role chunk is not a token."""
    return next((time_s for time_s, text in chunks if text), None)


def capped_waits_s(arrivals_s: Sequence[float], service_s: float, cap: int) -> list[float]:
    """Waiting for the client's own concurrency cap, first come first served: what its latencies leave out.

    `arrivals_s` (n,) ascending; each request takes `service_s` once sent.
    """
    free_at = [0.0] * max(cap, 1)
    waits = []
    for arrival_s in arrivals_s:
        start_s = max(arrival_s, heapq.heappop(free_at))
        heapq.heappush(free_at, start_s + service_s)
        waits.append(start_s - arrival_s)
    return waits
