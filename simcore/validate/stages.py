"""Pipelines seen as one stage and back: p stages serve C clients as p groups of C/p in turn, plus hops (Eq. 4)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from simcore.data.constants import constant
from simcore.laws.collectives import Collective, Tier, link
from simcore.laws.pipeline import hop_inside_step, micro_batches, scheduler_host_time
from simcore.stepcost.features import LayoutFeatures
from simcore.stepcost.work import ACTIVATION_BYTES
from simcore.validate.cells import Cell

LEAST_FORWARD_FRAC = 0.2
"""At least this share of a measured token or TTFT is no hop, whatever the constants of another engine say."""


@dataclass(frozen=True)
class Stages:
    """A pipeline of `count` stages with some requests in flight; fewer requests than stages never fill it."""

    count: int
    requests: float
    hidden: int
    """0 = unknown, and transfers take only their kernel."""

    @classmethod
    def of(cls, count: int, requests: float, features: LayoutFeatures | None) -> Stages:
        """The stages of a layout whose cards are `features`."""
        return cls(count, requests, features.hidden if features is not None else 0)

    @property
    def flights(self) -> float:
        """Groups of requests in flight."""
        return float(micro_batches(clients_requests=self.requests, stages_count=self.count))

    @property
    def micro_batch(self) -> float:
        """Requests that one forward holds."""
        return self.requests / self.flights

    def added_s(self, tokens: float) -> float:
        """What keeps one stage busy beside the forward of `tokens`: the hop, and host time that stops overlapping [s].

        Eq. 4 charges a token p times this. A prefill pass is a step like any other and pays it in each stage too.
        """
        if self.count == 1:
            return 0.0
        host_s = 0.0
        if self.flights > 1:
            host_s = float(
                scheduler_host_time(
                    batch_requests=self.micro_batch,
                    base_s=constant("pipeline.host_base_s").value,
                    s_per_request=constant("pipeline.host_s_per_request").value,
                )
            )
        return self._transfer_s(tokens) + constant("pipeline.hop_overhead_s").value + host_s

    def _transfer_s(self, tokens: float) -> float:
        """Hidden states of `tokens` from one stage to the next inside a node, over one link as plans price it [s]."""
        activation_bytes = tokens * self.hidden * ACTIVATION_BYTES
        served = link(collective=Collective.SEND_RECV, message_bytes=activation_bytes, gpus_count=2, tier=Tier.NODE)
        return float(
            hop_inside_step(
                activation_bytes=activation_bytes,
                bytes_per_s=served.bytes_per_s,
                wire_latency_s=0.0,
                kernel_s=constant("kernel.occupancy_s").value,
            )
        )


def one_stage(cell: Cell, stages_count: int, features: LayoutFeatures | None) -> Cell:
    """The cell as one stage of the same width would have measured it with one of the groups in flight."""
    if stages_count == 1:
        return cell
    stages = Stages.of(stages_count, cell.running, features)
    decode_s, prefill_s = stages.added_s(stages.micro_batch), stages.added_s(cell.prompt_tokens)
    others_s = (cell.running - 1.0) * prefill_s / max(cell.output_tokens - 1.0, 1.0)
    tpot_s = cell.tpot_s - stages.count * decode_s - others_s
    return replace(
        cell,
        clients=max(round(cell.clients / stages.flights), 1),
        running=stages.micro_batch,
        tpot_s=max(tpot_s, LEAST_FORWARD_FRAC * cell.tpot_s),
        ttft_s=None
        if cell.ttft_s is None
        else max(cell.ttft_s - stages.count * prefill_s, LEAST_FORWARD_FRAC * cell.ttft_s),
    )
