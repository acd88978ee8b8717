"""What no simulated closed loop of a replica can beat: limits from its step table, to leave runs out of a sweep.

Each follows from the simulator's rules alone: a step of b requests costs at least their share of it, one that also
prefills at least the prompt's marginal time more, stages and ranks work side by side, contexts only grow.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simcore.stepcost.table import StepTable
from simcore.units import PS_PER_S

SLACK_FRAC = 1e-9
"""Room for rounding of integer prices."""


@dataclass(frozen=True)
class Bound:
    """Optimistic figures of one replica."""

    throughput_tokens_per_s: float
    """Not less than simulated."""
    tpot_s: float
    """Not more than simulated, as the next."""
    ttft_s: float


UNBOUNDED = Bound(float("inf"), 0.0, 0.0)


def replica_bound(
    table: StepTable,
    *,
    concurrency: int,
    running_cap: int,
    attention_dp: int,
    prompt_tokens: int,
    output_tokens: int,
) -> Bound:
    """Limits of `concurrency` clients with fixed lengths on one replica without prefix reuse.

    With N requests: duration >= N ((O - 1) min_b(s_b / b) / L + c1 P + c2 P^2) / (ranks stages). A table with a
    negative coefficient has no such limits and gets none.
    """
    most = min(concurrency, running_cap, table.max_batch)
    batch = np.arange(1, most + 1)
    base = table.decode_base_ps[1 : most + 1]
    context = table.decode_context_ps_per_token[1 : most + 1]
    window = table.decode_window_ps_per_token[1 : most + 1]
    prefill = (table.prefill_fixed_ps, table.prefill_ps_per_token, table.prefill_ps_per_token2)
    if min(base.min(), context.min(), window.min(), *prefill) < 0:
        return UNBOUNDED
    own = context * prompt_tokens + window * min(prompt_tokens, table.window_tokens)
    stages = table.pipeline_stages
    steps = max((output_tokens - 1) * 1000 / table.tokens_per_step_permille, 0.0)
    if table.tokens_per_step_permille != 1000:
        steps = max(steps - 1.0, 0.0)  # a request may catch a step that commits one token more
    marginal_ps = table.prefill_ps_per_token * prompt_tokens + table.prefill_ps_per_token2 * prompt_tokens**2
    request_ps = steps * float((base / batch + own).min()) + marginal_ps
    hops_ps = stages * table.hop_ps if stages > 1 else 0
    step_ps = float((base + own * batch).min()) + hops_ps
    host_ps = table.host_request_ps + table.host_ps_per_token * prompt_tokens
    ranks = attention_dp * stages
    loosened = (1.0 - SLACK_FRAC) / PS_PER_S
    return Bound(
        output_tokens * ranks / (request_ps * loosened) if request_ps else float("inf"),
        step_ps * steps / (output_tokens - 1) * loosened if output_tokens > 1 else 0.0,
        (host_ps + table.prefill_fixed_ps + marginal_ps + hops_ps) * loosened,
    )
