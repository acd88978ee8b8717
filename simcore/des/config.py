"""What is simulated: the scheduler's knobs, the pools and the load. Plain frozen data; no behaviour."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from simcore.cards.layout import Engine
from simcore.stepcost.table import StepTable


class Routing(StrEnum):
    """How a router picks a replica (paper App. A.1)."""

    LEAST_LOADED = "least-loaded"
    KV_AWARE = "kv-aware"
    PREFIX_HASH = "prefix-hash"
    ROUND_ROBIN = "round-robin"
    RANDOM = "random"


class Admission(StrEnum):
    """Which waiting request is admitted next under backlog."""

    FIFO = "fifo"
    LONGEST_PREFIX = "longest-prefix"


@dataclass(frozen=True)
class SchedulerConfig:
    """The scheduler of one attention-DP rank (of the replica where there is only one).

    vLLM: mixed steps within `max_batched_tokens`; a prompt is admitted only when all its blocks fit; running growth
    preempts the latest arrival; `chunk_tokens` caps one request's share of a step (long_prefill_token_threshold).
    SGLang: prefill first, at most `chunk_tokens` prompt tokens a step; room is kept for decoding; growth retracts the
    request with the fewest output tokens. ATOM: prefill-only steps of whole prompts within `max_batched_tokens`.
    """

    engine: Engine
    max_running_requests: int
    max_batched_tokens: int
    chunk_tokens: int
    kv_pool_tokens: int
    """KV capacity of one attention-DP rank, in tokens."""
    block_tokens: int = 16
    prefix_caching: bool = False
    admission: Admission = Admission.FIFO
    mixed_chunk: bool = False
    """SGLang's --enable-mixed-chunk."""
    decode_reservation_permille: int = 98
    """SGLang: share of the running requests' remaining output that admission keeps free, times 1000. The engine lets it
    decay to init_new_token_ratio x min_new_token_ratio_factor = 0.7 x 0.14 in steady state; held there (assumed)."""
    reservation_clip_tokens: int = 4096
    """SGLang: most output tokens kept free for one prefilling request (SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION)."""


@dataclass(frozen=True)
class HostTier:
    """KV tier in host memory (paper B.6): blocks it holds per replica and its link."""

    capacity_blocks: int
    link_bytes_per_s: float
    block_bytes: int


@dataclass(frozen=True)
class Pool:
    """Equal replicas with one layout. Colocated serving is one pool; disaggregation is a prefill and a decode pool."""

    table: StepTable
    scheduler: SchedulerConfig
    replicas_count: int = 1
    attention_dp: int = 1
    """Lockstep ranks inside a replica, each with its own scheduler and KV pool."""
    gpus_per_replica_count: int = 1
    host_tier: HostTier | None = None


@dataclass(frozen=True)
class Handoff:
    """KV transfer between pools: t = floor + exposed bytes / bandwidth, queued per prefill replica's link."""

    floor_s: float
    bytes_per_s: float
    bytes_per_token: float
    exposed_layer_frac: float = 1.0
    """1/layers where the backend streams layer by layer during prefill (MoRI), else 1."""


@dataclass(frozen=True)
class Deployment:
    """What serves: `decode_pool` None means colocated."""

    pool: Pool
    decode_pool: Pool | None = None
    handoff: Handoff | None = None
    routing: Routing = Routing.LEAST_LOADED
