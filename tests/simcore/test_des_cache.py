"""The block cache: hit rates against independent counts, leaf-first against flat LRU, host tier, admission, routing."""

from __future__ import annotations

import json
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest

from simcore.des.config import Admission, Deployment, HostTier, Pool, Routing
from simcore.des.simulate import simulate
from simcore.des.workload.trace import open_trace
from tests.reference.des_cases import as_workload
from tests.reference.des_literal import Request
from tests.reference.des_simple import MS, colocated, flat_table, paths_in_turn, scheduler

BLOCK = 16
TRACES = Path(__file__).parents[3] / "shared" / "data" / "traces"


def flat_lru_hit_rate(paths: list[list[tuple[int, ...]]], capacity: int) -> float:
    """Blocks found by a cache that evicts the least recently touched block, whoever continues from it.

    A request touches its blocks from head to tail, so the head is the older one.
    """
    cache: OrderedDict[tuple[int, ...], None] = OrderedDict()
    found = asked = 0
    for path in paths:
        run = 0
        while run < len(path) and path[run] in cache:
            run += 1
        found += run
        asked += len(path)
        for block in path:
            cache[block] = None
            cache.move_to_end(block)
            if len(cache) > capacity:
                cache.popitem(last=False)
    return found / asked


def _sweep(contexts: int, shared: int, own: int, rounds: int) -> list[list[int]]:
    return [
        list(range(shared)) + [1000 * (context + 1) + number for number in range(own)]
        for _ in range(rounds)
        for context in range(contexts)
    ]


@pytest.mark.parametrize(
    ("contexts", "shared", "own", "pool"),
    [(10, 0, 100, 950), (10, 0, 100, 990), (10, 0, 100, 901), (8, 40, 60, 500), (8, 40, 60, 200), (4, 0, 50, 100)],
)
def test_leaf_first_keeps_heads_in_a_cyclic_sweep(contexts: int, shared: int, own: int, pool: int) -> None:
    """N contexts of S shared and U own blocks in turn, more than P blocks in all.

    When a context comes again, the N-1 others were used after it, so of its own blocks at most P - S - (N-1) U are
    left, and leaf-first leaves the head ones, which count: bound (S + max(0, P - S - (N-1) U))/(S + U). Flat LRU evicts
    each context's head first, and a prefix without its head is worth nothing: 0.
    """
    rounds = 60
    assert shared + contexts * own > pool
    rows = _sweep(contexts, shared, own, rounds)
    rules = scheduler(prefix_caching=True, kv_pool_tokens=pool * BLOCK, max_running_requests=1)
    result = simulate(colocated(flat_table(1, decode_ms=1, token_us=1), rules), paths_in_turn(rows, BLOCK))
    # one output token needs no block of its own, but admission wants room for it; hence pool-1 at worst
    bound = (shared + max(0, pool - shared - (contexts - 1) * own)) / (shared + own)
    assert result.records is not None
    warm = result.records.hit_blocks[contexts:].sum() / result.records.blocks[contexts:].sum()
    assert warm == pytest.approx(bound, abs=0.01)
    if shared == 0:
        whole = [[tuple(row[: depth + 1]) for depth in range(len(row))] for row in rows]
        assert flat_lru_hit_rate(whole, pool) == 0.0


def test_longest_prefix_admission_serves_what_is_resident() -> None:
    """Under backlog the waiting request with the longest resident prefix goes first, and a sweep that misses in arrival
    order hits: each context's turns follow one another."""
    rows = _sweep(8, 0, 20, 6)
    hits = {}
    for admission in Admission:
        rules = scheduler(prefix_caching=True, kv_pool_tokens=60 * BLOCK, max_running_requests=1, admission=admission)
        load = paths_in_turn(rows, BLOCK, clients=len(rows))
        hits[admission] = simulate(colocated(flat_table(1, decode_ms=1, token_us=1), rules), load).block_hit_rate
    assert hits[Admission.FIFO] == 0.0
    assert hits[Admission.LONGEST_PREFIX] == pytest.approx(5 / 6)


