"""Every law once more, transcribed literally from its equation in plain scalar arithmetic.

Nothing here is imported from the laws; the property tests compare the two. Keys are `paper:equation` of the register.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from fractions import Fraction
from math import comb
from typing import Any

LITERAL: dict[str, Callable[..., Any]] = {}


def literal(*equations: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        for equation in equations:
            assert equation not in LITERAL
            LITERAL[equation] = function
        return function

    return register


@literal("rocm-inferasim:Eq. 1, default shrink")
def _(width_from, width_to):
    return width_from / width_to


@literal("rocm-inferasim:Eq. 1")
def _(step_s, floor_s, shrink_factor):
    f, s, rho = floor_s, step_s, shrink_factor
    return f + (s - f) * rho


@literal("rocm-inferasim:App. B.1, shrink per doubling")
def _(half_width_excess_s, width_excess_s, excess_floor_s, low_factor, high_factor):
    ratio = width_excess_s / half_width_excess_s
    return low_factor if ratio < low_factor else high_factor if ratio > high_factor else ratio


@literal("rocm-inferasim:App. B.1, shrink at a batch")
def _(batch_requests, curve_batch_requests, curve_factor, doublings_count):
    points = list(zip(list(curve_batch_requests), list(curve_factor), strict=True))
    if batch_requests <= points[0][0]:
        rho = points[0][1]
    elif batch_requests >= points[-1][0]:
        rho = points[-1][1]
    else:
        for (b0, r0), (b1, r1) in itertools.pairwise(points):
            if b0 <= batch_requests <= b1:
                rho = r0 + (r1 - r0) * (math.log(batch_requests) - math.log(b0)) / (math.log(b1) - math.log(b0))
                break
    return rho**doublings_count


@literal("inferasim:split floor, weight reading")
def _(weight_bytes, effective_bytes_per_s):
    return weight_bytes / effective_bytes_per_s


@literal("inferasim:split floor, decode transfer")
def _(
    step_s,
    floor_s,
    weight_s,
    collective_from_s,
    collective_floor_from_s,
    collective_to_s,
    weight_shrink_factor,
    excess_shrink_factor,
):
    constant = floor_s - weight_s - collective_floor_from_s
    excess = step_s - constant - weight_s - collective_from_s
    return constant + weight_shrink_factor * weight_s + excess_shrink_factor * excess + collective_to_s


@literal("rocm-inferasim:Sec. 3.1.1, prefill step")
def _(fixed_s, linear_s_per_token, quadratic_s_per_token2, prompt_tokens):
    n = prompt_tokens
    return fixed_s + linear_s_per_token * n + quadratic_s_per_token2 * n * n


@literal("rocm-inferasim:Sec. 3.1.2, prefill transfer")
def _(step_s, fixed_s, shrink_factor):
    return fixed_s * (1 - shrink_factor) + step_s * shrink_factor


@literal("inferasim:prefill transfer with communication")
def _(step_s, fixed_s, communication_from_s, communication_to_s, shrink_factor):
    return fixed_s + shrink_factor * (step_s - fixed_s - communication_from_s) + communication_to_s


@literal("rocm-inferasim:Table 18, fallback width law")
def _(serial_s, parallel_s, width):
    return serial_s + parallel_s / width


@literal("rocm-inferasim:Table 18, prefill fixed term from two widths")
def _(narrow_step_s, wide_step_s, narrow_width, wide_width):
    # T = s + p/w at two widths: p from the difference, then s.
    parallel = (narrow_step_s - wide_step_s) / (1 / narrow_width - 1 / wide_width)
    return narrow_step_s - parallel / narrow_width


@literal("rocm-inferasim:Sec. 3.1.2, graph-capture staircase")
def _(batch_requests, captured_requests):
    for size in sorted(captured_requests):
        if size >= batch_requests:
            return size
    return batch_requests


@literal("rocm-inferasim:Sec. 3.1.2, context slope")
def _(short_step_s, long_step_s, short_context_tokens, long_context_tokens, batch_requests):
    return (long_step_s - short_step_s) / batch_requests / (long_context_tokens - short_context_tokens)


@literal("rocm-inferasim:App. B.2, message time")
def _(message_bytes, alpha_s, bytes_per_s):
    return alpha_s + message_bytes / bytes_per_s


@literal("rocm-inferasim:App. B.2, mesh bandwidth")
def _(node_bytes_per_s, efficiency_frac, group_gpus_count, node_gpus_count):
    return node_bytes_per_s * efficiency_frac * (group_gpus_count - 1) / (node_gpus_count - 1)


@literal("rocm-inferasim:App. B.2, bytes on the mesh")
def _(message_bytes, group_gpus_count, passes_count):
    # Each GPU keeps its own 1/g of the message and sends the other g - 1 parts, once per pass.
    return passes_count * sum(message_bytes / group_gpus_count for _ in range(int(group_gpus_count) - 1))


@literal("rocm-inferasim:App. B.4, scheduler host time")
def _(batch_requests, base_s, s_per_request):
    return base_s + s_per_request * batch_requests


@literal("rocm-inferasim:Eq. 4")
def _(forward_s, stages_count, hop_s, hop_overhead_s, host_s):
    p = stages_count
    return forward_s + p * (hop_s + hop_overhead_s) + p * host_s


@literal("rocm-inferasim:App. B.4, micro-batches in flight")
def _(clients_requests, stages_count):
    return clients_requests if clients_requests < stages_count else stages_count


@literal("rocm-inferasim:App. C.2, mean hop")
def _(stages_count, nodes_count, node_hop_s, network_hop_s):
    # Walk the ring of stages: a hop crosses when its two stages sit on different nodes.
    p, n = int(stages_count), int(nodes_count)
    crossing = 0 if n == 1 else (n - 1) + 1
    return (crossing * network_hop_s + (p - crossing) * node_hop_s) / p


@literal("rocm-inferasim:App. C.2, hop inside a step")
def _(activation_bytes, bytes_per_s, wire_latency_s, kernel_s):
    return activation_bytes / bytes_per_s + wire_latency_s + kernel_s


@literal("inferasim:serial pipeline")
def _(forward_s, stages_count, hop_s):
    return forward_s + (stages_count - 1) * hop_s


@literal("rocm-inferasim:App. B.3, independent coverage")
def _(experts_count, experts_per_token_count, step_tokens):
    missed = 1.0
    for _ in range(int(step_tokens)):
        missed *= 1 - experts_per_token_count / experts_count
    return 1 - missed


@literal("rocm-inferasim:App. B.3, measured curves")
def _(curve, at):
    points = curve.points
    if at <= points[0][0]:
        return points[0][1]
    for (x0, y0), (x1, y1) in itertools.pairwise(points):
        if x0 <= at <= x1:
            return y0 * (y1 / y0) ** (math.log(at / x0) / math.log(x1 / x0))
    return points[-1][1]


@literal("rocm-inferasim:App. B.3, few experts read slowly")
def _(expert_bytes, peak_bytes_per_s, bandwidth_frac):
    return expert_bytes / peak_bytes_per_s / bandwidth_frac


@literal("rocm-inferasim:App. B.3, imbalance at both widths")
def _(expert_s, anchor_imbalance_factor, target_imbalance_factor):
    return expert_s / anchor_imbalance_factor * target_imbalance_factor


@literal("rocm-inferasim:Eq. 3")
def _(imbalance_factor, experts_count, replicas_count):
    return 1 + (imbalance_factor - 1) * experts_count / (experts_count + replicas_count)


@literal("rocm-inferasim:App. B.3, kept surplus")
def _(imbalance_factor, kept_frac):
    return (1 - kept_frac) * 1 + kept_frac * imbalance_factor


@literal("rocm-inferasim:App. B.2, dispatch and combine")
def _(step_tokens, experts_per_token_count, hidden_bytes_per_token):
    return step_tokens * experts_per_token_count * hidden_bytes_per_token


@literal("inferasim:expert dispatch by engine")
def _(is_all_to_all, step_tokens, ranks_count, experts_per_token_count, hidden_bytes_per_token):
    if is_all_to_all:
        return step_tokens / ranks_count * experts_per_token_count * hidden_bytes_per_token, 0.0
    return 0.0, step_tokens * hidden_bytes_per_token


def _choices(experts, k):
    return list(itertools.combinations(range(experts), k))


@literal("rocm-inferasim:App. B.3, I_n of a uniform router")
def _(experts_count, experts_per_token, expert_parallel, step_tokens):
    """Every possible step of a small router, one by one: exact, exponential."""
    size = experts_count // expert_parallel
    total = steps = 0
    for step in itertools.product(_choices(experts_count, experts_per_token), repeat=step_tokens):
        rows = [0] * expert_parallel
        for token in step:
            for expert in token:
                rows[expert // size] += 1
        total += max(rows)
        steps += 1
    return float(Fraction(total, steps) / Fraction(step_tokens * experts_per_token, expert_parallel))


@literal("rocm-inferasim:App. B.3, I_d of a uniform router")
def _(experts_count, experts_per_token, expert_parallel, step_tokens):
    """Every possible step of a small router, one by one: exact, exponential."""
    size = experts_count // expert_parallel
    total = steps = 0
    for step in itertools.product(_choices(experts_count, experts_per_token), repeat=step_tokens):
        touched = set(itertools.chain.from_iterable(step))
        total += max(sum(1 for expert in touched if expert // size == rank) for rank in range(expert_parallel))
        steps += 1
    mean = Fraction(experts_count, expert_parallel) * (
        1 - (1 - Fraction(experts_per_token, experts_count)) ** step_tokens
    )
    return float(Fraction(total, steps) / mean)


@literal("rocm-inferasim:App. D.4, cache bytes by KV heads")
def _(layers_count, kv_heads_count, head_dim_count, element_bytes):
    keys = values = kv_heads_count * head_dim_count * element_bytes
    return layers_count * (keys + values)


@literal("rocm-inferasim:App. D.4, cache bytes of a latent")
def _(layers_count, latent_dim_count, rope_dim_count, element_bytes):
    return layers_count * latent_dim_count * element_bytes + layers_count * rope_dim_count * element_bytes


@literal("rocm-inferasim:App. D.4, hand-off")
def _(cache_bytes, exposed_frac, floor_s, bytes_per_s):
    return floor_s + cache_bytes * exposed_frac / bytes_per_s


@literal("rocm-inferasim:Sec. 3.4, host time per request")
def _(base_s, host_s_per_token, uncached_tokens):
    return base_s + host_s_per_token * uncached_tokens


@literal("rocm-inferasim:App. D.4, serial host time of a split")
def _(host_s, serial_frac):
    return serial_frac * host_s


@literal("rocm-inferasim:App. B.6, load from the host tier")
def _(resident_bytes, link_bytes_per_s):
    return resident_bytes / link_bytes_per_s


@literal("rocm-inferasim:Sec. 4, fusion saving")
def _(kernels_removed_count, kernel_s, intermediate_bytes, memory_bytes_per_s, realised_frac):
    write = read = intermediate_bytes / memory_bytes_per_s
    return realised_frac * (kernels_removed_count * kernel_s + write + read)


@literal("rocm-inferasim:Eq. 2")
def _(acceptance_frac):
    total = 1.0
    for i in range(1, len(acceptance_frac) + 1):
        product = 1.0
        for j in range(1, i + 1):
            product *= float(acceptance_frac[j - 1])
        total += product
    return total


@literal("rocm-inferasim:Sec. 3.6, time per output token")
def _(step_s, step_commits_tokens):
    return step_s / step_commits_tokens


@literal("rocm-inferasim:App. A.2, geometric chain")
def _(measured_tokens, chain_frac, depth_count):
    if depth_count == 0:
        return 1.0
    if depth_count <= len(measured_tokens):
        return float(measured_tokens[depth_count - 1])
    return float(measured_tokens[-1]) + sum(chain_frac**i for i in range(len(measured_tokens) + 1, depth_count + 1))


@literal("rocm-inferasim:App. A.2, entropy class")
def _(step_commits_tokens, class_ratio):
    return 1 + class_ratio * (step_commits_tokens - 1)


@literal("rocm-inferasim:App. A.2, draft cost")
def _(drafter, depth_count, backbone_s, head_s):
    total = 0.0
    for position in range(int(depth_count)):
        if drafter == "ngram":
            continue
        if drafter != "dspark" or position == 0:
            total += backbone_s
        total += head_s
    return total


@literal("rocm-inferasim:App. A.2, draft cost on an anchor")
def _(step_s, modelled_draft_s, modelled_step_s):
    return step_s * (modelled_draft_s / modelled_step_s)


@literal("inferasim:depth choice")
def _(step_s, step_commits_tokens):
    best, rate = 0, 0.0
    for depth, (s, tokens) in enumerate(zip(step_s, step_commits_tokens, strict=True)):
        if tokens / s > rate:
            best, rate = depth, tokens / s
    return best


@literal("inferasim:indexer logits")
def _(query_rows_count, context_rows_count, element_bytes):
    return query_rows_count * (context_rows_count * element_bytes)


def hypergeometric_exact(balls: int, marked: int, draws: int, hits: int) -> Fraction:
    """Chance of `hits` marked balls among `draws` without replacement."""
    return Fraction(comb(marked, hits) * comb(balls - marked, draws - hits), comb(balls, draws))
