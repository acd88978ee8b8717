"""The simulator, written out: every step is stepped, every request counts its own tokens, every list is scanned.

Nothing here is fast or shared with `simcore.des`; only its configuration classes are read. `test_des_twins.py` demands
that both give the same records to the picosecond. The rules are those of docs/simulator.md.
"""

from __future__ import annotations

import heapq
from collections import Counter
from dataclasses import dataclass, field

from simcore.cards.layout import Engine
from simcore.des.config import Admission, Deployment, Pool, Routing

DATA, CLIENT, RELEASE = 1, 2, 3
LOOK_AHEAD = 1024


@dataclass(eq=False)
class Request:
    """One request; the first block of fields is the workload's, the rest is what happens to it."""

    index: int
    prompt: int
    output: int
    timestamp_ps: int = 0
    delay_ps: int = 0
    blocks: tuple[object, ...] = ()
    session: int = 0
    waits_for: tuple[int, ...] = ()
    draw: int = 0

    pending: int = 0
    ready_ps: int = 0
    arrival_ps: int = 0
    admitted_ps: int = 0
    first_ps: int = 0
    last_ps: int = 0
    host_ps: int = 0
    bill_ps: int = 0
    sequence: int = 0
    unit: Unit | None = None
    prefill_unit: Unit | None = None
    lane: int = 0
    state: str = "new"
    emitted: int = 0
    computed: int = 0
    target: int = 0
    chunk: int = 0
    held: int = 0
    covered: int = 0
    path: tuple[object, ...] = ()
    hit: int = 0
    host_hit: int = 0
    hit_blocks: int = 0
    host_blocks: int = 0
    preemptions: int = 0
    estimate: int = 0

    @property
    def context(self) -> int:
        return self.prompt + self.emitted


@dataclass(eq=False)
class Node:
    size: int
    """KV blocks of the engine that end in it."""
    references: int = 0
    stamp: int = 0
    in_host: bool = False