def test_host_tier_returns_what_hbm_dropped() -> None:
    """B.6: evicted blocks move down; a hit there waits for the copy, and copies queue on the link."""
    rows = _sweep(4, 0, 20, 3)
    table = flat_table(1, decode_ms=1, prefill_ms=5)
    rules = scheduler(prefix_caching=True, kv_pool_tokens=40 * BLOCK, max_running_requests=1)
    block_ms = 2.0
    tier = HostTier(capacity_blocks=200, link_bytes_per_s=1e9, block_bytes=round(block_ms * 1e6))
    result = simulate(Deployment(Pool(table, rules, host_tier=tier)), paths_in_turn(rows, BLOCK))
    records = result.records
    assert records is not None
    assert result.host_hit_rate is not None
    assert (records.hit_blocks[4:] == 20).all()
    assert (records.host_hit_blocks[4:] == 20).all()
    waits_ms = (records.first_token_ns - records.admitted_ns)[4:] / 1e6
    np.testing.assert_allclose(waits_ms, 20 * block_ms + 5)  # copy, then the one token a full hit recomputes
    small = HostTier(capacity_blocks=10, link_bytes_per_s=1e9, block_bytes=1)
    short = simulate(Deployment(Pool(table, rules, host_tier=small)), paths_in_turn(rows, BLOCK))
    assert short.block_hit_rate == 0.0  # ten head blocks at most survive one context, none a whole round


def test_loads_do_not_stall_others() -> None:
    """B.6: while one request waits for its blocks, another one runs."""
    table = flat_table(4, decode_ms=1, prefill_ms=5)
    rules = scheduler(prefix_caching=True, kv_pool_tokens=30 * 8, block_tokens=8, max_running_requests=4)
    tier = HostTier(capacity_blocks=100, link_bytes_per_s=1e9, block_bytes=50 * 10**6)  # 50 ms a block
    first, filler, other = (1, 2, 3), tuple(range(100, 129)), (7,)
    arrivals = [(0, first), (50, filler), (100, first), (101, other), (102, first)]
    requests = [
        Request(number, 8 * len(path), 3, at * MS, blocks=path, session=number)
        for number, (at, path) in enumerate(arrivals)
    ]
    result = simulate(Deployment(Pool(table, rules, host_tier=tier)), as_workload(requests, None))
    records = result.records
    assert records is not None
    rows = {int(index): row for row, index in enumerate(records.index)}
    assert [int(records.host_hit_blocks[rows[number]]) for number in range(5)] == [0, 0, 3, 0, 0]
    # three blocks take 150 ms, and the whole hit recomputes one token in 5 ms
    assert records.first_token_ns[rows[2]] == 255 * 10**6
    # meanwhile the other one is served as if alone
    assert records.finish_ns[rows[3]] - records.arrival_ns[rows[3]] == (5 + 5 + 1 + 1) * 10**6
    # and a third one shares the blocks that are on their way, which are in HBM for the cache
    assert records.hit_blocks[rows[4]] == 3


@pytest.mark.parametrize("routing", list(Routing))
def test_routing_spreads_and_completes(routing: Routing) -> None:
    rows = _sweep(12, 4, 10, 5)
    rules = scheduler(prefix_caching=True, kv_pool_tokens=400 * BLOCK, max_running_requests=4)
    pool = Pool(flat_table(4, decode_ms=1, token_us=10), rules, replicas_count=3)
    result = simulate(Deployment(pool, routing=routing), paths_in_turn(rows, BLOCK, output=4, clients=6))
    assert result.completed_count == len(rows)
    counts = [unit.requests_count for unit in result.units]
    assert sum(counts) == len(rows)
    if routing is Routing.ROUND_ROBIN:
        assert counts == [20, 20, 20]
    if routing is Routing.PREFIX_HASH:  # all share the first block
        assert sorted(counts) == [0, 0, 60]


def test_kv_aware_routing_finds_the_prefix() -> None:
    """With light load the router sends a context back to the replica that holds it; least-loaded does not look."""
    rows = [row for _ in range(6) for row in _sweep(5, 0, 30, 1)]
    rules = scheduler(prefix_caching=True, kv_pool_tokens=4000 * BLOCK, max_running_requests=4)
    pool = Pool(flat_table(4, decode_ms=1, token_us=10), rules, replicas_count=4)
    hits = {
        routing: simulate(Deployment(pool, routing=routing), paths_in_turn(rows, BLOCK, clients=2)).block_hit_rate
        for routing in (Routing.KV_AWARE, Routing.RANDOM)
    }
    assert hits[Routing.KV_AWARE] == pytest.approx(5 / 6, abs=0.05)  # two at once: now and then load outweighs a prefix
    assert (hits[Routing.RANDOM] or 0.0) < 0.6


