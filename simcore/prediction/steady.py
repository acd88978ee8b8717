"""Closed-loop steady state in closed form: C clients, each sends its next request when the last one ends.

The engine works all the time, so in the time one request takes, every running request is prefilled once and decodes all
its tokens: T = b P + (m - 1) s(b). How T splits into TTFT and TPOT depends on who waits for whom. Agrees with the
discrete-event simulator within a few percent of means; it knows no tails.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from simcore.errors import DomainError

POOL_ROUNDS = 60
"""Damped rounds of the two-pool fixed point; it settles within 1e-6 in about 40."""
ROUNDS = 10
"""Requests per client of a benchmark run: the usual `num_prompts = 10 x concurrency`. Assumed where unstated."""


@dataclass(frozen=True)
class ClosedLoop:
    """Means of a closed loop."""

    ttft_s: float
    tpot_s: float
    request_s: float
    requests_per_s: float
    running: float
    """Requests in the batch, prefilling or decoding."""


def first_wave_factor(clients: float, *, rounds: int = ROUNDS) -> float:
    """Prefills a mean request waits for beyond its own because all clients start at once.

    The first of `rounds` requests of a client finds all others prefilling, half of them before it; later ones arrive
    one by one. So the mean is (C - 1)/(2 R) prefills.
    """
    if clients < 1 or rounds < 1:
        raise DomainError(f"`clients` and `rounds` must be at least 1, got {clients} and {rounds}")
    return (clients - 1.0) / (2.0 * rounds)


def closed_loop(
    *,
    clients: float,
    running_cap: float,
    output_tokens: float,
    step_s: float,
    prefill_s: float,
    host_s: float,
    wait_s: float,
) -> ClosedLoop:
    """Means of `clients` on one engine whose decode step takes `step_s` at min(clients, cap) requests.

    `prefill_s` is what one prompt adds to the engine's work; `wait_s` the prefills in a mean TTFT, its own included.
    Above `running_cap` requests queue for a place; TTFT takes all the waiting. Raises DomainError.
    """
    if min(clients, running_cap, output_tokens) < 1 or step_s <= 0 or min(prefill_s, host_s, wait_s) < 0:
        raise DomainError("clients, cap and tokens must be at least 1, the step above 0, the rest not negative")
    running = min(clients, running_cap)
    gaps = output_tokens - 1.0
    service_s = running * prefill_s + gaps * step_s
    served_ttft_s = min(wait_s, running * prefill_s)  # a decode step lasts at least its own time
    waiting_s = service_s * (clients / running - 1.0)
    tpot_s = (service_s - served_ttft_s) / gaps if gaps > 0 else 0.0
    ttft_s = host_s + served_ttft_s + waiting_s
    request_s = ttft_s + gaps * tpot_s
    return ClosedLoop(ttft_s, tpot_s, request_s, clients / request_s, running)


def two_pools(
    *,
    clients: float,
    decode_cap: float,
    output_tokens: float,
    step_s: Callable[[float], float],
    prefill_s: float,
    prefill_replicas: int,
    host_s: float,
    first_wave: float,
) -> ClosedLoop:
    """Means of a closed loop over a prefill pool that queues and a decode pool that never prefills.

    The prefill pool is one queue with service P/N; its wait follows the arrival theorem of closed networks with a
    service between constant (few clients) and saturating (the queue then holds all clients the decode pool does not).
    `step_s(b)` is the decode step with b requests in the whole pool. Raises DomainError.
    """
    if min(clients, decode_cap, output_tokens, prefill_replicas) < 1 or prefill_s <= 0:
        raise DomainError("clients, cap, tokens and replicas must be at least 1 and the prefill above 0")
    gaps = output_tokens - 1.0
    demand_s = prefill_s / prefill_replicas
    queue, decoding = 0.0, min(clients, decode_cap)
    rate = 0.0
    for _ in range(POOL_ROUNDS):
        wait_factor = 0.5 + 0.5 * min(rate * demand_s, 1.0)
        station_s = prefill_s + demand_s * wait_factor * max(queue - min(rate * prefill_s, queue), 0.0)
        decode_s = gaps * step_s(max(decoding, 1.0))
        overflow_s = decode_s * max(clients / decode_cap - 1.0, 0.0) if decoding >= decode_cap else 0.0
        rate = min(clients / (host_s + station_s + decode_s + overflow_s), 1.0 / demand_s)
        station_s = max(station_s, clients / rate - host_s - decode_s - overflow_s)
        queue = 0.5 * queue + 0.5 * rate * station_s
        decoding = 0.5 * decoding + 0.5 * min(rate * decode_s, decode_cap)
    tpot_s = step_s(max(decoding, 1.0)) if gaps > 0 else 0.0
    ttft_s = host_s + station_s + overflow_s + (first_wave * demand_s if rate * demand_s < 0.9 else 0.0)
    request_s = ttft_s + gaps * tpot_s
    return ClosedLoop(ttft_s, tpot_s, request_s, clients / request_s, max(decoding, 1.0))
