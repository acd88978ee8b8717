"""KV hand-off between a prefill and a decode pool: bytes, what of them is exposed, and the transfer time."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from simcore.data.constants import constant
from simcore.laws.domain import require_at_least, require_frac, require_not_negative, require_positive
from simcore.laws.registry import PAPER, Quantity, law


class HandoffBackend(StrEnum):
    """Libraries that move the cache."""

    MORI = "mori"
    NIXL = "nixl"
    MOONCAKE = "mooncake"

    @property
    def is_streaming(self) -> bool:
        """MoRI sends layer by layer while prefill runs; the others send all of it afterwards."""
        return self is HandoffBackend.MORI


@dataclass(frozen=True)
class HandoffLink:
    """Constants of one backend, per prefill GPU."""

    floor_s: float
    bytes_per_s: float
    exposed_frac: float
    """Share of the cache that is sent after prefill ended."""
    is_measured: bool


def handoff_link(backend: HandoffBackend, *, layers_count: int) -> HandoffLink:
    """The constants of `backend` for a model of `layers_count` layers. Source: paper Table 5 and App. D.4."""
    require_at_least(1.0, layers_count=layers_count)
    floor = constant(f"handoff.{backend}.floor_s")
    bandwidth = constant(f"handoff.{backend}.bandwidth_bytes_per_s")
    exposed = 1.0 / layers_count if backend.is_streaming else 1.0
    return HandoffLink(floor.value, bandwidth.value, exposed, floor.kind == bandwidth.kind == "measured")


@law(paper=PAPER, equation="App. D.4, cache bytes by KV heads")
def grouped_kv_bytes_per_token(
    *, layers_count: Quantity, kv_heads_count: Quantity, head_dim_count: Quantity, element_bytes: Quantity
) -> Quantity:
    """KV bytes of one token with grouped-query attention: keys and values of every KV head.

    Equation: m_token = 2 L H_kv D e
    Args:
        layers_count: L [1].
        kv_heads_count: H_kv [1]; on one of t TP ranks max(1, H_kv / t).
        head_dim_count: D [1].
        element_bytes: e [bytes].
    Returns: m_token [bytes], of one token.
    Domain: all above 0.
    Not modelled: scales of quantised caches; window layers, which keep fewer tokens.
    Source: paper App. B.5.

    >>> grouped_kv_bytes_per_token(layers_count=61, kv_heads_count=128, head_dim_count=128, element_bytes=2)
    3997696
    """
    require_positive(
        layers_count=layers_count,
        kv_heads_count=kv_heads_count,
        head_dim_count=head_dim_count,
        element_bytes=element_bytes,
    )
    return 2 * layers_count * kv_heads_count * head_dim_count * element_bytes


@law(paper=PAPER, equation="App. D.4, cache bytes of a latent")
def latent_kv_bytes_per_token(
    *, layers_count: Quantity, latent_dim_count: Quantity, rope_dim_count: Quantity, element_bytes: Quantity
) -> Quantity:
    """KV bytes of one token with latent attention (MLA): one latent and one rotary key for all heads.

    Equation: m_token = L (d_c + d_r) e
    Args:
        layers_count: L [1].
        latent_dim_count: d_c [1], kv_lora_rank.
        rope_dim_count: d_r [1], qk_rope_head_dim.
        element_bytes: e [bytes].
    Returns: m_token [bytes], of one token, the same on every TP rank.
    Domain: all above 0.
    Not modelled: sparse-attention indexer keys.
    Source: paper App. B.5; public case B12 (DeepSeek-V3: 70,272 bytes per token).

    >>> latent_kv_bytes_per_token(layers_count=61, latent_dim_count=512, rope_dim_count=64, element_bytes=2)
    70272
    """
    require_positive(
        layers_count=layers_count,
        latent_dim_count=latent_dim_count,
        rope_dim_count=rope_dim_count,
        element_bytes=element_bytes,
    )
    return layers_count * (latent_dim_count + rope_dim_count) * element_bytes


@law(paper=PAPER, equation="App. D.4, hand-off")
def handoff_time(
    *, cache_bytes: Quantity, exposed_frac: Quantity, floor_s: Quantity, bytes_per_s: Quantity
) -> Quantity:
    """Time from the end of prefill to the cache's arrival, on an idle link.

    Equation: t = t_0 + phi m / B
    Args:
        cache_bytes: m [bytes], the prompt's cache held by one prefill GPU.
        exposed_frac: phi [1], 1/layers where the backend streams, else 1.
        floor_s: t_0 [s].
        bytes_per_s: B [bytes/s], that GPU's own link.
    Returns: t [s].
    Domain: m and t_0 not negative; phi in [0, 1]; B above 0.
    Not modelled: queueing on the link (the simulator does that); a streamed cache slower than its prefill.
    Source: paper App. D.4.

    >>> round(handoff_time(cache_bytes=575_668_224, exposed_frac=1.0, floor_s=0.0, bytes_per_s=50e9), 5)
    0.01151
    """
    require_not_negative(cache_bytes=cache_bytes, floor_s=floor_s)
    require_positive(bytes_per_s=bytes_per_s)
    require_frac(exposed_frac=exposed_frac)
    return floor_s + exposed_frac * cache_bytes / bytes_per_s
