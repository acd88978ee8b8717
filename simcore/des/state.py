"""A deployment as the kernel's integer arrays; bad configurations are refused here."""

from __future__ import annotations

from typing import Final

import numpy as np

from simcore.cards.layout import Engine
from simcore.des.config import Admission, Deployment, Handoff, Pool, Routing
from simcore.des.kernel import fields as f
from simcore.des.kernel import loop, route
from simcore.des.kernel.clock import GAP_BINS
from simcore.des.kernel.fields import Ints
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
LONGEST_STEP_S: Final = 1e6
"""Eleven days: a step, a load or a hand-off that may take longer is a slip of units."""


def _positive(field: str, value: int, most: int = 1 << 40) -> None:
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
    _check_prices(name, pool, running)
    if pool.host_tier is not None:
        if not rules.prefix_caching:
            raise InputError(f"{name}.host_tier", pool.host_tier, "come with prefix_caching")
        if pool.host_tier.capacity_blocks < 1 or pool.host_tier.block_bytes < 1 or pool.host_tier.link_bytes_per_s <= 0:
            raise InputError(f"{name}.host_tier", pool.host_tier, "have positive capacity, block size and bandwidth")


def _check_prices(name: str, pool: Pool, running: int) -> None:
    """The longest step the pool can hold must stay far inside the clock. Raises InputError."""
    rules, table = pool.scheduler, pool.table
    longest = min(2 * MAX_TOKENS, rules.kv_pool_tokens)
    chunk = min(longest, rules.max_batched_tokens)
    context = int(table.decode_context_ps_per_token.max()) + int(table.decode_window_ps_per_token.max())
    decode = int(table.decode_base_ps.max()) + context * running * longest
    prefill = (
        table.prefill_fixed_ps + table.prefill_ps_per_token * chunk + table.prefill_ps_per_token2 * 2 * longest * chunk
    )
    host = table.host_request_ps + table.host_ps_per_token * longest
    load = 0.0
    if pool.host_tier is not None:
        load = pool.host_tier.block_bytes / pool.host_tier.link_bytes_per_s * PS_PER_S * longest
    slowest_s = max(decode + prefill, host, load) / PS_PER_S
    if slowest_s > LONGEST_STEP_S:
        raise InputError(
            f"{name}.table", slowest_s, f"price a full step, its host time and its loads below {LONGEST_STEP_S:g} s",
            f"contexts may reach the {rules.kv_pool_tokens} tokens of the KV pool",
        )  # fmt: skip


def running_places(pool: Pool, most_running: int | None) -> int:
    """How many requests one unit can have running."""
    cap = pool.scheduler.max_running_requests
    return cap if most_running is None else max(1, min(cap, most_running))


def _pool_row(pool: Pool, caching: bool) -> Ints:
    """One pool's rules and prices; the addresses are filled in by the caller."""
    row = np.zeros(f.P_FIELDS, np.int64)
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
    row[f.P_CACHING] = int(caching)
    row[f.P_LONGEST] = int(caching and rules.admission is Admission.LONGEST_PREFIX)
    row[f.P_RESERVE] = int(sglang)
    row[f.P_FEWEST] = int(sglang)
    row[f.P_RESERVE_PERMILLE] = rules.decode_reservation_permille
    row[f.P_RESERVE_CLIP] = rules.reservation_clip_tokens
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
    return row


