"""Collectives of a step on one rank: latency and bytes, decode and prefill (App. B.2)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from simcore.cards.accelerator import AcceleratorCard
from simcore.data.constants import constant
from simcore.laws.collectives import Collective, Tier, link, mesh_bandwidth, mesh_bytes, message_time
from simcore.stepcost.work import ACTIVATION_BYTES, RankWork

Floats = NDArray[np.float64]

PREFILL_PROBE_TOKENS: Final = (4096, 8192)
"""Prompt chunks whose all-reduces give the prefill slope: large enough for the large-message kernels."""
MEASURED_ON: Final = "MI355X"


@dataclass(frozen=True)
class Exchange:
    """`count` equal collectives per step, each on `bytes_per_token` for every token of its group."""

    collective: Collective
    gpus_count: int
    count: int
    groups_count: int
    """Groups that share the engine's batch (attention-DP ranks)."""
    bytes_per_token: float

    @property
    def wire_bytes_per_token(self) -> float:
        """Bytes that one GPU sends for one token of its group."""
        passes = 2 if self.collective is Collective.ALL_REDUCE else 1
        return float(
            mesh_bytes(message_bytes=self.bytes_per_token, group_gpus_count=self.gpus_count, passes_count=passes)
        )


@dataclass(frozen=True)
class Communication:
    """Collectives of one step; the default has none."""

    exchanges: tuple[Exchange, ...] = ()
    switched_bytes_per_s: float = 0.0
    """Links of one GPU in a switched node (validation-only accelerators); 0 = the measured mesh of MI355X."""
    mesh_ratio: float = 1.0
    """Link bandwidth over MI355X's, for other accelerators with the same mesh."""
    inside_step: bool = False
    """Drop alpha: the step lists its own kernels (analytical mode)."""
    links_bytes_per_s: float = 0.0
    """Datasheet rate of one GPU's links to its node, and of its network card."""
    nic_bytes_per_s: float = 0.0
    node_gpus_count: int = 1
    flags: tuple[str, ...] = ()

    @property
    def kernels_count(self) -> int:
        """Collective kernels of one step."""
        return sum(exchange.count for exchange in self.exchanges)

    @property
    def is_measured(self) -> bool:
        """The GPUs are the kind whose collectives the paper measured (Table 19: AMD's mesh)."""
        return not self.switched_bytes_per_s

    def ring_s(self, engine_batch: Floats, *, latency_s: float, bytes_per_s: float) -> Floats:
        """Seconds of all collectives of a decode step as rings of one latency and one rate. (n,) in, (n,) out."""
        batch = np.asarray(engine_batch, dtype=np.float64)
        out = np.zeros_like(batch)
        for exchange in self.exchanges:
            out += exchange.count * (
                latency_s + batch / exchange.groups_count * exchange.wire_bytes_per_token / bytes_per_s
            )
        return out

    @property
    def link_s_per_token(self) -> float:
        """Seconds per prompt token of all collectives as large messages at the datasheet rate of the group's links."""
        return sum(
            exchange.count * exchange.wire_bytes_per_token / self._group_bytes_per_s(exchange.gpus_count)
            for exchange in self.exchanges
        )

    def _group_bytes_per_s(self, gpus: int) -> float:
        """Links that a group can use: all behind a switch; on a mesh a GPU has one link to each other GPU."""
        if gpus > self.node_gpus_count:
            return self.nic_bytes_per_s
        if not self.is_measured:
            return self.links_bytes_per_s
        return float(
            mesh_bandwidth(
                node_bytes_per_s=self.links_bytes_per_s,
                efficiency_frac=1.0,
                group_gpus_count=gpus,
                node_gpus_count=self.node_gpus_count,
            )
        )

    def decode_s(self, engine_batch: Floats) -> Floats:
        """Seconds of all collectives of a decode step, by engine batch. (n,) in, (n,) out."""
        batch = np.asarray(engine_batch, dtype=np.float64)
        out = np.zeros_like(batch)
        for exchange in self.exchanges:
            sizes, where = np.unique(np.ceil(batch / exchange.groups_count), return_inverse=True)
            out += exchange.count * np.array([self._one_s(exchange, float(size)) for size in sizes])[where]
        return out

    @property
    def prefill_s(self) -> tuple[float, float]:
        """(fixed seconds, seconds per prompt token) of the collectives of a prefill step."""
        small, large = PREFILL_PROBE_TOKENS
        per_token = fixed = 0.0
        for exchange in self.exchanges:
            low, high = self._one_s(exchange, small), self._one_s(exchange, large)
            slope = (high - low) / (large - small)
            per_token += exchange.count * slope
            fixed += exchange.count * max(0.0, low - slope * small)
        return fixed, per_token

    def _one_s(self, exchange: Exchange, tokens: float) -> float:
        return _message_s(
            exchange.collective,
            exchange.gpus_count,
            tokens * exchange.bytes_per_token,
            self.switched_bytes_per_s,
            self.mesh_ratio,
            self.inside_step,
        )


