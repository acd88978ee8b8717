"""What a replica's prediction was made from, for those who read more of it than its means."""

from __future__ import annotations

from dataclasses import dataclass

from simcore.stepcost.communication import Communication
from simcore.stepcost.step import StepCost


@dataclass(frozen=True, eq=False)
class ReplicaFacts:
    """What a replica's prediction was made from, for those who read more of it than its means."""

    cost: StepCost
    collectives: Communication
    """Collectives of the layout by the communication model, wherever the step's own come from."""
    attention_dp_count: int
    mixes: bool
    """Whether decode and prefill share steps."""
    chunk_tokens: int
    """Most tokens of one prompt in a step."""
    max_running_requests: int
    """Of one rank."""
    block_tokens: int
    pool_tokens_per_rank: int | None
    kv_bytes_per_token: float
    """Cache of one token that one GPU holds."""
