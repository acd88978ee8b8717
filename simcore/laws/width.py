"""Moving a measured step across tensor-parallel width: decode (Eq. 1 and its split floor) and prefill."""

from __future__ import annotations

import numpy as np

from simcore.laws.domain import require, require_at_least, require_not_negative, require_part, require_positive
from simcore.laws.registry import OURS, PAPER, FloatArray, Quantity, law


@law(paper=PAPER, equation="Eq. 1, default shrink")
def ideal_shrink(*, width_from: Quantity, width_to: Quantity) -> Quantity:
    """How much perfectly divided work shrinks from one width to another.

    Equation: rho = w / w'
    Args:
        width_from: w [1], GPUs that share the work now.
        width_to: w' [1], GPUs that will share it.
    Returns: rho [1], above 1 when the target is narrower.
    Domain: both widths above 0.
    Not modelled: work that does not divide evenly (padding of heads or experts).
    Source: paper Sec. 3.1.2, Eq. 1.

    >>> round(ideal_shrink(width_from=4, width_to=8), 9)
    0.5
    """
    require_positive(width_from=width_from, width_to=width_to)
    return width_from / width_to


@law(paper=PAPER, equation="Eq. 1")
def decode_transfer(*, step_s: Quantity, floor_s: Quantity, shrink_factor: Quantity) -> Quantity:
    """Decode step at another width: the fixed part stays, the rest shrinks.

    Equation: s_w'(b) = f + (s_w(b) - f) rho
    Args:
        step_s: s_w(b) [s], measured step at each batch.
        floor_s: f [s], the cheapest step of the same sweep (batch 1).
        shrink_factor: rho [1], w/w' or the measured shrink to the number of doublings.
    Returns: s_w'(b) [s].
    Domain: 0 < f <= s_w(b); rho above 0.
    Not modelled: weight reading inside f, which does shrink (see `decode_transfer_split`); the new width's collectives.
    Source: paper Sec. 3.1.2, Eq. 1.

    >>> round(decode_transfer(step_s=0.030, floor_s=0.010, shrink_factor=0.5), 9)
    0.02
    """
    require_positive(step_s=step_s, floor_s=floor_s, shrink_factor=shrink_factor)
    require_at_least(floor_s, step_s=step_s)
    return floor_s + (step_s - floor_s) * shrink_factor


@law(paper=PAPER, equation="App. B.1, shrink per doubling")
def shrink_per_doubling(
    *,
    half_width_excess_s: Quantity,
    width_excess_s: Quantity,
    excess_floor_s: float,
    low_factor: float,
    high_factor: float,
) -> Quantity:
    """Measured shrink of the excess over batch 1 when the width doubles, where the excess is large enough to trust.

    Equation: rho_2 = clamp((s_w(b) - s_w(1)) / (s_{w/2}(b) - s_{w/2}(1)), low, high)
    Args:
        half_width_excess_s: s_{w/2}(b) - s_{w/2}(1) [s].
        width_excess_s: s_w(b) - s_w(1) [s].
        excess_floor_s: [s], smallest excess that counts (1 ms in the paper).
        low_factor: [1], lower clamp (0.5).
        high_factor: [1], upper clamp (1).
    Returns: rho per doubling [1]; the caller keeps only batches whose excess is at least the floor.
    Domain: half-width excess at least the floor; the other not negative; 0 < low <= high.
    Not modelled: shrink that differs from one doubling to the next.
    Source: paper Sec. 3.1.2 and App. B.1. The paper does not say whose excess must reach 1 ms; the denominator's is
    taken, because it is the one whose noise the ratio amplifies.

    >>> round(shrink_per_doubling(
    ...     half_width_excess_s=0.010, width_excess_s=0.006, excess_floor_s=0.001, low_factor=0.5, high_factor=1.0
    ... ), 9)
    0.6
    """
    require_positive(low_factor=low_factor, excess_floor_s=excess_floor_s)
    require_at_least(low_factor, high_factor=high_factor)
    require_at_least(excess_floor_s, half_width_excess_s=half_width_excess_s)
    require_not_negative(width_excess_s=width_excess_s)
    ratio = np.clip(width_excess_s / half_width_excess_s, low_factor, high_factor)
    return float(ratio) if np.ndim(ratio) == 0 else ratio