@lru_cache(maxsize=1 << 16)
def _message_s(
    collective: Collective,
    gpus: int,
    size: float,
    switched_bytes_per_s: float,
    mesh_ratio: float,
    inside_step: bool,
) -> float:
    """Seconds of one collective; kept, because the layouts of a search exchange the same messages."""
    if switched_bytes_per_s:
        # These engines fuse the all-reduce with the norm it precedes: no kernel is added, only barriers and bytes.
        passes = 2 if collective is Collective.ALL_REDUCE else 1
        wire = mesh_bytes(message_bytes=size, group_gpus_count=gpus, passes_count=passes)
        alpha_s = constant("collective.switched.barrier_s").value
        return float(message_time(message_bytes=wire, alpha_s=alpha_s, bytes_per_s=switched_bytes_per_s))
    tier = Tier.NODE if gpus <= constant("collective.mesh.node_gpus_count").value else Tier.NETWORK
    served = link(collective=collective, message_bytes=size, gpus_count=gpus, tier=tier)
    bytes_per_s = served.bytes_per_s * (mesh_ratio if tier is Tier.NODE else 1.0)
    alpha_s = 0.0 if inside_step else served.alpha_s
    return float(message_time(message_bytes=size, alpha_s=alpha_s, bytes_per_s=bytes_per_s))


def communication(
    work: RankWork, accelerator: AcceleratorCard, *, all_to_all: bool = False, inside_step: bool = False
) -> Communication:
    """The collectives of `work`: an all-reduce after attention (none where a rank holds all heads) and after each FFN.

    With `all_to_all` MoE layers dispatch and combine instead of reducing. Alpha counts unless `inside_step`: an anchor
    at another width holds fewer or other collective kernels. AMD nodes use MI355X's constants scaled by link
    bandwidth, switched nodes (validation only) their datasheet links; both are flagged.
    """
    layout, bytes_per_token = work.layout, float(work.hidden * ACTIVATION_BYTES)
    ranks = layout.moe_tp * layout.moe_ep
    out = []
    if work.attention_reduces_count:
        out.append(
            Exchange(
                Collective.ALL_REDUCE,
                layout.attention_tp,
                work.attention_reduces_count,
                layout.attention_dp,
                bytes_per_token,
            )
        )
    moe_layers = sum(experts.layers_count for experts in work.experts) if all_to_all and layout.moe_ep > 1 else 0
    if work.ffn_reduces_count > moe_layers:
        out.append(Exchange(Collective.ALL_REDUCE, ranks, work.ffn_reduces_count - moe_layers, 1, bytes_per_token))
    if moe_layers:
        top_k = max(experts.experts_per_token for experts in work.experts)
        out.append(Exchange(Collective.ALL_TO_ALL, layout.moe_ep, 2 * moe_layers, ranks, bytes_per_token * top_k))
    found = Communication(
        tuple(out),
        inside_step=inside_step,
        links_bytes_per_s=accelerator.link_bytes_per_s,
        nic_bytes_per_s=accelerator.nic_bytes_per_s,
        node_gpus_count=accelerator.gpus_per_node,
    )
    if accelerator.name == MEASURED_ON:
        return found
    if accelerator.architecture.startswith("gfx"):
        ratio = accelerator.link_bytes_per_s / constant("collective.mesh.links_bytes_per_s").value
        return replace(found, mesh_ratio=ratio, flags=("collectives-borrowed",) if out else ())
    return replace(
        found,
        switched_bytes_per_s=accelerator.link_bytes_per_s,
        flags=("collectives-from-datasheet",) if out else (),
    )
