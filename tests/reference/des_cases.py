"""Hypothesis strategies for deployments and loads, and the bridge from literal requests to a workload."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from hypothesis import strategies as st

from simcore.cards.layout import Engine
from simcore.des.config import Admission, Deployment, Handoff, HostTier, Pool, Routing, SchedulerConfig
from simcore.des.workload.batch import Batch, BatchBuilder, Workload
from simcore.stepcost.table import StepTable
from tests.reference.des_literal import Request

BLOCK = 8


def table_of(
    max_batch: int,
    *,
    base_ps: int = 10_000_000_000,
    per_request_ps: int = 37_000_000,
    context_ps: int = 1_003,
    window_ps: int = 0,
    window_tokens: int = 0,
    fixed_ps: int = 3_000_000_000,
    token_ps: int = 21_000_000,
    square_ps: int = 17,
    shared_ps: int = 0,
    **more: object,
) -> StepTable:
    """A step table with simple lines."""
    batch = np.arange(max_batch + 1, dtype=np.int64)
    base = np.where(batch > 0, base_ps + per_request_ps * batch, 0)
    context = np.where(batch > 0, context_ps + batch, 0)
    window = np.where(batch > 0, window_ps, 0)
    return StepTable(base, context, window, window_tokens, fixed_ps, token_ps, square_ps, shared_ps, **more)  # type: ignore[arg-type]


@st.composite
def tables(draw: st.DrawFn, max_batch: int, stages: int) -> StepTable:
    host = np.arange(max_batch + 1, dtype=np.int64) * 1_000_003 + 330_000_000
    return table_of(
        max_batch,
        base_ps=draw(st.sampled_from([0, 1_000_000, 10_000_000_000])),
        per_request_ps=draw(st.sampled_from([0, 7, 37_000_000])),
        context_ps=draw(st.sampled_from([0, 1_003, 50_000_000])),
        window_ps=draw(st.sampled_from([0, 0, 999])),
        window_tokens=draw(st.integers(1, 40)),
        fixed_ps=draw(st.sampled_from([0, 3_000_000_000])),
        token_ps=draw(st.sampled_from([1_000_000, 21_000_000])),
        square_ps=draw(st.sampled_from([0, 17])),
        shared_ps=draw(st.sampled_from([0, 2_000_000_000])),
        host_request_ps=draw(st.sampled_from([0, 5_000_000_000])),
        host_ps_per_token=draw(st.sampled_from([0, 11_000_000])),
        pipeline_stages=stages,
        hop_ps=draw(st.sampled_from([0, 970_000_000])) if stages > 1 else 0,
        pipeline_host_ps=host if stages > 1 and draw(st.booleans()) else None,
        tokens_per_step_permille=draw(st.sampled_from([1000, 1000, 1500, 2660, 3001])),
    )


@st.composite
def pools(draw: st.DrawFn, *, caching: bool, may_tier: bool = True) -> Pool:
    engine = draw(st.sampled_from(list(Engine)))
    cap = draw(st.integers(1, 6))
    stages = draw(st.sampled_from([1, 1, 1, 2, 3]))
    block = draw(st.sampled_from([1, 2, 4, 8, 3, 5, 12, 16]))
    cached = caching and draw(st.booleans())
    tier = None
    if cached and may_tier and draw(st.booleans()):
        tier = HostTier(draw(st.integers(1, 40)), 1e9, draw(st.sampled_from([1_000, 30_000_000])))
    return Pool(
        table=draw(tables(cap, stages)),
        scheduler=SchedulerConfig(
            engine=engine,
            max_running_requests=cap,
            max_batched_tokens=draw(st.integers(cap, 60)),
            chunk_tokens=draw(st.integers(1, 60)),
            kv_pool_tokens=draw(st.integers(30, 260)),
            block_tokens=block,
            prefix_caching=cached,
            admission=draw(st.sampled_from(list(Admission))),
            mixed_chunk=draw(st.booleans()),
            decode_reservation_permille=draw(st.sampled_from([0, 98, 700, 1000])),
            reservation_clip_tokens=draw(st.sampled_from([5, 4096])),
        ),
        replicas_count=draw(st.integers(1, 3)),
        attention_dp=draw(st.sampled_from([1, 1, 2])),
        host_tier=tier,
    )


@st.composite
def deployments(draw: st.DrawFn, *, caching: bool = True, split: bool | None = None) -> Deployment:
    routing = draw(st.sampled_from([r for r in Routing if r is not Routing.PREFIX_HASH]))
    pool = draw(pools(caching=caching))
    if not (draw(st.booleans()) if split is None else split):
        return Deployment(pool, routing=routing)
    handoff = Handoff(
        floor_s=draw(st.sampled_from([0.0, 120e-6])),
        bytes_per_s=47.9e9,
        bytes_per_token=draw(st.sampled_from([0.0, 70_272.0, 3e7])),
        exposed_layer_frac=draw(st.sampled_from([1.0, 1 / 61])),
    )
    return Deployment(pool, draw(pools(caching=False)), handoff, routing)


@st.composite
def pressed(draw: st.DrawFn) -> tuple[Deployment, tuple[list[Request], None]]:
    """A pool hardly larger than its largest request, long answers, prompts of many chunks: preemptions all the time."""
    paths = [draw(st.lists(st.integers(0, 2), max_size=3)) for _ in range(2)]
    requests = []
    for number in range(draw(st.integers(4, 12))):
        path = tuple(draw(st.sampled_from(paths)))
        prompt = max(1, len(path) * BLOCK + draw(st.integers(-BLOCK + 1, 20)))
        start_ps = number * draw(st.sampled_from([0, 10_000_000_000, 150_000_000_000]))
        output = draw(st.integers(1, 60))
        requests.append(Request(number, prompt, output, timestamp_ps=start_ps, blocks=path, session=number))
    requests.sort(key=lambda one: one.timestamp_ps)
    for number, request in enumerate(requests):
        request.index = request.session = number
    cap = draw(st.integers(2, 6))
    block = draw(st.sampled_from([1, 2, 3, 4, 8, 16]))
    largest = max(-(-request.prompt // BLOCK) * BLOCK + request.output for request in requests)
    pool = Pool(
        table=draw(tables(cap, draw(st.sampled_from([1, 1, 2])))),
        scheduler=SchedulerConfig(
            engine=draw(st.sampled_from(list(Engine))),
            max_running_requests=cap,
            max_batched_tokens=draw(st.integers(cap, 20)),
            chunk_tokens=draw(st.integers(1, 12)),
            kv_pool_tokens=(-(-largest // block) + draw(st.integers(1, 1 + 40 // block))) * block,
            block_tokens=block,
            prefix_caching=draw(st.booleans()),
            mixed_chunk=draw(st.booleans()),
            decode_reservation_permille=draw(st.sampled_from([0, 98])),
            reservation_clip_tokens=draw(st.sampled_from([1, 5, 4096])),
        ),
        attention_dp=draw(st.sampled_from([1, 1, 2])),
    )
    return Deployment(pool), (requests, None)


@st.composite
def loads(draw: st.DrawFn, *, most: int = 14) -> tuple[list[Request], int | None]:
    """Sessions of requests with shared prefixes, waits, joins and think times; and the clients, None for open loop."""
    requests: list[Request] = []
    paths: list[tuple[int, ...]] = [()]
    starts = sorted(draw(st.lists(st.integers(0, 40), min_size=1, max_size=most)))
    for session, start in enumerate(starts):
        members: list[int] = []
        for _ in range(draw(st.sampled_from([1, 1, 2, 4]))):
            base = draw(st.sampled_from(paths))
            path = base[: draw(st.integers(0, len(base)))]
            path += tuple(draw(st.lists(st.integers(0, 3), max_size=5)))
            prompt = max(1, len(path) * BLOCK + draw(st.integers(-BLOCK + 1, 12)))
            paths.append(path)
            waits = tuple(index for index in members if draw(st.booleans()))
            request = Request(
                index=len(requests),
                prompt=prompt,
                output=draw(st.sampled_from([1, 2, 3, 9, 30])),
                timestamp_ps=start * 5_000_000_000 + (draw(st.sampled_from([0, 3_000_000_001])) if members else 0),
                delay_ps=draw(st.sampled_from([0, 0, 1_000_000_000, 70_000_000_007])),
                blocks=path,
                session=session,
                waits_for=waits,
            )
            members.append(request.index)
            requests.append(request)
    clients = draw(st.sampled_from([None, 1, 2, 5]))
    return requests, clients


def as_workload(requests: list[Request], clients: int | None, *, sessions_per_batch: int = 10**9) -> Workload:
    """The same load for the fast simulator, in batches of so many sessions."""

    def batches(_: np.random.SeedSequence) -> Iterator[Batch]:
        groups: dict[int, list[Request]] = {}
        for request in requests:
            groups.setdefault(request.session, []).append(request)
        builder, first = BatchBuilder(BLOCK), 0
        for count, members in enumerate(groups.values(), start=1):
            builder.start_session()
            for request in members:
                leaf = builder.path([int(block) for block in request.blocks]) if request.blocks else -1  # type: ignore[call-overload]
                builder.add(
                    request.prompt,
                    request.output,
                    timestamp_ps=request.timestamp_ps,
                    delay_ps=request.delay_ps,
                    leaf=leaf,
                    waits_for=[index - first for index in request.waits_for],
                )
            if count % sessions_per_batch == 0:
                first += len(builder)
                yield builder.build()
        if len(builder):
            yield builder.build()

    return Workload(batches, clients, BLOCK, len(requests))
