"""A deployment as the kernel's integer arrays; bad configurations are refused here."""

from __future__ import annotations

from typing import Final

import numpy as np

from simcore.cards.layout import Engine
from simcore.des.config import Admission, Deployment, Pool, Routing
from simcore.des.kernel import fields as f
from simcore.des.kernel import route
from simcore.des.kernel.clock import GAP_BINS
from simcore.des.kernel.fields import Ints, Sim
from simcore.errors import InputError
from simcore.units import PS_PER_S

ROUTINGS: Final = {
    Routing.LEAST_LOADED: route.LEAST_LOADED,
    Routing.KV_AWARE: route.KV_AWARE,
    Routing.PREFIX_HASH: route.PREFIX_HASH,
    Routing.ROUND_ROBIN: route.ROUND_ROBIN,
    Routing.RANDOM: route.RANDOM,
}
FIRST_NODES: Final = 1 << 14
SPAN_ROWS: Final = 1 << 16
MAX_TOKENS: Final = 1 << 30
COLUMNS: Final = 8
"""prompt, output, timestamp_ps, delay_ps, leaf, blocks, draw, session: the columns `kernel.loop.load` reads."""


def _positive(field: str, value: int, most: int = MAX_TOKENS) -> None:
    if not isinstance(value, (int, np.integer)) or not 1 <= value <= most:
        raise InputError(field, value, f"be an integer from 1 to {most}")


def check_pool(name: str, pool: Pool, most_running: int | None) -> None:
    """Refuse a pool no engine would start. Raises InputError.

    `most_running`: the most requests that can ever run at once, where the load bounds them (closed loop).
    """
    rules, table = pool.scheduler, pool.table
    for field in ("max_running_requests", "max_batched_tokens", "chunk_tokens", "kv_pool_tokens", "block_tokens"):
        _positive(f"{name}.scheduler.{field}", getattr(rules, field))
    for field in ("replicas_count", "attention_dp", "gpus_per_replica_count"):
        _positive(f"{name}.{field}", getattr(pool, field), 4096)
    _positive(f"{name}.table.pipeline_stages", table.pipeline_stages, 64)
    _positive(f"{name}.table.tokens_per_step_permille", table.tokens_per_step_permille, 64_000)
    if table.tokens_per_step_permille < 1000:
        raise InputError(
            f"{name}.table.tokens_per_step_permille", table.tokens_per_step_permille, "be at least 1000 (one token)"
        )
    if rules.block_tokens > rules.kv_pool_tokens:
        raise InputError(f"{name}.scheduler.kv_pool_tokens", rules.kv_pool_tokens, "hold at least one block")
    if rules.engine is Engine.VLLM and rules.max_batched_tokens < rules.max_running_requests:
        raise InputError(
            f"{name}.scheduler.max_batched_tokens",
            rules.max_batched_tokens,
            f"be at least max_running_requests ({rules.max_running_requests}), as vLLM demands",
        )
    if not 0 <= rules.decode_reservation_permille <= 1000:
        raise InputError(
            f"{name}.scheduler.decode_reservation_permille", rules.decode_reservation_permille, "be from 0 to 1000"
        )
    running = running_places(pool, most_running)
    if running > table.max_batch:
        raise InputError(
            f"{name}.scheduler.max_running_requests",
            rules.max_running_requests,
            f"be at most the largest priced batch ({table.max_batch})",
            "price larger batches or lower the cap",
        )
    if pool.host_tier is not None:
        if not rules.prefix_caching:
            raise InputError(f"{name}.host_tier", pool.host_tier, "come with prefix_caching")
        if pool.host_tier.capacity_blocks < 1 or pool.host_tier.block_bytes < 1 or pool.host_tier.link_bytes_per_s <= 0:
            raise InputError(f"{name}.host_tier", pool.host_tier, "have positive capacity, block size and bandwidth")


def running_places(pool: Pool, most_running: int | None) -> int:
    """How many requests one unit can have running."""
    cap = pool.scheduler.max_running_requests
    return cap if most_running is None else max(1, min(cap, most_running))