@pytest.mark.parametrize(("name", "requests"), [("conversation_trace", 12031), ("synthetic_trace", 3993)])
def test_infinite_cache_equals_a_ten_line_count(name: str, requests: int) -> None:
    path = TRACES / "mooncake" / f"{name}.jsonl"
    if not path.is_file():
        pytest.skip("the Mooncake traces are not here")
    seen: set[int] = set()
    found = asked = 0
    for line in path.read_text().splitlines():
        ids = json.loads(line)["hash_ids"]
        run = 0
        while run < len(ids) and ids[run] in seen:
            run += 1
        seen.update(ids)
        found, asked = found + run, asked + len(ids)
    # KV blocks of one token: of larger ones a short block at the end of a prompt fills none, and is not cached
    rules = scheduler(prefix_caching=True, kv_pool_tokens=1 << 30, max_running_requests=64, block_tokens=1)
    table = flat_table(64, decode_ms=0.01, token_us=0.01)
    result = simulate(colocated(table, rules), open_trace(path))
    assert result.completed_count == requests
    assert result.block_hit_rate == found / asked


def test_prices_do_not_change_what_is_cached() -> None:
    """Hits depend on the order of admission alone: with one request at a time, not on how long a step takes."""
    rows = _sweep(5, 3, 9, 4)
    rules = scheduler(prefix_caching=True, kv_pool_tokens=30 * BLOCK, max_running_requests=1)
    hits = {
        simulate(colocated(flat_table(1, decode_ms=d, token_us=d), rules), paths_in_turn(rows, BLOCK)).block_hit_rate
        for d in (0.1, 1, 50)
    }
    assert len(hits) == 1
    assert MS == 10**9


def _trace(folder: Path, *rows: tuple[int, list[int]]) -> Path:
    path = folder / "trace.jsonl"
    records = (
        {"timestamp": 1000 * number, "input_length": tokens, "output_length": 4, "hash_ids": ids}
        for number, (tokens, ids) in enumerate(rows)
    )
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


@pytest.mark.parametrize(("blocks", "served"), [(44, 1), (43, 0)])
def test_a_request_takes_the_kv_blocks_of_its_tokens(tmp_path: Path, blocks: int, served: int) -> None:
    """700 + 4 tokens are 44 blocks of 16, whether hashed in blocks of 512 or not: the second 512 holds 188 of them."""
    rules = scheduler(prefix_caching=True, kv_pool_tokens=blocks * 16, block_tokens=16)
    result = simulate(colocated(flat_table(64, decode_ms=1), rules), open_trace(_trace(tmp_path, (700, [1, 2]))))
    assert (result.completed_count, result.rejected_count) == (served, 1 - served)
    assert result.units[0].peak_kv_blocks == blocks * served


def test_only_full_kv_blocks_are_found(tmp_path: Path) -> None:
    """Blocks of 512 in an engine with blocks of 768: of 1,024 tokens in common one block is full. The same prompt again
    finds its two full blocks; one that fills no block finds nothing.
    """
    rows = [(1600, [1, 2, 3, 4]), (1536, [1, 2, 9]), (1600, [1, 2, 3, 4]), (700, [5, 6]), (700, [5, 6])]
    rules = scheduler(prefix_caching=True, kv_pool_tokens=768 * 20, block_tokens=768)
    result = simulate(colocated(flat_table(64, decode_ms=1), rules), open_trace(_trace(tmp_path, *rows)))
    assert result.records is not None
    assert result.records.hit_tokens.tolist() == [0, 768, 1536, 0, 0]


def test_a_block_with_other_tokens_in_it_is_another_block(tmp_path: Path) -> None:
    """A trace whose last id stands for 188 tokens once and for 512 later: the short one is not what the long one is."""
    rows = [(700, [1, 2]), (1024, [1, 2]), (700, [1, 2])]
    rules = scheduler(prefix_caching=True, kv_pool_tokens=16 * 1000, block_tokens=16)
    result = simulate(colocated(flat_table(64, decode_ms=1), rules), open_trace(_trace(tmp_path, *rows)))
    assert result.records is not None
    assert result.records.hit_tokens.tolist() == [0, 512, 688]
