"""Whether arrivals outrun what serves them: above its capacity a queue has no mean, and a number would be made up."""

from __future__ import annotations

from typing import Final

from simcore.des.config import Deployment, Pool
from simcore.errors import InfeasibleError
from simcore.prediction.outcome import FEWEST_REQUESTS, simulated_outcome
from simcore.prediction.traffic import LoadInput, WorkloadInput, workload_of

NEAR_SATURATION_FRAC: Final = 0.9
"""Assumed: above this share of its capacity a queue is so sensitive that the prediction carries a flag."""
NEAR_SATURATION: Final = "near-saturation"
"""Flag of such a rate."""
CLIENTS_PER_PLACE: Final = 2
"""Clients of the run that finds the capacity: shorter requests than the longest leave room for more of them."""
ROUNDS: Final = 4
"""Requests of each of these clients; the first and the last quarter of the run are left out."""


def full_load_clients(pool: Pool, longest_tokens: int) -> int:
    """Requests of the longest kind that fill every replica of `pool`."""
    rules = pool.scheduler
    held = max(1, min(rules.max_running_requests, rules.kv_pool_tokens // longest_tokens))
    return held * pool.attention_dp * pool.replicas_count


def capacity_requests_per_s(deployment: Deployment, workload: WorkloadInput, *, clients: int, seed: int = 0) -> float:
    """Requests per second in the middle of a closed loop that keeps every place taken; nobody thinks.

    `clients` fill the deployment (`full_load_clients`). Of a trace its own sessions are taken, once.
    """
    sent, turns = CLIENTS_PER_PLACE * clients, 1
    words = workload.synthetic
    if words is not None and words.conversation is not None:
        turns = words.conversation.turns
        talk = words.conversation.model_copy(update={"think_seconds": 0.0})
        workload = workload.model_copy(update={"synthetic": words.model_copy(update={"conversation": talk})})
    count = None if workload.trace is not None else turns * max(ROUNDS * sent, FEWEST_REQUESTS)
    closed = workload_of(workload, LoadInput(concurrency=sent, requests=count))
    return simulated_outcome(deployment, closed, seed=seed).steady_requests_per_s


def check_rate(rate_requests_per_s: float, capacity_per_s: float) -> tuple[str, ...]:
    """The flags of arrivals at this rate. Raises InfeasibleError (limit `overload`) at or above the capacity."""
    if rate_requests_per_s >= capacity_per_s:
        raise InfeasibleError(
            "overload",
            f"{rate_requests_per_s:.4g} requests/s arrive and about {capacity_per_s:.4g} can be served: the queue "
            "grows without end, so no latency exists; add replicas or ask for a closed loop",
        )
    return (NEAR_SATURATION,) if rate_requests_per_s > NEAR_SATURATION_FRAC * capacity_per_s else ()
