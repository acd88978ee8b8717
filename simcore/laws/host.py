"""Host terms that never occupy the GPU: work per request, loads from the host KV tier, and fused kernels' savings."""

from __future__ import annotations

from simcore.laws.domain import require_frac, require_not_negative, require_positive
from simcore.laws.registry import PAPER, Quantity, law


@law(paper=PAPER, equation="Sec. 3.4, host time per request")
def host_request_time(*, base_s: Quantity, host_s_per_token: Quantity, uncached_tokens: Quantity) -> Quantity:
    """CPU work of one request, added to TTFT and end-to-end latency only.

    Equation: t_h = h_0 + h_1 n_u
    Args:
        base_s: h_0 [s], per request (HTTP, scheduling, detokenising).
        host_s_per_token: h_1 [s/token], tokenising and preparing prompt tokens.
        uncached_tokens: n_u [token].
    Returns: t_h [s].
    Domain: all not negative.
    Not modelled: a host that is itself saturated.
    Source: paper Sec. 3.4 and App. D.4 (5 to 11 us per prompt token).

    >>> round(host_request_time(base_s=0.01, host_s_per_token=5e-6, uncached_tokens=8000), 9)
    0.05
    """
    require_not_negative(base_s=base_s, host_s_per_token=host_s_per_token, uncached_tokens=uncached_tokens)
    return base_s + host_s_per_token * uncached_tokens


@law(paper=PAPER, equation="App. D.4, serial host time of a split")
def split_serial_host_time(*, host_s: Quantity, serial_frac: Quantity) -> Quantity:
    """Host time that a prefill server spends in series with the step that admits a request.

    Equation: t_serial = sigma t_h
    Args:
        host_s: t_h [s], the colocated anchor's host time; a split pays t_h on both servers.
        serial_frac: sigma [1], one half in the paper.
    Returns: t_serial [s].
    Domain: t_h not negative; sigma in [0, 1].
    Not modelled: which part of the host's work is serial.
    Source: paper App. D.4.

    >>> split_serial_host_time(host_s=0.08, serial_frac=0.5)
    0.04
    """
    require_not_negative(host_s=host_s)
    require_frac(serial_frac=serial_frac)
    return host_s * serial_frac


@law(paper=PAPER, equation="App. B.6, load from the host tier")
def host_tier_load_time(*, resident_bytes: Quantity, link_bytes_per_s: Quantity) -> Quantity:
    """Time to bring a prefix back from host memory on an idle link; it adds to the request's TTFT only.

    Equation: t = m / B_host
    Args:
        resident_bytes: m [bytes], blocks of the prefix found in host memory, on one rank.
        link_bytes_per_s: B_host [bytes/s], host-to-device bandwidth of that rank.
    Returns: t [s].
    Domain: m not negative; B_host above 0.
    Not modelled: loads behind each other (the simulator queues them).
    Source: paper App. B.6.

    >>> host_tier_load_time(resident_bytes=64e9, link_bytes_per_s=64e9)
    1.0
    """
    require_not_negative(resident_bytes=resident_bytes)
    require_positive(link_bytes_per_s=link_bytes_per_s)
    return resident_bytes / link_bytes_per_s


@law(paper=PAPER, equation="Sec. 4, fusion saving")
def fusion_saving(
    *,
    kernels_removed_count: Quantity,
    kernel_s: Quantity,
    intermediate_bytes: Quantity,
    memory_bytes_per_s: Quantity,
    realised_frac: Quantity,
) -> Quantity:
    """What a step saves when adjacent kernels become one.

    Equation: t = phi (n k + 2 m / B)
    Args:
        kernels_removed_count: n [1], kernels no longer launched in the step.
        kernel_s: k [s], launch and occupancy of one kernel.
        intermediate_bytes: m [bytes], data no longer written to memory and read back.
        memory_bytes_per_s: B [bytes/s].
        realised_frac: phi [1], 0.75 to 1 in the paper: price both ends.
    Returns: t [s].
    Domain: n, k, m not negative; B above 0; phi in [0, 1].
    Not modelled: registers and occupancy of the fused kernel.
    Source: paper Sec. 4 (Kernel fusions).

    >>> fusion_saving(
    ...     kernels_removed_count=100, kernel_s=5e-6, intermediate_bytes=1e9, memory_bytes_per_s=4e12, realised_frac=1.0
    ... )
    0.001
    """
    require_not_negative(
        kernels_removed_count=kernels_removed_count, kernel_s=kernel_s, intermediate_bytes=intermediate_bytes
    )
    require_positive(memory_bytes_per_s=memory_bytes_per_s)
    require_frac(realised_frac=realised_frac)
    return realised_frac * (kernels_removed_count * kernel_s + 2 * intermediate_bytes / memory_bytes_per_s)