def _pool_row(pool: Pool, row: Ints, node_blocks: int) -> None:
    rules, table = pool.scheduler, pool.table
    sglang, atom = rules.engine is Engine.SGLANG, rules.engine is Engine.ATOM
    row[f.P_RANKS] = pool.attention_dp
    row[f.P_REPLICAS] = pool.replicas_count
    row[f.P_UNITS] = pool.replicas_count * pool.attention_dp
    row[f.P_STAGES] = table.pipeline_stages
    mixed = not atom and (not sglang or rules.mixed_chunk)
    row[f.P_HABIT] = f.MIXED if mixed else f.PREFILL_WHOLE if atom else f.PREFILL_FIRST
    row[f.P_CAP] = rules.max_running_requests
    row[f.P_BUDGET] = min(rules.max_batched_tokens, rules.chunk_tokens) if sglang else rules.max_batched_tokens
    row[f.P_CHUNK] = rules.max_batched_tokens if atom else min(rules.chunk_tokens, rules.max_batched_tokens)
    row[f.P_BLOCK] = rules.block_tokens
    row[f.P_CACHING] = int(rules.prefix_caching)
    row[f.P_LONGEST] = int(rules.prefix_caching and rules.admission is Admission.LONGEST_PREFIX)
    row[f.P_RESERVE] = int(sglang)
    row[f.P_FEWEST] = int(sglang)
    row[f.P_RESERVE_PERMILLE] = rules.decode_reservation_permille
    row[f.P_RESERVE_CLIP] = rules.reservation_clip_tokens
    row[f.P_NODE_BLOCKS] = node_blocks
    if pool.host_tier is not None:
        row[f.P_LOAD_PS] = round(pool.host_tier.block_bytes / pool.host_tier.link_bytes_per_s * PS_PER_S)
    has_window = bool(np.any(table.decode_window_ps_per_token))
    row[f.P_WINDOW] = table.window_tokens if has_window else 0
    row[f.P_PREFILL_FIXED] = table.prefill_fixed_ps
    row[f.P_PREFILL_TOKEN] = table.prefill_ps_per_token
    row[f.P_PREFILL_SQUARE] = table.prefill_ps_per_token2
    row[f.P_SHARED] = table.mixed_shared_ps
    row[f.P_HOST] = table.host_request_ps
    row[f.P_HOST_TOKEN] = table.host_ps_per_token
    row[f.P_HOP] = table.hop_ps
    row[f.P_BURST] = table.tokens_per_step_permille