class State:
    """The kernel's memory for one deployment, and how it grows.

    `m` is replaced when it grows, so never keep a view of it over a call that adds rows. Raises InputError for a bad
    deployment. `clients`: None for an open loop. `most_running`: the most requests that can be under way at once, None
    if only the schedulers bound them. `block_tokens`: size of the workload's prefix blocks, 0 when it has none.
    """

    def __init__(
        self,
        deployment: Deployment,
        *,
        clients: int | None,
        most_running: int | None,
        block_tokens: int = 0,
        spans: bool = False,
    ) -> None:
        pools = [deployment.pool] if deployment.decode_pool is None else [deployment.pool, deployment.decode_pool]
        if (deployment.decode_pool is None) != (deployment.handoff is None):
            raise InputError("handoff", deployment.handoff, "be given exactly when there is a decode pool")
        for name, pool in zip(("pool", "decode_pool"), pools, strict=False):
            check_pool(name, pool, most_running)
        caching = block_tokens > 0 and deployment.pool.scheduler.prefix_caching
        self.m: Ints = np.zeros(1 << 14, np.int64)
        self._used = 0
        self.take(f.G_FIELDS)
        self.slots = self.edges = self.sessions = self.nodes = self.event_rows = 0
        self._node_spans: list[tuple[int, int]] = []
        self.block_tokens = block_tokens
        m = self.m
        for field in (
            f.G_FREE_SLOT,
            f.G_FREE_EDGE,
            f.G_FREE_NODE,
            f.G_FREED_SESSION,
            f.G_PENDING_HEAD,
            f.G_PENDING_TAIL,
        ):
            m[field] = f.NONE
        m[f.G_OPEN] = int(clients is None)
        m[f.G_ROUTING] = ROUTINGS[deployment.routing]
        m[f.G_BLOCK_TOKENS] = block_tokens
        m[f.G_DECODE_POOL] = f.NONE
        self._place_pools(pools, most_running, caching)
        if deployment.handoff is not None:
            self._place_handoff(deployment.handoff)
        gaps = self.take(GAP_BINS)
        span = self.take(SPAN_ROWS * f.V_FIELDS) if spans else 0
        self.m[f.G_GAPS_AT] = gaps
        self.m[f.G_SPAN_AT] = span
        self.m[f.G_SPAN_ROWS] = SPAN_ROWS if spans else 0
        self._clients = clients or 0
        self._reserve_events(self._clients)
        if caching:
            self.add_nodes(min(FIRST_NODES, self._most_nodes))

    def take(self, count: int) -> int:
        """Address of `count` fresh zeros."""
        address = self._used
        self._used += count
        if self._used > len(self.m):
            grown = np.zeros(max(2 * len(self.m), self._used), np.int64)
            grown[:address] = self.m[:address]
            self.m = grown
        return address

    def rows(self, address: int, count: int, fields: int) -> Ints:
        """A (count, fields) view."""
        return self.m[address : address + count * fields].reshape(count, fields)

    def _place_pools(self, pools: list[Pool], most_running: int | None, caching: bool) -> None:
        executors = sum(pool.replicas_count * pool.table.pipeline_stages for pool in pools)
        replicas = sum(pool.replicas_count for pool in pools)
        replica_fields = f.R_STAGE0 + max(pool.table.pipeline_stages for pool in pools)
        first_executor, first_replica = self.take(executors * f.X_FIELDS), self.take(replicas * replica_fields)
        self.rows(first_executor, executors, f.X_FIELDS)[:, f.X_END] = f.NEVER
        self.m[[f.G_EXECUTOR_AT, f.G_EXECUTORS]] = first_executor, executors
        self.m[[f.G_REPLICA_AT, f.G_REPLICAS, f.G_REPLICA_FIELDS]] = first_replica, replicas, replica_fields
        self.executor_at, self.executors = first_executor, executors
        executor, replica = first_executor, first_replica
        self._most_nodes = 0
        self.units: list[int] = []
        for number, pool in enumerate(pools):
            shared = caching and number == 0
            node_blocks = max(1, -(-self.block_tokens // pool.scheduler.block_tokens))
            row = _pool_row(pool, shared)
            address = self.take(f.P_FIELDS)
            self.m[f.G_FIRST_POOL if number == 0 else f.G_DECODE_POOL] = address
            if len(pools) == 2 and number == 0:
                row[f.P_RESERVE] = 0  # a prefill server grows no output
            width = running_places(pool, most_running)
            self._place_prices(pool, row, width)
            stages, ranks = pool.table.pipeline_stages, pool.attention_dp
            units = pool.replicas_count * ranks
            first_unit = self.take(units * f.U_FIELDS)
            first_lane = self.take(units * stages * f.L_FIELDS)
            row[f.P_UNIT0] = first_unit
            row[f.P_REPLICA0] = replica
            self.m[address : address + f.P_FIELDS] = row
            blocks = pool.scheduler.kv_pool_tokens // pool.scheduler.block_tokens
            host = 0
            if shared and pool.host_tier is not None:
                host = max(1, pool.host_tier.capacity_blocks // ranks)
            self._most_nodes += units * (blocks // node_blocks + host) if shared else 0
            self._place_units(first_unit, units, first_lane, stages, address, blocks, host)
            self._place_lanes(first_lane, units * stages, width, pool.scheduler.block_tokens)
            for copy in range(pool.replicas_count):
                self.m[[replica + f.R_POOL, replica + f.R_UNIT0, replica + f.R_EXECUTOR0]] = (
                    address,
                    first_unit + copy * ranks * f.U_FIELDS,
                    executor,
                )
                rows = self.rows(first_unit + copy * ranks * f.U_FIELDS, ranks, f.U_FIELDS)
                rows[:, f.U_REPLICA] = replica
                for stage in range(stages):
                    self.m[[executor + f.X_REPLICA, executor + f.X_LANE]] = replica, stage * f.L_FIELDS
                    executor += f.X_FIELDS
                replica += replica_fields

    def _place_prices(self, pool: Pool, row: Ints, width: int) -> None:
        table = pool.table
        row[f.P_BATCHES] = width + 1
        lists = [table.decode_base_ps, table.decode_context_ps_per_token, table.decode_window_ps_per_token]
        for column, prices in zip((f.P_BASE_AT, f.P_CONTEXT_AT, f.P_WINDOW_AT), lists, strict=True):
            row[column] = self.take(width + 1)
            self.m[row[column] : row[column] + width + 1] = prices[: width + 1]
        if not row[f.P_WINDOW]:
            self.m[row[f.P_WINDOW_AT] : row[f.P_WINDOW_AT] + width + 1] = 0
        row[f.P_HOST_AT] = self.take(width + 1)
        if table.pipeline_host_ps is not None:
            host = table.pipeline_host_ps[: width + 1]
            self.m[row[f.P_HOST_AT] : row[f.P_HOST_AT] + width + 1] = np.pad(host, (0, width + 1 - len(host)), "edge")

    def _place_units(
        self, first: int, count: int, first_lane: int, stages: int, pool: int, blocks: int, host: int
    ) -> None:
        rows = self.rows(first, count, f.U_FIELDS)
        for column in (f.U_HEAD, f.U_TAIL, f.U_LRU_HEAD, f.U_LRU_TAIL, f.U_HOST_HEAD, f.U_HOST_TAIL):
            rows[:, column] = f.NONE
        rows[:, f.U_POOL] = pool
        rows[:, f.U_BLOCKS] = rows[:, f.U_FREE] = blocks
        rows[:, f.U_HOST_CAPACITY] = host
        rows[:, f.U_LANE0] = first_lane + np.arange(count) * stages * f.L_FIELDS
        self.units += [first + number * f.U_FIELDS for number in range(count)]

    def _place_lanes(self, first: int, count: int, width: int, block: int) -> None:
        sizes = (width + 1, width + 1, width + 1, width + 1, width + 1, block)
        lists = self.take(count * sum(sizes))
        rows = self.rows(first, count, f.L_FIELDS)
        for column, size in zip(
            (f.L_HEAP, f.L_LINE, f.L_CHUNK, f.L_FRESH_AT, f.L_SHORT_AT, f.L_RESIDUE), sizes, strict=True
        ):
            rows[:, column] = lists + np.arange(count) * size
            lists += count * size

    def _place_handoff(self, link: Handoff) -> None:
        negative = link.floor_s < 0 or link.bytes_per_token < 0
        if link.bytes_per_s <= 0 or negative or not 0 <= link.exposed_layer_frac <= 1:
            raise InputError("handoff", link, "have a positive bandwidth and no negative part")
        self.m[f.G_HANDOFF_FLOOR] = round(link.floor_s * PS_PER_S)
        exposed_s = link.bytes_per_token * link.exposed_layer_frac / link.bytes_per_s
        if exposed_s * MAX_TOKENS > LONGEST_STEP_S:
            raise InputError("handoff", link, f"move {MAX_TOKENS} tokens within {LONGEST_STEP_S:g} s")
        self.m[f.G_HANDOFF_PS_PER_KTOKEN] = round(exposed_s * 1000 * PS_PER_S)

    def _chain(self, address: int, count: int, fields: int, link: int, head: int) -> None:
        """Put `count` fresh rows in front of the free list whose head is scalar `head`."""
        rows = self.rows(address, count, fields)
        rows[:, link] = address + np.arange(1, count + 1) * fields
        rows[-1, link] = self.m[head]
        self.m[head] = address

    def _reserve_events(self, rows: int) -> None:
        """Room for `rows` events in all."""
        if rows <= self.event_rows:
            return
        rows = max(rows, 2 * self.event_rows)
        address = self.take(rows * f.E_FIELDS)
        used, old = int(self.m[f.G_EVENTS]) * f.E_FIELDS, int(self.m[f.G_EVENT_AT])
        self.m[address : address + used] = self.m[old : old + used]
        self.m[f.G_EVENT_AT] = address
        self.event_rows = rows

    def add_slots(self, count: int) -> None:
        """Room for `count` more requests at once, with their records."""
        self._chain(self.take(count * f.S_FIELDS), count, f.S_FIELDS, f.S_NEXT, f.G_FREE_SLOT)
        self.slots += count
        self._reserve_events(self.slots + self._clients)
        out = self.take(self.slots * f.O_FIELDS)
        used, old = int(self.m[f.G_OUT]) * f.O_FIELDS, int(self.m[f.G_OUT_AT])
        self.m[out : out + used] = self.m[old : old + used]
        self.m[f.G_OUT_AT] = out
        self.m[f.G_OUT_ROWS] = self.slots

    def add_edges(self, count: int) -> None:
        """Room for `count` more waits between requests."""
        self._chain(self.take(count * f.D_FIELDS), count, f.D_FIELDS, f.D_NEXT, f.G_FREE_EDGE)
        self.edges += count

    def add_sessions(self, count: int) -> Ints:
        """Addresses of `count` fresh session rows."""
        address = self.take(count * f.SE_FIELDS)
        return address + np.arange(count, dtype=np.int64) * f.SE_FIELDS

    def add_nodes(self, count: int) -> None:
        """Room for `count` more cached blocks."""
        address = self.take(count * f.N_FIELDS)
        self.rows(address, count, f.N_FIELDS)[:, f.N_REFERENCES] = f.NONE
        self._chain(address, count, f.N_FIELDS, f.N_NEXT, f.G_FREE_NODE)
        self._node_spans.append((address, count))
        self.nodes += count
        self.m[f.G_FREE_NODES] += count
        buckets = 1 << (2 * self.nodes).bit_length()
        table = self.take(buckets)
        self.m[table : table + buckets] = f.NONE
        self.m[f.G_BUCKET_AT] = table
        self.m[f.G_BUCKET_MASK] = buckets - 1
        for first, rows in self._node_spans:
            loop.fill_buckets(self.m, first, rows)

    @property
    def gap_sum_ps(self) -> int:
        """Of all visible gaps."""
        return int(self.m[f.G_GAP_TURNS]) * f.GAP_TURN + int(self.m[f.G_GAP_SUM])

    def take_records(self) -> Ints:
        """(records, O_FIELDS) copies of the finished requests' rows, which are then forgotten."""
        count = int(self.m[f.G_OUT])
        self.m[f.G_OUT] = 0
        return self.rows(int(self.m[f.G_OUT_AT]), count, f.O_FIELDS).copy()

    def take_spans(self) -> Ints:
        """(runs, V_FIELDS) copies of the timeline rows since the last call."""
        count = int(self.m[f.G_SPANS])
        self.m[f.G_SPANS] = 0
        return self.rows(int(self.m[f.G_SPAN_AT]), count, f.V_FIELDS).copy()

    def take_freed_sessions(self) -> list[int]:
        """Addresses of the sessions that ended since the last call."""
        freed = []
        session = int(self.m[f.G_FREED_SESSION])
        while session != f.NONE:
            freed.append(session)
            session = int(self.m[session + f.SE_NEXT])
        self.m[f.G_FREED_SESSION] = f.NONE
        return freed