def measured_shrink(
    *,
    batches: FloatArray,
    half_width_step_s: FloatArray,
    width_step_s: FloatArray,
    excess_floor_s: float,
    low_factor: float,
    high_factor: float,
) -> tuple[FloatArray, FloatArray]:
    """The curve (batches, shrink per doubling) of two sweeps of the same stack, at `width/2` and `width`.

    `batches` (n,) starts with 1 and is common to both sweeps [requests]; steps are (n,) [s]. Batches whose excess is
    below the floor are left out; both results are empty when none is left, and Eq. 1's default then applies.
    Raises DomainError unless batches rise from 1. Source: paper App. B.1.
    """
    require(
        bool(len(batches) and batches[0] == 1 and np.all(np.diff(batches) > 0)),
        f"`batches` must rise from 1, got {batches!r}",
    )
    half, full = half_width_step_s - half_width_step_s[0], width_step_s - width_step_s[0]
    keep = (batches > 1) & (half >= excess_floor_s)
    factors = shrink_per_doubling(
        half_width_excess_s=half[keep],
        width_excess_s=np.maximum(full[keep], 0.0),  # a step below batch 1's is noise; the clamp sets it to `low`
        excess_floor_s=excess_floor_s,
        low_factor=low_factor,
        high_factor=high_factor,
    )
    return batches[keep].astype(np.float64), np.asarray(factors, dtype=np.float64)


@law(paper=PAPER, equation="App. B.1, shrink at a batch")
def shrink_at(
    *, batch_requests: Quantity, curve_batch_requests: FloatArray, curve_factor: FloatArray, doublings_count: Quantity
) -> Quantity:
    """Shrink from width w to w' at any batch, from the measured curve per doubling.

    Equation: rho = rho_2(b) ** log2(w'/w), rho_2 interpolated linearly in log b, held at the curve's ends
    Args:
        batch_requests: b [1].
        curve_batch_requests: (n,) [1], rising.
        curve_factor: (n,) [1], shrink per doubling.
        doublings_count: log2(w'/w) [1], negative towards a narrower width.
    Returns: rho [1].
    Domain: b at least 1; a curve of at least one point with factors above 0.
    Not modelled: a different shrink at the second doubling.
    Source: paper App. B.1.

    >>> round(shrink_at(
    ...     batch_requests=8, curve_batch_requests=np.array([4.0, 16.0]), curve_factor=np.array([0.6, 0.8]),
    ...     doublings_count=2,
    ... ), 9)
    0.49
    """
    require_at_least(1.0, batch_requests=batch_requests, curve_batch_requests=curve_batch_requests)
    require(len(curve_factor) > 0, "`curve_factor` must hold at least one point")
    require(bool(np.all(np.isfinite(doublings_count))), "`doublings_count` must be finite")
    require_positive(curve_factor=curve_factor)
    per_doubling = np.interp(np.log2(batch_requests), np.log2(curve_batch_requests), curve_factor)
    factor = per_doubling**doublings_count
    return float(factor) if np.ndim(factor) == 0 else factor


@law(paper=OURS, equation="split floor, weight reading")
def weight_read(*, weight_bytes: Quantity, effective_bytes_per_s: Quantity) -> Quantity:
    """Time to read one GPU's share of the weights that every step reads.

    Equation: W = m_w / B_eff
    Args:
        weight_bytes: m_w [bytes], weights that one GPU reads at batch 1.
        effective_bytes_per_s: B_eff [bytes/s], reached bandwidth, never the datasheet peak unasked.
    Returns: W [s].
    Domain: m_w at least 0; B_eff above 0.
    Not modelled: overlap of reading with launches; few-expert shortfall (see `moe.few_expert_bandwidth`).
    Source: ours; the roofline's memory side.

    >>> round(weight_read(weight_bytes=6.5e9, effective_bytes_per_s=6.5e12), 9)
    0.001
    """
    require_not_negative(weight_bytes=weight_bytes)
    require_positive(effective_bytes_per_s=effective_bytes_per_s)
    return weight_bytes / effective_bytes_per_s