@dataclass(eq=False)
class Unit:
    """One attention-DP rank."""

    number: int
    pool_number: int
    pool: Pool
    replica: Replica
    blocks: int
    block_tokens: int
    caching: bool
    host_capacity: int
    waiting: list[Request] = field(default_factory=list)
    lanes: list[list[Request]] = field(default_factory=list)
    loading: list[Request] = field(default_factory=list)
    holding: list[Request] = field(default_factory=list)
    nodes: dict[tuple[object, ...], Node] = field(default_factory=dict)
    clock: int = 0
    blocked: bool = False
    outstanding: list[Request] = field(default_factory=list)
    link_free_ps: int = 0
    peak: int = 0
    held_ps: int = 0
    preemptions: int = 0

    # the pool of KV blocks -------------------------------------------------------------------------------------------
    def in_hbm(self) -> list[Node]:
        return [node for node in self.nodes.values() if not node.in_host]

    def private(self) -> int:
        return sum(request.held for request in [r for lane in self.lanes for r in lane] + self.loading + self.holding)

    def free(self) -> int:
        return self.blocks - self.private() - sum(node.size for node in self.in_hbm())

    def available(self) -> int:
        return self.free() + sum(node.size for node in self.in_hbm() if node.references == 0)

    def filled(self, request: Request, depth: int) -> int:
        """KV blocks of the engine that the first `depth` prefix blocks of the prompt fill."""
        tokens = request.prompt if depth * self.block_tokens > request.prompt else depth * self.block_tokens
        return tokens // self.pool.scheduler.block_tokens

    def found_tokens(self, request: Request, depth: int, target: int) -> int:
        """Tokens of the full KV blocks found, with at least one token left to compute."""
        block = self.pool.scheduler.block_tokens
        found = self.filled(request, depth) * block
        while found >= target:
            found -= block
        return found

    def note_peak(self) -> None:
        self.peak = max(self.peak, self.blocks - self.available())

    def resident(self, blocks: tuple[object, ...]) -> int:
        depth = 0
        while depth < len(blocks) and blocks[: depth + 1] in self.nodes:
            depth += 1
        return depth

    def evict_one(self) -> None:
        """The least recently used block in HBM that nobody uses and that no HBM block continues."""
        parents = {path[:-1] for path, node in self.nodes.items() if not node.in_host}
        leaves = [
            (node.stamp, path)
            for path, node in self.nodes.items()
            if not node.in_host and node.references == 0 and path not in parents
        ]
        _, path = min(leaves)
        if self.host_capacity == 0:
            del self.nodes[path]
            return
        below = [(node.stamp, other) for other, node in self.nodes.items() if node.in_host]
        if len(below) == self.host_capacity:
            del self.nodes[min(below)[1]]
        self.clock += 1
        self.nodes[path].in_host = True
        self.nodes[path].stamp = self.clock

    def make_free(self, blocks: int) -> None:
        while self.free() < blocks:
            self.evict_one()

    def take_path(self, request: Request) -> None:
        known = self.resident(request.blocks)
        back = 0
        for depth in range(1, known + 1):
            node = self.nodes[request.blocks[:depth]]
            node.references += 1
            back += node.in_host
        promoted = [self.nodes[request.blocks[:depth]] for depth in range(1, known + 1)]
        promoted = [node for node in promoted if node.in_host]
        # they leave the host tier before anything is evicted into it, but take their place in HBM after
        for node in promoted:
            node.in_host = False
        fresh = {
            request.blocks[:depth]: Node(self.filled(request, depth) - self.filled(request, depth - 1), references=1)
            for depth in range(known + 1, len(request.blocks) + 1)
        }
        while self.free() < sum(node.size for node in fresh.values()):
            self.evict_one()
        self.nodes |= fresh
        request.path = request.blocks

    def drop_path(self, request: Request) -> None:
        for depth in range(len(request.path), 0, -1):
            node = self.nodes[request.path[:depth]]
            node.references -= 1
            if node.references == 0:
                self.clock += 1
                node.stamp = self.clock
        request.path = ()

    def let_go(self, request: Request) -> None:
        request.held = 0
        self.drop_path(request)
        self.blocked = False

    # who runs --------------------------------------------------------------------------------------------------------
    def running(self) -> int:
        return sum(len(lane) for lane in self.lanes) + len(self.loading)

    def admitted(self, lane: int) -> int:
        return len(self.lanes[lane]) + sum(request.lane == lane for request in self.loading)

    def decoders(self, lane: int) -> list[Request]:
        return [request for request in self.lanes[lane] if request.state == "decoding"]

    def prefilling(self, lane: int) -> list[Request]:
        found = [request for request in self.lanes[lane] if request.state == "prefilling"]
        return sorted(found, key=lambda request: request.sequence)

    def leave(self, request: Request) -> None:
        for lane in self.lanes:
            if request in lane:
                lane.remove(request)
        self.blocked = False

    def line_up(self, request: Request) -> None:
        self.waiting.append(request)
        self.waiting.sort(key=lambda other: other.sequence)


@dataclass(eq=False)
class Executor:
    replica: Replica
    number: int
    lane: int
    start_ps: int = 0
    end_ps: int | None = None
    ready_ps: int = 0
    decode_steps: int = 0
    decodes: list[bool] = field(default_factory=list)
    busy_ps: int = 0


@dataclass(eq=False)
class Replica:
    number: int
    pool: Pool
    units: list[Unit] = field(default_factory=list)
    executors: list[Executor] = field(default_factory=list)
    stage_free_ps: list[int] = field(default_factory=list)
    link_free_ps: int = 0
    wake: bool = False


