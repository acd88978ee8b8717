"""A deployment from a plain document: the step law in numbers, the scheduler's flags, the pools.

For those who have step times of their own; a scenario (model, engine, anchors) gives the same `Deployment` by itself.
"""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from simcore.cards.layout import Engine
from simcore.des.config import Admission, Deployment, Handoff, HostTier, Pool, Routing, SchedulerConfig
from simcore.des.kernel.fields import LATEST
from simcore.errors import InputError
from simcore.stepcost.table import StepTable
from simcore.units import PS_PER_S

US_TO_PS = 10**6
NS_TO_PS = 10**3

Positive = Annotated[int, Field(ge=1, le=1 << 40)]
Amount = Annotated[float, Field(ge=0, le=1e12, allow_inf_nan=False)]


class _Document(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, extra="forbid", frozen=True)


class StepDocument(_Document):
    """The step law of `StepTable`, in numbers people read."""

    decode_microseconds: Annotated[dict[Positive, Amount], Field(min_length=1, max_length=4096)]
    """Batch to step time at no context; between the points by straight lines, beyond the last by its slope."""
    context_nanoseconds_per_token: Amount = 0
    prefill_fixed_microseconds: Amount = 0
    prefill_nanoseconds_per_token: Amount = 0
    prefill_picoseconds_per_squared_token: Amount = 0
    mixed_shared_microseconds: Amount = 0
    host_request_microseconds: Amount = 0
    host_nanoseconds_per_token: Amount = 0
    pipeline_stages: Annotated[int, Field(ge=1, le=64)] = 1
    hop_microseconds: Amount = 0
    pipeline_host_microseconds: Amount = 0
    pipeline_host_microseconds_per_request: Amount = 0
    tokens_per_step_permille: Annotated[int, Field(ge=1000, le=64_000)] = 1000

    def table(self, max_batch: int) -> StepTable:
        """Prices up to `max_batch`, rounded to picoseconds."""
        points = sorted(self.decode_microseconds.items())
        batches = np.arange(max_batch + 1, dtype=np.float64)
        known, times = np.array([b for b, _ in points], dtype=np.float64), np.array([t for _, t in points])
        base = np.interp(batches, known, times)
        if len(points) > 1:
            slope = (times[-1] - times[-2]) / (known[-1] - known[-2])
            base = np.where(batches > known[-1], times[-1] + slope * (batches - known[-1]), base)
        decode = np.rint(np.clip(base * US_TO_PS, 0, LATEST)).astype(np.int64)
        decode[0] = 0
        context = np.full(max_batch + 1, round(self.context_nanoseconds_per_token * NS_TO_PS), np.int64)
        host = self.pipeline_host_microseconds + self.pipeline_host_microseconds_per_request * batches
        return StepTable(
            decode,
            context,
            np.zeros(max_batch + 1, np.int64),
            window_tokens=0,
            prefill_fixed_ps=round(self.prefill_fixed_microseconds * US_TO_PS),
            prefill_ps_per_token=round(self.prefill_nanoseconds_per_token * NS_TO_PS),
            prefill_ps_per_token2=round(self.prefill_picoseconds_per_squared_token),
            mixed_shared_ps=round(self.mixed_shared_microseconds * US_TO_PS),
            host_request_ps=round(self.host_request_microseconds * US_TO_PS),
            host_ps_per_token=round(self.host_nanoseconds_per_token * NS_TO_PS),
            pipeline_stages=self.pipeline_stages,
            hop_ps=round(self.hop_microseconds * US_TO_PS),
            pipeline_host_ps=np.rint(host * US_TO_PS).astype(np.int64) if self.pipeline_stages > 1 else None,
            tokens_per_step_permille=self.tokens_per_step_permille,
        )


class SchedulerDocument(_Document):
    """The scheduler's flags; see `SchedulerConfig`."""

    engine: str
    max_running_requests: Positive
    max_batched_tokens: Positive = 8192
    chunk_tokens: Positive = 8192
    kv_pool_tokens: Positive
    block_tokens: Positive = 16
    prefix_caching: bool = True
    admission: Admission = Admission.FIFO
    mixed_chunk: bool = False
    decode_reservation_permille: Annotated[int, Field(ge=0, le=1000)] = 98


class HostTierDocument(_Document):
    """See `HostTier`."""

    capacity_blocks: Positive
    link_gigabytes_per_second: Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)]
    block_bytes: Positive


class PoolDocument(_Document):
    """See `Pool`."""

    step: StepDocument
    scheduler: SchedulerDocument
    replicas: Annotated[int, Field(ge=1, le=4096)] = 1
    attention_data_parallel: Annotated[int, Field(ge=1, le=4096)] = 1
    gpus_per_replica: Annotated[int, Field(ge=1, le=4096)] = 1
    host_tier: HostTierDocument | None = None

    def pool(self) -> Pool:
        rules = self.scheduler
        tier = self.host_tier
        return Pool(
            table=self.step.table(min(rules.max_running_requests, 1 << 16)),
            scheduler=SchedulerConfig(
                engine=Engine.parse(rules.engine, "scheduler.engine"),
                max_running_requests=rules.max_running_requests,
                max_batched_tokens=rules.max_batched_tokens,
                chunk_tokens=rules.chunk_tokens,
                kv_pool_tokens=rules.kv_pool_tokens,
                block_tokens=rules.block_tokens,
                prefix_caching=rules.prefix_caching,
                admission=rules.admission,
                mixed_chunk=rules.mixed_chunk,
                decode_reservation_permille=rules.decode_reservation_permille,
            ),
            replicas_count=self.replicas,
            attention_dp=self.attention_data_parallel,
            gpus_per_replica_count=self.gpus_per_replica,
            host_tier=None
            if tier is None
            else HostTier(tier.capacity_blocks, tier.link_gigabytes_per_second * 1e9, tier.block_bytes),
        )


class HandoffDocument(_Document):
    """See `Handoff`."""

    floor_microseconds: Amount
    gigabytes_per_second: Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)]
    bytes_per_token: Amount
    exposed_layer_fraction: Annotated[float, Field(ge=0, le=1)] = 1.0


class DeploymentDocument(_Document):
    """The whole document (docs/formats/traces.md has an example)."""

    pool: PoolDocument
    decode_pool: PoolDocument | None = None
    handoff: HandoffDocument | None = None
    routing: Routing = Routing.LEAST_LOADED


def load_deployment(document: Any) -> Deployment:
    """The deployment that `document` states. Raises InputError."""
    try:
        given = DeploymentDocument.model_validate(document)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"]) or "deployment"
        raise InputError(place, first.get("input"), "be as the format says", first["msg"]) from error
    link = given.handoff
    return Deployment(
        pool=given.pool.pool(),
        decode_pool=None if given.decode_pool is None else given.decode_pool.pool(),
        handoff=None
        if link is None
        else Handoff(
            link.floor_microseconds * US_TO_PS / PS_PER_S,
            link.gigabytes_per_second * 1e9,
            link.bytes_per_token,
            link.exposed_layer_fraction,
        ),
        routing=given.routing,
    )