@law(paper=OURS, equation="split floor, decode transfer")
def decode_transfer_split(
    *,
    step_s: Quantity,
    floor_s: Quantity,
    weight_s: Quantity,
    collective_from_s: Quantity,
    collective_floor_from_s: Quantity,
    collective_to_s: Quantity,
    weight_shrink_factor: Quantity,
    excess_shrink_factor: Quantity,
) -> Quantity:
    """Decode step at another width when the floor is a constant, weight reading that shrinks, and collectives.

    Equation: s_w'(b) = C + W r + E(b) rho + A_w'(b),
        C = f - W - A_w(1), E(b) = s_w(b) - f - (A_w(b) - A_w(1))
    Args:
        step_s: s_w(b) [s], measured step.
        floor_s: f [s], batch-1 step of the same sweep.
        weight_s: W [s], reading of one GPU's weights at width w.
        collective_from_s: A_w(b) [s], collectives inside the step at width w.
        collective_floor_from_s: A_w(1) [s].
        collective_to_s: A_w'(b) [s].
        weight_shrink_factor: r [1], w/w' for weights that divide.
        excess_shrink_factor: rho [1], as in Eq. 1.
    Returns: s_w'(b) [s]; equal to Eq. 1 when W and both collectives are 0.
    Domain: the parts fit: W + A_w(1) <= f and E(b) >= 0; factors above 0.
    Not modelled: kernels that change with the width.
    Source: ours; Eq. 1 generalised after single steps of Qwen3-32B at TP 1 to 8 (13.30, 8.41, 5.95, 4.52 ms), where the
    batch-1 step is mostly weight reading and does shrink.

    >>> round(decode_transfer_split(
    ...     step_s=0.014, floor_s=0.012, weight_s=0.008, collective_from_s=0.0, collective_floor_from_s=0.0,
    ...     collective_to_s=0.001, weight_shrink_factor=0.5, excess_shrink_factor=0.5,
    ... ), 9)
    0.01
    """
    require_positive(step_s=step_s, floor_s=floor_s)
    require_positive(weight_shrink_factor=weight_shrink_factor, excess_shrink_factor=excess_shrink_factor)
    require_not_negative(
        weight_s=weight_s,
        collective_from_s=collective_from_s,
        collective_floor_from_s=collective_floor_from_s,
        collective_to_s=collective_to_s,
    )
    constant_s = floor_s - weight_s - collective_floor_from_s
    excess_s = step_s - floor_s - (collective_from_s - collective_floor_from_s)
    require_part(floor_s, constant_s=constant_s)
    require_part(step_s, excess_s=excess_s)
    return constant_s + weight_s * weight_shrink_factor + excess_s * excess_shrink_factor + collective_to_s


@law(paper=PAPER, equation="Sec. 3.1.1, prefill step")
def prefill_step(
    *, fixed_s: Quantity, linear_s_per_token: Quantity, quadratic_s_per_token2: Quantity, prompt_tokens: Quantity
) -> Quantity:
    """Time of a step that processes one prompt alone.

    Equation: T(n) = F + c1 n + c2 n^2
    Args:
        fixed_s: F [s].
        linear_s_per_token: c1 [s/token].
        quadratic_s_per_token2: c2 [s/token2].
        prompt_tokens: n [token].
    Returns: T(n) [s].
    Domain: n above 0; F, c1, c2 not negative.
    Not modelled: several prompts in one step (packing), chunking.
    Source: paper Sec. 3.1.1.

    >>> round(prefill_step(fixed_s=0.01, linear_s_per_token=1e-5, quadratic_s_per_token2=1e-9, prompt_tokens=1000.0), 9)
    0.021
    """
    require_positive(prompt_tokens=prompt_tokens)
    require_not_negative(
        fixed_s=fixed_s, linear_s_per_token=linear_s_per_token, quadratic_s_per_token2=quadratic_s_per_token2
    )
    return fixed_s + linear_s_per_token * prompt_tokens + quadratic_s_per_token2 * prompt_tokens**2


@law(paper=PAPER, equation="Sec. 3.1.2, prefill transfer")
def prefill_transfer(*, step_s: Quantity, fixed_s: Quantity, shrink_factor: Quantity) -> Quantity:
    """Prefill step at another width: the fixed term stays, the terms that grow with tokens shrink.

    Equation: T_w'(n) = F + (T_w(n) - F) rho, so c1 and c2 scale by rho
    Args:
        step_s: T_w(n) [s].
        fixed_s: F [s].
        shrink_factor: rho [1], w/w'.
    Returns: T_w'(n) [s].
    Domain: 0 <= F <= T_w(n); rho above 0.
    Not modelled: communication, which grows with tokens and does not shrink (see `prefill_transfer_communicating`).
    Source: paper Sec. 3.1.2.

    >>> round(prefill_transfer(step_s=0.5, fixed_s=0.1, shrink_factor=0.5), 9)
    0.3
    """
    require_positive(step_s=step_s, shrink_factor=shrink_factor)
    require_not_negative(fixed_s=fixed_s)
    require_at_least(fixed_s, step_s=step_s)
    return fixed_s + (step_s - fixed_s) * shrink_factor


