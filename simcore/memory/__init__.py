"""Memory: exact weight and KV bytes, pools and capacity (paper B.5)."""

from simcore.memory.kv import KvFormat, KvProfile, kv_format, kv_profile, kv_transfer_bytes
from simcore.memory.plan import MemoryPlan, MemoryRequest, MemoryViolation, plan_memory
from simcore.memory.pool import Reserve, index_buffer_bytes, kv_pool_bytes, minimum_memory_fraction, pool_tokens
from simcore.memory.weights import WeightChoices, weight_bytes_by_stage

__all__ = [
    "KvFormat",
    "KvProfile",
    "MemoryPlan",
    "MemoryRequest",
    "MemoryViolation",
    "Reserve",
    "WeightChoices",
    "index_buffer_bytes",
    "kv_format",
    "kv_pool_bytes",
    "kv_profile",
    "kv_transfer_bytes",
    "minimum_memory_fraction",
    "plan_memory",
    "pool_tokens",
    "weight_bytes_by_stage",
]