def blocks_for(tokens: int, block: int) -> int:
    return -(-tokens // block)


@dataclass
class Result:
    records: list[tuple[int, ...]]
    """index, rejected, arrival, admitted, first, finish, host (ps), prompt, output, hit, host hit, blocks, hit blocks,
    host blocks, unit, prefill unit, preemptions; in order of completion"""
    gaps_ps: Counter[int]
    peaks: list[int]
    preemptions: list[int]
    resident: list[int]
    held_ps: list[int]
    """KV blocks in use times picoseconds, by unit"""
    now_ps: int
    steps: int


class Literal:
    def __init__(self, deployment: Deployment, requests: list[Request], clients: int | None, block_tokens: int) -> None:
        self.deployment = deployment
        self.requests = requests
        self.clients = clients
        self.block_tokens = block_tokens
        self.split = deployment.decode_pool is not None
        self.replicas: list[Replica] = []
        self.pools: list[list[Unit]] = []
        self.executors: list[Executor] = []
        for pool_number, pool in enumerate(filter(None, (deployment.pool, deployment.decode_pool))):
            units: list[Unit] = []
            for _ in range(pool.replicas_count):
                replica = Replica(len(self.replicas), pool, stage_free_ps=[0] * pool.table.pipeline_stages)
                self.replicas.append(replica)
                caching = pool.scheduler.prefix_caching and block_tokens > 0 and pool_number == 0
                host = pool.host_tier.capacity_blocks // pool.attention_dp if pool.host_tier and caching else 0
                for _ in range(pool.attention_dp):
                    unit = Unit(
                        sum(len(some.units) for some in self.replicas),
                        pool_number,
                        pool,
                        replica,
                        blocks=pool.scheduler.kv_pool_tokens // pool.scheduler.block_tokens,
                        block_tokens=block_tokens,
                        caching=caching,
                        host_capacity=max(1, host) if pool.host_tier and caching else 0,
                        lanes=[[] for _ in range(pool.table.pipeline_stages)],
                    )
                    replica.units.append(unit)
                    units.append(unit)
                for lane in range(pool.table.pipeline_stages):
                    executor = Executor(replica, len(self.executors), lane)
                    replica.executors.append(executor)
                    self.executors.append(executor)
            self.pools.append(units)
        self.events: list[tuple[int, int, int, int]] = []
        self.sequence = 0
        self.turn = 0
        self.now = 0
        self.steps = 0
        self.records: list[tuple[int, ...]] = []
        self.gaps: Counter[int] = Counter()
        self.sessions: dict[int, list[Request]] = {}
        first = self.pools[0][0]
        for request in requests:
            # a block that this prompt fills only in part is another one than the same block in full
            unfilled = len(request.blocks) * block_tokens - request.prompt
            if unfilled > 0:
                request.blocks = (*request.blocks[:-1], (request.blocks[-1], unfilled))
            # a block at the end that fills no KV block of the engine is not cached
            while first.caching and request.blocks:
                if first.filled(request, len(request.blocks)) > first.filled(request, len(request.blocks) - 1):
                    break
                request.blocks = request.blocks[:-1]
            request.pending = len(request.waits_for)
            self.sessions.setdefault(request.session, []).append(request)
        self.left = {session: len(members) for session, members in self.sessions.items()}
        self.session_end = dict.fromkeys(self.sessions, 0)
        self.client_of: dict[int, int] = {}
        self.next_session = sorted(self.sessions)

    # loads -----------------------------------------------------------------------------------------------------------
    def run(self) -> Result:
        if self.clients is None:
            for request in self.requests:
                if request.pending == 0:
                    heapq.heappush(self.events, (request.timestamp_ps, RELEASE, request.index, request.index))
        else:
            for client in range(self.clients):
                heapq.heappush(self.events, (0, CLIENT, client, client))
        while True:
            times = [executor.end_ps for executor in self.executors if executor.end_ps is not None]
            times += [self.events[0][0]] if self.events else []
            for replica in self.replicas:
                if replica.wake:
                    times.append(max(self.now, replica.stage_free_ps[0]) if len(replica.executors) > 1 else self.now)
            if not times:
                break
            for unit in [unit for pool in self.pools for unit in pool]:
                unit.held_ps += (unit.blocks - unit.available()) * (min(times) - self.now)
            self.now = min(times)
            for executor in self.executors:
                if executor.end_ps == self.now:
                    self.end_step(executor)
                    executor.replica.wake = True
            while self.events and self.events[0][0] == self.now:
                _, kind, _, which = heapq.heappop(self.events)
                if kind == CLIENT:
                    self.client_free(which)
                elif kind == RELEASE:
                    self.arrive(self.requests[which])
                else:
                    self.data_arrived(self.requests[which])
            for replica in self.replicas:
                if replica.wake:
                    self.start_replica(replica)
        units = [unit for pool in self.pools for unit in pool]
        return Result(
            self.records,
            self.gaps,
            [unit.peak for unit in units],
            [unit.preemptions for unit in units],
            [len(unit.in_hbm()) for unit in units],
            [unit.held_ps for unit in units],
            self.now,
            self.steps,
        )

    def client_free(self, client: int) -> None:
        if not self.next_session:
            return
        session = self.next_session.pop(0)
        self.client_of[session] = client
        for request in self.sessions[session]:
            if request.pending == 0:
                heapq.heappush(self.events, (self.now + request.delay_ps, RELEASE, request.index, request.index))

    # the router ------------------------------------------------------------------------------------------------------
    def arrive(self, request: Request) -> None:
        request.arrival_ps = self.now
        request.state = "waiting"
        if self.never_fits(request):
            self.complete(request, rejected=True)
            return
        unit = self.route(request)
        request.prefill_unit = unit
        self.deliver(unit, request)

    def never_fits(self, request: Request) -> bool:
        unit = self.pools[0][0]
        rules = unit.pool.scheduler
        output = 0 if self.split else request.output
        if blocks_for(request.prompt + output, rules.block_tokens) > unit.blocks:
            return True
        if not self.split:
            return False
        there = self.pools[1][0]
        return blocks_for(request.prompt + request.output, there.pool.scheduler.block_tokens) > there.blocks

    def route(self, request: Request) -> Unit:
        units = self.pools[0]
        pool = self.deployment.pool
        policy = self.deployment.routing

        def interleaved(number: int) -> Unit:
            number %= len(units)
            return units[number % pool.replicas_count * pool.attention_dp + number // pool.replicas_count]

        if policy is Routing.LEAST_LOADED:
            return min(units, key=lambda unit: (len(unit.outstanding), unit.number))
        if policy is Routing.ROUND_ROBIN:
            self.turn += 1
            return interleaved(self.turn - 1)
        if policy is Routing.RANDOM:
            return interleaved(request.draw)
        if policy is Routing.PREFIX_HASH:
            raise NotImplementedError("checked by its own test: the hash is not part of the rules")

        def uncached(unit: Unit) -> int:
            depth = unit.resident(request.blocks) if unit.caching else 0
            return request.prompt - unit.found_tokens(request, depth, request.prompt)

        def cost(unit: Unit) -> int:
            pending = sum(other.estimate for other in unit.outstanding)
            return uncached(unit) + pending + sum(other.prompt for other in unit.outstanding)

        best = min(units, key=lambda unit: (cost(unit), unit.number))
        request.estimate = uncached(best)
        return best

    def deliver(self, unit: Unit, request: Request) -> None:
        request.sequence = self.sequence
        self.sequence += 1
        request.unit = unit
        unit.outstanding.append(request)
        unit.blocked = False
        unit.line_up(request)
        unit.replica.wake = True

    def data_arrived(self, request: Request) -> None:
        unit = request.unit
        assert unit is not None
        unit.replica.wake = True
        if request.state == "loading":
            unit.loading.remove(request)
            request.state = "prefilling"
            unit.lanes[request.lane].append(request)
            return
        unit.holding.remove(request)
        unit.let_go(request)
        unit.outstanding.remove(request)
        request.estimate = 0
        request.state = "handed"
        there = min(self.pools[1], key=lambda other: (len(other.outstanding), other.number))
        request.blocks = ()
        self.deliver(there, request)

    # steps -----------------------------------------------------------------------------------------------------------
    def start_replica(self, replica: Replica) -> None:
        if len(replica.executors) == 1:
            replica.wake = False
            if replica.executors[0].end_ps is None:
                self.start_step(replica.executors[0])
            return
        for executor in sorted(replica.executors, key=lambda one: (one.ready_ps, one.number)):
            if replica.stage_free_ps[0] > self.now:
                return
            if executor.end_ps is None:
                self.start_step(executor)
        if replica.stage_free_ps[0] <= self.now:
            replica.wake = False

    def start_step(self, executor: Executor) -> None:
        replica = executor.replica
        prices = []
        executor.decodes = []
        batch = 0
        for unit in replica.units:
            preempted, decodes = self.compose(unit, executor.lane)
            if preempted and not decodes and not any(r.chunk for r in unit.lanes[executor.lane]):
                preempted, decodes = self.compose(unit, executor.lane)
            executor.decodes.append(decodes)
            chunks = [request for request in unit.prefilling(executor.lane) if request.chunk]
            if decodes or chunks:
                prices.append(self.price(unit, executor.lane, decodes))
                batch = max(
                    batch,
                    decodes * len(unit.decoders(executor.lane)) + bool(chunks) * len(unit.prefilling(executor.lane)),
                )
            for request in chunks:
                request.bill_ps = 0
        if not prices:
            return
        self.steps += 1
        price = max(prices)
        executor.start_ps = self.now
        stages = len(replica.executors)
        if stages == 1:
            executor.end_ps = self.now + price
            return
        table = replica.pool.table
        busy = sum(any(unit.lanes[lane] for unit in replica.units) for lane in range(stages))
        host = 0
        if busy > 1 and table.pipeline_host_ps is not None:
            host = int(table.pipeline_host_ps[min(batch, len(table.pipeline_host_ps) - 1)])
        at = self.now
        for stage in range(stages):
            work = price // stages if stage else price - (stages - 1) * (price // stages)
            begin = max(at, replica.stage_free_ps[stage])
            replica.stage_free_ps[stage] = begin + work + host
            at = begin + work + host + table.hop_ps
        executor.end_ps = at

    def price(self, unit: Unit, lane: int, decodes: bool) -> int:
        table = unit.pool.table
        contexts = [request.context for request in unit.decoders(lane)] if decodes else []
        chunks = [(request.computed, request.chunk) for request in unit.prefilling(lane) if request.chunk]
        price = table.price_ps(
            len(contexts),
            sum(contexts),
            sum(min(context, table.window_tokens) for context in contexts),
            sum(new for _, new in chunks),
            sum((before + new) ** 2 - before**2 for before, new in chunks),
        )
        return price + sum(request.bill_ps for request in unit.prefilling(lane) if request.chunk)

    def compose(self, unit: Unit, lane: int) -> tuple[bool, bool]:
        rules = unit.pool.scheduler
        atom = rules.engine is Engine.ATOM
        sglang = rules.engine is Engine.SGLANG
        mixed = rules.engine is Engine.VLLM or (sglang and rules.mixed_chunk)
        budget = min(rules.max_batched_tokens, rules.chunk_tokens) if sglang else rules.max_batched_tokens
        most = rules.max_batched_tokens if atom else min(rules.chunk_tokens, rules.max_batched_tokens)
        preempted = False
        for request in unit.lanes[lane]:
            request.chunk = 0
        if mixed and unit.decoders(lane):
            preempted = self.make_room(unit, lane)
            budget -= len(unit.decoders(lane))
        for request in unit.prefilling(lane):
            request.chunk = min(request.target - request.computed, most, max(budget, 0))
            budget -= request.chunk
        if not preempted and not unit.blocked:
            self.admit(unit, lane, budget, most, mixed=mixed, whole=atom, sglang=sglang)
        chunks = any(request.chunk for request in unit.prefilling(lane))
        if not mixed and not chunks and unit.decoders(lane):
            preempted = self.make_room(unit, lane)
        return preempted, bool(unit.decoders(lane)) and (mixed or not chunks)

    def make_room(self, unit: Unit, lane: int) -> bool:
        """Each decoder gets the blocks of its context; while they do not fit, one is preempted."""
        block = unit.pool.scheduler.block_tokens
        preempted = False
        while unit.decoders(lane):
            more = sum(
                blocks_for(request.context - request.covered, block) - request.held for request in unit.decoders(lane)
            )
            if more <= unit.available():
                break
            preempted = True
            if unit.pool.scheduler.engine is Engine.SGLANG:
                victim = min(unit.decoders(lane), key=lambda one: (one.emitted, -one.prompt, -one.sequence))
            else:
                victim = max(unit.lanes[lane], key=lambda one: one.sequence)
            unit.leave(victim)
            unit.let_go(victim)
            victim.state = "waiting"
            victim.computed = 0
            victim.chunk = 0
            victim.preemptions += 1
            unit.preemptions += 1
            unit.line_up(victim)
        for request in unit.decoders(lane):
            want = blocks_for(request.context - request.covered, block)
            unit.make_free(want - request.held)
            request.held = want
        unit.note_peak()
        return preempted

    def reserve(self, unit: Unit, request: Request) -> int:
        return min(request.output - request.emitted, unit.pool.scheduler.reservation_clip_tokens)

    def admit(self, unit: Unit, lane: int, budget: int, most: int, *, mixed: bool, whole: bool, sglang: bool) -> None:
        rules = unit.pool.scheduler
        while unit.waiting and budget > 0:
            if unit.running() >= rules.max_running_requests:
                unit.blocked = True
                return
            if unit.admitted(lane) * len(unit.lanes) >= unit.running() + len(unit.waiting):
                return
            request = unit.waiting[0]
            if unit.caching and rules.admission is Admission.LONGEST_PREFIX:
                ahead = unit.waiting[:LOOK_AHEAD]
                request = max(ahead, key=lambda one: (unit.resident(one.blocks), -one.sequence))
            if request.state == "handed":
                need = blocks_for(request.prompt + 1, rules.block_tokens)
                if need > unit.available():
                    unit.blocked = True
                    return
                unit.waiting.remove(request)
                if mixed and request.output > 1:
                    budget -= 1
                request.lane = lane
                request.held = need
                request.covered = 0
                request.emitted = 1
                request.first_ps = request.last_ps = self.now
                request.state = "decoding"
                unit.lanes[lane].append(request)
                unit.note_peak()
                if request.output == 1:
                    self.finish(unit, request)
                continue
            blocks = request.blocks if unit.caching else ()
            target = request.prompt + request.emitted
            depth = unit.resident(blocks)
            covered = unit.filled(request, len(blocks)) * rules.block_tokens
            hit = unit.found_tokens(request, depth, target)
            uncached = target - hit
            if whole and any(one.chunk for one in unit.prefilling(lane)) and uncached > budget:
                return
            path = [unit.nodes[blocks[: at + 1]] for at in range(depth)]
            host = sum(node.in_host for node in path)
            idle = sum(node.size for node in path if node.references == 0 and not node.in_host)
            shared = unit.filled(request, len(blocks)) - unit.filled(request, depth)
            shared += sum(node.size for node in path if node.in_host)
            private = blocks_for(target - covered, rules.block_tokens)
            asked = shared + private
            if sglang and not (self.split and unit.pool_number == 0):
                asked = shared + blocks_for(target - covered + self.reserve(unit, request), rules.block_tokens)
                runs = [one for some in unit.lanes for one in some]
                left = sum(one.output - one.emitted for one in runs if one.state == "decoding")
                kept = sum(self.reserve(unit, one) for one in runs if one.state == "prefilling")
                kept += sum(self.reserve(unit, one) for one in unit.loading)
                kept += left * rules.decode_reservation_permille // 1000
                asked += blocks_for(kept, rules.block_tokens)
            if asked > unit.available() - idle:
                unit.blocked = True
                return
            unit.waiting.remove(request)
            if blocks:
                unit.take_path(request)
            unit.make_free(private)
            request.held = private
            request.covered = covered
            request.lane = lane
            request.target = target
            request.computed = hit
            if request.preemptions == 0:
                request.admitted_ps = self.now
                request.hit, request.hit_blocks = hit, depth
                request.host_hit, request.host_blocks = min(host * self.block_tokens, hit), host
                self.bill_host(unit, request, uncached)
            if host:
                request.state = "loading"
                unit.loading.append(request)
                unit.note_peak()
                tier = unit.pool.host_tier
                assert tier is not None
                begin = max(self.now, unit.link_free_ps)
                unit.link_free_ps = begin + host * round(tier.block_bytes / tier.link_bytes_per_s * 10**12)
                heapq.heappush(self.events, (unit.link_free_ps, DATA, request.index, request.index))
                continue
            request.state = "prefilling"
            request.chunk = min(uncached, most, budget)
            budget -= request.chunk
            unit.lanes[lane].append(request)
            unit.note_peak()

    def bill_host(self, unit: Unit, request: Request, uncached: int) -> None:
        def of(pool: Pool) -> int:
            return pool.table.host_request_ps + pool.table.host_ps_per_token * uncached

        here = of(unit.pool)
        if not self.split:
            request.host_ps = here
        elif unit.pool_number == 0:
            request.bill_ps = here // 2
            assert self.deployment.decode_pool is not None
            request.host_ps = here - here // 2 + of(self.deployment.decode_pool)

    # the end of a step -----------------------------------------------------------------------------------------------
    def end_step(self, executor: Executor) -> None:
        lane = executor.lane
        permille = executor.replica.pool.table.tokens_per_step_permille
        before, after = executor.decode_steps, executor.decode_steps + 1
        burst = after * permille // 1000 - before * permille // 1000
        for unit, decodes in zip(executor.replica.units, executor.decodes, strict=True):
            chunks = [request for request in unit.prefilling(lane) if request.chunk]
            if decodes:
                done = []
                for request in unit.decoders(lane):
                    self.gaps[self.now - request.last_ps] += 1
                    request.last_ps = self.now
                    request.emitted += burst
                    if request.emitted >= request.output:
                        done.append(request)
                for request in sorted(done, key=lambda one: (one.output - one.emitted, one.sequence)):
                    request.emitted = request.output
                    self.finish(unit, request)
            for request in chunks:
                request.computed += request.chunk
                request.chunk = 0
                if request.computed < request.target:
                    continue
                request.estimate = 0
                if self.split and unit.pool_number == 0:
                    self.hand_off(unit, request)
                    continue
                request.emitted += 1
                if request.emitted == 1:
                    request.first_ps = self.now
                else:
                    self.gaps[self.now - request.last_ps] += 1
                request.last_ps = self.now
                if request.emitted >= request.output:
                    self.finish(unit, request)
                else:
                    request.state = "decoding"
        executor.decode_steps += any(executor.decodes)
        executor.busy_ps += self.now - executor.start_ps
        executor.end_ps = None
        executor.ready_ps = self.now

    def hand_off(self, unit: Unit, request: Request) -> None:
        link = self.deployment.handoff
        assert link is not None
        unit.leave(request)
        unit.holding.append(request)
        request.state = "transferring"
        begin = max(self.now, unit.replica.link_free_ps)
        per_thousand = round(link.bytes_per_token * link.exposed_layer_frac / link.bytes_per_s * 1000 * 10**12)
        unit.replica.link_free_ps = begin + round(link.floor_s * 10**12) + request.prompt * per_thousand // 1000
        heapq.heappush(self.events, (unit.replica.link_free_ps, DATA, request.index, request.index))

    def finish(self, unit: Unit, request: Request) -> None:
        unit.leave(request)
        unit.let_go(request)
        unit.outstanding.remove(request)
        self.complete(request, rejected=False)

    def complete(self, request: Request, *, rejected: bool) -> None:
        if rejected:
            request.admitted_ps = request.first_ps = self.now
        self.records.append(
            (
                request.index,
                int(rejected),
                request.arrival_ps,
                request.admitted_ps,
                request.first_ps,
                self.now,
                request.host_ps,
                request.prompt,
                request.emitted,
                request.hit,
                request.host_hit,
                request.hit_blocks,
                request.host_blocks,
                request.unit.number if request.unit else -1,
                request.prefill_unit.number if request.prefill_unit else -1,
                request.preemptions,
            )
        )
        request.state = "done"
        seen = self.now + request.host_ps
        for other in self.sessions[request.session]:
            if request.index in other.waits_for:
                other.ready_ps = max(other.ready_ps, seen)
                other.pending -= 1
                if other.pending == 0:
                    at = other.ready_ps + other.delay_ps
                    if self.clients is None:
                        at = max(at, other.timestamp_ps)
                    heapq.heappush(self.events, (at, RELEASE, other.index, other.index))
        session = request.session
        self.left[session] -= 1
        self.session_end[session] = max(self.session_end[session], seen)
        if self.left[session] == 0 and session in self.client_of:
            client = self.client_of[session]
            heapq.heappush(self.events, (self.session_end[session], CLIENT, client, client))


def simulate_literal(
    deployment: Deployment, requests: list[Request], *, clients: int | None = None, block_tokens: int = 0
) -> Result:
    """Step every step. `clients` None: requests arrive at their timestamps."""
    return Literal(deployment, requests, clients, block_tokens).run()