def build(
    deployment: Deployment,
    *,
    is_open: bool,
    clients: int,
    slots: int,
    edges: int = 0,
    sessions: int = 0,
    arena: int = 0,
    block_tokens: int = 0,
    spans: bool = False,
) -> Sim:
    """Empty state for a deployment. Raises InputError.

    `block_tokens`: size of the workload's prefix blocks, 0 when it has none. `slots`, `edges`, `sessions`, `arena`:
    rows to start with.
    """
    pools = [deployment.pool] if deployment.decode_pool is None else [deployment.pool, deployment.decode_pool]
    if (deployment.decode_pool is None) != (deployment.handoff is None):
        raise InputError("handoff", deployment.handoff, "be given exactly when there is a decode pool")
    most_running = None if is_open else clients
    for name, pool in zip(("pool", "decode_pool"), pools, strict=False):
        check_pool(name, pool, most_running)
    caching = block_tokens > 0 and deployment.pool.scheduler.prefix_caching
    width = max(running_places(pool, most_running) for pool in pools)
    block = max(pool.scheduler.block_tokens for pool in pools)
    rules = np.zeros((len(pools), f.P_FIELDS), np.int64)
    table = np.zeros((len(pools), f.T_ROWS, width + 1), np.int64)
    units = [pool.replicas_count * pool.attention_dp for pool in pools]
    executors = [pool.replicas_count * pool.table.pipeline_stages for pool in pools]
    stages = max(pool.table.pipeline_stages for pool in pools)
    unit = np.zeros((sum(units), f.U_FIELDS), np.int64)
    executor = np.zeros((sum(executors), f.X_FIELDS), np.int64)
    replica = np.zeros((sum(pool.replicas_count for pool in pools), f.R_STAGE0 + stages), np.int64)
    lanes = sum(count * pool.table.pipeline_stages for count, pool in zip(units, pools, strict=True))
    for column in (f.U_HEAD, f.U_TAIL, f.U_LRU_HEAD, f.U_LRU_TAIL, f.U_HOST_HEAD, f.U_HOST_TAIL):
        unit[:, column] = f.NONE
    executor[:, f.X_END] = f.NEVER
    at_unit = at_executor = at_replica = at_lane = 0
    node_total = 0
    for number, pool in enumerate(pools):
        node_blocks = max(1, -(-block_tokens // pool.scheduler.block_tokens))
        _pool_row(pool, rules[number], node_blocks)
        rules[number, f.P_CACHING] &= int(caching and number == 0)
        rules[number, f.P_LONGEST] &= rules[number, f.P_CACHING]
        rules[number, f.P_UNIT0] = at_unit
        rules[number, f.P_REPLICA0] = at_replica
        columns = min(width, pool.table.max_batch) + 1
        table[number, f.T_BASE, :columns] = pool.table.decode_base_ps[:columns]
        table[number, f.T_CONTEXT, :columns] = pool.table.decode_context_ps_per_token[:columns]
        if rules[number, f.P_WINDOW]:
            table[number, f.T_WINDOW, :columns] = pool.table.decode_window_ps_per_token[:columns]
        if pool.table.pipeline_host_ps is not None:
            columns = min(columns, len(pool.table.pipeline_host_ps))
            table[number, f.T_HOST, :columns] = pool.table.pipeline_host_ps[:columns]
            table[number, f.T_HOST, columns:] = pool.table.pipeline_host_ps[columns - 1]
        blocks = pool.scheduler.kv_pool_tokens // pool.scheduler.block_tokens
        host = 0 if pool.host_tier is None else max(1, pool.host_tier.capacity_blocks // pool.attention_dp)
        for copy in range(pool.replicas_count):
            replica[at_replica, f.R_POOL] = number
            replica[at_replica, f.R_UNIT0] = at_unit
            replica[at_replica, f.R_EXECUTOR0] = at_executor
            for _ in range(pool.attention_dp):
                unit[at_unit, f.U_POOL] = number
                unit[at_unit, f.U_REPLICA] = at_replica
                unit[at_unit, f.U_LANE0] = at_lane
                unit[at_unit, f.U_BLOCKS] = unit[at_unit, f.U_FREE] = blocks
                unit[at_unit, f.U_HOST_CAPACITY] = host if caching else 0
                node_total += blocks // node_blocks + host
                at_unit += 1
                at_lane += pool.table.pipeline_stages
            for stage in range(pool.table.pipeline_stages):
                executor[at_executor, f.X_REPLICA] = at_replica
                executor[at_executor, f.X_LANE] = stage
                at_executor += 1
            at_replica += 1
            del copy
    nodes = min(FIRST_NODES, node_total) if caching else 0
    scalars = np.zeros(f.G_FIELDS, np.int64)
    scalars[f.G_OPEN] = int(is_open)
    scalars[f.G_ROUTING] = ROUTINGS[deployment.routing]
    scalars[f.G_DECODE_POOL] = f.NONE if deployment.decode_pool is None else 1
    scalars[f.G_BLOCK_TOKENS] = block_tokens
    scalars[f.G_SPANS_ON] = int(spans)
    scalars[f.G_FREE_SLOTS] = slots
    scalars[f.G_FREE_EDGES] = edges
    scalars[f.G_FREE_NODES] = nodes
    buckets = 1 << max(1, 2 * nodes - 1).bit_length()
    scalars[f.G_BUCKET_MASK] = buckets - 1
    if deployment.handoff is not None:
        link = deployment.handoff
        if link.bytes_per_s <= 0 or link.floor_s < 0 or link.bytes_per_token < 0 or not 0 <= link.exposed_layer_frac <= 1:
            raise InputError("handoff", link, "have a positive bandwidth and no negative part")
        scalars[f.G_HANDOFF_FLOOR] = round(link.floor_s * PS_PER_S)
        exposed = link.bytes_per_token * link.exposed_layer_frac / link.bytes_per_s
        scalars[f.G_HANDOFF_PS_PER_KTOKEN] = round(exposed * 1000 * PS_PER_S)
    return Sim(
        scalars=scalars,
        pool=rules,
        table=table,
        slot=np.zeros((slots, f.S_FIELDS), np.int64),
        unit=unit,
        lane=np.zeros((lanes, f.L_FIELDS), np.int64),
        executor=executor,
        replica=replica,
        heap=np.zeros((lanes, width + 1), np.int64),
        prefill=np.zeros((lanes, width + 1), np.int64),
        chunk=np.zeros((lanes, width + 1), np.int64),
        fresh=np.zeros((lanes, width + 1), np.int64),
        short=np.zeros((lanes, width + 1), np.int64),
        residue=np.zeros((lanes, block), np.int64),
        event=np.zeros((slots + clients + 1, f.E_FIELDS), np.int64),
        node=np.zeros((nodes, f.N_FIELDS), np.int64),
        bucket=np.full(buckets, f.NONE, np.int64),
        arena=np.zeros((arena, f.A_FIELDS), np.int64),
        edge=np.zeros((edges, 2), np.int64),
        session=np.zeros((sessions, f.SE_FIELDS), np.int64),
        pending=np.zeros(sessions, np.int64),
        free_slot=np.arange(slots - 1, -1, -1, dtype=np.int64),
        free_edge=np.arange(edges - 1, -1, -1, dtype=np.int64),
        free_node=np.arange(nodes - 1, -1, -1, dtype=np.int64),
        freed_session=np.zeros(sessions, np.int64),
        out=np.zeros((slots, f.O_FIELDS), np.int64),
        gaps=np.zeros(GAP_BINS, np.int64),
        span=np.zeros((SPAN_ROWS if spans else 0, f.V_FIELDS), np.int64),
    )