@law(paper=OURS, equation="prefill transfer with communication")
def prefill_transfer_communicating(
    *,
    step_s: Quantity,
    fixed_s: Quantity,
    communication_from_s: Quantity,
    communication_to_s: Quantity,
    shrink_factor: Quantity,
) -> Quantity:
    """Prefill step at another width when part of it is collectives that grow with tokens.

    Equation: T_w'(n) = F + (T_w(n) - F - K_w(n)) rho + K_w'(n)
    Args:
        step_s: T_w(n) [s].
        fixed_s: F [s].
        communication_from_s: K_w(n) [s], collectives of the prompt at width w.
        communication_to_s: K_w'(n) [s].
        shrink_factor: rho [1], w/w'.
    Returns: T_w'(n) [s]; equal to `prefill_transfer` when both communications are 0.
    Domain: F + K_w(n) <= T_w(n).
    Not modelled: communication hidden behind compute.
    Source: ours; two widths of Qwen3-32B solved for F grow with the prompt, as the paper's GLM-5.2 remark (App. E).

    >>> round(prefill_transfer_communicating(
    ...     step_s=0.5, fixed_s=0.1, communication_from_s=0.0, communication_to_s=0.05, shrink_factor=0.5
    ... ), 9)
    0.35
    """
    require_positive(step_s=step_s, shrink_factor=shrink_factor)
    require_not_negative(
        fixed_s=fixed_s, communication_from_s=communication_from_s, communication_to_s=communication_to_s
    )
    work_s = step_s - fixed_s - communication_from_s
    require_part(step_s, work_s=work_s)
    return fixed_s + work_s * shrink_factor + communication_to_s


@law(paper=PAPER, equation="Table 18, fallback width law")
def serial_parallel(*, serial_s: Quantity, parallel_s: Quantity, width: Quantity) -> Quantity:
    """A step as a serial part plus a part that divides by the width: the fallback where no length fit exists.

    Equation: T_w = s + p / w
    Args:
        serial_s: s [s].
        parallel_s: p [s], the divided part at width 1.
        width: w [1].
    Returns: T_w [s].
    Domain: s and p not negative; w above 0.
    Not modelled: collectives that grow with the width.
    Source: paper Table 18, row `Fallback width law`.

    >>> round(serial_parallel(serial_s=0.1, parallel_s=0.8, width=4), 9)
    0.3
    """
    require_not_negative(serial_s=serial_s, parallel_s=parallel_s)
    require_positive(width=width)
    return serial_s + parallel_s / width


@law(paper=PAPER, equation="Table 18, prefill fixed term from two widths")
def serial_from_two_widths(
    *, narrow_step_s: Quantity, wide_step_s: Quantity, narrow_width: Quantity, wide_width: Quantity
) -> Quantity:
    """The part of a step that does not divide, solved from two widths at one prompt length or batch.

    Equation: s = (w' T_w' - w T_w) / (w' - w)
    Args:
        narrow_step_s: T_w [s].
        wide_step_s: T_w' [s].
        narrow_width: w [1].
        wide_width: w' [1].
    Returns: s [s]; negative when the step shrank more than ideally, which the caller must judge.
    Domain: steps above 0; 0 < w < w'.
    Not modelled: as `serial_parallel`.
    Source: paper Sec. 3.1.2 and Table 18 (F = 146.90 ms at 4k and 145.86 ms at 8k; its two inputs are not printed).

    >>> round(serial_from_two_widths(narrow_step_s=0.3, wide_step_s=0.2, narrow_width=4, wide_width=8), 9)
    0.1
    """
    require_positive(narrow_step_s=narrow_step_s, wide_step_s=wide_step_s, narrow_width=narrow_width)
    require(np.all(np.asarray(wide_width) > narrow_width), "`wide_width` must be above `narrow_width`")
    return (wide_width * wide_step_s - narrow_width * narrow_step_s) / (wide_width - narrow_width)
