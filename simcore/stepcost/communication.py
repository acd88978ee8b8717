"""All-reduces of a step on one rank: latency and bytes, decode and prefill (App. B.2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from simcore.cards.accelerator import AcceleratorCard
from simcore.data.constants import constant
from simcore.laws.collectives import Collective, Tier, link, mesh_bytes, message_time
from simcore.stepcost.work import ACTIVATION_BYTES, RankWork

Floats = NDArray[np.float64]

PREFILL_PROBE_TOKENS: Final = (4096, 8192)
"""Prompt chunks whose all-reduces give the prefill slope: large enough for the large-message kernels."""
MEASURED_ON: Final = "MI355X"


@dataclass(frozen=True)
class Communication:
    """All-reduces of one step; the default has none."""

    groups: tuple[tuple[int, int, int], ...] = ()
    """(GPUs in the group, all-reduces per step, groups that share the engine's batch)."""
    hidden: int = 0
    switched_bytes_per_s: float = 0.0
    """Links of one GPU in a switched node (validation-only accelerators); 0 = the measured mesh of MI355X."""
    mesh_ratio: float = 1.0
    """Link bandwidth over MI355X's, for other accelerators with the same mesh."""
    flags: tuple[str, ...] = ()

    def decode_s(self, engine_batch: Floats) -> Floats:
        """Seconds of all collectives of a decode step, by engine batch. (n,) in, (n,) out."""
        batch = np.asarray(engine_batch, dtype=np.float64)
        out = np.zeros_like(batch)
        for gpus, count, share in self.groups:
            sizes, where = np.unique(np.ceil(batch / share), return_inverse=True)
            out += count * np.array([self._reduce_s(float(size), gpus) for size in sizes])[where]
        return out

    @property
    def prefill_s(self) -> tuple[float, float]:
        """(fixed seconds, seconds per prompt token) of the collectives of a prefill step."""
        small, large = PREFILL_PROBE_TOKENS
        per_token = fixed = 0.0
        for gpus, count, _ in self.groups:
            low, high = self._reduce_s(small, gpus), self._reduce_s(large, gpus)
            slope = (high - low) / (large - small)
            per_token += count * slope
            fixed += count * max(0.0, low - slope * small)
        return fixed, per_token

    def _reduce_s(self, tokens: float, gpus: int) -> float:
        size = tokens * self.hidden * ACTIVATION_BYTES
        if self.switched_bytes_per_s:
            # These engines fuse the all-reduce with the norm it precedes: no kernel is added, only barriers and bytes.
            alpha_s = constant("collective.switched.barrier_s").value
            wire = mesh_bytes(message_bytes=size, group_gpus_count=gpus, passes_count=2)
            return float(message_time(message_bytes=wire, alpha_s=alpha_s, bytes_per_s=self.switched_bytes_per_s))
        tier = Tier.NODE if gpus <= constant("collective.mesh.node_gpus_count").value else Tier.NETWORK
        served = link(collective=Collective.ALL_REDUCE, message_bytes=size, gpus_count=gpus, tier=tier)
        bytes_per_s = served.bytes_per_s * (self.mesh_ratio if tier is Tier.NODE else 1.0)
        return float(message_time(message_bytes=size, alpha_s=served.alpha_s, bytes_per_s=bytes_per_s))


def communication(work: RankWork, accelerator: AcceleratorCard) -> Communication:
    """The all-reduces of `work`: one after attention (none where a rank holds all heads), one after each FFN.

    Alpha is counted, unlike in a step that lists its kernels: an anchor at another width holds fewer or other
    all-reduce kernels. AMD nodes use MI355X's constants scaled by link bandwidth; switched nodes (validation only)
    their datasheet links. Both are flagged.
    """
    layout = work.layout
    groups = []
    if work.attention_reduces_count:
        groups.append((layout.attention_tp, work.attention_reduces_count, layout.attention_dp))
    if work.ffn_reduces_count:
        groups.append((layout.moe_tp * layout.moe_ep, work.ffn_reduces_count, 1))
    if not groups or accelerator.name == MEASURED_ON:
        return Communication(tuple(groups), work.hidden)
    if accelerator.architecture.startswith("gfx"):
        ratio = accelerator.link_bytes_per_s / constant("collective.mesh.links_bytes_per_s").value
        return Communication(tuple(groups), work.hidden, mesh_ratio=ratio, flags=("collectives-borrowed",))
    return Communication(
        tuple(groups),
        work.hidden,
        switched_bytes_per_s=accelerator.link_bytes_per_s,
        flags=("collectives-from-datasheet",),
    )
