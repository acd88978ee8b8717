"""Collectives, pipelines, hand-off and host terms: limits, monotone, and nothing charged where nothing moves."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simcore.data.constants import constant
from simcore.errors import DomainError, InputError, UnknownNameError
from simcore.laws.collectives import Collective, Tier, collective_time, link, mesh_bandwidth
from simcore.laws.fusions import check_fusions, fusion_saving_range, legal_fusions, load_fusions
from simcore.laws.handoff import HandoffBackend, handoff_link, handoff_time
from simcore.laws.pipeline import mean_hop, micro_batches, pipeline_step, scheduler_host_time, serial_pipeline_step
from simcore.units import MIB
from tests.law_strategies import BYTES, TIME

KINDS = st.sampled_from(Collective)
GROUPS = st.sampled_from([2, 4, 8])


@given(KINDS, st.floats(0, 1e10), GROUPS, st.sampled_from(Tier))
def test_a_step_pays_no_more_than_a_standalone_message(kind: Collective, size: float, gpus: int, tier: Tier) -> None:
    shared = {"collective": kind, "message_bytes": size, "gpus_count": gpus, "tier": tier}
    inside, alone = collective_time(**shared, inside_step=True), collective_time(**shared, inside_step=False)
    assert 0.0 <= inside < alone
    assert alone - inside == pytest.approx(link(**shared).alpha_s, rel=1e-6)


@given(KINDS, st.tuples(st.floats(0, 1e10), st.floats(0, 1e10)), GROUPS)
def test_one_kernel_is_monotone_in_bytes(kind: Collective, sizes: tuple[float, float], gpus: int) -> None:
    """Across a switch of kernels time may drop; within one kernel it never does."""
    small, large = sorted(sizes)
    shared = {"collective": kind, "gpus_count": gpus, "tier": Tier.NODE}
    if link(**shared, message_bytes=small) == link(**shared, message_bytes=large):
        assert collective_time(**shared, message_bytes=small, inside_step=False) <= collective_time(
            **shared, message_bytes=large, inside_step=False
        )


@pytest.mark.parametrize("kind", [Collective.ALL_REDUCE, Collective.ALL_TO_ALL])
def test_one_gpu_exchanges_nothing(kind: Collective) -> None:
    found = collective_time(collective=kind, message_bytes=1e6, gpus_count=1, tier=Tier.NODE, inside_step=False)
    assert found == 0.0


@pytest.mark.parametrize(
    ("size", "gpus", "kernel"),
    [
        (256 * 1024, 8, "custom_all_reduce.8.one_shot"),
        (256 * 1024 + 1, 8, "custom_all_reduce.8.two_shot"),
        (512 * 1024, 4, "custom_all_reduce.4.one_shot"),
        (512 * 1024 + 1, 4, "custom_all_reduce.4.two_shot"),
        (8 * MIB, 2, "custom_all_reduce.2.one_shot"),
        (8 * MIB, 8, "custom_all_reduce.8.two_shot"),
        (8 * MIB + 1, 8, "rccl_mesh_all_reduce.8"),
    ],
)
def test_the_kernel_follows_the_message(size: int, gpus: int, kernel: str) -> None:
    """Switch sizes of paper App. G.2: 256 KiB on eight GPUs, 512 KiB on four, RCCL above 8 MiB."""
    found = link(collective=Collective.ALL_REDUCE, message_bytes=size, gpus_count=gpus, tier=Tier.NODE)
    assert found.kernel == kernel


def test_a_group_nobody_measured_says_so() -> None:
    shared = {"collective": Collective.ALL_REDUCE, "message_bytes": 1e5}
    assert link(**shared, gpus_count=6, tier=Tier.NODE).assumed == ("collective of 6 GPUs priced as 8",)
    assert link(**shared, gpus_count=32, tier=Tier.NETWORK).assumed == ("collective of 32 GPUs priced as 16",)
    assert link(**shared, gpus_count=8, tier=Tier.NODE).assumed == ()
    with pytest.raises(DomainError, match="got 16"):
        link(**shared, gpus_count=16, tier=Tier.NODE)


@given(st.integers(2, 7))
def test_mesh_bandwidth_grows_with_the_links_in_use(gpus: int) -> None:
    node = {"node_bytes_per_s": 600e9, "efficiency_frac": 1.0, "node_gpus_count": 8}
    wider = mesh_bandwidth(**node, group_gpus_count=gpus + 1)
    assert wider - mesh_bandwidth(**node, group_gpus_count=gpus) == pytest.approx(600e9 / 7)


def test_both_all_to_all_fits_agree_where_they_overlap() -> None:
    """Table 19 fits RCCL all-to-all up to 32 MiB and above 8 MiB; between, the mesh model must give the same times.

    This is what the assumed efficiency and the bytes-on-the-mesh convention rest on; both fits have about 5 % error
    (9.6 % the mesh on four GPUs), so 12 % apart at most.
    """
    for gpus in (2, 4, 8):
        small = link(collective=Collective.ALL_TO_ALL, message_bytes=16 * MIB, gpus_count=gpus, tier=Tier.NODE)
        mesh = link(collective=Collective.ALL_TO_ALL, message_bytes=33 * MIB, gpus_count=gpus, tier=Tier.NODE)
        for size in (8 * MIB, 16 * MIB, 32 * MIB):
            first, second = (found.alpha_s + size / found.bytes_per_s for found in (small, mesh))
            assert second == pytest.approx(first, rel=0.12)


@given(TIME, st.integers(2, 16), TIME, TIME, TIME)
def test_a_pipeline_costs_at_least_its_forward(
    forward: float, stages: int, hop: float, overhead: float, host: float
) -> None:
    full = pipeline_step(forward_s=forward, stages_count=stages, hop_s=hop, hop_overhead_s=overhead, host_s=host)
    deeper = pipeline_step(forward_s=forward, stages_count=stages + 1, hop_s=hop, hop_overhead_s=overhead, host_s=host)
    assert forward < full < deeper
    assert deeper - full == pytest.approx(hop + overhead + host, rel=1e-6)
    free = pipeline_step(forward_s=forward, stages_count=stages, hop_s=0.0, hop_overhead_s=0.0, host_s=0.0)
    assert free == forward == serial_pipeline_step(forward_s=forward, stages_count=stages, hop_s=0.0)


@given(st.integers(1, 2048), st.integers(1, 16))
def test_micro_batches_never_exceed_clients_or_stages(clients: int, stages: int) -> None:
    count = micro_batches(clients_requests=clients, stages_count=stages)
    assert 1 <= count <= min(clients, stages)


@given(st.integers(2, 16), TIME, TIME)
def test_placement_only_moves_hops_between_tiers(stages: int, near: float, far: float) -> None:
    hops = [
        float(mean_hop(stages_count=stages, nodes_count=nodes, node_hop_s=near, network_hop_s=far))
        for nodes in range(1, stages + 1)
    ]
    assert hops[0] == pytest.approx(near)
    assert hops[-1] == pytest.approx(far)
    assert all(min(near, far) * (1 - 1e-9) <= hop <= max(near, far) * (1 + 1e-9) for hop in hops)


@given(st.integers(0, 512))
def test_scheduler_host_time_is_within_the_measured_ranges(batch: int) -> None:
    found = float(
        scheduler_host_time(
            batch_requests=batch,
            base_s=constant("pipeline.host_base_s").value,
            s_per_request=constant("pipeline.host_s_per_request").value,
        )
    )
    # Paper App. B.4: 0.31 to 0.39 ms at small batch, 0.69 to 0.78 ms at 64.
    if 1 <= batch <= 8:
        assert 0.31e-3 <= found <= 0.39e-3
    if batch == 64:
        assert 0.69e-3 <= found <= 0.78e-3


@given(BYTES, st.sampled_from(HandoffBackend), st.integers(1, 200))
def test_streaming_exposes_one_layer(cache: float, backend: HandoffBackend, layers: int) -> None:
    used = handoff_link(backend, layers_count=layers)
    found = handoff_time(
        cache_bytes=cache, exposed_frac=used.exposed_frac, floor_s=used.floor_s, bytes_per_s=used.bytes_per_s
    )
    assert found >= used.floor_s
    exposed = cache / layers if backend is HandoffBackend.MORI else cache
    assert found - used.floor_s == pytest.approx(exposed / used.bytes_per_s, rel=1e-6, abs=1e-9)
    assert used.is_measured == (backend is HandoffBackend.MORI)


@given(st.sampled_from(sorted(load_fusions())), st.integers(1, 100), st.floats(1, 1e4))
def test_fusions_save_between_three_quarters_and_all(name: str, layers: int, tokens: float) -> None:
    low, high = fusion_saving_range(
        name=name,
        layers_count=layers,
        step_tokens=tokens,
        hidden_bytes_per_token=14336.0,
        intermediate_bytes_per_token=4096.0,
        memory_bytes_per_s=8e12,
    )
    assert 0 < low <= high
    assert low == pytest.approx(0.75 * high)
    assert high >= layers * constant("kernel.occupancy_s").value * load_fusions()[name].kernels_per_layer_count


def test_fusion_rules() -> None:
    """Paper App. J: quant-fed patterns need low-precision activations, MoE patterns a MoE, no repeats, no mixing."""
    dense_bf16 = {"quantised_activations": False, "is_moe": False}
    assert legal_fusions(**dense_bf16) == ("add_rmsnorm", "rope_kvstore")
    assert set(legal_fusions(quantised_activations=True, is_moe=True)) == set(load_fusions())
    assert check_fusions(["all"], **dense_bf16) == ("add_rmsnorm", "rope_kvstore")
    assert check_fusions([], **dense_bf16) == ()
    for names in (["add_rmsnorm", "add_rmsnorm"], ["all", "add_rmsnorm"], ["norm_quant"], ["moe_routing"]):
        with pytest.raises(InputError):
            check_fusions(names, **dense_bf16)
    with pytest.raises(UnknownNameError, match="add_rmsnorm"):
        check_fusions(["add_rmsnrm"], **dense_bf16)
    with pytest.raises(UnknownNameError):
        fusion_saving_range(
            name="none",
            layers_count=1,
            step_tokens=1,
            hidden_bytes_per_token=1,
            intermediate_bytes_per_token=1,
            memory_bytes_per_s=np.inf,
        )
